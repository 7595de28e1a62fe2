"""A reduction of values each of which is a reduction itself, and is needed once for every column of the result.

``sigmoid(q @ k.T) @ v`` needs no running value to be corrected, but it too can be computed in blocks: those of the
first product stand in a tile while the second one uses them, and never in memory.  It is a cascade of one reduction.
What it costs is that each block of rows reads the operands of both products again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uopc.cascade.frame import Frame, alone
from uopc.cascade.lift import cone
from uopc.ops import Order
from uopc.rangeify.nest import trips
from uopc.rates import BYTE_TIME, CACHED, LAUNCH_TIME
from uopc.uop import UOp

# Rows of a block, which share what it reads; and steps of one, which share a load and a store of its results.
BLOCK_ROWS = 32
BLOCK_STEPS = 96


def links(frame: Frame) -> list[UOp]:
    """The reductions of which a frame's only reduction needs each value again and again; none where it needs them
    once."""
    (body,) = frame.bodies.values()
    found = [p for p in frame.producers if frame.along in _ranges(frame, p)]
    rows = frame.rows()
    columns = {r for i in body.at for r in i.ranges} - rows - {frame.along}
    return found if rows and columns else []


def _ranges(frame: Frame, producer: UOp) -> set[UOp]:
    return {r for at in frame.asked(producer) for i in at for r in i.ranges}


def refusal(frame: Frame, users: Mapping[UOp, Iterable[UOp]]) -> str | None:
    """Why the reduction of a frame with ``links`` is not a cascade of its own; ``users``: of each node of the graph."""
    (body,) = frame.bodies.values()
    inner = links(frame)
    if body.reduce.arg.order is not Order.ANY:
        return "its order is fixed, and blocks have another one"
    again, down = prices(frame)
    if again >= down:
        return "writing down what it needs again and again costs less"
    if any(len(frame.asked(p)) != 1 for p in inner):
        return "what it needs again and again is asked for at several places"
    if not _inside(body.reduce, inner, users):
        return "what it needs again and again is used elsewhere too"
    if any(len(Frame(p).members) > 1 or not alone(p) for p in inner):
        return "what it needs again and again is itself the end of reductions that depend on each other"
    return None


def _inside(reduce: UOp, inner: list[UOp], users: Mapping[UOp, Iterable[UOp]]) -> bool:
    """Whether all uses of some values end in one reduction."""
    within = {*cone(reduce.src[0]), reduce}
    stack, seen = list(inner), set(inner)
    while stack:
        u = stack.pop()
        for v in users.get(u, ()):
            if v not in within:
                return False
            if v is not reduce and v not in seen:
                seen.add(v)
                stack.append(v)
    return True


def prices(frame: Frame) -> tuple[float, float]:
    """Seconds of reading operands again for each block of rows and sums again for each block of steps, and of writing
    the values down and reading them."""
    (body,) = frame.bodies.values()
    rows = frame.rows()
    inner = links(frame)
    count = trips(rows) * frame.length
    columns = trips({r for i in body.at for r in i.ranges} - rows - {frame.along})
    depth = sum(p.src[0].shape[p.arg.axes[0]] * p.src[0].dtype.itemsize for p in inner)
    wide = columns * body.reduce.dtype.itemsize
    again = count * ((depth + wide) / BLOCK_ROWS + 2 * wide / BLOCK_STEPS) * BYTE_TIME * CACHED
    down = count * sum(p.dtype.itemsize for p in inner) * 2 * BYTE_TIME + LAUNCH_TIME
    return again, down
