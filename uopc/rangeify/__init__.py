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
from uopc.rangeify.axes import output_axes, with_lanes
from uopc.rangeify.cascades import close
from uopc.rangeify.context import Ctx, Idx, Opts
from uopc.rangeify.movement import MOVES
from uopc.rangeify.values import VALUES
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
    """The same for several (target, body) of one shape, in one loop nest; a target is a BUFFER under movement ops."""
    shape = stores[0][1].shape
    ctx.opts = with_lanes(ctx.opts, shape)
    idx, loops, tiles = output_axes(shape, ctx.opts, ctx)
    written = []
    for target, body in stores:
        place = rangeify(target, idx, ctx).src[0]
        written.append(place.store(rangeify(body, idx, ctx)))
    whole = written[0] if len(written) == 1 else sink(*written)
    return close(sink(whole.end(*loops, *tiles)), ctx)
