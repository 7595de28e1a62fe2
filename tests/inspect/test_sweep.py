"""Sweeps: every form is right, finished points survive, and what cannot run is skipped with a reason."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from uopc import Tensor
from uopc.__main__ import main
from uopc.inspect.sweep import forms, peers, results, run
from uopc.inspect.sweep.problems import Problem, find_user
from uopc.inspect.sweep.results import Log, Point
from uopc.runtime.device import host

PROBLEMS = [
    Problem("attention", 33, 16), Problem("attention", 20, 8, heads=3, causal=True), Problem("attention", 1),
    Problem("matmul", 17), Problem("softmax", 5), Problem("layer_norm", 6),
]  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.name} {p.n}")
@pytest.mark.parametrize("impl", [*forms.NAMES, "numpy"])
def test_every_form_is_right(impl: str, problem: Problem) -> None:
    inputs = problem.inputs()
    try:
        made = (forms if impl in forms.NAMES else peers).build(impl, problem, inputs)
    except forms.Skip:
        assert impl == "online" and problem.name != "attention"
        return
    assert problem.error(made.read(made.run()), *problem.exact(inputs)) < 2e-5


def test_sizes() -> None:
    assert run.sizes_of("256:2048:x2") == [256, 512, 1024, 2048]
    assert run.sizes_of("100:300:+100") == run.sizes_of("100:300:100") == [100, 200, 300]
    assert run.sizes_of("8,4,4") == [4, 8] and run.sizes_of("1:10:x1.5")[:4] == [1, 2, 3, 4]
    for wrong in ("", "a", "0", "1:2:x", "-5", "1:x"):
        with pytest.raises(ValueError):
            run.sizes_of(wrong)


def test_a_log_keeps_whole_points(tmp_path: Path) -> None:
    log = Log(tmp_path / "sub" / "log.jsonl")
    assert log.read() == {}
    log.add(Point("derived", 4, [1.0, 2.0, 3.0], flops=10))
    log.add(Point("torch", 4, skipped="torch is not installed"))
    with log.path.open("a") as file:
        file.write('{"impl": "derived", "n": 8, "tim')  # killed while writing
    found = log.read()
    assert set(found) == {("derived", 4), ("torch", 4)}
    assert found["derived", 4].median == 2.0 and found["derived", 4].rate == 1e-8
    log.clear()
    assert log.read() == {}


def sweep(tmp_path: Path, *more: str) -> list[str]:
    return [
        "sweep",
        "softmax",
        "--n",
        "4,8",
        "--seconds",
        "0.01",
        "--rounds",
        "2",
        "--log",
        str(tmp_path / "log"),
        *more,
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("a.csv", "a.json")]
    assert main(sweep(tmp_path, "--impl", "derived,numpy,online", "--csv", files[0], "--json", files[1])) == 0
    out = capsys.readouterr().out
    assert "written by hand for attention alone" in out and "FMA peak" in out
    assert len(Path(files[0]).read_text().splitlines()) == 7
    data = json.loads(Path(files[1]).read_text())
    assert data["environment"]["threads"] >= 1 and "compiler" in data["environment"]
    assert data["environment"]["versions"]["numpy"]["numpy"] == np.__version__
    assert {(p["impl"], p["n"]) for p in data["points"] if p["times"]} == {
        (i, n) for i in ("derived", "numpy") for n in (4, 8)
    }
    assert all(p["error"] < 1e-5 for p in data["points"] if p["times"])


def test_resuming_measures_only_what_is_missing(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.add(Point("numpy", 4, [123.0]))
    assert main(sweep(tmp_path, "--impl", "numpy", "--resume")) == 0
    found = log.read()
    assert found["numpy", 4].times == [123.0] and found["numpy", 8].times[0] < 100


def children(pid: int) -> list[int]:
    """The processes that this one started."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Whether there is such a process, other than as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_killing_it_loses_no_finished_point(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uopc", *sweep(tmp_path, "--impl", "numpy")]
    command[command.index("4,8")] = "4,8,16,32,64,128"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log, stop = Log(tmp_path / "log"), time.monotonic() + 60
    while len(log.read()) < 2 and time.monotonic() < stop:
        time.sleep(0.02)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stop = time.monotonic() + 10
    while any(map(runs, workers)) and time.monotonic() < stop:
        time.sleep(0.02)
    assert workers and not any(map(runs, workers))  # stopped or not, they end with it
    before = log.read()
    assert len(before) >= 2
    again = [*sweep(tmp_path, "--impl", "numpy", "--resume")]
    again[again.index("4,8")] = "4,8,16,32,64,128"
    assert main(again) == 0
    after = log.read()
    assert len(after) == 6 and all(after[key].times == before[key].times for key in before)


def test_ctrl_c_writes_what_is_finished(tmp_path: Path) -> None:
    """The files that were asked for have the finished points; no worker is left; and --resume says how to go on."""
    command = [sys.executable, "-m", "uopc", *sweep(tmp_path, "--impl", "numpy", "--csv", str(tmp_path / "a.csv"))]
    command[command.index("4,8")] = ",".join(str(4 << k) for k in range(12))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log, stop = Log(tmp_path / "log"), time.monotonic() + 60
    while len(log.read()) < 2 and time.monotonic() < stop:
        time.sleep(0.02)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in said
    assert workers and not any(map(runs, workers))
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 1 + len(log.read()) >= 3


