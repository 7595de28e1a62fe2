"""schedule: choose the sizes of a kernel's loops from its loop nest.

In: a kernel of tensor operations, ``SINK(STORE(target, body), ...)``.  Out: the same kernel (perhaps with its axes
merged into one), with ``Opts`` in its KernelInfo.

The kernel is ranged once with plain loops, and the step of every memory access along every loop is read off.  From
these alone follow the axis of the vector lanes (where memory is consecutive), the register tile (which axes reuse a
loaded value), and what the threads share.  Never looks at what the kernel is for.
"""

from __future__ import annotations

import math

from uopc.ops import AxisType, KernelInfo, Ops, ReduceArg
from uopc.rangeify import Ctx, Opts, rangeify
from uopc.rangeify.nest import Nest, analyse, trips
from uopc.runtime.device import Device
from uopc.uop import UOp, dtypes, toposort

# Accumulators that a reduction without reuse keeps, so that additions overlap: latency times throughput of an FMA is 4
# to 8.
INDEPENDENT_SUMS = 4
# Iterations summed before they join the sum of blocks: the error of a sum grows with its longest chain, not with its
# length.
SUM_BLOCK = 128
# The same where lanes run along the sum: there a block costs one addition, and there are about as many blocks as steps.
LANES_SUM_BLOCK = 32
# Vectors of a row that one iteration of a plain elementwise loop computes.
ELEMENTWISE_VECTORS = 2
# Vectors of a row in a reduction across rows: long enough a run for the prefetcher.
ACROSS_VECTORS = 8
# An iteration with less work than this does not pay for the divisions that a merged thread loop asks for.
MERGE_WORK = 512
# Enough iterations for the threads to share.
ENOUGH_TRIPS = 16


def _gathers(nest: Nest, r: UOp) -> int:
    """How many elements would be read or written one by one if lanes ran along ``r``."""
    bad = sum(a.times for a in nest.loads if r in a.steps and a.steps[r] not in (0, 1))
    return bad + (0 if nest.store_steps.get(r) in (0, 1) else trips(x for x in nest.outputs if x is not None))


def _vector_axis(nest: Nest) -> int | None:
    """The output axis with the fewest scattered accesses; of equals the last."""
    scattered = {a: _gathers(nest, r) for a, r in enumerate(nest.outputs) if r is not None}
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


