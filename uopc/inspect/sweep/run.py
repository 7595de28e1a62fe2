"""run: a sweep: workers, rounds that interleave the implementations, and what is shown meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from uopc.inspect.report import duration, size
from uopc.inspect.sweep.problems import Problem
from uopc.inspect.sweep.process import Process, WorkerFailed
from uopc.inspect.sweep.results import Log, Point, as_table, progress

ROUNDS = 5
SECONDS = 0.4  # that one point's rounds take together, at least
PATIENCE = 300.0  # seconds that a worker may take for one answer
SLOW = 2.0  # a call that takes longer than this is run once or twice, not in rounds
BAR = 24  # characters
MEMORY_SHARE = 0.8  # of what is available may be used

_THREADS = (
    "UOPC_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
# glibc keeps what is freed, so that code is compared and not page faults.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}

# Modules, this package above all, are found where the parent finds them, whatever the working directory holds.
_START = """import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from uopc.inspect.sweep.worker import main
main(sys.argv[1])"""


class Worker(Process):
    """The process of one implementation.  WorkerFailed where its library is absent."""

    def __init__(self, impl: str, threads: int) -> None:
        self.impl = impl
        names = dict.fromkeys(_THREADS, str(threads))
        command = [sys.executable, "-c", _START, json.dumps(sys.path), impl]
        super().__init__(command, {**os.environ, **_KEEP_MEMORY, **names, "JAX_PLATFORMS": "cpu"})
        try:
            self.versions = self.ask("hello")["versions"]
        except WorkerFailed:
            self.end()
            raise

    def ask(self, do: str, timeout: float = PATIENCE, **request: Any) -> dict[str, Any]:
        """As of any Process; WorkerFailed also where the answer is a refusal."""
        answer = super().ask(do, timeout, **request)
        if "skip" in answer:
            raise WorkerFailed(answer["skip"])
        return answer


@dataclass
class Sweep:
    """What is swept.  problem: at any n.  log: of finished points.  out: where rows of the table go.  versions: of what
    each implementation loaded, once it was started."""

    problem: Problem
    sizes: list[int]
    impls: list[str]
    threads: int
    log: Log
    rounds: int = ROUNDS
    seconds: float = SECONDS
    out: TextIO | None = None
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self, known: dict[tuple[str, int], Point] | None = None) -> list[Point]:
        """Measure what is not ``known``; points come in the order of sizes and implementations."""
        done = dict(known or {})
        workers: dict[str, Worker] = {}
        absent: dict[str, str] = {}
        clock = _Clock(self)
        try:
            for n in self.sizes:
                todo = [impl for impl in self.impls if (impl, n) not in done]
                for point in self._size(replace(self.problem, n=n), todo, workers, absent, clock):
                    done[point.impl, n] = point
                    self.log.add(point)
                if self.out is not None:
                    progress("")
                    shown = as_table([done[impl, n] for impl in self.impls if (impl, n) in done])
                    lines = shown.splitlines()
                    print("\n".join(lines if n == self.sizes[0] else lines[2:]), file=self.out, flush=True)
        finally:
            progress("")
            for worker in workers.values():
                worker.end()
        return [done[impl, n] for n in self.sizes for impl in self.impls if (impl, n) in done]

    def _size(
        self, problem: Problem, impls: list[str], workers: dict[str, Worker], absent: dict[str, str], clock: _Clock
    ) -> Iterator[Point]:
        """The points of one size: all are prepared, then timed round by round."""
        ready: list[tuple[Point, Worker, float]] = []
        for impl in impls:
            clock.show(impl, problem.n)
            point = Point(impl, problem.n, flops=problem.flops)
            start = time.monotonic()
            try:
                worker, answer = self._prepared(impl, problem, workers, absent)
            except WorkerFailed as failed:
                point.skipped = str(failed)
                yield point
                continue
            point.first, point.memory, point.error = answer["first"], answer["memory"], answer["error"]
            point.facts = answer["facts"]
            clock.took(impl, problem.n, time.monotonic() - start)
            if answer["once"] > SLOW:
                point.times.append(answer["once"])
                with contextlib.suppress(WorkerFailed):
                    worker.ask("drop")
                yield point
            else:
                ready.append((point, worker, answer["once"]))
        for k in range(self.rounds):
            for point, worker, _ in ready:
                clock.show(point.impl, problem.n, k)
                try:
                    point.times += worker.ask("round", seconds=self.seconds / self.rounds)["times"]
                except WorkerFailed as failed:
                    point.skipped = str(failed)
                    workers.pop(point.impl, worker).end()
        for point, worker, _ in ready:
            with contextlib.suppress(WorkerFailed):
                worker.ask("drop")
            yield point

    def _prepared(
        self, impl: str, problem: Problem, workers: dict[str, Worker], absent: dict[str, str]
    ) -> tuple[Worker, dict[str, Any]]:
        if impl in absent:
            raise WorkerFailed(absent[impl])
        needed, room = problem.bytes_needed(impl), available_memory() * MEMORY_SHARE
        if needed > room:
            raise WorkerFailed(f"would take about {size(needed)}, and {size(room)} may be used")
        if impl not in workers:
            try:
                workers[impl] = Worker(impl, self.threads)
                self.versions[impl] = workers[impl].versions
            except WorkerFailed as failed:
                absent[impl] = str(failed)
                raise
        worker = workers[impl]
        try:
            return worker, worker.ask("prepare", problem=asdict(problem))
        except WorkerFailed:
            if worker.process.poll() is not None:
                workers.pop(impl).end()
            raise


class _Clock:
    """How long what is left will take: each implementation's last point, grown with the work."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.start = time.monotonic()
        self.last: dict[str, tuple[int, float]] = {}
        self.done = 0  # characters of the bar, which never goes back

    def took(self, impl: str, n: int, seconds: float) -> None:
        """A point was prepared in so many seconds."""
        self.last[impl] = n, seconds

    def left(self, impl: str, n: int, round_: int | None = None) -> float:
        """Seconds until the end, from the preparation of a point on, or from a round of its size (from 0) on."""
        rounds, impls = self.sweep.seconds * 1.3, self.sweep.impls
        total = 0.0
        for m, i in [(m, i) for m in self.sweep.sizes if m >= n for i in impls]:
            if m == n and round_ is not None:
                total += rounds * (1 - (round_ + impls.index(impl) / len(impls)) / self.sweep.rounds)
                continue
            known, seconds = self.last.get(i, (m, 1.0))
            if m > n or impls.index(i) >= impls.index(impl):
                total += min(seconds, 1.0) + max(seconds - 1.0, 0.0) * max(1.0, (m / known) ** 2)
            total += rounds
        return total

    def show(self, impl: str, n: int, round_: int | None = None) -> None:
        """The line of progress, before a point is prepared or in a round of its size."""
        sizes = self.sweep.sizes
        spent, left = time.monotonic() - self.start, self.left(impl, n, round_)
        self.done = max(self.done, round(BAR * spent / (spent + left)))
        bar = "#" * self.done + "." * (BAR - self.done)
        what = "prepares" if round_ is None else f"round {round_ + 1} of {self.sweep.rounds}"
        times = f"{duration(spent)} spent, about {duration(left)} left"
        progress(f"[{bar}] size {sizes.index(n) + 1} of {len(sizes)}: n={n} {impl} {what}; {times}")


