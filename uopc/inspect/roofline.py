"""roofline: what this machine can do at most, measured once and kept beside the kernel cache.

FMA peak of float32, bandwidth of each level of memory, and the cost of a launch, each for one thread and for all, by
kernels that run in uopc's own pool.  Every figure is that of the fastest of a few runs: what disturbs a run only makes
it slower.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

import numpy as np

from uopc.runtime import Memory, NativePlan, compile_source, get_num_threads, num_threads
from uopc.runtime.cache import digest
from uopc.runtime.compiler import disk_cache
from uopc.runtime.device import Device, device

VERSION = 1
RUNS = 7
FMA_STEPS = 20_000  # about 1 ms of 24 accumulators
LAUNCHES = 200
MEMORY_BYTES = 1 << 26  # at least this much is read from memory, and at most 8 times as much
PASSES_BYTES = 1 << 25  # read by each measurement of a cache

# args[0]: a result a trip.  args[1], args[2]: arrays.  args[3]: {bytes of a trip, passes}.
_SOURCE = """
typedef float v __attribute__((vector_size(%(bytes)d)));
#define EACH(DO) %(each)s

void fma_range(void *const *args, long lo, long hi)
{
  for (long t = lo; t < hi; t++) {
    const long *how = args[3];
    v x = {0}, y = {0};
    x += 0.999f; y += 0.001f;
#define START(k) v a##k = x * (float)k;
    EACH(START)
    for (long i = 0; i < how[1]; i++) {
#define STEP(k) a##k = a##k * x + y;
      EACH(STEP)
    }
    v sum = {0};
#define SUM(k) sum += a##k;
    EACH(SUM)
    ((float *)args[0])[t] = sum[0];
  }
}
const long fma_launch[3] = {%(threads)d, 1, 0};

void read_range(void *const *args, long lo, long hi)
{
  const long *how = args[3];
  for (long t = lo; t < hi; t++) {
    long n = how[0] / (long)sizeof(v);
    const v *from = (const v *)args[1] + t * n;
    v s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    for (long pass = 0; pass < how[1]; pass++) {
      for (long i = 0; i + 8 <= n; i += 8) {
        s0 += from[i]; s1 += from[i + 1]; s2 += from[i + 2]; s3 += from[i + 3];
        s4 += from[i + 4]; s5 += from[i + 5]; s6 += from[i + 6]; s7 += from[i + 7];
      }
      __asm__ volatile("" ::: "memory");
    }
    s0 += s1 + s2 + s3 + s4 + s5 + s6 + s7;
    ((float *)args[0])[t] = s0[0];
  }
}
const long read_launch[3] = {%(threads)d, 1, 0};

void copy_range(void *const *args, long lo, long hi)
{
  const long *how = args[3];
  for (long t = lo; t < hi; t++) {
    long n = how[0] / (long)sizeof(v);
    const v *from = (const v *)args[1] + t * n;
    v *to = (v *)args[2] + t * n;
    for (long pass = 0; pass < how[1]; pass++) {
      for (long i = 0; i < n; i++) to[i] = from[i];
      __asm__ volatile("" ::: "memory");
    }
  }
}
const long copy_launch[3] = {%(threads)d, 1, 0};

void nothing_range(void *const *args, long lo, long hi) {}
const long nothing_launch[3] = {%(threads)d, 1, 0};
"""


@dataclass(frozen=True)
class Rates:
    """What a number of threads can do.  flops: float32, an FMA is two, a second.  read, copy: bytes a second by level
    (L2, L3, memory); a copied byte counts twice.  launch: seconds of starting a kernel."""

    threads: int
    flops: float
    read: dict[str, float]
    copy: dict[str, float]
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
        """For a kernel that so many threads share; in between, rates are those of all in proportion."""
        return self.one if threads <= 1 else self.all

    def level(self, nbytes: int, threads: int) -> str:
        """The level of memory that holds so many bytes when they are used again and again."""
        if nbytes <= self.l2 * max(1, threads) * 3 // 4:
            return "L2"
        return "L3" if nbytes <= self.l3 * 9 // 10 else "memory"


def _plan(threads: int, machine: Device) -> dict[str, NativePlan]:
    accumulators = 24 if machine.vector_bytes >= 64 else 12
    source = _SOURCE % {
        "bytes": machine.vector_bytes,
        "each": " ".join(f"DO({k})" for k in range(accumulators)),
        "threads": threads,
    }
    library = compile_source(source)
    return {name: NativePlan([(library, name, range(4))], 4) for name in ("fma", "read", "copy")} | {
        "nothing": NativePlan([(library, "nothing", range(4))] * LAUNCHES, 4)
    }


def _aligned(nbytes: int) -> np.ndarray:
    """Memory that vectors may be read from, touched."""
    array: np.ndarray = np.ndarray((nbytes // 4,), np.float32, Memory(nbytes))  # type: ignore[arg-type]
    array.fill(1.0)
    return array


def _fastest(plan: NativePlan, arrays: list[np.ndarray]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        plan.run(arrays)  # type: ignore[arg-type]
        best = min(best, time.perf_counter() - start)
    return best


def _measure_threads(threads: int, machine: Device) -> Rates:
    plans = _plan(threads, machine)
    out = np.zeros(threads, np.float32)
    small = np.zeros(16, np.float32)
    how = np.array([0, FMA_STEPS], np.int64)
    accumulators = 24 if machine.vector_bytes >= 64 else 12
    flops = 2 * accumulators * (machine.vector_bytes // 4) * FMA_STEPS * threads
    memory = min(max(MEMORY_BYTES, 2 * machine.l3), 8 * MEMORY_BYTES)
    sizes = {
        "L2": machine.l2 * threads // 2,
        "L3": max(min(machine.l3 // 2, 4 * machine.l2 * threads), 2 * machine.l2 * threads),
        "memory": memory,
    }
    source, target = _aligned(memory), _aligned(memory)
    with num_threads(threads):
        best = _fastest(plans["fma"], [out, small, small, how])
        launch = _fastest(plans["nothing"], [out, small, small, how]) / LAUNCHES
        read: dict[str, float] = {}
        copy: dict[str, float] = {}
        for level, size in sizes.items():
            for name, rates in (("read", read), ("copy", copy)):
                whole = size // 2 if name == "copy" and level != "memory" else size
                each = whole // threads // (8 * machine.vector_bytes) * 8 * machine.vector_bytes
                passes = max(1, PASSES_BYTES // max(whole, 1))
                seconds = _fastest(plans[name], [out, source, target, np.array([each, passes], np.int64)])
                rates[level] = each * threads * passes * (2 if name == "copy" else 1) / seconds
    return Rates(threads, flops / best, read, copy, launch)


def measure(threads: int | None = None) -> Roofline:
    """Measure now; takes about a second."""
    machine = device()
    n = threads or get_num_threads()
    one = _measure_threads(1, machine)
    return Roofline(one, one if n == 1 else _measure_threads(n, machine), machine.vector_bytes, machine.l2, machine.l3)


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
