"""A derived cascade tried on samples: in blocks with corrections, against the reductions one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from uopc.cascade.derivation import Piece, Values
from uopc.cascade.frame import Frame
from uopc.cascade.samples import BLOCKS, ROWS, Array, Samples, differ, evaluate, reduce_samples, start
from uopc.ops import Ops, ParamArg
from uopc.rangeify.context import Idx
from uopc.uop import UOp

_COMBINE = {
    Ops.ADD: np.add, Ops.MAX: np.maximum, Ops.MIN: np.minimum, Ops.MUL: np.multiply, Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
}  # fmt: skip
ALL = slice(None)
ONE = slice(0, 1)


class Trial:
    """The pieces of a frame as ranged expressions, over buffers that stand for running values."""

    def __init__(self, frame: Frame, pieces: Mapping[UOp, Piece]) -> None:
        self.frame, self.order = frame, [pieces[u] for u in frame.members]
        self.old = [UOp(Ops.BUFFER, (), ParamArg(-1000 - k, p.dtype, p.reduce.shape)) for k, p in enumerate(self.order)]
        nothing = Values(frame.survey, {})
        before = {p.reduce: o.cast(p.reduce.dtype) for p, o in zip(self.order, self.old)}
        self.originals = [frame.value(p.reduce.src[0], self.at(p)) for p in self.order]
        self.bodies = [frame.value(p.body, self.at(p)) for p in self.order]
        corrections = [p.correction(Values(frame.survey, before), nothing) for p in self.order]
        self.corrections = [
            None if c is None else frame.value(c, self.at_result(p)) for c, p in zip(corrections, self.order)
        ]
        self.finals = [frame.value(p.final(o, nothing), self.at_result(p)) for p, o in zip(self.order, self.old)]

    def at(self, p: Piece) -> Idx:
        return self.frame.bodies[p.reduce].at

    def at_result(self, p: Piece) -> Idx:
        return (*self.at(p)[: p.axis], *self.at(p)[p.axis + 1 :])

    def fails(self, samples: Samples) -> bool:
        """Whether samples tell the final values of the cascade from those of the reductions."""
        running = [start(p.op, p.dtype) for p in self.order]
        for first, last in BLOCKS:
            running = self.after_block(slice(first, last), running, samples)
        direct: dict[UOp, Array] = {}
        derived: dict[UOp, Array] = dict(zip(self.old, running))
        for p, original, final in zip(self.order, self.originals, self.finals):
            terms = evaluate(original, direct, samples, ALL)
            leaf = self.frame.leaf(p.reduce)
            direct[leaf] = reduce_samples(p.op, terms)
            derived[leaf] = evaluate(final, derived, samples, ONE)
            scale = reduce_samples(Ops.ADD, np.abs(terms)) if p.op is Ops.ADD else np.zeros((ROWS, 1))
            if differ(derived[leaf], direct[leaf], scale):
                return True
        return False

    def after_block(self, block: slice, running: list[Array], samples: Samples) -> list[Array]:
        """The running values after a block of the axis."""
        known = dict(zip(self.old, running))
        out = []
        for p, body, correction, before in zip(self.order, self.bodies, self.corrections, running):
            value = reduce_samples(p.op, evaluate(body, known, samples, block))
            if correction is not None:
                before = before * evaluate(correction, known, samples, ONE)
            out.append(_COMBINE[p.op](before, value))
            known[self.frame.leaf(p.reduce)] = out[-1]
        return out


def holds(frame: Frame, pieces: Mapping[UOp, Piece]) -> bool:
    """Whether samples cannot tell the derived reduction of a frame's last member from the original."""
    trial = Trial(frame, pieces)
    with np.errstate(all="ignore"):
        return not trial.fails(Samples(frame.along))
