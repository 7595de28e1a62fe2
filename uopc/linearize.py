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

import heapq

from uopc.ops import Ops
from uopc.uop import UOp, sink, toposort

# What has no place of its own in the list, and what asks its users for no more than to be inside a loop.
_NOT_PLACED = frozenset({Ops.CONST, Ops.SINK})
_ASKS_NOTHING = frozenset({Ops.CONST, Ops.RANGE})

# A loop, by its RANGE, or None for the body of the function.
Loop = UOp | None


def _statements(uops: tuple[UOp, ...]) -> list[UOp]:
    """``uops`` with the sources of SINKs, which are no statements themselves, in their places."""
    out: list[UOp] = []
    stack = list(uops[::-1])
    while stack:
        u = stack.pop()
        if u.op is Ops.SINK:
            stack += u.src[::-1]
        else:
            out.append(u)
    return out


class _Nest:
    """Which loop encloses which, and where each node belongs."""

    def __init__(self, order: list[UOp]) -> None:
        self.ends: dict[UOp, UOp] = {}
        # a statement stands in the loop whose body it is, whether it depends on it or not
        self.inside: dict[UOp, UOp] = {}
        self.deepest: dict[tuple[UOp, ...], Loop] = {(): None}
        for u in order:
            if u.op is Ops.END:
                for r in u.src[1:]:
                    if r in self.ends:
                        closers = f"{self.ends[r]!r} and by {u!r}"
                        raise ValueError(f"{r!r} is closed by {closers}: each loop needs its own RANGE, or one END")
                    self.ends[r] = u
                for s in _statements(u.src[:1]):
                    self.inside[s] = u.src[-1]
        around: dict[UOp, tuple[UOp, ...]] = {}
        for u in order:
            if u.op is Ops.RANGE and u not in self.ends:
                raise ValueError(f"{u!r} is never closed by an END")
            if u.op is Ops.END:
                outside = (*u.ranges, self.inside[u]) if u in self.inside else u.ranges
                for k, r in enumerate(u.src[1:]):
                    around[r] = outside + u.src[1 : 1 + k]
        self.depth: dict[Loop, int] = {None: 0}
        self.parent: dict[Loop, Loop] = {}
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

    def home(self, u: UOp) -> Loop:
        """The innermost loop that ``u`` depends on, or whose body it is.  An END stands where its loop does."""
        if u.op is Ops.END:
            return self.parent[u.src[1]]
        if u.op is Ops.RANGE:
            return self.parent[u]
        ranges = u.ranges
        around = self.inside.get(u)
        if around is not None and around not in ranges:
            ranges = (*ranges, around)
        if ranges not in self.deepest:
            self.deepest[ranges] = self._deepest(u, ranges)
        return self.deepest[ranges]

    def _deepest(self, u: UOp, ranges: tuple[UOp, ...]) -> Loop:
        """The innermost of ``ranges``.  ValueError where they are not inside one another."""
        deepest: Loop = max(ranges, key=self.depth.__getitem__)
        around, r = 0, deepest
        while r is not None:
            around += r in ranges
            r = self.parent[r]
        if around != len(ranges):
            raise ValueError(f"{u!r} is inside loops that are not inside one another: {', '.join(map(repr, ranges))}")
        return deepest

    def meet(self, a: UOp, home_a: Loop, b: UOp, home_b: Loop) -> tuple[UOp, UOp, Loop]:
        """The innermost loop that holds ``a`` and ``b``, and what stands for each: itself or a loop."""
        while home_a is not home_b:
            if self.depth[home_a] >= self.depth[home_b]:
                assert home_a is not None
                a, home_a = home_a, self.parent[home_a]
            else:
                assert home_b is not None
                b, home_b = home_b, self.parent[home_b]
        return a, b, home_a


def _memory(u: UOp) -> tuple[Ops, int]:
    """What a LOAD or STORE accesses: a parameter or a local, and its slot."""
    while u.op not in (Ops.BUFFER, Ops.ALLOC):
        u = u.src[0]
    return u.op, u.arg.slot


def _overwrites(order: list[UOp]) -> list[tuple[UOp, UOp]]:
    """Each LOAD with each STORE that may write to the same place and that the LOAD is not AFTER: what it reads was
    there before.
    """
    accesses: dict[tuple[Ops, int], tuple[list[UOp], list[UOp]]] = {}
    for u in order:
        if u.op in (Ops.LOAD, Ops.STORE):
            accesses.setdefault(_memory(u), ([], []))[u.op is Ops.STORE].append(u)
    shared = [(loads, stores) for loads, stores in accesses.values() if loads and stores]
    if not shared:
        return []
    bits = {s: 1 << k for k, s in enumerate(s for _, stores in shared for s in stores)}
    behind: dict[UOp, int] = {}  # the STOREs that each node comes after
    for u in order:
        seen = bits.get(u, 0)
        for s in u.src:
            seen |= behind[s]
        behind[u] = seen
    return [
        (load, store)
        for loads, stores in shared
        for load in loads
        for store in stores
        if not behind[load] & bits[store] and not _apart(load.src[0], store.src[0])
    ]


def _apart(a: UOp, b: UOp) -> bool:
    """Whether two INDEXes are sure to be different places: a constant distance apart, and none reaches the other."""
    base_a, first_a, size_a = _span(a)
    base_b, first_b, size_b = _span(b)
    return base_a is base_b and size_a > 0 < size_b and (first_a + size_a <= first_b or first_b + size_b <= first_a)


