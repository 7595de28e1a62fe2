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
from uopc.rangeify.unswitch import once_if, renewed, unswitch
from uopc.uop import DType, UOp


@dataclass(frozen=True)
class Nest:
    """Loops over a tile: the index inside it, and the ranges to close around a store."""

    idx: Idx
    ranges: list[UOp]


def tile_nest(tile: Tile, ctx: Ctx) -> Nest:
    """New loops over a tile."""
    idx, loops, registers = output_axes(tile.extents, tile.opts or Opts(), ctx)
    return Nest(idx, [*loops, *registers])


def block_origin(idx: Idx, ctx: Ctx) -> Idx:
    """Where the block begins: the index with everything inside the block at 0."""
    inside = {r: ZERO for i in idx for r in i.ranges if r not in ctx.blocks}
    return tuple(ctx.simplify(i.substitute(inside)) for i in idx)


def flat(at: Idx, tile: Tile, ctx: Ctx) -> UOp:
    """The address in a tile of the element at ``at``, counted from the tile's origin."""
    address = ZERO
    for a in tile.layout or range(len(at)):
        address = address * tile.extents[a] + at[a]
    return ctx.simplify(address)


def tile(u: UOp, idx: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """The value of a STAGE at block level, read from its tile; asks for the values that fill it."""
    arg: Tile = u.arg
    origin = block_origin(idx, ctx)
    known = _known(u, idx, origin, ctx)
    inner = tuple(ctx.simplify(i - o) for i, o in zip(idx, known or origin))
    if known is not None:
        cell = ctx.tiles[u, known]
        return [], lambda _: cell.index(flat(inner, arg, ctx)).load()
    requests, filled = (_accumulate if u.src[0].op is Ops.REDUCE and arg.accumulate else _write)(u, origin, ctx)

    def combine(answers: list[UOp]) -> UOp:
        cell = ctx.tiles[u, origin] = filled(answers)
        return cell.index(flat(inner, arg, ctx)).load()

    return requests, combine


def _known(u: UOp, idx: Idx, origin: Idx, ctx: Ctx) -> Idx | None:
    """The origin of a tile of ``u`` that holds all that is asked for: every second element, from the second on, stands
    in the tile that begins at the first."""
    if (u, origin) in ctx.tiles:
        return origin
    for v, known in ctx.tiles:
        if v is u:
            inner = [ctx.simplify(i - o) for i, o in zip(idx, known)]
            inside = all(i.vmin >= 0 and i.vmax < n for i, n in zip(inner, u.arg.extents))
            if inside and not any(r in ctx.blocks for i in inner for r in i.ranges):
                return known
    return None


def new_cell(dtype: DType, tile: Tile, ctx: Ctx) -> UOp:
    """Memory for a tile."""
    ctx.next_slot += 1
    return UOp(Ops.ALLOC, (), ParamArg(ctx.next_slot - 1, dtype, tile.extents))


def start(cell: UOp, origin: Idx, tile: Tile, op: Ops, ctx: Ctx) -> UOp:
    """The loops that set a tile to what leaves a reduction by ``op`` unchanged."""
    nest = tile_nest(tile, ctx)
    nothing = UOp.const(identity(op, cell.dtype), cell.dtype)
    return begin(cell, origin, ctx).index(flat(nest.idx, tile, ctx)).store(nothing).end(*nest.ranges)


def begin(cell: UOp, origin: Idx, ctx: Ctx) -> UOp:
    """The tile at its first write: inside the block loops that its origin depends on."""
    around = dict.fromkeys(r for i in origin for r in i.ranges)
    around.update(dict.fromkeys(ctx.inside[r] for r in list(around) if r in ctx.inside))
    return cell.after(*around) if around else cell


def at_origin(origin: Idx, nest: Nest, ctx: Ctx) -> Idx:
    return tuple(ctx.simplify(o + i) for o, i in zip(origin, nest.idx))


def _write(u: UOp, origin: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """Fill a tile with the value."""
    nest, cell = tile_nest(u.arg, ctx), new_cell(u.dtype, u.arg, ctx)

    def fill(value: UOp, *inside: UOp) -> UOp:
        start = begin(cell, origin, ctx)
        place = (start.after(*inside) if inside else start).index(flat(nest.idx, u.arg, ctx))
        return place.store(value).end(*nest.ranges).end(*inside)

    def filled(answers: list[UOp]) -> UOp:
        split = unswitch(answers[0], ctx)
        if split is None:
            return cell.after(fill(answers[0]))
        simple, holds = split
        # two nests over the same tile, of which one runs
        either = fill(answers[0], once_if(holds, False, ctx)).substitute(renewed(nest.ranges, answers[0], ctx))
        return cell.after(fill(simple, once_if(holds, True, ctx)), either)

    return [(u.src[0], at_origin(origin, nest, ctx), None)], filled


def _accumulate(u: UOp, origin: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """Combine in a tile what a REDUCE over blocks combines, block after block."""
    reduced = u.src[0]
    x, op, axes = reduced.src[0], reduced.arg.op, reduced.arg.axes
    update, cell = tile_nest(u.arg, ctx), new_cell(u.dtype, u.arg, ctx)
    begun = start(cell, origin, u.arg, op, ctx)
    blocks = {a: ctx.range(x.shape[a], AxisType.REDUCE) for a in axes}
    ctx.blocks.update(blocks.values())
    rest = iter(at_origin(origin, update, ctx))
    inner = tuple(blocks[a] if a in blocks else next(rest) for a in range(len(x.shape)))

    def filled(answers: list[UOp]) -> UOp:
        place = cell.after(begun, *blocks.values()).index(flat(update.idx, u.arg, ctx))
        step = place.store(place.load().alu(op, answers[0])).end(*update.ranges)
        return cell.after(step.end(*blocks.values()))

    return [(x, inner, None)], filled
