"""Where the values of a cascade are asked for: by its kernel's results, and by the bodies of its own reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uopc._hot.rangeify import Engine
from uopc.ops import AxisType, Ops
from uopc.rangeify import rangeify
from uopc.rangeify.context import ZERO, Combine, Ctx, Idx, Request
from uopc.rangeify.movement import MOVES
from uopc.rangeify.values import VALUES
from uopc.uop import UOp, toposort

# For each axis of a value, the axis of the results that it is (None: always 0).
Places = tuple[int | None, ...]


class Probe:
    """A kernel ranged with plain loops, its running and final values taken as given: who asks for what at which
    index."""

    def __init__(self, apart: Callable[[UOp, Idx], bool] = lambda u, idx: False) -> None:
        """``apart``: whether a STAGE or REDUCE at an index is given too: what it asks for is of no interest."""

        def given(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
            return [], lambda _: UOp.const(0.5, u.dtype)

        def perhaps(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
            return (given if apart(u, idx) else VALUES[u.op])(u, idx, gate, ctx)

        rules = {Ops.STATE: given, Ops.COMPONENT: given, Ops.STAGE: perhaps, Ops.REDUCE: perhaps}
        self.ctx = Ctx()
        self.ctx.engine = Engine(MOVES, {**VALUES, **rules}, self.ctx)

    def index(self, shape: tuple[int, ...]) -> Idx:
        return tuple(self.ctx.range(n, AxisType.LOOP) for n in shape)

    def asked(self, u: UOp) -> list[Idx]:
        return self.ctx.engine.asked(u)


def bodies_of(node: UOp) -> list[tuple[UOp, UOp | None]]:
    """The body of each reduction of a CASCADE, and its correction."""
    rest = iter(node.src)
    return [(next(rest), next(rest) if c.corrected else None) for c in node.arg.components]


def places(idx: Idx, known: dict[UOp, int]) -> Places:
    """The axis that each index is; ValueError where it is something else."""
    out: list[int | None] = []
    for i in idx:
        if i.op is Ops.CONST:
            out.append(None)
        elif i in known:
            out.append(known[i])
        else:
            raise ValueError(f"a cascade's value is asked for at {i!r}")
    return tuple(out)


def result_places(bodies: Iterable[UOp], node: UOp, idx: Idx, probe: Probe) -> dict[int, Places]:
    """Where kernels' results ask for each reduction of a CASCADE: ``idx`` indexes them all, an axis of size 1 at 0.

    ValueError where one is asked for at several places, or at one that is no element of the results'.
    """
    known = {r: a for a, r in enumerate(idx)}
    for body in bodies:
        rangeify(body, tuple(r if n > 1 else ZERO for r, n in zip(idx, body.shape)), probe.ctx)
    found: dict[int, Places] = {}
    for u in toposort(list(bodies)):
        if u.op is Ops.COMPONENT and u.src[0] is node:
            for at in dict.fromkeys(probe.asked(u)):
                if found.setdefault(u.arg.component, places(at, known)) != places(at, known):
                    raise ValueError(f"a cascade's value is asked for at {at!r} and elsewhere")
    return found


def body_at(node: UOp, k: int, where: Places, idx: Idx) -> tuple[UOp, UOp, Probe]:
    """The body of a reduction, ranged where its value stands; the range along the reduced axis; who asked for what."""
    probe = Probe()
    body, axis = bodies_of(node)[k][0], node.arg.components[k].axis
    along = probe.ctx.range(body.shape[axis], AxisType.REDUCE)
    at = [ZERO if a is None else idx[a] for a in where]
    return rangeify(body, (*at[:axis], along, *at[axis:]), probe.ctx), along, probe
