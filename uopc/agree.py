"""agree: a sum that several kernels compute comes out the same in each.

In and out: a SINK of tensor expressions in which ``kernelize`` has put STAGEs.  Out: the same, where each sum or
product of floats that more than one kernel computes again has an ``Order``.  In which order a kernel adds up is
otherwise its own choice, so that a value and its maximum, each in a kernel of its own, could differ in the last digit.

What one kernel computes at several places, ``rangeify`` sees to.
"""

from __future__ import annotations

from collections import Counter

from uopc._hot.graph import cone
from uopc.ops import Ops
from uopc.terms import is_reassociable, ordered
from uopc.uop import UOp, toposort

# Where a kernel begins: what is below was computed by another one.  A cascade is computed alike for all who ask.
_ENDS = bytes(op in (Ops.STAGE, Ops.CASCADE, Ops.BUFFER) for op in Ops)


def agree(root: UOp) -> UOp:
    """The graph of ``root`` with an order for each sum that is computed in several kernels."""
    nodes = toposort(root)
    if not any(is_reassociable(u) for u in nodes):
        return root
    kernels: Counter[UOp] = Counter()
    for u in nodes:
        if u.op in (Ops.STAGE, Ops.CASCADE):
            below = dict.fromkeys(v for s in u.src for v in cone(s, _ENDS))
            kernels.update(v for v in below if is_reassociable(v))
    several = [u for u, n in kernels.items() if n > 1]
    return UOp.wrap([root], several, ordered)[0] if several else root
