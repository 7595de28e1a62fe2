"""cascade: reductions of one axis that depend on each other become one reduction over a derived monoid.

In and out: a SINK of tensor expressions.  Let ``R = (+) over j of F(x_j, y)``, where y is what earlier reductions over
the same axis give.  If the body can be written as a product whose factors depend on j or on y but not on both, then a
change of y changes every term by one factor, and R can be summed up
block by block while y is still running: ``R' = R * h(y') / h(y) (+) F(x, y')``.  The reductions and their corrections
become one CASCADE, in whose bodies y stands as STATE; each result is a COMPONENT of it.

- A factor ``exp(t(y))`` may overflow and is *anchored*: it stays in the body, and the correction is ``exp(t(y') -
  t(y))``, never a quotient.
- Any other factor of y alone is *deferred*: it is applied once to the sum.
- A factor of both, such as ``sigmoid(x - y)``, is refused, and the reductions stay as they are.

The parts are found by rewriting and by asking what depends on what; no operator has a name here.  A cascade is formed
only where its reductions share a value that is itself a reduction, which would else be written down or computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from uopc.ops import ALU, MOVEMENT, AxisType, CascadeArg, Component, ComponentArg, Ops, ParamArg, StateArg
from uopc.rangeify import Ctx, rangeify
from uopc.uop import UOp, toposort

# Movement ops that give every element of their result from one element of their source: they commute with elementwise
# ops.
_PLAIN = MOVEMENT - {Ops.PAD, Ops.VIEW}
# Sources that no derivation looks through.
_OPAQUE = frozenset(
    {
        Ops.REDUCE,
        Ops.STAGE,
        Ops.BUFFER,
        Ops.GATHER,
        Ops.STACK,
        Ops.CAT,
        Ops.PAD,
        Ops.VIEW,
        Ops.IOTA,
        Ops.COMPONENT,
        Ops.STATE,
    }
)
MINUS_INF = float("-inf")


class Refused(Exception):
    """Why reductions do not form a cascade."""


def _lifted(x: UOp) -> tuple[UOp, dict[UOp, UOp]]:
    """``x`` with its movement ops pushed below the elementwise ones, so that all of those have the shape of ``x``; and
    for each node of the result the node of ``x`` that it comes from."""
    memo: dict[tuple[UOp, tuple[UOp, ...]], UOp] = {}
    stack: list[tuple[UOp, tuple[UOp, ...]]] = [(x, ())]
    while stack:
        key = u, moves = stack[-1]
        if key in memo:
            stack.pop()
            continue
        if u.op in _PLAIN:
            below = (u.src[0], (u, *moves))
            if below in memo:
                memo[key] = memo[below]
                stack.pop()
            else:
                stack.append(below)
            continue
        if u.op not in ALU or not u.shape:
            memo[key] = _moved(u, moves)
            stack.pop()
            continue
        needs = [(s, moves) for s in u.src if s.shape]
        missing = [n for n in needs if n not in memo]
        if missing:
            stack += missing
            continue
        memo[key] = u.replace(src=tuple(memo[s, moves] if s.shape else s for s in u.src))
        stack.pop()
    origin: dict[UOp, UOp] = {}
    for (u, _), made in memo.items():
        if u.op not in _PLAIN:
            origin.setdefault(made, u)
    return memo[x, ()], origin


def _without(x: UOp, factors: set[UOp]) -> UOp:
    """``x`` with some factors of its products left out."""
    memo: dict[UOp, UOp | None] = dict.fromkeys(factors)  # None: a factor of 1
    for u in toposort(x):
        if u in memo:
            continue
        src = [memo[s] for s in u.src]
        if None not in src:
            memo[u] = u if tuple(src) == u.src else u.replace(src=tuple(src))  # type: ignore[arg-type]
        elif u.op in _PLAIN:
            memo[u] = None
        elif u.op is Ops.MUL:
            memo[u] = src[0] if src[1] is None else src[1]
        elif u.op is Ops.DIV and src[1] is None:
            memo[u] = src[0]
        elif u.op is Ops.DIV:
            memo[u] = UOp(Ops.RECIP, (src[1],))  # type: ignore[arg-type]
        else:
            memo[u] = UOp.const(1, u.dtype) if src != [None] else None
    out = memo[x]
    return UOp.const(1, x.dtype) if out is None else out


def _moved(u: UOp, moves: tuple[UOp, ...]) -> UOp:
    for m in moves:
        u = m.replace(src=(u,))
    return u


class _Body:
    """The lifted body of a reduction, and what its parts depend on."""

    def __init__(self, reduce: UOp) -> None:
        self.reduce = reduce
        self.axis: int = reduce.arg.axes[0]
        self.lifted, self.origin = _lifted(reduce.src[0])
        self.leaves: dict[UOp, UOp] = {}
        for u in _cone(self.lifted):
            if u.op is Ops.REDUCE:
                self.leaves[u] = UOp(Ops.BUFFER, (), ParamArg(-1 - len(self.leaves), u.dtype, u.shape))
        self.ctx = Ctx()
        self.idx = tuple(self.ctx.range(n, AxisType.LOOP) for n in self.lifted.shape)
        self.ranged: dict[UOp, UOp] = {}
        self.cut(self.lifted)

    def cut(self, u: UOp) -> UOp:
        """The ranged value of a part, with the reductions in it as if they were memory."""
        if u not in self.ranged:
            self.ranged[u] = rangeify(u.substitute(self.leaves), self.idx, self.ctx)
        return self.ranged[u]

    def varies(self, u: UOp) -> bool:
        """Whether a part depends on the reduced axis."""
        return bool(u.shape) and self.idx[self.axis] in self.cut(u).ranges

    def members(self) -> list[UOp]:
        """The reductions in the body, of as many elements, that are the same for all of the reduced axis."""
        out = []
        for u, leaf in self.leaves.items():
            if len(u.arg.axes) == 1 and u.src[0].shape[u.arg.axes[0]] == self.lifted.shape[self.axis]:
                asked = self.ctx.engine.asked(leaf)
                if asked and all(self.idx[self.axis] not in i.ranges for idx in asked for i in idx):
                    out.append(u)
        return out

    def producers(self) -> list[UOp]:
        """The reductions in the body that are other ones for each element of the reduced axis."""
        member = set(self.members())
        return [u for u in self.leaves if u not in member]


def _cone(x: UOp) -> list[UOp]:
    """The nodes of ``x`` down to the first reduction or memory on each path."""
    seen: dict[UOp, None] = {}
    stack = [x]
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        seen[u] = None
        if u.op not in (Ops.REDUCE, Ops.STAGE, Ops.BUFFER, Ops.COMPONENT):
            stack += u.src
    return list(seen)


@dataclass
class _Product:
    """A body taken apart: what stays in it, the exponents of y alone, and the factors of y alone (above and below the
    line)."""

    terms: list[UOp] = field(default_factory=list)
    exponents: list[UOp] = field(default_factory=list)
    above: list[UOp] = field(default_factory=list)
    below: list[UOp] = field(default_factory=list)


class _Derivation:
    """One cascade under way: its reductions in order, and for each the body over STATEs, the correction and the final
    step."""

    def __init__(self, last: UOp, number: int) -> None:
        self.number = number
        self.bodies: dict[UOp, _Body] = {}
        self.order: list[UOp] = []
        self.collect(last)

    def collect(self, last: UOp) -> None:
        """The reductions that ``last`` depends on, and itself, each after those it uses."""
        stack = [last]
        while stack:
            u = stack[-1]
            if u not in self.bodies:
                self.bodies[u] = _Body(u)
            missing = [m for m in self.bodies[u].members() if m not in self.bodies]
            if missing:
                stack += missing
                continue
            stack.pop()
            if u not in self.order:
                self.order.append(u)

    def shares_a_reduction(self) -> bool:
        """Whether two of the reductions use one value that is itself a reduction: what makes a cascade worth it."""
        seen: set[UOp] = set()
        for body in self.bodies.values():
            mine = set(body.producers())
            if mine & seen:
                return True
            seen |= mine
        return False

    def uses(self, u: UOp, members: set[UOp]) -> bool:
        return any(v in members for v in _cone(u))

    def take_apart(self, body: _Body, members: set[UOp]) -> _Product:
        """The factors of a body by what they depend on; Refused where one depends on the axis and on a running
        value."""
        out = _Product()
        stack = [(body.lifted, False)]
        while stack:
            u, inverse = stack.pop()
            if not self.uses(u, members):
                continue
            if u.op is Ops.MUL:
                stack += [(s, inverse) for s in u.src]
            elif u.op is Ops.DIV:
                stack += [(u.src[0], inverse), (u.src[1], not inverse)]
            elif u.op is Ops.RECIP:
                stack.append((u.src[0], not inverse))
            elif not body.varies(u) and u.op is not Ops.EXP:
                (out.below if inverse else out.above).append(u)
            elif u.op is Ops.EXP and not inverse:
                self.exponent(u.src[0], body, members, out)
            else:
                raise Refused(f"{u.op.name} of a running value and of what it runs over is no product of the two")
        return out

    def exponent(self, u: UOp, body: _Body, members: set[UOp], out: _Product) -> None:
        for term in _terms(u, body, members, self):
            if not self.uses(term, members):
                continue
            if body.varies(term):
                raise Refused(f"the exponent has a term, {term.op.name}, of a running value and of what it runs over")
            if any(m.arg.op is not Ops.MAX for m in members if m in _cone(term)):
                raise Refused("an exponent that is not a maximum may overflow while it runs")
            out.exponents.append(term)

    def build(self) -> dict[UOp, UOp]:
        """What replaces each reduction: a COMPONENT, and the deferred factors."""
        members: set[UOp] = set()
        states: dict[UOp, tuple[UOp, UOp]] = {}
        sources: list[UOp] = []
        components: list[Component] = []
        finals = []
        for k, u in enumerate(self.order):
            body = self.bodies[u]
            if u.arg.op is not Ops.ADD and members & set(_cone(body.lifted)):
                raise Refused(f"a running value inside a reduction by {u.arg.op.name}")
            product = self.take_apart(body, members)
            finals.append(self.component(u, product, states, sources, components))
            states[u] = tuple(
                UOp(Ops.STATE, (), StateArg(self.number, k, new, u.dtype, u.shape)) for new in (False, True)
            )  # type: ignore[assignment]
            members.add(u)
        whole = UOp(Ops.CASCADE, tuple(sources), CascadeArg(self.number, tuple(components)))
        out: dict[UOp, UOp] = {}
        for k, (u, final) in enumerate(zip(self.order, finals)):
            out[u] = final(UOp(Ops.COMPONENT, (whole,), ComponentArg(k, u.dtype, u.shape)), out)
        return out

    def component(
        self,
        u: UOp,
        product: _Product,
        states: dict[UOp, tuple[UOp, UOp]],
        sources: list[UOp],
        components: list[Component],
    ):  # type: ignore[no-untyped-def]
        """Add the body and the correction of one reduction; returns what turns its COMPONENT into its value."""
        body = self.bodies[u]
        old = {m: pair[0] for m, pair in states.items()}
        new = {m: pair[1] for m, pair in states.items()}
        safe = {t: _finite(t) for t in product.exponents}
        factors = (*product.above, *product.below)
        if all(f in body.origin for f in (*factors, *product.exponents)):
            # over the nodes that the reductions share, so that they go on sharing them
            kept = _without(u.src[0], {body.origin[f] for f in factors})
            kept = kept.substitute({body.origin[t]: _finite(body.origin[t]) for t in product.exponents})
        else:
            kept = _without(body.lifted, set(factors)).substitute(safe)
        sources.append(_spread(kept.substitute(new), u.src[0].shape))
        exponent = _sum([_at_output(t, body) for t in product.exponents])
        if exponent is not None:
            settled = _sum([_at_output(safe[t], body) for t in product.exponents])
            assert settled is not None
            sources.append((settled.substitute(new) - exponent.substitute(old)).alu(Ops.EXP))
        components.append(Component(u.arg.op, body.axis, exponent is not None))

        def final(value: UOp, results: dict[UOp, UOp]) -> UOp:
            for f in product.above:
                value = value * _at_output(f, body).substitute(results)
            for f in product.below:
                value = value / _at_output(f, body).substitute(results)
            if exponent is not None:
                lost = exponent.substitute(results).eq(float("inf"))
                value = lost.where(value * float("inf"), value)
            return value

        return final


def _terms(u: UOp, body: _Body, members: set[UOp], derivation: _Derivation) -> list[UOp]:
    """``u`` as a sum; a constant or another factor that neither runs nor is run over is multiplied in."""
    if u.op is Ops.ADD:
        return [t for s in u.src for t in _terms(s, body, members, derivation)]
    if u.op in (Ops.MUL, Ops.DIV):
        for inner, outer in ((u.src[0], u.src[1]), (u.src[1], u.src[0])):
            if inner is u.src[1] and u.op is Ops.DIV:
                break
            if not body.varies(outer) and not derivation.uses(outer, members) and derivation.uses(inner, members):
                return [t.alu(u.op, outer) for t in _terms(inner, body, members, derivation)]
    return [u]


def _sum(terms: list[UOp]) -> UOp | None:
    total: UOp | None = None
    for t in terms:
        total = t if total is None else total + t
    return total


def _spread(u: UOp, shape: tuple[int, ...]) -> UOp:
    """What is left of a body, at the shape of the body: a constant where all its factors were deferred."""
    if u.shape:
        return u
    return UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (u,), (1,) * len(shape)),), shape)


def _finite(term: UOp) -> UOp:
    """An exponent that is inf where nothing but -inf was met so far: 0 there, so that ``exp(-inf - -inf)`` is not asked
    for."""
    return term.eq(float("inf")).where(UOp.const(0.0, term.dtype), term)


def _at_output(u: UOp, body: _Body) -> UOp:
    """A part that does not vary along the reduced axis, at the shape of the reduction's result."""
    if not u.shape:
        return u
    first = tuple((0, 1) if a == body.axis else (0, n) for a, n in enumerate(u.shape))
    return UOp(Ops.RESHAPE, (UOp(Ops.SHRINK, (u,), first),), body.reduce.shape)


def cascade(root: UOp, fuse_reduce: bool | None = None) -> UOp:
    """The graph of ``root`` (a SINK), its cascades merged; as it is where ``fuse_reduce`` asks for another way."""
    if fuse_reduce is not None:
        return root
    replaced: dict[UOp, UOp] = {}
    taken: set[UOp] = set()
    for u in reversed(toposort(root)):
        if (
            u.op is not Ops.REDUCE
            or u in taken
            or len(u.arg.axes) != 1
            or u.src[0].shape[u.arg.axes[0]] < 2
            or 0 in u.shape
            or u.arg.op is not Ops.ADD
            or not u.dtype.is_float
        ):
            continue
        if not any(v.op is Ops.REDUCE for v in _cone(u.src[0])):
            continue
        derivation = _Derivation(u, len(replaced))
        if len(derivation.order) < 2 or taken & set(derivation.order) or not derivation.shares_a_reduction():
            continue
        try:
            made = derivation.build()
        except Refused:
            continue
        taken |= set(derivation.order)
        replaced.update(made)
    return root.substitute(replaced) if replaced else root
