"""Sweeps: a reduction across memory reads long rows, one after the other, and keeps its results in a tile.

Where the reduced axis steps over whole rows of memory, a register tile that runs down a few columns touches a new page
at each step. Instead, a block of results stands in a tile in the first-level cache; a few rows at a time are combined
in registers, along the whole block, and added to it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from uopc.blockize.operands import View, reduction_of, shared_parts, stretch
from uopc.cost import Candidate
from uopc.ops import KernelInfo, Ops, Order, ReduceArg, Tile
from uopc.rangeify import Opts
from uopc.target import Target
from uopc.uop import UOp, toposort

# A step along the reduced axis from which on the rows of memory are long.
FAR = 1024
# Rows combined in registers before they are added to the tile, without and with other rows that reuse them.
ROWS_AT_ONCE = 8
ROWS_AT_ONCE_REUSED = 16
OTHER_ROWS = (4, 16)
# Vectors of a register tile.
VECTORS = 4
# The tile's share of the first-level cache, what is read from memory having the rest.
TILE_SHARE = 0.5
OTHER_SHARES = (0.25,)
# Columns of a block, below which a row of it is too short a run of memory: fewer blocks than cores are better then.
LEAST_COLUMNS = 256
# Other output axes of at most so many elements stand in the tile whole.
MAX_REUSING = 32


def _reads_across(x: UOp, axis: int, lanes: int, target: Target) -> bool:
    """Whether memory larger than the cache is read by whole rows along ``lanes`` and across them along ``axis``."""
    view = View(x.shape)
    memory = [u for u in toposort(x) if u.op is Ops.BUFFER]
    large = max((math.prod(u.arg.shape) * u.dtype.itemsize for u in memory), default=0)
    return (
        large > target.l2.size
        and view.step(x, axis) >= FAR
        and view.step(x, lanes) <= max(u.dtype.itemsize for u in memory)
    )


def _reused(x: UOp, axis: int) -> bool:
    """Whether some memory is the same for all of an axis."""
    view = View(x.shape)
    parts = [u for u in shared_parts(x, axis, view) if view.axes(u)]
    return bool(parts)


def _columns(size: int, rows: int, lanes: int, itemsize: int, share: float, target: Target, others: int) -> int:
    """Columns of a block: what the tile's share of the cache holds, and a block for each core, where the ``others``
    blocks along other axes are fewer; 0: too few.  Sums do not depend on it."""
    step = lanes * VECTORS
    fits = int(target.l1.size * share) // (itemsize * rows)
    shared = max(-(-size * others // target.cores), LEAST_COLUMNS)
    return min(fits, shared, size) // step * step


def sweeps(root: UOp, target: Target, at_once: int = 0, share: float = TILE_SHARE) -> UOp | None:
    """The kernel ``root`` (a SINK) as a sweep, of so many rows at once and with a tile of this share of the cache; None
    where it is none."""
    opts = root.arg.opts
    if len(root.src) != 1 or opts is None or opts.vector is None:
        return None
    out, body = root.src[0].src
    reduce = reduction_of(body)
    if reduce is None or len(reduce.arg.axes) != 1 or reduce.arg.order is not Order.ANY:
        return None
    x, op, (axis,) = reduce.src[0], reduce.arg.op, reduce.arg.axes
    kept = [a for a in range(len(x.shape)) if a != axis]
    others = [a for a, n in enumerate(body.shape) if a != opts.vector and n > 1]
    held = [a for a in others if body.shape[a] <= MAX_REUSING and a == others[-1]]
    rows = math.prod(body.shape[a] for a in held)
    itemsize, elsewhere = max(x.dtype.itemsize, 4), math.prod(body.shape[a] for a in others if a not in held)
    columns = _columns(body.shape[opts.vector], rows, opts.lanes, itemsize, share, target, elsewhere)
    at_once = at_once or (ROWS_AT_ONCE_REUSED if held else ROWS_AT_ONCE)
    if columns < opts.lanes * VECTORS or x.shape[axis] < 4 * at_once:
        return None
    if not _reads_across(x, axis, kept[opts.vector], target):
        return None
    if any(_reused(x, kept[a]) for a in others if a not in held):
        return None  # register tiles along that axis read less
    count = x.shape[axis] // at_once
    main = stretch(x, axis, 0, count * at_once)
    split = UOp(Ops.RESHAPE, (main,), (*x.shape[:axis], count, at_once, *x.shape[axis + 1 :]))
    partial = UOp(Ops.REDUCE, (split,), ReduceArg(op, (axis + 1,)))
    tile = {a: next(n for n in (4, 3, 2, 1) if body.shape[a] % n == 0) for a in held}
    sizes = Opts({**tile, opts.vector: opts.lanes * VECTORS}, vector=opts.vector, lanes=opts.lanes)
    block = {a: columns if a == opts.vector else n if a in held else 1 for a, n in enumerate(body.shape)}
    total = UOp(Ops.REDUCE, (partial,), ReduceArg(op, (axis,)))
    new = UOp(Ops.STAGE, (total,), Tile(tuple(block[a] for a in range(len(body.shape))), sizes, accumulate=True))
    if count * at_once < x.shape[axis]:
        new = new.alu(op, UOp(Ops.REDUCE, (stretch(x, axis, count * at_once, x.shape[axis]),), reduce.arg))
    threads = (*[a for a in others if a not in held], opts.vector)
    blocked = replace(sizes, upcast={opts.vector: opts.lanes}, block=block, thread=threads)
    store = root.src[0].replace(src=(out, body.substitute({reduce: new})))
    return root.replace(src=(store,), arg=KernelInfo(root.arg.name, blocked))


def sweep_candidates(plain: Candidate, target: Target) -> list[Candidate]:
    """The ways in which a scheduled kernel can be a sweep, if any."""
    if sweeps(plain.root, target) is None:
        return []
    assert plain.cost is not None
    x = next(u for u in toposort(plain.root) if u.op is Ops.REDUCE).src[0]
    memory = [u for u in toposort(x) if u.op is Ops.BUFFER]
    total = float(sum(math.prod(u.arg.shape) * u.dtype.itemsize for u in memory))  # read once, in order
    moved = {"L2": total, "L3": total, "memory": total if total > target.l3.size else 0.0}
    ways = [(0, TILE_SHARE), *((n, TILE_SHARE) for n in OTHER_ROWS), *((0, share) for share in OTHER_SHARES)]
    found: dict[UOp, Candidate] = {}
    for at_once, share in ways:
        root = sweeps(plain.root, target, at_once, share)
        if root is not None:
            # results are loaded and stored once for so many rows
            accesses = plain.cost.accesses * (1 + 2 / (at_once or ROWS_AT_ONCE))
            found.setdefault(root, Candidate(root, replace(plain.cost, jumps=0.0, accesses=accesses, moved=moved)))
    return list(found.values())
