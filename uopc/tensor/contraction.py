"""Products summed over shared axes: matmul and einsum, both as expand, multiply, reduce with the summed axes last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uopc.dtype import promote
from uopc.ops import Ops
from uopc.tensor.arithmetic import graph_of, in_type, multiply
from uopc.tensor.core import as_dtype
from uopc.tensor.creation import Creation
from uopc.tensor.einsum import Formula
from uopc.tensor.reduce import reduce_
from uopc.tensor.shapes import broadcast_shapes, expand, permute, reshape
from uopc.uop import UOp, widened

if TYPE_CHECKING:
    from typing_extensions import Self


def add_up(u: UOp, axes: tuple[int, ...]) -> UOp:
    """The sum in the dtype of ``u``, as matmul adds: integers wrap, bools "or"."""
    return reduce_(u, Ops.OR if u.dtype.is_bool else Ops.ADD, axes)


def sum_of_products(a: UOp, b: UOp, axes: tuple[int, ...]) -> UOp:
    """The sum of ``a * b`` over axes, one operation: halves are multiplied and added in float32, and rounded once."""
    return as_dtype(add_up(multiply(widened(a), widened(b)), axes), a.dtype)


def product(a: UOp, b: UOp) -> UOp:
    """The matrix product of graphs of one dtype; ValueError where the shapes do not fit."""
    old_a, old_b = a.shape, b.shape
    if not old_a or not old_b:
        raise ValueError(f"matmul of shapes {old_a} and {old_b}: each needs an axis; use * for scalars")
    rows = old_a if len(old_a) > 1 else (1, *old_a)
    columns = old_b if len(old_b) > 1 else (*old_b, 1)
    k = rows[-1]
    if k != columns[-2]:
        raise ValueError(f"matmul of shapes {old_a} and {old_b}: the inner sizes {k} and {columns[-2]} differ")
    m, n = rows[-2], columns[-1]
    batch = broadcast_shapes(rows[:-2], columns[:-2]) if rows[:-2] != columns[:-2] else rows[:-2]
    a = reshape(a, (*rows[:-1], 1, k))
    b = reshape(b, columns)
    last = len(columns)
    b = reshape(permute(b, (*range(last - 2), last - 1, last - 2)), (*columns[:-2], 1, n, k))
    whole = (*batch, m, n, k)
    out = sum_of_products(expand(a, whole), expand(b, whole), (len(whole) - 1,))
    if len(old_a) > 1 and len(old_b) > 1:
        return out
    return reshape(out, (*batch, *(() if len(old_a) == 1 else (m,)), *(() if len(old_b) == 1 else (n,))))


class Contraction(Creation):
    """Matrix products and einsum."""

    __slots__ = ()

    def __matmul__(self, x: Any) -> Self:
        """The matrix product over the last axis of this and the last but one of ``x``; further axes broadcast.

        A 1-d operand is a row on the left, a column on the right.  Types promote and stay: integers wrap, as NumPy.
        ValueError for shapes that do not fit, and for operands without axes.
        """
        return self._matmul(x, swapped=False)

    def __rmatmul__(self, x: Any) -> Self:
        return self._matmul(x, swapped=True)

    def _matmul(self, x: Any, swapped: bool) -> Any:
        a, b = self.uop, graph_of(x)
        if b is None:
            return NotImplemented
        if a.dtype is not b.dtype:
            dtype = promote(a.dtype, b.dtype)
            a, b = as_dtype(a, dtype), in_type(x, b, dtype)
        return self._of(product(b, a) if swapped else product(a, b))

    def matmul(self, x: Any) -> Self:
        """``self @ x``."""
        made = self._matmul(x, swapped=False)
        if made is NotImplemented:
            raise TypeError(f"matmul takes a Tensor or an array, not {type(x).__name__}")
        return made

    @classmethod
    def einsum(cls, formula: str, *operands: Any, optimize: bool = False) -> Self:
        """Einstein's sum, as ``np.einsum``: letters, "...", repeated letters (diagonals), with or without "->".

        Operands (at least one) promote.  They are multiplied from left to right, or with ``optimize`` in the order that
        takes the fewest operations, and a letter is summed over as soon as no other operand and no axis of the result
        needs it.  ValueError for formulas that do not fit the shapes.
        """
        graphs = [
            graph_of(x) for x in (operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands)
        ]
        if not graphs or any(g is None for g in graphs):
            raise TypeError(f"einsum({formula!r}) takes at least one Tensor or array for its operands")
        uops = [g for g in graphs if g is not None]
        dtype = uops[0].dtype
        for u in uops[1:]:
            dtype = promote(dtype, u.dtype)
        if not isinstance(formula, str):
            raise TypeError(f"einsum takes its formula as a str, such as 'ij,jk->ik', not {formula!r}")
        parsed = Formula.parse(formula, [u.shape for u in uops])
        order = parsed.cheapest_order() if optimize else parsed.left_to_right()
        return cls._of(_contract(parsed, [as_dtype(u, dtype) for u in uops], order))


def _contract(formula: Formula, uops: list[UOp], order: list[tuple[int, int]]) -> UOp:
    """Operands multiplied two at a time, summed as early as may be; the result in the formula's order."""
    parts = dict(enumerate(_diagonal(u, labels) for u, labels in zip(uops, formula.inputs)))
    if len(parts) == 1:
        parts = {0: _summed(*parts[0], set(formula.output))}
    for step, (i, j) in enumerate(order):
        (a, a_labels), (b, b_labels) = parts.pop(i), parts.pop(j)
        later = set(formula.output).union(*(labels for _, labels in parts.values()))
        a, a_labels = _summed(a, a_labels, later | set(b_labels))
        b, b_labels = _summed(b, b_labels, later | set(a_labels))
        parts[len(uops) + step] = _multiplied(formula, a, a_labels, b, b_labels, later)
    ((whole, labels),) = parts.values()
    places = tuple([labels.index(c) for c in formula.output])
    return expand(permute(whole, places), tuple([formula.sizes[c] for c in formula.output]))


