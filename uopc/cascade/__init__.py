"""cascade: reductions of one axis that depend on each other become one reduction over a derived monoid.

In and out: a SINK of tensor expressions.  Let ``R = (+) over j of F(x_j, y)``, where y is what earlier reductions over
the same axis give.  If the body can be written as a product whose factors depend on j or on y but not on both, then a
change of y changes every term by one factor, and R can be summed up block by block while y is still running:
``R' = R * h(y') / h(y) (+) F(x, y')``.  The reductions and their corrections become one CASCADE, in whose bodies y
stands as STATE; each result is a COMPONENT of it.

- A factor ``exp(t(y))`` of a running maximum may overflow and is *anchored*: it stays in the body, and the correction
  is ``exp(t(y') - t(y))``, never a quotient.
- Any other factor of y alone is *deferred*: it is applied once to the sum; and so is a term of y in a maximum.
- A sum of terms each of which is of this form by itself is summed term by term.
- A factor of both, such as ``sigmoid(x - y)``, is refused, and the reductions stay as they are.
- Without any y it is a cascade of one reduction, where R needs the results of another one again and again and writing
  them down costs more (``chain``).

The parts are found by rewriting and by asking what depends on what; no operator has a name here.  What is right in
exact arithmetic may still overflow: a derivation that samples tell from the original is refused (``trial``).  A cascade
is formed only where its reductions share a value that is itself a reduction, which would else be written down or
computed again, and where a block can hold what it sums up for each row.  ``derivations`` tells what was derived, and
what was refused and why.

What the reductions use of other reductions, their *producers*, a block computes for itself; a STAGE goes around those
that it would compute again and again (``Frame.written``), or that are better had from memory (``_Search.dear``), with
what is computed from them element by element (``epilogue``).  To have that as memory, the graph is looked at a second
time.  A cascade that is left with nothing to share is none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from uopc._hot.graph import cone, of_ops, replace_all
from uopc.cascade.chain import check_chain, links
from uopc.cascade.derivation import Piece, Values, parts_of
from uopc.cascade.epilogue import Users, epilogue
from uopc.cascade.factors import Parts, summands
from uopc.cascade.formulas import Report, report_of
from uopc.cascade.frame import Frame, Refused, Unfit
from uopc.cascade.known import derived
from uopc.cascade.lift import ENDS, LEAVES
from uopc.cascade.parts import in_parts
from uopc.cascade.survey import Survey, alone
from uopc.ops import CascadeArg, Component, ComponentArg, Level, Ops, StateArg
from uopc.rates import BLOCK_WIDTH
from uopc.uop import UOp, toposort

# A body of more operations than this, down to its first reductions, is layers of a network: it is left alone, so that
# time stays linear in the graph.
MAX_BODY = 256

__all__ = ["Report", "cascade", "derivations"]


@dataclass(frozen=True)
class _Group:
    """A cascade under way: its reductions in order; the producers that they use, those that several of them share, and
    those to be written down."""

    number: int
    pieces: dict[UOp, Piece] = field(default_factory=dict)
    producers: dict[UOp, None] = field(default_factory=dict)
    shared: dict[UOp, None] = field(default_factory=dict)
    written: dict[UOp, None] = field(default_factory=dict)

    def parts(self, frame: Frame) -> dict[UOp, Parts]:
        """The bodies of a frame's reductions taken apart, those that are not in the group yet; Refused where they are
        not of the form."""
        frame.check_members()
        parts: dict[UOp, Parts] = {}
        for u in frame.members:
            if u not in self.pieces:
                parts[u] = parts_of(frame.bodies[u], {*self.pieces, *parts})
        return parts

    def extended(self, frame: Frame, parts: Mapping[UOp, Parts]) -> _Group:
        """The group with the reductions of a frame, of which ``parts`` are new; Refused where it is no cascade."""
        frame.check_shared()
        made = derived(frame, parts, self.pieces)
        shared, written = dict.fromkeys(frame.shared), dict.fromkeys(frame.written())
        producers = {**self.producers, **frame.producers}
        return _Group(self.number, made, producers, {**self.shared, **shared}, {**self.written, **written})

    def idle(self) -> bool:
        """Whether its blocks compute no value that several reductions share: they would but read memory, row by row."""
        return len(self.pieces) > 1 and all(u in self.written for u in self.shared)

    def build(self, survey: Survey) -> dict[UOp, UOp]:
        """What replaces each reduction: a COMPONENT, and what was deferred."""
        number, pieces = self.number, list(self.pieces.values())
        state = [
            {
                p.reduce: UOp(Ops.STATE, (), StateArg(number, k, new, p.dtype, p.reduce.shape)).cast(p.reduce.dtype)
                for k, p in enumerate(pieces)
            }
            for new in (False, True)
        ]
        before, after = (Values(survey, s) for s in state)
        cuts = {u: UOp(Ops.STAGE, (u,), Level.KERNEL) for u in self.written}
        inside = Values(survey, {**cuts, **state[True]})
        sources: list[UOp] = []
        components: list[Component] = []
        for p in pieces:
            sources.append(inside.into(p.body))
            correction = p.correction(before, after)
            if correction is not None:
                sources.append(correction)
            components.append(Component(p.op, p.axis, correction is not None, order=p.reduce.arg.order))
        whole = UOp(Ops.CASCADE, tuple(sources), CascadeArg(number, tuple(components)))
        values = in_parts(whole, [ComponentArg(k, p.dtype, p.reduce.shape) for k, p in enumerate(pieces)], survey.place)
        out: dict[UOp, UOp] = {}
        for p, value in zip(pieces, values):
            out[p.reduce] = p.final(value, Values(survey, out))
        return out


def _may_end(u: UOp) -> bool:
    """Whether a reduction may be the last of a cascade, by itself and by the size of its body."""
    if not alone(u) or not u.dtype.is_float or u.arg.op not in (Ops.ADD, Ops.MAX, Ops.MIN):
        return False
    below = cone(u.src[0], ENDS, MAX_BODY)
    return len(below) <= MAX_BODY and bool(of_ops(below, Ops.REDUCE))


class _Search:
    """All cascades of a graph, and what was found about each reduction that depends on another.

    sums: what takes the place of a reduction that is summed term by term.  unfit: what is no cascade whatever else is.
    """

    def __init__(self, root: UOp, unfit: Collection[UOp] = ()) -> None:
        self.root = root
        self.groups: dict[int, _Group] = {}
        self.of: dict[UOp, int] = {}  # the group of each reduction that is in one
        self.sums: dict[UOp, UOp] = {}
        self.findings: list[tuple[Frame, str | None, _Group | None]] = []
        self.inside: dict[UOp, set[int]] = {}  # the groups whose blocks use a reduction
        self.unfit: list[Frame] = []
        self.late: list[Frame] = []  # to be looked at last: a cascade if they join another one
        for u in reversed(of_ops(toposort(root), Ops.REDUCE)):
            if u not in self.of and u not in unfit and _may_end(u):
                self.consider(u)
        for frame in self.late:
            self.settle(frame)
        for number, group in self.groups.items():
            dear = dict.fromkeys(u for u in group.producers if self.dear(u, group))
            self.groups[number] = replace(group, written={**group.written, **dear})
        self.drop({number for number, group in self.groups.items() if group.idle()})

    def dear(self, u: UOp, group: _Group) -> bool:
        """Whether a producer of a group is better written down than computed in its blocks: what another cascade ends
        in, which no block has; what is a result, and so written down anyway; what several results are made of that are
        no smaller, each in a kernel of its own; and what would be computed again elsewhere, if it is no larger than
        what it is made of."""
        wide = [m for m in group.pieces if math.prod(m.shape) >= math.prod(u.shape)]
        result = any(v.op in (Ops.STAGE, Ops.SINK) for v in self.users.of(u))
        if u in self.of or u in self.sums or result or len(wide) > 1:
            return True
        return not _outgrows(u, cone(u.src[0], ENDS)) and self.leaves(u, group)

    def leaves(self, u: UOp, group: _Group) -> bool:
        """Whether a producer of a group is used by anything else."""
        within = {v for m in group.pieces for v in cone(m.src[0], ENDS)}
        seen, stack = {u}, [u]
        while stack:
            for v in self.users.of(stack.pop()):
                if v in seen or v in group.pieces:
                    continue
                if v not in within:
                    return True
                seen.add(v)
                stack.append(v)
        return False

    def drop(self, idle: set[int]) -> None:
        """Leave out cascades that turned out to share nothing in their blocks."""
        self.groups = {number: group for number, group in self.groups.items() if number not in idle}
        why = "no block computes a value that the reductions share"
        self.findings = [(f, why, None) if g and g.number in idle else (f, reason, g) for f, reason, g in self.findings]

    @cached_property
    def survey(self) -> Survey:
        return Survey(self.root)

    @cached_property
    def users(self) -> Users:
        return Users(self.root)

    def epilogues(self) -> list[UOp]:
        """What is computed from values that are written down, where that is not just the value itself."""
        written = dict.fromkeys(u for g in self.groups.values() for u in g.written)
        return [v for v in (epilogue(u, self.users, self.survey.place) for u in written) if v not in written]

    def consider(self, u: UOp) -> None:
        """Derive the cascade that ends in ``u``, or those of its terms; or note why not."""
        if not self.survey.may_use(u) and not self.survey.repeats(u):
            return
        frame = Frame(u, self.survey)
        users = self.inside.get(u)
        if len(frame.members) < 2:
            self.consider_chain(frame)
        elif users and not any(u in self.groups[n].written for n in users) and _outgrows(u, frame.producers):
            self.findings.append((frame, "a block of another cascade computes it", None))
        elif self.wanted(frame):
            self.late.append(frame)
        else:
            self.settle(frame)

    def wanted(self, frame: Frame) -> bool:
        """Whether a frame of nothing but sums of rows would compute again what is written down anyway."""
        return frame.width() == 1 and any(u in self.users.wanted for u in frame.producers)

    def settle(self, frame: Frame) -> None:
        """Derive the cascade of a frame, or those of its terms; or note why not."""
        try:
            self.accept(frame)
        except Refused as why:
            if not self.by_terms(frame):
                self.refuse(frame, why)

    def consider_chain(self, frame: Frame) -> None:
        """The same where no reduction over the same axis is used, but what other reductions give."""
        (u,) = frame.members
        if self.inside.get(u) or not self.survey.repeats(u):
            return
        inner = links(frame)
        if not inner:
            return
        try:
            check_chain(frame, inner, self.users.of)
            self.accept(frame)
        except Refused as why:
            self.refuse(frame, why)

    def refuse(self, frame: Frame, why: Refused) -> None:
        """Note why a frame is no cascade."""
        self.findings.append((frame, str(why), None))
        if isinstance(why, Unfit):
            self.unfit.append(frame)

    def accept(self, frame: Frame) -> None:
        """Derive the cascade of a frame, or add it to one that has reductions in common; Refused where it is none."""
        met = {self.of[m] for m in frame.members if m in self.of}
        if len(met) > 1:
            raise Refused("it would join two cascades")
        if not met and not frame.shared and len(frame.members) > 1:
            raise Refused("the reductions share no value that is itself a reduction")
        number = next(iter(met), len(self.groups))
        group = self.groups.get(number, _Group(number))
        parts = group.parts(frame)
        if (width := frame.width()) > BLOCK_WIDTH:
            raise Refused(f"a block would hold {width} results for each row, and at most {BLOCK_WIDTH} is accepted")
        if not met and self.wanted(frame):
            raise Refused("what they share, or what is computed from each element of it, is written down anyway")
        self.groups[number] = group = group.extended(frame, parts)
        self.of.update(dict.fromkeys(frame.members, number))
        for p in frame.producers:
            self.inside.setdefault(p, set()).add(number)
        self.findings.append((frame, None, group))

    def by_terms(self, frame: Frame) -> bool:
        """Sum term by term what is refused as a whole; whether every term is a cascade."""
        terms = summands(frame)
        frames = [Frame(t, self.survey) for t in terms]
        if not terms or any(len(f.members) < 2 for f in frames):
            return False
        done: list[tuple[Frame, _Group | None]] = []
        try:
            for f in frames:
                if f.members[-1] not in self.of:
                    before = next((self.groups[self.of[m]] for m in f.members if m in self.of), None)
                    self.accept(f)
                    done.append((f, before))
        except Refused:
            for f, before in reversed(done):
                self.take_back(f, before)
            return False
        total = terms[0]
        for t in terms[1:]:
            total = total + t
        self.sums[frame.members[-1]] = total
        return True

    def take_back(self, frame: Frame, before: _Group | None) -> None:
        """Undo the last ``accept``; ``before``: the group to which it added the frame."""
        number = self.of[frame.members[-1]]
        if before is None:
            del self.groups[number]
        else:
            self.groups[number] = before
        for m in frame.members:
            if before is None or m not in before.pieces:
                del self.of[m]
        for p in frame.producers:
            if before is None or p not in before.producers:
                self.inside[p].discard(number)
        self.findings.pop()


def _outgrows(u: UOp, parts: Iterable[UOp]) -> bool:
    """Whether ``u`` is larger than the values that it is made of: those are written down rather than it, so that memory
    grows with the length of a sequence, and not with its square."""
    return math.prod(u.shape) > sum(math.prod(p.shape) for p in parts if p.op in LEAVES)


def cascade(root: UOp, fuse_reduce: bool | None = None) -> UOp:
    """The graph of ``root`` (a SINK), its cascades merged; as it is where ``fuse_reduce`` asks for another way."""
    if fuse_reduce is not None:
        return root
    search = _Search(root)
    if ends := set(search.epilogues()):
        # the bodies have these in pieces, moved to where they are used: look again, at a graph that has them as memory
        unfit = [frame.members[-1] for frame in search.unfit if not frame.holds(ends)]
        root, *unfit = UOp.wrap([root, *unfit], ends, lambda u: UOp(Ops.STAGE, (u,), Level.KERNEL))
        search = _Search(root, set(unfit))
    replaced = dict(search.sums)
    for group in search.groups.values():
        replaced.update(group.build(search.survey))
    # a cascade may use the results of another one
    return replace_all(root, replaced) if replaced else root


def derivations(root: UOp) -> list[Report]:
    """What ``cascade`` makes of each reduction in ``root`` that depends on another over the same axis, and why."""
    found = _Search(root).findings
    return [report_of(frame, reason, group.pieces if group else None) for frame, reason, group in found]
