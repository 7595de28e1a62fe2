"""sin, cos and tan in float32, for every float32.

x = (k + q) * pi/2 with k a multiple of 4 plus the quadrant and ``|q| <= 1/2``.  Finding q takes about 200 digits of
2/pi when x is large (M. Payne, R. Hanek, 1983), but few of them at a time: digits that make a multiple of 4 for
this x are dropped, and those far behind do not matter.  The exponents fall into four bands of 26; x is scaled into
the lowest, and each band has its own 104 digits of 2/pi, centred modulo 4.  All choices are made in 32-bit lanes (GCC
compares vectors wider than a register one lane at a time); then come float64 multiplications and additions alone,
exact where it matters.  Both sides of a WHERE are computed, so a shorter reduction for small x would add to the cost,
not replace it.
"""

from __future__ import annotations

from collections.abc import Sequence

from uopc.decompose.floatbits import bits, fma, from_bits, horner, magnitude, minus, select
from uopc.dtype import dtypes
from uopc.uop import UOp

BAND = 26
# For each band b, 2/pi * 2^(26 b) modulo 4: a * 2^-27 + b * 2^-55 + c + d; a and b have at most 28 digits, so that
# their products with the 24 of x are exact.
DIGITS_A = (85445659, 231327875, 177536532, 246391786)
DIGITS_B = (120005131, -95160241, -88174678, 110868507)
DIGITS_C = tuple(map(float.fromhex, ("-0x1.ac07b2p-57", "-0x1.417056p-57", "-0x1.6447e4p-57", "0x1.b14accp-57")))
DIGITS_D = tuple(map(float.fromhex, ("0x1.5f47d4p-82", "-0x1.6447e4p-83", "-0x1.275a9ap-82", "0x1.3c4390p-82")))
HALF_PI = 1.5707963267948966
MAGIC64 = 1.5 * 2.0**52  # rounds a float64 below 2^51 to an integer, kept in its low bits
MAGIC64_BY_4 = 4 * MAGIC64

SIN = (2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
COS = (2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0)


def reduce(x: UOp) -> tuple[UOp, UOp]:
    """(q, r): the quadrant (int32, its low two bits count) and x - q*pi/2 modulo 2*pi, ``|r| <= pi/4``, to 1/2 ULP."""
    above = [magnitude(x) >= 2.0 ** (24 + BAND * b) for b in (1, 2, 3)]

    def by_band(values: Sequence[float], like: UOp) -> UOp:
        chosen = select(above[0], values[1], values[0], like)
        chosen = select(above[1], values[2], chosen, like)
        return select(above[2], values[3], chosen, like)

    scaled = (x * by_band([2.0 ** (-BAND * b) for b in range(4)], x)).cast(dtypes.float64)
    a, b = (by_band(digits, bits(x)).cast(dtypes.float64) for digits in (DIGITS_A, DIGITS_B))
    c, d = (by_band(digits, x).cast(dtypes.float64) for digits in (DIGITS_C, DIGITS_D))
    a = scaled * 2.0**-27 * a
    b = scaled * 2.0**-55 * b
    a = minus(a, (a + MAGIC64_BY_4) + -MAGIC64_BY_4)
    shifted = (a + b) + MAGIC64
    # a - k is exact, and the sum with b too where it comes out small
    q = fma(c + d, scaled, minus(a, shifted + -MAGIC64) + b)
    return shifted.bitcast(dtypes.int64).cast(dtypes.int32), (q * HALF_PI).cast(dtypes.float32)


def _parts(x: UOp) -> tuple[UOp, UOp, UOp]:
    """(q, sin r, cos r)."""
    q, r = reduce(x)
    square = r * r
    return q, fma(horner(square, SIN), square * r, r), horner(square, COS)


def _flip(x: UOp, sign: UOp) -> UOp:
    return from_bits(bits(x) ^ sign)


def sin(x: UOp) -> UOp:
    """The sine, 2 ULP."""
    q, s, c = _parts(x)
    value = _flip(select((q & 1).eq(0), s, c, x), (q & 2) << 30)
    return select(x.eq(0.0), x, value, x)


def cos(x: UOp) -> UOp:
    """The cosine, 2 ULP."""
    q, s, c = _parts(x)
    return _flip(select((q & 1).eq(0), c, s, x), ((q + 1) & 2) << 30)


def tan(x: UOp) -> UOp:
    """The tangent, 4 ULP: sin/cos, or -cos/sin in odd quadrants."""
    q, s, c = _parts(x)
    even = (q & 1).eq(0)
    value = _flip(select(even, s, c, x) / select(even, c, s, x), (q & 1) << 31)
    return select(x.eq(0.0), x, value, x)
