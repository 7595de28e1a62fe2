"""Predicted and measured times of the kernels of the benchmark suite: how far the model can be trusted.

    python benchmarks/predictions.py                                a line a kernel, and how many are near
    python benchmarks/predictions.py --suite memory --case softmax --json predictions.json
    python benchmarks/predictions.py --one-thread --page docs/predictions.md     the table of that page

A prediction is made from the program and from rates of the machine that were measured before (``uopc.explain``).  What
it is compared with is the fastest of some runs.  Between those runs the machine itself is measured: a probe of what is
said to bound the kernel, as long as the kernel, in turns with it.  By how much the probe is slower than its rate says
is the column ``busy``, by which times are divided: 1 on a machine that has nothing else to do.

Where others use the machine, ``--one-thread`` measures processor time instead, which waiting for a processor is no part
of: kernels run on one thread, and are predicted for one.  ``--with EARLIER.json`` takes the fastest runs of both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # cases and peers, as compare.py finds them

from cases import SUITES, Case
from peers import Skip, with_uopc

from uopc import Tensor, options
from uopc.inspect.explain import buffers_of, graph_of, of_graph
from uopc.inspect.probes import LEVELS, Probe, Probes
from uopc.inspect.report import KernelReport, Report, duration
from uopc.inspect.roofline import Roofline, roofline
from uopc.inspect.table import table
from uopc.options import Options
from uopc.runtime import Memory, NativePlan, get_num_threads, num_threads
from uopc.runtime.compiler import DEFAULT_FLAGS, EXACT_FLAGS, Kernels, Source
from uopc.runtime.device import device, host

LONGEST = 5e9  # operations of a case: what takes more is left out
NEAR = 1.5
LEAST = 2e-6  # seconds: what is shorter is a matter of the launch
ROUNDS = 7  # at least
SHORTEST = 2e-5  # seconds of a probe


@dataclass(frozen=True)
class Row:
    """A kernel.  measured: seconds of its fastest run.  probe: of the probe's fastest run; idle: what its rate says."""

    case: str
    kernel: str
    predicted: float
    bound: str
    measured: float
    probe: float
    idle: float

    @property
    def busy(self) -> float:
        return self.probe / self.idle

    @property
    def ratio(self) -> float:
        """Of the measured time, as it would be on an idle machine, to the predicted one."""
        return self.measured / self.busy / self.predicted

    @property
    def counts(self) -> bool:
        return self.measured >= LEAST

    @property
    def near(self) -> bool:
        return 1 / NEAR <= self.ratio <= NEAR

    def cells(self) -> list[str]:
        """As text."""
        times = [duration(self.predicted), self.bound, duration(self.measured)]
        return [self.case, self.kernel, *times, f"{self.busy:.2f}", f"{self.ratio:.2f}"]


HEADS = ["case", "kernel", "predicted", "by", "measured", "busy", "ratio"]


class Machine:
    """The probes of this machine, and their rates; with ``one_thread``, of one thread in processor time."""

    def __init__(self, one_thread: bool) -> None:
        self.one_thread = one_thread
        self.threads = 1 if one_thread else get_num_threads()
        with num_threads(self.threads):
            self.roof: Roofline = roofline()
        self.probes = {n: Probes(n, host()) for n in {1, self.roof.all.threads}}

    def probe(self, kernel: KernelReport) -> tuple[Probe, float]:
        """What bounds a kernel, for about as long as the kernel; and its seconds on an idle machine."""
        said = kernel.predicted
        threads = 1 if said.threads <= 1 else self.roof.all.threads
        probes, rates, seconds = self.probes[threads], self.roof.rates(threads), max(said.seconds, SHORTEST)
        level = said.bound.rpartition(" ")[2]
        if level not in LEVELS:
            made, rate = probes.fma(max(1, int(seconds * rates.flops / probes.fma(1).amount))), rates.flops
        elif said.bound.startswith("lines"):
            made, rate = probes.lines(level, int(seconds * rates.lines[level])), rates.lines[level]
        else:
            kind = "copy" if kernel.work.written * 4 > kernel.work.read else "read"
            rate = getattr(rates, kind)[level]
            made = probes.moving(kind, level, int(seconds * rate))
        return made, made.amount / rate

    def seconds(self, run: Callable[[], object]) -> float:
        """Of one run."""
        clock = time.thread_time if self.one_thread else time.perf_counter
        start = clock()
        run()
        return clock() - start


