"""count: the work that a loop program does, counted from its loops.

In: a LINEAR program.  Out: how often each statement runs, and from that operations and bytes.  Nothing is estimated: the numbers are what
the C does, with the end of a loop that depends on an outer one taken at its largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from uopc.ops import ALU, COMPARE, Ops
from uopc.uop import UOp, dtypes


@dataclass(frozen=True)
class Work:
    """flops: float operations (an FMA is two), moved: bytes of the arguments, each counted once, loads: elements read."""

    flops: int
    moved: int
    loads: int


def times(linear: UOp) -> dict[UOp, int]:
    """How often each statement of a LINEAR program runs."""
    out: dict[UOp, int] = {}
    now, stack = 1, []
    for u in linear.src:
        if u.op is Ops.RANGE:
            out[u] = now
            stack.append(now)
            now *= max(u.vmax + 1, 0) if u.src[0].op is not Ops.CONST else u.src[0].arg
        elif u.op is Ops.END:
            now = stack.pop()
        else:
            out[u] = now
    return out


def _address(u: UOp) -> UOp:
    while u.op in (Ops.AFTER, Ops.INDEX):
        u = u.src[0]
    return u


def count(linear: UOp) -> Work:
    """The work of one run of a LINEAR program."""
    flops = loads = 0
    buffers: dict[UOp, None] = {}
    for u, n in times(linear).items():
        if u.op in (Ops.LOAD, Ops.STORE):
            memory = _address(u.src[0])
            if memory.op is Ops.BUFFER:
                buffers[memory] = None
                loads += n * u.dtype.count if u.op is Ops.LOAD else 0
        elif u.op in ALU and u.op not in COMPARE and u.op not in (Ops.CAST, Ops.BITCAST, Ops.WHERE) and u.dtype.is_float:
            flops += n * u.dtype.count
        elif u.op is Ops.HREDUCE and u.dtype is not dtypes.index:
            flops += n * (u.src[0].dtype.count - 1)
    moved = sum(b.dtype.itemsize * math.prod(b.arg.shape) for b in buffers)
    return Work(flops, moved, loads)
