"""cost: how long a kernel with given loop sizes will take, read off its loop nest.

The time of a schedule is that of the busiest part of a core: its arithmetic, its load and store ports, chains of
operations that wait for each other, or the bytes that each level of memory has to move; a little of the others, since
they overlap but not wholly; and the launch. ``schedule`` and ``blockize`` choose by it, and ``UOPC_TUNE`` measures what
it puts first. What a machine does in a cycle is the Target's; nothing is measured.

Never looks at what a kernel is for, and decides nothing itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from uopc.issue import issue_of
from uopc.ops import ALU, Ops
from uopc.rangeify.context import power_of_two_below
from uopc.rangeify.nest import SMALL_STEPS, Nest, trips
from uopc.target import LINE, Target
from uopc.uop import UOp, dtypes, toposort

# Of what takes less time than the busiest part, so much is not hidden behind it.
EXPOSED = 0.02
# Predictions that differ by less say nothing.
ALIKE = 1.06
# What takes less than this times what nothing undercuts is good enough not to look at anything else.
SURE = 1.1
# A running maximum waits for its comparison and its selection.
MAXIMUM_CHAIN = 2.0
# Elements that lanes cannot load together go one by one: a load and what puts it into its lane.
SCATTERED = 8.0
# Counting and branching of an innermost loop.
TURN = 1.0
# To compute a value again takes so many times what its operations alone do: its operands are read again, too.
RECOMPUTED = 2.1
# To read a byte again, most often from a cache, takes this part of what one from memory takes.
CACHED = 0.125
# A kernel more takes so many times its launch: what the one before left in registers and caches is read again.
KERNELS_APART = 2.0
# Operations from which on a value takes longer than a store to a cache and loads from there.
EXPENSIVE = 10.0
# The part of a cache that a loop's data may fill and still be found there.
USABLE = 0.75


@dataclass(frozen=True)
class Cost:
    """operations, accesses: of vectors, by one core, if it did everything.  waits: for operations that need the one
    before, in latencies of an FMA.  again: those of operations that tiles repeat for want of a place to keep what they
    share.  jumps: lines from beyond L2 that no prefetcher foresees.  moved: bytes from each level.  tasks: what threads
    share."""

    operations: float = 0.0
    accesses: float = 0.0
    waits: float = 0.0
    again: float = 0.0
    jumps: float = 0.0
    moved: dict[str, float] = field(default_factory=dict)
    tasks: int = 1

    def beside(self, moved: dict[str, float], jumps: float) -> Cost:
        """The same with bytes that are moved, and jumps."""
        return Cost(self.operations, self.accesses, self.waits, self.again, jumps, moved, self.tasks)

    def core(self, target: Target) -> float:
        """Cycles, before bytes are looked at."""
        parts = (self.operations / target.fma, self.accesses / target.load, self.waits * target.fma_latency)
        return max(parts) + EXPOSED * (sum(parts) - max(parts)) + self.jumps * target.jump

    def seconds(self, target: Target) -> float:
        """The time on all cores of a machine."""
        threads = max(1, min(target.cores, self.tasks))
        rounds = -(-self.tasks // threads) / self.tasks  # the last round may not fill all threads
        parts = [self.core(target) / target.clock * rounds]
        for level, nbytes in self.moved.items():
            parts.append(nbytes / _bandwidth(level, threads, rounds, target))
        launch = target.launch_shared if threads > 1 else target.launch
        return launch + max(parts) + EXPOSED * (sum(parts) - max(parts))


def _bandwidth(level: str, threads: int, rounds: float, target: Target) -> float:
    """Bytes a second that so many threads get from a level."""
    if level == "memory":
        return min(threads * target.memory, target.memory_shared)
    return (target.l2 if level == "L2" else target.l3).bandwidth * target.clock / rounds


class Candidate(NamedTuple):
    """A kernel with sizes in it, and its cost (None where sizes are decided later)."""

    root: UOp
    cost: Cost | None

    def seconds(self, target: Target) -> float:
        """The predicted time."""
        return math.inf if self.cost is None else self.cost.seconds(target)


# ---------------------------------------------------------------------------------------------------- a loop nest --


@dataclass(frozen=True)
class _Loops:
    """A nest's loops under some sizes: elements of each output axis in a register tile, and tiles along it."""

    tile: tuple[int, ...]
    trips: tuple[int, ...]
    opts: Any


