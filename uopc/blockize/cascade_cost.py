"""What a cascade in blocks takes.

Its operations are the same for all sizes of a block. Not so: loads that the vectors of a block share, corrections once
a block, tiles that outgrow the first-level cache, and what threads have to share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from uopc.blockize.sizes import Sizes
from uopc.cost import USABLE, Cost, operations
from uopc.ops import Ops
from uopc.rangeify.nest import trips
from uopc.target import Target
from uopc.uop import UOp, toposort

# How often an element of a tile is stored or loaded: written, read for a reduction, and for the next value.
TILE_ACCESSES = 3


@dataclass(frozen=True)
class Shape:
    """A cascade to be priced.

    reductions: op and ranged body of each, running values taken as given.  step, row: the ranges along the reduced axis
    and along the lanes.  shared: the extents of the output axes that threads share.  size: rows in all.  tiles: of rows
    by steps in a block.
    """

    reductions: list[tuple[Ops, UOp]]
    step: UOp
    row: UOp | None
    shared: list[int]
    size: int
    tiles: int
    itemsize: int


def cascade_cost(shape: Shape, sizes: Sizes, target: Target) -> Cost:
    """The cost with blocks of these sizes."""
    vectors = max(sizes.rows // sizes.lanes, 1) if shape.row is not None else 1
    blocks = -(-shape.size // sizes.rows)
    edges = blocks * sizes.rows / shape.size  # the last block begins early
    values = [value for _, value in shape.reductions]
    work = sum(weight * _vectors(u, shape.row, sizes) for u, weight in operations(values, target))
    accesses = moved = 0.0
    for u in toposort(values):
        if u.op is Ops.REDUCE:
            accesses += _vectors(u.src[0], shape.row, sizes) * (1 / vectors + 1 / sizes.tile_steps)
    length = shape.step.vmax + 1
    for op, value in shape.reductions:
        each = _vectors(value, shape.row, sizes)
        own = [r for r in value.ranges if r is not shape.step and r is not shape.row and r.vmax + 1 not in shape.shared]
        columns = max((r.vmax + 1 for r in own), default=1)
        work += each * (target.maximum if op in (Ops.MAX, Ops.MIN) else 1.0)
        accesses += each * (1 / vectors + 1 / sizes.tile_columns(columns)) if own else each
        accesses += TILE_ACCESSES * each / sizes.steps  # running values, loaded, corrected and stored
    batches = math.prod(shape.shared) / shape.size
    held = shape.tiles * sizes.rows * sizes.steps * shape.itemsize
    tiles = batches * shape.size * length * shape.tiles * TILE_ACCESSES
    accesses += tiles / sizes.lanes
    if held > target.l1.size:
        moved += tiles * shape.itemsize
    read = batches * _beside(values, shape) * blocks  # once for each block of rows
    level = "L2" if read / (batches * blocks) <= target.l2.size * USABLE else "L3"
    levels = {"L2": moved, "L3": 0.0, "memory": 0.0}
    levels[level] += read
    return Cost(work * edges, accesses * edges, moved=levels, tasks=max(int(batches * blocks), 1))


def _vectors(u: UOp, row: UOp | None, sizes: Sizes) -> float:
    """How many vectors of a value are computed in all."""
    return trips(u.ranges) / (sizes.lanes if row is None or row in u.ranges else 1)


def _beside(values: list[UOp], shape: Shape) -> float:
    """Bytes that a block of rows reads, apart from its own rows."""
    loads = [u for u in toposort(values) if u.op is Ops.LOAD and shape.row not in u.ranges]
    return float(sum(trips(r for r in u.ranges if r.vmax + 1 not in shape.shared) * u.dtype.itemsize for u in loads))
