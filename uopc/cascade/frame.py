"""Where a reduction and those that it depends on ask for what: one index a value, all over the same reduced axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from functools import cached_property

from uopc._hot.graph import cone
from uopc._hot.rangeify import Engine
from uopc.cascade.lift import ENDS, at_output, reductions
from uopc.cascade.survey import Outline, Survey, alone
from uopc.ops import ALU, AxisType, Ops, Order, ParamArg
from uopc.rangeify import Ctx, rangeify
from uopc.rangeify.context import ZERO, Combine, Idx, Request
from uopc.rangeify.movement import MOVES
from uopc.rangeify.values import VALUES
from uopc.uop import UOp, unmoved

# More reductions over one axis than this, each using the ones before, are layers of a network and no cascade.
MAX_MEMBERS = 16


class Refused(Exception):
    """Why reductions do not form a cascade."""


class Unfit(Refused):
    """Why they do not, whatever else is a cascade: their bodies tell."""


class Body:
    """The body of a reduction in a frame; its parts are those of its outline."""

    def __init__(self, reduce: UOp, frame: Frame, at: Idx) -> None:
        self.reduce, self.frame, self.at = reduce, frame, at
        self.axis: int = reduce.arg.axes[0]
        self.reductions = reductions(reduce.src[0])

    @cached_property
    def outline(self) -> Outline:
        """What does not depend on the frame."""
        return self.frame.survey.outline(self.reduce)

    @cached_property
    def varying(self) -> set[UOp]:
        """The parts that depend on the reduced axis."""
        return self._parts(self._leaf_varies)

    def varies(self, part: UOp) -> bool:
        """Whether a part depends on the reduced axis."""
        return part in self.varying

    def running(self, members: Collection[UOp]) -> set[UOp]:
        """The parts that one of the reductions ``members`` goes into."""
        below, survey = self.outline.below, self.frame.survey
        return self._parts(lambda u: survey.needs(below[u], members))

    def _parts(self, leaf: Callable[[UOp], bool]) -> set[UOp]:
        """The leaves of which something holds, and what is made of them."""
        out: set[UOp] = set()
        for u in self.outline.order:
            if leaf(u) if u in self.outline.below else any(s in out for s in u.src):
                out.add(u)
        return out

    def _leaf_varies(self, u: UOp) -> bool:
        said = self.outline.ends.get(u)
        return self.frame.along in self.value(u).ranges if said is None else said

    def value(self, part: UOp) -> UOp:
        """The ranged value of a part."""
        return self.frame.value(part, self.at if part.shape else ())

    def at_output(self, part: UOp) -> UOp:
        """A part that does not vary, at the shape of the result."""
        return at_output(part, self.axis, self.reduce.shape)


class Frame:
    """A reduction at the ranges of its body, and all that it depends on over the same axis, in order.

    members: the reductions, the given one last.  producers: reductions of other axes, which the bodies use.
    """

    def __init__(self, last: UOp, survey: Survey) -> None:
        self.survey = survey
        survey.enter(last)
        self.ctx = Ctx()
        given = dict.fromkeys((Ops.REDUCE, Ops.STAGE, Ops.COMPONENT), self._given)
        self.ctx.engine = Engine(MOVES, {**VALUES, **given}, self.ctx)
        shape, axis = last.src[0].shape, last.arg.axes[0]
        # an axis of one element is at 0, as movement on the way there has it too
        self.idx = tuple(self.ctx.range(n, AxisType.LOOP) if n > 1 else ZERO for n in shape)
        self.along, self.length = self.idx[axis], shape[axis]
        self.leaves: dict[UOp, UOp] = {}  # what stands for each reduction, or other value computed elsewhere
        self.places: dict[UOp, list[Idx]] = {}  # where each of them was asked for so far
        self.hidden: set[UOp] = set()  # reductions that the outlines of bodies do not show
        self.bodies = {last: Body(last, self, self.idx)}
        self.members: list[UOp] = [last]
        if survey.may_use(last):
            self._collect(last)
        found = dict.fromkeys(u for body in self.bodies.values() for u in body.reductions)
        self.producers = dict.fromkeys(u for u in found if u not in self.bodies)
        self.unranged = list(self.bodies.values())  # whole: outlines tell who the members are

    def _given(self, u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
        """A value computed elsewhere: memory, as rangeify sees it."""
        self.places.setdefault(u, []).append(idx)
        return VALUES[Ops.BUFFER](self.leaf(u), idx, gate, ctx)

    def leaf(self, u: UOp) -> UOp:
        """The memory that stands for a value computed elsewhere."""
        if u not in self.leaves:
            self.leaves[u] = UOp(Ops.BUFFER, (), ParamArg(-1 - len(self.leaves), u.dtype, u.shape))
        return self.leaves[u]

    def value(self, u: UOp, at: Idx) -> UOp:
        """The ranged value of a node, in which reductions are memory."""
        return rangeify(u, at, self.ctx)

    def asked(self, u: UOp) -> list[Idx]:
        """The indices at which a reduction is asked for."""
        while self.unranged:
            body = self.unranged.pop()
            self.value(body.reduce.src[0], body.at)
        return self.places.get(u, [])

    def _enter(self, body: Body) -> None:
        """Find out where the outline of a body asks for reductions that may be members."""
        for u in body.outline.below:
            if u not in body.outline.ends:
                body.value(u)
        self.hidden.update(body.outline.hidden)

    def _collect(self, last: UOp) -> None:
        """The reductions that ``last`` depends on, and itself, each after those it uses."""
        self._enter(self.bodies[last])
        members: list[UOp] = []
        stack, done = [last], set()
        while stack:
            u = stack[-1]
            if u in done:
                stack.pop()
                continue
            if len(self.bodies) > MAX_MEMBERS:
                self.bodies = {last: self.bodies[last]}
                return
            inner = [m for m in self.bodies[u].reductions if self._follows(m)]
            for m in inner:
                if m not in self.bodies:
                    at, axis = self.places[m][0], m.arg.axes[0]
                    self.bodies[m] = Body(m, self, (*at[:axis], self.along, *at[axis:]))
                    self._enter(self.bodies[m])
            missing = [m for m in inner if m not in done]
            if missing:
                stack += missing
                continue
            done.add(u)
            members.append(u)
            stack.pop()
        self.members = members

    def _follows(self, u: UOp) -> bool:
        """Whether a reduction in a body is over an axis of as many elements, and one for all of them."""
        if not alone(u) or u.src[0].shape[u.arg.axes[0]] != self.length or u in self.hidden:
            return False
        asked = self.places.get(u, [])
        if any(self.along in i.ranges for at in asked for i in at):
            return False
        return len(asked) == 1 or u in self.bodies

    def check_members(self) -> None:
        """Refused where a running value would be needed at a place that its block does not have."""
        for u in self.members[:-1]:
            asked = self.asked(u) if u in self.hidden else self.places[u]
            if len(asked) != 1:
                raise Refused(f"a running value is asked for at {len(asked)} places")
            if _own_ranges(asked[0], u.shape) is None:
                raise Refused("a running value is asked for at a moved index")

    def check_shared(self) -> None:
        """Refused where a block would need a value that its reductions share at several places."""
        if any(len(self.asked(u)) != 1 for u in self.shared):
            raise Refused("a value that the reductions share is asked for at several places")

    @cached_property
    def shared(self) -> list[UOp]:
        """The producers that several of the reductions use: what makes a cascade worth it."""
        uses = Counter(u for body in self.bodies.values() for u in body.reductions)
        return [u for u in self.producers if uses[u] > 1]

    def uses_any(self, some: Collection[UOp]) -> bool:
        """Whether one of ``some`` is part of a body."""
        return any(u in some for body in self.bodies.values() for u in cone(body.reduce.src[0], ENDS))

    def rows(self) -> set[UOp]:
        """The ranges along which the cascade has rows: those of all its reductions, and of what they combine."""
        around = [{r for i in body.at for r in i.ranges} for body in self.bodies.values()]
        if len(around) == 1:
            below = [self.asked_along(p) for p in self.producers]
            around += [ranges for ranges in below if self.along in ranges]
        return set.intersection(*around) - {self.along}

    def asked_along(self, u: UOp) -> set[UOp]:
        """The ranges in the indices at which a reduction is asked for."""
        return {r for at in self.asked(u) for i in at for r in i.ranges}

    def width(self) -> int:
        """How many results a block holds for each of its rows: all elements along axes that only some reductions
        have."""
        rows = self.rows() | {self.along}
        around = ({r for i in body.at for r in i.ranges} - rows for body in self.bodies.values())
        return max(math.prod(r.vmax + 1 for r in ranges) for ranges in around)

    def written(self) -> list[UOp]:
        """Producers that a block would compute again and again: those that other rows use too, that are used at several
        places or at a moved one, or that are made of producers that are not written down."""
        rows = self.rows()
        out: dict[UOp, None] = {}
        for u in sorted(self.producers, key=self.survey.place.__getitem__):
            asked = self.asked(u)
            ranges = _own_ranges(asked[0], u.shape) if len(asked) == 1 else None
            if ranges is None or not rows <= ranges or u.arg.order is Order.LANES or self._nested(u, out):
                out[u] = None
        return list(out)

    def _nested(self, u: UOp, written: Collection[UOp]) -> bool:
        """Whether a producer goes into ``u`` that is not ``written``, nor part of one that is."""
        inside = [p for p in self.producers if p not in written]
        return self.survey.needs(u.src, inside, written)


def _own_ranges(at: Idx, shape: tuple[int, ...]) -> set[UOp] | None:
    """The ranges at which a value of some shape is asked for; None where its axes do not each have one of their own."""
    wide = [i for i, n in zip(at, shape) if n != 1]
    ranges = {i for i in wide if i.op is Ops.RANGE}
    return ranges if len(ranges) == len(wide) else None


def members_in(part: UOp, members: Collection[UOp]) -> dict[UOp, UOp]:
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
        elif unmoved(u) in members:
            out[unmoved(u)] = u
    return out
