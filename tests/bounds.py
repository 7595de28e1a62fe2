"""What a compiled tensor graph may answer: its exact value, and how far from it rounding can lead.

``claims(roots)`` walks a graph like ``reference.evaluate(exact=True)``, and carries beside each element ``v``
(float64, or the integer) a bound ``e``:

    e = 0         the answer is v: the same integer, NaN, infinity or float (and sign of zero)
    0 < e < inf   the answer is within e of v
    e = inf       nothing is claimed

Bounds are derived, never chosen.  With u the unit roundoff of a node's type (halves: that of the half plus that of
float32, in which they are computed; rounding to the half itself happens wherever a value is written down, so that every
node is charged with it), and E the bounds of the operands:

    + - * / sqrt   correctly rounded: |f(x') - f(x)| from E, and u |v|; exact if operands are and v is representable
    exp, log ...   monotone: f at both ends of the operand's interval, and ULPS units in the last place
    sums           in any order and grouping: sum(E) + (n - 1) u sum(|x| + E); exact on a grid of small integers
    compare, casts to integers: exact if both ends of the interval agree, else nothing; floor: the hull

float64 answers are compared with float64 references, so that u counts twice there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from reference import COMPUTE, MOVE, Array, carrier
from reference import _node as exact_node

from uopc.dtype import DType, dtypes
from uopc.ops import COMPARE, Ops
from uopc.uop import UOp, toposort

# Functions of decompose and of C's library: within this many units in the last place (DESIGN.md 8; NumPy's float64 ones
# count as well).
ULPS = 4
MONOTONE = {Ops.EXP, Ops.EXP2, Ops.EXPM1, Ops.LOG, Ops.LOG2, Ops.LOG1P, Ops.TANH, Ops.ERF, Ops.NDTR}
ROUNDING = {Ops.FLOOR, Ops.CEIL, Ops.ROUND, Ops.TRUNC}
FUNCTIONS = {*MONOTONE, Ops.SIN, Ops.COS, Ops.TAN, Ops.POW}
_MANTISSA = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}
_LARGEST = {
    dtypes.float16: 65504.0,
    dtypes.bfloat16: 3.38e38,
    dtypes.float32: 3.4028234e38,
    dtypes.float64: 1.7976931e308,
}
# Below these, rounding is absolute: half of the smallest number of the type (float32 for bfloat16 too: its subnormals
# have the same exponent and fewer digits).
_LEAST = {dtypes.float16: 2.0**-25, dtypes.bfloat16: 2.0**-134, dtypes.float32: 2.0**-150, dtypes.float64: 2.0**-1074}


@dataclass
class Claim:
    """Values, and the bound of each."""

    v: Array
    e: Array

    @property
    def known(self) -> Array:
        return np.isfinite(self.e)


def unit(dtype: DType) -> float:
    """The relative error of one operation whose result has this type, against the reference."""
    own = 2.0 ** -_MANTISSA[dtype]
    return own + (2.0**-24 if dtype.is_half else 2.0**-53)


def representable(v: Array, dtype: DType) -> Array:
    """Whether a value that is the correctly rounded result of exact operands in float64 is surely that in ``dtype``."""
    if dtype is dtypes.float64:
        return (v == np.rint(v)) & (np.abs(v) <= 2.0**53)
    with np.errstate(all="ignore"):
        scaled, _ = np.frexp(v)
        digits = scaled * 2.0 ** _MANTISSA[dtype]
        return (
            (digits == np.rint(digits))
            & (np.abs(v) <= _LARGEST[dtype])
            & ((v == 0) | (np.abs(v) >= 2.0 ** (-14 if dtype is dtypes.float16 else -126)))
        )


def claims(roots: Sequence[UOp]) -> list[Claim]:
    """The claim of each root, in order."""
    known: dict[UOp, Claim] = {}
    with np.errstate(all="ignore"):
        for u in toposort(list(roots)):
            known[u] = _claim(u, [known[s] for s in u.src])
            assert known[u].v.shape == known[u].e.shape == u.shape, u
    return [known[u] for u in roots]


def _claim(u: UOp, src: list[Claim]) -> Claim:
    v = exact_node(u, [s.v for s in src], True)
    if not u.src:
        return Claim(v, np.zeros(v.shape))
    if u.op in MOVE:
        return Claim(v, _moved(u, src))
    if u.op is Ops.REDUCE:
        e = _reduced_float(u, src[0], v) if u.dtype.is_float else _reduced(u, src[0], v)
    elif u.op is Ops.CAST:
        e = _cast(u, src[0], v)
    elif u.op is Ops.WHERE:
        e = _where(u, src, v)
    elif u.op in COMPARE:
        e = _compared(u, src)
    elif not u.src[0].dtype.is_float or not u.dtype.is_float:
        e = _all_exact(u, src)  # integers, bool, and bits of floats
    else:
        e = _float(u, src, v)
    if u.dtype.is_float:
        # near the largest number an answer may be infinite
        top = np.abs(v) + e >= _LARGEST[u.dtype]
        e = np.where(top & np.isfinite(v) & (e > 0), math.inf, e)
        e = np.where(top & np.isfinite(v) & (np.abs(v) > _LARGEST[u.dtype]), math.inf, e)
    return Claim(v, np.broadcast_to(np.asarray(e, np.float64), v.shape))


def _moved(u: UOp, src: list[Claim]) -> Array:
    if u.op is not Ops.GATHER:
        return np.asarray(MOVE[u.op](u, [s.e for s in src]))
    e = np.asarray(MOVE[u.op](u, [src[0].e, *(s.v for s in src[1:])]))
    for s in src[1:]:
        e = np.where(s.known, e, math.inf)
    return e


# ---- what is exact or nothing ----------------------------------------------------------------------------------------


def _all_exact(u: UOp, src: list[Claim]) -> Array:
    e = np.zeros(u.shape)
    for s, node in zip(src, u.src):
        e = np.where(s.e == 0, e, math.inf)
        if u.op is Ops.BITCAST and node.dtype.is_float:
            exact = representable(s.v, node.dtype) if node.dtype is not dtypes.float64 else True
            e = np.where(np.isfinite(s.v) & exact, e, math.inf)
    return e


def _reduced(u: UOp, x: Claim, v: Array) -> Array:
    return np.where(np.logical_and.reduce(x.e == 0, axis=u.arg.axes), 0.0, math.inf)


def _compared(u: UOp, src: list[Claim]) -> Array:
    a, b = src
    if not u.src[0].dtype.is_float:
        return np.where((a.e == 0) & (b.e == 0), 0.0, math.inf)
    apart = np.abs(a.v - b.v) > a.e + b.e
    sure = (a.e == 0) & (b.e == 0)
    nan = (np.isnan(a.v) & a.known) | (np.isnan(b.v) & b.known)
    return np.where((apart | sure | nan) & a.known & b.known, 0.0, math.inf)


def _where(u: UOp, src: list[Claim], v: Array) -> Array:
    c, a, b = src
    chosen = np.where(c.v, a.e, b.e)
    if not u.dtype.is_float:
        either = np.where((a.e == 0) & (b.e == 0) & (a.v == b.v), 0.0, math.inf)
    else:
        apart = np.abs(a.v - b.v)
        either = np.maximum(a.e, b.e) + np.where(np.isnan(apart), math.inf, apart)
    return np.where(c.e == 0, chosen, either)


def _cast(u: UOp, x: Claim, v: Array) -> Array:
    source, target = u.src[0].dtype, u.dtype
    if not source.is_float and not target.is_float:
        return np.where(x.e == 0, 0.0, math.inf)
    if target.is_bool:
        return np.where((x.e == 0) | (np.abs(x.v) > x.e), 0.0, math.inf)
    if target.is_int:
        ends = np.trunc(x.v - x.e), np.trunc(x.v + x.e)
        # what the type does not hold is undefined in C and NumPy alike
        fits = (ends[0] >= target.min) & (ends[1] < float(target.max) + 1)
        return np.where((ends[0] == ends[1]) & fits & x.known, 0.0, math.inf)
    exact = (x.e == 0) & (representable(v, target) | ~np.isfinite(v))
    if source.is_float and (source is target or source.itemsize < target.itemsize):
        return np.where(exact, 0.0, x.e)
    return np.where(exact, 0.0, _rounded(x.e, v, target))


def _rounded(e: Array, v: Array, dtype: DType, times: float = 1.0) -> Array:
    """``e`` and ``times`` rounding errors of a result near ``v``."""
    size = np.where(np.isfinite(v), np.abs(v), 0.0) + e
    return e + times * (unit(dtype) * size + _LEAST[dtype] * 2)


# ---- float arithmetic ------------------------------------------------------------------------------------------------


def _float(u: UOp, src: list[Claim], v: Array) -> Array:
    known = np.logical_and.reduce([np.broadcast_to(s.known, v.shape) for s in src])
    sure = np.logical_and.reduce([np.broadcast_to(s.e == 0, v.shape) for s in src])
    finite = np.logical_and.reduce([np.broadcast_to(np.isfinite(s.v), v.shape) for s in src]) & np.isfinite(v)
    if u.op in (Ops.MAX, Ops.MIN):
        finite = np.isfinite(v)  # an infinite operand may be the one that is not chosen
    e = np.asarray(_RULES[u.op](u, *src, v), np.float64)
    if u.op in FUNCTIONS:
        e = _rounded(e, v, u.dtype, 2.0 * ULPS)
    elif u.op in ROUNDING or u.op in (Ops.ABS, Ops.MAX, Ops.MIN):
        pass
    else:
        e = np.where(sure & representable(v, u.dtype), 0.0, _rounded(e, v, u.dtype))
    e = np.where(np.isnan(e), math.inf, e)
    return np.where(known & finite, e, np.where(known & _special(u, src, v, sure), 0.0, math.inf))


def _special(u: UOp, src: list[Claim], v: Array, sure: Array) -> Array:
    """Where operands or results that are not finite leave no doubt about the answer."""
    if u.op in (Ops.ADD, Ops.MUL, Ops.DIV, Ops.MAX, Ops.MIN):
        # a finite operand counts by its sign, if it is away from 0
        decided = np.logical_and.reduce([np.broadcast_to((s.e == 0) | (np.abs(s.v) > s.e), v.shape) for s in src])
        outside = np.logical_or.reduce([np.broadcast_to(~np.isfinite(s.v), v.shape) for s in src])
        pole = (u.op is Ops.DIV) & (src[-1].v == 0) & (src[-1].e == 0)
        return decided & (outside | pole)
    if u.op is Ops.POW:
        # NumPy takes the square root for the power 1/2, which differs from C's pow at -inf
        sure = sure & ~((src[1].v == 0.5) & np.isneginf(src[0].v))
        return (
            sure
            & (~np.isfinite(src[0].v) | ~np.isfinite(src[1].v) | (src[0].v == 0) | (src[0].v < 0))
            & (~np.isinf(v) | np.isinf(src[0].v) | np.isinf(src[1].v) | (src[0].v == 0))
        )
    if u.op is Ops.FMOD:
        return sure
    x = src[0]
    pole = (
        (u.op in (Ops.LOG, Ops.LOG2, Ops.SQRT) and x.v <= 0)
        | (u.op is Ops.LOG1P and x.v <= -1)
        | (u.op is Ops.RECIP and x.v == 0)
    )
    below = (u.op in (Ops.LOG, Ops.LOG2, Ops.SQRT) and x.v + x.e < 0) | (u.op is Ops.LOG1P and x.v + x.e < -1)
    return (sure & (~np.isfinite(x.v) | pole)) | below


def _add(u: UOp, a: Claim, b: Claim, v: Array) -> Array:
    return a.e + b.e


def _mul(u: UOp, a: Claim, b: Claim, v: Array) -> Array:
    return np.abs(a.v) * b.e + np.abs(b.v) * a.e + a.e * b.e


def _div(u: UOp, a: Claim, b: Claim, v: Array) -> Array:
    room = np.abs(b.v) - b.e
    return np.where(room > 0, (a.e + np.abs(v) * b.e) / np.where(room > 0, room, 1.0), math.inf)


def _recip(u: UOp, b: Claim, v: Array) -> Array:
    return _div(u, Claim(np.ones(b.v.shape), np.zeros(b.v.shape)), b, v)


def _extremum(u: UOp, a: Claim, b: Claim, v: Array) -> Array:
    zeros = (a.v == 0) & (b.v == 0) & (np.signbit(a.v) != np.signbit(b.v))
    return np.where(zeros, np.maximum(np.maximum(a.e, b.e), 5e-324), np.maximum(a.e, b.e))


def _monotone(u: UOp, x: Claim, v: Array) -> Array:
    """The spread of a growing function over the operand's interval; nothing where it leaves the domain."""
    low, high = (COMPUTE[u.op](np.asarray(end, np.float64)) for end in (x.v - x.e, x.v + x.e))
    spread = np.maximum(high - v, v - low)
    return np.where(
        x.e == 0,
        0.0,
        np.where(np.isfinite(low) & np.isfinite(high), spread * (1 + 2.0**-48) + _double_noise(v, x), math.inf),
    )


