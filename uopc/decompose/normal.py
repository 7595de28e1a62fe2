"""ndtr, the distribution function of a standard normal number, in float32: accurate relative to itself, however small.

For s = |x| it is E = e^(-s^2/2) F(s) below 0, and 1 - E above.  F(s) = erfcx(s / sqrt 2) / 2 is smooth and about
0.4 / s far out: one quotient of polynomials, which is shorter than looking up the coefficients of several.

The square must not be rounded, which would be an error of 100 ULP at its end: s^2 = w - n*STEP comes from one FMA
(where the processor has none, the end is off by 100 ULP).  STEP is 2 ln2 in so few digits that n*STEP is exact.  What
the exponent lacks by that is a multiple of s^2 and one of w: both are part of what the polynomials stand for.
"""

from __future__ import annotations

from collections.abc import Sequence

from uopc.decompose.floatbits import MAGIC, fma, horner, ldexp, magnitude, select
from uopc.uop import UOp

FARTHEST = 14.5  # ndtr(-14.2) is half of the least float32
STEP = float.fromhex("0x1.62e4p0")  # 16 digits, and n has 8
# 2^(-w / STEP), minimax on |w| <= STEP/2, times the factor that makes the numerator monic; and the numerator and the
# denominator, without their 1s: minimax in relative error on [0, 14.6], twice as close below 3.3 as beyond.  All are
# float32s, chosen together: rounded one by one they would be off by half as much again.
EXP = (6.4246708e-10, -7.77271225e-09, 7.73503146e-08, -6.18770059e-07, 3.71266174e-06, -1.48506188e-05, 2.97011757e-05)
NUMERATOR = (13408.0762, 104258.336, 336592.688, 513726.438)
DENOMINATOR = (7.7348609, 26.3165073, 44.3429794, 30.5165596)


def ndtr(x: UOp) -> UOp:
    """P(X <= x) of a standard normal X: 5 ULP from -3 on, 7 below."""
    s = magnitude(x).minimum(FARTHEST)
    n = fma(s * s, -1 / STEP, MAGIC) + -MAGIC
    w = fma(s, s, n * STEP)
    # the quotient first: its division then runs beside the other polynomial
    factor = _monic(s, NUMERATOR) / _monic(s, DENOMINATOR)
    tail = ldexp(factor * horner(w, EXP), n)
    return select(x < 0.0, tail, tail * -1.0 + 1.0, x)


def _monic(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The polynomial in ``x`` with the highest coefficient, 1, left out."""
    first, *others = coefficients
    result = x + first
    for c in others:
        result = fma(result, x, c)
    return result
