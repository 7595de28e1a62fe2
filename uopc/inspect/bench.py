"""bench: two runs of pytest-benchmark compared, so that noise raises no alarm and a real change does.

Times are compared by the minimum and the median of their rounds.  A bootstrap (Efron 1979) gives the interval of each
ratio; a benchmark is slower only where the whole interval lies beyond the threshold, for both.  Facts of the plan that
the ``uopc_benchmark`` fixture records are compared exactly: no clock is in them.
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
# of a suite that records facts of plans side by side with others
PLAN_KEYS = ("kernels", "temporary_bytes", "executed_flops", "plan_bytes", "recompute")
SUBSETS = 0.5  # of the rounds, whose minimum is taken in each sample


@dataclass(frozen=True)
class Comparison:
    """One benchmark.  minimum, median: (ratio, low, high) of after to before.  changes: facts of the plan that are
    other ones, as text; worse_facts: those that grew.  missing: "before" or "after" where it has no other."""

    name: str
    before: float = 0.0
    after: float = 0.0
    minimum: tuple[float, float, float] = (1.0, 1.0, 1.0)
    median: tuple[float, float, float] = (1.0, 1.0, 1.0)
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
    minimum = _interval(a, b, np.min, random)
    median = _interval(a, b, np.median, random)
    changes, worse = _facts(old, new)
    return Comparison(
        name,
        float(a.min()),
        float(b.min()),
        minimum,
        median,
        slower=minimum[1] > 1 + threshold and median[1] > 1 + threshold,
        faster=minimum[2] < 1 - threshold and median[2] < 1 - threshold,
        changes=changes,
        worse_facts=worse,
    )


def _interval(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], statistic: Any, random: np.random.Generator
) -> tuple[float, float, float]:
    """The ratio of a statistic of b to that of a, and its interval."""

    def drawn(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # of a minimum, the bootstrap of all rounds would nearly always give the same one
        count = max(1, int(len(x) * SUBSETS)) if statistic is np.min else len(x)
        rows: np.ndarray[Any, Any] = statistic(random.choice(x, (SAMPLES, count)), axis=1)
        return rows

    ratios = drawn(b) / drawn(a)
    low, high = np.quantile(ratios, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(statistic(b) / statistic(a)), float(low), float(high)


def _facts_of(info: dict[str, Any]) -> dict[str, Any]:
    """What ``uopc_benchmark`` recorded, or the suite of this repository beside its rates."""
    return info.get(FACTS) or {key: info[key] for key in PLAN_KEYS if key in info}


def _facts(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Facts that are other ones, and those that grew."""
    was, now = (_facts_of(run.get("extra_info", {})) for run in (old, new))
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
            rows.append([c.name, "-", "-", "-", "-", c.verdict])
            continue
        spread = f"{c.minimum[1]:.3f} to {c.minimum[2]:.3f}"
        rows.append([c.name, duration(c.before), duration(c.after), f"{c.minimum[0]:.3f}", spread, c.verdict])
    bad = sum(c.worse for c in comparisons)
    title = f"{len(comparisons)} benchmarks, {bad} regression{'s' if bad != 1 else ''}"
    return table(title, ["benchmark", "before", "after", "ratio", "interval", "verdict"], rows)
