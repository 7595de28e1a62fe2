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

from uopc._hot.graph import replace_all
from uopc.cascade.formulas import Report, report_of
from uopc.cascade.search import Search
from uopc.cascade.unrounded import unrounded
from uopc.ops import Level, Ops
from uopc.runtime.device import host
from uopc.target import Target
from uopc.uop import UOp, without_aliases

__all__ = ["Report", "cascade", "derivations"]


def cascade(root: UOp, fuse_reduce: bool | None = None, target: Target | None = None) -> UOp:
    """The graph of ``root`` (a SINK), its cascades merged for a machine (this one where nobody says); as it is where
    ``fuse_reduce`` asks for another way."""
    if fuse_reduce is not None:
        return root
    (root,) = without_aliases([root])
    target = target or host()
    search = Search(root, target)
    if ends := set(search.epilogues()):
        # the bodies have these in pieces, moved to where they are used: look again, at a graph that has them as memory,
        # but not at what their bodies refuse, if those are the same
        unfit = [frame.members[-1] for frame in search.unfit if not frame.uses_any(ends)]
        root, *unfit = UOp.wrap([root, *unfit], ends, lambda u: UOp(Ops.STAGE, (u,), Level.KERNEL))
        search = Search(root, target, set(unfit))
    replaced = dict(search.sums)
    for group in search.groups.values():
        replaced.update(group.build(search.survey, unrounded(group, search.survey, search.users)))
    # a cascade may use the results of another one
    return replace_all(root, replaced) if replaced else root


def derivations(root: UOp, target: Target | None = None) -> list[Report]:
    """What ``cascade`` makes of each reduction in ``root`` that depends on another over the same axis, and why, at its
    first look: before what is written down is memory."""
    (root,) = without_aliases([root])
    found = Search(root, target or host()).findings
    return [report_of(frame, reason, group.pieces if group else None) for frame, reason, group in found]
