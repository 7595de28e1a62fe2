"""Overlaps: what the results of a block read again and again, at places that overlap, is computed once, into a tile.

Windows over a padded array are read so: each element is asked for by every window that holds it, each time behind a
mask.  The part that a block reads stands in a tile instead, and inside the block a reading is an address and no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from uopc.blockize.operands import reduction_of
from uopc.cost import Candidate, Cost, Model
from uopc.ops import ALU, MOVEMENT, AxisType, KernelInfo, Ops, Order, ParamArg, ReduceArg, Tile
from uopc.rangeify import Ctx, Opts, rangeify
from uopc.rangeify.nest import SMALL_STEPS, analyse
from uopc.simplify import linear_in
from uopc.target import Target
from uopc.uop import UOp, toposort

# Readings of each element of a tile, below which filling it does not pay.
LEAST_READINGS = 2
# The tile's share of the second-level cache; other operands and the results have the rest.
TILE_SHARE = 0.25
OTHER_SHARES = (0.1, 0.5)  # worth a measurement
# Operations that a vector of a tile takes: what it is computed from is read behind masks.
FILLING = 8
# Results of a block along an axis that does not move the tile: what fills it is paid back by them.
BLOCK_ROWS = 512
# The longest chain of a sum.
LONGEST_CHAIN = 512
# Blocks for the threads to share.
LEAST_BLOCKS = 16


@dataclass(frozen=True)
class Site:
    """A value that a reduction reads through movement alone, and for each of its axes how far the index moves with
    each axis of what is reduced."""

    value: UOp
    steps: tuple[dict[int, int], ...]

    def extents(self, block: list[int]) -> tuple[int, ...]:
        """How much of the value a block of what is reduced reads."""
        return tuple(1 + sum(step * (block[a] - 1) for a, step in along.items()) for along in self.steps)

    def bytes(self, block: list[int]) -> int:
        return math.prod(self.extents(block)) * self.value.dtype.itemsize

    def moves(self, axis: int) -> bool:
        return any(axis in along for along in self.steps)

    def overlaps(self, axis: int) -> bool:
        """Whether neighbours along an axis read the same elements."""
        return any(axis in along and len(along) > 1 for along in self.steps)


def _sites(x: UOp) -> list[Site]:
    """The computed values that ``x`` reads at one place, which moves forwards in equal steps."""
    ctx = Ctx()
    ranges = tuple(ctx.range(n, AxisType.LOOP) for n in x.shape)
    rangeify(x, ranges, ctx)
    found: dict[UOp, None] = {}
    seen, stack = {x}, [x]
    while stack:
        u = stack.pop()
        if (u.op in MOVEMENT and u.op is not Ops.PAD) or (u.op in ALU and u.shape == x.shape):
            stack += [s for s in u.src if s not in seen]
            seen.update(u.src)
        elif any(v.op is Ops.BUFFER for v in toposort(u) if v is not u):
            found[u] = None
    sites = []
    for u in found:
        steps = [_steps(idx, ranges) for idx in ctx.engine.asked(u)]
        if len(steps) == 1 and steps[0] is not None:
            sites.append(Site(u, steps[0]))
    return sites


def _steps(idx: tuple[UOp, ...], ranges: tuple[UOp, ...]) -> tuple[dict[int, int], ...] | None:
    out = []
    for i in idx:
        found = {a: linear_in(i, r) for a, r in enumerate(ranges)}
        if any(f is None or f[1] < 0 for f in found.values()):
            return None
        out.append({a: f[1] for a, f in found.items() if f is not None and f[1]})
    return tuple(out)


def _even(size: int, most: int, tile: int) -> int:
    """Equal parts of at most about ``most``, in whole register tiles unless there is one part."""
    count = -(-size // max(most, 1))
    return size if count == 1 else min(-(-size // (count * tile)) * tile, size)


def _block(x: UOp, kept: list[int], site: Site, opts: Opts, room: int) -> list[int] | None:
    """How much of each axis of what is reduced one block takes; None where a tile of ``room`` bytes is too small."""
    tile = {a: opts.upcast_of(i) for i, a in enumerate(kept)}
    rows = [a for a in kept if not site.moves(a)]
    columns = [a for a in kept if site.moves(a) and tile[a] > 1]
    block = [_even(n, BLOCK_ROWS, tile[a]) if a in rows else n for a, n in enumerate(x.shape)]
    block = [1 if a in kept and a not in rows and a not in columns else n for a, n in enumerate(block)]
    while site.bytes(block) > room:
        a = max(columns, key=lambda a: block[a] // tile[a], default=None)
        if a is None or block[a] <= tile[a]:
            return None
        block[a] = _even(x.shape[a], max(block[a] // 2, tile[a]), tile[a])
    for a in kept:
        if site.overlaps(a) and a not in columns:
            while _count(x.shape, block, kept, a) >= 2 * LEAST_BLOCKS and site.bytes(_doubled(block, a)) <= room:
                block = _doubled(block, a)
            block[a] = _even(x.shape[a], block[a], 1)
    return block


def _doubled(block: list[int], axis: int) -> list[int]:
    return [2 * n if a == axis else n for a, n in enumerate(block)]


def _count(shape: tuple[int, ...], block: list[int], kept: list[int], axis: int) -> int:
    """How many blocks there are, if ``axis`` can still be divided."""
    return math.prod(-(-shape[a] // block[a]) for a in kept) if block[axis] < shape[axis] else 0


def _in_chains(reduce: UOp) -> UOp:
    """A long sum as a sum of shorter ones, where its first axis can be divided so."""
    x, op, axes = reduce.src[0], reduce.arg.op, reduce.arg.axes
    first, size = axes[0], x.shape[axes[0]]
    around = math.prod(x.shape[a] for a in axes[1:])
    each = max(n for n in range(1, size + 1) if size % n == 0 and (n * around <= LONGEST_CHAIN or n == 1))
    if op is not Ops.ADD or each in (1, size) or reduce.arg.order is not Order.ANY:
        return reduce
    split = UOp(Ops.RESHAPE, (x,), (*x.shape[:first], size // each, each, *x.shape[first + 1 :]))
    partial = UOp(Ops.REDUCE, (split,), ReduceArg(op, tuple(a + 1 for a in axes)))
    return UOp(Ops.REDUCE, (partial,), ReduceArg(op, (first,)))


def _found(root: UOp, target: Target, share: float) -> tuple[Site, list[int]] | None:
    """The value that pays for a tile, and how much of each axis of what is reduced a block takes."""
    opts: Opts | None = root.arg.opts
    if len(root.src) != 1 or opts is None or opts.vector is None:
        return None
    reduce = reduction_of(root.src[0].src[1])
    if reduce is None:
        return None
    x = reduce.src[0]
    kept = [a for a in range(len(x.shape)) if a not in reduce.arg.axes]
    lanes = kept[opts.vector]
    sites = [
        s for s in _sites(x) if any(map(s.overlaps, kept)) and all(n.get(lanes, 1) in SMALL_STEPS for n in s.steps)
    ]
    if len(sites) != 1:
        return None
    (site,) = sites
    block = _block(x, kept, site, opts, int(target.l2.size * share))
    again = math.prod(opts.upcast_of(i) for i, a in enumerate(kept) if not site.moves(a))
    if block is None or math.prod(block) < LEAST_READINGS * again * math.prod(site.extents(block)):
        return None
    return site, block


def overlaps(root: UOp, target: Target, share: float = TILE_SHARE) -> UOp | None:
    """The kernel ``root`` (a SINK) with what its blocks read at overlapping places in a tile; None where nothing is."""
    found = _found(root, target, share)
    if found is None:
        return None
    (site, block), opts = found, root.arg.opts
    out, body = root.src[0].src
    reduce = reduction_of(body)
    assert reduce is not None
    extents = site.extents(block)
    last = len(extents) - 1
    fill = Opts({last: opts.lanes}, vector=last, lanes=opts.lanes)
    new = _in_chains(reduce).substitute({site.value: UOp(Ops.STAGE, (site.value,), Tile(extents, fill))})
    of_output = [n for a, n in enumerate(block) if a not in reduce.arg.axes]
    outer = tuple(i for i, n in enumerate(of_output) if n < body.shape[i])
    # one tile serves the whole reduction: its loops all begin where the tile does
    sizes = replace(opts, unroll=1, reduce_lanes=1, reduce_block=0)
    blocked = replace(sizes, block=dict(enumerate(of_output)), thread=outer or None)
    store = root.src[0].replace(src=(out, body.substitute({reduce: new})))
    return root.replace(src=(store,), arg=KernelInfo(root.arg.name, blocked))


def overlap_candidates(plain: Candidate, target: Target) -> list[Candidate]:
    """The tiles that a scheduled kernel can have, if any."""
    made: dict[UOp, Candidate] = {}
    for share in (TILE_SHARE, *OTHER_SHARES):
        root, found = overlaps(plain.root, target, share), _found(plain.root, target, share)
        if root is not None and found is not None:
            made.setdefault(root, Candidate(root, _cost(plain.root, *found, target)))
    return list(made.values())


def _cost(root: UOp, site: Site, block: list[int], target: Target) -> Cost:
    """The cost of a kernel that finds the value in memory, and of filling the tiles with it."""
    out, body = root.src[0].src
    slot = 1 + max(u.arg.slot for u in toposort(root) if u.op is Ops.BUFFER)
    memory = UOp(Ops.BUFFER, (), ParamArg(slot, site.value.dtype, site.value.shape))
    found = UOp(Ops.STORE, (out, body.substitute({site.value: memory})))
    cost = Model(analyse((found,)), target).cost(root.arg.opts)
    reduce = reduction_of(body)
    assert reduce is not None
    blocks = math.prod(-(-n // b) for n, b in zip(reduce.src[0].shape, block))
    filled = blocks * math.prod(site.extents(block)) / root.arg.opts.lanes
    return replace(cost, operations=cost.operations + FILLING * filled, tasks=blocks)
