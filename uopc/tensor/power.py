"""Powers: exact by multiplication for integers and for small constant exponents, else by POW."""

from __future__ import annotations

import math

from uopc.dtype import dtypes
from uopc.ops import Ops
from uopc.tensor.core import as_dtype
from uopc.tensor.shapes import expand
from uopc.uop import UOp

# x**4 by squaring is within 2 ULP; each further squaring doubles the error.
_MOST_MULTIPLIED = 4


def power(base: UOp, exponent: UOp, python: bool = False) -> UOp:
    """``base ** exponent`` of equal dtypes and shapes.  Integer exponents must not be negative; bools are int8.

    python: the exponent is a Python number, which NumPy takes more literally than one with a dtype.
    """
    if base.dtype.is_bool:
        base, exponent = as_dtype(base, dtypes.int8), as_dtype(exponent, dtypes.int8)
    if not base.dtype.is_float:
        return by_squaring(base, exponent.arg) if exponent.op is Ops.CONST else by_bits(base, exponent)
    if exponent.op is Ops.CONST:
        return _constant_power(base, exponent, python)
    if base.op is Ops.CONST and base.arg == 2.0:
        return exponent.alu(Ops.EXP2)
    return base.alu(Ops.POW, exponent)


def _constant_power(base: UOp, exponent: UOp, python: bool) -> UOp:
    """A float to a constant power; NumPy too squares, inverts and takes roots here."""
    n = exponent.arg
    if n == 0.5:
        return base.alu(Ops.SQRT) if python or not base.dtype.is_half else _half_power(base)
    if n in (-1.0, -2.0):
        return by_squaring(base.recip(), int(-n))
    if 0 <= n <= _MOST_MULTIPLIED and n == int(n):
        return by_squaring(base, int(n))
    return base.alu(Ops.POW, exponent)


def _half_power(base: UOp) -> UOp:
    """``base ** 0.5`` as C's pow has it, which NumPy uses for a half to the power of a half: like the root, but for
    -inf, which gives inf, and -0.0, which gives 0.0.
    """
    return base.eq(-math.inf).where(UOp.const(math.inf, base.dtype), (base + 0.0).alu(Ops.SQRT))


def by_squaring(base: UOp, n: int) -> UOp:
    """``base ** n`` for a known n >= 0, in about log2(n) multiplications."""
    if n == 0:
        return expand(UOp.const(1, base.dtype), base.shape)
    result: UOp | None = None
    while True:
        if n & 1:
            result = base if result is None else result * base
        n >>= 1
        if not n:
            assert result is not None
            return result
        base = base * base


def by_bits(base: UOp, exponent: UOp) -> UOp:
    """Integer ``base ** exponent``: multiply in the square that belongs to each bit that the exponent can have."""
    bits = max(int(exponent.vmax).bit_length(), 1)
    if exponent.dtype is dtypes.uint64:  # its bound may be unknown
        bits = 64 if bits >= 63 else bits
    result = UOp.const(1, base.dtype)
    for k in range(bits):
        result = ((exponent >> k) & 1).ne(0).where(result * base, result)
        if k + 1 < bits:
            base = base * base
    return result
