"""summation: every sum in an order of its own, whatever the plan.

In and out: a SINK of tensor expressions.  Out, for ``batch_invariant``: the same expressions, in which each REDUCE of
floats says in which ``Order`` it combines its terms.  It follows from the lengths of the axes reduced and from what
stands at the last axis, never from how many results there are or from how they are computed.

A row's bits then depend on its own values and shape alone: which values are written down, how loops are cut and where
lanes run may be decided by cost, as ever.
"""

from __future__ import annotations

from uopc._hot.graph import of_ops
from uopc.ops import Ops
from uopc.terms import ordered
from uopc.uop import UOp, toposort


def summation(root: UOp) -> UOp:
    """The graph of ``root`` with the order of its reductions."""
    return UOp.wrap([root], of_ops(toposort(root), Ops.REDUCE), ordered)[0]
