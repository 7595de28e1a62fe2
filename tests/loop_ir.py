"""Words for loop programs in tests, and their skeleton: what is left of a LINEAR list without names and arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from uopc.dtype import DType
from uopc.pipeline import to_linear
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.uop import AxisType, Ops, ParamArg, ReduceArg, UOp, dtypes, range_, sink

F32 = dtypes.float32


def buffer(slot: int, *shape: int, dtype: DType = F32) -> UOp:
    """A parameter."""
    return UOp(Ops.BUFFER, (), ParamArg(slot, dtype, shape))


def alloc(slot: int, *shape: int, dtype: DType = F32) -> UOp:
    """Memory of a thread."""
    return UOp(Ops.ALLOC, (), ParamArg(slot, dtype, shape))


def vector(memory: UOp, at: UOp | int, lanes: int) -> UOp:
    """So many elements in a row."""
    start = at if isinstance(at, UOp) else UOp.const(at)
    return UOp(Ops.INDEX, (memory, start), None, memory.dtype.vec(lanes))


def reduce(op: Ops, x: UOp, *loops: UOp) -> UOp:
    """A REDUCE over loops."""
    return UOp(Ops.REDUCE, (x, *loops), ReduceArg(op, ()))


def run(program: UOp, *arrays: Any, outputs: Sequence[int] = (0,)) -> None:
    """Render, compile and call."""
    Program(render_c(program, "kernel"), "kernel", outputs=outputs)(*arrays)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array for results, filled with what no test expects."""
    return np.full(shape, 77, dtype)


def skeleton(linear: UOp) -> str:
    """Loops with their kinds and extents, and in each the loads and stores by memory and width.

    Cells of accumulators count together, and so do tiles; names, addresses and arithmetic are left out.
    """
    return "\n".join(_skeleton(linear)) + "\n"


def _skeleton(linear: UOp) -> Iterator[str]:
    bodies: list[list[str]] = [[]]
    counts: list[Counter[str]] = [Counter()]
    for u in linear.src:
        depth = len(bodies) - 1
        if u.op is Ops.RANGE:
            end = str(u.src[0].arg) if u.src[0].op is Ops.CONST else f"an expression, at most {u.vmax + 1}"
            bodies[-1] += _accesses(counts[-1], depth)
            bodies[-1].append("  " * depth + f"{u.arg.axis_type.name} {end}")
            bodies.append([])
            counts[-1] = Counter()
            counts.append(Counter())
        elif u.op is Ops.END:
            body = bodies.pop() + _accesses(counts.pop(), depth)
            bodies[-1] += body
        elif u.op in (Ops.LOAD, Ops.STORE):
            counts[-1][_access(u)] += 1
    yield from bodies[0] + _accesses(counts[0], 0)


def _accesses(counts: Counter[str], depth: int) -> list[str]:
    return ["  " * depth + f"{what} * {n}" for what, n in sorted(counts.items())]


def _access(u: UOp) -> str:
    memory = u.src[0]
    while memory.op in (Ops.INDEX, Ops.AFTER):
        memory = memory.src[0]
    cell = "cell" if memory.arg.shape in ((), (1,)) else "tile"
    name = f"d{memory.arg.slot}" if memory.op is Ops.BUFFER else cell
    width = max(u.src[0].dtype.count, u.src[0].src[1].dtype.count)
    return f"{u.op.name.lower()} {name} {u.src[0].dtype.scalar().name}{f'x{width}' if width > 1 else ''}"


__all__ = [
    "F32",
    "AxisType",
    "Ops",
    "UOp",
    "alloc",
    "buffer",
    "dtypes",
    "range_",
    "reduce",
    "run",
    "sink",
    "skeleton",
    "to_linear",
    "vector",
    "zeros",
]
