"""Dots: a sum of products of bfloat16 takes two steps at once, where the machine multiplies and adds pairs of them.

A factor becomes words (PAIR) of two neighbours along the reduced axis, and the sum adds up dot products of words
(DOT2): half the iterations, and half the instructions.  A word is a value of 32 bits as any other: it is loaded whole
where its halves are neighbours in memory (``opt/words``), packed into tiles, and spread over lanes.

A factor must hold no more digits than a bfloat16: it is memory of that type, or float32 that the graph rounds to it, as
the probabilities of an attention in bfloat16.  Products are then exact, so that only the order of additions differs
from that of single steps, and that values below the normal numbers of float32 may count as 0.
"""

from __future__ import annotations

from uopc.blockize.operands import stretch
from uopc.ops import Ops, Order, ReduceArg
from uopc.rangeify import Opts
from uopc.target import Feature, Target
from uopc.uop import UOp, dtypes, toposort, unmoved

# Steps of a reduction from which on pairs pay.
LEAST_STEPS = 16


def _factor(x: UOp) -> UOp | None:
    """``x`` before it was widened or rounded, of which a PAIR is exactly its values; None where there is no such."""
    base = unmoved(x)
    if base.op is Ops.STAGE:  # a tile of it
        return _factor(x.substitute({base: base.src[0]}))
    if base.op is Ops.CAST and x.dtype is dtypes.float32 and base.src[0].dtype is dtypes.bfloat16:
        return _factor(x.substitute({base: base.src[0]}))
    if x.dtype is not dtypes.bfloat16:
        return None
    if base.op is Ops.CAST and base.src[0].dtype is dtypes.float32:
        return x.substitute({base: base.src[0]})
    return x if base.op is Ops.BUFFER else None


def factors(x: UOp) -> tuple[UOp, UOp] | None:
    """The two factors of a product, each as what a PAIR is made of; None where it is no product of bfloat16."""
    if x.op is not Ops.MUL or any(s.shape != x.shape for s in x.src):
        return None
    a, b = _factor(x.src[0]), _factor(x.src[1])
    return None if a is None or b is None else (a, b)


def pairs(x: UOp, axis: int) -> UOp:
    """Words of two neighbours along an axis, the first in the lower half; a last one without a neighbour is left
    out."""
    steps = tuple(2 if a == axis else 1 for a in range(len(x.shape)))
    even = x.shape[axis] // 2 * 2
    low, high = (UOp(Ops.STRIDE, (stretch(x, axis, first, even),), steps) for first in (0, 1))
    return UOp(Ops.PAIR, (low, high))


def dotted(u: UOp) -> UOp:
    """A REDUCE as a sum of dot products along its longest axis, and of the product that an odd axis leaves; ``u``
    itself where it is no such sum."""
    x, op, axes = u.src[0], u.arg.op, u.arg.axes
    axis = max(axes, key=lambda a: (x.shape[a], a), default=0)
    found = factors(x) if op is Ops.ADD and axes and x.shape[axis] >= LEAST_STEPS else None
    if found is None or u.arg.order is not Order.ANY:
        return u
    words = [pairs(f, axis) for f in found]
    total = UOp(Ops.REDUCE, (UOp(Ops.DOT2, (*words, UOp.const(0.0, u.dtype))),), u.arg)
    size = x.shape[axis]
    if size % 2 == 0:
        return total
    last = stretch(x, axis, size - 1, size)
    if len(axes) == 1:
        return total + UOp(Ops.RESHAPE, (last,), u.shape)
    return total + UOp(Ops.REDUCE, (last,), ReduceArg(op, axes))


def _pays(opts: Opts) -> bool:
    """Whether words are read as they lie, with lanes along the sum, or are shared: made of two loads for one use, they
    cost what they save."""
    return opts.reduce_lanes > 1 or any(a != opts.vector for a, _ in opts.upcast)


def dots(root: UOp, target: Target) -> UOp:
    """The kernel ``root`` (a SINK with sizes) with its sums of products of bfloat16 in pairs, where the machine has an
    instruction for them."""
    if not target.has(Feature.BF16_DOT) or root.arg.opts is None or not _pays(root.arg.opts):
        return root
    sums = [u for u in toposort(root) if u.op is Ops.REDUCE]
    return UOp.wrap([root], sums, dotted)[0] if sums else root
