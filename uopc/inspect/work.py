"""work: what one run of a kernel takes from a processor, read off its LINEAR program, and the time that follows.

The model is a roofline with three roofs: vector operations, accesses that load and store ports serve, and bytes from
the level of memory that holds the kernel's arguments.  It knows nothing of any particular kernel.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from uopc.count import count, memory_of, times
from uopc.inspect.roofline import Roofline
from uopc.ops import ALU, AxisType
from uopc.pipeline import Kernel
from uopc.uop import Ops, UOp, dtypes

# Operations in units of the simplest: a division or square root keeps its unit busy, and a BITCAST is no instruction.
_SLOW = {
    Ops.BITCAST: 0.0,
    Ops.DIV: 8.0,
    Ops.RECIP: 8.0,
    Ops.SQRT: 8.0,
    Ops.IDIV: 12.0,
    Ops.MOD: 12.0,
    Ops.FMOD: 20.0,
    Ops.HREDUCE: 6.0,
}
# A running maximum passes NaN on, in three instructions each of which waits for the one before.
_RUNNING = {Ops.MAX: 8.0, Ops.MIN: 8.0}
# Elements of a gather or scatter go one by one, and each may touch a cache line of its own: measured on transposes.
_SCATTERED = 8.0
# A loop's own counting and branching, in vector operations an iteration.
_TURN = 1.0
# Seconds of starting a kernel in a plan, alone and where other threads join.
LEAST_LAUNCH = {False: 1e-7, True: 6e-7}


@dataclass(frozen=True)
class Work:
    """flops: float operations, an FMA being two.  read, written: bytes of the arguments, each once: what memory must
    move at least.  loaded, stored: bytes that loads and stores move from and to arguments; tiles: from and to
    thread-private tiles: what caches serve.  operations, accesses: vector instructions by kind."""

    flops: int
    read: int
    written: int
    loaded: int
    stored: int
    tiles: int
    operations: float
    accesses: float


def work(linear: UOp, vector_bytes: int) -> Work:
    """The work of one run."""
    runs = times(linear)
    read: dict[UOp, int] = {}
    written: dict[UOp, int] = {}
    tiles = 0
    operations = accesses = 0.0
    fused = _fused(linear)
    running = {u.src[1] for u in linear.src if u.op is Ops.STORE and u.src[1].op in _RUNNING}
    for u, n in runs.items():
        if u.op is Ops.RANGE:
            continue
        if u.op in (Ops.LOAD, Ops.STORE):
            place, value = u.src[0], u if u.op is Ops.LOAD else u.src[1]
            memory = memory_of(place)
            if memory.op is Ops.ALLOC and _is_register(memory, place):
                continue
            lanes = max(value.dtype.count, place.src[1].dtype.count if place.op is Ops.INDEX else 1)
            nbytes = n * lanes * value.dtype.scalar().itemsize
            scattered = place.op is Ops.INDEX and place.src[1].dtype.count > 1
            accesses += n * (lanes * _SCATTERED if scattered else _registers(value, vector_bytes))
            if memory.op is Ops.ALLOC:
                tiles += nbytes
            elif u.op is Ops.LOAD:
                read[memory] = read.get(memory, 0) + nbytes
            else:
                written[memory] = written.get(memory, 0) + nbytes
        elif u.op is Ops.HREDUCE or (u.op in ALU and u.dtype.scalar() is not dtypes.index and u not in fused):
            each = _RUNNING[u.op] if u in running else _SLOW.get(u.op, 1.0)
            operations += n * each * _registers(u, vector_bytes)
    for u in linear.src:
        if u.op is Ops.RANGE:
            operations += _TURN * _turns(u, linear, runs)
    flops, loaded, stored = count(linear).flops, sum(read.values()), sum(written.values())
    return Work(flops, _size(read), _size(written), loaded, stored, tiles, operations, accesses)


def _size(moved: dict[UOp, int]) -> int:
    """Bytes of buffers, as far as they are touched."""
    return sum(min(b.dtype.itemsize * math.prod(b.arg.shape), n) for b, n in moved.items())


def _registers(u: UOp, vector_bytes: int) -> int:
    """How many registers a value fills: halves are computed as float32, masks are as wide as what they choose among."""
    size = max(u.dtype.scalar().itemsize, 4)
    return -(-u.dtype.count * size // vector_bytes)


def _is_register(memory: UOp, place: UOp) -> bool:
    """Whether an access to a thread's own memory is one to a register: an accumulator, or a known address."""
    return math.prod(memory.arg.shape) <= 1 or (place.op is Ops.INDEX and place.src[1].op is Ops.CONST)


def _fused(linear: UOp) -> set[UOp]:
    """Multiplications that become part of an FMA: their one use is an addition."""
    uses: dict[UOp, list[UOp]] = {}
    for u in linear.src:
        for s in u.src:
            if s.op is Ops.MUL and s.dtype.is_float:
                uses.setdefault(s, []).append(u)
    return {m for m, users in uses.items() if len(users) == 1 and users[0].op is Ops.ADD}


def _turns(loop: UOp, linear: UOp, runs: dict[UOp, int]) -> int:
    """How often the body of a loop runs."""
    at = linear.src.index(loop)
    inside = next((u for u in linear.src[at + 1 :] if u in runs), None)
    return runs[inside] if inside is not None else 0


# ----------------------------------------------------------------------------------------------------- prediction --


@dataclass(frozen=True)
class Prediction:
    """seconds: of one run.  bound: what takes them: operations, accesses, or the level of memory.  threads: how many
    share it."""

    seconds: float
    bound: str
    threads: int


def launch_of(kernel: Kernel) -> tuple[int, int]:
    """Iterations of the parallel loop of a kernel, and how many make a chunk."""
    found = re.search(rf"\b{re.escape(kernel.name)}_launch\[3\] = {{(\d+), (\d+),", kernel.source)
    return (int(found[1]), int(found[2])) if found else (1, 1)


def predict(done: Work, kernel: Kernel, roof: Roofline) -> Prediction:
    """The time of a kernel whose arguments were used before."""
    trips, chunk = launch_of(kernel)
    chunks = -(-trips // max(chunk, 1))
    threads = max(1, min(roof.all.threads, chunks))
    rates = roof.rates(threads)
    # the last round of chunks may not fill all threads
    uneven = -(-chunks // threads) * threads / chunks
    # an FMA of float32 is two operations a lane: as many vector operations a second fit in, and as many accesses
    slots = rates.flops / (2 * roof.vector_bytes / 4)
    level = roof.level(done.read + done.written, threads)
    bandwidth = rates.copy[level] if done.written * 4 > done.read else rates.read[level]
    costs = {
        "operations": done.operations / slots * uneven,
        "accesses": done.accesses / slots * uneven,
        level: (done.read + done.written) / bandwidth,
    }
    bound = max(costs, key=costs.__getitem__)
    return Prediction(max(rates.launch, LEAST_LAUNCH[threads > 1]) + costs[bound], bound, threads)


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
