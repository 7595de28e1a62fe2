"""The cascades of a graph: each reduction that may end one is looked at, from the results towards the sources.

Of those that depend on others a *frame* is made, from which a *group* is derived, or which joins the group that has
reductions in common with it.  Every frame is a finding: the group that it is in, or why it is in none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from uopc._hot.graph import cone, of_ops
from uopc.blockize.sizes import most_width
from uopc.cascade.chain import check_chain, links
from uopc.cascade.factors import summands
from uopc.cascade.frame import Frame, Refused, Unfit
from uopc.cascade.group import Group
from uopc.cascade.lift import ENDS
from uopc.cascade.survey import Survey, alone
from uopc.cascade.written import Users, better_written, epilogue, outgrows
from uopc.ops import Ops
from uopc.target import Target
from uopc.uop import UOp, toposort

# A body of more operations than this, down to its first reductions, is layers of a network: it is left alone, so that
# time stays linear in the graph.
MAX_BODY = 256


def _may_end(u: UOp) -> bool:
    """Whether a reduction may be the last of a cascade, by itself and by the size of its body."""
    if not alone(u) or not u.dtype.is_float or u.arg.op not in (Ops.ADD, Ops.MAX, Ops.MIN):
        return False
    below = cone(u.src[0], ENDS, MAX_BODY)
    return len(below) <= MAX_BODY and bool(of_ops(below, Ops.REDUCE))


class Search:
    """All cascades of a graph, and what was found about each reduction that depends on another.

    groups: the cascades, by their numbers.  sums: what takes the place of a reduction that is summed term by term.
    findings: each frame, why it is in no group, and else the group as it was then.  unfit: frames that are no cascade
    whatever else is one.

    ``skipped``: reductions not to look at.
    """

    def __init__(self, root: UOp, target: Target, skipped: Collection[UOp] = ()) -> None:
        self.root, self.target = root, target
        self.groups: dict[int, Group] = {}
        self.number_of: dict[UOp, int] = {}  # of the group that a reduction is in
        self.sums: dict[UOp, UOp] = {}
        self.findings: list[tuple[Frame, str | None, Group | None]] = []
        self.blocks_of: dict[UOp, set[int]] = {}  # the groups whose bodies use a reduction
        self.unfit: list[Frame] = []
        self.postponed: list[Frame] = []  # a cascade only where they join one, so looked at last
        for u in reversed(of_ops(toposort(root), Ops.REDUCE)):
            if u not in self.number_of and u not in skipped and _may_end(u):
                self.consider(u)
        for frame in self.postponed:
            self.settle(frame)
        self.write_down()
        self.leave_out({number for number, group in self.groups.items() if group.shares_nothing()})

    def write_down(self) -> None:
        """Settle what is written down before each cascade: that needs to know what all others are."""
        joined = self.number_of.keys() | self.sums.keys()
        for number, group in self.groups.items():
            more = dict.fromkeys(u for u in group.producers if better_written(u, group, self.users, joined))
            self.groups[number] = replace(group, written={**group.written, **more})

    def leave_out(self, numbers: set[int]) -> None:
        """Leave out cascades that turned out to share nothing in their blocks."""
        self.groups = {number: group for number, group in self.groups.items() if number not in numbers}
        why = "no block computes a value that the reductions share"
        out = [group is not None and group.number in numbers for _, _, group in self.findings]
        self.findings = [(f[0], why, None) if gone else f for f, gone in zip(self.findings, out)]

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
        users = self.blocks_of.get(u)
        if len(frame.members) < 2:
            self.consider_chain(frame)
        elif users and not any(u in self.groups[n].written for n in users) and outgrows(u, frame.producers):
            self.findings.append((frame, "a block of another cascade computes it", None))
        elif self.recomputes_written(frame):
            self.postponed.append(frame)
        else:
            self.settle(frame)

    def recomputes_written(self, frame: Frame) -> bool:
        """Whether a frame of nothing but sums of rows would compute again what is written down anyway."""
        return frame.width() == 1 and any(u in self.users.written_anyway for u in frame.producers)

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
        if self.blocks_of.get(u) or not self.survey.repeats(u):
            return
        inner = links(frame)
        if not inner:
            return
        try:
            check_chain(frame, inner, self.users.of, self.target)
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
        met = {self.number_of[m] for m in frame.members if m in self.number_of}
        if len(met) > 1:
            raise Refused("it would join two cascades")
        if not met and not frame.shared and len(frame.members) > 1:
            raise Refused("the reductions share no value that is itself a reduction")
        number = next(iter(met), len(self.groups))
        group = self.groups.get(number, Group(number))
        parts = group.parts(frame)
        if (width := frame.width()) > (most := most_width(self.target)):
            raise Refused(f"a block would hold {width} results for each row, and at most {most} is accepted")
        if not met and self.recomputes_written(frame):
            raise Refused("what they share, or what is computed from each element of it, is written down anyway")
        self.groups[number] = group = group.extended(frame, parts)
        self.number_of.update(dict.fromkeys(frame.members, number))
        for p in frame.producers:
            self.blocks_of.setdefault(p, set()).add(number)
        self.findings.append((frame, None, group))

    def by_terms(self, frame: Frame) -> bool:
        """Sum term by term what is refused as a whole; whether every term is a cascade."""
        terms = summands(frame)
        frames = [Frame(t, self.survey) for t in terms]
        if not terms or any(len(f.members) < 2 for f in frames):
            return False
        done: list[tuple[Frame, Group | None]] = []
        try:
            for f in frames:
                if f.members[-1] not in self.number_of:
                    before = next((self.groups[self.number_of[m]] for m in f.members if m in self.number_of), None)
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

    def take_back(self, frame: Frame, before: Group | None) -> None:
        """Undo the last ``accept``; ``before``: the group to which it added the frame."""
        number = self.number_of[frame.members[-1]]
        if before is None:
            del self.groups[number]
        else:
            self.groups[number] = before
        for m in frame.members:
            if before is None or m not in before.pieces:
                del self.number_of[m]
        for p in frame.producers:
            if before is None or p not in before.producers:
                self.blocks_of[p].discard(number)
        self.findings.pop()
