"""Division and remainder as NumPy defines them, on graphs of equal dtypes and shapes."""

from __future__ import annotations

from uopc.dtype import dtypes
from uopc.ops import Ops
from uopc.tensor.core import as_dtype
from uopc.uop import UOp


def true_divide(a: UOp, b: UOp) -> UOp:
    """a / b; integers and bools divide as float64."""
    if not a.dtype.is_float:
        a, b = as_dtype(a, dtypes.float64), as_dtype(b, dtypes.float64)
    return a / b


def floor_divide(a: UOp, b: UOp) -> UOp:
    """The quotient rounded towards minus infinity: what ``(a - a % b) / b`` is, snapped to a whole number."""
    if a.dtype.is_half:
        return floor_divide(a.cast(dtypes.float32), as_dtype(b, dtypes.float32)).cast(a.dtype)
    if not a.dtype.is_float:
        return a // b if not a.dtype.is_bool else as_dtype(a, dtypes.int8) // as_dtype(b, dtypes.int8)
    rest = a.alu(Ops.FMOD, b)
    quotient = (a - rest) / b
    quotient = _signs_differ(rest, b).where(quotient - 1.0, quotient)
    whole = quotient.alu(Ops.FLOOR)
    whole = (quotient - whole > 0.5).where(whole + 1.0, whole)
    # a quotient of 0 keeps the sign of a / b; dividing by 0 gives inf or NaN
    whole = quotient.eq(0.0).where(a / b * 0.0, whole)
    return b.eq(0.0).where(a / b, whole)


def remainder(a: UOp, b: UOp) -> UOp:
    """What is left after ``floor_divide``; it has the sign of ``b``, zeros too."""
    if a.dtype.is_half:
        return remainder(a.cast(dtypes.float32), as_dtype(b, dtypes.float32)).cast(a.dtype)
    if not a.dtype.is_float:
        return a % b if not a.dtype.is_bool else as_dtype(a, dtypes.int8) % as_dtype(b, dtypes.int8)
    rest = a.alu(Ops.FMOD, b)
    signed = _signs_differ(rest, b).where(rest + b, rest)
    zero = UOp.const(0.0, a.dtype)
    return rest.eq(0.0).where((b < 0.0).where(UOp.const(-0.0, a.dtype), zero), signed)


def _signs_differ(rest: UOp, b: UOp) -> UOp:
    """Where C's remainder lies on the other side of 0 than the divisor."""
    return rest.ne(0.0) & (rest < 0.0).ne(b < 0.0)