def _double_noise(v: Array, x: Claim) -> Array:
    """The reference's own ends are rounded."""
    return np.where(x.e > 0, np.abs(v) * 2.0**-50, 0.0)


def _rounding(u: UOp, x: Claim, v: Array) -> Array:
    low, high = (COMPUTE[u.op](np.asarray(end, np.float64)) for end in (x.v - x.e, x.v + x.e))
    spread = np.maximum(high - v, v - low)
    # a zero may have come from either side
    return np.where((v == 0) & (x.e > 0), np.maximum(spread, 5e-324), spread)


def _wave(u: UOp, x: Claim, v: Array) -> Array:
    return np.minimum(x.e, 2.0)


def _tan(u: UOp, x: Claim, v: Array) -> Array:
    low, high = np.tan(x.v - x.e), np.tan(x.v + x.e)
    steady = (x.e < 1.0) & (low <= v) & (v <= high)
    return np.where(x.e == 0, 0.0, np.where(steady, np.maximum(high - v, v - low) + _double_noise(v, x), math.inf))


def _pow(u: UOp, x: Claim, y: Claim, v: Array) -> Array:
    ends = [np.power(a, b) for a in (x.v - x.e, x.v + x.e) for b in (y.v - y.e, y.v + y.e)]
    spread = np.maximum.reduce([np.abs(end - v) for end in ends])
    exact = (x.e == 0) & (y.e == 0)
    return np.where(exact, 0.0, np.where(x.v - x.e > 0, spread + np.abs(v) * 2.0**-50, math.inf))


