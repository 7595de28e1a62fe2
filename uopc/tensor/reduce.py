"""Reductions over axes, and what is made of them.

``axis`` is one axis, several, or None for all; ``keepdim`` leaves reduced axes with size 1.  As in NumPy, a Tensor
without axes takes 0 and -1, small integers and bools add up in 64 bits, and NaN wins over any maximum.  Sums of halves
accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from uopc.dtype import DType, dtypes, to_dtype
from uopc.ops import Ops, ReduceArg
from uopc.tensor.arithmetic import truth
from uopc.tensor.core import as_dtype, detached
from uopc.tensor.functions import Functions
from uopc.tensor.keys import keys_of, nan_last
from uopc.tensor.shapes import Axes, Shape, along, counter, expand, many_axes, number, one_axis, reshape
from uopc.uop import UOp, unmoved, widened

if TYPE_CHECKING:
    from typing_extensions import Self


def reduce_(u: UOp, op: Ops, axes: Shape, keepdim: bool = False) -> UOp:
    """``u`` combined by ``op`` over ``axes`` (from the front, in order)."""
    made = UOp(Ops.REDUCE, (u,), ReduceArg(op, axes)) if axes else u
    return reshape(made, kept(u.shape, axes)) if keepdim else made


def kept(shape: Shape, axes: Shape) -> Shape:
    """``shape`` with 1 for each of ``axes``."""
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])


def elements_over(shape: Shape, axes: Shape) -> int:
    """How many elements are combined into one."""
    return prod([shape[a] for a in axes])


def sum_dtype(dtype: DType) -> DType:
    """The type in which NumPy sums: 64 bits for integers and bools."""
    if dtype.kind in "bi":
        return dtypes.int64
    return dtypes.uint64 if dtype.kind == "u" else dtype


def maximum_over(u: UOp, axis: int) -> UOp:
    """The maximum along one axis, kept with size 1; ValueError where there is nothing."""
    if u.shape[axis] == 0:
        raise ValueError(f"the maximum over axis {axis} of shape {u.shape} has no elements")
    return reduce_(u, Ops.MAX, (axis,), keepdim=True)


class Reduce(Functions):
    """Sums, extrema, moments, softmax."""

    __slots__ = ()

    def _reduced(self, op: Ops, axis: Axes, keepdim: bool, u: UOp | None = None) -> Self:
        u = self.uop if u is None else u
        return self._of(reduce_(u, op, many_axes(axis, len(u.shape)), keepdim))

    # ---- sums and products ----

    def sum(self, axis: Axes = None, keepdim: bool = False, dtype: Any = None) -> Self:
        """The sum; 0 of nothing.  Integers and bools give int64 or uint64 unless ``dtype`` says otherwise."""
        u = as_dtype(self.uop, sum_dtype(self.dtype) if dtype is None else to_dtype(dtype))
        return self._reduced(Ops.OR if u.dtype.is_bool else Ops.ADD, axis, keepdim, u)

    def prod(self, axis: Axes = None, keepdim: bool = False, dtype: Any = None) -> Self:
        """The product; 1 of nothing.  Types as for ``sum``."""
        u = as_dtype(self.uop, sum_dtype(self.dtype) if dtype is None else to_dtype(dtype))
        return self._reduced(Ops.AND if u.dtype.is_bool else Ops.MUL, axis, keepdim, u)

    def mean(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The mean; NaN of nothing.  Integers and bools give float64."""
        u = self._moments_of()
        axes = many_axes(axis, self.ndim)
        return self._of(as_dtype(mean_of(u, axes, keepdim), self._moment_dtype()))

    def var(self, axis: Axes = None, keepdim: bool = False, correction: int | float = 1) -> Self:
        """The variance: squared distances from the mean (two passes), divided by n - ``correction``.

        correction=1 is PyTorch's default, 0 is NumPy's.  NaN or inf where n <= correction.
        """
        u = self._moments_of()
        axes = many_axes(axis, self.ndim)
        away = u - expand(mean_of(u, axes, keepdim=True), u.shape)
        degrees = elements_over(self.shape, axes) - number(correction, "a correction")
        total = reduce_(away * away, Ops.ADD, axes, keepdim)
        return self._of(as_dtype(total / float(max(degrees, 0)), self._moment_dtype()))

    def std(self, axis: Axes = None, keepdim: bool = False, correction: int | float = 1) -> Self:
        """The square root of ``var``; its gradient is 0 where it is 0."""
        u = self._of(self._moments_of()).var(axis, keepdim, correction).uop
        root = u.alu(Ops.SQRT)
        # its gradient at 0, where the root has none, is 0, as PyTorch's
        wide = UOp(Ops.ALIAS, (root, u.eq(0.0).where(UOp.const(0.0, u.dtype), root)))
        return self._of(as_dtype(wide, self._moment_dtype()))

    def _moments_of(self) -> UOp:
        return widened(self.uop) if self.dtype.is_float else as_dtype(self.uop, dtypes.float64)

    def _moment_dtype(self) -> DType:
        return self.dtype if self.dtype.is_float else dtypes.float64

    # ---- extrema ----

    def max(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The greatest element; NaN if there is one.  ValueError for nothing."""
        return self._extremum(Ops.MAX, axis, keepdim)

    def min(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The least element; NaN if there is one.  ValueError for nothing."""
        return self._extremum(Ops.MIN, axis, keepdim)

    def _extremum(self, op: Ops, axis: Axes, keepdim: bool) -> Self:
        axes = many_axes(axis, self.ndim)
        made = reduce_(self.uop, op, axes, keepdim)
        if elements_over(self.shape, axes) == 0 and 0 not in made.shape:
            raise ValueError(f"the {op.name.lower()} over axes {axes} of shape {self.shape} has no elements")
        return self._of(made)

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The int64 position of the first maximum, or of the first NaN; in the flattened Tensor for axis None.

        ValueError for nothing.
        """
        return self._position(Ops.MAX, axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The int64 position of the first minimum, or of the first NaN, as ``argmax``."""
        return self._position(Ops.MIN, axis, keepdim)

    def _position(self, op: Ops, axis: int | None, keepdim: bool) -> Self:
        u = reshape(self.uop, (self.numel(),)) if axis is None else along(self.uop)
        at = one_axis(0 if axis is None else axis, len(u.shape))
        n = u.shape[at]
        if n == 0:
            raise ValueError(f"the arg{op.name.lower()} over axis {at} of shape {u.shape} has no elements")
        first = (_first_by_key if _has_key(u, at) else _first_by_search)(u, op, at)
        if keepdim:
            first = reshape(first, (1,) * self.ndim if axis is None else kept(self.shape, (at,)))
        return self._of(first)

    # ---- truth ----

    def any(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Whether any element is not 0 (NaN counts); False of nothing."""
        return self._reduced(Ops.OR, axis, keepdim, truth(self.uop))

    def all(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """Whether every element is not 0; True of nothing."""
        return self._reduced(Ops.AND, axis, keepdim, truth(self.uop))

    def __contains__(self, x: Any) -> bool:
        """Whether any element equals ``x``."""
        equal = self == x
        if not isinstance(equal, Reduce):
            raise TypeError(f"a Tensor does not hold a {type(x).__name__}")
        return bool(equal.any().item())

    # ---- exponentials ----

    def logsumexp(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """log(sum(exp(x))) without overflow; -inf where everything is -inf, and of nothing."""
        axes = many_axes(axis, self.ndim)
        return self._by_formula(lambda x: _logsumexp_of(x, axes, keepdim))

    def softmax(self, axis: int = -1) -> Self:
        """exp(x - max) over its sum along ``axis``; NaN where every element is -inf.  Halves compute in float32."""
        return self._along(softmax_of, axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """The logarithm of ``softmax``, computed without it."""
        return self._along(_log_softmax_of, axis)

    def _along(self, formula: Callable[[UOp, int], UOp], axis: int) -> Self:
        """A formula that keeps the shape, along one axis."""

        def in_shape(u: UOp) -> UOp:
            x = along(u)
            return reshape(formula(x, one_axis(axis, len(x.shape))), u.shape)

        return self._by_formula(in_shape)


def mean_of(u: UOp, axes: Shape, keepdim: bool) -> UOp:
    """The mean of a float graph."""
    return reduce_(u, Ops.ADD, axes, keepdim) / elements_over(u.shape, axes)


def softmax_of(x: UOp, axis: int) -> UOp:
    """The textbook softmax of a float graph along one axis (from the front); one division a row, since the sum is no
    less than 1 and its reciprocal a float.  Any shift gives the same weights, so that no gradient flows through it.
    """
    if x.shape[axis] == 0:
        return x
    weights = (x - expand(detached(maximum_over(x, axis)), x.shape)).alu(Ops.EXP)
    return weights * expand(reduce_(weights, Ops.ADD, (axis,), keepdim=True).recip(), x.shape)


def _log_softmax_of(x: UOp, axis: int) -> UOp:
    """The logarithm of ``softmax_of``, computed without it."""
    if x.shape[axis] == 0:
        return x
    away = x - expand(detached(maximum_over(x, axis)), x.shape)
    total = reduce_(away.alu(Ops.EXP), Ops.ADD, (axis,), keepdim=True)
    return away - expand(total.alu(Ops.LOG), x.shape)


def _logsumexp_of(x: UOp, axes: Shape, keepdim: bool) -> UOp:
    """The logarithm of the sum of exponentials of a float graph."""
    if elements_over(x.shape, axes) == 0:
        return reduce_(x.alu(Ops.EXP), Ops.ADD, axes, keepdim).alu(Ops.LOG)
    greatest = reduce_(x, Ops.MAX, axes, keepdim=True)
    # an infinite maximum must not meet its equal: -inf - -inf is NaN
    anchor = detached((greatest.alu(Ops.ABS) < float("inf")).where(greatest, UOp.const(0.0, x.dtype)))
    total = reduce_((x - expand(anchor, x.shape)).alu(Ops.EXP), Ops.ADD, axes, keepdim=True)
    made = total.alu(Ops.LOG) + anchor
    return made if keepdim else reshape(made, tuple([n for i, n in enumerate(x.shape) if i not in axes]))


# ---- where the greatest or least element is ----

# Positions and keys share the 64 bits of an integer.
KEY_BITS = 32


def _has_key(u: UOp, at: int) -> bool:
    """Whether one reduction finds a position with its element, packed into one integer.

    Elements of 64 bits leave no room.  A row that lies in memory is faster searched, while it is in a cache.
    """
    in_rows = unmoved(u).op is Ops.BUFFER and at == len(u.shape) - 1
    return u.dtype.itemsize * 8 <= KEY_BITS and u.shape[at] < 1 << KEY_BITS and not in_rows


def _first_by_key(u: UOp, op: Ops, at: int) -> UOp:
    """The position of the first extreme element: a key that is ordered as the elements are, above the position, of
    which the least is the greatest."""
    mask = (1 << KEY_BITS) - 1
    key = keys_of(widened(u) + 0.0 if u.dtype.is_float else u)  # -0.0 + 0.0 is 0.0, and so they are equal
    key = nan_last(key ^ -1 if op is Ops.MIN else key, u)
    words = (key.cast(dtypes.int64) << KEY_BITS) | (counter(u.shape, at, dtypes.int64) ^ mask)
    return (reduce_(words, Ops.MAX, (at,)) & mask) ^ mask


def _first_by_search(u: UOp, op: Ops, at: int) -> UOp:
    """The position of the first element that equals the extreme one, or is NaN.  A value has the same bits at both of
    its uses (``agree``, ``widen``)."""
    n = u.shape[at]
    hit = u.eq(expand(reduce_(u, op, (at,), keepdim=True), u.shape))
    if u.dtype.is_float:
        hit = hit | u.ne(u)
    # 32 bits, where they hold a position, are as wide as the masks of most elements
    narrow = dtypes.int32 if n <= 1 << 31 else dtypes.int64
    places = hit.where(counter(u.shape, at, narrow), UOp.const(n - 1, narrow))
    return as_dtype(reduce_(places, Ops.MIN, (at,)), dtypes.int64)
