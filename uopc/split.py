"""split: a large reduction to few results becomes two, the first of fixed parts that threads share.

In and out: a SINK of tensor expressions.  Out: the same, where each such REDUCE is one of
partial results, each below a STAGE.  How many parts there are follows from the length alone, so that any number of
threads gives the same bits.
"""

from __future__ import annotations

import math

from uopc.ops import Level, Ops, Order
from uopc.uop import UOp, toposort, widened

# A reduction of at least so many elements to few results is done in parts, so that all threads take part.
SPLIT_ELEMENTS = 1 << 17
SPLIT_PART = 1 << 15
SPLIT_MAX_PARTS = 256


def _parts(u: UOp) -> int:
    x, axes = u.src[0], u.arg.axes
    count = math.prod(x.shape[a] for a in axes)
    results = math.prod(u.shape)
    if count < SPLIT_ELEMENTS or results == 0:
        return 1
    if results >= SPLIT_MAX_PARTS and u.arg.order is Order.ANY:  # a fixed order asks for the length alone
        return 1
    return min(SPLIT_MAX_PARTS, count // SPLIT_PART, x.shape[axes[0]])


def _in_parts(u: UOp) -> UOp:
    """The first reduced axis in equal parts, and what is left over by itself; parts of halves are float32."""
    if u.dtype.is_half:
        return _in_parts(u.replace(src=(widened(u.src[0]),))).cast(u.dtype)
    x, axes = u.src[0], u.arg.axes
    parts = _parts(u)
    axis = axes[0]
    size = x.shape[axis]
    each = size // parts
    whole = _slice(x, axis, 0, parts * each)
    shape = (*x.shape[:axis], parts, each, *x.shape[axis + 1 :])
    moved = UOp(Ops.RESHAPE, (whole,), shape)
    inner = tuple(a + 1 if a >= axis else a for a in axes)
    partial = UOp(Ops.STAGE, (UOp(Ops.REDUCE, (moved,), u.arg._replace(axes=inner)),), Level.KERNEL)
    place = axis - sum(a < axis for a in axes)
    total = UOp(Ops.REDUCE, (partial,), u.arg._replace(axes=(place,)))
    if parts * each == size:
        return total
    rest = UOp(Ops.REDUCE, (_slice(x, axis, parts * each, size),), u.arg)
    return total.alu(u.arg.op, rest)


def _slice(x: UOp, axis: int, first: int, last: int) -> UOp:
    bounds = tuple((first, last) if a == axis else (0, n) for a, n in enumerate(x.shape))
    return x if first == 0 and last == x.shape[axis] else UOp(Ops.SHRINK, (x,), bounds)


def split(root: UOp) -> UOp:
    """The graph of ``root`` with its large reductions in two steps."""
    targets = [u for u in toposort(root) if u.op is Ops.REDUCE and _parts(u) > 1]
    return UOp.wrap([root], targets, _in_parts)[0] if targets else root
