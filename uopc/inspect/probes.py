"""probes: kernels of a known amount of work, run in uopc's own pool, that say what this machine does in a second.

``roofline`` takes their fastest runs for the machine's limits; a comparison that is made while others use the machine
runs them between what it compares, and sees how much slower the machine is just then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from uopc.runtime import Memory, NativePlan, compile_source, num_threads
from uopc.target import LINE, Target

TRIPS = 64  # of what moves through caches and memory
LAUNCHES = 200  # kernels of the plan that measures a launch
MEMORY_BYTES = 1 << 26  # at least this much is read from memory, and at most 8 times as much
LEVELS = ("L1", "L2", "L3", "memory")

# args[0]: a result a trip.  args[1], args[2]: arrays.  args[3]: {bytes of a trip, passes}.
#
# What computes, or stays in L1, has a trip a thread.  What moves through further levels has many that threads take as
# they come, as they do in kernels: half of what a thread reads was last in the hands of another.
_SOURCE = """
typedef float v __attribute__((vector_size(%(bytes)d)));
#define EACH(DO) %(each)s
#define HALF(DO) %(half)s

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

void mixed_range(void *const *args, long lo, long hi)
{
  for (long t = lo; t < hi; t++) {
    const long *how = args[3];
    v x = {0}, y = {0};
    x += 0.999f; y += 0.001f;
#define START2(k) v a##k = x * (float)k, b##k = a##k;
    HALF(START2)
    for (long i = 0; i < how[1]; i++) {
#define STEP2(k) a##k = a##k * x + y; b##k += y;
      HALF(STEP2)
    }
    v sum = {0};
#define SUM2(k) sum += a##k + b##k;
    HALF(SUM2)
    ((float *)args[0])[t] = sum[0];
  }
}
const long mixed_launch[3] = {%(threads)d, 1, 0};

void chain_range(void *const *args, long lo, long hi)
{
  for (long t = lo; t < hi; t++) {
    const long *how = args[3];
    v x = {0}, y = {0};
    x += 0.999f; y += 0.001f;
    v a = x;
    for (long i = 0; i < how[1]; i++) a = a * x + y;
    ((float *)args[0])[t] = a[0];
  }
}
const long chain_launch[3] = {%(threads)d, 1, 0};

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
const long read_launch[3] = {%(trips)d, 1, 1};
void read_own_range(void *const *args, long lo, long hi) { read_range(args, lo, hi); }
const long read_own_launch[3] = {%(threads)d, 1, 0};

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
const long copy_launch[3] = {%(trips)d, 1, 1};
void copy_own_range(void *const *args, long lo, long hi) { copy_range(args, lo, hi); }
const long copy_own_launch[3] = {%(threads)d, 1, 0};

void lines_range(void *const *args, long lo, long hi)
{
  const long *how = args[3];
  for (long t = lo; t < hi; t++) {
    long n = how[0] / %(line)d;
    const float *from = args[1];
    const int *at = (const int *)args[2] + t * n;
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (long i = 0; i + 4 <= n; i += 4) {
      s0 += from[at[i] * %(floats)dL]; s1 += from[at[i + 1] * %(floats)dL];
      s2 += from[at[i + 2] * %(floats)dL]; s3 += from[at[i + 3] * %(floats)dL];
    }
    ((float *)args[0])[t] = s0 + s1 + s2 + s3;
  }
}
const long lines_launch[3] = {%(trips)d, 1, 1};

