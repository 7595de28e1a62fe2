"""results: what a sweep measured: points on disk as they are finished, a table, CSV, JSON and a plot."""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from uopc.inspect.report import duration, size
from uopc.inspect.sweep.problems import Problem
from uopc.inspect.table import table
from uopc.runtime.cache import digest
from uopc.runtime.device import device

# Of the columns of the table, of which a sweep prints one part a size.
WIDTHS = (6, 14, 8, 8, 8, 7, 8)
PAGE = 4096  # bytes: what grew by less is drawn so, since no logarithm is of nothing


@dataclass
class Point:
    """One implementation at one size.  times: seconds of a call, all rounds.  skipped: why there is none.  memory:
    bytes by which the peak grew at the first call.  error: largest difference from float64."""

    impl: str
    n: int
    times: list[float] = field(default_factory=list)
    flops: int = 0
    memory: int = 0
    error: float = float("nan")
    first: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    @property
    def least(self) -> float:
        """Seconds of the fastest call."""
        return min(self.times)

    @property
    def median(self) -> float:
        """Seconds."""
        return float(np.median(self.times))

    @property
    def iqr(self) -> float:
        """Seconds between the quartiles."""
        low, high = np.percentile(self.times, (25, 75))
        return float(high - low)

    @property
    def rate(self) -> float:
        """GFLOP/s of the fastest call; 0 where the work is not known."""
        return self.flops / self.least * 1e-9

    def row(self) -> dict[str, Any]:
        """Flat, for CSV and JSON."""
        out: dict[str, Any] = {"impl": self.impl, "n": self.n, "skipped": self.skipped}
        if self.times:
            out |= {"min": self.least, "median": self.median, "iqr": self.iqr, "samples": len(self.times)}
            out |= {"gflops": self.rate, "memory": self.memory, "error": self.error, "first": self.first}
        return out


def own_version() -> str:
    """Of uopc; a checkout that is not installed has none."""
    try:
        return version("uopc")
    except PackageNotFoundError:
        return "from a checkout"


