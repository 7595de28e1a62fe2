"""explain says what the plan does, and what was decided."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixed import Recompute

import uopc
import uopc.rangeify.movement as reshape_rule
from uopc import Tensor, pipeline
from uopc.pipeline import make_plan
from uopc.rangeify import Ctx
from uopc.runtime import tune


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T * q.shape[-1] ** -0.5).softmax(-1) @ v


def flat_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With weights computed in a flat array of n*n elements, square before and after."""
    n, d = q.shape
    scores = q @ k.T * d**-0.5
    largest = scores.max(1, keepdim=True).expand(n, n)
    weights = (scores.reshape(n * n) - largest.reshape(n * n)).exp()
    total = weights.reshape(n, n).sum(1, keepdim=True).expand(n, n)
    return (weights / total.reshape(n * n)).reshape(n, n) @ v


QKV = [(128, 32)] * 3


def test_it_is_the_plan() -> None:
    tensors = [Tensor(x) for x in arrays(*QKV)]
    for fields in ({}, {"fuse_reduce": False}, {"fuse_reduce": True}):
        with uopc.options(**fields):
            report = uopc.explain(attention(*tensors))
        plan = make_plan([attention(*tensors).uop], **fields)
        assert [k.name for k in report.kernels] == [k.name for k in plan.kernels]
        assert [(d, n) for d, n, _ in report.temps] == [(d.name, n) for d, n in plan.temps]
        assert all(k.predicted.seconds > 0 for k in report.kernels)
        assert report.measured is None


def test_a_cascade_is_derived_and_printed_as_formulas() -> None:
    report = uopc.explain(attention, *arrays(*QKV))
    (cascade,) = report.cascades
    assert cascade.derived and len(cascade.state) == len(cascade.step) == len(cascade.merge) == 3
    assert cascade.length == 128 and cascade.merge[0] == "y1 = max(y1_a, y1_b)"
    assert report.kernels[0].value == "y3 * (1 / y2)"
    assert "cascade over 128: derived" in str(report)