def _choose_tile(extent_b: int, extent_v: int, lanes: int, registers: int) -> tuple[int, int]:
    """Rows and vectors of a register tile: least work for what it wastes at the edges, and loads that arithmetic can
    hide."""

    def cost(rows: int, vectors: int) -> float:
        waste = (-(-extent_b // rows) * rows / extent_b) * (
            -(-extent_v // (vectors * lanes)) * vectors * lanes / max(extent_v, 1)
        )
        return waste * max(rows * vectors, rows + vectors, 8) / (rows * vectors)

    room = registers - registers // 4
    options = [
        (b, v)
        for v in (4, 3, 2, 1)
        for b in (6, 8, 5, 4, 3, 2, 1)
        if b * v <= room and b <= max(extent_b, 1) and v * lanes <= max(extent_v, lanes)
    ]
    return min(options, key=lambda o: (round(cost(*o), 3), -o[0] * o[1]))


def _tile(nest: Nest, v: int, lanes: int, registers: int) -> dict[int, int]:
    """Elements of each output axis that one iteration computes."""
    vector = nest.outputs[v]
    assert vector is not None
    inner = [a for a in nest.loads if a.reduced and vector in a.steps and a.steps[vector] == 1]
    scalar = [a for a in nest.loads if a.reduced and vector not in a.steps]
    if not any(vector in u.ranges for u in nest.reduces):
        return {v: lanes * ELEMENTWISE_VECTORS, **_transposed(nest, v, lanes)}
    # an axis that a vector load does not depend on reuses the load
    reusing = [
        b for b, r in enumerate(nest.outputs) if r is not None and b != v and any(r not in a.steps for a in inner)
    ]
    if reusing:
        b = max(reusing, key=lambda b: nest.shape[b])
        rows, vectors = _choose_tile(nest.shape[b], nest.shape[v], lanes, registers)
        return {b: rows, v: lanes * vectors}
    vectors = INDEPENDENT_SUMS if scalar else ACROSS_VECTORS
    return {v: lanes * max(1, min(vectors, nest.shape[v] // lanes))}


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


def _work(nest: Nest, tile: int) -> int:
    """Simple operations of one register tile."""
    everything = sum(trips(u.ranges) for u in toposort(nest.values) if u.ranges)
    return tile * everything // max(math.prod(nest.shape), 1)


def _threads(nest: Nest, tiles: dict[int, int], v: int | None) -> tuple[int, ...]:
    """The axes that threads share: those that every reduction depends on, so that nothing is computed once for each of
    their iterations."""
    free = [a for a, r in enumerate(nest.outputs) if r is not None and all(r in u.ranges for u in _outer_reduces(nest))]
    trips = {a: -(-nest.shape[a] // tiles.get(a, 1)) for a in free}
    outer = [a for a in free if a != v]
    if v not in free:
        return tuple(outer)
    work = _work(nest, math.prod(tiles.values()))
    if math.prod(trips[a] for a in outer) >= ENOUGH_TRIPS and work < MERGE_WORK:
        return tuple(outer)
    # lanes outermost: neighbouring iterations then share what depends on the lanes' axis alone, the larger operand
    batch = [a for a in outer if a not in tiles]
    return (*batch, v, *[a for a in outer if a in tiles])


def _outer_reduces(nest: Nest) -> list[UOp]:
    """REDUCEs that stand in no other REDUCE."""
    inside = {s for u in nest.reduces for s in toposort(u.src[0]) if s.op is Ops.REDUCE}
    return [u for u in nest.reduces if u not in inside]


def _flatten(stores: list[tuple[UOp, UOp]]) -> list[tuple[UOp, UOp]] | None:
    """The kernel with all axes merged into one, if no address then needs a division."""
    shape = stores[0][1].shape
    if len([n for n in shape if n > 1]) < 2:
        return None
    count = (math.prod(shape),)
    flat = [(UOp(Ops.RESHAPE, (t,), count), UOp(Ops.RESHAPE, (b,), count)) for t, b in stores]
    ctx = Ctx(Opts())
    r = ctx.range(count[0], AxisType.LOOP)
    for pair in flat:
        for x in pair:
            if any(u.op in (Ops.IDIV, Ops.MOD) and u.dtype is dtypes.index for u in toposort(rangeify(x, (r,), ctx))):
                return None
    return flat


def _with_merged_reductions(root: UOp) -> UOp:
    """The kernel with neighbouring reduced axes as one, where no address then needs a division: one long axis fills
    lanes and blocks of a sum that two short ones do not."""
    targets = [u for u in toposort(root) if u.op is Ops.REDUCE and _merged_reduction(u) is not u]
    return UOp.wrap([root], targets, _merged_reduction)[0] if targets else root


def _merged_reduction(u: UOp) -> UOp:
    """A REDUCE with its neighbouring axes merged; itself where that does not help."""
    x, (op, axes) = u.src[0], u.arg
    shape: list[int] = []
    reduced: list[int] = []
    for a, n in enumerate(x.shape):
        if a in axes and a - 1 in axes:
            shape[-1] *= n
            continue
        reduced += [len(shape)] if a in axes else []
        shape.append(n)
    if len(shape) == len(x.shape) or 0 in x.shape:
        return u
    merged = UOp(Ops.RESHAPE, (x,), tuple(shape))
    ctx = Ctx(Opts())
    value = rangeify(merged, tuple(ctx.range(n, AxisType.LOOP) for n in shape), ctx)
    if any(v.op in (Ops.IDIV, Ops.MOD) and v.dtype is dtypes.index for v in toposort(value)):
        return u
    return UOp(Ops.REDUCE, (merged,), ReduceArg(op, tuple(reduced)))


def _stored(root: UOp) -> list[tuple[UOp, UOp]]:
    return [(s.src[0], s.src[1]) for s in root.src]


def schedule(root: UOp, machine: Device) -> UOp:
    """The kernel ``root`` with ``Opts`` in its KernelInfo, for a machine with these vectors and registers."""
    if any(u.op is Ops.CASCADE for u in toposort(root)):
        return root  # its sizes follow from its blocks
    root = _with_merged_reductions(root)
    stores = _stored(root)
    if not any(u.op is Ops.REDUCE for u in toposort(root)):
        flat = _flatten(stores)
        if flat is not None:
            root = root.replace(src=tuple(UOp(Ops.STORE, pair) for pair in flat))
            stores = flat
    return root.replace(arg=KernelInfo(root.arg.name, choose(analyse(stores), machine)))


def choose(nest: Nest, machine: Device) -> Opts:
    """The options of a nest."""
    lanes = max(1, machine.vector_bytes // nest.itemsize)
    registers = 32 if machine.vector_bytes >= 64 else 16
    v = _vector_axis(nest)
    reduce_lanes = _reduce_lanes(nest, None if v is None else nest.outputs[v], lanes)
    sums = any(u.arg.op is Ops.ADD and u.dtype.is_float for u in nest.reduces)
    block = SUM_BLOCK if sums else 0
    if v is not None and _prefers_reduced_axis(nest, v, lanes):
        rows = {a: 4 for a in [_reusing_axis(nest)] if a is not None}
        all_lanes = _reduce_lanes(nest, None, lanes)
        threads = _threads(nest, rows, None)
        block = min(block, LANES_SUM_BLOCK) if not rows else block
        return Opts(rows, INDEPENDENT_SUMS if not rows else 2, threads or None, None, 1, all_lanes, block)
    if v is None:
        block = min(block, LANES_SUM_BLOCK)
        return Opts((), INDEPENDENT_SUMS if reduce_lanes > 1 else 1, None, None, 1, reduce_lanes, block)
    tiles = _tile(nest, v, lanes, registers)
    unroll = INDEPENDENT_SUMS if reduce_lanes > 1 else 1
    return Opts(tiles, unroll, _threads(nest, tiles, v) or None, v, lanes, reduce_lanes, block)


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
    along = sum(a.times for a in nest.loads if a.reduced and a.steps.get(vector, 0) not in (0, 1))
    if nest.shape[v] < lanes // 2 and all(nest.shape[v] < u.src[-1].vmax for u in touched):
        along = max(along, 1)
    ends = {u.src[-1] for u in touched}
    across = sum(a.times for a in nest.loads if a.reduced and any(a.steps.get(r, 0) not in (0, 1) for r in ends))
    return along > across