def _fmod(u: UOp, a: Claim, b: Claim, v: Array) -> Array:
    exact = (a.e == 0) & (b.e == 0)
    room = np.abs(b.v) - b.e
    low = np.trunc((np.abs(a.v) - a.e) / (np.abs(b.v) + b.e) * (1 - 2.0**-50))
    high = np.trunc((np.abs(a.v) + a.e) / room * (1 + 2.0**-50))
    same = (room > 0) & (low == high) & (np.abs(a.v) > a.e)
    return np.where(exact, 0.0, np.where(same, a.e + high * b.e, math.inf))


def _abs(u: UOp, x: Claim, v: Array) -> Array:
    return x.e


def _sqrt(u: UOp, x: Claim, v: Array) -> Array:
    low = np.sqrt(x.v - x.e)  # NaN where the interval reaches below 0
    return np.where(x.e == 0, 0.0, np.maximum(v - low, np.sqrt(x.v + x.e) - v) * (1 + 2.0**-48) + _double_noise(v, x))


_RULES: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: _add, Ops.MUL: _mul, Ops.DIV: _div, Ops.RECIP: _recip, Ops.MAX: _extremum, Ops.MIN: _extremum, Ops.SIN:
    _wave, Ops.COS: _wave,
    Ops.TAN: _tan, Ops.POW: _pow, Ops.FMOD: _fmod, Ops.ABS: _abs, Ops.SQRT: _sqrt, **dict.fromkeys(MONOTONE, _monotone),
    **dict.fromkeys(ROUNDING, _rounding),
}  # fmt: skip

