"""widen: halves are computed in float32 and rounded where each operation ends, whatever is fused.

In and out: a SINK of tensor expressions.  Out: the same expressions, in which every operation on float16 or bfloat16
that could give anything but a half is one on float32 with a CAST behind it.  A value then has the same bits in a
register as in memory, at each of its uses and under every plan.  These are the roundings of NumPy and PyTorch.

Two things are not rounded: a product under a sum, as in any product of matrices, and what a formula widens itself (such
as softmax, which rounds its result once).
"""

from __future__ import annotations

from uopc.ops import ALU, COMPARE, Ops
from uopc.uop import UOp, toposort, widened

# What rounds nothing, given halves.
EXACT = COMPARE | frozenset(
    {Ops.WHERE, Ops.BITCAST, Ops.CAST, Ops.ABS, Ops.MAX, Ops.MIN, Ops.FLOOR, Ops.CEIL, Ops.ROUND, Ops.TRUNC}
)
INEXACT_REDUCE = frozenset({Ops.ADD, Ops.MUL})


def _wide(u: UOp, src: tuple[UOp, ...]) -> UOp:
    """The operation on ``src``, halves among them as float32."""
    return u.replace(src=tuple(widened(s) for s in src))


def _is_exact(u: UOp) -> bool:
    """Whether an operation on halves rounds nothing."""
    negated = u.op is Ops.MUL and u.src[1].op is Ops.CONST and u.src[1].arg in (1, -1)
    return u.op in EXACT or negated


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
        if u.op is Ops.REDUCE and u.dtype.is_half and u.arg.op in INEXACT_REDUCE and u.arg.axes:
            new = _reduced(u, memo)
        elif u.op in ALU and u.dtype.is_half and u.src[-1].dtype.is_half and not _is_exact(u):
            new = _wide(u, src).cast(u.dtype)
        memo[u] = new
    return memo[root]
