"""rangeify: tensor operations become loops and index expressions.

In: a kernel, ``SINK(STORE(target, body), ...)`` of tensor operations over BUFFERs.
Out: a loop program, ``SINK(END(STORE(INDEX, value), ranges...))``, in which movement ops are gone and each REDUCE names
its RANGEs.

Guarantees: every index is simplified before anything asks what it depends on (else an accumulator may land in a loop
that its index only seems to mention); memory under a PAD is read only where the pad does not apply; a value is built
once for each index at which it is used.
Never decides sizes: those come in ``Opts``.
"""

from __future__ import annotations

from uopc._hot.rangeify import Engine
from uopc.ops import Ops
from uopc.rangeify.axes import inner_axes, outer_loops, space, with_lanes
from uopc.rangeify.cascades import close
from uopc.rangeify.context import Ctx, Idx, Opts
from uopc.rangeify.movement import MOVES
from uopc.rangeify.values import VALUES
from uopc.terms import ordered
from uopc.uop import UOp, sink

__all__ = ["Ctx", "Opts", "lower", "lower_stores", "rangeify"]


def rangeify(u: UOp, idx: Idx, ctx: Ctx) -> UOp:
    """The value of tensor node ``u`` at ``idx`` (an index expression an axis), as a loop-program expression."""
    if ctx.engine is None:
        ctx.engine = Engine(MOVES, VALUES, ctx)
    return ctx.engine.run(u, tuple(idx))


def lower(body: UOp, out: UOp, ctx: Ctx) -> UOp:
    """A kernel that writes ``body`` to the buffer ``out`` (of as many elements), as a loop program with the sizes of
    ``ctx.opts``."""
    target = out if out.shape == body.shape else UOp(Ops.RESHAPE, (out,), body.shape)
    return lower_stores([(target, body)], ctx)


def lower_stores(stores: list[tuple[UOp, UOp]], ctx: Ctx) -> UOp:
    """The same for several (target, body); a target is a BUFFER under movement ops.

    Bodies of one shape share one loop nest.  Others are of one rank, with one size or 1 along each axis: they share the
    loop over threads and those over blocks, along which none of them has size 1.

    A sum that is asked for at places where it would add up in different orders gets one for all.
    """
    again = Ctx(ctx.opts)  # the ranges and tiles of the first attempt are no part of a second one
    made = _lowered(stores, ctx)
    if not ctx.unlike:
        return made
    bodies = UOp.wrap([body for _, body in stores], list(ctx.unlike), ordered)
    return _lowered([(target, body) for (target, _), body in zip(stores, bodies)], again)


def _lowered(stores: list[tuple[UOp, UOp]], ctx: Ctx) -> UOp:
    """The loop nest of ``stores``, sums in the order in which each place asks for them."""
    shape = space(body for _, body in stores)
    ctx.opts = with_lanes(ctx.opts, shape)
    outer, shared = outer_loops(shape, ctx.opts, ctx)
    nests: dict[tuple[int, ...], tuple[Idx, list[UOp]]] = {}
    written: dict[tuple[int, ...], list[UOp]] = {}
    for target, body in stores:
        if body.shape not in nests:
            idx, loops, registers = inner_axes(body.shape, ctx.opts, outer, ctx)
            nests[body.shape] = idx, [*loops, *registers]
        idx = nests[body.shape][0]
        place = rangeify(target, idx, ctx).src[0]
        written.setdefault(body.shape, []).append(place.store(rangeify(body, idx, ctx)))
    parts = [w[0] if len(w) == 1 else sink(*w) for w in written.values()]
    if len(parts) == 1:
        (inner,) = (ranges for _, ranges in nests.values())
        return close(sink(parts[0].end(*shared, *inner)), ctx)
    closed = [part.end(*ranges) if ranges else part for part, (_, ranges) in zip(parts, nests.values())]
    return close(sink(sink(*closed).end(*shared) if shared else sink(*closed)), ctx)
