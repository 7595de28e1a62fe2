"""Parts: a long axis under few rows is cut, so that threads share it.

Each part has a state of its own, as if it were a row of its own; the states are then merged by the rule that the
derivation gives, in a fixed order.  How many parts there are depends on shapes alone, so that any number of threads
gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial

from uopc.cascade.chain import BLOCK_ROWS
from uopc.cascade.lift import ordered
from uopc.ops import ALU, PLAIN, CascadeArg, ComponentArg, Level, Ops, Order, ReduceArg, StateArg
from uopc.rangeify import rangeify
from uopc.rangeify.context import Idx
from uopc.rangeify.positions import Probe, bodies_of
from uopc.uop import UOp

# Blocks of rows that are enough for threads to share, and how many blocks and parts there are where they are not.
ENOUGH_BLOCKS = 16
MOST_PARTS = 64
# The least that a part holds of the axis: a state is then merged at a small part of what it took to make.
LEAST_PART = 1024
# Fewer rows than this have a block each; of more, BLOCK_ROWS stand in one.
LEAST_ROWS = 8


def parts_of(rows: tuple[int, ...], length: int) -> int:
    """Parts of an axis of so many elements, for results of the shape ``rows``; a divisor of its length if one is
    near."""
    last = rows[-1] if rows else 1
    blocks = math.prod(rows[:-1]) * (last if last < LEAST_ROWS else -(-last // BLOCK_ROWS))
    if not 0 < blocks < ENOUGH_BLOCKS:
        return 1
    most = min(MOST_PARTS // blocks, length // LEAST_PART)
    return next((n for n in range(most, most // 2, -1) if length % n == 0), max(most, 1))


class _Unfit(Exception):
    """The axis does not stand by itself everywhere."""


# Which axis of each value the reduced one is: None where it is the same for all of it, -1 where it is part of an index.
Axes = dict[UOp, int | None]


def _axes(node: UOp, old: Container[UOp]) -> Axes:
    """The axes of the values in the bodies; ``old``: what no running value goes into.  Of that, what is written down or
    the same for all of the axis is not looked into."""
    out: Axes = {}
    for (body, _), component in zip(bodies_of(node), node.arg.components):
        for u, axis in _axes_in(body, component.axis, old):
            out[u] = axis if out.setdefault(u, axis) == axis else -1
    return out


def _axes_in(body: UOp, axis: int, old: Container[UOp]) -> Iterator[tuple[UOp, int | None]]:
    """For each value, and each index at which a body asks for it, the axis that the body's ``axis`` is there."""
    idx: Idx = ()
    probe = Probe(lambda u, at: u.op is Ops.STAGE or (u in old and not any(idx[axis] in i.ranges for i in at)))
    idx = probe.index(body.shape)
    along = idx[axis]
    rangeify(body, idx, probe.ctx)
    for u in ordered(body, lambda u: any(map(probe.asked, u.src))):
        for at in probe.asked(u):
            found = [a for a, i in enumerate(at) if along in i.ranges]
            yield u, None if not found else found[0] if len(found) == 1 and at[found[0]] is along else -1


