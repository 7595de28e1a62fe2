"""exp, exp2, expm1 and tanh in float32.

x = n*ln2 + r with n an integer and ``|r| <= ln2/2``; e^r is a polynomial, and 2^n is built in the exponent of a float
that multiplies it.  (Adding n to the exponent of the result would be cheaper, and wrong for NaN, overflow and
denormals.) Polynomials are minimax, some as published by N. Juffa. benchmarks/accuracy.py measures the bounds, on
all float32.
"""

from __future__ import annotations

from uopc.decompose.floatbits import (
    MAGIC,
    bits,
    clamp,
    from_bits,
    horner,
    magnitude,
    minus,
    select,
    sign_bit,
    with_sign,
)
from uopc.uop import UOp

LOG2_E = 1.4426950408889634
# ln2 in two parts.  The first has 14 digits: its product with n is exact, whether or not the compiler contracts it.
LN2_HIGH = float.fromhex("0x1.62e4p-1")
LN2_LOW = float.fromhex("0x1.7f7d1cp-20")

# e^r and 2^r
EXP = (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0)
EXP2 = (
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)
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


def _whole(x: UOp, factor: float, bias: float) -> tuple[UOp, UOp]:
    """n = x*factor to the nearest integer, as a float and as the float whose low bits are n + bias."""
    shifted = (x * factor if factor != 1.0 else x) + (MAGIC + bias)
    return shifted + -(MAGIC + bias), shifted


def _remainder(x: UOp, n: UOp) -> UOp:
    """x - n*ln2."""
    return (x + n * -LN2_HIGH) + n * -LN2_LOW


def _scale(p: UOp, shifted: UOp) -> UOp:
    """p * 2^n for -254 <= n <= 254, rounded once, where the low bits of ``shifted`` are n + 254.

    2^n itself may be no float, so the exponent is split into halves.  The low nine bits of each half hold its biased
    exponent; the shift drops what stands above.
    """
    both = bits(shifted)
    half = both >> 1
    return p * from_bits(half << 23) * from_bits(minus(both, half) << 23)


def exp_normal(x: UOp) -> UOp:
    """e^x for -87 <= x <= 88, where 2^n is a normal float; NaN stays."""
    n, shifted = _whole(x, LOG2_E, 127.0)
    return horner(_remainder(x, n), EXP) * from_bits(bits(shifted) << 23)


def exp(x: UOp) -> UOp:
    """e^x, 1 ULP."""
    x = clamp(x, *EXP_RANGE)
    n, shifted = _whole(x, LOG2_E, 254.0)
    return _scale(horner(_remainder(x, n), EXP), shifted)


def exp2(x: UOp) -> UOp:
    """2^x, 1 ULP."""
    x = clamp(x, *EXP2_RANGE)
    n, shifted = _whole(x, 1.0, 254.0)
    return exp2_scaled(minus(x, n), shifted)


def exp2_scaled(r: UOp, shifted: UOp) -> UOp:
    """2^(n+r) for |r| <= 1/2, where the low bits of ``shifted`` are n + 254."""
    return _scale(horner(r, EXP2), shifted)


def expm1(x: UOp) -> UOp:
    """e^x - 1, 2 ULP: (2^n (e^r - 1) + 2^n) - 1 with all powers halved, so that 2^128 does not overflow too early.

    For n = 0 this is e^r - 1 itself, but for the sign of a zero and the last digit of a denormal.
    """
    y = clamp(x, -20.0, EXP_RANGE[1])
    n, shifted = _whole(y, LOG2_E, 126.0)
    r = _remainder(y, n)
    p = horner(r, EXPM1) * (r * r) + r
    power = from_bits(bits(shifted) << 23)
    result = p * power + (power + -0.5)
    return select(x * x < TINY_SQUARE, x, result + result, x)


def tanh(x: UOp) -> UOp:
    """tanh, 2 ULP: odd, a polynomial near 0 and 1 - 2/(e^2t + 1) beyond, which is 1 from t = 9.01 on."""
    t = magnitude(x)
    large = UOp.const(-2.0, x.dtype.scalar()) / (exp_normal(t.minimum(10.0) * 2.0) + 1.0) + 1.0
    square = t * t
    small = (horner(square, TANH) * square) * t + t
    return with_sign(select(t < TANH_SMALL, small, large, x), sign_bit(x))
