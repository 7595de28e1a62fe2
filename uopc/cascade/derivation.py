"""One reduction of a cascade: its body over running values, its correction, and what was deferred to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from uopc.cascade.factors import Parts, as_product, as_sum
from uopc.cascade.frame import Body, Frame, Refused, Unfit, members_in
from uopc.cascade.lift import lifted, operations, without_addends, without_factors, without_terms
from uopc.cascade.samples import Samples, evaluate, start
from uopc.cascade.survey import Survey
from uopc.dtype import dtypes
from uopc.ops import ALU, Ops, identity
from uopc.uop import DType, UOp

INF = float("inf")


@dataclass(frozen=True)
class Values:
    """What stands for reductions where expressions name them."""

    survey: Survey
    known: dict[UOp, UOp]

    def into(self, u: UOp) -> UOp:
        """``u`` over these values."""
        return self.survey.replaced(u, self.known)


@dataclass(frozen=True)
class Anchor:
    """The exponent of a correction, at the shape of the result: as it is, and 0 where nothing was met so far; the
    running values in it (None: the exponent tells by itself, being inf, that nothing was met); and how many times the
    body has the exponential for a factor."""

    op: Ops
    exponent: UOp
    settled: UOp
    extremes: tuple[UOp, ...] | None
    times: int

    def correction(self, old: Values, new: Values) -> UOp:
        """The factor that takes a sum from the old running values to the new ones; 0 where nothing was met before."""
        factor = once = (new.into(self.settled) - old.into(self.exponent)).alu(self.op)
        for _ in range(self.times - 1):
            factor = factor * once
        if self.extremes is None:
            return factor
        nothing = [old.into(e).eq(identity(_base_op(e), e.dtype)) for e in self.extremes]
        for n in nothing:
            factor = n.where(UOp.const(0.0, factor.dtype), factor)
        return factor


def _base_op(u: UOp) -> Ops:
    while u.op is not Ops.REDUCE:
        u = u.src[0]
    return u.arg.op


@dataclass(frozen=True)
class Piece:
    """A reduction as part of a cascade.  Its expressions still name the reductions that they use.

    body: what is combined, in which running values stand as they are after the block.  above, below: deferred factors;
    addends: deferred terms.  positive: no term of the sum is below 0.
    """

    reduce: UOp
    axis: int
    dtype: DType
    body: UOp
    anchors: tuple[Anchor, ...]
    above: tuple[UOp, ...]
    below: tuple[UOp, ...]
    addends: tuple[UOp, ...]
    positive: bool

    def over(self, memory: Mapping[UOp, UOp]) -> Piece:
        """The same piece where ``memory`` stands for what it reads."""

        def each(parts: tuple[UOp, ...]) -> tuple[UOp, ...]:
            return tuple(u.substitute(memory) for u in parts)

        anchors = []
        for a in self.anchors:
            exponent, settled = each((a.exponent, a.settled))
            extremes = None if a.extremes is None else each(a.extremes)
            anchors.append(replace(a, exponent=exponent, settled=settled, extremes=extremes))
        reduce, body = each((self.reduce, self.body))
        above, below, addends = map(each, (self.above, self.below, self.addends))
        return replace(
            self, reduce=reduce, body=body, anchors=tuple(anchors), above=above, below=below, addends=addends
        )

    @property
    def op(self) -> Ops:
        """How it combines."""
        return self.reduce.arg.op

    def correction(self, old: Values, new: Values) -> UOp | None:
        """What the running value is multiplied by before a block joins it."""
        total: UOp | None = None
        for a in self.anchors:
            factor = a.correction(old, new).cast(self.dtype)
            total = factor if total is None else total * factor
        return total

    def _unless(self, infinite: UOp, value: UOp, scaled: UOp) -> UOp:
        """``scaled``, but NaN where the factor makes every term infinite: their signs differ, unless none is below 0 or
        the sum is infinite by itself."""
        if self.positive:
            return scaled
        opposed = infinite & (value.alu(Ops.ABS) < INF)
        return opposed.where(UOp.const(float("nan"), scaled.dtype), scaled)

    def final(self, value: UOp, results: Values) -> UOp:
        """The reduction's value, from the cascade's and from the values of the others."""
        for f in self.above:
            f = results.into(f)
            value = self._unless(f.alu(Ops.ABS).eq(INF), value, _wider(value, f, Ops.MUL))
        for f in self.below:
            f = results.into(f)
            value = self._unless(f.eq(0.0), value, _wider(value, f, Ops.DIV))
        for a in self.anchors:
            lost = results.into(a.exponent).eq(INF)
            value = lost.where(value * INF, value)
        for t in self.addends:
            value = _wider(value, results.into(t), Ops.ADD)
        return value.cast(self.reduce.dtype)


def nonnegative(u: UOp) -> bool:
    """Whether a lifted value is never below 0, as its form tells."""
    known: dict[UOp, bool] = {}
    for v in operations(u):
        src = [known[s] for s in v.src] if v.op in ALU else []
        if v.op in (Ops.EXP, Ops.EXP2, Ops.ABS, Ops.SQRT):
            known[v] = True
        elif v.op is Ops.CONST:
            known[v] = bool(v.arg >= 0)
        elif v.op is Ops.MAX:
            known[v] = any(src)
        elif v.op in (Ops.ADD, Ops.MUL, Ops.DIV, Ops.MIN, Ops.CAST, Ops.WHERE):
            same = v.op is Ops.MUL and v.src[0] is v.src[1]
            known[v] = same or all(src[1:] if v.op is Ops.WHERE else src)
        else:
            known[v] = False
    return known[u]


def _wider(a: UOp, b: UOp, op: Ops) -> UOp:
    """``a op b`` in the wider of their types."""
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    return a.cast(dtype).alu(op, b.cast(dtype))


def parts_of(body: Body, earlier: set[UOp]) -> Parts:
    """The parts of a reduction that may use those of ``earlier``; Unfit where it is not of the form."""
    runs = body.running(earlier)
    if not runs:
        return Parts()
    op = body.reduce.arg.op
    if op is Ops.ADD:
        return as_product(body, earlier, runs)
    if op in (Ops.MAX, Ops.MIN):
        return as_sum(body, runs)
    raise Unfit(f"a running value inside a reduction by {op.name}")


class Builder:
    """Makes the pieces of one frame, each from its parts and the members before it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    @cached_property
    def samples(self) -> Samples:
        return Samples(self.frame.along)

    def piece(self, u: UOp, parts: Parts, pieces: Mapping[UOp, Piece]) -> Piece:
        """The reduction ``u``, which may use those of ``pieces``; Refused where it cannot be corrected."""
        body, earlier = self.frame.bodies[u], set(pieces)
        if any(pieces[m].addends for t in parts.anchored for m in members_in(t.inner, earlier)):
            raise Refused("a maximum in an exponent has terms that are known at the end only")
        dtype = dtypes.float32 if u.dtype.is_half else u.dtype
        kept = self._kept(body, parts).cast(dtype)
        factors = [(body.at_output(f), n) for f, n in parts.factors]
        factors += [(body.at_output(t.applied(t.inner).alu(t.op)), abs(t.power)) for t in parts.exponents]
        return Piece(
            reduce=u,
            axis=body.axis,
            dtype=dtype,
            body=kept,
            anchors=tuple(self._anchors(body, parts, earlier)),
            above=tuple(f for f, n in factors for _ in range(n)),
            below=tuple(f for f, n in factors for _ in range(-n)),
            addends=tuple(body.at_output(t) for t in parts.addends),
            positive=nonnegative(lifted(kept).tree),
        )

    def _kept(self, body: Body, parts: Parts) -> UOp:
        """The body without what is deferred, over the nodes that the reductions share, so that they go on sharing."""
        x, origin = body.reduce.src[0], body.outline.origin
        x = without_factors(x, [o for f, _ in parts.factors for o in origin[f]])
        x = without_addends(x, [o for t in parts.addends for o in origin[t]])
        x = without_terms(x, [o for t in parts.exponents for o in origin[t.inner]])
        settled: dict[UOp, UOp] = {}
        for t in parts.anchored:
            limit = self._limit(t.inner, body)
            if limit is not None:
                settled.update({o: _settled(o, limit) for o in origin[t.inner]})
        return self.frame.survey.replaced(x, settled)

    def _anchors(self, body: Body, parts: Parts, earlier: set[UOp]) -> list[Anchor]:
        out = []
        for op, times in dict.fromkeys((t.op, abs(t.power)) for t in parts.anchored):
            terms = [t for t in parts.anchored if t.op is op and abs(t.power) == times]
            exponent = _total([t.applied(t.inner) for t in terms])
            limits = [self._limit(t.inner, body) for t in terms]
            settled = _total([t.applied(t.inner if n is None else _settled(t.inner, n)) for t, n in zip(terms, limits)])
            extremes = {m: leaf for t in terms for m, leaf in members_in(t.inner, earlier).items()}
            tells = self._limit(exponent, body) == INF
            where = None if tells else tuple(body.at_output(leaf) for leaf in extremes.values())
            out.append(Anchor(op, body.at_output(exponent), body.at_output(settled), where, times))
        return out

    def _limit(self, part: UOp, body: Body) -> float | None:
        """What a part is where nothing was met so far: inf or -inf, or None where it is finite or depends."""
        first = {self.frame.leaf(m): start(m.arg.op, m.dtype) for m in members_in(part, set(self.frame.members))}
        with np.errstate(all="ignore"):
            x = evaluate(body.value(part), first, self.samples, slice(0, 1))
        for limit in (INF, -INF):
            if bool(np.all(x == limit)):
                return limit
        return None


def _settled(term: UOp, limit: float) -> UOp:
    """A term of an exponent, 0 where it is infinite for want of anything met, so that ``exp(-inf - -inf)`` is not asked
    for."""
    return term.eq(limit).where(UOp.const(0.0, term.dtype), term)


def _total(terms: list[UOp]) -> UOp:
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    return total
