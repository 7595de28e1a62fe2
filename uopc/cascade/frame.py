"""Where a reduction and those that it depends on ask for what: one index a value, all over the same reduced axis."""

from __future__ import annotations

import math
from collections.abc import Mapping

from uopc.cascade.lift import LEAVES, at_output, base, cone, lifted
from uopc.ops import ALU, AxisType, Ops, Order, ParamArg
from uopc.rangeify import Ctx, rangeify
from uopc.rangeify.context import ZERO, Idx
from uopc.uop import UOp, toposort


class Refused(Exception):
    """Why reductions do not form a cascade."""


def alone(u: UOp) -> bool:
    """Whether a node is a reduction over one axis of more than one element, and has a result."""
    return u.op is Ops.REDUCE and len(u.arg.axes) == 1 and u.src[0].shape[u.arg.axes[0]] > 1 and 0 not in u.shape


class Body:
    """The lifted body of a reduction in a frame."""

    def __init__(self, reduce: UOp, frame: Frame, at: Idx) -> None:
        self.reduce, self.frame, self.at = reduce, frame, at
        self.axis: int = reduce.arg.axes[0]
        self.lifted, self.origin = lifted(reduce.src[0])
        frame.value(self.lifted, at)
        self.reductions = [u for u in cone(self.lifted) if u.op is Ops.REDUCE]

    def varies(self, part: UOp) -> bool:
        """Whether a lifted part depends on the reduced axis."""
        return bool(part.shape) and self.frame.along in self.frame.value(part, self.at).ranges

    def at_output(self, part: UOp) -> UOp:
        """A lifted part that does not vary, at the shape of the result."""
        return at_output(part, self.axis, self.reduce.shape)


# More reductions over one axis than this, each using the ones before, are layers of a network and no cascade.
MAX_MEMBERS = 16


