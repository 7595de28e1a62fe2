"""Conditions: what must hold for a value to be anything but the one that leaves a reduction unchanged.

A step of a cascade changes nothing where each of its reductions gets what leaves it unchanged: -inf for a maximum, 0
for a sum.  Which bools must hold for anything else is found from the leaves up: a choice with -inf on its other side,
an added -inf and the logarithm of 0 make -inf, an exponential of that is 0, and so is a product with it.

What is excluded is excluded whatever it is: data counts as finite, so that ``-inf + x`` is -inf and ``0 * x`` is 0.
Not so where x is infinite for the same reason: ``p * log(p)`` of an excluded key is NaN.  And a NaN in memory that is
added is no -inf, and excludes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from uopc.ops import PLAIN, Ops
from uopc.uop import UOp, format_graph, toposort

# What leaves a reduction unchanged.
NOTHING = {Ops.MAX: -math.inf, Ops.ADD: 0.0}

Bools = frozenset[UOp]
NONE: Bools = frozenset()


@dataclass(frozen=True)
class _Facts:
    """Bools at the shape of a value, such that, where one does not hold, the value is 0, -inf, inf, or perhaps one of
    the infinities or NaN (wild); or, of a bool, False or True."""

    zero: Bools = NONE
    low: Bools = NONE
    high: Bools = NONE
    wild: Bools = NONE
    false: Bools = NONE
    true: Bools = NONE

    def each(self, change: Callable[[Bools], Bools]) -> _Facts:
        return _Facts(*(change(s) for s in (self.zero, self.low, self.high, self.wild, self.false, self.true)))


NOTHING_KNOWN = _Facts()


def conditions(u: UOp, nothing: float) -> list[UOp]:
    """Bools, at the shape of ``u``, of which each must hold, or the value is ``nothing``: -inf, or 0."""
    known: dict[UOp, _Facts] = {}
    for v in toposort(u):
        known[v] = _of(v, [_beside(s, v, known[s]) for s in v.src])
    # in one order whatever the order of a set is, so that a kernel is one text
    return sorted(known[u].zero if nothing == 0 else known[u].low, key=format_graph)


def _beside(s: UOp, u: UOp, facts: _Facts) -> _Facts:
    """What is known of a source at the shape of its user; nothing of a number that is spread."""
    return facts if s.shape == u.shape or u.op in PLAIN else NOTHING_KNOWN


def _of(u: UOp, src: list[_Facts]) -> _Facts:
    if u.op in PLAIN:
        return src[0].each(lambda bools: frozenset(u.replace(src=(c,)) for c in bools if c.shape))
    if u.dtype.is_bool:
        return _of_bool(u, src)
    rule = _RULES.get(u.op)
    if rule is not None:
        return rule(u, src)
    if u.op in (Ops.BUFFER, Ops.VIEW) and u.dtype.is_float:
        there = frozenset([u.ne(-math.inf)])
        return _Facts(low=there, wild=there)
    # of a 0 or an infinity it may make an infinity or NaN
    return _Facts(wild=frozenset().union(*(s.zero | s.low | s.high | s.wild for s in src)))


def _of_bool(u: UOp, src: list[_Facts]) -> _Facts:
    negated = u.logical_not()
    if u.op is Ops.AND:
        return _Facts(false=src[0].false | src[1].false, true=src[0].true & src[1].true | {negated})
    if u.op is Ops.OR:
        return _Facts(false=src[0].false & src[1].false | {u}, true=src[0].true | src[1].true)
    if u.op is Ops.XOR and u.src[1].op is Ops.CONST and u.src[1].arg is True:
        return _Facts(false=src[0].true, true=src[0].false)
    if u.op in (Ops.CMPLT, Ops.CMPLE) and u.src[0].dtype.is_int:
        a, b = u.src
        negated = b <= a if u.op is Ops.CMPLT else b < a
    return _Facts(false=frozenset([u]), true=frozenset([negated]))


def _number(u: UOp) -> float | None:
    """The constant that a value is everywhere."""
    while u.op in PLAIN:
        u = u.src[0]
    return float(u.arg) if u.op is Ops.CONST and not isinstance(u.arg, tuple) else None


def _is_finite(number: float | None) -> bool:
    """Whether a value is finite, data counting as such."""
    return number is None or math.isfinite(number)


def _choice(u: UOp, src: list[_Facts]) -> _Facts:
    condition, a, b = src

    def chosen(value: float, of_a: Bools, of_b: Bools) -> Bools:
        """Where the choice is ``value``: where both sides are, or one is and is chosen."""
        if _number(u.src[2]) == value:
            return condition.false | of_a
        if _number(u.src[1]) == value:
            return condition.true | of_b
        return of_a & of_b | condition.false & of_b | condition.true & of_a

    low, high = chosen(-math.inf, a.low, b.low), chosen(math.inf, a.high, b.high)
    wild = (a.wild | b.wild) - (condition.false - b.wild) - (condition.true - a.wild) | low | high
    for side, where in ((u.src[2], condition.false), (u.src[1], condition.true)):
        if not _is_finite(_number(side)):
            wild |= where
    return _Facts(chosen(0.0, a.zero, b.zero), low, high, wild)


def _sum(u: UOp, src: list[_Facts]) -> _Facts:
    a, b = src
    low, high = a.low - b.high | b.low - a.high, a.high - b.low | b.high - a.low
    return _Facts(a.zero & b.zero, low, high, a.wild | b.wild)


def _product(u: UOp, src: list[_Facts]) -> _Facts:
    a, b = src
    zero = a.zero - b.wild | b.zero - a.wild
    factor = _number(u.src[1])
    if not _is_finite(factor) or not _is_finite(_number(u.src[0])):
        return _Facts(wild=a.wild | b.wild | zero)
    if factor is not None and factor != 0:
        return _Facts(zero, *((a.low, a.high) if factor > 0 else (a.high, a.low)), a.wild)
    return _Facts(zero, wild=(a.wild | b.wild) - zero)


def _quotient(u: UOp, src: list[_Facts]) -> _Facts:
    a, b = src
    zero, wild = a.zero - b.zero - b.wild, a.wild | b.wild | b.zero
    divisor = _number(u.src[1])
    if divisor is not None and 0 < divisor < math.inf:
        return _Facts(zero, a.low, a.high, wild)
    return _Facts(zero if divisor != 0 and _is_finite(divisor) else NONE, wild=wild)


def _cast(u: UOp, src: list[_Facts]) -> _Facts:
    return _Facts(zero=src[0].false) if u.src[0].dtype.is_bool else src[0]


_RULES: dict[Ops, Callable[[UOp, list[_Facts]], _Facts]] = {
    Ops.WHERE: _choice,
    Ops.ADD: _sum,
    Ops.MUL: _product,
    Ops.DIV: _quotient,
    Ops.CAST: _cast,
    **dict.fromkeys((Ops.EXP, Ops.EXP2), lambda u, src: _Facts(zero=src[0].low, wild=src[0].wild - src[0].low)),
    **dict.fromkeys((Ops.LOG, Ops.LOG2), lambda u, src: _Facts(low=src[0].zero, wild=src[0].wild | src[0].zero)),
    Ops.RECIP: lambda u, src: _Facts(wild=src[0].wild | src[0].zero),
    Ops.TANH: lambda u, src: _Facts(zero=src[0].zero),
    Ops.NDTR: lambda u, src: _Facts(zero=src[0].low),
    Ops.SQRT: lambda u, src: _Facts(zero=src[0].zero, high=src[0].high, wild=src[0].wild | src[0].low),
    Ops.ABS: lambda u, src: _Facts(zero=src[0].zero, high=src[0].high | src[0].low, wild=src[0].wild),
}