# ---- float reductions ------------------------------------------------------------------------------------------------


def _reduced_float(u: UOp, x: Claim, v: Array) -> Array:
    axes = u.arg.axes
    unknown = np.logical_or.reduce(~x.known, axis=axes)
    nan = np.logical_or.reduce(np.isnan(x.v) & x.known, axis=axes)
    rule = {Ops.ADD: _sum, Ops.MUL: _product}.get(u.arg.op, _extreme)
    e = np.where(unknown, math.inf, rule(u, x, v, axes))
    e = np.where(np.isnan(e), math.inf, e)
    # NaN wins, whatever the others are
    return np.where(nan, 0.0, e)


def _count(u: UOp) -> int:
    return math.prod(u.src[0].shape[a] for a in u.arg.axes)


def _in_float(dtype: DType) -> float:
    """Halves are summed in float32 and rounded once."""
    return unit(dtypes.float32 if dtype.is_half else dtype)


def _sum(u: UOp, x: Claim, v: Array, axes: tuple[int, ...]) -> Array:
    size = np.where(np.isfinite(x.v), np.abs(x.v) + x.e, 0.0)
    total = np.add.reduce(size, axis=axes)
    # on a grid of 2^-k all partial sums are exact as long as they have digits enough
    sure = np.logical_and.reduce(x.e == 0, axis=axes)
    wide = dtypes.float32 if u.dtype.is_half else u.dtype
    grid = np.logical_and.reduce(x.v * 256 == np.rint(x.v * 256), axis=axes) & (total * 256 <= 2.0 ** _MANTISSA[wide])
    exact = sure & grid & (representable(v, u.dtype) | (u.dtype is dtypes.float64))
    rounding = max(_count(u) - 1, 0) * _in_float(u.dtype) * total
    e = np.where(exact, 0.0, _rounded(np.add.reduce(x.e, axis=axes) + rounding, v, u.dtype))
    overflow = ~(total < _LARGEST[dtypes.float32 if u.dtype.is_half else u.dtype])
    return np.where(np.isfinite(v) & overflow, math.inf, np.where(np.isfinite(v), e, np.where(overflow, math.inf, 0.0)))