def test_what_is_left_becomes_less(tmp_path: Path) -> None:
    """The remaining time falls from one step to the next as long as steps take what they took before."""
    made = run.Sweep(Problem("softmax", 1), [4, 8], ["a", "b"], 1, Log(tmp_path / "log"), rounds=3, seconds=0.3)
    clock = run._Clock(made)
    clock.took("a", 4, 0.5)
    clock.took("b", 4, 0.5)
    steps = [(i, n, k) for n in (4, 8) for k in (None, 0, 1, 2) for i in ("a", "b")]
    left = [clock.left(*step) for step in steps]
    assert left == sorted(left, reverse=True) and left[-1] > 0


def test_the_peak_is_that_of_the_threads_in_question() -> None:
    one, two = (results.environment(n) for n in (1, 2))
    assert (one["threads"], two["threads"]) == (1, 2) and one["peak_gflops"] > 0


def test_what_was_freed_before_is_no_part_of_the_memory_of_a_call() -> None:
    """A call is charged for what it uses, also where an earlier one has used and freed as much."""
    from uopc.inspect.sweep.measure import PeakMemory

    for _ in range(3):
        peak = PeakMemory()
        made = np.ones(1 << 20)
        assert peak.grown >= made.nbytes * 0.9
        del made
        peak, tensor = PeakMemory(), Tensor(np.ones(4, np.float32))
        result = tensor.expand(1 << 18, 4).contiguous().numpy()
        assert peak.grown >= result.nbytes * 0.9
        del result


def test_what_does_not_fit_is_skipped_with_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "available_memory", lambda: 1 << 20)
    out = io.StringIO()
    points = run.Sweep(Problem("attention", 1), [4096], ["unfused"], 1, Log(tmp_path / "log"), out=out).run()
    assert points[0].skipped.startswith("would take about 133 MiB") and points[0].times == []
    assert "would take" in out.getvalue()


def test_absent_peers_are_skipped_with_a_reason(tmp_path: Path) -> None:
    problem, log = Problem("softmax", 4), Log(tmp_path / "log")
    (point,) = run.Sweep(problem, [4], ["torch"], 1, log, rounds=1, seconds=0.01).run()
    assert point.times or "not installed" in point.skipped


USERS = """
def attention(q, k, v):
    return (q @ k.T * 0.3).softmax(-1) @ v

def scaled(x):
    return x * 2

def inputs(n):
    import numpy as np
    return [np.ones((n, 3), np.float32)]

def reference(x):
    return x * 2
"""


def test_a_users_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(USERS)
    user = find_user(f"{path}:scaled")
    assert user.arity == 1 and user.inputs is not None
    problem = Problem(f"{path}:scaled", 5)
    made = forms.build("derived", problem, problem.inputs())
    assert problem.error(made.run(), *problem.exact(problem.inputs())) == 0
    (tmp_path / "other.py").write_text(USERS.split("def scaled")[0])
    problem = Problem(f"{tmp_path / 'other.py'}:attention", 24, 8)
    for impl in forms.OPTIONS:
        made = forms.build(impl, problem, problem.inputs())
        assert problem.error(made.run(), *problem.exact(problem.inputs())) < 1e-5
    for wrong in ("nothing", "no.such.module:f", f"{path}:none", f"{path}:USERS"):
        with pytest.raises(ValueError):
            find_user(wrong)


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [Point(i, n, [1e-3 * n, 2e-3 * n], flops=n**2, memory=n) for i in ("a", "b") for n in (4, 8)]
    for name in ("a.png", "a.svg"):
        where = {"peak_gflops": 100.0, "threads": 2, "cpu": "x"}
        assert results.plot(str(tmp_path / name), points, Problem("attention", 4), where)
        assert os.path.getsize(tmp_path / name) > 1000
    assert "<metadata" not in (tmp_path / "a.svg").read_text()  # two of one measurement are one file


WRONG = {
    "nonsense": ["nonsense"],
    "no range of sizes": ["softmax", "--n", "x"],
    "no implementation": ["softmax", "--impl", "none"],
    "there is no folder": ["softmax", "--csv", "/nonexistent/a.csv"],
    ".png or .svg": ["softmax", "--plot", "a.jpeg"],
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_said_before_anything_is_measured(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *WRONG[said]]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out


def test_a_plot_without_matplotlib_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "find_spec", lambda name: None)
    assert main(["sweep", "softmax", "--plot", "a.png"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "FLOP/s" in out and "compiler" in out
    assert f"{host().name}: {host().describe()}" in out, "the row of the machine"
    assert main(["info", "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)["roofline"]["all"]
    assert rates["flops"] > 1e8 and set(rates["read"]) == {"L1", "L2", "L3", "memory"}


def test_explain_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.py").write_text(USERS.split("def scaled")[0])
    name = f"{tmp_path / 'other.py'}:attention"
    assert main(["explain", name, "--shape", "32x16"]) == 0
    assert "32x16" in capsys.readouterr().out
    assert main(["explain", name, "--n", "16", "--json", "--fuse-reduce", "no"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["fuse_reduce"] is False
    assert main(["explain", "none"]) == 2


def test_a_working_directory_hides_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a module `uopc` of its own: parent and workers see the package that the parent runs."""
    (tmp_path / "uopc.py").write_text("raise ImportError('the wrong uopc')\n")
    (tmp_path / "mine.py").write_text("import helper\n\ndef twice(x):\n    return helper.two(x)\n")
    (tmp_path / "helper.py").write_text("def two(x):\n    return x + x\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    command = ["sweep", "mine:twice", "--n", "4", "--impl", "derived", "--rounds", "1", "--seconds", "0.01"]
    assert main([*command, "--log", "log"]) == 0
    assert len(Log(Path("log")).read()["derived", 4].times) >= 1
    assert sys.path == [*before, str(tmp_path)]
