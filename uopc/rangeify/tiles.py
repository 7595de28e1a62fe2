"""STAGEs at block level: a part of a value is written to a thread-private tile, and read from there.

A tile begins where the ranges over blocks put it: its origin is the index at which it is asked for, with every range
inside the block at 0.  One tile is filled for each origin, in the loops that the origin depends on and no others, so
that a tile that two block loops share is filled once for both.  A staged reduction over blocks accumulates in its tile:
set to the identity before the loop over blocks, updated in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from uopc.ops import AxisType, Ops, ParamArg, Tile, identity
from uopc.rangeify.axes import output_axes
from uopc.rangeify.context import ZERO, Combine, Ctx, Idx, Opts, Request
from uopc.uop import UOp


@dataclass(frozen=True)
class Nest:
    """Loops over a tile: the index inside it, and the ranges to close around a store."""

    idx: Idx
    ranges: list[UOp]


def _nest(extents: tuple[int, ...], opts: Opts, ctx: Ctx) -> Nest:
    idx, loops, registers = output_axes(extents, opts, ctx)
    return Nest(idx, [*loops, *registers])


def _origin(idx: Idx, ctx: Ctx) -> Idx:
    """Where the block begins: the index with everything inside the block at 0."""
    inside = {r: ZERO for i in idx for r in i.ranges if r not in ctx.blocks}
    return tuple(ctx.simplify(i.substitute(inside)) for i in idx)


def _flat(at: Idx, extents: tuple[int, ...], ctx: Ctx) -> UOp:
    flat = ZERO
    for i, n in zip(at, extents):
        flat = flat * n + i
    return ctx.simplify(flat)


def tile(u: UOp, idx: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """The value of a STAGE at block level, read from its tile; asks for the values that fill it."""
    arg: Tile = u.arg
    origin = _origin(idx, ctx)
    inner = tuple(ctx.simplify(i - o) for i, o in zip(idx, origin))
    key = (u, origin)
    if key in ctx.tiles:
        cell = ctx.tiles[key]
        return [], lambda _: cell.index(_flat(inner, arg.extents, ctx)).load()
    requests, filled = (_accumulate if u.src[0].op is Ops.REDUCE and arg.accumulate else _write)(u, origin, ctx)

    def combine(answers: list[UOp]) -> UOp:
        cell = ctx.tiles[key] = filled(answers)
        return cell.index(_flat(inner, arg.extents, ctx)).load()

    return requests, combine


def _cell(u: UOp, ctx: Ctx) -> UOp:
    ctx.next_slot += 1
    return UOp(Ops.ALLOC, (), ParamArg(ctx.next_slot - 1, u.dtype, u.arg.extents))


def _begin(cell: UOp, origin: Idx) -> UOp:
    """The tile at its first write: inside the block loops that its origin depends on."""
    around = tuple(dict.fromkeys(r for i in origin for r in i.ranges))
    return cell.after(*around) if around else cell


def _at(origin: Idx, nest: Nest, ctx: Ctx) -> Idx:
    return tuple(ctx.simplify(o + i) for o, i in zip(origin, nest.idx))


def _write(u: UOp, origin: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """Fill a tile with the value."""
    extents = u.arg.extents
    nest, cell = _nest(extents, u.arg.opts or Opts(), ctx), _cell(u, ctx)

    def filled(answers: list[UOp]) -> UOp:
        place = _begin(cell, origin).index(_flat(nest.idx, extents, ctx))
        return cell.after(place.store(answers[0]).end(*nest.ranges))

    return [(u.src[0], _at(origin, nest, ctx), None)], filled


def _accumulate(u: UOp, origin: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """Combine in a tile what a REDUCE over blocks combines, block after block."""
    reduced, extents, opts = u.src[0], u.arg.extents, u.arg.opts or Opts()
    x, (op, axes) = reduced.src[0], reduced.arg
    start, update = _nest(extents, opts, ctx), _nest(extents, opts, ctx)
    cell = _cell(u, ctx)
    nothing = UOp.const(identity(op, u.dtype), u.dtype)
    begun = _begin(cell, origin).index(_flat(start.idx, extents, ctx)).store(nothing).end(*start.ranges)
    blocks = {a: ctx.range(x.shape[a], AxisType.REDUCE) for a in axes}
    ctx.blocks.update(blocks.values())
    rest = iter(_at(origin, update, ctx))
    inner = tuple(blocks[a] if a in blocks else next(rest) for a in range(len(x.shape)))

    def filled(answers: list[UOp]) -> UOp:
        place = cell.after(begun, *blocks.values()).index(_flat(update.idx, extents, ctx))
        step = place.store(place.load().alu(op, answers[0])).end(*update.ranges)
        return cell.after(step.end(*blocks.values()))

    return [(x, inner, None)], filled
