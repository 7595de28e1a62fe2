"""floor, ceil, round, trunc, abs and the reciprocal, in float32 and float64, as adds and comparisons."""

from __future__ import annotations

from uopc.decompose.floatbits import MANTISSA_BITS, magnitude, select, sign_bit, width, with_sign
from uopc.ops import Ops
from uopc.uop import UOp


def _limit(x: UOp) -> float:
    """From here on every float is an integer."""
    return 2.0 ** MANTISSA_BITS[width(x)]


def _nearest(t: UOp) -> UOp:
    """0 <= t < limit to the nearest integer, to even: above the limit floats have no digits for a fraction."""
    return (t + _limit(t)) + -_limit(t)


def round_(x: UOp) -> UOp:
    """To the nearest integer, halves to even; keeps the sign of zero, inf and NaN."""
    t = magnitude(x)
    return select(t < _limit(x), with_sign(_nearest(t), sign_bit(x)), x, x)


def trunc(x: UOp) -> UOp:
    """Towards zero."""
    t = magnitude(x)
    near = _nearest(t)
    down = select(t < near, near + -1.0, near, x)
    return select(t < _limit(x), with_sign(down, sign_bit(x)), x, x)


def floor(x: UOp) -> UOp:
    """Towards minus infinity."""
    near = round_(x)
    return select(x < near, near + -1.0, near, x)


def ceil(x: UOp) -> UOp:
    """Towards infinity: ``-floor(-x)``, since adding 1 to -1 would lose the sign of zero."""
    return floor(x * -1.0) * -1.0


def recip(x: UOp) -> UOp:
    """1/x."""
    return UOp(Ops.DIV, (UOp.const(1.0, x.dtype.scalar()), x))


def abs_(x: UOp) -> UOp:
    """The magnitude of a float, an integer (the least one stays, as in NumPy) or a bool."""
    if x.dtype.is_float:
        return magnitude(x)
    if x.dtype.kind != "i" or x.vmin >= 0:
        return x
    return x.maximum(x * -1)