def test_a_cascade_is_refused_with_the_reason() -> None:
    def gated(q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.T
        return (scores - scores.max(-1, keepdim=True)).sigmoid().sum(-1)

    (cascade,) = uopc.explain(gated, *arrays(*QKV[:2])).cascades
    assert not cascade.derived and "running value" in cascade.reason


def test_options_that_override_are_named() -> None:
    with uopc.options(fuse_reduce=True, opt=Recompute(8)):
        report = uopc.explain(attention, *arrays(*QKV))
    scores = next(d for d in report.decisions if d.value == "sum(in0 * in1)")
    assert not scores.written and scores.overridden and scores.reason == "fuse_reduce=True"
    assert scores.recompute_seconds > scores.write_seconds > 0
    assert not report.cascades[0].derived and "fuse_reduce=True" in report.cascades[0].reason
    assert report.recompute == 6  # maximum, sum, and four groups of columns
    (warning,) = report.warnings()
    assert "6 times" in warning and "a loop of 4" in warning


def test_decisions_are_those_of_the_plan() -> None:
    """A value that is said to be written down is a temporary of the plan, of its size."""
    with uopc.options(fuse_reduce=False):
        report = uopc.explain(attention, *arrays(*QKV))
    written = [d for d in report.decisions if d.written]
    sizes = [n for _, n, _ in report.temps]
    for d in written:
        assert int(np.prod([int(n) for n in d.shape.split("x")])) in sizes
    assert {d.reason for d in written} >= {"fuse_reduce=False"}


def test_forms() -> None:
    report = uopc.explain(attention, *arrays(*QKV))
    text = str(report)
    assert "kernel" in text and "decisions" in text and "\x1b" not in text
    assert all(len(line) < 250 for line in text.splitlines())
    data = json.loads(json.dumps(report.to_json()))
    assert data["recompute"] == report.recompute and data["kernels"][0]["name"] == report.kernels[0].name
    assert data["kernels"][0]["reductions"][0]["factor"] >= 1
    html = report._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 3 and "&#x27;" in html


def test_show_is_plain_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    uopc.explain(Tensor(np.ones(100, np.float32)) * 2).show()
    assert "e_100" in capsys.readouterr().out


def test_the_value_of_a_line_at_the_prompt_is_the_table() -> None:
    report = uopc.explain(Tensor(np.ones(100, np.float32)) * 2)
    assert repr(report) == str(report) and "e_100" in repr(report)


def test_show_is_in_colour_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    report = uopc.explain(attention, *arrays(*QKV))
    report.show()
    out = capsys.readouterr().out
    bare = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert bare != out and report.kernels[0].name in bare and "cascade over 128: derived" in bare
    assert all(head in bare for head in ("recompute", "predicted", "because"))


def test_bytes_are_said_for_each_level() -> None:
    """What loads and stores move, and what of the arguments each further level holds."""
    with uopc.options(fuse_reduce=False):
        report = uopc.explain(attention, *arrays(*QKV))
    for k in report.kernels:
        beyond = [v for level, v in k.predicted.moved.items() if level != "L1"]
        assert sum(r for r, _ in beyond) == k.work.read and sum(w for _, w in beyond) == k.work.written
        assert k.predicted.moved["L1"][0] >= k.work.read and k.predicted.moved["L1"][1] >= k.work.written
    assert " L1 " in str(report) and " L2 " in str(report)


def test_measured_times_are_beside_predicted_ones() -> None:
    x = Tensor(np.ones((64, 64), np.float32))
    report = uopc.explain(x.softmax(-1), measure=True)
    assert report.measured is not None and report.measured > 0
    assert "ratio" in str(report)
    assert np.all(x.numpy() == 1)


def test_what_can_be_explained() -> None:
    x = np.ones((4, 4), np.float32)
    assert len(uopc.explain(lambda a: (a + 1, {"b": a.sum()}), x).kernels) == 2
    assert uopc.explain(uopc.jit(lambda a: a * 2), x).kernels[0].name == "e_4_4"
    assert uopc.explain([Tensor(x) + 1, Tensor(x) + 2]).kernels
    for wrong in (3, "text", lambda a: 1):
        with pytest.raises(TypeError):
            uopc.explain(wrong, *([x] if callable(wrong) else []))
    with pytest.raises(TypeError, match="only after a function"):
        uopc.explain(Tensor(x), x)


def test_a_loop_program() -> None:
    from uopc.inspect.sweep.online import online

    report = uopc.explain(online(64, 16, causal=True))
    assert report.kernels[0].recompute == 1 and "thread 16 > " in report.kernels[0].loops
    with pytest.raises(TypeError, match="no arrays"):
        uopc.explain(online(64, 16), measure=True)


def test_a_cubic_regression_in_the_reshape_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsimplified, the index of a row's maximum seems to mention the key: it is then computed for each key, with
    correct output.  explain says so: a recompute factor that grows with n, and the loop that repeats."""

    def factor(n: int) -> tuple[float, list[str]]:
        monkeypatch.setattr(pipeline, "_kernels", {})
        with uopc.options(fuse_reduce=True, opt=Recompute(8)):
            report = uopc.explain(flat_attention, *arrays(*[(n, 8)] * 3))
        assert all(r.predicted == r.counted for k in report.kernels for r in k.reductions)
        return report.recompute, report.warnings()

    assert factor(32)[0] == factor(64)[0] == 3
    monkeypatch.setattr(reshape_rule, "simplify_index", lambda expr, ctx: expr)
    monkeypatch.setattr(Ctx, "simplify", lambda self, expr: expr)
    later = [replace(s, run=lambda g, _: g) if s.name == "simplify" else s for s in pipeline.LOOP_STAGES]
    monkeypatch.setattr(pipeline, "LOOP_STAGES", tuple(later))
    monkeypatch.setattr("uopc.inspect.recompute.LOOP_STAGES", tuple(later))
    for n in (32, 64):
        recompute, warnings = factor(n)
        assert recompute > n
        assert any(f"a loop of {n} that it only seems to depend on" in w for w in warnings)


def test_schedules_that_were_measured_are_shown(monkeypatch):
    x, y = np.ones((40, 64), np.float32), np.ones((64, 48), np.float32)
    assert "schedules" not in str(uopc.explain(lambda x, y: x @ y, x, y))
    monkeypatch.setattr(tune, "race", lambda runs: [2.0, 1.0, 4.0][: len(runs)])
    monkeypatch.setattr(tune, "_known", {})
    monkeypatch.setattr(tune, "disk_cache", lambda: None)
    with uopc.options(tune=3):
        report = uopc.explain(lambda x, y: x @ y, x, y)
    found = report.kernels[-1].tuning
    assert found is not None and found.best == 1 and found.gain == 2.0
    _, heads, rows = next(s for s in report.sections() if "schedules" in s[0])
    mine = [r for r in rows if r[0] == report.kernels[-1].name]
    assert [r[heads.index("speed")] for r in mine] == ["2.00", "1.00", "0.50"]
    assert [r[-1] for r in mine] == ["taken", "the usual", ""]
    assert {r[heads.index("schedule")] for r in mine} == {t.schedule for t in found.trials}
    shown = json.loads(json.dumps(report.to_json()))["kernels"][-1]["tuning"]
    assert [t["predicted"] for t in shown["trials"]] == [t.predicted for t in found.trials]