def _span(index: UOp) -> tuple[UOp | None, int, int]:
    """The address of an INDEX as a base (None: 0) and a constant, and how many elements follow; 0 if not known."""
    at = index.src[1]
    memory = index.src[0]
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    elements = index.dtype.count // memory.dtype.count if at.dtype.count == 1 else 0
    if at.op is Ops.CONST and elements:
        return None, at.arg, elements
    if at.op is Ops.ADD and at.src[1].op is Ops.CONST and elements:
        return at.src[0], at.src[1].arg, elements
    return at, 0, elements


Regions = dict[Loop, dict[UOp, list[UOp]]]


def _regions(order: list[UOp], nest: _Nest) -> Regions:
    """For each loop, its items, each with the items that must come after it.

    A loop inside another is one item, named by its RANGE: what it needs from outside must come before all of it.
    """
    homes = {u: nest.home(u) for u in order if u.op not in _NOT_PLACED}
    regions: Regions = {None: {}}
    for u, home in homes.items():
        if u.op is not Ops.END:
            regions.setdefault(home, {})[u] = []
    for u, home in homes.items():
        if u.op is Ops.END:
            continue
        for s in u.src:
            if s.op is Ops.SINK:
                sources = _statements((s,))
            elif s.op in _ASKS_NOTHING:
                continue
            else:
                sources = [s]
            for t in sources:
                before = t.src[1] if t.op is Ops.END else t
                after, place, region = u, home, homes[t]
                while place is not region:
                    if place is None:
                        raise ValueError(f"{u!r} uses {t!r} outside the loop it belongs to")
                    after, place = place, nest.parent[place]
                regions[region][before].append(after)
    for load, store in _overwrites(order):
        first, then, place = nest.meet(load, homes[load], store, homes[store])
        if first is not then:
            regions[place][first].append(then)
    return regions


def _keys(order: list[UOp], nest: _Nest) -> dict[UOp, int]:
    """What goes first where nothing else decides: loads from ALLOCs, then the order of the graph, stores last.

    A loop stands where its END does: what is before the END in the graph is before the loop.
    """
    step = 1 + max((len(end.src) for end in nest.ends.values()), default=0)  # room for the RANGEs of an END
    late = step * len(order)
    keys = {}
    for k, u in enumerate(order):
        if u.op is Ops.STORE:
            keys[u] = step * k + 2 * late
        elif u.op is Ops.LOAD and _memory(u)[0] is Ops.ALLOC:
            keys[u] = step * k
        else:
            keys[u] = step * k + late
    for r, end in nest.ends.items():
        keys[r] = keys[end] + end.src.index(r)
    return keys


def _sort(items: dict[UOp, list[UOp]], keys: dict[UOp, int], named: dict[int, UOp]) -> list[UOp]:
    """The items of one loop body in an order that respects what must come after what, smaller keys first."""
    waiting = dict.fromkeys(items, 0)
    for users in items.values():
        for user in users:
            waiting[user] += 1
    ready = [keys[u] for u, n in waiting.items() if n == 0]
    heapq.heapify(ready)
    out = []
    while ready:
        u = named[heapq.heappop(ready)]
        out.append(u)
        for user in items[u]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, keys[user])
    if len(out) != len(waiting):
        raise ValueError(_why_stuck({u: users for u, users in items.items() if waiting[u] > 0}))
    return out


def _why_stuck(items: dict[UOp, list[UOp]]) -> str:
    """The circle in which items wait for one another."""
    before = {user: u for u, users in items.items() for user in users if user in items}
    at = next(iter(before))
    path: list[UOp] = []
    while at not in path:
        path.append(at)
        at = before[at]
    circle = path[path.index(at) :][::-1]
    return (
        "these cannot be put in an order, each must come before the next, and the last before the first: "
        + ", ".join(map(repr, circle))
    )


def _without_empty_loops(root: UOp) -> UOp:
    """``root`` without loops that never run: what they would compute from memory must not be computed ahead of them."""
    order = toposort(root)
    empty = {u for u in order if u.op is Ops.RANGE and u.src[0].op is Ops.CONST and u.src[0].arg <= 0}
    if not empty:
        return root
    return root.substitute({u: _before(u) for u in order if u.op is Ops.END and not empty.isdisjoint(u.src[1:])})


def _before(end: UOp) -> UOp:
    """What a loop that never runs comes after: the initialisation of what it would have updated, say."""
    inside: set[UOp] = set()
    stack = [end]
    while stack:
        body = _statements(stack.pop().src[:1])
        inside.update(body)
        stack += [s for s in body if s.op is Ops.END]
    outside: dict[UOp, None] = {}
    stack = list(inside)
    seen = set(stack)
    while stack:
        u = stack.pop()
        if u.op in (Ops.STORE, Ops.END) and u not in inside:
            outside[u] = None
            continue
        fresh = [s for s in u.src if s not in seen]
        seen.update(fresh)
        stack += fresh
    return sink(*outside)


def linearize(root: UOp) -> UOp:
    """The nodes of ``root`` (a SINK) as a LINEAR list that a renderer can print from top to bottom."""
    order = toposort(_without_empty_loops(root))
    nest = _Nest(order)
    keys = _keys(order, nest)
    named = {key: u for u, key in keys.items()}
    regions = _regions(order, nest)
    out: list[UOp] = []
    open_loops: list[tuple[Loop, list[UOp]]] = [(None, _sort(regions[None], keys, named)[::-1])]
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
            open_loops.append((u, _sort(regions.get(u, {}), keys, named)[::-1]))
    return UOp(Ops.LINEAR, tuple(out), root.arg)
