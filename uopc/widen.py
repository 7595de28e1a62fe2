"""widen: halves are computed in float32 and rounded where each operation ends, whatever is fused.

In and out: a SINK of tensor expressions.  Out: the same expressions, in which every operation on float16 or bfloat16
that could give anything but a half is one on float32 with a CAST behind it.  A value then has the same bits in a
register as in memory, at each of its uses and under every plan.  These are the roundings of NumPy and PyTorch.

Two things are not rounded: a product under a sum, as in any product of matrices, and what a formula widens itself (such
as softmax, which rounds its result once).
"""

from __future__ import annotations

from uopc.ops import Ops
from uopc.terms import rounds_half
from uopc.uop import UOp, toposort, widened


def _wide(u: UOp, src: tuple[UOp, ...]) -> UOp:
    """The operation on ``src``, halves among them as float32."""
    return u.replace(src=tuple(widened(s) for s in src))


def _reduced(u: UOp, memo: dict[UOp, UOp]) -> UOp:
    """A sum or product of halves in float32, over its body as it was before it was rounded."""
    body = u.src[0]
    if body.op is Ops.MUL and u.arg.op is Ops.ADD:
        x = _wide(body, tuple(memo[s] for s in body.src))
    else:
        x = widened(memo[body])
    return u.replace(src=(x,)).cast(u.dtype)


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
            new = _reduced(u, memo) if u.op is Ops.REDUCE else _wide(u, src).cast(u.dtype)
        memo[u] = new
    return memo[root]
