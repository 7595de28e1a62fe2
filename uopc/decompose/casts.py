"""Conversions between numbers: C's, with what C leaves undefined made definite."""

from __future__ import annotations

from uopc.decompose.floatbits import select
from uopc.dtype import DType, dtypes
from uopc.uop import UOp


def cast(x: UOp, dtype: DType) -> UOp:
    """``x`` as ``dtype``; of the halves only float16, from and to float32.

    bool is ``x != 0``.  A float goes to an integer towards zero.  Where that does not fit, and for NaN, the result is
    what x86-64 gives: by way of int32 for 8 and 16 bits, of int64 for uint32; an intermediate that does not fit is
    its least value, and is cut to the bits of the result.
    """
    target, source = dtype.scalar(), x.dtype.scalar()
    if target is source:
        return x
    if target.is_bool:
        return x.ne(0.0 if source.is_float else 0)
    if source.is_float and target.is_int:
        return _to_integer(x, target)
    return x.cast(target)


def _to_integer(x: UOp, target: DType) -> UOp:
    if target is dtypes.uint64:
        high = x >= 2.0**63
        low = _to_signed(x + select(high, -(2.0**63), 0.0, x), dtypes.int64)
        return low.cast(target) ^ select(high, 1 << 63, 0, low.cast(target))
    middle = dtypes.int64 if target in (dtypes.uint32, dtypes.int64, dtypes.index) else dtypes.int32
    return _to_signed(x, middle).cast(target)


def _to_signed(x: UOp, target: DType) -> UOp:
    """Towards zero; the least value for NaN and all that does not fit."""
    least = -(2.0 ** (8 * target.itemsize - 1))
    return select(x < -least, x, least, x).maximum(least).cast(target)
