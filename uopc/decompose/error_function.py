"""erf in float32 (after N. Juffa): a polynomial near 0, and 1 - e^p beyond, with p a polynomial too."""

from __future__ import annotations

from uopc.decompose.exponential import exp_normal
from uopc.decompose.floatbits import horner, magnitude, select, sign_bit, with_sign
from uopc.uop import UOp

SMALL = 0.927734375
ONE_FROM = 4.2  # erf is 1 from 3.92 on
# (erf(t) - t) / t in t^2
NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
# log(1 - erf(t)) + t in t; the two highest pairs apart
FAR_PAIRS = ((-1.72853470e-5, 3.83197126e-4), (-3.88396438e-3, 2.42546219e-2))
FAR = (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def erf(x: UOp) -> UOp:
    """The error function, 1 ULP; odd."""
    t = magnitude(x)
    near = horner(t * t, NEAR) * t + t
    far = t.minimum(ONE_FROM)
    (a, b), (c, d) = FAR_PAIRS
    p = (far * a + b) * (far * far) + (far * c + d)
    for k in FAR:
        p = p * far + k
    large = exp_normal(p * far + far * -1.0) * -1.0 + 1.0
    return with_sign(select(t < SMALL, near, large, x), sign_bit(x))
