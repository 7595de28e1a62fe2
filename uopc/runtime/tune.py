"""tune: measure schedules of a kernel, and keep the best.

``options(tune=n)`` or ``UOPC_TUNE=n``: when a plan is compiled, each of its kernels is compiled under the ``n``
schedules that ``uopc.cost`` puts first, all at once in few runs of the C compiler; they take turns on arrays of the
kernel's shapes, and the fastest takes the kernel's place. What was found is kept beside the compiled kernels under a
digest of the kernel, the options, the threads, the compiler, the machine and the files of uopc. Another process that
tunes as much or less takes it from there; one that does not tune never looks.

The usual schedule is always among those measured, and stays unless another one is faster by more than noise.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uopc._hot.runtime import Memory, NativePlan, get_num_threads
from uopc.cost import Candidate
from uopc.memo import Memo
from uopc.ops import Ops
from uopc.options import Options
from uopc.pipeline import Kernel, Plan, Settings, compile_kernel, kernel_candidates, settings_for
from uopc.runtime.cache import TUNED, digest
from uopc.runtime.compiler import Kernels, disk_cache, toolchain
from uopc.runtime.records import graph_lines, identity
from uopc.runtime.schedules import describe
from uopc.runtime.units import Source
from uopc.uop import UOp, toposort

VERSION = 1
# A turn is as many runs as take this long: what a clock and a call from Python add is then nothing.
TURN_SECONDS = 2e-4
MOST_RUNS = 256
# Rounds of turns: at least and at most so many, and none begins after so many seconds.
LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 5, 40, 1.0
# After the first rounds, what takes so many times as long as the best is not run again.
HOPELESS = 1.5
# What a schedule must gain to replace the usual one.
NOISE = 0.01
MAX_KNOWN = 256

Runs = Sequence[Callable[[], None]]
Race = Callable[[Runs], list[float]]  # the seconds of each


@dataclass(frozen=True)
class Trial:
    """A schedule that was measured: its name, what it is in words, and its predicted and measured seconds."""

    name: str
    schedule: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Tuning:
    """What measuring a kernel gave: its trials (the usual schedule is the first), the best of them, how many were asked
    for, and whether this process ran them or found them kept."""

    trials: tuple[Trial, ...]
    best: int
    asked: int
    kept: bool = False

    @property
    def gain(self) -> float:
        """How many times as fast as the usual schedule the best one is."""
        return self.trials[0].measured / max(self.trials[self.best].measured, 1e-12)

    def __str__(self) -> str:
        best, where = self.trials[self.best], "kept" if self.kept else "measured now"
        return f"{len(self.trials)} schedules, {where}: {self.gain:.2f} times the usual speed with {best.schedule}"

    def pack(self) -> bytes:
        """As bytes, times as they were measured."""
        trials = [[t.name, t.schedule, t.predicted, t.measured] for t in self.trials]
        return json.dumps({"trials": trials, "best": self.best, "asked": self.asked}).encode()


def unpack(data: bytes | None) -> Tuning | None:
    """What ``pack`` gave; None for anything else."""
    try:
        found = json.loads(data or b"")
        trials = tuple(Trial(str(a), str(b), float(c), float(d)) for a, b, c, d in found["trials"])
        best, asked = int(found["best"]), int(found["asked"])
    except (ValueError, TypeError, KeyError):
        return None
    return Tuning(trials, best, asked, True) if 0 <= best < len(trials) else None


# ------------------------------------------------------------------------------------------------------- measuring --


def race(runs: Runs, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """The seconds of the fastest of several turns of each: they take turns, so that what disturbs one disturbs all."""
    for run in runs:
        run()  # memory and code are touched
    best = [math.inf] * len(runs)
    begun = clock()
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and clock() - begun > SECONDS:
            break
        for k, run in enumerate(runs):
            if done >= LEAST_ROUNDS and best[k] > HOPELESS * min(best):
                continue
            start = clock()
            run()
            best[k] = min(best[k], clock() - start)
    return best


def _scratch(root: UOp) -> list[Any]:
    """Memory for each slot of a kernel: floats of about 1, integers of 0, which are indices into anything."""
    random = np.random.default_rng(0)
    buffers = {u.arg.slot: u for u in toposort(root) if u.op is Ops.BUFFER}
    out: list[Any] = []
    for slot in range(1 + max(buffers)):
        u = buffers.get(slot)
        count = 1 if u is None else math.prod(u.arg.shape)
        memory = Memory(max(count * (1 if u is None else u.dtype.itemsize), 1))
        out.append(memory)
        if u is None or not u.dtype.is_float or u.dtype.numpy.kind != "f":
            np.frombuffer(memory, np.uint8)[:] = 0  # type: ignore[call-overload]
            continue
        array: np.ndarray[Any, Any] = np.ndarray((count,), u.dtype.numpy, memory)  # type: ignore[arg-type]
        period = random.uniform(0.5, 1.5, min(count, 4099)).astype(array.dtype)
        for at in range(0, count, period.size):
            array[at : at + period.size] = period[: count - at]
    return out


def _turns(kernels: Sequence[Kernel], memory: list[Any]) -> tuple[Runs, int]:
    """For each kernel, what runs it a number of times in one call, and that number."""
    sources = [Source(k.name, k.source) for k in kernels]
    libraries = Kernels().compile(sources)
    calls = [(library, s.symbol, range(len(memory))) for library, s in zip(libraries, sources)]
    once = NativePlan(calls[:1], len(memory))
    once.run(memory)
    start = time.perf_counter()
    once.run(memory)
    count = max(1, min(MOST_RUNS, math.ceil(TURN_SECONDS / max(time.perf_counter() - start, 1e-7))))
    plans = [NativePlan([call] * count, len(memory)) for call in calls]
    return [lambda plan=plan: plan.run(memory) for plan in plans], count


# --------------------------------------------------------------------------------------------------------- kernels --

_known: Memo[str, Tuning] = Memo(MAX_KNOWN)
_alone = threading.Lock()  # two that measure at once measure each other


def tune_kernel(root: UOp, options: Options, measure: Race | None = None) -> tuple[Kernel, Tuning | None]:
    """The kernel of ``root`` with the best of its schedules, and how it was found; None where there is nothing to
    choose from.  Errors as those of the compiler."""
    settings = settings_for(options)
    # schedules sum in different orders: which one is fast must not decide on bits that depend on nothing else
    if options.tune < 2 or options.batch_invariant:
        return compile_kernel(root, settings), None
    candidates = kernel_candidates(root, settings, get_num_threads())
    if len(candidates) < 2:
        return compile_kernel(root, settings), None
    key = _key(root, settings.options)
    names = {_name(c.root): c for c in candidates}
    with _alone:
        found = _known.get(key) or _from_disk(key)
        if found is None or not _is_enough(found, names, options.tune):
            cache = disk_cache()
            with cache.claim(digest("tune")) if cache else nullcontext():
                found = _from_disk(key)  # another process may have measured meanwhile
                if found is None or not _is_enough(found, names, options.tune):
                    found = _measure(root, candidates[: options.tune], settings, measure)
                    if found is None:
                        return compile_kernel(root, settings), None
                    if cache:
                        cache.keep_note(key, found.pack(), TUNED)
        _known[key] = found
    return _compiled(root, names[found.trials[found.best].name], candidates, settings), found


def _compiled(root: UOp, chosen: Candidate, candidates: list[Candidate], settings: Settings) -> Kernel:
    """A candidate's kernel; the usual one is the kernel that is made without tuning."""
    return compile_kernel(root, settings, None if chosen is candidates[0] else chosen.root)


