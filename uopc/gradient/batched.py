"""A graph for many values of one of its nodes at once: along a new first axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from uopc.dtype import dtypes
from uopc.ops import ALU, MOVEMENT, Ops
from uopc.tensor.shapes import counter, expand, permute
from uopc.uop import UOp, toposort

# The argument of a movement op that leaves a new first axis of size n as it is.
_MOVED: dict[Ops, Callable[[Any, int], tuple[Any, ...]]] = {
    Ops.RESHAPE: lambda arg, n: (n, *arg),
    Ops.EXPAND: lambda arg, n: (n, *arg),
    Ops.PERMUTE: lambda arg, n: (0, *[a + 1 for a in arg]),
    Ops.SHRINK: lambda arg, n: ((0, n), *arg),
    Ops.FLIP: lambda arg, n: tuple([a + 1 for a in arg]),
    Ops.STRIDE: lambda arg, n: (1, *arg),
    Ops.PAD: lambda arg, n: ((0, 0), *arg),
}


def batched(roots: Sequence[UOp], node: UOp, values: UOp) -> list[UOp]:
    """``roots`` as they are for each of ``values`` (one along the first axis) in place of ``node``, along a new first
    axis.  Neither positions nor the structure of the graph may depend on the node's value."""
    n = values.shape[0]
    made: dict[UOp, UOp] = {node: values}
    for u in toposort(list(roots)):
        if u not in made and any(s in made for s in u.src):
            made[u] = _batched(u, made, n)
    return [made[r] if r in made else _spread(r, n) for r in roots]


def _spread(u: UOp, n: int) -> UOp:
    return expand(u, (n, *u.shape))


def _batched(u: UOp, made: dict[UOp, UOp], n: int) -> UOp:
    """``u`` over sources some of which have the new axis."""
    first = made.get(u.src[0])
    if u.op in ALU:
        return u.replace(
            src=tuple([made[s] if s in made else s if s.op is Ops.CONST else _spread(s, n) for s in u.src])
        )
    if u.op in MOVEMENT and first is not None:
        return UOp(u.op, (first,), _MOVED[u.op](u.arg, n))
    if u.op is Ops.REDUCE and first is not None:
        return UOp(Ops.REDUCE, (first,), u.arg._replace(axes=tuple([a + 1 for a in u.arg.axes])))
    if u.op in (Ops.STAGE, Ops.ALIAS) and first is not None:
        return UOp(Ops.STAGE, (first,), u.arg) if u.op is Ops.STAGE else first
    sources = tuple([made.get(s) or _spread(s, n) for s in u.src])
    if u.op is Ops.CAT:
        return UOp(Ops.CAT, sources, u.arg + 1)
    if u.op is Ops.STACK:
        return permute(UOp(Ops.STACK, sources), (1, 0, *range(2, len(u.shape) + 1)))
    if u.op is Ops.GATHER:
        return UOp(Ops.GATHER, (sources[0], counter((n, *u.shape), 0, dtypes.index), *sources[1:]))
    raise TypeError(f"{u.op!r} of shape {u.shape} cannot be repeated along a new axis")
