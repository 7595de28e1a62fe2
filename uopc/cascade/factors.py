"""A body taken apart by what its parts depend on: the reduced axis, running values, or both."""

from __future__ import annotations

from dataclasses import dataclass, field

from uopc.cascade.frame import Body, Frame, Unfit, members_in
from uopc.ops import Ops
from uopc.uop import UOp

EXPONENTIALS = (Ops.EXP, Ops.EXP2)
RUNNING_EXTREMES = (Ops.MAX, Ops.MIN)
# A factor is multiplied in as often as it stands in the body.
MAX_POWER = 8


@dataclass(frozen=True)
class Term:
    """A term of an exponent that depends on running values alone: ``inner`` under the operations ``outer``, in an
    exponential ``op`` that the body has to the power of ``power``."""

    inner: UOp
    outer: tuple[UOp, ...]  # the nodes that scale or cast it, innermost first
    power: int
    op: Ops

    def applied(self, inner: UOp) -> UOp:
        """The term with ``inner`` in its place, or less it where the power is negative.  It is never multiplied: the
        smallest float, which fills masks, has no multiple."""
        for u in self.outer:
            inner = inner.cast(u.dtype) if u.op is Ops.CAST else inner.alu(u.op, u.src[1])
        return inner if self.power > 0 else inner * -1.0


@dataclass
class Parts:
    """What is anchored (exponents of running maxima), and what is deferred: factors with their powers, exponents of
    other running values, addends."""

    anchored: list[Term] = field(default_factory=list)
    exponents: list[Term] = field(default_factory=list)
    factors: list[tuple[UOp, int]] = field(default_factory=list)
    addends: list[UOp] = field(default_factory=list)


def _is_float_cast(u: UOp) -> bool:
    return u.op is Ops.CAST and u.dtype.is_float and u.src[0].dtype.is_float


def as_product(body: Body, members: set[UOp], runs: set[UOp]) -> Parts:
    """The factors of a body, of which ``runs`` are what ``members`` go into; Unfit where one depends on the axis and
    on a running value."""
    out = Parts()
    powers = {body.outline.tree: 1}
    for u in reversed(body.outline.order):
        n = powers.get(u, 0)
        if u not in powers or u not in runs:
            continue
        if n == 0 or abs(n) > MAX_POWER:
            raise Unfit(f"a running value to the power of {n}")
        if u.op in EXPONENTIALS:
            _exponent(u, n, body, members, runs, out)
        elif not body.varies(u):
            out.factors.append((u, n))
        elif u.op is Ops.MUL or u.op is Ops.DIV or u.op is Ops.RECIP or _is_float_cast(u):
            for k, s in enumerate(u.src):
                powers[s] = powers.get(s, 0) + (-n if u.op is Ops.RECIP or (u.op is Ops.DIV and k == 1) else n)
        else:
            raise Unfit(f"{u.op.name} of a running value and of what it runs over is no product of the two")
    return out


def as_sum(body: Body, runs: set[UOp]) -> Parts:
    """The terms of a body, of which ``runs`` are what running values go into; Unfit where one depends on the axis
    too."""
    out = Parts()
    stack, seen = [body.outline.tree], set()
    while stack:
        u = stack.pop()
        if u not in runs:
            continue
        if u in seen:
            raise Unfit("a running value is added twice")
        seen.add(u)
        if not body.varies(u):
            out.addends.append(u)
        elif u.op is Ops.ADD:
            stack += u.src
        else:
            raise Unfit(f"{u.op.name} of a running value inside a {body.reduce.arg.op.name}")
    return out


def _scaled(u: UOp, body: Body, runs: set[UOp]) -> UOp | None:
    """``u`` if it casts or scales its first source by what neither runs nor is run over; None where it does not."""
    if _is_float_cast(u):
        return u
    for v in (u, u.replace(src=u.src[::-1])) if u.op is Ops.MUL else (u,) if u.op is Ops.DIV else ():
        if v.src[1] not in runs and not body.varies(v.src[1]):
            return v
    return None


def _exponent(exponential: UOp, power: int, body: Body, members: set[UOp], runs: set[UOp], out: Parts) -> None:
    """The terms of an exponent that depend on running values."""
    anchored = len(out.anchored)
    stack: list[tuple[UOp, tuple[UOp, ...]]] = [(exponential.src[0], ())]
    while stack:
        u, outer = stack.pop()
        if u not in runs:
            continue
        if u.op is Ops.ADD:
            stack += [(s, outer) for s in u.src]
        elif body.varies(u):
            scaled = _scaled(u, body, runs)
            if scaled is not None:
                stack.append((scaled.src[0], (scaled, *outer)))
                continue
            raise Unfit(f"the exponent has a term, {u.op.name}, of a running value and of what it runs over")
        else:
            extreme = all(m.arg.op in RUNNING_EXTREMES for m in members_in(u, members))
            scaled = None if extreme else _scaled(u, body, runs)
            if scaled is not None:  # perhaps of a sum, of which a part is extreme
                stack.append((scaled.src[0], (scaled, *outer)))
                continue
            (out.anchored if extreme else out.exponents).append(Term(u, outer, power, exponential.op))
    if len(out.anchored) == anchored:
        raise Unfit("an exponent that no running maximum keeps small may overflow while it runs")


def summands(frame: Frame) -> list[UOp]:
    """The frame's last reduction as a sum of reductions, one a term of the sum that is a factor of its body; none where
    no sum is, or where a term has no running value."""
    last = frame.members[-1]
    body = frame.bodies[last]
    if last.arg.op is not Ops.ADD:
        return []
    runs = body.running(set(frame.members[:-1]))
    u = body.outline.tree
    while u.op is not Ops.ADD:
        inner = u.src[:1] if u.op is Ops.DIV or _is_float_cast(u) else u.src if u.op is Ops.MUL else ()
        varying = [s for s in inner if s in runs and body.varies(s)]
        if len(varying) != 1:
            return []
        u = varying[0]
    if not all(s in runs and body.varies(s) for s in u.src):
        return []
    x, sums = body.reduce.src[0], body.outline.origin[u]
    parts = [x.substitute({o: o.src[k] for o in sums}) for k in (0, 1)]
    return [UOp(Ops.REDUCE, (p,), last.arg._replace(axes=(body.axis,))) for p in parts]