def _measure(root: UOp, candidates: list[Candidate], settings: Settings, measure: Race | None) -> Tuning | None:
    """Measure candidates; None where memory for it cannot be had."""
    kernels = [_compiled(root, c, candidates, settings) for c in candidates]
    try:
        runs, count = _turns(kernels, _scratch(root))
        times = [seconds / count for seconds in (measure or race)(runs)]
    except MemoryError:
        return None
    target = replace(settings.target, cores=get_num_threads())
    trials = tuple(
        Trial(_name(c.root), describe(c.root), c.seconds(target), seconds) for c, seconds in zip(candidates, times)
    )
    best = min(range(len(times)), key=times.__getitem__)
    return Tuning(trials, best if times[best] < (1 - NOISE) * times[0] else 0, len(candidates))


def _is_enough(found: Tuning, names: dict[str, Candidate], asked: int) -> bool:
    """Whether what was kept is about these candidates, and about as many of them as are asked for."""
    return found.asked >= min(asked, len(names)) and all(t.name in names for t in found.trials)


def _from_disk(key: str) -> Tuning | None:
    cache = disk_cache()
    return unpack(cache.note(key, TUNED)) if cache else None


def _key(root: UOp, options: Options) -> str:
    facts = (f"tune {VERSION}", repr(options), toolchain(), identity(), str(get_num_threads()))
    return digest(*facts, *graph_lines(root))


def _name(root: UOp) -> str:
    return digest(*graph_lines(root))


# ----------------------------------------------------------------------------------------------------------- plans --


def tuned(plan: Plan, options: Options, measure: Race | None = None) -> tuple[Plan, dict[Kernel, Tuning]]:
    """A plan with the best schedules of its kernels, and what was found of each of those that have a choice."""
    made: dict[Kernel, Kernel] = {}
    found: dict[Kernel, Tuning] = {}
    for kernel in plan.kernels:
        if kernel not in made:
            made[kernel], tuning = tune_kernel(kernel.root, options, measure)
            if tuning is not None:
                found[made[kernel]] = tuning
    calls = [replace(call, kernel=made[call.kernel]) for call in plan.calls]
    return replace(plan, calls=calls), found
