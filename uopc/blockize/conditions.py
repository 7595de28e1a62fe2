"""Conditions: what must hold for a value to be anything but the one that leaves a reduction unchanged.

A step of a cascade changes nothing where each of its reductions gets what leaves it unchanged: -inf for a maximum, 0
for a sum.  Which bools must hold for anything else is read off the expressions: a choice whose other side is -inf, a
-inf that is added, an exponential of either, a product with either.

What is excluded is excluded whatever it is: ``-inf + x`` is taken for -inf and ``0 * x`` for 0, x being infinite or NaN
too.  A NaN that stands where a -inf would exclude is none, and excludes nothing.
"""

from __future__ import annotations

import math

from uopc.ops import MOVEMENT, Ops
from uopc.uop import UOp

# Movement that gives every element of its result from one of its source.
PLAIN = MOVEMENT - {Ops.PAD, Ops.VIEW}
# The value that leaves a reduction unchanged, and the one of a bool that lets nothing through.
NOTHING = {Ops.MAX: -math.inf, Ops.ADD: 0.0}
# A value, what it is to be told from, and the movement that takes it to where it is used.
Asked = tuple[UOp, float, tuple[UOp, ...]]


def conditions(u: UOp, nothing: float) -> list[UOp]:
    """Bools, at the shape of ``u``, of which each must hold, or the value is ``nothing``: -inf, 0, or False."""
    out: dict[UOp, None] = {}
    seen: set[Asked] = set()
    stack: list[Asked] = [(u, nothing, ())]
    while stack:
        asked = v, nothing, moves = stack.pop()
        if asked in seen or (not v.shape and u.shape):
            continue
        seen.add(asked)
        if v.op in PLAIN:
            stack.append((v.src[0], nothing, (v, *moves)))
            continue
        below = _below(v, nothing)
        stack += [(s, value, moves) for s, value in reversed(below)]
        if not below and v.dtype.is_bool:
            out[_moved(v, moves)] = None
        elif not below and nothing == -math.inf and v.op in (Ops.BUFFER, Ops.VIEW):
            out[_moved(v.ne(-math.inf), moves)] = None
    return list(out)


def _below(u: UOp, nothing: float) -> list[tuple[UOp, float]]:
    """Values of which each, being what it is told from, makes ``u`` ``nothing``; none where only ``u`` itself tells."""
    if u.op is Ops.WHERE:
        condition, a, b = u.src
        if _is(b, nothing):
            return [(condition, False), (a, nothing)]
        return [(condition.logical_not(), False), (b, nothing)] if _is(a, nothing) else []
    if u.dtype.is_bool:
        return _of_bool(u)
    if u.op is Ops.CAST:
        x = u.src[0]
        return [(x, nothing)] if x.dtype.is_float else [(x, False)] if x.dtype.is_bool and nothing == 0 else []
    if nothing == 0:
        if u.op in (Ops.EXP, Ops.EXP2):
            return [(u.src[0], -math.inf)]
        return [(s, 0.0) for s in (u.src if u.op is Ops.MUL else u.src[:1] if u.op is Ops.DIV else ())]
    if u.op is Ops.ADD:
        return [(s, nothing) for s in u.src]
    if u.op in (Ops.MUL, Ops.DIV) and u.src[1].op is Ops.CONST and 0 < u.src[1].arg < math.inf:
        return [(u.src[0], nothing)]
    return [(u.src[0], 0.0)] if u.op in (Ops.LOG, Ops.LOG2) else []


def _of_bool(u: UOp) -> list[tuple[UOp, float]]:
    """The bools whose conjunction ``u`` is; the negation of a comparison of integers is one."""
    if u.op is Ops.AND:
        return [(s, False) for s in u.src]
    if u.op is not Ops.XOR or u.src[1].op is not Ops.CONST or u.src[1].arg is not True:
        return []
    x = u.src[0]
    if x.op in PLAIN:
        return [(x.replace(src=(x.src[0].logical_not(),)), False)]
    if x.op is Ops.OR:
        return [(s.logical_not(), False) for s in x.src]
    if x.op is Ops.XOR and x.src[1] is u.src[1]:
        return [(x.src[0], False)]
    if x.op in (Ops.CMPLT, Ops.CMPLE) and x.src[0].dtype.is_int:
        a, b = x.src
        return [(b <= a if x.op is Ops.CMPLT else b < a, False)]
    return []


def _is(u: UOp, value: float) -> bool:
    while u.op in PLAIN:
        u = u.src[0]
    return u.op is Ops.CONST and not isinstance(u.arg, tuple) and bool(u.arg == value)


def _moved(u: UOp, moves: tuple[UOp, ...]) -> UOp:
    for m in moves:
        u = m.replace(src=(u,))
    return u
