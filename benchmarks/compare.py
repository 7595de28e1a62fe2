"""uopc beside other libraries: attention, what is fused, matrix products, and what memory bounds.

    python benchmarks/compare.py attention|fusion|matmul|memory|model|all [--case TEXT ...] [--peers NAME ...]
        [--rounds N] [--seconds S] [--threads N] [--json OUT] [--verbose] [--list]

Each library has a worker process of its own, which is stopped while another runs.  A case is prepared in all of them
and then measured in many short rounds, A B C A B C; the fastest call of all rounds counts, so that what else the
machine does weighs little.  Every round also measures what the machine itself can do: FMAs, or bytes copied or read.
Results are compared with float64.  Needs what ``pip install 'uopc[bench]'`` brings; who is absent is left out.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers
from cases import SUITES, Case
from driver import WorkerFailed, Workers, workers
from report import environment, line, load, summary, table_head

PROBES = {"copy": ("copy", "stream copy")}  # of a limit, where it is not one of its own name


@dataclass
class Row:
    """What was measured of one case: seconds of calls by library, and of the machine by probe."""

    suite: str
    case: Case
    times: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)

    def best(self, variant: str) -> float | None:
        return min(self.times[variant]) if self.times.get(variant) else None

    @property
    def best_peer(self) -> str | None:
        others = [v for v in self.times if v != "uopc" and self.times[v]]
        return min(others, key=lambda v: min(self.times[v]), default=None)

    @property
    def ratio(self) -> float | None:
        """Of the fastest calls: how many times as fast as the best peer uopc is."""
        ours, peer = self.best("uopc"), self.best_peer
        return None if ours is None or peer is None else min(self.times[peer]) / ours

    def as_json(self, limits: dict[str, float]) -> dict[str, Any]:
        rate = self.case.flops if self.case.limit.startswith("fma") else self.case.moved
        results = {}
        for variant, times in self.times.items():
            best = min(times)
            share = rate / best / limits[self.case.limit] if self.case.limit in limits else None
            results[variant] = {
                "min": best,
                "median": statistics.median(times),
                "measurements": len(times),
                "gflops": self.case.flops / best * 1e-9,
                "gbytes": self.case.moved / best * 1e-9,
                "share_of_limit": share,
                **self.notes[variant],
            }
        return {
            "suite": self.suite,
            "case": self.case.name,
            "flops": self.case.flops,
            "bytes": self.case.moved,
            "limit": self.case.limit,
            "wanted_ratio": self.case.wanted,
            "wanted_share": self.case.share,
            "best_peer": self.best_peer,
            "ratio": self.ratio,
            "load": self.load,
            "results": results,
            "skipped": self.skipped,
        }


class Comparison:
    """The rows so far, and the best that the machine did: ``limits`` in operations or bytes a second, by probe."""

    def __init__(self, staff: Workers, args: argparse.Namespace, folder: Path) -> None:
        self.staff, self.args, self.folder = staff, args, folder
        self.rows: list[Row] = []
        self.probes: dict[str, float] = {}
        for probe in SUITES["machine"]:
            reply = staff.get("machine").ask("prepare", suite="machine", case=probe.name)
            if "skip" in reply:
                print(f"machine: no {probe.name}: {reply['skip']}", file=sys.stderr)
            else:
                self.probes[probe.name] = 0.0
                self.measure_machine(probe.name)

    @property
    def limits(self) -> dict[str, float]:
        """A copy's is that of the faster way to copy."""
        known = {limit: max(self.probes.get(p, 0.0) for p in names) for limit, names in PROBES.items()}
        return {k: v for k, v in {**self.probes, **known}.items() if v}

    def measure_machine(self, limit: str) -> None:
        for name in PROBES.get(limit, (limit,)):
            if name in self.probes:
                times = self.staff.get("machine").ask("round", case=name, seconds=self.args.seconds)["times"]
                probe = next(p for p in SUITES["machine"] if p.name == name)
                self.probes[name] = max(self.probes[name], (probe.flops or probe.moved) / min(times))

    def run(self, suite: str, case: Case) -> Row:
        """Prepare a case everywhere, measure it in turns, and drop it."""
        row = Row(suite, case)
        exact = str(self.folder / "exact.npy")
        self.staff.get("machine").ask("oracle", suite=suite, case=case.name, path=exact)
        for variant in peers.OF_SUITE[suite]:
            if not self.wanted(variant, case):
                continue
            reply = self.ask(row, variant, "prepare", suite=suite, case=case.name, path=exact)
            if reply is not None:
                row.notes[variant], row.times[variant] = reply, []
        for _ in range(self.args.rounds):
            self.measure_machine(case.limit)
            for variant in list(row.times):
                reply = self.ask(row, variant, "round", case=case.name, seconds=self.args.seconds)
                if reply is not None:
                    row.times[variant] += reply["times"]
        for variant in row.times:
            self.ask(row, variant, "drop", case=case.name)
        row.load = load()
        self.rows.append(row)
        return row

    def wanted(self, variant: str, case: Case) -> bool:
        if variant == "uopc":
            return True
        named = not self.args.peers or any(name in variant for name in self.args.peers)
        return named and (case.peers is None or variant in case.peers)

    def ask(self, row: Row, variant: str, do: str, **request: Any) -> dict[str, Any] | None:
        """The worker's answer; None, with the reason in the row, where there is none."""
        try:
            reply = self.staff.get(variant).ask(do, **request)
        except WorkerFailed as failed:
            self.staff.forget(variant)
            reply = {"skip": str(failed)}
        if "skip" not in reply:
            return reply
        row.skipped[variant] = reply["skip"]
        row.times.pop(variant, None)
        return None

    def as_json(self) -> dict[str, Any]:
        rows = [row.as_json(self.limits) for row in self.rows]
        facts = environment(self.args.threads, self.staff.versions)
        return {"environment": facts, "probes": self.probes, "absent": self.staff.absent, "rows": rows}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    suites = [name for name in SUITES if name != "machine"]
    parser.add_argument("suite", choices=[*suites, "all"])
    parser.add_argument("--case", nargs="+", default=[], metavar="TEXT", help="only cases whose name has TEXT")
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME", help="only libraries whose name has NAME")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.06, help="of each library in each round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="OUT", help="written after every case")
    parser.add_argument("--verbose", action="store_true", help="every library's time under each row")
    parser.add_argument("--list", action="store_true", help="print the cases, and run nothing")
    args = parser.parse_args()
    args.suites = suites if args.suite == "all" else [args.suite]
    return args


def chosen(args: argparse.Namespace) -> list[tuple[str, Case]]:
    """The cases to run."""
    return [
        (suite, case)
        for suite in args.suites
        for case in SUITES[suite]
        if not args.case or any(text in case.name for text in args.case)
    ]


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `workers`, which ends them
    todo = chosen(args)
    if args.list or not todo:
        print("\n".join(f"{suite:10s} {case.name}" for suite, case in todo) or "no case has such a name")
        return 0 if todo else 2
    with tempfile.TemporaryDirectory() as folder, workers(args.threads) as staff:
        comparison = Comparison(staff, args, Path(folder))
        print(table_head(comparison.as_json()))
        try:
            for suite, case in todo:
                row = comparison.run(suite, case)
                print(line(row.as_json(comparison.limits), args.verbose), flush=True)
                if args.json:
                    args.json.write_text(json.dumps(comparison.as_json(), indent=1) + "\n")
        except KeyboardInterrupt:
            print("interrupted: what follows is about the rows above", file=sys.stderr)
        print(summary(comparison.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
