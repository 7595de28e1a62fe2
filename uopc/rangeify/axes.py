"""The loops over a kernel's output: blocks, the loop that threads share, plain loops, and register ranges."""

from __future__ import annotations

from dataclasses import replace

from uopc.ops import AxisType
from uopc.rangeify.context import ZERO, Ctx, Idx, Opts, power_of_two_below
from uopc.uop import UOp

# Lanes of an upcast without further options: 64 bytes of float32.  A C compiler splits what the machine's registers do
# not hold.
MAX_LANES = 16


def with_lanes(opts: Opts, shape: tuple[int, ...]) -> Opts:
    """Options that upcast the last axis but say nothing of lanes get lanes along it: its elements are neighbours."""
    last = len(shape) - 1
    together = opts.upcast_of(last) if shape else 1
    if opts.vector is not None or opts.reduce_lanes > 1 or together < 2:
        return opts
    return replace(opts, vector=last, lanes=min(MAX_LANES, together & -together))


def output_axes(shape: tuple[int, ...], ctx: Ctx) -> tuple[Idx, list[UOp], list[UOp]]:
    """Index expressions of the output's axes, the loops (THREAD first) and the register ranges that they are made
    of."""
    opts = ctx.opts
    trips = {a: -(-n // _tile(a, n, opts)) for a, n in enumerate(shape)}
    loops: dict[int, UOp] = {}
    shared: list[UOp] = []
    merged = [a for a in opts.threads if trips[a] > 1]
    if merged:
        count = 1
        for a in merged:
            count *= trips[a]
        rest = ctx.range(count, AxisType.THREAD)
        shared = [rest]
        for a in reversed(merged):
            loops[a] = ctx.simplify(rest % trips[a]) if a != merged[0] else rest
            rest = ctx.simplify(rest // trips[a])
    for a in opts.order or range(len(shape)):
        if a not in loops and trips[a] > 1:
            loops[a] = ctx.range(trips[a], AxisType.LOOP)
            shared.append(loops[a])
    idx, tiles = [], []
    for a, n in enumerate(shape):
        at, made = _tile_index(a, n, loops.get(a, ZERO), ctx)
        idx.append(at)
        tiles += made
    return tuple(idx), shared, tiles


def _lanes(axis: int, size: int, opts: Opts) -> int:
    return min(opts.lanes, power_of_two_below(size)) if axis == opts.vector and size else 1


def _tile(axis: int, size: int, opts: Opts) -> int:
    """How many elements of an axis one iteration computes: whole vectors, and no more than there are."""
    lanes = _lanes(axis, size, opts)
    vectors = max(1, min(opts.upcast_of(axis), size) // lanes)
    return lanes * vectors


def _tile_index(axis: int, size: int, loop: UOp, ctx: Ctx) -> tuple[UOp, list[UOp]]:
    """The index along an axis, and its register ranges.

    Where the tile does not divide the axis, the last tile starts early and computes some elements again: the same
    values, so that no tail code is needed.
    """
    tile, lanes = _tile(axis, size, ctx.opts), _lanes(axis, size, ctx.opts)
    at = loop * tile
    if size % tile:
        at = at.minimum(size - tile)
    made = []
    if tile > lanes:
        made.append(ctx.range(tile // lanes, AxisType.UPCAST))
        at = at + made[-1] * lanes
    if lanes > 1:
        made.append(ctx.range(lanes, AxisType.VECTOR))
        at = at + made[-1]
    return ctx.simplify(at), made