class Runner:
    """A plan's kernels, each launched by itself, in order; the shortest many times at once: a clock takes time too."""

    def __init__(self, report: Report, storages: list[Any]) -> None:
        plan = report.plan
        assert plan is not None
        sources = [Source(call.kernel.name, call.kernel.source) for call in plan.calls]
        distinct = list(dict.fromkeys(sources))
        libraries = dict(zip(distinct, Kernels(EXACT_FLAGS if plan.exact else DEFAULT_FLAGS).compile(distinct)))
        dtypes = [d for d, _ in (*plan.inputs, *plan.outs, *plan.temps)]
        self.buffers = buffers_of(plan, storages) + [Memory(max(d.itemsize * n, 1)) for d, n in plan.temps]
        self.natives = []
        self.repeats = [max(1, int(SHORTEST / k.predicted.seconds)) for k in report.kernels]
        for source, call, repeats in zip(sources, plan.calls, self.repeats):
            places = [(b, at * dtypes[b].itemsize) for b, at in call.buffers]
            self.natives.append(NativePlan([(libraries[source], source.symbol, places)] * repeats, len(dtypes)))

    def seconds(self, machine: Machine) -> list[float]:
        """Of each kernel, once."""
        return [
            machine.seconds(lambda native=native: native.run(self.buffers)) / repeats  # type: ignore[misc]
            for native, repeats in zip(self.natives, self.repeats)
        ]


def rows(case: Case, machine: Machine, seconds: float) -> Iterator[Row]:
    """A row for each kernel of a case, measured for about so long."""
    asked = Options() if getattr(case, "fused", True) else Options(fuse_reduce=False)
    with options(fuse_reduce=asked.fuse_reduce), num_threads(machine.threads):
        tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in with_uopc.arguments(case, case.arrays())]
        graph, storages = graph_of(with_uopc.function(case), tuple(tensors), {})
        report = of_graph(graph, asked)
        assert report.plan is not None
        runner = Runner(report, [storages[k] for k in report.plan.input_numbers])
        probes = [machine.probe(k) for k in report.kernels]
        runner.seconds(machine)
        kernels, others = ([float("inf")] * len(probes) for _ in range(2))
        done, stop = 0, time.monotonic() + seconds
        while done < ROUNDS or time.monotonic() < stop:
            kernels = [min(a, b) for a, b in zip(kernels, runner.seconds(machine))]
            others = [min(a, machine.seconds(probe.seconds)) for a, (probe, _) in zip(others, probes)]
            done += 1
    for k, mine, other, (_, idle) in zip(report.kernels, kernels, others, probes):
        yield Row(case.name, k.name, k.predicted.seconds, k.predicted.bound, mine, other, idle)


def chosen_cases(suites: list[str], names: list[str]) -> Iterator[Case]:
    for suite in suites:
        for case in SUITES[suite]:
            if case.flops <= LONGEST and (not names or any(name in case.name for name in names)):
                yield case


def faster(found: list[Row], earlier: list[Row]) -> list[Row]:
    """The rows with the fastest runs of both."""
    known = _numbered(earlier)
    out = []
    for key, row in _numbered(found).items():
        old = known.get(key, row)
        probe = min(row.probe, old.probe / old.idle * row.idle)
        out.append(replace(row, measured=min(row.measured, old.measured), probe=probe))
    return out


def _numbered(found: list[Row]) -> dict[tuple[str, str, int], Row]:
    """By case and kernel; kernels of a name are counted."""
    out: dict[tuple[str, str, int], Row] = {}
    for r in found:
        n = sum(key[:2] == (r.case, r.kernel) for key in out)
        out[r.case, r.kernel, n] = r
    return out


def verdict(found: list[Row]) -> str:
    counted = [r for r in found if r.counts]
    near = sum(r.near for r in counted)
    share = f" ({near / len(counted):.0%})" if counted else ""
    return f"{near} of {len(counted)} kernels of at least {duration(LEAST)} are within a factor of {NEAR}{share}"


BEGIN, END = "<!-- written by benchmarks/predictions.py -->\n", "<!-- end -->\n"


def write_page(path: Path, found: list[Row], machine: Machine) -> None:
    """Put the table between the marks of a page."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    threads = "one thread, processor time" if machine.one_thread else f"{machine.threads} threads"
    where = f"{device().cpu_model}, {threads}."
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(r.cells()).replace("*", "\\*") + " |" for r in found]
    path.write_text(f"{before}{BEGIN}\n{where} {verdict(found)}.\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="predicted and measured times of kernels")
    suites = [name for name in SUITES if name != "machine"]
    parser.add_argument("--suite", choices=suites, action="append", help="the suites (all)")
    parser.add_argument("--case", action="append", default=[], metavar="TEXT", help="only cases whose name has TEXT")
    parser.add_argument("--seconds", type=float, default=0.8, help="of measuring each case (0.8)")
    parser.add_argument("--one-thread", action="store_true", help="measure processor time, on one thread")
    parser.add_argument("--with", dest="earlier", type=Path, metavar="FILE", help="rows of an earlier run (--json)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table into a page of the documentation")
    chosen = parser.parse_args()
    machine, found = Machine(chosen.one_thread), []
    for case in chosen_cases(chosen.suite or suites, chosen.case):
        try:
            found += rows(case, machine, chosen.seconds)
        except Skip as skip:
            print(f"{case.name}: {skip}", file=sys.stderr)
    if chosen.earlier:
        found = faster(found, [Row(**row) for row in json.loads(chosen.earlier.read_text())])
    print(table("", HEADS, [r.cells() for r in found]))
    print(verdict(found))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(r) for r in found], indent=1))
    if chosen.page:
        write_page(chosen.page, found, machine)


if __name__ == "__main__":
    main()
