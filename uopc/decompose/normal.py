"""ndtr, the distribution function of a standard normal number, in float32: accurate relative to itself, however small.

For s = |x| it is E = e^(-s^2/2) F(s) below 0, and 1 - E above.  F(s) = erfcx(s / sqrt 2) / 2 is smooth: polynomials on
intervals that grow with 1 + s, four in each octave, so that its bits say which, and 16 reach as far as float32 does.
The square must not be rounded, which would be an error of 100 ULP at its end: what is left of it beside the multiple of
ln 2 comes from one FMA (where the processor has none, the end is off by 100 ULP).
"""

from __future__ import annotations

import functools
import math

from uopc.decompose.error_function import interpolated
from uopc.decompose.exponential import EXP, LN2_HIGH, LN2_LOW, LOG2_E, multiple, scaled
from uopc.decompose.floatbits import bits, fma, from_bits, horner, lookup, magnitude, minus, select
from uopc.uop import UOp

FARTHEST = 14.9  # ndtr(-14.2) is half of the least float32; 1 + s must stay below 16
DEGREE = 6
INTERVAL = 0xFFE00000  # sign, exponent and two digits of 1 + s


def ndtr(x: UOp) -> UOp:
    """P(X <= x) of a standard normal X, 4 ULP."""
    s = magnitude(x).minimum(FARTHEST)
    start = bits(s + 1.0) & INTERVAL
    r = minus(s, from_bits(start) + -1.0)
    first, *others = (lookup(table, start >> 21) for table in _tables())
    factor = first
    for c in others:
        factor = fma(factor, r, c)
    half = s * -0.5
    n, sixteenths = multiple(half * s, LOG2_E)
    rest = fma(n, -LN2_LOW, fma(half, s, n * -LN2_HIGH))
    tail = scaled(horner(rest, EXP) * rest, n, sixteenths) * factor
    return select(x < 0.0, tail, tail * -1.0 + 1.0, x)


@functools.lru_cache(maxsize=1)
def _tables() -> list[tuple[float, ...]]:
    """For each power, the highest first, the coefficients of F by the low four bits of the interval's number."""
    intervals: list[list[float]] = [[0.0] * (DEGREE + 1)] * 16
    for octave in range(4):
        for quarter in range(4):
            low = 2.0**octave * (1 + quarter / 4)
            at = ((127 + octave) << 2 | quarter) & 15
            intervals[at] = interpolated(_factor_from(low - 1.0), 0.0, 2.0**octave / 4, DEGREE)
    return list(zip(*intervals))


def _factor_from(start: float) -> functools.partial[float]:
    return functools.partial(_factor, start)


def _factor(start: float, r: float) -> float:
    s = start + r
    return 0.5 * math.erfc(s * math.sqrt(0.5)) * math.exp(0.5 * s * s)
