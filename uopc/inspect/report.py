"""report: what ``explain`` found, as data, as a table, as HTML for notebooks and as JSON."""

from __future__ import annotations

import html
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from uopc.inspect.predict import Prediction
from uopc.inspect.probes import LEVELS
from uopc.inspect.recompute import Reduction
from uopc.inspect.roofline import Roofline
from uopc.inspect.table import table
from uopc.inspect.work import Work
from uopc.options import Options

if TYPE_CHECKING:
    from uopc.pipeline import Plan
    from uopc.runtime.tune import Tuning

# A reduction whose values are computed more often than this is worth a line of its own.
WORTH_SAYING = 1.5


@dataclass(frozen=True)
class KernelReport:
    """One kernel.  value: what it computes, as a formula.  writes, reads: buffers of the plan with their shapes.
    seconds: measured, or None.  tuning: the schedules that were measured, with ``options(tune=n)``."""

    name: str
    value: str
    loops: str
    work: Work
    reductions: list[Reduction]
    predicted: Prediction
    tuning: Tuning | None = None
    writes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    seconds: float | None = None

    def with_time(self, seconds: float) -> KernelReport:
        """The same, measured."""
        return replace(self, seconds=seconds)

    @property
    def recompute(self) -> float:
        """The largest recompute factor of its reductions; 1 where there is none."""
        return max((r.factor for r in self.reductions), default=1.0)


@dataclass(frozen=True)
class DecisionReport:
    """A value that could be written down or computed again.  factor: how often it would be computed, by loops of one
    element an iteration.  overridden: costs alone would have chosen otherwise."""

    value: str
    shape: str
    written: bool
    recompute_seconds: float
    write_seconds: float
    factor: float
    reason: str
    overridden: bool


@dataclass(frozen=True)
class CascadeReport:
    """Reductions over one axis of ``length`` elements that depend on each other.  derived: they became one, with this
    state, step and merge; else reason says why not.  anchored, deferred: the factors of running values that are
    corrected at each block, and those that are applied once at the end."""

    derived: bool
    reason: str
    length: int
    state: list[str]
    step: list[str] = field(default_factory=list)
    merge: list[str] = field(default_factory=list)
    anchored: list[str] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)


