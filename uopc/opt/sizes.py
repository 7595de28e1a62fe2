"""The sizes that are worth a look for a kernel's loops, read off its nest; which is best, ``uopc.cost`` tells.

Lanes run along the output axis with the fewest scattered accesses, or along the reduced axis where memory is
consecutive there alone. Then there are register tiles of as many shapes as registers hold, several lengths of what one
iteration does, and orders of the loops that threads share. All candidates sum in blocks of the same length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from uopc.ops import Ops, Order
from uopc.rangeify import Opts
from uopc.rangeify.nest import SMALL_STEPS, Nest, trips
from uopc.target import Target
from uopc.uop import UOp, toposort

# Steps that a reduction without reuse takes at once, so that additions overlap: latency times throughput of an FMA is 4
# to 8. Of equals the first is taken.
UNROLLS = (4, 2, 8)
# Rows of a matrix that share the vector which each is multiplied by, and steps of each.
SHARED_ROWS, SHARED_UNROLLS = (4, 2, 8), (2, 1, 4)
# Iterations summed before they join the sum of blocks: the error of a sum grows with its longest chain, not with its
# length.
SUM_BLOCK = 128
# The same where lanes run along the sum: there a block costs one addition, and there are about as many blocks as steps.
LANES_SUM_BLOCK = 32
# Vectors of a row that one iteration of a plain elementwise loop computes.
ELEMENTWISE_VECTORS = (2, 1, 4)
# Vectors of a row in a reduction across rows: long enough a run for the prefetcher; with other operands, fewer.
ACROSS_VECTORS, ACROSS_VECTORS_WITH_SCALARS = (8, 4, 2), (4, 8, 2)
# Register tiles that take longer than the best by this much, by their operations, loads and edges, are not looked at.
WORTH = 1.15
# Loads of a register tile that come from the second-level cache find its bandwidth taken by others now and then; and
# more accumulators than the latency of an FMA asks for leave room for what else is issued.
L2_SHARE, SPARE = 1.25, 2.0
# An element that is picked from a vector costs so many times less than one that is read by itself.
PICKED = 4
# An iteration with less work than this does not pay for the divisions that a merged thread loop asks for.
MERGE_WORK = 512
# Enough iterations for the threads to share.
ENOUGH_TRIPS = 16


def _gathers(nest: Nest, r: UOp) -> int:
    """How many elements would be read or written one by one if lanes ran along ``r``."""
    bad = 0 if nest.store_steps.get(r) in (0, 1) else trips(x for x in nest.outputs if x is not None)
    for a in nest.loads:
        step = a.steps.get(r, 0)
        if step not in (0, 1):
            bad += trips(a.around.union(a.steps)) // (PICKED if step in SMALL_STEPS else 1)
    return bad


def _vector_axis(nest: Nest) -> int | None:
    """The output axis with the fewest scattered accesses, of equals the last; None where each has a reduction that
    must have the lanes."""
    taken = {r for u in nest.reduces if u.arg.order is Order.LANES for r in u.ranges}
    scattered = {a: _gathers(nest, r) for a, r in enumerate(nest.outputs) if r is not None and r not in taken}
    return min(reversed(scattered), key=scattered.__getitem__, default=None)


def _reduce_lanes(nest: Nest, vector: UOp | None, lanes: int) -> int:
    """Lanes along the reduced axis, if the reductions that the output's lanes do not touch read consecutive memory."""
    good = bad = 0
    for u in nest.reduces:
        if vector is not None and vector in u.ranges:
            continue
        inner = u.src[-1]
        for a in nest.loads:
            if inner in a.steps:
                if a.steps[inner] == 1:
                    good += a.times
                else:
                    bad += a.times
    return lanes if good > bad else 1


