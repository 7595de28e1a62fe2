"""erf in float32: sixteen polynomials, one for each part of [0, 3.93], whose coefficients stand in tables.

A table of 16 fits a register, so that looking a coefficient up is one permutation where there are such vectors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from uopc.decompose.floatbits import MAGIC, bits, fma, from_bits, lookup, magnitude, sign_bit, with_sign
from uopc.uop import UOp

WIDTH = 1041 / 4096  # of a part; few digits, so that multiples are exact, and chosen for the least error
ONE_FROM = 3.93  # erf is 1 from 3.92 on, and the last part reaches to 15.5 * WIDTH
DEGREE = 5


def erf(x: UOp) -> UOp:
    """The error function, 2 ULP; odd."""
    t = magnitude(x).minimum(ONE_FROM)
    shifted = fma(t, 1 / WIDTH, MAGIC)
    r = fma(shifted + -MAGIC, -WIDTH, t)
    part = bits(shifted)
    *slopes, constants = _tables()
    p = lookup(slopes[0], part)
    for table in slopes[1:]:
        p = fma(p, r, lookup(table, part))
    # around 0 the constant is 0, and r itself is taken; elsewhere the constant is larger.  Bits compare as floats do.
    start = from_bits(bits(lookup(constants, part)).maximum(bits(r)))
    return with_sign(fma(p, r, start), sign_bit(x))


@functools.lru_cache(maxsize=1)
def _tables() -> list[tuple[float, ...]]:
    """For each power of r, the highest first, its coefficients: part i is centred on ``i * WIDTH``.

    Around 0 it is erf(r)/r - 1 in r^2, times r, so that small numbers keep their digits.
    """
    half = WIDTH / 2
    even = interpolated(lambda square: math.erf(math.sqrt(square)) / math.sqrt(square) - 1, 0.0, half**2, DEGREE // 2)
    parts = [[c for power in even for c in (power, 0.0)]]
    parts += [interpolated(_erf_around(i * WIDTH), -half, half, DEGREE) for i in range(1, 16)]
    return list(zip(*parts))


def _erf_around(centre: float) -> Callable[[float], float]:
    return lambda r: math.erf(centre + r)


def interpolated(f: Callable[[float], float], low: float, high: float, degree: int) -> list[float]:
    """The polynomial through f at Chebyshev's nodes between the bounds, the highest power first."""
    from numpy.polynomial import Chebyshev, Polynomial

    series = Chebyshev.interpolate(lambda nodes: np.array([f(x) for x in nodes]), degree, domain=[low, high])
    return [float(c) for c in series.convert(kind=Polynomial).coef][::-1]
