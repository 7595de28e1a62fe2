"""pow in float32: 2^(y log2 x), the logarithm and the product in float64, the power in float32.

All comparisons are made in 32-bit lanes.  Signs, zeros, infinities and NaN as C99, annex F.
"""

from __future__ import annotations

import math

from uopc.decompose.exponential import EXP2_RANGE, exp2_scaled, multiple
from uopc.decompose.floatbits import bits, clamp, fma, from_bits, horner, magnitude, minus, select, sign_bit
from uopc.decompose.logarithm import split
from uopc.dtype import dtypes
from uopc.uop import UOp

FLOAT_MAX = float.fromhex("0x1.fffffep+127")
# log2(m) / s in s^2, where s = (m-1)/(m+1) and 2/3 <= m <= 4/3: 2^-42
LOG2 = tuple(
    map(
        float.fromhex,
        (
            "0x1.29c70b529840cp-2",
            "0x1.46f370b008ca8p-2",
            "0x1.a61e97e669c4dp-2",
            "0x1.2776bc5950834p-1",
            "0x1.ec709dcb4e909p-1",
            "0x1.71547652b7e9cp+1",
        ),
    )
)


def pow(x: UOp, y: UOp) -> UOp:
    """x to the power y, 2 ULP."""
    t = magnitude(x)
    value = _magnitude(t, y)
    # integers from 2^24 on are even, and so stands for them
    low = select(magnitude(y) < 2.0**24, y, 2.0**24, y)
    whole = low.cast(dtypes.int32)
    no_integer = whole.cast(dtypes.float32).ne(low)
    value = from_bits(bits(value) | select(no_integer, 0, sign_bit(x) & (whole << 31), whole))
    undefined = (x < 0.0) & no_integer & (t < math.inf)
    value = select(undefined, math.nan, value, x)
    return select(x.eq(1.0) | y.eq(0.0), 1.0, value, x)


def _magnitude(t: UOp, y: UOp) -> UOp:
    """t^y for t >= 0."""
    e, m = split(t)
    e = select(t < math.inf, e, t, t)  # inf and NaN stand for their own logarithms
    e = select(t.eq(0.0), -math.inf, e, t)
    m = m.cast(dtypes.float64)
    s = (m + -1.0) / (m + 1.0)
    log2 = fma(horner(s * s, LOG2), s, e.cast(dtypes.float64))
    # a finite y makes (-1)^inf what it is for every large even number, and leaves 0 * inf to nobody else
    exponent = log2 * clamp(y, -FLOAT_MAX, FLOAT_MAX).cast(dtypes.float64)
    n, sixteenths = multiple(clamp(exponent.cast(dtypes.float32), *EXP2_RANGE))
    rest = minus(exponent, n.cast(dtypes.float64)).cast(dtypes.float32)
    return exp2_scaled(clamp(rest, -1.0, 1.0), n, sixteenths)
