"""log, log2 and log1p in float32.

x = 2^e * m with 2/3 <= m < 4/3, so that x near 1 has e = 0 and the logarithm of f = m - 1 keeps its relative precision.
"""

from __future__ import annotations

import math

from uopc.decompose.exponential import TINY_SQUARE
from uopc.decompose.floatbits import bits, fma, from_bits, horner, minus, select
from uopc.dtype import dtypes
from uopc.uop import UOp

LN2 = 0.693147182
TWO_THIRDS = 0x3F2AAAAB  # the bits of the smallest m
EXPONENT = 0xFF800000
SMALLEST_NORMAL = 2.0**-126

# (log(1+f) - f) / f^2 (N. Juffa), even and odd parts of the two highest pairs first
LOG_PAIRS = ((-0.130310059, 0.140869141), (-0.121483728, 0.139814854))
LOG = (-0.166846052, 0.200120345, -0.249996200, 0.333331972, -0.5)
# log2(1+f) = f*LOG2_E + f*LOG2_E_LOW + f^2 * p(f)
LOG2_E, LOG2_E_LOW = 1.4426950216293335, 1.92596299e-8
LOG2 = (
    -0.18543929,
    0.20159537,
    -0.17593992,
    0.20209831,
    -0.24063241,
    0.2886865,
    -0.36067152,
    0.4808967,
    -0.7213475,
)


def split(x: UOp) -> tuple[UOp, UOp]:
    """(e, m) of positive finite x as floats: x = 2^e * m, denormals too."""
    tiny = x < SMALLEST_NORMAL
    e, m = split_normal(select(tiny, x * 2.0**23, x, x))
    return e + select(tiny, -23.0, 0.0, x), m


def split_normal(x: UOp) -> tuple[UOp, UOp]:
    """(e, m) of positive normal x."""
    raw = bits(x)
    e = exponent(raw)
    return e.cast(dtypes.float32) * 2.0**-23, from_bits(minus(raw, e))


def exponent(raw: UOp) -> UOp:
    """e shifted to where a float has its exponent: raw - e are the bits of m."""
    return (raw + -TWO_THIRDS) & EXPONENT


def _natural(e: UOp, f: UOp) -> UOp:
    """e*ln2 + log(1+f)."""
    square = f * f
    (a, b), (c, d) = LOG_PAIRS
    p = fma(fma(f, a, b), square, fma(f, c, d))
    for k in LOG:
        p = fma(p, f, k)
    return fma(e, LN2, fma(p, square, f))


def _special(x: UOp, pole: float, result: UOp) -> UOp:
    """``result`` where x lies between the pole and inf; -inf at the pole, NaN below; inf and NaN stay."""
    below = select(x.eq(pole), -math.inf, math.nan, x)
    return select(x > pole, select(x < math.inf, result, x, x), below, x)


def log(x: UOp) -> UOp:
    """The natural logarithm, 1 ULP."""
    e, m = split(x)
    return _special(x, 0.0, _natural(e, m + -1.0))


def log2(x: UOp) -> UOp:
    """The binary logarithm, 2 ULP; exact for powers of two."""
    e, m = split(x)
    f = m + -1.0
    tail = fma(horner(f, LOG2), f * f, f * LOG2_E_LOW)
    return _special(x, 0.0, fma(f, LOG2_E, tail) + e)


def log1p(x: UOp) -> UOp:
    """log(1+x), 2 ULP: e of the rounded 1+x, and f = x*2^-e + (2^-e - 1), which loses nothing that would show."""
    e = exponent(bits(x + 1.0))
    f = from_bits(minus(bits(x), e))  # x * 2^-e; for x near 0, where bits could not say this, e is 0
    scale = from_bits(minus(UOp.const(0x40800000, dtypes.int32), e))  # 4 * 2^-e, a normal float for every e
    f = f + fma(scale, 0.25, -1.0)
    result = _natural(e.cast(dtypes.float32) * 2.0**-23, f)
    return select(x * x < TINY_SQUARE, x, _special(x, -1.0, result), x)
