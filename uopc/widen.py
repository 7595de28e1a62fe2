"""widen: halves are computed in float32 and rounded where each operation ends, whatever is fused.

In and out: a SINK of tensor expressions.  Out: the same expressions, in which every operation on float16 or bfloat16
that could give anything but a half is one on float32 with a CAST behind it.  A value then has the same bits in a
register as in memory, at each of its uses and under every plan.  These are the roundings of NumPy and PyTorch.

A formula that is one operation for its users widens its operands itself, and rounds once: a product of matrices, whose
products are not rounded, or softmax.
"""

from __future__ import annotations

from uopc.terms import rounds_half
from uopc.uop import UOp, toposort, widened


def _wide(u: UOp, src: tuple[UOp, ...]) -> UOp:
    """The operation on ``src``, halves among them as float32."""
    return u.replace(src=tuple(widened(s) for s in src))


def widen(root: UOp) -> UOp:
    """The graph of ``root`` with its operations on halves in float32, and rounded."""
    nodes = toposort(root)
    if not any(u.dtype.is_half for u in nodes):
        return root
    memo: dict[UOp, UOp] = {}
    for u in nodes:
        src = tuple(memo[s] for s in u.src)
        new = u if src == u.src else u.replace(src=src)
        if rounds_half(u):
            new = _wide(u, src).cast(u.dtype)
        memo[u] = new
    return memo[root]
