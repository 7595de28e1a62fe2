"""Floats taken apart and put together by their bits, float32 and float64: what the functions of this package share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from uopc.dtype import DType, dtypes
from uopc.ops import Ops
from uopc.uop import UOp

SIGNED = {4: dtypes.int32, 8: dtypes.int64}
MANTISSA_BITS = {4: 23, 8: 52}

# 1.5 * 2^23: adding it to a float32 below 2^22 in magnitude rounds to an integer, left in the low bits of the sum.
# Only -ffast-math may fold `(x + MAGIC) - MAGIC`, and nothing here is compiled with that.
MAGIC = 12582912.0


def width(x: UOp) -> int:
    """Bytes of one element."""
    return x.dtype.scalar().itemsize


def bits(x: UOp) -> UOp:
    """The bits of floats as signed integers of the same width."""
    return x.bitcast(SIGNED[width(x)])


def from_bits(x: UOp, dtype: DType = dtypes.float32) -> UOp:
    """The floats with the bits ``x``."""
    return x.bitcast(dtype.scalar())


def sign_bit(x: UOp) -> UOp:
    """The bits of a zero with the sign of ``x``."""
    return bits(x) & (1 << (8 * width(x) - 1))


def magnitude(x: UOp) -> UOp:
    """``|x|``, of NaN too."""
    return from_bits(bits(x) & ((1 << (8 * width(x) - 1)) - 1), x.dtype)


def with_sign(x: UOp, sign: UOp) -> UOp:
    """``x``, which is not negative, with the sign that ``sign_bit`` took elsewhere."""
    return from_bits(bits(x) | sign, x.dtype)


def minus(a: UOp, b: UOp) -> UOp:
    """``a - b``.  An operator does the same to two UOps; with a number it would leave ``number * -1`` in the graph."""
    return a + b * -1


def fma(a: UOp, b: UOp | float, c: UOp | float) -> UOp:
    """``a * b + c``, rounded once where the processor can."""
    scalar = a.dtype.scalar()
    b, c = (v if isinstance(v, UOp) else UOp.const(v, scalar) for v in (b, c))
    return UOp(Ops.FMA, (a, b, c))


def clamp(x: UOp, low: float, high: float) -> UOp:
    """``x`` kept between the bounds; NaN stays."""
    return x.maximum(low).minimum(high)


def horner(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The polynomial in ``x`` with the highest coefficient first."""
    result: UOp | None = None
    for c in coefficients:
        result = UOp.const(c, x.dtype.scalar()) if result is None else fma(result, x, c)
    assert result is not None
    return result


def ldexp(x: UOp, n: UOp) -> UOp:
    """``x * 2^floor(n)`` for ``|n| <= 254``, rounded once; NaN in ``x`` stays."""
    return UOp(Ops.LDEXP, (x, n))


def lookup(table: tuple[float, ...], index: UOp) -> UOp:
    """The float32 that a table of 16 holds at the low four bits of int32s: one permutation where it fits a register."""
    return UOp(Ops.LOOKUP, (index,), _float32s(table), dtypes.float32.vec(index.dtype.count))


@lru_cache(maxsize=64)
def _float32s(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(dtypes.float32.convert(v) for v in values)


def select(condition: UOp, a: UOp | float, b: UOp | float, like: UOp) -> UOp:
    """``a`` where the condition holds, else ``b``; numbers become constants of the type of ``like``."""
    scalar = like.dtype.scalar()
    a, b = (v if isinstance(v, UOp) else UOp.const(v, scalar) for v in (a, b))
    return UOp(Ops.WHERE, (condition, a, b))
