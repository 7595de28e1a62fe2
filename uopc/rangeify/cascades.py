"""A cascade becomes one loop over blocks of its axis, in which the running values of its reductions stand in tiles.

For each part of the axis (the loop over whole blocks, then what is left over) and each reduction: its value over the
block is combined with the running one, after the correction.  A running value that corrections ask for both before and
after the block has a second tile, copied back when all else of the block is done.  Only reductions that somebody asks
for are computed.  Until all of them are known, what comes after a part stands behind a mark, which ``close`` replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from uopc.ops import AxisType, KernelInfo, Ops, Order, ReduceArg, Tile
from uopc.rangeify.context import ZERO, Combine, Ctx, Idx, Opts, Request
from uopc.rangeify.reduction import in_lanes, segment_index, segments, without_lanes
from uopc.rangeify.tiles import at_origin, begin, block_origin, flat, new_cell, start, tile_nest
from uopc.rangeify.unswitch import once_if
from uopc.terms import combined
from uopc.uop import UOp, sink, toposort


@dataclass(frozen=True)
class Part:
    """A stretch of the axis: where it begins, how many elements a block of it holds, its loop, and the mark of its
    end."""

    first: UOp
    size: int
    loop: tuple[UOp, ...]
    mark: UOp


@dataclass
class Running:
    """A running value: where its tile begins, the tile, its initialisation, its second tile, and its update in each
    part."""

    origin: Idx
    cell: UOp
    begun: UOp
    twin: UOp | None
    updates: dict[int, UOp] = field(default_factory=dict)


class Cascade:
    """A CASCADE under way in one kernel."""

    def __init__(self, node: UOp, k: int, origin: Idx, ctx: Ctx) -> None:
        """``origin``: where the block at hand begins in the value of reduction ``k``."""
        self.node, self.ctx = node, ctx
        self.components = node.arg.components
        rest = iter(node.src)
        self.bodies = [(next(rest), next(rest) if c.corrected else None) for c in self.components]
        self.asked_before = {u.arg.component for u in toposort(node) if u.op is Ops.STATE and not u.arg.new}
        self.running: dict[int, Running] = {}
        size = self.bodies[0][0].shape[self.components[0].axis] * self.components[0].steps
        block = min(node.arg.block or size, size)
        whole = size // block
        first, trips = self.visited(block, whole, k, origin)
        self.parts = [self.part(first, block, trips)]
        if node.arg.test_lanes and self.parts[0].loop:
            self.parts[0] = self.tested(self.parts[0], k, origin)
        if size % block:
            self.parts.append(self.part(UOp.const(whole * block), size % block, UOp.const(1)))

    def visited(self, block: int, count: int, k: int, origin: Idx) -> tuple[UOp, UOp]:
        """The first position of the first of ``count`` blocks that the limits let through, and how many follow."""
        begin, end = ZERO, UOp.const(count)
        tile = self.tile(k)
        row, rows = (origin[tile.layout[-1]], tile.extents[tile.layout[-1]]) if tile.layout else (ZERO, 1)
        for limit in self.node.arg.limits:
            # the row of the block that lets most through
            best = row * limit.row + min(0, limit.row * (rows - 1)) + limit.offset
            if limit.step > 0:
                end = end.minimum((best * -1) // limit.step // block + 1)
            else:
                begin = begin.maximum(((best + (-limit.step - 1)) // -limit.step) // block)
        begin = self.ctx.simplify(begin.minimum(count))
        trips = self.ctx.simplify((end - begin).maximum(0))
        return self.ctx.simplify(begin * block), trips

    def part(self, first: UOp, size: int, trips: UOp) -> Part:
        loop = (self.ctx.range(trips, AxisType.REDUCE),) if trips.vmax > 1 or trips.vmin < 1 else ()
        self.ctx.blocks.update(loop)
        self.ctx.marks += 1
        return Part(first, size, loop, UOp(Ops.SINK, (), KernelInfo(f"mark {self.ctx.marks}")))

    def tested(self, part: Part, k: int, origin: Idx) -> Part:
        """The part with each of its blocks inside a loop of one iteration, or of none where the block changes
        nothing."""
        (loop,) = part.loop
        lives = self.node.src[len(self.node.src) - len(self.components) :]
        axis, ctx = self.components[k].axis, self.ctx
        extents = self.tile(k).extents
        sizes = Opts({axis: self.node.arg.test_lanes}, vector=axis, lanes=self.node.arg.test_lanes)
        nest = tile_nest(Tile((*extents[:axis], part.size, *extents[axis:]), sizes), ctx)
        start = ctx.simplify(part.first + loop * part.size)
        live = ctx.engine.run(lives[k], at_origin((*origin[:axis], start, *origin[axis:]), nest, ctx))
        over = {r: ctx.range(r.src[0], _within(r)) for r in nest.ranges if r in live.ranges}
        if over:
            live = UOp(Ops.REDUCE, (live.substitute(over), *over.values()), ReduceArg(Ops.OR, ()))
        once = once_if(live.ne(0), True, ctx)
        ctx.blocks.add(once)
        ctx.inside[loop] = once
        return replace(part, loop=(loop, once))

    def tile(self, k: int) -> Tile:
        """How the running value of a reduction stands in memory: as ``blockize`` says, else one element."""
        rank = len(self.bodies[k][0].shape) - 1
        return self.components[k].tile or Tile((1,) * rank)

    def enter(self, k: int, idx: Idx) -> Running:
        """The running value of a reduction, which stands at one place in a block."""
        origin = block_origin(idx, self.ctx)
        if k not in self.running:
            dtype, tile = self.bodies[k][0].dtype, self.tile(k)
            cell = new_cell(dtype, tile, self.ctx)
            twin = new_cell(dtype, tile, self.ctx) if k in self.asked_before else None
            self.running[k] = Running(origin, cell, start(cell, origin, tile, self.components[k].op, self.ctx), twin)
        elif self.running[k].origin != origin:
            raise ValueError(f"a running value is asked for at {origin}, and at {self.running[k].origin}, of one block")
        return self.running[k]

    def read(self, k: int, cell: UOp, idx: Idx) -> UOp:
        """An element of a running value's tile."""
        inner = tuple(self.ctx.simplify(i - o) for i, o in zip(idx, self.running[k].origin))
        return cell.index(flat(inner, self.tile(k), self.ctx)).load()

    def before(self, k: int, p: int) -> UOp:
        """The tile as it is before the block at hand of part ``p``."""
        running = self.running[k]
        return running.cell.after(self.parts[p - 1].mark if p else running.begun, *self.parts[p].loop)

    def after(self, k: int, p: int) -> UOp:
        """The tile as it is after the update by the block at hand of part ``p``."""
        running = self.running[k]
        return (running.twin if running.twin is not None else running.cell).after(running.updates[p])

    def tagged(self, u: UOp, p: int) -> UOp:
        """A body for part ``p``: its STATEs are those of the part, and its tiles as long as the part's blocks."""
        order = toposort(u)
        mine = [s for s in order if s.op is Ops.STATE and s.arg.cascade == self.node.arg.id]
        u = u.substitute({s: s.replace(arg=s.arg._replace(part=p)) for s in mine})
        size = self.parts[p].size

        def fit(s: UOp) -> UOp:
            return s.replace(arg=s.arg._replace(extents=tuple(-(size // n) if n < 0 else n for n in s.arg.extents)))

        open_ended = [
            s for s in toposort(u) if s.op is Ops.STAGE and isinstance(s.arg, Tile) and min(s.arg.extents) < 0
        ]
        return UOp.wrap([u], open_ended, fit)[0]

    def update(self, k: int, p: int) -> tuple[list[Request], Combine]:
        """One reduction over the block at hand of part ``p``: what it asks for; ``combine`` adds its loops to the
        part."""
        running, part, ctx = self.running[k], self.parts[p], self.ctx
        component, (body, correction) = self.components[k], self.bodies[k]
        nest = tile_nest(self.tile(k), ctx)
        at = at_origin(running.origin, nest, ctx)
        start = part.first
        for r in part.loop:
            start = start + r * part.size
        requests: list[Request] = []
        loops: list[list[UOp]] = []
        opts = without_lanes(ctx.opts) if in_lanes(at, None) else ctx.opts
        fill = self.tile(k).opts
        if fill is not None and fill.unroll > 1:
            opts = replace(opts, unroll=fill.unroll)
        if component.order is not Order.ANY:
            opts = Opts()
        start = start // component.steps
        for segment in segments(-(-part.size // component.steps), opts):
            step, inner, _ = segment_index(segment, ctx)
            along = ctx.simplify(start + step)
            requests.append((self.tagged(body, p), (*at[: component.axis], along, *at[component.axis :]), None))
            loops.append(inner)
        if correction is not None:
            requests.append((self.tagged(correction, p), at, None))

        arg = ReduceArg(component.op, (), component.order)

        def combine(answers: list[UOp]) -> UOp:
            value: UOp | None = None
            for answer, ranges in zip(answers, loops):
                done = UOp(Ops.REDUCE, (answer, *ranges), arg) if ranges else answer
                value = done if value is None else combined(component.op, value, done)
            assert value is not None
            address = flat(nest.idx, self.tile(k), ctx)
            place = self.before(k, p).index(address)
            old = place.load() * answers[-1] if correction is not None else place.load()
            if running.twin is not None:
                place = begin(running.twin, (*running.origin, *part.loop), ctx).index(address)
            running.updates[p] = place.store(old.alu(component.op, value)).end(*nest.ranges)
            return self.after(k, p)

        return requests, combine

    def close(self, p: int) -> UOp:
        """The end of part ``p``: all its updates, and the second tiles copied back behind them."""
        updates = [r.updates[p] for r in self.running.values()]
        copies = []
        for k, running in self.running.items():
            if running.twin is not None:
                nest = tile_nest(self.tile(k), self.ctx)
                address = flat(nest.idx, self.tile(k), self.ctx)
                value = self.after(k, p).index(address).load()
                copies.append(running.cell.after(*updates).index(address).store(value).end(*nest.ranges))
        return sink(*updates, *copies).end(*self.parts[p].loop)


def _within(r: UOp) -> AxisType:
    """What a range over a tile is for where the tile is reduced."""
    return AxisType.REDUCE if r.arg.axis_type is AxisType.LOOP else r.arg.axis_type


def _cascade(u: UOp, idx: Idx, ctx: Ctx) -> Cascade:
    """The cascade of a COMPONENT, made when the first is asked for; its STATEs find it by their number."""
    node = u.src[0]
    if node.arg.id not in ctx.cascades:
        ctx.cascades[node.arg.id] = Cascade(node, u.arg.component, block_origin(idx, ctx), ctx)
    return ctx.cascades[node.arg.id]


def component(u: UOp, idx: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """The final value of a reduction: every part is run, one after the other."""
    cascade, k = _cascade(u, idx, ctx), u.arg.component
    cascade.enter(k, idx)
    parts = [cascade.update(k, p) for p in range(len(cascade.parts)) if p not in cascade.running[k].updates]

    def combine(answers: list[UOp]) -> UOp:
        rest = iter(answers)
        for requests, done in parts:
            done([next(rest) for _ in requests])
        return cascade.read(k, cascade.running[k].cell.after(cascade.parts[-1].mark), idx)

    return [r for requests, _ in parts for r in requests], combine


def state(u: UOp, idx: Idx, ctx: Ctx) -> tuple[list[Request], Combine]:
    """A running value, before or after the block at hand."""
    cascade, k, p = ctx.cascades[u.arg.cascade], u.arg.component, u.arg.part
    cascade.enter(k, idx)
    if not u.arg.new:
        return [], lambda _: cascade.read(k, cascade.before(k, p), idx)
    if p in cascade.running[k].updates:
        return [], lambda _: cascade.read(k, cascade.after(k, p), idx)
    requests, done = cascade.update(k, p)
    return requests, lambda answers: cascade.read(k, done(answers), idx)


def close(root: UOp, ctx: Ctx) -> UOp:
    """The program of ``root`` with every mark replaced by the loop whose end it stands for."""
    for cascade in ctx.cascades.values():
        marks: dict[UOp, UOp] = {}
        for p, part in enumerate(cascade.parts):
            marks[part.mark] = cascade.close(p).substitute(marks)
        root = root.substitute(marks)
    return root
