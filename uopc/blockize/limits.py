"""Limits: where a mask excludes whole blocks, the loop over blocks does not visit them.

A step of a cascade changes nothing where each reduction gets what leaves it unchanged: -inf for a maximum, 0 for a sum.
Which comparisons must hold for anything else is read off the ranged bodies; of those, the ones that are linear in the
row and the position become bounds of the loop.
"""

from __future__ import annotations

import math

from uopc.ops import Limit, Ops
from uopc.uop import UOp, dtypes, toposort

# A linear form: the factor of each range, and the constant.
Linear = tuple[dict[UOp, int], int]


def _conditions(u: UOp, nothing: float) -> set[UOp]:
    """The bools of which each must hold, or the value is ``nothing`` (-inf, or 0).  Running values are constants
    here."""
    if u.op is Ops.WHERE:
        condition, a, b = u.src
        if b.op is Ops.CONST and b.arg == nothing:
            return {*_all_of(condition), *_conditions(a, nothing)}
        if a.op is Ops.CONST and a.arg == nothing:
            return {*_all_of(condition.logical_not()), *_conditions(b, nothing)}
    if nothing == 0:
        if u.op is Ops.EXP:
            return _conditions(u.src[0], -math.inf)
        if u.op is Ops.MUL:
            return _conditions(u.src[0], 0) | _conditions(u.src[1], 0)
        if u.op is Ops.DIV:
            return _conditions(u.src[0], 0)
    elif u.op is Ops.ADD:
        # a constant or a running value beside it is finite: what may be inf or NaN keeps its step
        for a, b in (u.src, u.src[::-1]):
            if not any(v.op in (Ops.LOAD, Ops.REDUCE) for v in toposort(b)):
                return _conditions(a, nothing)
    elif u.op is Ops.MUL and u.src[1].op is Ops.CONST and 0 < u.src[1].arg < math.inf:
        return _conditions(u.src[0], nothing)
    return set()


def _all_of(u: UOp) -> list[UOp]:
    """The bools whose conjunction ``u`` is; the negation of a comparison of integers is one."""
    if u.op is Ops.AND:
        return [c for s in u.src for c in _all_of(s)]
    if u.op is Ops.XOR and u.src[1].op is Ops.CONST and u.src[1].arg is True:
        inner = u.src[0]
        if inner.op is Ops.OR:
            return [c for s in inner.src for c in _all_of(s.logical_not())]
        if inner.op in (Ops.CMPLT, Ops.CMPLE) and inner.src[0].dtype.is_int:
            a, b = inner.src
            return [b <= a if inner.op is Ops.CMPLT else b < a]
    return [u]


def _linear(u: UOp) -> Linear | None:
    """``u`` as a sum of multiples of ranges."""
    if u.op is Ops.CONST and isinstance(u.arg, int):
        return {}, u.arg
    if u.op is Ops.RANGE:
        return {u: 1}, 0
    if u.op is Ops.CAST and u.dtype.is_int and u.dtype.itemsize >= 4 and u.src[0].dtype.is_int:
        return _linear(u.src[0])
    if u.op in (Ops.ADD, Ops.MUL) and u.dtype.is_int:
        a, b = _linear(u.src[0]), _linear(u.src[1])
        if a is None or b is None:
            return None
        if u.op is Ops.ADD:
            return _plus(a, b, 1)
        if not b[0]:
            return {r: n * b[1] for r, n in a[0].items()}, a[1] * b[1]
        if not a[0]:
            return {r: n * a[1] for r, n in b[0].items()}, a[1] * b[1]
    return None


def _plus(a: Linear, b: Linear, times: int) -> Linear:
    factors = dict(a[0])
    for r, n in b[0].items():
        factors[r] = factors.get(r, 0) + times * n
    return {r: n for r, n in factors.items() if n}, a[1] + times * b[1]


def _limit(condition: UOp, row: UOp, step: UOp) -> list[Limit]:
    """A comparison as ``a * row + b * step + c <= 0``."""
    if condition.op not in (Ops.CMPLT, Ops.CMPLE) or not (
        condition.src[0].dtype.is_int or condition.src[0].dtype is dtypes.index
    ):
        return []
    a, b = (_linear(s) for s in condition.src)
    if a is None or b is None:
        return []
    factors, constant = _plus(a, b, -1)
    if not set(factors) <= {row, step} or step not in factors:
        return []
    return [Limit(factors.get(row, 0), factors[step], constant + (condition.op is Ops.CMPLT))]


def limits(bodies: list[tuple[Ops, UOp]], row: UOp, step: UOp) -> tuple[Limit, ...]:
    """What row and position must satisfy for any of the reductions (its op, its ranged body) to change."""
    common: set[UOp] | None = None
    for op, body in bodies:
        nothing = {Ops.MAX: -math.inf, Ops.ADD: 0.0}.get(op)
        mine = set() if nothing is None else _conditions(body, nothing)
        common = mine if common is None else common & mine
    return tuple(sorted(x for c in common or () for x in _limit(c, row, step)))
