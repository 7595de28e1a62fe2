"""count: the work that a loop program does, counted from its loops.

In: a LINEAR program.  Out: how often each statement runs, and from that operations and bytes.  Nothing is estimated:
the numbers are what the C does.  Only where the end of a loop depends on outer loops of more than ``MAX_GRID``
iterations together, or on what stands in memory, it is taken at its largest.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from uopc.ops import ALU, COMPARE, Ops
from uopc.uop import UOp, dtypes, memory_of, ranges_in, toposort

MAX_GRID = 1 << 22
# Operations of one lane, where it is more than one.
FLOPS = {Ops.FMA: 2, Ops.DOT2: 4}

_EVALUATE: dict[Ops, Any] = {
    Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MIN: np.minimum, Ops.MAX: np.maximum, Ops.IDIV: np.floor_divide,
    Ops.MOD: np.mod, Ops.CMPLT: np.less, Ops.CMPLE: np.less_equal, Ops.CMPEQ: np.equal, Ops.CMPNE: np.not_equal,
    Ops.WHERE: np.where, Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
    Ops.SHL: np.left_shift, Ops.SHR: np.right_shift,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """flops: float operations (an FMA is two, a DOT2 four), moved: bytes of the arguments, each counted once, loads:
    elements."""

    flops: int
    moved: int
    loads: int


def evaluate(expr: UOp, at: dict[UOp, Any]) -> Any:
    """An index expression, given numbers or arrays of them for its RANGEs."""
    known = dict(at)
    for u in toposort(expr):
        if u not in known:
            sources = [known[s] for s in u.src]
            cast = u.op in (Ops.CAST, Ops.BITCAST)
            known[u] = u.arg if u.op is Ops.CONST else sources[0] if cast else _EVALUATE[u.op](*sources)
    return known[expr]


def reads_memory(expr: UOp) -> bool:
    """Whether an index expression depends on what stands in memory."""
    seen, stack = {expr}, [expr]
    while stack:
        u = stack.pop()
        if u.op is Ops.LOAD:
            return True
        fresh = [s for s in u.src if s not in seen]
        seen.update(fresh)
        stack += fresh
    return False


def iterations(loops: tuple[UOp, ...]) -> int:
    """How often the body of a loop nest, outermost first, runs."""
    told = [r for r in loops if not reads_memory(r.src[0])]
    mentioned = set(ranges_in(*(r.src[0] for r in told)))
    grid = [r for r in loops if r in mentioned]
    computable = all(u.op in _EVALUATE or u.op in (Ops.CONST, Ops.RANGE, Ops.CAST) for r in grid for u in toposort(r))
    if not computable or math.prod(r.vmax + 1 for r in grid) > MAX_GRID:
        return math.prod(r.vmax + 1 for r in loops)
    at: dict[UOp, Any] = {}
    for k, r in enumerate(grid):
        shape = [1] * len(grid)
        shape[k] = r.vmax + 1
        at[r] = np.arange(r.vmax + 1).reshape(shape)
    runs: Any = np.ones((1,) * len(grid), np.int64)
    for r in loops:
        end = evaluate(r.src[0], at) if r in told else r.vmax + 1
        runs = runs * ((at[r] < end) if r in at else np.maximum(end, 0))
    return int(runs.sum())


def times(linear: UOp) -> dict[UOp, int]:
    """How often each statement of a LINEAR program runs, and how often each of its loops begins."""
    out: dict[UOp, int] = {}
    loops: list[UOp] = []
    now = 1
    before: list[int] = []
    for u in linear.src:
        if u.op is Ops.END:
            loops.pop()
            now = before.pop()
            continue
        out[u] = now
        if u.op is Ops.RANGE:
            before.append(now)
            loops.append(u)
            constant = all(r.src[0].op is Ops.CONST for r in loops)
            now = now * max(u.src[0].arg, 0) if constant else iterations(tuple(loops))
    return out


def products(linear: UOp, slots: Collection[int]) -> int:
    """How many multiplications have an element of one of the BUFFERs ``slots``, or of a tile copied from one, for a
    factor."""
    counted = {(Ops.BUFFER, slot) for slot in slots}
    read: set[UOp] = set()
    found: list[UOp] = []
    for u in linear.src:
        if (u.op is Ops.LOAD and _place(u) in counted) or (u.op is Ops.SHUFFLE and not read.isdisjoint(u.src)):
            read.add(u)
        elif u.op is Ops.STORE and u.src[1] in read and _place(u)[0] is Ops.ALLOC:
            counted.add(_place(u))
        elif u.op in (Ops.MUL, Ops.FMA) and not read.isdisjoint(u.src):
            found.append(u)
    runs = times(linear)
    return sum(runs[u] * u.dtype.count for u in found)


def _place(u: UOp) -> tuple[Ops, int]:
    memory = memory_of(u.src[0])
    return memory.op, memory.arg.slot


def count(linear: UOp) -> Work:
    """The work of one run of a LINEAR program."""
    flops = loads = 0
    buffers: dict[UOp, None] = {}
    for u, n in times(linear).items():
        if u.op in (Ops.LOAD, Ops.STORE):
            memory = memory_of(u.src[0])
            if memory.op is Ops.BUFFER:
                buffers[memory] = None
                loads += n * u.dtype.count if u.op is Ops.LOAD else 0
        elif u.op in ALU and u.op not in COMPARE and u.op not in (Ops.CAST, Ops.BITCAST, Ops.WHERE):
            flops += n * u.dtype.count * FLOPS.get(u.op, 1) if u.dtype.is_float else 0
        elif u.op is Ops.HREDUCE and u.dtype is not dtypes.index:
            flops += n * (u.src[0].dtype.count - 1)
    moved = sum(b.dtype.itemsize * math.prod(b.arg.shape) for b in buffers)
    return Work(flops, moved, loads)
