"""invariant: every operation rounded by itself, and every sum in an order of its own, whatever the plan.

In and out: a SINK of tensor expressions.  Out, for ``batch_invariant``: the same expressions, in which

- each REDUCE of floats says in which ``Order`` it combines its terms.  It follows from the lengths of the axes reduced
  and from what stands at the last axis, never from how many results there are or from how they are computed;
- halves are computed in float32, and rounded where each operation ends: a value is then the same in a register and in
  memory.  Only a product under a sum is not rounded.

Together with a compiler that contracts nothing, a row's bits then depend on its own values and shape alone: which
values are written down, how loops are cut and where lanes run may be decided by cost, as ever.
"""

from __future__ import annotations

from uopc.dtype import dtypes
from uopc.ops import ALU, Ops, Order
from uopc.uop import UOp, toposort

# What a REDUCE may combine floats by.
_INEXACT = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN})
# What gives a half from halves without rounding.
_EXACT = frozenset({Ops.WHERE, Ops.BITCAST, Ops.CAST, Ops.ABS, Ops.MAX, Ops.MIN})


def _repeats(u: UOp, axis: int) -> bool:
    """Whether a value is the same along an axis, as its form tells."""
    while u.shape:
        if u.op is Ops.EXPAND and u.src[0].shape[axis] == 1:
            return True
        if u.op is Ops.PERMUTE:
            axis = u.arg[axis]
        elif u.op in ALU:
            return all(_repeats(s, axis) for s in u.src)
        elif u.op is not Ops.EXPAND:
            return False
        u = u.src[0]
    return True


def order_of(u: UOp) -> Order:
    """In which order a REDUCE combines.

    In lanes where its last axis is summed: terms that are neighbours in memory, most often.  But one after the other
    where it is a product with a part that all columns of the result share, as in a product of matrices: there lanes
    run along the columns.
    """
    x, axes = u.src[0], u.arg.axes
    last = len(x.shape) - 1
    if last not in axes:
        return Order.STEPS
    columns = max((a for a in range(last) if a not in axes), default=0)
    if columns and x.op is Ops.MUL and x.shape[columns] > 1 and any(_repeats(s, columns) for s in x.src):
        return Order.STEPS
    return Order.LANES


def _rounded(u: UOp, src: tuple[UOp, ...]) -> UOp:
    """An operation on halves in float32, and rounded."""
    return _wide(u, src).cast(u.dtype)


def _wide(u: UOp, src: tuple[UOp, ...]) -> UOp:
    return u.replace(src=tuple(s.cast(dtypes.float32) if s.dtype.is_half else s for s in src))


def _reduced(u: UOp, x: UOp, body: UOp) -> UOp:
    """A REDUCE with its order; of halves in float32, over ``body`` as it was before it was rounded."""
    ordered = u.replace(arg=u.arg._replace(order=order_of(u)))
    if not u.dtype.is_half:
        return ordered.replace(src=(x,))
    wide = _wide(body, body.src) if body.op is Ops.MUL else x.cast(dtypes.float32)
    return ordered.replace(src=(wide,)).cast(u.dtype)


def invariant(root: UOp) -> UOp:
    """The graph of ``root`` with the order of its reductions, and its halves rounded."""
    memo: dict[UOp, UOp] = {}
    for u in toposort(root):
        src = tuple(memo[s] for s in u.src)
        new = u if src == u.src else u.replace(src=src)
        if u.op is Ops.REDUCE and u.dtype.is_float and u.arg.op in _INEXACT and u.arg.axes:
            body = u.src[0]
            new = _reduced(u, src[0], body.replace(src=tuple(memo[s] for s in body.src)))
        elif u.op in ALU - _EXACT and u.src and u.src[-1].dtype.is_half:
            new = _rounded(u, src) if u.dtype.is_half else _wide(u, src)
        memo[u] = new
    return memo[root]