def _summed(u: UOp, labels: list[str], needed: set[str]) -> tuple[UOp, list[str]]:
    """Summed over the labels that nobody needs."""
    gone = tuple([i for i, c in enumerate(labels) if c not in needed])
    return (add_up(u, gone), [c for c in labels if c in needed]) if gone else (u, labels)


def _multiplied(
    formula: Formula, a: UOp, a_labels: list[str], b: UOp, b_labels: list[str], needed: set[str]
) -> tuple[UOp, list[str]]:
    """The product of two, summed over what is not needed further; result labels come in the order of the output."""
    both = [*a_labels, *(c for c in b_labels if c not in a_labels)]
    rank = {c: i for i, c in enumerate(formula.output)}
    stay = sorted([c for c in both if c in needed], key=lambda c: rank.get(c, len(rank)))
    order = [*stay, *(c for c in both if c not in needed)]
    shape = tuple([formula.sizes[c] for c in order])
    a, b = _aligned(a, a_labels, order, shape), _aligned(b, b_labels, order, shape)
    gone = tuple(range(len(stay), len(order)))
    return (sum_of_products(a, b, gone) if gone else multiply(a, b)), stay


def _aligned(u: UOp, labels: list[str], order: list[str], shape: tuple[int, ...]) -> UOp:
    """``u`` with an axis for each label of ``order``, expanded to ``shape``."""
    u = permute(u, tuple([labels.index(c) for c in order if c in labels]))
    sizes = dict(zip([c for c in order if c in labels], u.shape))  # may be 1 where others are larger
    return expand(reshape(u, tuple([sizes.get(c, 1) for c in order])), shape)


def _diagonal(u: UOp, labels: list[str]) -> tuple[UOp, list[str]]:
    """Labels that stand twice are read along the diagonal: every (n + 1)th of n * n elements."""
    labels = list(labels)
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            i = labels.index(c)
            j = labels.index(c, i + 1)
            rest = [k for k in range(len(labels)) if k not in (i, j)]
            n, sizes = u.shape[i], tuple([u.shape[k] for k in rest])
            u = reshape(permute(u, (*rest, i, j)), (*sizes, n * n))
            u = UOp(Ops.STRIDE, (u,), (*[1] * len(rest), n + 1))
            labels = [*[labels[k] for k in rest], c]
    return u, labels
