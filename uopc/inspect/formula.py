"""formula: tensor graphs as text that a reader knows from papers.

Movement ops are left out, since they change where a value is and not what it is.  So are the guards of a cascade's
running values, against ``exp(-inf - -inf)`` and the like.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from uopc.ops import MOVEMENT, Ops
from uopc.uop import UOp, unmoved

_INFIX = {
    Ops.ADD: ("+", 4), Ops.MUL: ("*", 5), Ops.DIV: ("/", 5), Ops.IDIV: ("//", 5), Ops.MOD: ("%", 5),
    Ops.CMPLT: ("<", 3), Ops.CMPLE: ("<=", 3), Ops.CMPEQ: ("==", 3), Ops.CMPNE: ("!=", 3),
    Ops.AND: ("&", 2), Ops.OR: ("|", 1), Ops.XOR: ("^", 2),
}  # fmt: skip
REDUCES = {Ops.ADD: "sum", Ops.MUL: "prod", Ops.MAX: "max", Ops.MIN: "min", Ops.AND: "all", Ops.OR: "any"}
MAX_DEPTH = 12
MAX_LENGTH = 160
MAX_GUARD = 64  # nodes of a condition

Names = Callable[[UOp], str | None]


def formula(u: UOp, names: Names = lambda u: None) -> str:
    """``u`` as an expression.  names: what to call a node; None where it is to be written out."""
    text = _text(u, names, 0, 0)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 4]} ..."


def _text(u: UOp, names: Names, around: int, depth: int) -> str:
    known = names(u)
    if known is not None:
        return known
    if u.op in MOVEMENT or u.op in (Ops.STAGE, Ops.CAST):
        return _text(u.src[0], names, around, depth)
    if u.op is Ops.CONST:
        return _number(u.arg)
    if u.op is Ops.BUFFER:
        return f"in{u.arg.slot}" if 0 <= u.arg.slot < 1 << 32 else "x"
    if u.op is Ops.IOTA:
        return f"arange({u.arg})"
    if depth > MAX_DEPTH:
        return "..."
    guarded = _guarded(u)
    if guarded is not None:
        return _text(guarded, names, around, depth)
    return _operation(u, names, around, depth + 1)


def _operation(u: UOp, names: Names, around: int, depth: int) -> str:
    if u.op is Ops.ADD:
        text = _sum(u, names, depth)
        return f"({text})" if around > 4 else text
    if _negated(u) is not None:
        return f"-{_text(_negated(u), names, 5, depth)}"  # type: ignore[arg-type]
    if u.op in _INFIX:
        sign, level = _INFIX[u.op]
        right_level = level + (u.op in (Ops.DIV, Ops.IDIV, Ops.MOD))
        text = f"{_text(u.src[0], names, level, depth)} {sign} {_text(u.src[1], names, right_level, depth)}"
        return f"({text})" if around > level else text
    if u.op is Ops.RECIP:
        text = f"1 / {_text(u.src[0], names, 6, depth)}"
        return f"({text})" if around > 4 else text
    word = REDUCES[u.arg.op] if u.op is Ops.REDUCE else u.op.name.lower()
    return f"{word}({', '.join(_text(s, names, 0, depth) for s in u.src)})"


def _sum(u: UOp, names: Names, depth: int) -> str:
    """A sum with its signs, positive terms first."""
    above: list[UOp] = []
    below: list[UOp] = []
    stack = [(u, False)]
    while stack:
        v, negative = stack.pop()
        inner = _negated(v)
        if inner is not None:
            stack.append((inner, not negative))
        elif _plain(v).op is Ops.ADD and names(v) is None:
            stack += [(s, negative) for s in reversed(_plain(v).src)]
        else:
            (below if negative else above).append(v)
    text = " + ".join(_text(v, names, 4, depth) for v in above)
    return text + "".join(f" - {_text(v, names, 5, depth)}" for v in below)


def _plain(u: UOp) -> UOp:
    """What stands under movement and guards."""
    while u.op in MOVEMENT or _guarded(u) is not None:
        u = _guarded(u) or u.src[0]
    return u


def _negated(u: UOp) -> UOp | None:
    """What ``u`` is the negative of."""
    u = _plain(u)
    if u.op is Ops.MUL and _is(u.src[1], -1):
        return u.src[0]
    return None


def _guarded(u: UOp) -> UOp | None:
    """What a guard of a cascade guards: x of ``where(c, y, x)`` where c asks about running values alone, and y is a
    constant or ``x * inf``.  It is what makes infinities come out right."""
    if u.op is not Ops.WHERE:
        return None
    asked, instead, value = u.src
    instead = unmoved(instead)
    lost = instead.op is Ops.MUL and instead.src[0] is value and _is(instead.src[1], math.inf)
    return value if (lost or instead.op is Ops.CONST) and _about_running(asked) else None


def _about_running(u: UOp) -> bool:
    """Whether a condition has the values of a cascade and constants as its leaves, and no others."""
    stack, running = [u], False
    for _ in range(MAX_GUARD):
        if not stack:
            return running
        v = stack.pop()
        if v.op in (Ops.COMPONENT, Ops.STATE):
            running = True
        elif v.op is not Ops.CONST:
            if not v.src or v.op in (Ops.REDUCE, Ops.STAGE, Ops.GATHER):
                return False
            stack += v.src
    return False


def _is(u: UOp, constant: float) -> bool:
    u = unmoved(u)
    return u.op is Ops.CONST and u.arg == constant


def _number(x: object) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)
