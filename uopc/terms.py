"""terms: where a value is rounded, and in which order the terms of a reduction are combined.

Contraction.  Every pass that adds up terms of a REDUCE asks here: copies in registers (``expand``), segments of an axis
(``rangeify``), steps of a loop (``accumulate``).  A sum takes a product that is one of its terms as it is, unrounded:
it becomes an FMA, and a dot product of pairs starts at the other side.  Nothing else in a program is contracted, and
the C compiler contracts nothing, so that a value has the same bits wherever it is computed.

Order.  Where a sum must come out the same from several loop nests, it has an ``Order``, which ``ordered`` gives it.

Halves.  ``rounds_half`` says which operations ``widen`` must round, and the verifier finds none that it left.
"""

from __future__ import annotations

from uopc.ops import ALU, COMPARE, Ops, Order
from uopc.uop import UOp

# Of these reductions of floats the order shows: in the last digits, and of a maximum in which NaN comes out.
ORDER_SHOWS = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN})

# Operations whose result is a half without rounding, given halves.
EXACT_ON_HALVES = COMPARE | frozenset(
    {Ops.WHERE, Ops.BITCAST, Ops.CAST, Ops.ABS, Ops.MAX, Ops.MIN, Ops.FLOOR, Ops.CEIL, Ops.ROUND, Ops.TRUNC}
)


def combined(op: Ops, total: UOp, term: UOp) -> UOp:
    """``total op term``, both results of one reduction by ``op``."""
    if op is not Ops.ADD or not total.dtype.is_float:
        return total.alu(op, term)
    if _is_product(term):
        return contracted(term, total)
    if _is_product(total):
        return contracted(total, term)
    return total.alu(op, term)


def _is_product(u: UOp) -> bool:
    """A MUL, or a dot product that begins at 0."""
    return u.op is Ops.MUL or (u.op is Ops.DOT2 and u.src[2].op is Ops.CONST and u.src[2].arg == 0)


def contracted(product: UOp, addend: UOp) -> UOp:
    """A product and what it is added to, rounded once (by DOT2: once a product)."""
    return UOp(Ops.DOT2 if product.op is Ops.DOT2 else Ops.FMA, (*product.src[:2], addend))


def _is_invariant(u: UOp, axis: int) -> bool:
    """Whether a value is the same along an axis, as its form tells."""
    while u.shape:
        if u.op is Ops.EXPAND and u.src[0].shape[axis] == 1:
            return True
        if u.op is Ops.PERMUTE:
            axis = u.arg[axis]
        elif u.op in ALU:
            return all(_is_invariant(s, axis) for s in u.src)
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
    if columns and x.op is Ops.MUL and x.shape[columns] > 1 and any(_is_invariant(s, columns) for s in x.src):
        return Order.STEPS
    return Order.LANES


def is_reassociable(u: UOp) -> bool:
    """Whether a node is a sum or product of floats whose order, which shows in its last digits, is still free."""
    return (
        u.op is Ops.REDUCE
        and u.dtype.is_float
        and u.arg.op in (Ops.ADD, Ops.MUL)
        and bool(u.arg.axes)
        and u.arg.order is Order.ANY
    )


def ordered(u: UOp) -> UOp:
    """A REDUCE with its order, if it matters."""
    if not u.dtype.is_float or u.arg.op not in ORDER_SHOWS or not u.arg.axes:
        return u
    return u.replace(arg=u.arg._replace(order=order_of(u)))


def rounds_half(u: UOp) -> bool:
    """Whether a node is an operation on halves whose result need not be a half."""
    if not u.dtype.is_half:
        return False
    if u.op is Ops.REDUCE:
        return u.arg.op in (Ops.ADD, Ops.MUL) and bool(u.arg.axes)
    if u.op not in ALU or u.op in EXACT_ON_HALVES or not u.src[-1].dtype.is_half:
        return False
    negated = u.op is Ops.MUL and u.src[1].op is Ops.CONST and u.src[1].arg in (1, -1)
    return not negated
