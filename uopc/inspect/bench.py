"""bench: two runs of pytest-benchmark compared, so that noise raises no alarm and a real change does.

Times are compared by the minimum and the median of their rounds.  A bootstrap (Efron 1979) gives the interval of each
ratio; a benchmark is slower only where the whole interval lies beyond the threshold, for both.  Where the
``uopc_benchmark`` fixture timed a reference workload around each benchmark, ratios are also taken of times divided by
its times, and must say the same: what the machine did meanwhile is no regression.  Facts of the plan that the fixture
records are compared exactly: no clock is in them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from uopc.inspect.report import duration
from uopc.inspect.table import table

SAMPLES = 2000
CONFIDENCE = 0.99  # of the interval: a suite of a hundred benchmarks is compared at once
FACTS = "uopc"  # the key of the facts in extra_info
REFERENCE = "reference"  # the key of the seconds of the reference workload, timed around the benchmark
SUBSETS = 0.5  # of the rounds, whose minimum is taken in each sample


@dataclass(frozen=True)
class Comparison:
    """One benchmark.  minimum, median: (ratio, low, high) of after to before.  beside: that of the minimum, divided by
    that of the reference workload.  machine: by how much the reference workload was slower.  changes: facts of the plan
    that are other ones, as text; worse_facts: those that grew.  missing: "before" or "after" where it has no other."""

    name: str
    before: float = 0.0
    after: float = 0.0
    minimum: tuple[float, float, float] = (1.0, 1.0, 1.0)
    median: tuple[float, float, float] = (1.0, 1.0, 1.0)
    beside: tuple[float, float, float] = (1.0, 1.0, 1.0)
    machine: float = 1.0
    slower: bool = False
    faster: bool = False
    changes: list[str] = field(default_factory=list)
    worse_facts: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def worse(self) -> bool:
        """Whether it is a regression."""
        return self.slower or bool(self.worse_facts)

    @property
    def verdict(self) -> str:
        """In a few words."""
        words = ["slower"] if self.slower else ["faster"] if self.faster else []
        if self.worse_facts:
            words.append("worse plan: " + ", ".join(self.worse_facts))
        elif self.changes:
            words.append("other plan: " + ", ".join(self.changes))
        return f"only {self.missing}" if self.missing else "; ".join(words) or "same"

    def to_json(self) -> dict[str, Any]:
        """As values that ``json.dumps`` takes."""
        return {**asdict(self), "worse": self.worse, "verdict": self.verdict}


def _read(path: str) -> dict[str, dict[str, Any]]:
    """The benchmarks of a file by name.  ValueError where it is none of pytest-benchmark's."""
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)["benchmarks"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no JSON of pytest-benchmark: {error!r}") from error
    return {b.get("fullname", b["name"]): b for b in found}


def _times(benchmark: dict[str, Any]) -> np.ndarray[Any, Any]:
    """All rounds where they were stored (--benchmark-save-data), else what the statistics say of them."""
    stats = benchmark["stats"]
    data = stats.get("data")
    return np.array(data if data else [stats["min"], stats["q1"], stats["median"], stats["q3"]], float)


def compare_files(before: str, after: str, threshold: float, reference: str | None = None) -> list[Comparison]:
    """Compare two files.  reference: the name of a benchmark of the machine itself, by which both runs are divided.

    ValueError where a file is not pytest-benchmark's, or has no such reference.
    """
    old, new = _read(before), _read(after)
    speed = 1.0
    if reference is not None:
        speeds = []
        for path, run in ((before, old), (after, new)):
            found = [b for name, b in run.items() if name.endswith(reference) or b["name"] == reference]
            if not found:
                raise ValueError(f"{path} has no benchmark {reference!r}; it has {', '.join(run) or 'none'}")
            speeds.append(float(np.min(_times(found[0]))))
        speed = speeds[0] / speeds[1]
    out = [compare(name, old[name], new[name], threshold, speed) for name in old if name in new]
    out += [Comparison(name, missing="before") for name in old if name not in new]
    return out + [Comparison(name, missing="after") for name in new if name not in old]


def compare(name: str, old: dict[str, Any], new: dict[str, Any], threshold: float, speed: float = 1.0) -> Comparison:
    """One benchmark in two runs; times of the second are multiplied by ``speed``."""
    a, b = _times(old), _times(new) * speed
    random = np.random.default_rng(0)
    beside = [np.array(run.get("extra_info", {}).get(REFERENCE, ()), float) for run in (old, new)]
    known = all(len(x) for x in beside)
    minimum, median = (_interval(a, b, s, random) for s in (np.min, np.median))
    # where the machine itself was timed, it must neither excuse nor accuse
    relative = [_interval(a, b, s, random, beside) for s in (np.min, np.median)] if known else []
    intervals = [minimum, median, *relative]
    changes, worse = _facts(old, new)
    return Comparison(
        name,
        float(a.min()),
        float(b.min()),
        minimum,
        median,
        beside=relative[0] if known else minimum,
        machine=float(np.median(beside[1]) / np.median(beside[0])) if known else 1.0,
        slower=all(low > 1 + threshold for _, low, _ in intervals),
        faster=all(high < 1 - threshold for _, _, high in intervals),
        changes=changes,
        worse_facts=worse,
    )


def _interval(
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    statistic: Any,
    random: np.random.Generator,
    beside: list[np.ndarray[Any, Any]] | None = None,
) -> tuple[float, float, float]:
    """The ratio of a statistic of b to that of a, and its interval.  beside: times by which they are divided."""

    def drawn(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # of a minimum, the bootstrap of all rounds would nearly always give the same one
        count = max(1, int(len(x) * SUBSETS)) if statistic is np.min else len(x)
        rows: np.ndarray[Any, Any] = statistic(random.choice(x, (SAMPLES, count)), axis=1)
        return rows

    ratios, ratio = drawn(b) / drawn(a), statistic(b) / statistic(a)
    if beside is not None:
        ratios = ratios / (drawn(beside[1]) / drawn(beside[0]))
        ratio = ratio / (statistic(beside[1]) / statistic(beside[0]))
    low, high = np.quantile(ratios, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(ratio), float(low), float(high)


def _facts(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Facts that are other ones, and those that grew."""
    was, now = (run.get("extra_info", {}).get(FACTS, {}) for run in (old, new))
    if not was or not now:
        return [], []
    changes, worse = [], []
    for key in was:
        a, b = was[key], now.get(key)
        if a == b or b is None:
            continue
        if isinstance(a, list):
            text = f"{len(a)} -> {len(b)} {key}" if len(a) != len(b) else f"other {key}"
            grew = len(b) > len(a)
        else:
            text, grew = f"{key} {a} -> {b}", b > a
        changes.append(text)
        if grew:
            worse.append(text)
    return changes, worse


def as_table(comparisons: list[Comparison]) -> str:
    """A line a benchmark, regressions last, where they are seen."""
    rows = []
    for c in sorted(comparisons, key=lambda c: (c.worse, c.name)):
        if c.missing:
            rows.append([c.name, *["-"] * 5, c.verdict])
            continue
        spread = f"{c.minimum[1]:.3f} to {c.minimum[2]:.3f}"
        times = [duration(c.before), duration(c.after), f"{c.machine:.2f}", f"{c.minimum[0]:.3f}"]
        rows.append([c.name, *times, spread, c.verdict])
    bad = sum(c.worse for c in comparisons)
    plural = "s" if len(comparisons) != 1 else ""
    title = f"{len(comparisons)} benchmark{plural}, {bad} regression{'s' if bad != 1 else ''}"
    return table(title, ["benchmark", "before", "after", "machine", "ratio", "interval", "verdict"], rows)
