"""What holds of whole loop programs: how loops stand inside one another, what memory is when it is read, and the order
of a LINEAR list."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

from uopc.ops import AxisType, Ops, Stage
from uopc.spec.nodes import Fault
from uopc.uop import UOp, memory_of

TILE = (AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)
_CLOSERS = frozenset((int(Ops.END), int(Ops.REDUCE)))
_MEMORY = frozenset((int(Ops.BUFFER), int(Ops.ALLOC)))
_STATEFUL = frozenset((int(Ops.LOAD), int(Ops.STORE), int(Ops.END), int(Ops.SINK)))

# ---- memory --------------------------------------------------------------------------------------


def _dependencies(place: UOp) -> Iterator[UOp]:
    """What the memory at an INDEX is AFTER."""
    u = place.src[0]
    while u.op is Ops.AFTER:
        yield from u.src[1:]
        u = u.src[0]


def _slots(order: list[UOp]) -> Iterator[Fault]:
    seen: dict[tuple[Ops, int], UOp] = {}
    for u in order:
        if u.code in _MEMORY:
            first = seen.setdefault((u.op, u.arg.slot), u)
            if first is not u and (u.op is Ops.ALLOC or first.dtype is not u.dtype):
                yield 18, u, f"slot {u.arg.slot} is {first!r} too"


def _accumulators(order: list[UOp]) -> Iterator[Fault]:
    """Invariants 13 to 15.  Which ALLOCs a statement writes, and which a value reads, is found in one pass."""
    writes: dict[UOp, frozenset[UOp]] = {}
    for u in order:
        if u.code not in _STATEFUL:
            continue
        if u.op is Ops.STORE:
            writes[u] = frozenset([memory_of(u.src[0])])
        elif u.op is Ops.END or u.op is Ops.SINK:
            writes[u] = frozenset().union(*(writes.get(s, ()) for s in u.src))
        if u.op not in (Ops.LOAD, Ops.STORE) or memory_of(u.src[0]).op is not Ops.ALLOC:
            continue
        cell, deps = memory_of(u.src[0]), list(_dependencies(u.src[0]))
        entered = {d for d in deps if d.op is Ops.RANGE}
        writers = [d for d in deps if cell in writes.get(d, ())]
        if u.op is Ops.LOAD and not writers:
            yield 15, u, f"{cell!r} is read but not AFTER a STORE to it"
        for d in writers:
            if not entered.isdisjoint(d.ranges):
                yield 13, u, f"it was written inside the loop {next(r for r in d.ranges if r in entered)!r}"
        if u.op is Ops.STORE and _reads(u, cell):
            # an array is set and updated place by place: the loops that name the place are no accumulation
            known = entered.union(u.src[0].src[1].ranges, *(d.ranges for d in writers))
            beyond = [r for r in u.ranges if r not in known]
            if beyond:
                yield 14, u, f"it accumulates along {beyond[0]!r}, of which its initialisation knows nothing"


def _reads(store: UOp, cell: UOp) -> bool:
    """Whether the value of a STORE is an operation on what stands in the same place."""
    place = store.src[0]
    return any(s.op is Ops.LOAD and s.src[0] is place for v in (store.src[1], *store.src[1].src) for s in (v, *v.src))


def _inside(order: list[UOp]) -> Iterator[Fault]:
    """Invariant 23, by the bounds of the index: a tile that lacks an axis is read beyond its end."""
    for u in order:
        if u.op in (Ops.LOAD, Ops.STORE) and memory_of(u.src[0]).op is Ops.ALLOC:
            cell, index = memory_of(u.src[0]), u.src[0]
            size, first = math.prod(cell.arg.shape), index.src[1]
            lanes = max(index.dtype.count // cell.dtype.count, 1)
            if first.vmin < 0 or first.vmax + lanes > size:
                yield 23, u, f"elements {first.vmin} to {first.vmax + lanes - 1} of {cell!r}, which has {size}"


# ---- loops ---------------------------------------------------------------------------------------


class _Nest:
    """The loops of a program: what closes each, and which one it stands in."""

    def __init__(self, order: list[UOp]) -> None:
        self.ranges = [u for u in order if u.code == Ops.RANGE]
        self.closers: dict[UOp, list[UOp]] = {r: [] for r in self.ranges}
        around: dict[UOp, dict[UOp, None]] = {r: {} for r in self.ranges}
        for u in order:
            if u.code in _CLOSERS:
                for k, r in enumerate(u.src[1:]):
                    self.closers[r].append(u)
                    around[r].update(dict.fromkeys(chain(u.ranges, u.src[1 : 1 + k])))
        self.depth: dict[UOp, int] = {}
        self.parent: dict[UOp, UOp | None] = {}
        self.circles: list[UOp] = []
        for r in self.ranges:
            self._place(r, around)
        self._chains: dict[tuple[UOp, ...], bool] = {(): True}

    def _place(self, r: UOp, around: dict[UOp, dict[UOp, None]]) -> None:
        """Depth and parent of ``r``, those of the loops around it first.  Where loops stand in a circle, it is cut."""
        stack, under_way = [r], {r}
        while stack:
            top = stack[-1]
            missing = [q for q in around[top] if q not in self.depth]
            new = [q for q in missing if q not in under_way]
            if new:
                stack.append(new[0])
                under_way.add(new[0])
                continue
            self.circles += missing
            stack.pop()
            placed = [q for q in around[top] if q in self.depth]
            self.parent[top] = max(placed, key=self.depth.__getitem__, default=None)
            self.depth[top] = 1 + max((self.depth[q] for q in placed), default=0)

    def is_chain(self, ranges: tuple[UOp, ...]) -> bool:
        """Whether ``ranges`` are loops inside one another."""
        known = self._chains.get(ranges)
        if known is None:
            left = set(ranges)
            r: UOp | None = max(ranges, key=self.depth.__getitem__)
            while r is not None and left:
                left.discard(r)
                r = self.parent[r]
            known = self._chains[ranges] = not left
        return known


def _loops(order: list[UOp], root: UOp, stage: Stage) -> Iterator[Fault]:
    yield from _loop_ranges(order, stage)
    nest = _Nest(order)
    for r in nest.ranges:
        closers = nest.closers[r]
        by_end = [u for u in closers if u.op is Ops.END]
        if not closers:
            yield 9, r, "nothing closes it"
        if len(by_end) > 1 or (by_end and len(closers) > 1):
            yield 9, r, f"{len(closers)} nodes close it"
        if len({u.src[1:] for u in closers}) > 1:
            yield 9, r, "REDUCEs over different RANGEs close it"
    for s in (root, *root.src):
        if s.ranges and s.op is not Ops.RANGE and root.op is not Ops.LINEAR:
            yield 10, s, f"{s.ranges[0]!r} is open"
    for r in nest.circles:
        yield (
            11,
            r,
            "it stands, by what closes it, inside a loop that stands inside it: they are not inside one another",
        )
    last: tuple[UOp, ...] = ()
    for u in order:
        ranges = u.ranges
        if ranges == last or u.op is Ops.LINEAR:
            continue
        last = ranges
        if not nest.is_chain(ranges):
            yield 11, u, f"its loops are not inside one another: {', '.join(f'r{r.arg.id}' for r in u.ranges)}"
    threads = [r for r in nest.ranges if r.arg.axis_type is AxisType.THREAD]
    if len(threads) > 1:
        yield 12, threads[1], "it is the second"
    if threads and nest.parent[threads[0]] is not None:
        yield 12, threads[0], f"it stands inside {nest.parent[threads[0]]!r}"


def _loop_ranges(order: list[UOp], stage: Stage) -> Iterator[Fault]:
    ids: dict[int, UOp] = {}
    for u in order:
        if u.code == Ops.RANGE:
            if ids.setdefault(u.arg.id, u) is not u:
                yield 8, u, f"{ids[u.arg.id]!r} has its id"
            if stage is not Stage.LOOP and u.arg.axis_type in TILE:
                yield 17, u, f"a range of type {u.arg.axis_type!r}"
        elif u.code == Ops.REDUCE and stage is not Stage.LOOP:
            yield 17, u, "a REDUCE"


def _linear(root: UOp) -> Iterator[Fault]:
    """Walk the list as a renderer does."""
    if root.op is not Ops.LINEAR:
        yield 19, root, "the root is not a LINEAR list"
        return
    # a STORE that does not depend on the loop whose body it is runs as often as that loop says, or not at all
    ends = [u for u in root.src if u.op is Ops.END]
    bodies = {s: u.src[-1] for u in ends for s in (u.src[0].src if u.src[0].op is Ops.SINK else u.src[:1])}
    loops: list[UOp] = []
    stood: set[UOp] = set()
    closed: dict[UOp, int] = {}
    for u in root.src:
        for s in u.src:
            if s not in stood and s.op not in (Ops.CONST, Ops.SINK) and u.op is not Ops.SINK:
                yield 19, u, f"its source {s!r} does not stand before it"
        if u.op is Ops.END:
            closed[u] = closed.get(u, 0) + 1
            if not loops or loops[-1] not in u.src[1:]:
                yield 19, u, f"it closes none of its loops: the innermost open one is {loops[-1] if loops else None!r}"
            else:
                loops.pop()
        elif not loops and u.ranges and u.op is not Ops.RANGE:
            yield 19, u, f"it stands outside its loop {u.ranges[0]!r}"
        elif any(r is not u and r not in loops for r in u.ranges):
            yield 19, u, f"not all of its loops {u.ranges!r} are open"
        elif u.op is Ops.RANGE:
            loops.append(u)
        elif loops and loops[-1] not in u.ranges and bodies.get(u) is not loops[-1]:
            yield 19, u, f"it stands inside {loops[-1]!r}, on which it does not depend"
        stood.add(u)
    if loops:
        yield 19, loops[-1], "it is not closed"


def loop_faults(root: UOp, order: list[UOp], stage: Stage) -> Iterator[Fault]:
    """What is wrong with a LOOP, REGISTER or LINEAR graph, of which ``order`` holds the nodes, sources first."""
    yield from _slots(order)
    yield from _loops(order, root, stage)
    yield from _accumulators(order)
    if stage is Stage.LINEAR:
        yield from _inside(order)
        yield from _linear(root)
