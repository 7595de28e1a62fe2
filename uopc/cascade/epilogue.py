"""What is computed element by element from a value that a cascade uses, beside the cascade."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from uopc.cascade.lift import reductions
from uopc.ops import ALU, PLAIN, Ops
from uopc.uop import UOp, toposort

# What is repeated so many times is computed once and written down (kernelize's rule for broadcasts).
MANY = 4


class Users:
    """The users of each node of a graph."""

    def __init__(self, root: UOp) -> None:
        self.order = toposort(root)
        self.known: dict[UOp, list[UOp]] = {}
        for u in self.order:
            for s in u.src:
                self.known.setdefault(s, []).append(u)

    def of(self, u: UOp) -> Sequence[UOp]:
        """Those of one node, in an order of sources first."""
        return self.known.get(u, ())

    @cached_property
    def wanted(self) -> set[UOp]:
        """What is written down whatever a cascade makes of it, or goes into it element by element: it is a result, or
        many are computed from each."""
        out: set[UOp] = set()
        for u in reversed(self.order):
            many = u.op is Ops.EXPAND and math.prod(u.shape) >= MANY * math.prod(u.src[0].shape)
            if many or u.op in (Ops.STAGE, Ops.SINK) or (u in out and u.op in ALU | PLAIN):
                out.update(u.src)
        return out


def epilogue(u: UOp, users: Users, place: dict[UOp, int]) -> UOp:
    """The last value that all uses of ``u`` go through, on the way to which there are elementwise operations only, on
    ``u`` and memory: a projection's bias and activation, say.

    place: of each node in an order of sources first.
    """
    last, under_way = u, {u}
    while True:
        first = min(under_way, key=place.__getitem__)
        next_ = users.of(first)
        if not next_ or not all(_elementwise(v, u, first, under_way) for v in next_):
            return last
        under_way = (under_way - {first}).union(next_)
        if len(under_way) == 1:
            (last,) = under_way


def _elementwise(v: UOp, u: UOp, first: UOp, others: set[UOp]) -> bool:
    """Whether ``v`` has the shape of ``u``, and nothing but memory goes into it beside what is on the way."""
    beside = [s for s in v.src if s is not first and s not in others]
    return v.op in ALU and v.shape == u.shape and not any(reductions(s) for s in beside)
