"""What is written down before a cascade, for its blocks to read: which of its producers, and with what done to them.

A producer is a reduction that the bodies of a cascade use.  Unless it is written down, blocks compute it
and it is never in memory.  Those that a block would compute again and again are found by ``Frame.written``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from functools import cached_property

from uopc._hot.graph import cone
from uopc.cascade.group import Group
from uopc.cascade.lift import ENDS, LEAVES, reductions
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
    def written_anyway(self) -> set[UOp]:
        """What is written down whatever a cascade makes of it, or goes into it element by element: it is a result, or
        many are computed from each."""
        out: set[UOp] = set()
        for u in reversed(self.order):
            many = u.op is Ops.EXPAND and math.prod(u.shape) >= MANY * math.prod(u.src[0].shape)
            if many or u.op in (Ops.STAGE, Ops.SINK) or (u in out and u.op in ALU | PLAIN):
                out.update(u.src)
        return out


def better_written(u: UOp, group: Group, users: Users, joined: Container[UOp]) -> bool:
    """Whether a producer of a group is better written down than computed in its blocks: what another cascade ends in
    (``joined``), which no block has; what is a result, and so written down anyway; what several results are made of
    that are no smaller, each in a kernel of its own; and what would be computed again elsewhere, if it is no larger
    than what it is made of."""
    wide = [m for m in group.pieces if math.prod(m.shape) >= math.prod(u.shape)]
    result = any(v.op in (Ops.STAGE, Ops.SINK) for v in users.of(u))
    if u in joined or result or len(wide) > 1:
        return True
    return not outgrows(u, cone(u.src[0], ENDS)) and _used_elsewhere(u, group, users)


def _used_elsewhere(u: UOp, group: Group, users: Users) -> bool:
    """Whether anything but the bodies of a group uses one of its producers."""
    within = {v for m in group.pieces for v in cone(m.src[0], ENDS)}
    seen, stack = {u}, [u]
    while stack:
        for v in users.of(stack.pop()):
            if v in seen or v in group.pieces:
                continue
            if v not in within:
                return True
            seen.add(v)
            stack.append(v)
    return False


def outgrows(u: UOp, parts: Iterable[UOp]) -> bool:
    """Whether ``u`` is larger than the values that it is made of: those are written down rather than it, so that memory
    grows with the length of a sequence, and not with its square."""
    return math.prod(u.shape) > sum(math.prod(p.shape) for p in parts if p.op in LEAVES)


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