def available_memory() -> int:
    """Bytes that may be allocated now: the machine's, or the limit of this process's group where that is less."""
    free = 1 << 62
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            folder = Path("/sys/fs/cgroup")
            free = min(free, int((folder / limit).read_text()) - int((folder / used).read_text()))
    return free


def sizes_of(text: str) -> list[int]:
    """``256:4096:x2`` (by a factor), ``256:1024:+256`` or ``256:1024:256`` (in steps), ``256,512`` or ``256``.

    ValueError for anything else."""
    out: list[int] = []
    for part in text.split(","):
        fields = part.split(":")
        if len(fields) == 1:
            out.append(_positive(fields[0], text))
            continue
        low, high = _positive(fields[0], text), _positive(fields[1], text)
        step = fields[2] if len(fields) == 3 else "x2"
        grow: Callable[[int], int]
        if step.startswith("x"):
            times = _factor(step[1:], text)
            grow = lambda n, times=times: max(n + 1, round(n * times))  # type: ignore[misc]  # noqa: E731
        else:
            by = _positive(step.lstrip("+"), text)
            grow = lambda n, by=by: n + by  # type: ignore[misc]  # noqa: E731
        n = low
        while n <= high:
            out.append(n)
            n = grow(n)
    return sorted(dict.fromkeys(out))


def _factor(text: str, whole: str) -> float:
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not 1 < times < 1e6:
        raise ValueError(f"{whole!r}: sizes grow by a factor of more than 1, as in 256:4096:x2")
    return times


def _positive(text: str, whole: str) -> int:
    if not text.isdigit() or not int(text):
        raise ValueError(f"{whole!r} is no range of sizes; accepted are 256:4096:x2, 256:1024:+256, 256,512 and 256")
    return int(text)
