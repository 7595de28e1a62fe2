"""What is computed element by element from a value that a cascade uses, beside the cascade."""

from __future__ import annotations

import math

from uopc.cascade.lift import cone
from uopc.ops import ALU, PLAIN, Ops
from uopc.uop import UOp

# What is repeated so many times is computed once and written down (kernelize's rule for broadcasts).
MANY = 4


def epilogue(u: UOp, users: dict[UOp, list[UOp]], place: dict[UOp, int]) -> UOp:
    """The last value that all uses of ``u`` go through, on the way to which there are elementwise operations only, on
    ``u`` and memory: a projection's bias and activation, say.

    users: of each node; place: of each node in an order of sources first.
    """
    last, under_way = u, {u}
    while True:
        first = min(under_way, key=place.__getitem__)
        next_ = users.get(first, [])
        if not next_ or not all(_elementwise(v, u, first, under_way) for v in next_):
            return last
        under_way = (under_way - {first}).union(next_)
        if len(under_way) == 1:
            (last,) = under_way


def _elementwise(v: UOp, u: UOp, first: UOp, others: set[UOp]) -> bool:
    """Whether ``v`` has the shape of ``u``, and nothing but memory goes into it beside what is on the way."""
    beside = [s for s in v.src if s is not first and s not in others]
    return v.op in ALU and v.shape == u.shape and not any(w.op is Ops.REDUCE for s in beside for w in cone(s))


def is_wanted(u: UOp, users: dict[UOp, list[UOp]]) -> bool:
    """Whether ``u``, or what is computed from each element of it, is written down whatever a cascade makes of it: as a
    result, or because many are computed from each."""
    seen, stack = {u}, [u]
    while stack:
        for v in users.get(stack.pop(), ()):
            if v.op in (Ops.STAGE, Ops.SINK) or (
                v.op is Ops.EXPAND and math.prod(v.shape) >= MANY * math.prod(v.src[0].shape)
            ):
                return True
            if v.op in ALU | PLAIN and v not in seen:
                seen.add(v)
                stack.append(v)
    return False
