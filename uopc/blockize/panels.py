"""Panels: the operand that the rows of a block share is packed, and a long reduction runs in parts whose sum stands in
a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from uopc.blockize.operands import View, beneath, packed, reduction_of, shared_parts, stretch
from uopc.cost import ALIKE, USABLE, Candidate, Cost, Model
from uopc.ops import ALU, KernelInfo, Ops, Order, Tile
from uopc.rangeify import Opts
from uopc.rangeify.nest import analyse
from uopc.rangeify.reduction import ORDERED_BLOCK
from uopc.target import LINE, Target
from uopc.uop import UOp

# Register tiles along the axis that shares an operand, below which packing it does not pay.
LEAST_TILES = 8
# Rows of a block are those whose own operand fills so much of L2, the packed one having the rest: each packed element
# is paid back by all of them.  Fewer are worth a look where threads have too little to share.
OWN_SHARE = 0.7
FEWER_ROWS = (192, 96)
# The longest reduction that one block runs: a packed panel of 64 columns then fills a quarter of a 1 MB L2, and a sum
# has short chains.
BLOCK_REDUCE = 512
OTHER_REDUCE = (256,)


@dataclass(frozen=True)
class Site:
    """A REDUCE to be blocked: its node, the output axis that shares the operands (rows), the one that lanes run along,
    and the bytes of each operand."""

    reduce: UOp
    rows: int
    lanes: int
    shared: dict[UOp, int]


def _site(root: UOp) -> Site | None:
    """The REDUCE of a kernel that can be blocked."""
    if len(root.src) != 1 or root.arg.opts is None:
        return None
    opts: Opts = root.arg.opts
    body = root.src[0].src[1]
    reduce = reduction_of(body)
    if reduce is None or opts.vector is None or len(reduce.arg.axes) != 1 or reduce.arg.axes[0] != len(body.shape):
        return None
    rows = next((a for a, _ in opts.upcast if a != opts.vector), None)
    if (
        rows is None
        or body.shape[rows] < LEAST_TILES * opts.upcast_of(rows)
        or body.shape[opts.vector] < opts.upcast_of(opts.vector)
    ):
        return None
    x, along = reduce.src[0], len(body.shape)
    view = View(x.shape)
    shared = [u for u in shared_parts(x, rows, view) if {opts.vector, along} <= view.axes(u)]
    size = {
        u: math.prod(x.shape[a] for a in view.axes(u) if a in (opts.vector, along)) * u.dtype.itemsize for u in shared
    }
    return Site(reduce, rows, opts.vector, size) if shared else None


def _with_tiles(x: UOp, site: Site, width: int, opts: Opts) -> UOp:
    view = View(x.shape)
    parts = [u for u in shared_parts(x, site.rows, view) if site.lanes in view.axes(u)]
    return x.substitute({u: packed(u, site.lanes, width, opts, view) for u in parts})


def _block(root: UOp, site: Site, most_rows: int, most_steps: int) -> UOp:
    """The kernel with its output in blocks, its shared operands packed, and its reduction in parts that a cache
    holds."""
    opts: Opts = root.arg.opts
    body, reduce = root.src[0].src[1], site.reduce
    width, tile = opts.upcast_of(site.lanes), opts.upcast_of(site.rows)
    x, op, size = reduce.src[0], reduce.arg.op, reduce.src[0].shape[-1]
    rows = _even(body.shape[site.rows], most_rows, tile)
    counts, each = _parts(reduce, size, most_steps)
    blocked = replace(opts, block={site.rows: rows, site.lanes: width}, thread=_order(opts, site), reduce_block=0)
    if counts == 1:
        new = reduce.replace(src=(_with_tiles(x, site, width, opts),))
    else:
        last = len(x.shape) - 1

        def in_parts(u: UOp) -> UOp:
            return UOp(Ops.RESHAPE, (stretch(u, last, 0, counts * each),), (*u.shape[:-1], counts, each))

        split = beneath(x, in_parts)
        partial = UOp(Ops.REDUCE, (_with_tiles(split, site, width, opts),), reduce.arg._replace(axes=(last + 1,)))
        extents = tuple(rows if a == site.rows else width if a == site.lanes else 1 for a in range(len(body.shape)))
        inner = Opts({site.rows: tile, site.lanes: width}, vector=site.lanes, lanes=opts.lanes)
        total = UOp(Ops.REDUCE, (partial,), reduce.arg._replace(axes=(last,)))
        new = UOp(Ops.STAGE, (total,), Tile(extents, inner, accumulate=True))
        if counts * each < size:
            rest = stretch(x, last, counts * each, size)
            new = new.alu(op, UOp(Ops.REDUCE, (rest,), reduce.arg._replace(axes=(last,))))
        blocked = replace(blocked, upcast={site.lanes: width})
    store = root.src[0].replace(src=(root.src[0].src[0], body.substitute({reduce: new})))
    return root.replace(src=(store,), arg=KernelInfo(root.arg.name, blocked))


def _parts(reduce: UOp, size: int, most: int) -> tuple[int, int]:
    """How many blocks a reduction has, and how long one is: equal parts, or those of its order where that is fixed."""
    if reduce.arg.order is Order.ANY:
        counts = -(-size // most)
        return counts, size // counts
    if size < 2 * ORDERED_BLOCK:
        return 1, size
    return size // ORDERED_BLOCK, ORDERED_BLOCK


def _order(opts: Opts, site: Site) -> tuple[int, ...]:
    """Threads share blocks; neighbouring blocks share their rows."""
    return (*[a for a in opts.threads if a not in (site.rows, site.lanes)], site.rows, site.lanes)


def _even(size: int, most: int, tile: int) -> int:
    """Rows of a block: equal parts of about ``most``, in whole register tiles."""
    count = -(-size // most)
    return min(-(-size // (count * tile)) * tile, size // tile * tile)


def panels(root: UOp, target: Target) -> UOp | None:
    """The kernel ``root`` (a SINK) with its output in blocks and its shared operands packed; None where that does not
    pay."""
    site = _site(root)
    if site is None or (max(site.shared.values()) <= target.l1.size and not any(u.op in ALU for u in site.shared)):
        return None
    # in which order a sum runs must not depend on how many cores there are
    alone = replace(target, cores=1)
    cost = Model(analyse(root.src), alone).cost(root.arg.opts)
    plain = Candidate(root, cost)
    sizes = _sizes(root, site, target)
    if cost.seconds(alone) <= min(_cost(plain, site, *size, alone).seconds(alone) for size in sizes):
        return None
    times = [_cost(plain, site, *size, target).seconds(target) for size in sizes]
    return _block(root, site, *next(s for s, t in zip(sizes, times) if t <= ALIKE * min(times)))


def _sizes(root: UOp, site: Site, target: Target) -> list[tuple[int, int]]:
    """The rows of a block, largest first, and the longest reduction in one."""
    body, length = root.src[0].src[1], site.reduce.src[0].shape[-1]
    steps = -(-length // -(-length // BLOCK_REDUCE))
    itemsize = max(u.dtype.itemsize for u in site.shared)
    most = max(int(target.l2.size * OWN_SHARE) // (steps * itemsize), root.arg.opts.upcast_of(site.rows))
    fewer = [n for n in FEWER_ROWS if n < min(most, body.shape[site.rows])]
    return [(n, BLOCK_REDUCE) for n in (most, *fewer)]


def panel_candidates(plain: Candidate, target: Target) -> list[Candidate]:
    """The ways in which a scheduled kernel can be in panels, if any."""
    site = _site(plain.root)
    if site is None:
        return []
    sizes = _sizes(plain.root, site, target)
    if site.reduce.src[0].shape[-1] > min(OTHER_REDUCE):
        sizes += [(sizes[0][0], steps) for steps in OTHER_REDUCE]
    found: dict[UOp, Candidate] = {}
    for size in sizes:
        root = _block(plain.root, site, *size)
        found.setdefault(root, Candidate(root, _cost(plain, site, *size, target)))
    return list(found.values())


def _cost(plain: Candidate, site: Site, most_rows: int, most_steps: int, target: Target) -> Cost:
    """The cost of a kernel in panels: shared operands are read once for each block of rows and found again in L2, sums
    wait in a tile between parts."""
    assert plain.cost is not None
    opts: Opts = plain.root.arg.opts
    body = plain.root.src[0].src[1]
    length, columns, rows = site.reduce.src[0].shape[-1], body.shape[site.lanes], body.shape[site.rows]
    width, tile = opts.upcast_of(site.lanes), opts.upcast_of(site.rows)
    lanes, itemsize = opts.lanes, max(u.dtype.itemsize for u in site.shared)
    steps = -(-length // -(-length // most_steps))
    block = _even(rows, most_rows, tile)
    blocks = -(-rows // block)
    batches = math.prod(body.shape) // (rows * columns)
    edges = blocks * block / rows  # the last block begins early
    packing = sum(site.shared.values()) * batches * blocks
    sums = 2 * batches * rows * columns * (length // steps - 1) * itemsize
    read = batches * -(-rows // tile) * -(-columns // width) * (tile + width) * length * itemsize
    own = batches * rows * length * itemsize
    again = 1 if block * steps * itemsize <= target.l2.size * USABLE else -(-columns // width)
    accesses = plain.cost.accesses * edges + (3 * packing + sums) / (lanes * itemsize)
    moved = {"L2": float(read + sums), "L3": float(packing + own * again), "memory": 0.0}
    tasks = batches * blocks * -(-columns // width)
    # what is computed from shared operands alone, a tile asks for no more
    operations = (plain.cost.operations - plain.cost.again) * edges
    # packing reads by columns, and blocks are written by columns
    far = packing + batches * rows * columns * itemsize if plain.cost.moved["L3"] else 0.0
    jumps = far / LINE
    return replace(plain.cost, operations=operations, accesses=accesses, jumps=jumps, moved=moved, tasks=tasks)
