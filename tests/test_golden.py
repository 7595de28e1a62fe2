"""Kernels that stay as they are until somebody changes them on purpose: loop skeletons of many, the C of a few.

    pytest tests/test_golden.py --update-golden      writes tests/golden; what changed is in the diff

They are made for one machine, whatever machine makes them.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed import MACHINE, ZEN4, CompileFor, Recompute
from loop_ir import skeleton, to_linear

from uopc import Tensor
from uopc.pipeline import Kernel, make_plan
from uopc.render_c import render_c


@pytest.fixture(autouse=True)
def machine(compile_for: CompileFor) -> None:
    """Kernels for ``MACHINE``."""
    compile_for(MACHINE)


def array(*shape: int) -> Tensor:
    """A Tensor over memory."""
    return Tensor(np.zeros(shape, np.float32))


def masked_attention(n: int, d: int) -> Tensor:
    """The mask is an index expression: it never materialises."""
    q, k, v = (array(n, d) for _ in range(3))
    allowed = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
    return allowed.where(q @ k.T * d**-0.5, -math.inf).softmax(-1) @ v


CASES: dict[str, tuple[Callable[[], Tensor], dict[str, Any]]] = {
    "elementwise": (lambda: array(1000) * 2.0 + array(1000), {}),
    "row_sum": (lambda: array(200, 300).sum(1), {}),
    "matmul": (lambda: array(64, 128) @ array(128, 96), {}),
    "softmax_row": (lambda: array(200, 300).softmax(-1), {}),
    "transposed_copy": (lambda: array(100, 60).T.contiguous(), {}),
    "masked_attention_by_recompute": (lambda: masked_attention(64, 32), {"fuse_reduce": True, "opt": Recompute(16)}),
}


def kernels(name: str) -> list[Kernel]:
    """The kernels of a case, once each."""
    expression, options = CASES[name]
    return list(dict.fromkeys(make_plan([expression().uop], **options).kernels))


@pytest.mark.parametrize("name", CASES)
def test_skeletons(name: str, golden: Callable[[str, str], None]) -> None:
    """Axes, extents, kinds, loads and stores: formatting and arithmetic never churn them."""
    text = "\n".join(f"{kernel.name}\n{skeleton(kernel.linear)}" for kernel in kernels(name))
    golden(f"skeletons/{name}.txt", text)


@pytest.mark.parametrize("name", ["elementwise", "row_sum", "matmul"])
def test_sources(name: str, golden: Callable[[str, str], None]) -> None:
    """What a reader of DEBUG=4 sees."""
    golden(f"c/{name}.c", "\n".join(kernel.source for kernel in kernels(name)))


def test_dot_products_of_bfloat16(golden: Callable[[str, str], None], compile_for: CompileFor) -> None:
    """For the same machine with an instruction for them."""
    compile_for(ZEN4)
    a, b = (array(*shape).cast("bfloat16").realize() for shape in ((64, 128), (128, 96)))
    (kernel,) = make_plan([(a @ b).uop]).kernels
    golden("skeletons/matmul_bfloat16.txt", f"{kernel.name}\n{skeleton(kernel.linear)}")
    golden("c/matmul_bfloat16.c", kernel.source)


def test_source_of_a_program_by_hand(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1] / "examples"), *sys.path])
    import flash_attention

    program = flash_attention.few_rows(64, 32)
    golden("c/online_softmax.c", render_c(program, "online_softmax"))
    golden("skeletons/online_softmax.txt", skeleton(to_linear(program)))


def test_no_line_is_longer_than_a_reader_can_see() -> None:
    """But for lists of lanes, which have no better place to break."""
    for name in CASES:
        for kernel in kernels(name):
            long = [line for line in kernel.source.splitlines() if len(line) > 120 and "{" not in line]
            assert not long, long[0]


def test_a_golden_that_is_missing_or_differs_fails(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text("def test_it(golden):\n    golden('a/text.txt', 'one')\n")

    def passes(*flags: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
        return subprocess.run([*command, *flags], capture_output=True, check=False, cwd=tmp_path).returncode == 0

    assert not passes()
    assert passes("--update-golden")
    assert passes()
    (tmp_path / "golden/a/text.txt").write_text("two")
    assert not passes()