def _register_tiles(extent_b: int, extent_v: int, lanes: int, target: Target) -> list[tuple[int, int]]:
    """Rows and vectors of register tiles: those with little work for what they waste at the edges, with loads that
    arithmetic can hide, those from the second-level cache too, and with more accumulators than its latency asks for;
    the best first."""
    loads = target.fma / target.load
    from_l2 = target.fma * L2_SHARE * target.vector_bytes / target.l2.bandwidth
    latency = SPARE * target.fma * target.fma_latency

    def cost(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        waste = (-(-extent_b // rows) * rows / extent_b) * (
            -(-extent_v // (vectors * lanes)) * vectors * lanes / max(extent_v, 1)
        )
        return waste * max(rows * vectors, loads * (rows + vectors), from_l2 * vectors, latency) / (rows * vectors)

    room = target.accumulators
    costs = {
        (b, v): cost((b, v))
        for v in (4, 3, 2, 1)
        for b in (6, 8, 5, 4, 3, 2, 1)
        if b * v <= room and b <= max(extent_b, 1) and v * lanes <= max(extent_v, lanes)
    }
    least = min(costs.values())
    return sorted((t for t, c in costs.items() if c <= WORTH * least), key=lambda t: (round(costs[t], 2), -t[0] * t[1]))


def _tiles(nest: Nest, v: int, lanes: int, target: Target) -> list[dict[int, int]]:
    """Elements of each output axis that one iteration computes, several ways."""
    vector = nest.outputs[v]
    assert vector is not None
    inner = [a for a in nest.loads if a.reduced and a.steps.get(vector, 0) in SMALL_STEPS[1:]]
    scalar = [a for a in nest.loads if a.reduced and vector not in a.steps]
    if not any(vector in u.ranges for u in nest.reduces):
        square = _transposed(nest, v, lanes)
        held = max(len(nest.values), sum(vector in a.steps for a in nest.loads))
        room = [n for n in ELEMENTWISE_VECTORS if n * held <= target.vector_registers] or [1]
        return [square] if square else [{v: lanes * n} for n in room]
    # an axis that a vector load does not depend on reuses the load
    reusing = [
        b for b, r in enumerate(nest.outputs) if r is not None and b != v and any(r not in a.steps for a in inner)
    ]
    if reusing:
        b = max(reusing, key=lambda b: nest.shape[b])
        tiles = _register_tiles(nest.shape[b], nest.shape[v], lanes, target)
        return [{b: rows, v: lanes * vectors} for rows, vectors in tiles]
    most = max(nest.shape[v] // lanes, 1)
    vectors = ACROSS_VECTORS_WITH_SCALARS if scalar else ACROSS_VECTORS
    return [{v: lanes * n} for n in dict.fromkeys(min(n, most) for n in vectors)]


def _transposed(nest: Nest, v: int, lanes: int) -> dict[int, int]:
    """A square for a copy whose reads are consecutive along another axis than its writes: ``transpose`` turns it in
    registers."""
    vector = nest.outputs[v]
    assert vector is not None
    for b, r in enumerate(nest.outputs):
        if r is None or b == v:
            continue
        steps = [*(a.steps for a in nest.loads), nest.store_steps]
        if any(x.get(r) == 1 and x.get(vector) not in (0, 1, None) for x in steps):
            return {b: min(lanes, nest.shape[b]), v: lanes}
    return {}


class _Sharing:
    """What threads may share: the axes that every reduction depends on, so that nothing is computed once for each of
    their iterations."""

    def __init__(self, nest: Nest) -> None:
        self.shape = nest.shape
        outer = _outer_reduces(nest)
        self.free = [a for a, r in enumerate(nest.outputs) if r is not None and all(r in u.ranges for u in outer)]
        computed = Counter(u.ranges for u in toposort(nest.values))
        self.operations = sum(n * trips(ranges) for ranges, n in computed.items() if ranges)

    def orders(self, tiles: dict[int, int], v: int | None) -> list[tuple[int, ...]]:
        """The axes for these tiles, in orders that are worth a look, outermost first."""
        outer = [a for a in self.free if a != v]
        if v not in self.free:
            return [tuple(outer)]
        work = math.prod(tiles.values()) * self.operations // max(math.prod(self.shape), 1)
        if work < MERGE_WORK and math.prod(-(-self.shape[a] // tiles.get(a, 1)) for a in outer) >= ENOUGH_TRIPS:
            return [tuple(outer)]
        # lanes outermost: neighbouring iterations then share what depends on the lanes' axis alone, the larger operand
        batch = [a for a in outer if a not in tiles]
        rows = [a for a in outer if a in tiles]
        return [(*batch, v, *rows), (*batch, *rows, v)] if rows else [(*batch, v)]


def _outer_reduces(nest: Nest) -> list[UOp]:
    """REDUCEs that stand in no other REDUCE."""
    inside = {s for u in nest.reduces for s in toposort(u.src[0]) if s.op is Ops.REDUCE}
    return [u for u in nest.reduces if u not in inside]


def _reusing_axis(nest: Nest) -> int | None:
    """An axis that some reduced load does not depend on, if another does: rows of a matrix times one vector."""
    for b, r in enumerate(nest.outputs):
        reduced = [a for a in nest.loads if a.reduced]
        if (
            r is not None
            and nest.shape[b] >= 4
            and any(r not in a.steps for a in reduced)
            and any(r in a.steps for a in reduced)
        ):
            return b
    return None


def _prefers_reduced_axis(nest: Nest, v: int, lanes: int) -> bool:
    """Whether lanes along the output's axis would gather where lanes along the reduced axis read consecutive memory."""
    vector = nest.outputs[v]
    assert vector is not None
    touched = [u for u in nest.reduces if vector in u.ranges]
    if not touched:
        return False
    along = sum(a.times for a in nest.loads if a.reduced and a.steps.get(vector, 0) not in SMALL_STEPS)
    if nest.shape[v] < lanes // 2 and all(nest.shape[v] < u.src[-1].vmax for u in touched):
        along = max(along, 1)
    ends = {u.src[-1] for u in touched}
    if all(trips([r]) < lanes for r in ends) and nest.shape[v] >= lanes // 2:
        return False  # too short for lanes
    across = sum(a.times for a in nest.loads if a.reduced and any(a.steps.get(r, 0) not in (0, 1) for r in ends))
    return along > across


def candidates(nest: Nest, target: Target) -> Iterator[Opts]:
    """Sizes for a nest; of those that take about the same time the first is to be preferred."""
    lanes = max(1, target.vector_bytes // nest.itemsize)
    v = _vector_axis(nest)
    sums = any(u.arg.op is Ops.ADD and u.dtype.is_float for u in nest.reduces)
    block = SUM_BLOCK if sums else 0
    ordered = any(u.arg.order is not Order.ANY for u in nest.reduces)  # and bring their lanes with them
    if ordered and v is None:
        yield from _along_reduction(nest, 1, 0)
        return
    if v is not None and not ordered and _prefers_reduced_axis(nest, v, lanes):
        yield from _along_reduction(nest, _reduce_lanes(nest, None, lanes), block)
        return
    reduce_lanes = _reduce_lanes(nest, None if v is None else nest.outputs[v], lanes)
    unrolls = UNROLLS if reduce_lanes > 1 else (1,)
    if v is None:
        block = min(block, LANES_SUM_BLOCK)
        yield from (Opts((), unroll, None, None, 1, reduce_lanes, block) for unroll in unrolls)
        return
    sharing = _Sharing(nest)
    for tile in _tiles(nest, v, lanes, target):
        for unroll in unrolls:
            for threads in sharing.orders(tile, v):
                yield Opts(tile, unroll, threads or None, v, lanes, reduce_lanes, block)


def _along_reduction(nest: Nest, lanes: int, block: int) -> Iterator[Opts]:
    """Lanes along the reduced axis: for rows that share an operand, or one by one."""
    shared, sharing = _reusing_axis(nest), _Sharing(nest)
    if shared is None:
        (threads,) = sharing.orders({}, None)
        for n in UNROLLS:
            yield Opts((), n, threads or None, None, 1, lanes, min(block, LANES_SUM_BLOCK))
        return
    for rows in SHARED_ROWS:
        (threads,) = sharing.orders({shared: rows}, None)
        for n in SHARED_UNROLLS:
            yield Opts({shared: rows}, n, threads or None, None, 1, lanes, block)