@dataclass(repr=False)
class Report:
    """What a plan does.  temps: (dtype, elements, bytes) of each temporary.

    A notebook shows it as HTML, ``print`` and the prompt as plain tables, ``show`` in colour where that is possible.
    """

    kernels: list[KernelReport]
    temps: list[tuple[str, int, int]]
    decisions: list[DecisionReport]
    cascades: list[CascadeReport]
    roofline: Roofline
    options: Options
    plan: Plan | None = field(default=None, repr=False)

    # -- sums

    @property
    def predicted(self) -> float:
        """Seconds of one run, as predicted."""
        return sum(k.predicted.seconds for k in self.kernels)

    @property
    def measured(self) -> float | None:
        """Seconds of one run, as measured."""
        times = [k.seconds for k in self.kernels]
        return None if None in times else sum(t for t in times if t is not None)

    @property
    def flops(self) -> int:
        """Float operations of one run."""
        return sum(k.work.flops for k in self.kernels)

    @property
    def bytes_moved(self) -> int:
        """Bytes of all kernels' arguments."""
        return sum(k.work.read + k.work.written for k in self.kernels)

    @property
    def temp_bytes(self) -> int:
        """Bytes of temporaries."""
        return sum(n for _, _, n in self.temps)

    @property
    def recompute(self) -> float:
        """The largest recompute factor."""
        return max((k.recompute for k in self.kernels), default=1.0)

    # -- forms

    def facts(self) -> dict[str, Any]:
        """Facts of the plan that no clock changes, for comparison with another plan of the same program."""
        return {
            "kernels": [k.name for k in self.kernels],
            "flops": self.flops,
            "bytes": self.bytes_moved,
            "temporaries": self.temp_bytes,
            "recompute": round(self.recompute, 6),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as values that ``json.dumps`` takes."""
        kernels = []
        for k in self.kernels:
            one = asdict(k)
            one["recompute"], one["work"] = k.recompute, k.work.to_json()
            for r, of in zip(one["reductions"], k.reductions):
                r.update(factor=of.factor, predicted_factor=of.predicted_factor)
            one["ratio"] = None if k.seconds is None else k.seconds / k.predicted.seconds
            kernels.append(one)
        options: dict[str, Any] = {
            "fuse_reduce": self.options.fuse_reduce,
            "batch_invariant": self.options.batch_invariant,
            "tune": self.options.tune,
        }
        options["opt"] = None if self.options.opt is None else type(self.options.opt).__name__
        return {
            **self.facts(),
            "kernels": kernels,
            "temps": [{"dtype": d, "elements": n, "bytes": b} for d, n, b in self.temps],
            "decisions": [asdict(d) for d in self.decisions],
            "cascades": [asdict(c) for c in self.cascades],
            "predicted": self.predicted,
            "measured": self.measured,
            "options": options,
            "roofline": asdict(self.roofline),
        }

    def sections(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Tables: a title, column heads, rows."""
        return [s for s in (self._kernels(), self._tunings(), self._reductions(), self._decisions()) if s[2]]

    def _kernels(self) -> tuple[str, list[str], list[list[str]]]:
        timed = self.measured is not None
        levels = [level for level in LEVELS if any(level in k.predicted.moved for k in self.kernels)]
        heads = ["kernel", "FLOP", *levels, "recompute", "predicted", "by", *(["measured", "ratio"] if timed else [])]
        rows = []
        for k in self.kernels:
            row = [k.name, number(k.work.flops), *(moved(*k.predicted.moved.get(level, (0, 0))) for level in levels)]
            row += [factor(k.recompute) if k.reductions else "-", duration(k.predicted.seconds), k.predicted.bound]
            if timed and k.seconds is not None:
                row += [duration(k.seconds), f"{k.seconds / k.predicted.seconds:.2f}"]
            rows.append(row)
        total = f"{len(self.kernels)} kernel{'s' if len(self.kernels) != 1 else ''}, {number(self.flops)}FLOP"
        temps = f"{len(self.temps)} temporaries of {size(self.temp_bytes)}" if self.temps else "no temporaries"
        took = f", measured {duration(self.measured)}" if self.measured is not None else ""
        bytes_ = "bytes by level of memory: read + written"
        return f"{total}, {temps}; predicted {duration(self.predicted)}{took}; {bytes_}", heads, rows

    def _tunings(self) -> tuple[str, list[str], list[list[str]]]:
        rows = []
        for k in {k.name: k for k in self.kernels if k.tuning is not None}.values():
            tuning = k.tuning
            assert tuning is not None
            usual = tuning.trials[0]
            for n, t in sorted(enumerate(tuning.trials), key=lambda x: x[1].measured):
                what = " and ".join(["the usual"] * (n == 0) + ["taken"] * (n == tuning.best))
                speed = f"{usual.measured / t.measured:.2f}" if t.measured else "-"
                rows.append([k.name, t.schedule, duration(t.predicted), duration(t.measured), speed, what])
        heads = ["kernel", "schedule", "predicted", "measured", "speed", ""]
        return "schedules that were measured", heads, rows

    def _reductions(self) -> tuple[str, list[str], list[list[str]]]:
        rows = [
            [k.name, str(r), factor(r.predicted_factor), factor(r.factor), ", ".join(r.repeats) or "-"]
            for k in self.kernels
            for r in k.reductions
        ]
        heads = ["kernel", "reduction", "predicted", "counted", "repeated by"]
        return "how many times each value of a reduction is computed", heads, rows

    def _decisions(self) -> tuple[str, list[str], list[list[str]]]:
        rows = []
        for d in self.decisions:
            choice = ("written down" if d.written else "computed in place") + (" (overridden)" if d.overridden else "")
            costs = [duration(d.recompute_seconds), duration(d.write_seconds)]
            rows.append([shorten(d.value, 44), d.shape, choice, factor(d.factor), *costs, d.reason])
        heads = ["value", "shape", "choice", "uses", "in place", "written", "because"]
        return "decisions: write a value down, or compute it where it is used", heads, rows

    def lines(self) -> list[str]:
        """What is no table: loops, cascades, and warnings."""
        out = [_head(k) for k in self.kernels]
        for c in self.cascades:
            out.append(f"cascade over {c.length}: {'derived' if c.derived else f'not derived: {c.reason}'}")
            for title in ("state", "step", "merge", "anchored", "deferred") if c.derived else ("state",):
                out += [f"  {title:8s} {line}" for line in getattr(c, title)]
        return out + self.warnings()

    def warnings(self) -> list[str]:
        """Values that are computed more than once, and by which loops."""
        out = []
        for k in self.kernels:
            for r in k.reductions:
                if r.factor >= WORTH_SAYING:
                    by = f", repeated by {', '.join(r.repeats)}" if r.repeats else ""
                    out.append(f"warning: {k.name} computes each value of {r} {factor(r.factor)} times{by}")
        return out

    def __str__(self) -> str:
        parts = [table(title, heads, rows) for title, heads, rows in self.sections()]
        return "\n\n".join([*parts, "\n".join(self.lines())])

    __repr__ = __str__  # at the prompt, the value of a line is the table

    def _repr_html_(self) -> str:
        out = []
        for title, heads, rows in self.sections():
            head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
            out.append(f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>")
        text = html.escape("\n".join(self.lines()))
        return "\n".join([*out, f"<pre>{text}</pre>"])

    def show(self) -> None:
        """Print: in colour where ``rich`` is installed and standard output is a terminal."""
        try:
            if not sys.stdout.isatty():
                raise ImportError
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table
        except ImportError:
            print(self)
            return
        console = Console()
        for title, heads, rows in self.sections():
            shown = Table(*heads, title=escape(title), title_justify="left")
            for row in rows:
                shown.add_row(*map(escape, row))
            console.print(shown)
        console.print("\n".join(self.lines()), markup=False)


def _head(k: KernelReport) -> str:
    what = f": {', '.join(k.writes)} = {k.value}" if k.value else ""
    return f"{k.name}{what}\n  loops {k.loops}"


# -------------------------------------------------------------------------------------------------------- numbers --


def number(x: float) -> str:
    """With a unit of thousands: 1.5 G."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(x) >= scale:
            return f"{x / scale:.3g} {unit}"
    return f"{x:.3g} "


def size(nbytes: float) -> str:
    """Bytes."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} B"


def moved(read: int, written: int) -> str:
    """Bytes read and written."""
    return f"{size(read)} + {size(written)}" if written else size(read) if read else "-"


def duration(seconds: float | None) -> str:
    """Seconds, with a unit that fits."""
    if seconds is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns" if seconds else "0"


def factor(x: float) -> str:
    """A recompute factor."""
    return f"{x:.0f}" if abs(x - round(x)) < 0.005 else f"{x:.2f}"


def shorten(text: str, length: int) -> str:
    """At most so many characters."""
    return text if len(text) <= length else text[: length - 3] + "..."
