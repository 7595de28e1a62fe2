"""work: what one run of a kernel takes from a processor, read off its LINEAR program.

Operations, accesses and the longest chain of values that wait for one another are counted for the body of each loop:
bodies run one after another, each as fast as what it has least of allows (``predict``).  Bytes are those of the whole
kernel.  Nothing here knows any particular kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from uopc.count import count, times
from uopc.inspect.streams import conflicting, jumping, unforeseen_in
from uopc.issue import own_issue
from uopc.ops import ALU, AxisType
from uopc.rangeify.nest import statements
from uopc.target import LINE, Target
from uopc.uop import Ops, UOp, dtypes, memory_of

# What takes a multiplier, as an addition to a product does.
_MULTIPLIED = frozenset({Ops.MUL, Ops.DIV, Ops.RECIP, Ops.SQRT, Ops.FMOD, Ops.DOT2, Ops.FMA})
# Until a result can be used, in units of an FMA.
_LATENCY = {
    Ops.BITCAST: 0.0,
    Ops.DIV: 3.0,
    Ops.RECIP: 3.0,
    Ops.SQRT: 4.0,
    Ops.DOT2: 1.5,
    Ops.HREDUCE: 5.0,
    Ops.MAX: 2.0,
    Ops.MIN: 2.0,
    Ops.AND: 0.5,
    Ops.OR: 0.5,
    Ops.XOR: 0.5,
    Ops.WHERE: 0.5,
}
# Elements of a gather or scatter go one by one: measured on transposes.
_ELEMENT = {False: 1.0, True: 4.0}  # True: their lines push each other out of L1
_NARROW = 0.5  # of a load or store of a vector, for what fills half a register or less
# A loop's own counting and branching, in vector operations an iteration.
_TURN = 1.0


@dataclass
class Body:
    """What all runs of a loop's body take, loops inside left out.

    operations: vector operations; multiplies: those that need a multiplier.  loads, stores: of vectors.  chain:
    operations of which each waits for the one before, from one iteration of the loop into the next.
    """

    operations: float = 0.0
    multiplies: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0


@dataclass
class Argument:
    """What a kernel does with a buffer.  read, written: bytes of it, each once: what memory must move at least.
    loaded, stored: bytes that its loads and stores move: what caches serve.  lines: how many cache lines of it are
    fetched in no order that a processor would foresee: by addresses computed from what memory holds, and in runs
    shorter than a page."""

    slot: int
    read: int = 0
    written: int = 0
    loaded: int = 0
    stored: int = 0
    lines: int = 0


@dataclass(frozen=True)
class Work:
    """flops: float operations, an FMA being two.  tiles_loaded, tiles_stored: bytes from and to thread-private tiles.
    arguments: what is done with each.  bodies: of the loops, the outermost first."""

    flops: int
    tiles_loaded: int
    tiles_stored: int
    arguments: list[Argument]
    bodies: list[Body]

    @property
    def read(self) -> int:
        """Bytes of the arguments that are read, each once."""
        return sum(a.read for a in self.arguments)

    @property
    def written(self) -> int:
        """Bytes of the arguments that are written, each once."""
        return sum(a.written for a in self.arguments)

    @property
    def loaded(self) -> int:
        """Bytes that loads move from arguments."""
        return sum(a.loaded for a in self.arguments)

    @property
    def stored(self) -> int:
        """Bytes that stores move to arguments."""
        return sum(a.stored for a in self.arguments)

    def to_json(self) -> dict[str, Any]:
        """Everything, sums included, as values that ``json.dumps`` takes."""
        sums = {name: getattr(self, name) for name in ("read", "written", "loaded", "stored")}
        return {**asdict(self), **sums, **asdict(self.total)}

    @property
    def total(self) -> Body:
        """The bodies together."""
        return Body(*(sum(getattr(b, f.name) for b in self.bodies) for f in fields(Body)))


def work(linear: UOp, target: Target) -> Work:
    """The work of one run on a machine."""
    vector_bytes = target.vector_bytes
    runs = times(linear)
    tiles = {Ops.LOAD: 0, Ops.STORE: 0}
    unforeseen = unforeseen_in(linear)
    arguments: dict[UOp, Argument] = {}
    bodies: dict[UOp | None, Body] = {}
    for u, loop in _innermost(linear):
        body, n = bodies.setdefault(loop, Body()), runs[u]
        if u.op in (Ops.LOAD, Ops.STORE):
            place, value = u.src[0], u if u.op is Ops.LOAD else u.src[1]
            memory = memory_of(place)
            if memory.op is Ops.ALLOC and _is_register(memory, place):
                continue
            lanes = max(value.dtype.count, place.src[1].dtype.count if place.op is Ops.INDEX else 1)
            nbytes = n * lanes * value.dtype.scalar().itemsize
            each = _access(value, place, lanes, vector_bytes)
            if u.op is Ops.LOAD:
                body.loads += n * each
            else:
                body.stores += n * each
            if memory.op is Ops.ALLOC:
                tiles[u.op] += nbytes
                continue
            argument = arguments.setdefault(memory, Argument(memory.arg.slot))
            if u.op is Ops.LOAD:
                argument.loaded += nbytes
            else:
                argument.stored += nbytes
            if place.op is Ops.INDEX and place.src[1] in unforeseen:
                places, width = place.src[1].dtype.count, value.dtype.itemsize
                argument.lines += n * (places if places > 1 else -(-width // LINE))
        elif u.op in (Ops.HREDUCE, Ops.SHUFFLE) or (u.op in ALU and u.dtype.scalar() is not dtypes.index):
            each = n * target.slots(own_issue(u), u.dtype.scalar().itemsize) * _registers(u, vector_bytes)
            body.operations += each
            if u.op in _MULTIPLIED:
                body.multiplies += each
    turns = {loop: runs[u] for u, loop in reversed(list(_innermost(linear)))}
    for loop, longest in _chains(linear).items():
        bodies.setdefault(loop, Body()).chain = turns[loop] * longest
    for loop, body in bodies.items():
        body.operations += _TURN * turns[loop] if loop is not None else 0
    jumps = jumping(linear)
    for memory, a in arguments.items():
        size = memory.dtype.itemsize * math.prod(memory.arg.shape)
        a.read, a.written = min(size, a.loaded), min(size, a.stored)
        a.lines += max(a.read, a.written) // LINE if memory in jumps else 0
        a.lines = min(a.lines, -(-size // LINE))
    return Work(count(linear).flops, tiles[Ops.LOAD], tiles[Ops.STORE], list(arguments.values()), list(bodies.values()))


def _access(value: UOp, place: UOp, lanes: int, vector_bytes: int) -> float:
    """A load or store, in those of a vector."""
    if place.op is Ops.INDEX and place.src[1].dtype.count > 1:
        return lanes * _ELEMENT[conflicting(place.src[1], value.dtype.scalar().itemsize)]
    registers = _registers(value, vector_bytes)
    return _NARROW if value.dtype.itemsize * 2 <= vector_bytes and registers == 1 else registers


def _innermost(linear: UOp) -> Iterator[tuple[UOp, UOp | None]]:
    """Each statement with the loop right around it."""
    return ((u, loops[-1] if loops else None) for u, loops in statements(linear))


def _chains(linear: UOp) -> dict[UOp | None, float]:
    """For each loop the longest way from what an iteration reads of the one before to what it leaves for the next, in
    units of an FMA's latency."""
    out: dict[UOp | None, float] = {}
    depth: dict[UOp, float] = {}  # of values that wait for a cell, within the loop around
    cells: dict[tuple[UOp | None, UOp], None] = {}
    for u, loop in _innermost(linear):
        if loop is None or u.op in (Ops.INDEX, Ops.AFTER):
            continue
        if u.op is Ops.LOAD:
            cell = _cell(u.src[0])
            if cell is not None and loop not in cell.ranges:
                cells[loop, cell] = None
                depth[u] = 0.0
        elif u.op is Ops.STORE:
            cell = _cell(u.src[0])
            if cell is not None and (loop, cell) in cells and u.src[1] in depth:
                out[loop] = max(out.get(loop, 0.0), depth[u.src[1]])
        elif waiting := [depth[s] for s in u.src if s in depth]:
            depth[u] = max(waiting) + _LATENCY.get(u.op, 1.0)
    return out


