"""A reduction becomes loops: its axis is cut into parts that each fill their steps, so that no part needs a guard."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from uopc.ops import AxisType, Ops, Order, ReduceArg, identity
from uopc.rangeify.context import ZERO, Combine, Ctx, Idx, Opts, Request, power_of_two_below
from uopc.terms import combined, is_reassociable
from uopc.uop import DType, UOp

# Reductions of a fixed order: steps of a block, and where lanes run along them, bytes of all lanes and copies of each.
# Other numbers give other bits.
ORDERED_BLOCK = 512
ORDERED_BYTES = 64
ORDERED_COPIES = 4


def reduce_(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    """A reduction is the sum of its segments: whole blocks of whole steps, whole steps, and single elements."""
    x, op, axes = u.src[0], u.arg.op, u.arg.axes
    if not axes:
        return [(x, idx, gate)], lambda answers: answers[0]
    sizes = [x.shape[axis] for axis in axes]
    if 0 in sizes:
        return [], lambda _: UOp.const(identity(op, u.dtype), u.dtype)
    gate = _about(idx, gate)
    requests: list[Request] = []
    closing: list[tuple[list[UOp], list[UOp], int]] = []
    opts = order_opts(u.arg.order, u.dtype) or (without_lanes(ctx.opts) if in_lanes(idx, gate) else ctx.opts)
    if is_reassociable(u) and ctx.sums.setdefault(u, opts) != opts:
        ctx.unlike.add(u)
    # a value has room for one VECTOR range: then each lane has a sum of its own
    apart = u.arg.order is Order.LANES and in_lanes(idx, gate)
    for segment in segments(sizes[-1], opts):
        chain = opts.reduce_block if segment.blocks > 1 else segment.trips
        for nest in _around(sizes[:-1], chain, opts.reduce_block):
            steps: dict[int, UOp] = {}
            short: list[UOp] = []
            long: list[UOp] = []
            for axis, stretch in zip(axes, nest):
                steps[axis] = _along(stretch, short, long, ctx)
            last, loops, blocks = segment_index(segment, ctx)
            lanes = [r for r in loops if apart and r.arg.axis_type is AxisType.VECTOR]
            for lane in range(segment.lanes if lanes else 1):
                steps[axes[-1]] = ctx.simplify(last.substitute({r: UOp.const(lane) for r in lanes}))
                rest = iter(idx)
                inner = tuple(steps[axis] if axis in steps else next(rest) for axis in range(len(x.shape)))
                requests.append((x, inner, gate))
            loops = [r for r in loops if r not in lanes]
            closing.append((short + loops, long + blocks, segment.lanes if lanes else 1))
    arg = ReduceArg(op, (), u.arg.order)

    def combine(answers: list[UOp]) -> UOp:
        total: UOp | None = None
        rest = iter(answers)
        for loops, blocks, lanes in closing:
            values = [next(rest) for _ in range(lanes)]
            value = _halved(op, [UOp(Ops.REDUCE, (v, *loops), arg) if loops else v for v in values])
            value = UOp(Ops.REDUCE, (value, *blocks), arg) if blocks else value
            total = value if total is None else combined(op, total, value)
        assert total is not None
        return total

    return requests, combine


def _halved(op: Ops, values: list[UOp]) -> UOp:
    """Values combined one half with the other, as the lanes of a vector are."""
    while len(values) > 1:
        half = len(values) // 2
        values = [a.alu(op, b) for a, b in zip(values[:half], values[half:])]
    return values[0]


def order_opts(order: Order, dtype: DType) -> Opts | None:
    """The sizes of a reduction whose order is fixed, which are those of no machine and no kernel; None: it is free."""
    if order is Order.ANY:
        return None
    if order is Order.STEPS:
        return Opts(reduce_block=ORDERED_BLOCK)
    return Opts(unroll=ORDERED_COPIES, reduce_lanes=ORDERED_BYTES // max(dtype.itemsize, 4), reduce_block=ORDERED_BLOCK)


@dataclass(frozen=True)
class Stretch:
    """A part of an outer reduced axis: from ``start``, ``blocks`` times ``trips`` elements."""

    start: int
    blocks: int
    trips: int


def _around(sizes: list[int], chain: int, block: int) -> list[tuple[Stretch, ...]]:
    """The outer reduced axes around a loop of ``chain`` steps, cut so that a sum has no chain much longer than
    ``block``; two nests where an axis leaves a rest.  ``block`` 0: as they are."""
    if not block or math.prod(sizes) * chain < 2 * block:
        return [tuple(Stretch(0, 1, n) for n in sizes)]
    room = max(block // max(chain, 1), 1)
    nests: list[tuple[Stretch, ...]] = [()]
    for n in reversed(sizes):
        if n <= room:
            parts, room = [Stretch(0, 1, n)], room // n
        elif room == 1:
            parts = [Stretch(0, n, 1)]
        else:
            each = -(-n // -(-n // room))
            parts = [Stretch(0, n // each, each)] + ([Stretch(n - n % each, 1, n % each)] if n % each else [])
            room = 1
        nests = [(part, *nest) for part in parts for nest in nests]
    return nests


def _along(stretch: Stretch, short: list[UOp], long: list[UOp], ctx: Ctx) -> UOp:
    """The index along a stretch; its ranges join those of one block or those over blocks."""
    at = ZERO
    if stretch.blocks > 1:
        long.append(ctx.range(stretch.blocks, AxisType.REDUCE))
        at = long[-1] * stretch.trips
    if stretch.trips > 1:
        short.append(ctx.range(stretch.trips, AxisType.REDUCE))
        at = at + short[-1]
    return ctx.simplify(at + stretch.start)


def _about(idx: Idx, gate: UOp | None) -> UOp | None:
    """The part of a gate that is about this index: what shares no range with it keeps nothing inside memory, and would
    only put the accumulator into loops that the result does not depend on."""
    if gate is None:
        return None
    mine = {r for i in idx for r in i.ranges}
    kept: UOp | None = None
    stack = [gate]
    while stack:
        g = stack.pop()
        if g.op is Ops.AND:
            stack += g.src
        elif mine.intersection(g.ranges):
            kept = g if kept is None else g & kept
    return kept


def in_lanes(idx: Idx, gate: UOp | None) -> bool:
    """Whether lanes run along the index or its gate already: a value has room for one VECTOR range."""
    return any(r.arg.axis_type is AxisType.VECTOR for i in (*idx, *([] if gate is None else [gate])) for r in i.ranges)


def without_lanes(opts: Opts) -> Opts:
    return replace(opts, reduce_lanes=1, unroll=1) if opts.reduce_lanes > 1 else opts


@dataclass(frozen=True)
class Segment:
    """A part of a reduced axis: from ``start``, ``blocks`` times ``trips`` iterations of ``unroll`` steps of ``lanes``
    elements."""

    start: int
    blocks: int
    trips: int
    unroll: int
    lanes: int


def segments(size: int, opts: Opts) -> list[Segment]:
    """Cut an axis so that each part is a plain loop nest: what does not fill a block or a step gets a loop of its
    own."""
    lanes = min(opts.reduce_lanes, power_of_two_below(size))
    unroll = max(1, min(opts.unroll, size // lanes))
    trips = size // (lanes * unroll)
    blocks = trips // opts.reduce_block if opts.reduce_block and trips >= 2 * opts.reduce_block else 0
    out: list[Segment] = []
    start = 0
    if blocks:
        out.append(Segment(0, blocks, opts.reduce_block, unroll, lanes))
        start = blocks * opts.reduce_block * unroll * lanes
        trips -= blocks * opts.reduce_block
    if trips:
        out.append(Segment(start, 1, trips, unroll, lanes))
        start += trips * unroll * lanes
    if size - start >= lanes > 1:
        out.append(Segment(start, 1, (size - start) // lanes, 1, lanes))
        start += (size - start) // lanes * lanes
    if start < size:
        out.append(Segment(start, 1, size - start, 1, 1))
    return out


def segment_index(part: Segment, ctx: Ctx) -> tuple[UOp, list[UOp], list[UOp]]:
    """The index along a segment, the ranges of one block, and the range over blocks."""
    blocks = [ctx.range(part.blocks, AxisType.REDUCE)] if part.blocks > 1 else []
    loops: list[UOp] = []
    at = blocks[0] * part.trips if blocks else ZERO
    if part.trips > 1:
        loops.append(ctx.range(part.trips, AxisType.REDUCE))
        at = at + loops[-1]
    if part.unroll > 1:
        loops.append(ctx.range(part.unroll, AxisType.UNROLL))
        at = at * part.unroll + loops[-1]
    if part.lanes > 1:
        loops.append(ctx.range(part.lanes, AxisType.VECTOR))
        at = at * part.lanes + loops[-1]
    return ctx.simplify(at + part.start), loops, blocks