def _product(u: UOp, x: Claim, v: Array, axes: tuple[int, ...]) -> Array:
    size = np.abs(x.v) + x.e
    whole = np.multiply.reduce(size, axis=axes)
    largest = np.multiply.reduce(np.maximum(size, 1.0), axis=axes)
    smallest = np.multiply.reduce(np.where(x.v == 0, 1.0, np.minimum(np.abs(x.v), 1.0)), axis=axes)
    wide = dtypes.float32 if u.dtype.is_half else u.dtype
    sure = np.logical_and.reduce((x.e == 0) & (x.v == np.rint(x.v)), axis=axes) & (largest <= 2.0 ** _MANTISSA[wide])
    e = np.where(
        sure & (representable(v, u.dtype) | (u.dtype is dtypes.float64)), 0.0,
        _rounded((whole - np.abs(v)) * (1 + 2.0**-40) + 2 * _count(u) * _in_float(u.dtype) * whole, v, u.dtype),
    )  # fmt: skip
    # what over- or underflows on the way depends on the order
    steady = (largest < _LARGEST[wide]) & (smallest > 2.0 ** (-1000 if wide is dtypes.float64 else -120))
    return np.where(steady & np.isfinite(v), e, math.inf)


def _extreme(u: UOp, x: Claim, v: Array, axes: tuple[int, ...]) -> Array:
    pick = np.maximum if u.arg.op is Ops.MAX else np.minimum
    start = -math.inf if u.arg.op is Ops.MAX else math.inf
    low, high = (pick.reduce(x.v + sign * x.e, axis=axes, initial=start) for sign in (-1.0, 1.0))
    signs = np.logical_or.reduce((x.v == 0) & np.signbit(x.v), axis=axes) & np.logical_or.reduce(
        (x.v == 0) & ~np.signbit(x.v), axis=axes
    )
    e = np.where(low == high, 0.0, np.maximum(high - v, v - low))
    return np.where((v == 0) & signs, np.maximum(e, 5e-324), e)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def compare(claim: Claim, answer: Array, dtype: DType) -> str | None:
    """What is wrong with ``answer`` (of ``dtype.numpy``, bfloat16 as float32), or None."""
    assert answer.shape == claim.v.shape, (answer.shape, claim.v.shape)
    if not dtype.is_float:
        wrong = (claim.e == 0) & (answer != claim.v)
    else:
        wide = answer.astype(np.float64)
        same = (wide == claim.v) | (np.isnan(wide) & np.isnan(claim.v))
        with np.errstate(all="ignore"):
            near = np.abs(wide - claim.v) <= claim.e
        wrong = claim.known & ~same & ~near
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    expected = carrier(dtype, True).type(claim.v[at])
    share = f"{int(wrong.sum())} of {wrong.size} elements, first at {list(at)}"
    return f"{share}: {answer[at]!r} instead of {expected!r} within {claim.e[at]:.3g}"
