"""roofline: what this machine can do at most, measured once and kept beside the kernel cache.

FMA peak of float32, bandwidth of each level of memory, lines in random order from each, and the cost of a launch, each
for one thread and for all, by the kernels of ``probes``.  Every figure is that of the fastest of a few runs: what
disturbs a run only makes it slower.  All are measured in turns, so that a busy moment hurts none of them alone.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from uopc.inspect.probes import LEVELS, Probe, Probes
from uopc.runtime import get_num_threads
from uopc.runtime.cache import digest
from uopc.runtime.compiler import disk_cache
from uopc.runtime.device import device, host

VERSION = 2
SETTLED = 10  # rounds in which nothing became faster by GAIN: what is left of other work is then no more in the figures
GAIN = 0.01
LONGEST = 10.0  # seconds, where other work never lets go
FMA_STEPS = 80_000  # half a millisecond: more than a sleeping thread takes to wake
CHAIN_STEPS = 400_000
MOVED = 1 << 25  # bytes that each probe of a cache moves in a round
LINES = 1 << 16  # lines that each probe of a cache reads in a round


@dataclass(frozen=True)
class Rates:
    """What a number of threads can do.  flops: float32, an FMA is two, a second.  mixed: vector operations a second, of
    which half need no multiplier: many processors have further units for those.  latency: seconds until the result of
    an FMA can be used.  read, copy: bytes a second by level
    (L1, L2, L3, memory); a copied byte counts twice.  lines: cache lines a second by level, in random order.  launch:
    seconds of starting a kernel."""

    threads: int
    flops: float
    mixed: float
    latency: float
    read: dict[str, float]
    copy: dict[str, float]
    lines: dict[str, float]
    launch: float


@dataclass(frozen=True)
class Roofline:
    """The rates of one thread and of all, and how wide a vector is."""

    one: Rates
    all: Rates
    vector_bytes: int
    l2: int
    l3: int

    def rates(self, threads: int) -> Rates:
        """For a kernel that one thread runs, or several."""
        return self.one if threads <= 1 else self.all

    def level(self, nbytes: int, threads: int) -> str:
        """The level of memory that holds so many bytes when they are used again and again."""
        if nbytes <= self.l2 * max(1, threads) * 3 // 4:
            return "L2"
        return "L3" if nbytes <= self.l3 * 9 // 10 else "memory"


def _probes(probes: Probes) -> dict[tuple[str, str], Probe]:
    """What is measured, by name and level."""
    made = {("fma", ""): probes.fma(FMA_STEPS), ("mixed", ""): probes.mixed(FMA_STEPS)}
    made |= {("chain", ""): probes.chain(CHAIN_STEPS), ("launch", ""): probes.nothing()}
    for level in LEVELS:
        made |= {(kind, level): probes.moving(kind, level, MOVED) for kind in ("read", "copy")}
        if level != "L1":
            made["lines", level] = probes.lines(level, LINES)
    return made


def _rates(threads: int, probes: dict[tuple[str, str], Probe], best: dict[tuple[str, str], float]) -> Rates:
    a_second = {key: probe.amount / best[key] for key, probe in probes.items()}
    by_level: dict[str, dict[str, float]] = {"read": {}, "copy": {}, "lines": {}}
    for (kind, level), rate in a_second.items():
        if level:
            by_level[kind][level] = rate
    return Rates(
        threads=threads,
        flops=a_second["fma", ""],
        mixed=a_second["mixed", ""],
        latency=1 / a_second["chain", ""],
        launch=1 / a_second["launch", ""],
        **by_level,
    )


def measure(threads: int | None = None) -> Roofline:
    """Measure now; takes a second, or some on a busy machine."""
    target = host()
    n = threads or get_num_threads()
    made = {count: _probes(Probes(count, target)) for count in dict.fromkeys((1, n))}
    best = {count: dict.fromkeys(probes, float("inf")) for count, probes in made.items()}
    settled, stop = 0, time.monotonic() + LONGEST
    while settled < SETTLED and time.monotonic() < stop:
        settled += 1
        for count, probes in made.items():
            for key, probe in probes.items():
                probe.seconds()  # the one before left other things in the caches
                seconds = probe.seconds()
                if seconds < best[count][key] * (1 - GAIN):
                    settled = 0
                best[count][key] = min(best[count][key], seconds)
    one, all_ = (_rates(count, made[count], best[count]) for count in (1, n))
    return Roofline(one, all_, target.vector_bytes, target.l2.size, target.l3.size)


_kept: dict[int, Roofline] = {}


def roofline(again: bool = False) -> Roofline:
    """The roofline of this machine with the number of threads in force: from disk, else measured (or ``again``)."""
    threads = get_num_threads()
    if threads in _kept and not again:
        return _kept[threads]
    key = digest(f"roofline {VERSION}", device().identity, str(device()), str(threads))
    cache = disk_cache()
    note = cache.note(key) if cache and not again else None
    found = None if note is None else _unpack(note)
    if found is None:
        found = measure(threads)
        if cache is not None:
            cache.keep_note(key, json.dumps(asdict(found)).encode())
    _kept[threads] = found
    return found


def _unpack(note: bytes) -> Roofline | None:
    try:
        kept = json.loads(note)
        return Roofline(Rates(**kept.pop("one")), Rates(**kept.pop("all")), **kept)
    except (ValueError, TypeError, KeyError):
        return None
