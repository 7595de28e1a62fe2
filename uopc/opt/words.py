"""words: two neighbours in memory that make a PAIR are read as one word.

In and out: a loop program.  A PAIR of a LOAD and of the LOAD at the next address becomes one LOAD at an INDEX of
uint32, whose address still counts elements of the memory.  Only of BUFFERs, what a thread keeps of a half type becomes
float32 later; and without gates, for which the neighbours may differ.
"""

from __future__ import annotations

from uopc._hot.graph import of_ops
from uopc._hot.simplify import Simplifier
from uopc.ops import Ops
from uopc.uop import UOp, dtypes, toposort


def _word(pair: UOp, simplifier: Simplifier) -> UOp | None:
    """The LOAD of both halves; None where they are no neighbours."""
    low, high = pair.src
    if any(s.op is not Ops.LOAD or len(s.src) > 1 or s.src[0].src[0].op is not Ops.BUFFER for s in pair.src):
        return None
    if low.dtype is not dtypes.bfloat16:
        return None
    (memory, first), (same, second) = low.src[0].src, high.src[0].src
    step = simplifier.simplify(second - first)
    if memory is not same or step.op is not Ops.CONST or step.arg != 1:
        return None
    return UOp(Ops.INDEX, (memory, first), None, dtypes.uint32).load()


def words(root: UOp) -> UOp:
    """The program of ``root`` (a SINK) with words in place of pairs that lie side by side."""
    simplifier = Simplifier()
    found = {u: _word(u, simplifier) for u in of_ops(toposort(root), Ops.PAIR)}
    made = {u: word for u, word in found.items() if word is not None}
    return root.substitute(made) if made else root
