"""linearize: a graph of statements becomes a list.

In: a program of the REGISTER stage after ``decompose``: STOREs under ENDs, ordered by data and AFTER.
Out: ``LINEAR(node, ...)``: every node but constants, each behind its sources and inside exactly the loops that it depends on.  A RANGE opens its
loop; each time an END stands in the list, it closes the innermost open one.

Guarantees: a value stands as far out as it can (loop-invariant code needs no pass of its own); where nothing orders a load from an
ALLOC and a store to it in the same loop body, the load comes first; time is near-linear in the graph.  Never changes a node.
"""

from __future__ import annotations

import heapq

from uopc.ops import Ops
from uopc.uop import UOp, toposort

# Among statements that may go next: loads from ALLOCs first, stores last; otherwise the order of the graph.
_EARLY, _NORMAL, _LATE = 0, 1, 2


class _Nest:
    """Which loop encloses which, and where each node belongs."""

    def __init__(self, order: list[UOp]) -> None:
        self.ends: dict[UOp, UOp] = {}
        around: dict[UOp, tuple[UOp, ...]] = {}
        for u in order:
            if u.op is Ops.END:
                for k, r in enumerate(u.src[1:]):
                    self.ends[r] = u
                    around[r] = u.ranges + u.src[1 : 1 + k]
        self.depth: dict[UOp | None, int] = {None: 0}
        self.parent: dict[UOp | None, UOp | None] = {}
        for r in around:
            self._place(r, around)

    def _place(self, r: UOp, around: dict[UOp, tuple[UOp, ...]]) -> None:
        """Depth and parent of ``r``, those of the loops around it first."""
        stack = [r]
        while stack:
            top = stack[-1]
            missing = [q for q in around[top] if q not in self.depth]
            if missing:
                stack += missing
                continue
            stack.pop()
            self.parent[top] = max(around[top], key=self.depth.__getitem__, default=None)
            self.depth[top] = self.depth[self.parent[top]] + 1

    def home(self, u: UOp) -> UOp | None:
        """The innermost loop that ``u`` depends on; None is the function's body.  An END stands where its loop does."""
        if u.op is Ops.END:
            return self.parent[u.src[1]]
        if u.op is Ops.RANGE:
            return self.parent[u]
        return max(u.ranges, key=self.depth.__getitem__, default=None)


def _priority(u: UOp) -> int:
    if u.op is Ops.STORE:
        return _LATE
    memory = u.src[0].src[0] if u.op is Ops.LOAD else u
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return _EARLY if u.op is Ops.LOAD and memory.op is Ops.ALLOC else _NORMAL


def _sources(u: UOp) -> list[UOp]:
    """What must stand before ``u``: its sources, and those of a SINK among them, which is no statement itself."""
    out: list[UOp] = []
    stack = list(u.src)
    while stack:
        s = stack.pop()
        if s.op is Ops.SINK:
            stack += s.src
        elif s.op not in (Ops.CONST, Ops.RANGE):  # a use of a RANGE asks for no more than to be inside its loop
            out.append(s)
    return out


def _regions(order: list[UOp], nest: _Nest) -> dict[UOp | None, dict[UOp, list[UOp]]]:
    """For each loop (None: the function), its items, each with the items that must come after it.

    A loop inside another is one item, named by its RANGE: what it needs from outside must come before all of it.
    """
    regions: dict[UOp | None, dict[UOp, list[UOp]]] = {None: {}}
    homes = {u: nest.home(u) for u in order}
    for u in order:
        if u.op in (Ops.CONST, Ops.SINK, Ops.END):
            continue
        regions.setdefault(homes[u], {}).setdefault(u, [])
        for s in _sources(u):
            before = s.src[1] if s.op is Ops.END else s
            region, after, place = homes[s], u, homes[u]
            while place is not region:
                if place is None:
                    raise ValueError(f"{u!r} uses {s!r} outside the loop it belongs to")
                after, place = place, nest.parent[place]
            regions.setdefault(region, {}).setdefault(before, []).append(after)
    return regions


def _sort(items: dict[UOp, list[UOp]], rank: dict[UOp, int]) -> list[UOp]:
    """The items of one loop body in an order that respects what must come after what, by priority and then rank."""
    waiting = dict.fromkeys(items, 0)
    for users in items.values():
        for user in users:
            waiting[user] += 1
    ready = [(_priority(u), rank[u], u) for u, n in waiting.items() if n == 0]
    heapq.heapify(ready)
    out = []
    while ready:
        u = heapq.heappop(ready)[2]
        out.append(u)
        for user in items[u]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (_priority(user), rank[user], user))
    if len(out) != len(waiting):
        stuck = next(u for u, n in waiting.items() if n > 0)
        raise ValueError(f"the loops of {stuck!r} cannot be put in an order: it depends on itself through AFTER or END")
    return out


def linearize(root: UOp) -> UOp:
    """The nodes of ``root`` (a SINK) as a LINEAR list that a renderer can print from top to bottom."""
    order = toposort(root)
    nest = _Nest(order)
    # the rank of a loop is that of its END: what stands before the END in the graph stands before the loop
    rank = {u: k for k, u in enumerate(order)}
    rank.update({r: rank[end] for r, end in nest.ends.items()})
    regions = _regions(order, nest)
    out: list[UOp] = []
    open_loops: list[tuple[UOp | None, list[UOp]]] = [(None, _sort(regions[None], rank)[::-1])]
    while open_loops:
        loop, items = open_loops[-1]
        if not items:
            open_loops.pop()
            if loop is not None:
                out.append(nest.ends[loop])
            continue
        u = items.pop()
        out.append(u)
        if u.op is Ops.RANGE:
            if u not in nest.ends:
                raise ValueError(f"{u!r} is never closed by an END")
            open_loops.append((u, _sort(regions.get(u, {}), rank)[::-1]))
    return UOp(Ops.LINEAR, tuple(out), root.arg)
