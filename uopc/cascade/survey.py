"""What is found out once about each node of a graph, before any index is known, for all reductions that are looked at.

A value is made of reductions, down to the first on each path.  Along an axis of the value each of them is the same, or
is another one at each place.  Which is the case an index tells, and finding it takes a walk over the whole value.  Here
it is bounded from both sides, a node from its sources: so a walk may end early, at what holds nothing that it looks
for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from uopc._hot.graph import newer, replace_newer
from uopc.cascade.lift import LEAVES, Moves, lifted, ordered, reductions
from uopc.memo import SHAPES
from uopc.ops import ALU, PLAIN, Ops
from uopc.rangeify.movement import reshape_groups
from uopc.uop import UOp, toposort

# Lengths of reduced axes are told apart by so many bits; that two share one costs time, and is never wrong.
LENGTH_BITS = 61
_SAME_AXES = frozenset({Ops.SHRINK, Ops.FLIP, Ops.STRIDE, Ops.PAD})


class Reach(NamedTuple):
    """Reductions as bits: see ``kind``.

    whole: what the value is made of.  free: for each axis, what may be the same all along it, and perhaps more than
    that.  sure: the axes, as bits, along which the value changes for certain, and perhaps fewer than do.
    """

    whole: int
    free: tuple[int, ...]
    sure: int


class Outline(NamedTuple):
    """The body of a reduction, lifted down to what may be made of reductions that a cascade joins it with.

    tree, origin, order: see ``Lifted``.  ends: where it was not followed further, and whether that varies along the
    reduced axis.  below: for each leaf the reductions that it is made of.  hidden: those of ``ends``.
    """

    tree: UOp
    origin: dict[UOp, list[UOp]]
    order: list[UOp]
    ends: dict[UOp, bool]
    below: dict[UOp, list[UOp]]
    hidden: frozenset[UOp]


def alone(u: UOp) -> bool:
    """Whether a node is a reduction over one axis of more than one element, and has a result."""
    return u.op is Ops.REDUCE and len(u.arg.axes) == 1 and u.src[0].shape[u.arg.axes[0]] > 1 and 0 not in u.shape


def kind(u: UOp) -> int:
    """The bit of a reduction: one for each length of an axis, and one for reductions over several."""
    return 2 << u.src[0].shape[u.arg.axes[0]] % LENGTH_BITS if alone(u) else 1


def moved_axes(u: UOp) -> tuple[tuple[int, ...], ...]:
    """For each axis that a movement op gives, the axes of its source at whose index its own index is: none where that
    is always 0, several where it is part of each."""
    x = u.src[0]
    if u.op is Ops.RESHAPE:
        return _reshaped(x.shape, u.shape)
    if u.op is Ops.PERMUTE:
        return tuple((a,) for a in u.arg)
    return tuple((a,) if n > 1 and m > 1 else () for a, (n, m) in enumerate(zip(x.shape, u.shape)))


@lru_cache(maxsize=SHAPES)
def _reshaped(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    out: list[tuple[int, ...]] = [()] * len(new)
    for a, b in reshape_groups(old, new) if 0 not in old else ():
        wide = tuple(axis for axis in range(a.start, a.stop) if old[axis] != 1)
        for axis in range(b.start, b.stop):
            out[axis] = wide if new[axis] != 1 else ()
    return tuple(out)


def _through(moved: tuple[tuple[int, ...], ...], x: Reach) -> Reach:
    """What is known of a movement op, from its source."""
    free, sure = [], 0
    for k, axes in enumerate(moved):
        one = 0 if axes else x.whole
        for a in axes:
            one |= x.free[a]
        free.append(one)
        if axes and all(x.sure >> a & 1 for a in axes):
            sure |= 1 << k
    return Reach(x.whole, tuple(free), sure)


def _joined(u: UOp, sources: list[Reach]) -> Reach:
    """What is known of an operation on elements at one index; a scalar is the same at each."""
    whole = sure = 0
    free = [0] * len(u.shape)
    for s, x in zip(u.src, sources):
        whole |= x.whole
        sure |= x.sure
        for k in range(len(free)):
            free[k] |= x.free[k] if s.shape else x.whole
    return Reach(whole, tuple(free), sure)


def _wide(shape: tuple[int, ...]) -> int:
    return sum(1 << k for k, n in enumerate(shape) if n > 1)


class Survey:
    """place: a number for each node, a source's smaller than its users'.  reach: what is known of those asked for."""

    def __init__(self, root: UOp) -> None:
        self.place = {u: k for k, u in enumerate(toposort(root))}
        self.reach: dict[UOp, Reach] = {}
        self.outlines: dict[UOp, Outline] = {}

    def enter(self, root: UOp) -> None:
        """Number the nodes of ``root`` that are new."""
        for u in newer(root, self.place, len(self.place)):
            self.place[u] = len(self.place)

    def of(self, u: UOp) -> Reach:
        """What is known of a value."""
        if u not in self.reach:
            for v in ordered(u, lambda v: v.op not in LEAVES and v not in self.reach):
                if v not in self.reach:
                    self.reach[v] = self._found(v)
        return self.reach[u]

    def may_use(self, u: UOp) -> bool:
        """Whether a reduction over one axis may use others over as long an axis, the same for all of it."""
        return bool(self.of(u.src[0]).free[u.arg.axes[0]] & kind(u))

    def repeats(self, u: UOp) -> bool:
        """Whether a reduction over one axis may use others again and again, the same for all places of another axis."""
        axes = zip(u.src[0].shape, self.of(u.src[0]).free)
        return any(bits for k, (n, bits) in enumerate(axes) if n > 1 and k != u.arg.axes[0])

    def needs(self, values: Collection[UOp], others: Collection[UOp], without: Collection[UOp] = ()) -> bool:
        """Whether one of ``others`` goes into one of some values, through any number of reductions, and not through
        ``without``."""
        if not values or not others:
            return False
        least = min(self.place[v] for v in others)
        seen, stack = set(without), list(values)
        while stack:
            u = stack.pop()
            if u in seen:
                continue
            if u in others:
                return True
            seen.add(u)
            if self.place[u] > least:
                stack += u.src
        return False

    def replaced(self, u: UOp, mapping: Mapping[UOp, UOp]) -> UOp:
        """``u.substitute(mapping)``; what is older than all that is replaced is not looked at."""
        return replace_newer(u, self.place, dict(mapping))

    def outline(self, u: UOp) -> Outline:
        """The outline of a reduction over one axis."""
        if u not in self.outlines:
            body = lifted(u.src[0], _Ends(self, u))
            below = {v: reductions(v) for v in body.order if v.op not in ALU or v in body.ends or not v.shape}
            hidden = frozenset(r for v in body.ends for r in below[v])
            self.outlines[u] = Outline(body.tree, body.origin, body.order, body.ends, below, hidden)
        return self.outlines[u]

    def _found(self, u: UOp) -> Reach:
        """What is known of a node, from its sources."""
        if u.op in LEAVES or u.op is Ops.IOTA:
            bits = kind(u) if u.op is Ops.REDUCE else 0
            return Reach(bits, tuple(bits if n == 1 else 0 for n in u.shape), _wide(u.shape))
        sources = [self.reach[s] for s in u.src]
        if u.op in ALU:
            return _joined(u, sources)
        if u.op in PLAIN:
            return _through(moved_axes(u), sources[0])
        if u.op is Ops.PAD:
            return _through(moved_axes(u), sources[0])._replace(sure=0)  # all of it may be padding
        whole = 0
        for x in sources:
            whole |= x.whole
        return Reach(whole, (whole,) * len(u.shape), 0)


class _Ends:
    """Where the outline of a reduction ends: at what holds no reduction over as long an axis that is the same for all
    of it, if it is certain whether it varies along the axis."""

    def __init__(self, survey: Survey, reduce: UOp) -> None:
        self.survey, self.kind = survey, kind(reduce)
        # below movement, innermost first: the axes of which one at least runs with the reduced one, and no others do
        self.along: dict[Moves, tuple[int, ...] | None] = {(): reduce.arg.axes}

    def __call__(self, u: UOp, moves: Moves) -> bool | None:
        reach = self.survey.of(u)
        axes = self.axes(moves) if u.shape else ()
        if axes is None:
            return None
        if not axes:
            return None if reach.whole & self.kind else False
        if any(reach.free[a] & self.kind for a in axes) or not all(reach.sure >> a & 1 for a in axes):
            return None
        return True

    def axes(self, moves: Moves) -> tuple[int, ...] | None:
        """None: that is not known."""
        if moves not in self.along:
            above = self.axes(moves[1:])
            found = None if above is None else [moved_axes(moves[0])[a] for a in above]
            if found is None or (not all(found) and any(found)):
                self.along[moves] = None
            else:
                self.along[moves] = tuple(dict.fromkeys(a for axes in found for a in axes))
        return self.along[moves]
