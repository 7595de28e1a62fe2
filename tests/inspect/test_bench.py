"""bench compare: noise raises no alarm, a real change does, and facts of the plan are compared exactly."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uopc.__main__ import main
from uopc.inspect.bench import compare

FACTS = {"kernels": ["r_4"], "flops": 100, "bytes": 64, "temporaries": 0, "recompute": 1.0}


def stored(
    times: Any, facts: dict[str, Any] | None = None, name: str = "test_a", reference: Any = ()
) -> dict[str, Any]:
    times = list(map(float, times))
    stats = {"data": times, "min": min(times), "q1": 0.0, "median": float(np.median(times)), "q3": 0.0}
    return {
        "name": name,
        "fullname": f"benchmarks/x.py::{name}",
        "stats": stats,
        "extra_info": {"uopc": facts or FACTS, "reference": list(map(float, reference))},
    }


def noisy(scale: float, seed: int, n: int = 60) -> Any:
    """Times with a long tail, as a shared machine gives them."""
    return scale * (1 + np.random.default_rng(seed).exponential(0.3, n))


def test_noise_is_no_regression() -> None:
    for seed in range(30):
        found = compare("a", stored(noisy(1, seed)), stored(noisy(1, seed + 100)), 0.05)
        assert not found.worse, (seed, found)


def test_a_slower_run_is_one() -> None:
    for seed in range(10):
        found = compare("a", stored(noisy(1, seed)), stored(noisy(1.5, seed + 100)), 0.05)
        assert found.slower and found.worse and not found.faster
        back = compare("a", stored(noisy(1.5, seed)), stored(noisy(1, seed + 100)), 0.05)
        assert back.faster and not back.worse


def test_a_slower_machine_is_no_regression() -> None:
    """Everything takes half as long again, the reference workload too."""
    for seed in range(20):
        before = stored(noisy(1, seed), reference=noisy(2, seed + 1, 40))
        after = stored(noisy(1.5, seed + 100), reference=noisy(3, seed + 101, 40))
        assert not compare("a", before, after, 0.05).worse
        assert compare("a", before, after, 0.05).machine == pytest.approx(1.5, rel=0.3)


def test_slower_code_is_one_on_a_slower_machine_too() -> None:
    for seed in range(10):
        before = stored(noisy(1, seed), reference=noisy(2, seed + 1, 40))
        after = stored(noisy(3, seed + 100), reference=noisy(3, seed + 101, 40))
        found = compare("a", before, after, 0.05)
        assert found.slower and found.beside[0] == pytest.approx(2, rel=0.2)


def test_a_faster_machine_accuses_nobody() -> None:
    """The reference is faster by half, the benchmark as fast as before: it may not have waited for the processor."""
    before = stored(noisy(1, 0), reference=noisy(3, 1, 40))
    after = stored(noisy(1, 2), reference=noisy(2, 3, 40))
    assert not compare("a", before, after, 0.05).worse


def test_structure_is_compared_exactly() -> None:
    times = noisy(1, 0)
    worse = {**FACTS, "kernels": ["r_4", "e_4"], "recompute": 33.0}
    found = compare("a", stored(times), stored(times, worse), 0.05)
    assert found.worse and found.worse_facts == ["1 -> 2 kernels", "recompute 1.0 -> 33.0"]
    better = compare("a", stored(times, worse), stored(times), 0.05)
    assert not better.worse and better.changes


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    out = []
    for name, run in {
        "same": [stored(noisy(1, 1)), stored(noisy(2, 2), name="machine")],
        "again": [stored(noisy(1, 3)), stored(noisy(2, 4), name="machine")],
        "slow": [stored(noisy(1.5, 5)), stored(noisy(3, 6), name="machine")],
    }.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"benchmarks": run}))
        out.append(str(path))
    return tuple(out)  # type: ignore[return-value]


def test_the_command(files: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    same, again, slow = files
    assert main(["bench", "compare", same, again]) == 0
    assert "0 regressions" in capsys.readouterr().out
    assert main(["bench", "compare", same, slow]) == 1
    assert "slower" in capsys.readouterr().out
    # the machine as a whole was slower: no regression
    assert main(["bench", "compare", same, slow, "--reference", "machine"]) == 0
    assert main(["bench", "compare", same, slow, "--json"]) == 1
    capsys.readouterr()
    assert main(["bench", "compare", same, "/nonexistent"]) == 2
    assert main(["bench", "compare", same, __file__]) == 2
    assert main(["bench", "compare", same, slow, "--reference", "none such"]) == 2


ROOT = Path(__file__).parents[2]
QUICK = ["-q", "-p", "no:cacheprovider", "--benchmark-min-rounds=3", "--benchmark-max-time=0.01"]
# A plugin for pytest: reshapes whose indices nobody simplifies.  Results are the same, loop nests are cubic.
CUBIC = """
from dataclasses import replace
import uopc.inspect.recompute
import uopc.rangeify.movement as reshape_rule
from uopc import pipeline
from uopc.rangeify import Ctx