class Frame:
    """A reduction at the ranges of its body, and all that it depends on over the same axis, in order.

    members: the reductions, the given one last.  producers: reductions of other axes, which the bodies use.
    """

    def __init__(self, last: UOp) -> None:
        self.ctx = Ctx()
        shape, axis = last.src[0].shape, last.arg.axes[0]
        # an axis of one element is at 0, as movement on the way there has it too
        self.idx = tuple(self.ctx.range(n, AxisType.LOOP) if n > 1 else ZERO for n in shape)
        self.along, self.length = self.idx[axis], shape[axis]
        self.leaves: dict[UOp, UOp] = {}  # what stands for each reduction, or other value computed elsewhere
        self.known: dict[tuple[UOp, Idx], UOp] = {}
        self.bodies: dict[UOp, Body] = {}
        self.members: list[UOp] = []
        self._collect(last)
        self.producers = dict.fromkeys(
            u for body in self.bodies.values() for u in body.reductions if u not in self.bodies
        )

    def leaf(self, u: UOp) -> UOp:
        """The memory that stands for a value computed elsewhere."""
        if u not in self.leaves:
            self.leaves[u] = UOp(Ops.BUFFER, (), ParamArg(-1 - len(self.leaves), u.dtype, u.shape))
        return self.leaves[u]

    def value(self, u: UOp, at: Idx) -> UOp:
        """The ranged value of a node, in which reductions are memory."""
        if (u, at) not in self.known:
            inner = {v: self.leaf(v) for v in cone(u) if v.op in LEAVES and v.op is not Ops.BUFFER}
            self.known[u, at] = rangeify(u.substitute(inner), at, self.ctx)
        return self.known[u, at]

    def asked(self, u: UOp) -> list[Idx]:
        """The indices at which a reduction is asked for."""
        return self.ctx.engine.asked(self.leaf(u)) if self.ctx.engine is not None else []

    def _collect(self, last: UOp) -> None:
        """The reductions that ``last`` depends on, and itself, each after those it uses."""
        self.bodies[last] = Body(last, self, self.idx)
        stack, done = [last], set()
        while stack:
            u = stack[-1]
            if u in done:
                stack.pop()
                continue
            if len(self.bodies) > MAX_MEMBERS:
                self.members, self.bodies = [last], {last: self.bodies[last]}
                return
            inner = [m for m in self.bodies[u].reductions if self._follows(m)]
            for m in inner:
                if m not in self.bodies:
                    at, axis = self.asked(m)[0], m.arg.axes[0]
                    self.bodies[m] = Body(m, self, (*at[:axis], self.along, *at[axis:]))
            missing = [m for m in inner if m not in done]
            if missing:
                stack += missing
                continue
            done.add(u)
            self.members.append(u)
            stack.pop()

    def _follows(self, u: UOp) -> bool:
        """Whether a reduction in a body is over an axis of as many elements, and one for all of them."""
        if not alone(u) or u.src[0].shape[u.arg.axes[0]] != self.length:
            return False
        asked = self.asked(u)
        if any(self.along in i.ranges for at in asked for i in at):
            return False
        return len(asked) == 1 or u in self.bodies

    def check(self) -> None:
        """Refused where a running value would be needed at a place that its block does not have."""
        for u in self.members[:-1]:
            asked = self.asked(u)
            if len(asked) != 1:
                raise Refused(f"a running value is asked for at {len(asked)} places")
            wide = [i for i, n in zip(asked[0], u.shape) if n != 1]
            if any(i.op is not Ops.RANGE for i in wide) or len(set(wide)) != len(wide):
                raise Refused("a running value is asked for at a moved index")
        for u in self.shared():
            if len(self.asked(u)) != 1:
                raise Refused("a value that the reductions share is asked for at several places")

    def shared(self) -> list[UOp]:
        """The producers that several of the reductions use: what makes a cascade worth it."""
        uses = [u for body in self.bodies.values() for u in body.reductions if u in self.producers]
        return [u for u in self.producers if uses.count(u) > 1]

    def rows(self) -> set[UOp]:
        """The ranges along which the cascade has rows: those of all its reductions, and of what they combine."""
        around = [{r for i in body.at for r in i.ranges} for body in self.bodies.values()]
        if len(around) == 1:
            below = [{r for at in self.asked(p) for i in at for r in i.ranges} for p in self.producers]
            around += [ranges for ranges in below if self.along in ranges]
        return set.intersection(*around) - {self.along}

    def width(self) -> int:
        """How many results a block holds for each of its rows: all elements along axes that only some reductions
        have."""
        rows = self.rows() | {self.along}
        around = ({r for i in body.at for r in i.ranges} - rows for body in self.bodies.values())
        return max(math.prod(r.vmax + 1 for r in ranges) for ranges in around)

    def written(self) -> list[UOp]:
        """Producers that a block would compute again and again: those that other rows use too, that are used at several
        places, or that are made of producers that are not written down."""
        rows = self.rows()
        out: dict[UOp, None] = {}
        for u in toposort(list(self.producers)):
            if u not in self.producers:
                continue
            asked = self.asked(u)
            mine = {r for at in asked for i in at for r in i.ranges}
            if len(asked) != 1 or not rows <= mine or u.arg.order is Order.LANES or self._nested(u, out):
                out[u] = None
        return list(out)

    def _nested(self, u: UOp, written: Mapping[UOp, object]) -> bool:
        """Whether a producer goes into ``u`` that is not ``written``, nor part of one that is."""
        seen, stack = {u}, [u.src[0]]
        while stack:
            v = stack.pop()
            if v in seen or v in written:
                continue
            if v in self.producers:
                return True
            seen.add(v)
            stack += v.src
        return False


def tainted(x: UOp, members: Mapping[UOp, object] | set[UOp]) -> set[UOp]:
    """The nodes of ``x`` that one of the reductions ``members`` goes into, these among them."""
    out: set[UOp] = set()
    for u in toposort(x):
        if u in members or any(s in out for s in u.src):
            out.add(u)
    return out


def members_in(part: UOp, members: Mapping[UOp, object] | set[UOp]) -> dict[UOp, UOp]:
    """The reductions of ``members`` in a lifted part: each with the leaf that it is there."""
    out: dict[UOp, UOp] = {}
    seen: set[UOp] = set()
    stack = [part]
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        seen.add(u)
        if u.op in ALU:
            stack += u.src
        elif base(u) in members:
            out[base(u)] = u
    return out
