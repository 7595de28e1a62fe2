"""Keys: elements as integers of the same order, by which they are sorted, and by which an extreme one is found."""

from __future__ import annotations

from uopc.dtype import DType, dtypes
from uopc.tensor.core import as_dtype
from uopc.uop import UOp, widened


def keys_of(u: UOp) -> UOp:
    """int32, or int64 for elements of 64 bits, in their order: -0.0 below 0.0, and NaNs at the ends, by their signs."""
    to = dtypes.int64 if u.dtype.itemsize == 8 else dtypes.int32
    if u.dtype.is_float:
        return _float_order(widened(u).bitcast(to))
    if u.dtype.kind == "u" and u.dtype.itemsize == to.itemsize:
        return u.bitcast(to) ^ to.min
    return as_dtype(u, to)


def values_of(keys: UOp, dtype: DType) -> UOp:
    """The elements that ``keys_of`` made these of."""
    if dtype.is_float:
        return as_dtype(_float_order(keys).bitcast(dtypes.float64 if dtype.itemsize == 8 else dtypes.float32), dtype)
    if dtype.kind == "u" and dtype.itemsize == keys.dtype.itemsize:
        return (keys ^ keys.dtype.min).bitcast(dtype)
    return as_dtype(keys, dtype)


def nan_last(keys: UOp, u: UOp) -> UOp:
    """The keys of ``u``, where every NaN has the greatest one."""
    return u.ne(u).where(UOp.const(keys.dtype.max, keys.dtype), keys) if u.dtype.is_float else keys


def _float_order(bits: UOp) -> UOp:
    """The bits of floats as integers ordered as they are, and back: all but the sign are turned below zero."""
    return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & bits.dtype.max)