reshape_rule.simplify_index = lambda expr, ctx: expr
Ctx.simplify = lambda self, expr: expr
later = tuple(replace(s, run=lambda g, _: g) if s.name == "simplify" else s for s in pipeline.LOOP_STAGES)
pipeline.LOOP_STAGES = uopc.inspect.recompute.LOOP_STAGES = later
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run benchmarks in a process of their own, which finds plugins in ``folder``."""
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pytest", *QUICK, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_fixture_records_facts(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["uopc.inspect.fixture"]\n')
    (tmp_path / "test_it.py").write_text(
        "import numpy as np\n"
        "def test_softmax(uopc_benchmark):\n"
        "    out = uopc_benchmark(lambda x: x.softmax(-1), np.ones((32, 16), np.float32))\n"
        "    assert abs(out.sum() - 32) < 1e-4\n"
    )
    assert run_pytest(tmp_path, "--benchmark-json=out.json").returncode == 0
    (benchmark,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    facts = benchmark["extra_info"]["uopc"]
    assert facts["kernels"] and facts["flops"] > 0 and facts["bytes"] >= 2 * 4 * 32 * 16 and facts["recompute"] >= 1
    reference = benchmark["extra_info"]["reference"]
    assert len(reference) >= 20 and all(t > 0 for t in reference)


@pytest.mark.slow
def test_a_cubic_regression_in_the_reshape_rule_fails_the_structural_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are still right.  The benchmark says how often a value is computed, and so does the comparison."""
    (tmp_path / "cubic.py").write_text(CUBIC)
    suite = str(ROOT / "benchmarks" / "test_structure.py")
    before = run_pytest(tmp_path, suite, "--benchmark-json=before.json")
    assert before.returncode == 0, before.stdout
    after = run_pytest(tmp_path, suite, "-p", "cubic", "--benchmark-json=after.json")
    assert after.returncode == 1, after.stdout
    failed = set(re.findall(r"FAILED .*?\[(.*?)\]", after.stdout))
    assert "through a flat array, recompute" in failed
    assert re.search(r"a value is computed \d{3,} times", after.stdout)


@pytest.mark.slow
def test_the_comparison_names_what_is_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A suite of the user's, which asserts nothing: bench compare sees the regression in what was recorded."""
    (tmp_path / "cubic.py").write_text(CUBIC)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["uopc.inspect.fixture"]\n')
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "import numpy as np, uopc\n"
        "from test_structure import Rows, flat_attention\n"
        "def test_attention(uopc_benchmark):\n"
        "    with uopc.options(fuse_reduce=True, opt=Rows()):\n"
        "        uopc_benchmark(flat_attention, *np.ones((3, 32, 16), np.float32))\n"
    )
    for plugins, name in (([], "before"), ([], "same"), (["-p", "cubic"], "after")):
        done = run_pytest(tmp_path, *plugins, f"--benchmark-json={name}.json")
        assert done.returncode == 0, done.stdout
    before, same, after = (str(tmp_path / f"{name}.json") for name in ("before", "same", "after"))
    main(["bench", "compare", before, same])
    assert "worse plan" not in capsys.readouterr().out
    assert main(["bench", "compare", before, after]) == 1
    out = capsys.readouterr().out
    assert "worse plan" in out and re.search(r"recompute 4(\.0)? -> \d{4}", out)