@dataclass(frozen=True)
class _Array:
    """An access as the model needs it.

    axes: output axes that its address depends on, and steps.  inner: how often the loops of reductions that move it
    run, and ``again`` how often others around those.  beside: whether neighbours along a reduction are neighbours in
    memory, and ``run`` how many.  loops: the output axes whose loops are around it, those in which it is not hoisted
    out of a reduction included.  stride: bytes of the longest step along a reduction.
    """

    slot: int
    itemsize: int
    axes: dict[int, int | None]
    inner: int
    again: int
    beside: bool
    run: int
    loops: frozenset[int]
    stride: int

    @property
    def across(self) -> bool:
        """Whether a reduction steps from line to line."""
        return self.inner > 1 and not self.beside and self.stride > LINE


class Model:
    """The cost of a kernel's nest under different sizes."""

    def __init__(self, nest: Nest, target: Target) -> None:
        self.nest, self.target = nest, target
        self.axis = {r: a for a, r in enumerate(nest.outputs) if r is not None}
        # what is alike is one item, with how much of it there is
        weights: dict[tuple[tuple[UOp, ...], frozenset[UOp]], float] = {}
        for u, weight in operations(nest.values, target):
            if weight and u.ranges:
                key = u.ranges, nest.around.get(u, frozenset())
                weights[key] = weights.get(key, 0.0) + weight
        self.work: dict[tuple[tuple[int, ...], int, tuple[int, ...]], float] = {}
        for (ranges, around), weight in weights.items():
            axes, inner = self._split(ranges)
            again, within = self._split(around.difference(ranges))
            alike = axes, inner * within, tuple(sorted(again))
            self.work[alike] = self.work.get(alike, 0.0) + weight
        self.chains = Counter(self._chain(u) for u in nest.reduces)
        self.arrays: list[_Array] = []
        self.times: list[int] = []
        for a in nest.loads:
            self._add(self._array(a.steps, a.slot, a.itemsize, a.around))
        self._add(self._array(nest.store_steps, 0, nest.itemsize, frozenset()))
        self.apart = len({a.slot for a in self.arrays}) == len(self.arrays)

    def _add(self, array: _Array) -> None:
        if array in self.arrays:
            self.times[self.arrays.index(array)] += 1
        else:
            self.arrays.append(array)
            self.times.append(1)

    def _split(self, ranges: Iterable[UOp]) -> tuple[tuple[int, ...], int]:
        """The output axes among ranges, and how often the other loops run."""
        ranges = tuple(ranges)
        axes = tuple(self.axis[r] for r in ranges if r in self.axis)
        return axes, trips(r for r in ranges if r not in self.axis)

    def _chain(self, u: UOp) -> tuple[tuple[int, ...], int, int, float]:
        """A REDUCE: the output axes that it depends on, how often the reductions around it run, its own steps, and what
        one of them waits for."""
        axes, around = self._split(u.ranges)
        return axes, around, trips(u.src[1:]), MAXIMUM_CHAIN if u.arg.op in (Ops.MAX, Ops.MIN) else 1.0

    def _array(self, steps: dict[UOp, int | None], slot: int, itemsize: int, around: frozenset[UOp]) -> _Array:
        axes = {self.axis[r]: step for r, step in steps.items() if r in self.axis}
        inner = [r for r in steps if r not in self.axis]
        beside = [r for r in inner if steps[r] == 1]
        outer, again = self._split(around.difference(steps))
        loops = frozenset(axes).union(outer)
        stride = itemsize * max((abs(steps[r] or 0) for r in inner), default=0)
        return _Array(slot, itemsize, axes, trips(inner), again, bool(beside), trips(beside), loops, stride)

    def loops(self, opts: Any) -> _Loops:
        """The loops that sizes make."""
        shape, v = self.nest.shape, opts.vector
        tile = [1] * len(shape)
        for a, n in opts.upcast:
            tile[a] = max(1, min(n, shape[a]))
        if v is not None:
            lanes = min(opts.lanes, power_of_two_below(max(shape[v], 1)))
            tile[v] = max(tile[v] // lanes, 1) * lanes
        return _Loops(tuple(tile), tuple(-(-n // t) for n, t in zip(shape, tile)), opts)

    def cost(self, opts: Any, crowded: bool = True) -> Cost:
        """The cost of the nest with these sizes, without blocks.  crowded: lines that fall into the same sets of a
        cache take more of it than they have bytes."""
        loops = self.loops(opts)
        return self._core(loops).beside(*self._moved(loops, crowded))

    def choose(self, candidates: Iterator[Any]) -> Any:
        """The first of the candidates that take about the least time.

        Steps that crowd a cache do not count here: ``blockize`` packs what has such.
        """
        known: dict[Any, float] = {}

        def first_of(some: list[Any]) -> Any:
            least = math.inf
            for c in some:
                if c not in known:
                    known[c] = self._seconds(c, ALIKE * least)
                least = min(least, known[c])
            return next(c for c in some if known[c] <= ALIKE * least)

        first = next(candidates)
        known[first] = self._seconds(first, math.inf)
        if known[first] <= SURE * self.least(first):
            return first
        # in which order a sum runs must not depend on how many cores there are
        alike = [first, *(c for c in candidates if c.unroll == first.unroll)]
        tiles: dict[Any, Any] = {}
        for c in alike:
            tiles.setdefault(c.upcast, c)
        tile = first_of(list(tiles.values())).upcast
        return first_of([c for c in alike if c.upcast == tile])

    def _seconds(self, opts: Any, most: float) -> float:
        """The time of sizes without blocks whose lines crowd no cache; where a core alone takes more than ``most``,
        what it takes."""
        loops = self.loops(opts)
        core = self._core(loops)
        alone = core.seconds(self.target)
        return alone if alone > most else core.beside(*self._moved(loops, False)).seconds(self.target)

    def least(self, opts: Any) -> float:
        """Seconds that no sizes with the lanes of ``opts`` undercut: nothing is computed or read twice, all cores are
        busy."""
        shape, m = self.nest.shape, self.target
        whole = _Loops(shape, (1,) * len(shape), opts)
        work = sum(weight * _vectors(axes, inner, whole) for (axes, inner, _), weight in self.work.items())
        turns = sum(n * _vectors(axes, around * own, whole) for (axes, around, own, _), n in self.chains.items())
        work += turns * TURN / m.accumulators
        once = self._together([_footprint(a, shape) for a in self.arrays])
        moved = {level: once for level, size, _ in _caches(m) if once > size * USABLE}
        across = [n * _footprint(a, shape) for a, n in zip(self.arrays, self.times) if a.across]
        far = sum(across) if "L3" in moved else 0.0
        tasks = int(work * opts.lanes * opts.reduce_lanes // m.chunk) // m.cores * m.cores
        return Cost(operations=work, jumps=far / LINE, moved=moved, tasks=max(tasks, 1)).seconds(m)

    # -- a core

    def _core(self, loops: _Loops) -> Cost:
        """What a core does, memory aside."""
        opts, tile, count = loops.opts, loops.tile, loops.trips
        v = opts.vector
        operations = waits = repeated = 0.0
        for (axes, inner, again), weight in self.work.items():
            once = n = weight * _vectors(axes, inner, loops)
            for a in again:  # what a reduction is over is computed for each tile along the axes that it does not move
                n *= count[a]
            operations += n
            repeated += n - once
        for (axes, around, own, wait), alike in self.chains.items():
            along = 1 if v in axes else opts.reduce_lanes
            tiles = alike * around
            for a in axes:
                tiles *= count[a]
            steps = tiles * max(own / (along * opts.unroll), 1.0)
            waits += steps * wait
            operations += steps * TURN
            if along > 1:  # in the end the lanes are added up
                operations += tiles * math.prod([tile[a] for a in axes]) * 2 * math.log2(along)
        if not self.chains:
            operations += math.prod(count) * TURN
        accesses = 0.0
        for array, n in zip(self.arrays, self.times):
            accesses += n * _runs(array, loops, self.target)
        tasks = math.prod([count[a] for a in opts.threads])
        small = int((operations + accesses) * opts.lanes * opts.reduce_lanes // self.target.chunk)
        return Cost(operations, accesses, waits, repeated, tasks=max(min(tasks, small), 1))

    # -- memory

    def _moved(self, loops: _Loops, crowded: bool) -> tuple[dict[str, float], float]:
        """Bytes that each level hands to the one before it, and jumps to lines beyond L2."""
        threads = loops.opts.threads
        order = [*threads, *(a for a in range(len(loops.trips)) if a not in threads)]
        order = [a for a in order if loops.trips[a] > 1]
        grown = self._grown(order, loops)
        moved: dict[str, float] = {}
        jumps = 0.0
        for level, size, ways in _caches(self.target):
            came = self._misses(size, ways if crowded else 0, order, grown, loops)
            moved[level] = self._together(came)
            if level == "L3" and moved[level]:
                far = [n if _jumps(a, order, loops) else 0.0 for a, n in zip(self.arrays, came)]
                jumps = self._together(far) / LINE
        return moved, jumps

    def _grown(self, order: list[int], loops: _Loops) -> list[list[float]]:
        """What each array takes of a cache: for a tile, and for as many of the inner loops as there are, one more each
        time."""
        held = list(loops.tile)
        grown = [[_footprint(a, held) for a in self.arrays]]
        for axis in reversed(order):
            held[axis] = self.nest.shape[axis]
            grown.append([_footprint(a, held) for a in self.arrays])
        return grown

    def _misses(self, size: int, ways: int, order: list[int], grown: list[list[float]], loops: _Loops) -> list[float]:
        """Bytes of each array that a cache of this size and so many ways asks for (ways 0: lines never crowd it).

        With the data of as many inner loops as it holds, each array comes once for each iteration of the loops around
        them, but for the innermost of those that do not move it.
        """
        for inside, taken in enumerate(grown):
            room = [n * _crowding(a, n, size // ways) for a, n in zip(self.arrays, taken)] if ways else taken
            if self._together(room) > size * USABLE:
                kept = max(inside - 1, 0)
                break
        else:
            return [0.0] * len(self.arrays)  # all was there before
        around = order[: len(order) - kept]
        came = []
        for a, n in zip(self.arrays, grown[kept]):
            mine = [x for x in around if x in a.loops]
            while inside and mine and mine[-1] not in a.axes:
                mine.pop()
            # what one of several runs of a reduction reads is gone before the next, unless the cache holds it
            runs = a.again if a.again > 1 and _footprint(a, loops.tile) > size * USABLE else 1
            came.append(runs * n * math.prod([loops.trips[x] for x in mine]))
        return came

    def _together(self, nbytes: list[float]) -> float:
        """The bytes of all accesses: those to one memory are to the same elements."""
        if self.apart:
            return sum(nbytes)
        largest: dict[int, float] = {}
        for a, n in zip(self.arrays, nbytes):
            largest[a.slot] = max(largest.get(a.slot, 0.0), n)
        return sum(largest.values())


def _caches(target: Target) -> tuple[tuple[str, int, int], ...]:
    """For each level, the bytes and ways of the cache in front of it that one core has."""
    l1, l2, l3 = target.l1, target.l2, target.l3
    return ("L2", l1.size, l1.ways), ("L3", l2.size, l2.ways), ("memory", target.l3_of_core, l3.ways)


def _vectors(axes: tuple[int, ...], inner: int, loops: _Loops) -> float:
    """How many vectors of a value are computed that depends on these axes and on ``inner`` steps of reductions."""
    n = float(inner)
    for a in axes:
        n *= loops.trips[a] * loops.tile[a]
    if loops.opts.vector in axes:
        return n / loops.opts.lanes
    return n / loops.opts.reduce_lanes if inner > 1 else n


def _runs(array: _Array, loops: _Loops, target: Target) -> float:
    """Accesses of whole vectors, or as many as what lanes do not find side by side takes the time of."""
    opts = loops.opts
    n = float(array.inner * array.again)
    for a in array.loops:
        n *= loops.trips[a] * loops.tile[a] if a in array.axes else loops.trips[a]
    if opts.lanes > 1 and opts.vector in array.axes:
        step = array.axes[opts.vector]
        if step in SMALL_STEPS:
            return (1.0 if step == 1 else target.picked) * n / opts.lanes
        square = any(step == 1 and loops.tile[a] >= opts.lanes for a, step in array.axes.items())
        return target.transposed(opts.lanes) * n / opts.lanes if square else n * SCATTERED
    if opts.reduce_lanes > 1 and array.inner > 1:
        return n / opts.reduce_lanes if array.beside else n * SCATTERED
    return n


def _footprint(array: _Array, held: Sequence[int]) -> float:
    """Bytes of cache that an access takes while so much of each output axis, and all of the reductions, goes by."""
    n, run = array.itemsize * array.inner, array.run
    for a, step in array.axes.items():
        n *= held[a]
        if step == 1:
            run = held[a]
    run *= array.itemsize
    return n * LINE / run if run < LINE else n


def _jumps(array: _Array, order: list[int], loops: _Loops) -> bool:
    """Whether the lines of an access follow each other at steps that a prefetcher does not foresee."""
    if array.inner > 1:
        return array.across
    inner = next((a for a in reversed(order) if a in array.axes), None)
    if inner is None or array.axes[inner] in (0, 1):
        return False
    run = math.prod([loops.tile[a] for a, step in array.axes.items() if step == 1])
    step = array.axes[inner]
    return step is None or abs(step) > max(run, LINE // array.itemsize)


def _crowding(array: _Array, footprint: float, way: int) -> float:
    """How much more of a cache it takes than it has bytes: lines at some strides fall into a few of its sets."""
    if array.stride <= LINE or array.inner == 1:
        return 1.0
    run = max(footprint / array.inner, LINE)
    return max(way / (way // math.gcd(array.stride, way) * run), 1.0)


def operations(values: list[UOp], target: Target) -> Iterable[tuple[UOp, float]]:
    """The operations of a nest, and how many simple ones each takes; a product that a reduction adds takes none of
    its own."""
    order = toposort(values)
    uses: dict[UOp, list[UOp]] = {}
    for u in order:
        for s in u.src:
            if s.op is Ops.MUL:
                uses.setdefault(s, []).append(u)
    for u in order:
        if u.dtype in (dtypes.index, dtypes.void):
            continue
        if u.op is Ops.REDUCE:
            yield u.src[0], target.maximum if u.arg.op in (Ops.MAX, Ops.MIN) else 1.0
        elif u.op in ALU:
            users = uses.get(u, [])
            fused = len(users) == 1 and users[0].op is Ops.REDUCE and users[0].arg.op is Ops.ADD and u.dtype.is_float
            yield u, 0.0 if fused else slots_of(u, target)


@dataclass(frozen=True)
class Weights:
    """Seconds of one core by which passes over whole expressions weigh computing against writing down, before there are
    loops to look at: a simple operation on one element of 32 bits, a byte to or from memory, a kernel more."""

    operation: float
    byte: float
    kernel: float


def weights(target: Target) -> Weights:
    """Those of a machine."""
    lanes = target.vector_bytes / 4
    return Weights(
        operation=RECOMPUTED / (target.fma * target.clock * lanes),
        byte=1 / target.memory,
        kernel=KERNELS_APART * target.launch_shared,
    )


def expensive(u: UOp, target: Target) -> bool:
    """Whether an operation is a function of numbers that takes many simple ones."""
    return u.op in ALU and u.dtype.is_float and slots_of(u, target) > EXPENSIVE


def slots_of(u: UOp, target: Target) -> float:
    """How many simple operations on vectors an operation takes the time of."""
    return target.slots(issue_of(u), u.dtype.itemsize)
