"""A kernel seen as a loop nest: ranged once with plain loops, and the step of every memory access along every loop read
off.

``schedule`` and ``blockize`` decide by this alone, never by what the kernel is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from uopc._hot.graph import of_ops
from uopc.ops import AxisType, Ops
from uopc.rangeify import rangeify
from uopc.rangeify.context import ZERO, Ctx
from uopc.simplify import linear_in
from uopc.uop import UOp, dtypes, toposort

# Steps of an address from lane to lane at which a vector is read whole, or picked from two that are.
SMALL_STEPS = (0, 1, 2, -1)
# Computed so many times less often than others, a value may take several registers.
SELDOM = 8


@dataclass(frozen=True)
class Access:
    """One load of a kernel: how far its address moves with each loop, in elements (None: not in equal steps); how often
    it happens; whether inside a reduction, and the loops around those; the slot of its memory and the bytes of an
    element."""

    steps: dict[UOp, int | None]
    times: int
    reduced: bool
    around: frozenset[UOp]
    slot: int
    itemsize: int


@dataclass(frozen=True)
class Nest:
    """A kernel with plain loops: output ranges by axis (None where the size is 1), REDUCEs, accesses, the values
    stored, and the loops around the reductions that a node stands in."""

    shape: tuple[int, ...]
    outputs: tuple[UOp | None, ...]
    reduces: list[UOp]
    loads: list[Access]
    store_steps: dict[UOp, int | None]
    values: list[UOp]
    itemsize: int
    around: dict[UOp, frozenset[UOp]]


def trips(ranges: Iterable[UOp]) -> int:
    return math.prod(max(r.vmax + 1, 1) for r in ranges)


def _steps(access: UOp) -> dict[UOp, int | None]:
    """How far the address of a LOAD or STORE moves with each loop; a mask that moves where the address does not makes
    of one element as many."""
    address = access.src[0].src[1]
    masks = [r for mask in access.src[1:] if access.op is Ops.LOAD for r in mask.ranges]
    out: dict[UOp, int | None] = {r: None for r in masks if r not in address.ranges}
    for r in address.ranges:
        found = linear_in(address, r)
        out[r] = None if found is None else found[1]
    return out


def _around(reduces: list[UOp], mine: set[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For what stands in reductions, the loops around those: the output's (``mine``), and those of a reduction around
    the one that it moves with."""
    around: dict[UOp, frozenset[UOp]] = {}
    for u in reduces:
        every, own = frozenset(u.ranges), set(u.src[1:])
        outside = mine & every
        for s in toposort(u.src[0]):
            if s.ranges:
                loops = every if every - outside and not own.isdisjoint(s.ranges) else outside
                around[s] = around.get(s, frozenset()) | loops
    return around


@lru_cache(maxsize=1)  # ``blockize`` asks for what ``schedule`` just asked for
def analyse(stores: tuple[UOp, ...]) -> Nest:
    """The nest of a kernel of these STOREs, ranged with one plain loop for each axis."""
    ctx = Ctx()
    shape = stores[0].src[1].shape
    outputs = tuple(ctx.range(n, AxisType.LOOP) if n > 1 else None for n in shape)
    idx = tuple(ZERO if r is None else r for r in outputs)
    values = [rangeify(s.src[1], idx, ctx) for s in stores]
    order = toposort(values)
    mine = {r for r in outputs if r is not None}
    reduces = [u for u in order if u.op is Ops.REDUCE]
    around = _around(reduces, mine)
    loads = []
    for u in order:
        if u.op is Ops.LOAD:
            ranges, memory = u.ranges, u.src[0].src[0]
            reduced, loops = bool(set(ranges) - mine), around.get(u, frozenset())
            loads.append(Access(_steps(u), trips(ranges), reduced, loops, memory.arg.slot, u.dtype.itemsize))
    place = rangeify(stores[0].src[0], idx, ctx)
    return Nest(shape, outputs, reduces, loads, _steps(place), values, _itemsize(order), around)


def _itemsize(order: list[UOp]) -> int:
    """Bytes of the widest value among those that are computed most often: a result may be wider."""
    runs = {ranges: trips(ranges) for ranges in {u.ranges for u in order}}
    most = max(runs.values(), default=1)
    return max((_register_size(u) for u in order if runs[u.ranges] * SELDOM > most), default=1)


def _register_size(u: UOp) -> int:
    """Bytes of a value in a register: halves are computed as float32, and masks take the width of their neighbours."""
    if u.dtype.is_bool or u.dtype in (dtypes.index, dtypes.void):
        return 1
    return 4 if u.dtype.is_half else u.dtype.itemsize


def statements(linear: UOp, *ops: Ops) -> Iterator[tuple[UOp, tuple[UOp, ...]]]:
    """Each statement of a LINEAR list, or each of these ops, with the loops around it, outermost first."""
    loops: tuple[UOp, ...] = ()
    for u in of_ops(linear.src, Ops.RANGE, Ops.END, *ops) if ops else linear.src:
        if u.op is Ops.RANGE:
            loops = (*loops, u)
        elif u.op is Ops.END:
            loops = loops[:-1]
        else:
            yield u, loops