void nothing_range(void *const *args, long lo, long hi) {}
const long nothing_launch[3] = {%(threads)d, 1, 0};
"""


@dataclass(frozen=True)
class Probe:
    """One of the kernels with its arguments.  amount: what a run does: FLOPs, operations, bytes, lines, launches."""

    plan: NativePlan
    arrays: tuple[np.ndarray, ...]
    threads: int
    amount: float

    def seconds(self) -> float:
        """Of one run."""
        with num_threads(self.threads):
            start = time.perf_counter()
            self.plan.run(self.arrays)  # type: ignore[arg-type]
            return time.perf_counter() - start


class Probes:
    """The kernels for a number of threads.

    fma: 2 operations a lane.  mixed: vector operations, half of them FMAs and half additions.  chain: FMAs that wait
    for one another.  moving: bytes read or copied at a level of memory (a copied byte counts twice).  lines: a cache
    line of a level at a time, in random order.  nothing: launches.
    """

    def __init__(self, threads: int, target: Target) -> None:
        self.threads, self.target = threads, target
        self._accumulators = target.accumulators
        self._library = compile_source(
            _SOURCE
            % {
                "bytes": target.vector_bytes,
                "each": " ".join(f"DO({k})" for k in range(self._accumulators)),
                "half": " ".join(f"DO({k})" for k in range(self._accumulators // 2)),
                "threads": threads,
                "trips": TRIPS,
                "line": LINE,
                "floats": LINE // 4,
            }
        )
        l2 = target.l2.size * threads
        self.sizes = {
            "L1": target.l1.size * threads // 2,
            "L2": l2 // 2,
            "L3": max(min(target.l3.size // 2, 4 * l2), 2 * l2),
            "memory": min(max(MEMORY_BYTES, 2 * target.l3.size), 8 * MEMORY_BYTES),
        }
        self._out = np.zeros(max(threads, TRIPS), np.float32)
        self._none = np.zeros(16, np.float32)
        self._orders: dict[int, np.ndarray] = {}

    @cached_property
    def _source(self) -> np.ndarray:
        return _touched(self.sizes["memory"])

    @cached_property
    def _target(self) -> np.ndarray:
        return _touched(self.sizes["memory"])

    def _made(self, name: str, runs: int, arrays: tuple[np.ndarray, ...], how: tuple[int, int], amount: float) -> Probe:
        plan = NativePlan([(self._library, name, range(4))] * runs, 4)
        return Probe(plan, (self._out, *arrays, np.array(how, np.int64)), self.threads, amount)

    def _computing(self, name: str, steps: int, amount: float, runs: int = 1) -> Probe:
        return self._made(name, runs, (self._none, self._none), (0, steps), amount)

    def fma(self, steps: int) -> Probe:
        """So many steps of every accumulator."""
        lanes = self.target.vector_bytes // 4
        return self._computing("fma", steps, 2 * self._accumulators * lanes * steps * self.threads)

    def mixed(self, steps: int) -> Probe:
        """So many steps of half the accumulators by FMAs, half by additions."""
        return self._computing("mixed", steps, self._accumulators * steps * self.threads)

    def chain(self, steps: int) -> Probe:
        """So many FMAs, each of which needs the one before."""
        return self._computing("chain", steps, steps)

    def nothing(self) -> Probe:
        """``LAUNCHES`` kernels that return at once."""
        return self._computing("nothing", 0, LAUNCHES, LAUNCHES)

    def moving(self, kind: str, level: str, nbytes: int) -> Probe:
        """``read`` or ``copy`` at a level, of about so many bytes in all, and of the whole level at least once."""
        own = level == "L1"
        trips = self.threads if own else TRIPS
        whole = self.sizes[level] // (2 if kind == "copy" and level != "memory" else 1)
        each = whole // trips // (8 * self.target.vector_bytes) * 8 * self.target.vector_bytes
        once = each * trips * (2 if kind == "copy" else 1)
        passes = max(1, round(nbytes / once))
        name = f"{kind}_own" if own else kind
        runs, inside = (1, passes) if own else (passes, 1)
        return self._made(name, runs, (self._source, self._target), (each, inside), once * passes)

    def lines(self, level: str, count: int) -> Probe:
        """About so many lines of a level, and each of its lines at least once."""
        each = self.sizes[level] // 2 // TRIPS // LINE // 4 * 4  # their order takes its part of the cache
        if each not in self._orders:
            self._orders[each] = np.random.default_rng(0).permutation(each * TRIPS).astype(np.int32)
        runs = max(1, round(count / (each * TRIPS)))
        return self._made("lines", runs, (self._source, self._orders[each]), (each * LINE, 1), each * TRIPS * runs)


def _touched(nbytes: int) -> np.ndarray:
    """Memory that vectors may be read from, all of it in use."""
    array: np.ndarray = np.ndarray((nbytes // 4,), np.float32, Memory(nbytes))  # type: ignore[arg-type]
    array.fill(1.0)
    return array