@dataclass
class _Parts:
    """Values at several parts at once: a first axis says which part.

    first, count, each: the parts begin at ``first``, and are so many of so many elements.
    state: what stands for a STATE.  axes: as ``_axes`` gives them; None: nothing runs along the axis.
    """

    first: int
    count: int
    each: int
    state: Callable[[UOp], UOp]
    axes: Axes | None
    old: Container[UOp]

    def of(self, root: UOp) -> UOp:
        """``root`` at all parts; _Unfit where its axis is merged with another one."""
        memo: dict[UOp, UOp] = {}
        runs = self._running(root)
        stack = [root]
        while stack:
            u = stack[-1]
            below = [s for s in u.src if s.shape or s in runs] if self._goes_below(u, runs) else []
            missing = [s for s in below if s not in memo] if u not in memo else []
            if missing:
                stack += missing
                continue
            stack.pop()
            if u in memo:
                continue
            if u.op is Ops.STATE:
                memo[u] = self.state(u)
            elif not below:
                memo[u] = self.leaf(u)
            else:
                memo[u] = self.over(u, [memo.get(s, s) for s in u.src])
        return memo[root]

    def _running(self, root: UOp) -> set[UOp]:
        """What is made of running values or of other reductions, which must see the parts."""
        out: set[UOp] = set()
        for u in ordered(root, lambda u: u.op not in (Ops.STAGE, Ops.COMPONENT) and not self.apart(u)):
            if u.op in (Ops.STATE, Ops.REDUCE) or any(s in out for s in u.src):
                out.add(u)
        return out

    def apart(self, u: UOp) -> bool:
        """Whether a reduction is the same for all parts: it is spread over them."""
        return u.op is Ops.REDUCE and u in self.old and (self.axes is None or self.axes.get(u, -1) is None)

    def _goes_below(self, u: UOp, runs: set[UOp]) -> bool:
        return not self.apart(u) and (u.op in ALU or u.op is Ops.REDUCE or (u in runs and u.op is not Ops.STATE))

    def axis(self, u: UOp) -> int | None:
        if self.axes is None:
            return None
        # what nobody asks for, such as the terms of a sum over nothing, may run along anything
        found = self.axes.get(u, -1)
        if found == -1:
            raise _Unfit
        return found

    def shape(self, u: UOp) -> tuple[int, ...]:
        axis = self.axis(u)
        return (self.count, *(self.each if a == axis else n for a, n in enumerate(u.shape)))

    def leaf(self, u: UOp) -> UOp:
        """A value of memory and positions alone."""
        axis = self.axis(u)
        if axis is None:
            return UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (u,), (1, *u.shape)),), (self.count, *u.shape))
        first, last = self.first, self.first + self.count * self.each
        whole = UOp(Ops.SHRINK, (u,), tuple((first, last) if a == axis else (0, n) for a, n in enumerate(u.shape)))
        cut = (*u.shape[:axis], self.count, self.each, *u.shape[axis + 1 :])
        order = (axis, *(a for a in range(len(cut)) if a != axis))
        return UOp(Ops.PERMUTE, (UOp(Ops.RESHAPE, (whole,), cut),), order)

    def over(self, u: UOp, src: list[UOp]) -> UOp:
        """A node over its sources at all parts."""
        shape = self.shape(u)
        if u.op in ALU:
            return u.replace(src=tuple(self._spread(s, new, shape) for s, new in zip(u.src, src)))
        if u.op is Ops.REDUCE:
            if self.axis(u.src[0]) in u.arg.axes:
                raise _Unfit
            return UOp(Ops.REDUCE, (src[0],), u.arg._replace(axes=tuple(a + 1 for a in u.arg.axes)))
        if u.op not in PLAIN:
            raise _Unfit
        return UOp(u.op, (src[0],), self._move(u, shape))

    def _spread(self, s: UOp, new: UOp, shape: tuple[int, ...]) -> UOp:
        """An operand that was a number, one a part."""
        if s.shape or not new.shape or len(shape) == 1:
            return new
        return UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (new,), (self.count, *(1 for _ in shape[1:]))),), shape)

    def _move(self, u: UOp, shape: tuple[int, ...]) -> object:
        """The argument of a movement op with a first axis for the parts."""
        x = u.src[0]
        axis, before = self.axis(u), self.axis(x)
        if u.op is Ops.EXPAND:
            return shape
        if u.op is Ops.RESHAPE:
            if before is not None and (axis is None or math.prod(x.shape[:before]) != math.prod(u.shape[:axis])):
                raise _Unfit
            return shape
        if u.op is Ops.PERMUTE:
            return (0, *(a + 1 for a in u.arg))
        if u.op is Ops.FLIP:
            return tuple(a + 1 for a in u.arg)
        if u.op is Ops.STRIDE:
            return (1, *u.arg)
        if before is not None and u.arg[before] != (0, x.shape[before]):
            raise _Unfit
        return ((0, self.count), *((0, self.each) if a == before else bounds for a, bounds in enumerate(u.arg)))


def _chunk(node: UOp, number: int, span: tuple[int, int, int], axes: Axes, old: Container[UOp]) -> UOp:
    """The CASCADE of some parts, each a row of its own."""

    def state(u: UOp) -> UOp:
        return UOp(Ops.STATE, (), u.arg._replace(cascade=number, shape=(span[1], *u.arg.shape)))

    sources: list[UOp] = []
    for body, correction in bodies_of(node):
        sources.append(_Parts(*span, state, axes, old).of(body))
        if correction is not None:
            sources.append(_Parts(*span, state, None, old).of(correction))
    components = tuple(c._replace(axis=c.axis + 1) for c in node.arg.components)
    return UOp(Ops.CASCADE, tuple(sources), CascadeArg(number, components))


def _merged(node: UOp, chunks: list[tuple[int, list[UOp]]], old: Container[UOp]) -> list[UOp]:
    """The results of a CASCADE from the states of its parts: of each chunk, how many parts it has, and their states."""
    results: list[UOp] = []

    def now(u: UOp, count: int, states: list[UOp]) -> UOp:
        arg: StateArg = u.arg
        if not arg.new:
            return states[arg.component]
        return UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (results[arg.component],), (1, *arg.shape)),), (count, *arg.shape))

    for k, (component, (_, correction)) in enumerate(zip(node.arg.components, bodies_of(node))):
        total: UOp | None = None
        for count, states in chunks:
            value = states[k]
            if correction is not None:
                value = value * _Parts(0, count, 0, partial(now, count=count, states=states), None, old).of(correction)
            one = UOp(Ops.REDUCE, (value,), ReduceArg(component.op, (0,)))
            total = one if total is None else total.alu(component.op, one)
        assert total is not None
        results.append(total)
    return results


def in_parts(node: UOp, components: list[ComponentArg], old: Container[UOp]) -> list[UOp]:
    """The results of a CASCADE: its COMPONENTs, or, where it is long and has few rows, those of its parts, merged."""
    whole = [UOp(Ops.COMPONENT, (node,), c) for c in components]
    length = bodies_of(node)[0][0].shape[node.arg.components[0].axis]
    parts = parts_of(min((c.shape for c in components), key=math.prod), length)
    if parts == 1 or any(c.order is not Order.ANY for c in node.arg.components):
        return whole
    rest = length % parts
    sizes = [(0, parts, length // parts)] + ([(length - rest, 1, rest)] if rest else [])
    chunks = []
    try:
        axes = _axes(node, old)
        for number, (first, count, each) in zip((node.arg.id, -1 - node.arg.id), sizes):
            chunk = _chunk(node, number, (first, count, each), axes, old)
            of_parts = [c._replace(shape=(count, *c.shape)) for c in components]
            states = [UOp(Ops.STAGE, (UOp(Ops.COMPONENT, (chunk,), c),), Level.KERNEL) for c in of_parts]
            chunks.append((count, states))
        return _merged(node, chunks, old)
    except _Unfit:
        return whole
