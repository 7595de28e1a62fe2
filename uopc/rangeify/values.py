"""Operations that give values: what they ask of their sources, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Callable

from uopc.ops import Ops, Tile
from uopc.rangeify.cascades import component, state
from uopc.rangeify.context import ZERO, Combine, Ctx, Idx, Request
from uopc.rangeify.reduction import reduce_
from uopc.rangeify.tiles import tile
from uopc.uop import UOp, dtypes


def _buffer(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    flat: UOp = ZERO
    for i, n in zip(idx, u.shape):
        flat = flat * n + i
    return [], lambda _: u.index(ctx.simplify(flat)).load(gate)


def _const(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    return [], lambda _: u


def _iota(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    return [], lambda _: idx[0].cast(u.dtype)


def _stage(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    if isinstance(u.arg, Tile):
        return tile(u, idx, ctx)
    return [(u.src[0], idx, gate)], lambda answers: answers[0]


def _pad(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    inner, valid = [], UOp.const(True)
    for i, (lo, hi), n in zip(idx, u.arg, u.src[0].shape):
        inner.append(ctx.simplify(i - lo) if lo else i)
        valid = valid & (inner[-1] >= 0) if lo else valid
        valid = valid & (inner[-1] < n) if hi else valid
    valid = ctx.simplify(valid)
    nothing = UOp.const(0, u.dtype)
    if valid.vmax == 0:
        return [], lambda _: nothing
    if valid.vmin == 1:
        return [(u.src[0], tuple(inner), gate)], lambda answers: answers[0]
    inside = valid if gate is None else ctx.simplify(gate & valid)
    return [(u.src[0], tuple(inner), inside)], lambda answers: valid.where(answers[0], nothing)


def _stack(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    first = idx[0]
    low, high = max(first.vmin, 0), min(first.vmax, len(u.src) - 1)
    requests = [(s, idx[1:], gate) for s in u.src[low : high + 1]]
    return requests, lambda answers: _choose(answers, first, low)


def _choose(values: list[UOp], which: UOp, low: int) -> UOp:
    """``values[which - low]`` by halving, so that thousands of values nest a dozen deep."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return (which < low + half).where(_choose(values[:half], which, low), _choose(values[half:], which, low + half))


def _cat(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    """The source that the index along the axis falls into; memory of the others is not read."""
    at = idx[u.arg]
    requests: list[Request] = []
    starts: list[int] = []
    end = 0
    for s in u.src:
        start, end = end, end + s.shape[u.arg]
        if start == end or at.vmin >= end or at.vmax < start:
            continue
        inner = ctx.simplify(at - start) if start else at
        inside = ctx.simplify((inner >= 0) & (inner < end - start))
        allowed = gate if inside.vmin == 1 else inside if gate is None else ctx.simplify(gate & inside)
        requests.append((s, (*idx[: u.arg], inner, *idx[u.arg + 1 :]), allowed))
        starts.append(start)
    if not requests:  # of nothing
        return [], lambda _: UOp.const(0, u.dtype)
    return requests, lambda answers: _choose_from(answers, at, starts)


def _choose_from(values: list[UOp], at: UOp, starts: list[int]) -> UOp:
    """The last of ``values`` whose start is not past ``at``, by halving."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    low, high = _choose_from(values[:half], at, starts[:half]), _choose_from(values[half:], at, starts[half:])
    return (at < starts[half]).where(low, high)


def _gather(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    source = u.src[0]

    def then(found: list[UOp]) -> tuple[list[Request], Combine]:
        inner = tuple(_within(i.cast(dtypes.index), n, ctx) for i, n in zip(found, source.shape))
        return [(source, inner, gate)], lambda answers: answers[0]

    return [(s, idx, gate) for s in u.src[1:]], then


def _within(i: UOp, n: int, ctx: Ctx) -> UOp:
    """Memory is never left: a user may change an index array after it was checked."""
    i = i if i.vmin >= 0 else i.maximum(0)
    return ctx.simplify(i if i.vmax < n else i.minimum(n - 1))


VALUES: dict[Ops, Callable[[UOp, Idx, UOp | None, Ctx], tuple[list[Request], Combine]]] = {
    Ops.BUFFER: _buffer,
    Ops.CONST: _const,
    Ops.IOTA: _iota,
    Ops.STAGE: _stage,
    Ops.ALIAS: lambda u, idx, gate, ctx: ([(u.src[0], idx, gate)], lambda answers: answers[0]),
    Ops.PAD: _pad,
    Ops.STACK: _stack,
    Ops.CAT: _cat,
    Ops.GATHER: _gather,
    Ops.REDUCE: reduce_,
    Ops.COMPONENT: lambda u, idx, gate, ctx: component(u, idx, ctx),
    Ops.STATE: lambda u, idx, gate, ctx: state(u, idx, ctx),
}
