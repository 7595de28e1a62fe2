"""How fast the generated code is: the cases that compare.py holds against other libraries, uopc alone.

    pytest benchmarks/test_kernels.py -k causal --benchmark-json=out.json

``extra_info`` has the useful FLOPs and bytes of each case, the rates, the error against float64, and under "uopc" what
its plan is: kernels, FLOPs, bytes, temporaries, recompute.  The last are the same on every machine of one kind, however
busy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import SUITES, Case

LONGEST = 5e10  # operations: what takes more is left to compare.py


def parameters(suite: str) -> list[object]:
    return [pytest.param(case, id=case.name) for case in SUITES[suite] if case.flops < LONGEST]


def group(name: str) -> pytest.MarkDecorator:
    return pytest.mark.benchmark(group=name, max_time=0.25, min_rounds=3, disable_gc=True)


@group("attention")
@pytest.mark.parametrize("case", parameters("attention"))
def test_attention(measure: Callable[[Case], None], case: Case) -> None:
    measure(case)


@group("matmul")
@pytest.mark.parametrize("case", parameters("matmul"))
def test_matmul(measure: Callable[[Case], None], case: Case) -> None:
    measure(case)


@group("models")
@pytest.mark.parametrize("case", parameters("model"))
def test_model(measure: Callable[[Case], None], case: Case) -> None:
    measure(case)


@group("reductions and elementwise")
@pytest.mark.parametrize("case", parameters("memory"))
def test_memory(measure: Callable[[Case], None], case: Case) -> None:
    measure(case)
