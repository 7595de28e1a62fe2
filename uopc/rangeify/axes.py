"""The loops over a kernel's output: blocks, the loop that threads share, plain loops, and register ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable
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


def space(results: Iterable[UOp]) -> tuple[int, ...]:
    """The shape that several results of one rank lie in: along each axis they have one size, or 1."""
    return tuple(max(sizes) for sizes in zip(*(x.shape for x in results)))


def output_axes(shape: tuple[int, ...], opts: Opts, ctx: Ctx) -> tuple[Idx, list[UOp], list[UOp]]:
    """Index expressions of an output's axes, its loops (outermost first), and the register ranges inside them."""
    outer, shared = outer_loops(shape, opts, ctx)
    idx, inner, registers = inner_axes(shape, opts, outer, ctx)
    return idx, shared + inner, registers


def outer_loops(shape: tuple[int, ...], opts: Opts, ctx: Ctx) -> tuple[dict[int, UOp], list[UOp]]:
    """The loop that threads share and those over blocks: what each says of its axes, and the loops, outermost first."""
    extents = _extents(shape, opts)
    counts = {a: -(-n // extents[a]) if opts.block_of(a) else -(-n // _tile(a, n, opts)) for a, n in enumerate(shape)}
    outer, shared = _thread_loops([a for a in opts.threads if counts[a] > 1], counts, ctx)
    for a in range(len(shape)):
        if a not in outer and opts.block_of(a) and counts[a] > 1:
            outer[a] = ctx.range(counts[a], AxisType.LOOP)
            shared.append(outer[a])
    if opts.block:
        ctx.blocks.update(shared)
    return outer, shared


def inner_axes(shape: tuple[int, ...], opts: Opts, outer: dict[int, UOp], ctx: Ctx) -> tuple[Idx, list[UOp], list[UOp]]:
    """Inside those, index expressions of an output's axes, its other loops (outermost first), and its register
    ranges."""
    extents = _extents(shape, opts)
    loops: dict[int, UOp] = {}
    inner: list[UOp] = []
    for a in opts.order or range(len(shape)):
        trips = -(-extents[a] // _tile(a, extents[a], opts))
        if trips > 1 and (opts.block_of(a) or a not in outer):
            loops[a] = ctx.range(trips, AxisType.LOOP)
            inner.append(loops[a])
    idx, registers = [], []
    for a, n in enumerate(shape):
        loop = loops.get(a, ZERO if opts.block_of(a) else outer.get(a, ZERO))
        at, made = _tile_index(a, extents[a], loop, opts, ctx)
        if opts.block_of(a):
            at = ctx.simplify(_start(outer.get(a, ZERO), extents[a], n) + at)
        idx.append(at)
        registers += made
    return tuple(idx), inner, registers


def _extents(shape: tuple[int, ...], opts: Opts) -> list[int]:
    """How much of each axis a block holds; all of it where it is not cut into blocks."""
    return [min(opts.block_of(a), n) if opts.block_of(a) else n for a, n in enumerate(shape)]


def _thread_loops(merged: list[int], counts: dict[int, int], ctx: Ctx) -> tuple[dict[int, UOp], list[UOp]]:
    """One THREAD range over all the axes of ``merged``, and what it says of each."""
    if not merged:
        return {}, []
    rest = ctx.range(math.prod(counts[a] for a in merged), AxisType.THREAD)
    shared, loops = [rest], {}
    for a in reversed(merged):
        loops[a] = ctx.simplify(rest % counts[a]) if a != merged[0] else rest
        rest = ctx.simplify(rest // counts[a])
    return loops, shared


def _start(loop: UOp, step: int, size: int) -> UOp:
    """Where a part of ``step`` elements begins.

    Where parts do not divide the axis, the last one starts early and computes some elements again: the same values, so
    that no tail code is needed.
    """
    return (loop * step).minimum(size - step) if size % step else loop * step


def _lanes(axis: int, size: int, opts: Opts) -> int:
    return min(opts.lanes, power_of_two_below(size)) if axis == opts.vector and size else 1


def _tile(axis: int, size: int, opts: Opts) -> int:
    """How many elements of an axis one iteration computes: whole vectors, and no more than there are."""
    lanes = _lanes(axis, size, opts)
    vectors = max(1, min(opts.upcast_of(axis), size) // lanes)
    return lanes * vectors


def _tile_index(axis: int, size: int, loop: UOp, opts: Opts, ctx: Ctx) -> tuple[UOp, list[UOp]]:
    """The index along an axis of ``size`` elements, and its register ranges."""
    tile, lanes = _tile(axis, size, opts), _lanes(axis, size, opts)
    at = _start(loop, tile, size)
    made = []
    if tile > lanes:
        made.append(ctx.range(tile // lanes, AxisType.UPCAST))
        at = at + made[-1] * lanes
    if lanes > 1:
        made.append(ctx.range(lanes, AxisType.VECTOR))
        at = at + made[-1]
    return ctx.simplify(at), made
