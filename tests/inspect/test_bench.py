"""bench compare: noise raises no alarm, a real change does, and facts of the plan are compared exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uopc.__main__ import main
from uopc.inspect.bench import compare

FACTS = {"kernels": ["r_4"], "flops": 100, "bytes": 64, "temporaries": 0, "recompute": 1.0}


def stored(times: Any, facts: dict[str, Any] | None = None, name: str = "test_a") -> dict[str, Any]:
    times = list(map(float, times))
    stats = {"data": times, "min": min(times), "q1": 0.0, "median": float(np.median(times)), "q3": 0.0}
    return {
        "name": name,
        "fullname": f"benchmarks/x.py::{name}",
        "stats": stats,
        "extra_info": {"uopc": facts or FACTS},
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


def test_the_fixture_records_facts(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "conftest.py").write_text('pytest_plugins = ["uopc.inspect.fixture"]\n')
    (tmp_path / "test_it.py").write_text(
        "import numpy as np\n"
        "def test_softmax(uopc_benchmark):\n"
        "    out = uopc_benchmark(lambda x: x.softmax(-1), np.ones((32, 16), np.float32))\n"
        "    assert abs(out.sum() - 32) < 1e-4\n"
    )
    options = ["-q", "--benchmark-json=out.json", "--benchmark-min-rounds=2", "--benchmark-max-time=0.01"]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, check=True, capture_output=True)
    (benchmark,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    facts = benchmark["extra_info"]["uopc"]
    assert facts["kernels"] and facts["flops"] > 0 and facts["bytes"] >= 2 * 4 * 32 * 16 and facts["recompute"] >= 1
