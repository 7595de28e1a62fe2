"""Formulas: a tensor graph as one line of text, without its movement operations.

Buffers are ``in0``, ``in1``, ... or what ``names`` calls them.  Of a cascade, a running value is ``y`` before and
``y'`` after the block at hand, and ``y*`` at the end, where y is ``state[k]`` for its k-th reduction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from uopc.ops import MOVEMENT, Ops
from uopc.uop import UOp, toposort

_INFIX = {
    Ops.ADD: "+", Ops.MUL: "*", Ops.DIV: "/", Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!=",
}  # fmt: skip
_REDUCTION = {Ops.ADD: "sum", Ops.MAX: "max", Ops.MIN: "min", Ops.MUL: "prod"}


def formula(root: UOp, names: Mapping[UOp, str] | None = None, state: Sequence[str] = ("m", "l", "o")) -> str:
    """``root`` as a line of text; values in ``names`` stand by their names."""
    known = dict(names or {})
    for u in toposort(root):
        if u not in known:
            known[u] = _line(u, [known[s] for s in u.src], state)
    return known[root]


def _line(u: UOp, sources: list[str], state: Sequence[str]) -> str:
    if u.op in MOVEMENT or u.op is Ops.STAGE:
        return sources[0]
    if u.op is Ops.CONST:
        return f"{u.arg:g}" if isinstance(u.arg, float) and math.isfinite(u.arg) else str(u.arg)
    if u.op is Ops.BUFFER:
        return f"in{u.arg.slot}"
    if u.op is Ops.STATE:
        return state[u.arg.component] + ("'" if u.arg.new else "")
    if u.op is Ops.COMPONENT:
        return state[u.arg.component] + "*"
    if u.op is Ops.REDUCE:
        return f"{_REDUCTION[u.arg.op]}[{', '.join(map(str, u.arg.axes))}]({_bare(sources[0])})"
    if u.op is Ops.MUL and u.src[1].op is Ops.CONST and u.src[1].arg == -1:
        return sources[0][1:] if sources[0].startswith("-") else f"-{sources[0]}"
    if u.op is Ops.ADD and sources[1].startswith("-"):
        return f"({sources[0]} - {sources[1][1:]})"
    if u.op in _INFIX:
        return f"({sources[0]} {_INFIX[u.op]} {sources[1]})"
    return f"{u.op.name.lower()}({', '.join(map(_bare, sources))})"


def _bare(text: str) -> str:
    """Without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if k == len(text) - 1 else text
    return text


def derivation(cascade: UOp, names: Mapping[UOp, str] | None = None, state: Sequence[str] = ("m", "l", "o")) -> str:
    """The reductions of a CASCADE, one a line: how the running value changes with a block."""
    rest = iter(cascade.src)
    lines = []
    for y, component in zip(state, cascade.arg.components):
        body = _bare(formula(next(rest), names, state))
        step = f"{_REDUCTION[component.op]}[{component.axis}]({body})"
        old = f"{y} * {formula(next(rest), names, state)}" if component.corrected else y
        joined = f"{old} + {step}" if component.op is Ops.ADD else f"{_REDUCTION[component.op]}({old}, {step})"
        lines.append(f"{y}' = {joined}")
    return "\n".join(lines)


__all__ = ["derivation", "formula"]