def _cell(place: UOp) -> UOp | None:
    """What identifies a place in memory: the INDEX without what it comes after."""
    return memory_of(place).index(place.src[1]) if place.op is Ops.INDEX else None


def _registers(u: UOp, vector_bytes: int) -> int:
    """How many registers a value fills: halves are computed as float32, masks are as wide as what they choose among."""
    size = max(u.dtype.scalar().itemsize, 4)
    return -(-u.dtype.count * size // vector_bytes)


def _is_register(memory: UOp, place: UOp) -> bool:
    """Whether an access to a thread's own memory is one to a register: an accumulator, or a known address."""
    return math.prod(memory.arg.shape) <= 1 or (place.op is Ops.INDEX and place.src[1].op is Ops.CONST)


# ------------------------------------------------------------------------------------------------------ loop nest --


def loop_nest(linear: UOp) -> str:
    """The loops of a program in one line: ``>`` goes inwards, what stands in brackets comes one after another."""
    root: list[tuple[str, list]] = []
    open_loops = [root]
    for u in linear.src:
        if u.op is Ops.RANGE:
            inside: list[tuple[str, list]] = []
            word = "thread " if u.arg.axis_type is AxisType.THREAD else ""
            size = str(u.vmax + 1) if u.src[0].op is Ops.CONST else f"<={u.vmax + 1}"
            open_loops[-1].append((f"{word}{size}", inside))
            open_loops.append(inside)
        elif u.op is Ops.END:
            open_loops.pop()
    return _line(root) or "no loop"


def _line(loops: list[tuple[str, list]]) -> str:
    parts: list[str] = []
    counts: list[int] = []
    for name, inside in loops:
        below = _line(inside)
        text = f"{name} > {below}" if below else name
        if parts and parts[-1] == text:
            counts[-1] += 1
        else:
            parts.append(text)
            counts.append(1)
    texts = [t if n == 1 else f"{n}x {t}" if " " not in t else f"{n}x [{t}]" for t, n in zip(parts, counts)]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]" if texts else ""
