"""What was derived, or refused and why, in formulas for readers.

Reductions are y1, y2, ... in the order in which they depend on each other; x1, x2, ... run over the reduced axis j, and
c1, c2, ... do not.  A running value is y before a block and y' after it; y_a and y_b are those of two parts of the
axis.  [t] is t, and 0 where t is infinite because nothing was met so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from uopc.cascade.derivation import Piece
from uopc.cascade.frame import Body, Frame
from uopc.cascade.lift import lifted, operations
from uopc.ops import ALU, Ops
from uopc.uop import UOp, unmoved

_INFIX = {
    Ops.ADD: "+", Ops.MUL: "*", Ops.DIV: "/", Ops.IDIV: "//", Ops.MOD: "%", Ops.CMPLT: "<", Ops.CMPLE: "<=",
    Ops.CMPEQ: "==", Ops.CMPNE: "!=", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.SHL: "<<", Ops.SHR: ">>",
}  # fmt: skip
_WORD = {Ops.ADD: "sum", Ops.MUL: "product"}
# A running value in a formula, and the mark of one after the block.
SELF = r"\g<0>"
PRIME = "'"
# A formula longer than this is cut: its beginning says what it is.
MAX_LENGTH = 400


@dataclass(frozen=True)
class Report:
    """What became of reductions that depend on each other.

    reductions: in order; reason: why they stay as they are (None: they became one).  state: what runs; step: how a
    block joins it; merge: how two partial states are one; anchored and deferred: the factors of running values that are
    corrected at each block, and those that are applied once at the end.
    """

    reductions: tuple[UOp, ...]
    axis_length: int
    reason: str | None
    state: tuple[str, ...]
    step: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()
    anchored: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{'; '.join(self.state)}: not derived: {self.reason}"
        lines = [("state", self.state), ("step", self.step), ("merge", self.merge)]
        lines += [("anchored", self.anchored), ("deferred", self.deferred)]
        return "\n".join(f"{name + ':':10}{'; '.join(said)}" for name, said in lines if said)


class _Names:
    """Names of the values of one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.members = {u: f"y{k}" for k, u in enumerate(frame.members, 1)}
        self.others: dict[UOp, str] = {}
        self.counts = {"x": 0, "c": 0}

    def of(self, u: UOp, body: Body) -> str:
        """The name of a leaf, which stands at the shape of the body or of its result: one name for one value."""
        if unmoved(u) in self.members:
            return self.members[unmoved(u)]
        at = body.at if u.shape == body.reduce.src[0].shape else (*body.at[: body.axis], *body.at[body.axis + 1 :])
        value = self.frame.value(u, at if u.shape else ())
        if value not in self.others:
            kind = "x" if self.frame.along in value.ranges else "c"
            self.counts[kind] += 1
            self.others[value] = f"{kind}{self.counts[kind]}"
        return self.others[value]


def _formula(u: UOp, body: Body, names: _Names, primed: bool) -> str:
    """A part of a body as text; running values with a prime where they are those after the block."""
    inner = lifted(u).tree
    memo: dict[UOp, str] = {}
    for v in operations(inner):
        if v.op in ALU:
            memo[v] = _applied(v, [memo[s] for s in v.src])
        elif unmoved(v).op is Ops.CONST:
            number = unmoved(v).arg
            memo[v] = f"{number:g}" if isinstance(number, float) else str(number)
        else:
            name = names.of(v, body)
            memo[v] = name + ("'" if primed and name.startswith("y") else "")
    return memo[inner]


def _applied(u: UOp, src: list[str]) -> str:
    if u.op is Ops.CAST:
        text = src[0] if u.dtype.is_float else f"{u.dtype.name}({src[0]})"
    elif u.op is Ops.MUL and "-1" in src:
        text = "-" + src[1 - src.index("-1")]
    elif u.op is Ops.RECIP:
        text = f"(1 / {src[0]})"
    elif u.op is Ops.MUL:
        text = f"({_product(*src)})"
    elif u.op in _INFIX:
        text = f"({src[0]} {_INFIX[u.op]} {src[1]})".replace("+ -", "- ")
    elif u.op is Ops.WHERE and src[1] == "0" and src[0] in (f"({src[2]} == {limit})" for limit in ("inf", "-inf")):
        text = f"[{src[2]}]"
    elif u.op is Ops.WHERE:
        text = f"({src[1]} if {src[0]} else {src[2]})"
    else:
        text = f"{u.op.name.lower()}({', '.join(src)})"
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 4] + " ..."


def _product(a: str, b: str) -> str:
    return f"{a} / {b[5:-1]}" if b.startswith("(1 / ") else f"{a} * {b}"


def _renamed(formula: str, pattern: str) -> str:
    return re.sub(r"\by\d+\b", pattern, formula)


def _combined(op: Ops, a: str, b: str) -> str:
    return f"{a} + {b}" if op is Ops.ADD else f"{a} * {b}" if op is Ops.MUL else f"{op.name.lower()}({a}, {b})"


def report_of(frame: Frame, reason: str | None, pieces: Mapping[UOp, Piece] | None = None) -> Report:
    """The report of a frame: with its ``pieces`` where they are derived, else with the reason why not."""
    names = _Names(frame)
    state, step, merge, anchored, deferred = [], [], [], [], []
    for u in frame.members:
        body, y, op = frame.bodies[u], names.members[u], u.arg.op
        over = _WORD.get(op, op.name.lower())
        state.append(f"{y} = {over} over j of {_formula(u.src[0], body, names, False)}")
        if pieces is None:
            continue
        p = pieces[u]
        exponents = [
            (a.op.name.lower(), _formula(a.exponent, body, names, False), f"^{a.times}" if a.times > 1 else "")
            for a in p.anchors
        ]
        moved = "".join(f"{exp}([{_renamed(e, SELF + PRIME)}] - ({e})){n} * " for exp, e, n in exponents)
        block = f"{over} over the block of {_formula(p.body, body, names, True)}"
        step.append(f"{y}' = {_combined(op, moved + y, block)}")
        a, b = (
            "".join(f"{exp}([{e}] - ({_renamed(e, SELF + part)})){n} * " for exp, e, n in exponents) + y + part
            for part in ("_a", "_b")
        )
        merge.append(f"{y} = {_combined(op, a, b)}")
        anchored += [f"{y} by {exp}({e}){n}" for exp, e, n in exponents]
        deferred += [_product(y, _formula(f, body, names, False)) for f in p.above]
        deferred += [f"{y} / {_formula(f, body, names, False)}" for f in p.below]
        deferred += [f"{y} + {_formula(t, body, names, False)}" for t in p.addends]
    told = tuple(map(tuple, (state, step, merge, anchored, deferred)))
    return Report(tuple(frame.members), frame.length, reason, *told)
