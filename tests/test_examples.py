"""The examples run, say what is true, and their kernels are right for every size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import flash_attention as example  # noqa: E402

SIZES = [(1, 1), (2, 3), (5, 7), (16, 16), (37, 13), (64, 64), (300, 1), (3, 130), (257, 32)]


def quick(run: object, budget: float = 0.0) -> float:
    """One run in place of a measurement."""
    run()  # type: ignore[operator]
    return 1.0


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[example.Row]:
    monkeypatch.setattr(example, "fastest", quick)
    return list(example.Table(*request.param).rows())


@pytest.mark.parametrize("rows", SIZES, indirect=True, ids=str)
def test_every_form_is_right_for_every_size(rows: list[example.Row]) -> None:
    assert len(rows) == 9
    for row in rows:
        assert row.error < 5e-6, row.form


@pytest.mark.parametrize("rows", [(256, 64)], indirect=True, ids=str)
def test_what_the_table_says(rows: list[example.Row]) -> None:
    """Unfused attention writes the square of scores down, the hand-written forms write nothing, and passes are
    counted.
    """
    table = {row.form: row for row in rows}
    unfused, fused = table["Tensor, unfused (fuse_reduce=False)"], table["Tensor, fused, upcast 16"]
    assert (256, 256) in unfused.written and unfused.passes == pytest.approx(1, rel=0.1)
    assert fused.written == [] and fused.passes == 6
    by_hand = [row for row in rows if row.form.startswith(("online", "causal"))]
    assert all(row.written == [] for row in by_hand)
    assert all(row.passes == 1 for row in by_hand if row.form != "causal, by the end of a loop")
    assert table["causal, by the end of a loop"].passes == pytest.approx(0.5, rel=0.02)
    assert table["flash-decoding, one query"].written == [(1,), (1,), (1, 64)]


@pytest.mark.parametrize(("upcast", "passes"), [(8, 10), (16, 6), (32, 4), (64, 3)])
def test_passes_by_upcast(upcast: int, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "fastest", quick)
    row = example.Table(64, 64).tensor("fused", True, example.FlashOpt(upcast))
    assert row.passes == passes and row.written == [] and row.error < 5e-6


def test_decoding_merges_chunks_of_any_length() -> None:
    for n in (1, example.CHUNK - 1, example.CHUNK, example.CHUNK + 1, 3 * example.CHUNK + 5):
        assert example.Table(n, 8).decode("flash-decoding").error < 5e-6


def test_scores_far_apart() -> None:
    """Large scores rescale what was summed before them; nothing overflows."""
    table = example.Table(70, 16)
    table.q *= 40
    table.expected = {c: example.reference(table.q, table.k, table.v, c) for c in (False, True)}
    for program in (example.few_rows(70, 16), example.few_rows(70, 16, rows=4), example.rows_in_lanes(70, 16)):
        assert table.by_hand("online", program).error < 5e-5
    assert np.isfinite(table.by_hand("causal", example.few_rows(70, 16, causal="where")).error)


def test_the_script() -> None:
    command = [sys.executable, str(EXAMPLES / "flash_attention.py"), "48", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 12
    assert "48x48" in done.stdout
    refused = subprocess.run([*command[:2], "0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "at least 1" in refused.stderr
