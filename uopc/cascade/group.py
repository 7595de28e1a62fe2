"""A cascade under way: the reductions that are in it so far, and the graph that takes their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from uopc.cascade.derivation import Piece, Values, parts_of
from uopc.cascade.factors import Parts
from uopc.cascade.frame import Frame
from uopc.cascade.known import derived
from uopc.cascade.parts import in_parts
from uopc.cascade.survey import Survey
from uopc.ops import CascadeArg, Component, ComponentArg, Level, Ops, StateArg
from uopc.uop import UOp


@dataclass(frozen=True)
class Group:
    """number: of the cascade, in its graph.  pieces: its reductions, in order.  producers: the reductions that their
    bodies use; shared: those that several bodies use; written: those to be written down, and read by the blocks."""

    number: int
    pieces: dict[UOp, Piece] = field(default_factory=dict)
    producers: dict[UOp, None] = field(default_factory=dict)
    shared: dict[UOp, None] = field(default_factory=dict)
    written: dict[UOp, None] = field(default_factory=dict)

    def parts(self, frame: Frame) -> dict[UOp, Parts]:
        """The bodies of a frame's reductions taken apart, those that are not in the group yet; Refused where they are
        not of the form."""
        frame.check_members()
        parts: dict[UOp, Parts] = {}
        for u in frame.members:
            if u not in self.pieces:
                parts[u] = parts_of(frame.bodies[u], {*self.pieces, *parts})
        return parts

    def extended(self, frame: Frame, parts: Mapping[UOp, Parts]) -> Group:
        """The group with the reductions of a frame, of which ``parts`` are new; Refused where it is no cascade."""
        frame.check_shared()
        made = derived(frame, parts, self.pieces)
        shared, written = dict.fromkeys(frame.shared), dict.fromkeys(frame.written())
        producers = {**self.producers, **frame.producers}
        return Group(self.number, made, producers, {**self.shared, **shared}, {**self.written, **written})

    def shares_nothing(self) -> bool:
        """Whether its blocks compute no value that several reductions share: all they would do is read memory."""
        return len(self.pieces) > 1 and all(u in self.written for u in self.shared)

    def build(self, survey: Survey, instead: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
        """What replaces each reduction: a COMPONENT, and what was deferred.  instead: what stands in its bodies for
        parts of them."""
        number, pieces = self.number, list(self.pieces.values())
        state = [
            {
                p.reduce: UOp(Ops.STATE, (), StateArg(number, k, new, p.dtype, p.reduce.shape)).cast(p.reduce.dtype)
                for k, p in enumerate(pieces)
            }
            for new in (False, True)
        ]
        before, after = (Values(survey, s) for s in state)
        cuts = {u: UOp(Ops.STAGE, (u,), Level.KERNEL) for u in self.written}
        unrounded = {u: survey.replaced(x, cuts) for u, x in instead.items()}
        inside = Values(survey, {**cuts, **state[True], **unrounded})
        sources: list[UOp] = []
        components: list[Component] = []
        for p in pieces:
            sources.append(inside.into(p.body))
            correction = p.correction(before, after)
            if correction is not None:
                sources.append(correction)
            components.append(Component(p.op, p.axis, correction is not None, order=p.reduce.arg.order))
        whole = UOp(Ops.CASCADE, tuple(sources), CascadeArg(number, tuple(components)))
        values = in_parts(whole, [ComponentArg(k, p.dtype, p.reduce.shape) for k, p in enumerate(pieces)], survey.place)
        out: dict[UOp, UOp] = {}
        for p, value in zip(pieces, values):
            out[p.reduce] = p.final(value, Values(survey, out))
        return out
