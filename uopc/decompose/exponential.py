"""exp, exp2, expm1 and tanh in float32.

x = n*ln2 + r with n a multiple of 1/16 and ``|r| <= ln2/32``.  2^(n mod 1) comes from a table of 16, which fits a
register, e^r - 1 is a short polynomial, and LDEXP multiplies by the power of two that is left.  (Adding to the
exponent of the result would be wrong for NaN, overflow and denormals.)  expm1, and tanh near 0, have longer ones, as
published by N. Juffa. benchmarks/accuracy.py measures the bounds, on all float32.
"""

from __future__ import annotations

import math

from uopc.decompose.floatbits import (
    MAGIC,
    bits,
    clamp,
    fma,
    from_bits,
    horner,
    ldexp,
    lookup,
    magnitude,
    minus,
    select,
    sign_bit,
    with_sign,
)
from uopc.uop import UOp

LOG2_E = 1.4426950408889634
# ln2 in two parts.  The first has 12 digits: its product with n is exact, also where the processor has no FMA.
LN2_HIGH = float.fromhex("0x1.62ep-1")
LN2_LOW = math.log(2.0) - LN2_HIGH

# 2^(i/16)
POWERS = tuple(2.0 ** (i / 16) for i in range(16))
# (e^r - 1) / r and (2^r - 1) / r, minimax on |r| <= ln2/32 and 1/32
EXP = (0.16666718, 0.50001615, 1.0)
EXP2 = (0.055502135, 0.24023429, 0.69314718)
# (e^r - 1 - r) / r^2
EXPM1 = (1.97350979e-4, 1.39309070e-3, 8.33343994e-3, 4.16668020e-2, 1.66666716e-1, 4.99999970e-1)
# (tanh(t) - t) / t^3 in t^2, up to t = 0.55
TANH = (1.57394409e-2, -5.23025580e-2, 1.33152470e-1, -3.33327681e-1)
TANH_SMALL = 0.55

# What lies outside gives 0 or inf for every value: clamping there keeps n small.
EXP_RANGE = (-104.0, 89.0)
EXP2_RANGE = (-151.0, 129.0)

# Where x^2 is less, f(x) = x for functions with f'(0) = 1: it keeps the sign of a zero and all digits of a denormal.
TINY_SQUARE = 2.0**-60


def multiple(x: UOp, factor: float = 1.0) -> tuple[UOp, UOp]:
    """n = x*factor to the nearest multiple of 1/16, and the int32 whose low bits are 16*n."""
    shifted = fma(x, factor, MAGIC / 16) if factor != 1.0 else x + MAGIC / 16
    return shifted + -MAGIC / 16, bits(shifted)


def _remainder(x: UOp, n: UOp) -> UOp:
    """x - n*ln2."""
    return fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))


def scaled(p: UOp, n: UOp, sixteenths: UOp) -> UOp:
    """(1 + p) * 2^n."""
    power = lookup(POWERS, sixteenths)
    return ldexp(fma(power, p, power), n)


def exp_normal(x: UOp) -> UOp:
    """e^x for ``|x| <= 104``; NaN stays."""
    n, sixteenths = multiple(x, LOG2_E)
    r = _remainder(x, n)
    return scaled(horner(r, EXP) * r, n, sixteenths)


def exp(x: UOp) -> UOp:
    """e^x, 2 ULP."""
    return exp_normal(clamp(x, *EXP_RANGE))


def exp2(x: UOp) -> UOp:
    """2^x, 2 ULP."""
    x = clamp(x, *EXP2_RANGE)
    n, sixteenths = multiple(x)
    return exp2_scaled(minus(x, n), n, sixteenths)


def exp2_scaled(r: UOp, n: UOp, sixteenths: UOp) -> UOp:
    """2^(n+r) for |r| <= 1/32, where the low bits of ``sixteenths`` are 16*n."""
    return scaled(horner(r, EXP2) * r, n, sixteenths)


def expm1(x: UOp) -> UOp:
    """e^x - 1, 2 ULP: (2^n (e^r - 1) + 2^n) - 1 with all powers halved, so that 2^128 does not overflow too early.

    For n = 0 this is e^r - 1 itself, but for the sign of a zero and the last digit of a denormal.
    """
    y = clamp(x, -20.0, EXP_RANGE[1])
    shifted = fma(y, LOG2_E, MAGIC + 126.0)
    r = _remainder(y, shifted + -(MAGIC + 126.0))
    p = fma(horner(r, EXPM1), r * r, r)
    power = from_bits(bits(shifted) << 23)
    result = fma(p, power, power + -0.5)
    return select(x * x < TINY_SQUARE, x, result + result, x)


def tanh(x: UOp) -> UOp:
    """tanh, 2 ULP: odd, a polynomial near 0 and 1 - 2/(e^2t + 1) beyond, which is 1 from t = 9.01 on."""
    t = magnitude(x)
    large = UOp.const(-2.0, x.dtype.scalar()) / (exp_normal(t.minimum(10.0) * 2.0) + 1.0) + 1.0
    square = t * t
    small = fma(horner(square, TANH) * square, t, t)
    return with_sign(select(t < TANH_SMALL, small, large, x), sign_bit(x))
