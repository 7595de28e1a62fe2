"""linearize: a graph of statements becomes a list.

In: a program of the REGISTER stage after ``decompose``: STOREs under ENDs, ordered by data and AFTER.
Out: ``LINEAR(node, ...)``: every node but constants, each behind its sources and inside exactly the loops that it
depends on.  A RANGE opens its loop; each time an END stands in the list, it closes the innermost open one.

Guarantees: a value stands as far out as it can (loop-invariant code needs no pass of its own); a LOAD stands before
every STORE to its memory that it is not AFTER, so that it reads what was there before; statements that nothing orders
keep the order of the graph; time is near-linear in the graph.  Never changes a node.  ValueError, with the node, for a
program that has no such order.
"""

from __future__ import annotations

from uopc._hot.graph import of_ops
from uopc._hot.linearize import accesses, arrange, overwrites, statements
from uopc.ops import Ops
from uopc.uop import UOp, sink, toposort

# A loop, by its RANGE, or None for the body of the function.
Loop = UOp | None


class _Nest:
    """Which loop encloses which, and which statements are the body of which."""

    def __init__(self, order: list[UOp]) -> None:
        self.ends: dict[UOp, UOp] = {}
        # a statement stands in the loop whose body it is, whether it depends on it or not
        self.inside: dict[UOp, UOp] = {}
        ends = of_ops(order, Ops.END)
        for u in ends:
            for r in u.src[1:]:
                if r in self.ends:
                    closers = f"{self.ends[r]!r} and by {u!r}"
                    raise ValueError(f"{r!r} is closed by {closers}: each loop needs its own RANGE, or one END")
                self.ends[r] = u
            for s in statements(u.src[:1]):
                self.inside[s] = u.src[-1]
        for r in of_ops(order, Ops.RANGE):
            if r not in self.ends:
                raise ValueError(f"{r!r} is never closed by an END")
        around: dict[UOp, tuple[UOp, ...]] = {}
        for u in ends:
            outside = (*u.ranges, self.inside[u]) if u in self.inside else u.ranges
            for k, r in enumerate(u.src[1:]):
                around[r] = outside + u.src[1 : 1 + k]
        self.depth: dict[Loop, int] = {None: 0}
        self.parent: dict[UOp, Loop] = {}
        for r in around:
            self._place(r, around)

    def _place(self, r: UOp, around: dict[UOp, tuple[UOp, ...]]) -> None:
        """Depth and parent of ``r``, those of the loops around it first."""
        stack, under_way = [r], {r}
        while stack:
            top = stack[-1]
            missing = next((q for q in around[top] if q not in self.depth), None)
            if missing is not None:
                if missing in under_way:
                    raise ValueError(f"{missing!r} and {top!r} are each inside the other, as their ENDs say")
                stack.append(missing)
                under_way.add(missing)
                continue
            stack.pop()
            self.parent[top] = max(around[top], key=self.depth.__getitem__, default=None)
            self.depth[top] = self.depth[self.parent[top]] + 1


def _refuse(items: dict[UOp, list[UOp]]) -> None:
    """ValueError with the circle in which items, each with those that come after it, wait for one another."""
    before = {user: u for u, users in items.items() for user in users if user in items}
    at = next(iter(before))
    path: list[UOp] = []
    while at not in path:
        path.append(at)
        at = before[at]
    circle = path[path.index(at) :][::-1]
    raise ValueError(
        "these cannot be put in an order, each must come before the next, and the last before the first: "
        + ", ".join(map(repr, circle))
    )


def _without_empty_loops(root: UOp) -> list[UOp]:
    """The nodes of ``root`` without loops that never run: what they would compute from memory must not be computed
    ahead of them.
    """
    order = toposort(root)
    empty = {u for u in of_ops(order, Ops.RANGE) if u.src[0].op is Ops.CONST and u.src[0].arg <= 0}
    if not empty:
        return order
    ends = [u for u in of_ops(order, Ops.END) if not empty.isdisjoint(u.src[1:])]
    return toposort(root.substitute({u: _before(u) for u in ends}))


def _before(end: UOp) -> UOp:
    """What a loop that never runs comes after: the initialisation of what it would have updated, say."""
    inside: set[UOp] = set()
    loops: set[UOp] = set()  # this one and those in it: what depends on them is gone with it
    stack = [end]
    while stack:
        u = stack.pop()
        loops.update(u.src[1:])
        body = statements(u.src[:1])
        inside.update(body)
        stack += [s for s in body if s.op is Ops.END]
    outside: dict[UOp, None] = {}
    stack = list(inside)
    seen = set(stack)
    while stack:
        u = stack.pop()
        if u.op in (Ops.STORE, Ops.END) and u not in inside and loops.isdisjoint(u.ranges):
            outside[u] = None
            continue
        fresh = [s for s in u.src if s not in seen]
        seen.update(fresh)
        stack += fresh
    return sink(*outside)


def linearize(root: UOp) -> UOp:
    """The nodes of ``root`` (a SINK) as a LINEAR list that a renderer can print from top to bottom."""
    order = _without_empty_loops(root)
    nest = _Nest(order)
    memories = accesses(order)
    # what accumulators held goes first, so that nothing is kept beside them; stores last, behind all that may read
    first = [u for (op, _), (loads, _) in memories.items() if op is Ops.ALLOC for u in loads]
    last = [u for _, stores in memories.values() for u in stores]
    # what a LOAD reads was there before the STOREs that it is not AFTER
    pairs = overwrites(order, [(loads, stores) for loads, stores in memories.values() if loads and stores])
    listed = arrange(order, nest.ends, nest.parent, nest.depth, nest.inside, first, last, pairs, _refuse)
    return UOp(Ops.LINEAR, tuple(listed), root.arg)
