"""A reduction of values each of which is a reduction itself, and is needed once for every column of the result.

``sigmoid(q @ k.T) @ v`` needs no running value to be corrected, but it too can be computed in blocks: those of the
first product stand in a tile while the second one uses them, and never in memory.  It is a cascade of one reduction.
What it costs is that each block of rows reads the operands of both products again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uopc._hot.graph import cone
from uopc.cascade.frame import Frame, Refused, Unfit
from uopc.cascade.lift import ENDS
from uopc.cascade.survey import alone
from uopc.cost import CACHED, weights
from uopc.ops import Order
from uopc.rangeify.nest import trips
from uopc.target import Target
from uopc.uop import UOp

# Rows of a block, which share what it reads; and steps of one, which share a load and a store of its results.
BLOCK_ROWS = 32
BLOCK_STEPS = 96


def links(frame: Frame) -> list[UOp]:
    """The reductions of which a frame's only reduction needs each value again and again; none where it needs them
    once."""
    (body,) = frame.bodies.values()
    found = [p for p in frame.producers if frame.along in frame.asked_along(p)]
    rows = frame.rows()
    columns = {r for i in body.at for r in i.ranges} - rows - {frame.along}
    return found if rows and columns else []


def check_chain(frame: Frame, inner: list[UOp], users: Callable[[UOp], Iterable[UOp]], target: Target) -> None:
    """Refused where the reduction of a frame with the links ``inner`` is not a cascade of its own; ``users``: of a
    node."""
    (body,) = frame.bodies.values()
    if body.reduce.arg.order is not Order.ANY:
        raise Unfit("its order is fixed, and blocks have another one")
    again, down = prices(frame, inner, target)
    if again >= down:
        raise Unfit("writing down what it needs again and again costs less")
    if any(len(frame.asked(p)) != 1 for p in inner):
        raise Unfit("what it needs again and again is asked for at several places")
    if not _inside(body.reduce, inner, users):
        raise Refused("what it needs again and again is used elsewhere too")
    if any(not alone(p) or len(Frame(p, frame.survey).members) > 1 for p in inner):
        raise Refused("what it needs again and again is itself the end of reductions that depend on each other")


def _inside(reduce: UOp, inner: list[UOp], users: Callable[[UOp], Iterable[UOp]]) -> bool:
    """Whether all uses of some values end in one reduction."""
    within = {*cone(reduce.src[0], ENDS), reduce}
    stack, seen = list(inner), set(inner)
    while stack:
        u = stack.pop()
        for v in users(u):
            if v not in within:
                return False
            if v is not reduce and v not in seen:
                seen.add(v)
                stack.append(v)
    return True


def prices(frame: Frame, inner: list[UOp], target: Target) -> tuple[float, float]:
    """Seconds of reading operands again for each block of rows and sums again for each block of steps, and of writing
    the values down and reading them."""
    (body,) = frame.bodies.values()
    rows, weigh = frame.rows(), weights(target)
    count = trips(rows) * frame.length
    columns = trips({r for i in body.at for r in i.ranges} - rows - {frame.along})
    depth = sum(p.src[0].shape[p.arg.axes[0]] * p.src[0].dtype.itemsize for p in inner)
    wide = columns * body.reduce.dtype.itemsize
    again = count * ((depth + wide) / BLOCK_ROWS + 2 * wide / BLOCK_STEPS) * weigh.byte * CACHED
    down = count * sum(p.dtype.itemsize for p in inner) * 2 * weigh.byte + weigh.kernel
    return again, down
