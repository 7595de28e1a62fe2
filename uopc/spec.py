"""What a legal graph is, for each kind of graph that the pipeline moves between: ``verify(graph, stage)``.

The op table (``ops.TABLE``) says for each op how many sources and what argument it has and where it is legal: invariant
1.  The others say what no single row can.  Dtypes and shapes need no check: a node is refused when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from uopc.ops import TABLE, AxisType, Flags, Ops, Stage
from uopc.uop import DType, UOp, dtypes, format_graph, toposort

# Numbers stay: messages, tests and comments elsewhere name them.
INVARIANTS = {
    1: "an op is legal in the stage, and has the sources and the argument that its row in the op table says",
    2: "a CONST's argument is a value of its dtype, or one for each lane",
    3: "a REDUCE's op is associative and commutative by the op table",
    4: "a gate is a bool with one lane, or with as many as are accessed",
    5: "an INDEX points into a BUFFER or ALLOC (or one AFTER something) at an integer, and is of the memory's type or, "
    "of a BUFFER, of a word of several elements; LOAD and STORE access an INDEX",
    6: "a STORE's value and its INDEX have one element type, and as many lanes (or the value has one)",
    7: "END and a loop's REDUCE close RANGEs, and an END stands around a STORE, an END or a SINK of such",
    8: "no two RANGEs have the same id",
    9: "a RANGE is closed by exactly one END, or by REDUCEs over the same RANGEs",
    10: "nothing uses a loop's value outside the loop except through AFTER(..., END): no RANGE is open at the root",
    11: "the RANGEs open at a node are loops of which each stands inside the one before",
    12: "there is at most one THREAD RANGE, and it is the outermost loop",
    13: "what an ALLOC is AFTER, inside a loop, was written outside that loop: its initialisation dominates the loop",
    14: "an ALLOC that accumulates lives inside exactly the loops that its result depends on: between initialisation "
    "and update no loops begin but those that the update is said to be AFTER",
    15: "an ALLOC is written before it is read",
    16: "a LOAD has as many lanes as its INDEX accesses",
    17: "no UPCAST, UNROLL or VECTOR range is left, and no REDUCE",
    18: "a slot is one BUFFER's dtype, or one ALLOC",
    19: "in a LINEAR list a node stands behind its sources, inside exactly the loops that it depends on, and each loop "
    "is closed once, innermost first",
    20: "a STORE past the caches and a LOAD that fetches ahead are of consecutive elements of a BUFFER, without a gate",
    21: "a LOOKUP has 16 numbers, an int32 for an index and gives float32; LDEXP is of float32",
    22: "a SHUFFLE names a lane of its two sources for each of its own",
    23: "in a LINEAR list, what is accessed of an ALLOC lies inside it",
}

TILE = (AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)
_CLOSERS = frozenset((int(Ops.END), int(Ops.REDUCE)))
_MEMORY = frozenset((int(Ops.BUFFER), int(Ops.ALLOC)))
_STATEFUL = frozenset((int(Ops.LOAD), int(Ops.STORE), int(Ops.END), int(Ops.SINK)))
STATEMENTS = (Ops.STORE, Ops.END, Ops.SINK)
LOOPS = Stage.LOOP | Stage.REGISTER | Stage.LINEAR
SHOWN = 14  # lines of the graph below a faulty node that a message prints,
WIDTH = 160  # and characters of each


class SpecError(Exception):
    """A graph breaks an invariant of its stage.  ``number`` is that of the invariant, ``node`` the node."""

    def __init__(self, stage: Stage, number: int, node: UOp, what: str) -> None:
        self.stage, self.number, self.node = stage, number, node
        below = [line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in format_graph(node).splitlines()]
        cut = [f"  ... {len(below) - SHOWN} lines"] if len(below) > SHOWN else []
        super().__init__(
            f"not a legal {stage.name} graph: {what}\n"
            f"invariant {number}: {INVARIANTS[number]}\nat {node!r}\n" + "\n".join(cut + below[-SHOWN:])
        )


Fault = tuple[int, UOp, str]
Check = Callable[[UOp], "Fault | None"]


# ---- single nodes --------------------------------------------------------------------------------


def _by_table(u: UOp, stage: Stage) -> Fault | None:
    """What breaks invariant 1, once it is known that something does."""
    row = TABLE[u.op]
    if not row.stages & stage:
        return 1, u, f"{u.op!r} is not legal here"
    least, most = row.arity
    if len(u.src) < least or (most is not None and len(u.src) > most):
        return 1, u, f"{u.op!r} has {len(u.src)} sources"
    return 1, u, f"the argument of {u.op!r} is {u.arg!r}"


def _accepted(op: Ops) -> tuple[type, ...]:
    """The types of argument that ``op`` takes."""
    arg = TABLE[op].arg
    return arg if isinstance(arg, tuple) else (type(None) if arg is None else arg,)


def _value_of(value: object, dtype: DType) -> bool:
    kind = bool if dtype.is_bool else float if dtype.is_float else int
    if type(value) is not kind:
        return False
    if dtype.is_float:
        return value != value or dtype.convert(value) == value
    return bool(dtype.min <= value <= dtype.max)


def _const(u: UOp) -> Fault | None:
    values = u.arg if isinstance(u.arg, tuple) else (u.arg,)
    if isinstance(u.arg, tuple) and len(values) != u.dtype.count:
        return 2, u, f"{len(values)} values for {u.dtype!r}"
    if not all(_value_of(v, u.dtype.scalar()) for v in values):
        return 2, u, f"{u.arg!r} is not a value of {u.dtype!r}"
    return None


def _reduce(u: UOp) -> Fault | None:
    if not (TABLE[u.arg.op].flags & Flags.ASSOCIATIVE and TABLE[u.arg.op].flags & Flags.COMMUTATIVE):
        return 3, u, f"{u.arg.op!r} is not associative and commutative"
    return None


def _loop_reduce(u: UOp) -> Fault | None:
    if u.arg.axes or len(u.src) < 2 or any(r.op is not Ops.RANGE for r in u.src[1:]):
        return 7, u, "a loop's REDUCE has RANGEs as sources and no axes"
    return _reduce(u)


def _end(u: UOp) -> Fault | None:
    if len(u.src) < 2 or any(r.op is not Ops.RANGE for r in u.src[1:]):
        return 7, u, "what an END closes are RANGEs"
    body = u.src[0]
    if body.op not in STATEMENTS or (body.op is Ops.SINK and any(s.op not in STATEMENTS for s in body.src)):
        return 7, u, "the body of an END is not a statement"
    return None


def _index(u: UOp) -> Fault | None:
    if _memory(u).op not in (Ops.BUFFER, Ops.ALLOC) or not u.src[1].dtype.is_int:
        return 5, u, f"an INDEX of {_memory(u)!r} at {u.src[1].dtype!r}"
    element, memory = u.dtype.scalar(), u.src[0].dtype.scalar()
    if element is not memory and (_memory(u).op is not Ops.BUFFER or element.itemsize % memory.itemsize):
        return 5, u, f"an INDEX of {element!r} in {_memory(u)!r}"
    return None


def _lanes(index: UOp) -> int:
    return max(index.dtype.count, index.src[1].dtype.count)


def _access(u: UOp) -> Fault | None:
    index = u.src[0]
    if index.op is not Ops.INDEX:
        return 5, u, f"{u.op!r} of {index!r}"
    gates = u.src[1:] if u.op is Ops.LOAD else u.src[2:]
    for g in gates:
        if not g.dtype.is_bool or g.dtype.count not in (1, _lanes(index)):
            return 4, u, f"the gate is {g.dtype!r} for {_lanes(index)} lanes"
    if u.arg and (gates or index.src[1].dtype.count > 1 or _memory(index).op is not Ops.BUFFER):
        return 20, u, f"{len(gates)} gates, {index.src[1].dtype.count} addresses in {_memory(index)!r}"
    if u.op is Ops.LOAD:
        if u.dtype.scalar() is not index.dtype.scalar() or u.dtype.count != _lanes(index):
            return 16, u, f"a LOAD of {u.dtype!r} from {_lanes(index)} lanes of {index.dtype.scalar()!r}"
        return None
    value = u.src[1].dtype
    if value.scalar() is not index.dtype.scalar() or value.count not in (1, _lanes(index)):
        return 6, u, f"{value!r} is stored to {_lanes(index)} lanes of {index.dtype.scalar()!r}"
    return None


def _lookup(u: UOp) -> Fault | None:
    numbers = len(u.arg) == 16 and all(isinstance(v, float) for v in u.arg)
    index, dtype = u.src[0].dtype, u.dtype
    typed = index.scalar() is dtypes.int32 and dtype.scalar() is dtypes.float32 and index.count == dtype.count
    return None if numbers and typed else (21, u, f"{len(u.arg)} values, {index!r} to {dtype!r}")


def _ldexp(u: UOp) -> Fault | None:
    return None if u.dtype.scalar() is dtypes.float32 else (21, u, f"it is {u.dtype!r}")


def _shuffle(u: UOp) -> Fault | None:
    lanes = u.dtype.count
    named = len(u.arg) == lanes and all(0 <= i < 2 * lanes for i in u.arg)
    return None if named else (22, u, f"{u.arg!r} of twice {lanes} lanes")


_CHECKS: dict[Stage, dict[Ops, Check]] = {
    Stage.TENSOR: {Ops.CONST: _const, Ops.REDUCE: _reduce},
    Stage.LOOP: {
        Ops.CONST: _const,
        Ops.REDUCE: _loop_reduce,
        Ops.END: _end,
        Ops.INDEX: _index,
        Ops.LOAD: _access,
        Ops.STORE: _access,
        Ops.LOOKUP: _lookup,
        Ops.LDEXP: _ldexp,
        Ops.SHUFFLE: _shuffle,
    },
}
_CHECKS[Stage.REGISTER] = _CHECKS[Stage.LINEAR] = _CHECKS[Stage.LOOP]

# For each stage, by the number of the op: fewest and most sources, types of argument (none: not legal), a check.
_ROWS = {
    stage: [
        (
            TABLE[op].arity[0],
            most if (most := TABLE[op].arity[1]) is not None else 1 << 62,
            frozenset(_accepted(op)) if TABLE[op].stages & stage else frozenset(),
            checks.get(op),
        )
        for op in Ops
    ]
    for stage, checks in _CHECKS.items()
}


# ---- memory --------------------------------------------------------------------------------------


def _memory(index: UOp) -> UOp:
    """The BUFFER or ALLOC that an INDEX, or an AFTER of one, is about."""
    u = index
    while u.op in (Ops.INDEX, Ops.AFTER):
        u = u.src[0]
    return u


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
            writes[u] = frozenset([_memory(u.src[0])])
        elif u.op is Ops.END or u.op is Ops.SINK:
            writes[u] = frozenset().union(*(writes.get(s, ()) for s in u.src))
        if u.op not in (Ops.LOAD, Ops.STORE) or _memory(u.src[0]).op is not Ops.ALLOC:
            continue
        cell, deps = _memory(u.src[0]), list(_dependencies(u.src[0]))
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
        if u.op in (Ops.LOAD, Ops.STORE) and _memory(u.src[0]).op is Ops.ALLOC:
            cell, index = _memory(u.src[0]), u.src[0]
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


# ---- the verifier --------------------------------------------------------------------------------


def _faults(graph: UOp, order: list[UOp], stage: Stage) -> Iterator[Fault]:
    rows = _ROWS[stage]
    for u in order:
        least, most, accepted, check = rows[u.code]
        if not least <= len(u.src) <= most or type(u.arg) not in accepted:
            fault = _by_table(u, stage)
        elif check is not None:
            fault = check(u)
        else:
            continue
        if fault is not None:
            yield fault
    if stage & LOOPS:
        yield from _slots(order)
        yield from _loops(order, graph, stage)
        yield from _accumulators(order)
    if stage is Stage.LINEAR:
        yield from _inside(order)
        yield from _linear(graph)


def verify(graph: UOp | Sequence[UOp], stage: Stage) -> None:
    """Check that ``graph`` (a root, or several) is a legal graph of ``stage``, one of the members of ``Stage``.

    Raises SpecError for the first invariant that does not hold.  Time is linear in the graph.
    """
    for root in (graph,) if isinstance(graph, UOp) else graph:
        for number, node, what in _faults(root, toposort(root), stage):
            raise SpecError(stage, number, node, what)