def environment(threads: int | None = None) -> dict[str, Any]:
    """Where it is measured, with so many threads (those in force)."""
    from uopc.inspect.roofline import roofline
    from uopc.runtime import get_num_threads, num_threads
    from uopc.runtime.compiler import find_compiler

    machine, threads = device(), threads or get_num_threads()
    with num_threads(threads):
        peak = roofline().all.flops
    return {
        "cpu": machine.cpu_model,
        "vector_bytes": machine.target.vector_bytes,
        "caches": dict(zip(("l1d", "l2", "l3"), (cache.size for cache in machine.target.caches))),
        "threads": threads,
        "compiler": find_compiler().identity.splitlines()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "uopc": own_version(),
        "numpy": np.__version__,
        "peak_gflops": peak * 1e-9,
        "load": os.getloadavg(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


# ------------------------------------------------------------------------------------------------------------ log --


class Log:
    """Points on disk, one JSON object a line, each written when it is finished: a sweep that is killed loses none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def default(problem: Problem, threads: int) -> Path:
        """Where the points of such a sweep are kept if nothing else is said: beside the cache of kernels."""
        from uopc.runtime.compiler import cache_folder

        key = digest("sweep", problem.name, f"{problem.d} {problem.heads} {problem.causal} {threads}")
        return Path(cache_folder()) / "sweeps" / f"{key[:16]}.jsonl"

    def read(self) -> dict[tuple[str, int], Point]:
        """The points that are whole."""
        out: dict[tuple[str, int], Point] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    point = Point(**json.loads(line))
                except (ValueError, TypeError):
                    continue  # the line that was being written when it was killed
                out[point.impl, point.n] = point
        return out

    def clear(self) -> None:
        """Forget what earlier sweeps left."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def add(self, point: Point) -> None:
        """Keep a point, now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(point)) + "\n")
            file.flush()
            os.fsync(file.fileno())


# ----------------------------------------------------------------------------------------------------------- forms --


def as_table(points: Iterable[Point], title: str = "") -> str:
    """All points, by size."""
    heads = ["n", "implementation", "min", "median", "IQR", "GFLOP/s", "memory", "error"]
    rows = []
    last: int | None = None
    for p in sorted(points, key=lambda p: p.n):
        n = str(p.n) if p.n != last else ""
        last = p.n
        if not p.times:
            rows.append([n, p.impl, "-", "-", "-", "-", "-", p.skipped])
            continue
        rate = f"{p.rate:.1f}" if p.flops else "-"
        times = [duration(p.least), duration(p.median), duration(p.iqr)]
        rows.append([n, p.impl, *times, rate, size(p.memory), f"{p.error:.1e}"])
    return table(title, heads, rows, WIDTHS)


def write_csv(path: str, points: Iterable[Point]) -> None:
    """One row a point."""
    heads = ["impl", "n", "min", "median", "iqr", "samples", "gflops", "memory", "error", "first", "skipped"]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, heads)
        writer.writeheader()
        writer.writerows(p.row() for p in points)


def write_json(path: str, points: Iterable[Point], problem: Problem, where: dict[str, Any]) -> None:
    """Points with all their times, and where they were measured."""
    rows = [{**p.row(), "times": p.times, "facts": p.facts} for p in points]
    about = {k: v for k, v in asdict(problem).items() if k != "n"}
    Path(path).write_text(json.dumps({"problem": about, "environment": where, "points": rows}, indent=1))


def no_plot(path: str) -> str:
    """Why no plot can be made of this name, or "": asked before anything is measured."""
    if not path.endswith((".png", ".svg")):
        return "plots are .png or .svg"
    return "" if find_spec("matplotlib") else "plots need matplotlib: pip install matplotlib"


def plot(path: str, points: Iterable[Point], problem: Problem, where: dict[str, Any]) -> bool:
    """Draw time, rate and memory over n.  False where no point has a time: then nothing is drawn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [p for p in points if p.times]
    if not measured:
        return False
    impls = list(dict.fromkeys(p.impl for p in measured))
    known = any(p.flops for p in measured)
    figure, axes = pyplot.subplots(1, 3 if known else 2, figsize=(15 if known else 10, 4.5))
    for impl in impls:
        mine = sorted((p for p in measured if p.impl == impl), key=lambda p: p.n)
        sizes = [p.n for p in mine]
        axes[0].plot(sizes, [p.least * 1e3 for p in mine], "o-", label=impl)
        if known:
            axes[1].plot(sizes, [p.rate for p in mine], "o-", label=impl)
        axes[-1].plot(sizes, [max(p.memory, PAGE) / 2**20 for p in mine], "o-", label=impl)
    titles = ["time, ms", *(["GFLOP/s"] if known else []), "peak memory, MiB"]
    for axis, title in zip(axes, titles):
        axis.set(xscale="log", yscale="log", title=title, xlabel="n")
        axis.set_xticks(sorted({p.n for p in measured}), [str(n) for n in sorted({p.n for p in measured})], rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    if known:
        axes[1].axhline(where["peak_gflops"], color="black", linestyle="--")
        axes[1].annotate("FMA peak", (sizes[0], where["peak_gflops"]), (0, 4), textcoords="offset points", fontsize=8)
    axes[0].legend(fontsize=8)
    threads = f"{where['threads']} thread{'s' if where['threads'] > 1 else ''}"
    figure.suptitle(f"{problem.label}, float32, {threads}, {where['cpu']}")
    figure.tight_layout()
    plain = dict.fromkeys(("Creator", "Date", "Format", "Type")) if path.endswith(".svg") else {}  # no metadata
    figure.savefig(path, dpi=130, metadata=plain)
    pyplot.close(figure)
    return True


def progress(text: str) -> None:
    """A line that the next one replaces; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
