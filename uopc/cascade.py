"""cascade: reductions of one axis that depend on each other become one reduction.

In and out: a SINK of tensor expressions.  The stage has its place and its contract here: it may merge a chain of REDUCEs over one axis into a single
REDUCE with a tuple state, and must leave every value as it is.  No chain is merged yet: each REDUCE stays its own.
"""

from __future__ import annotations

from uopc.uop import UOp


def cascade(root: UOp) -> UOp:
    """The graph of ``root`` (a SINK), its cascades merged."""
    return root
