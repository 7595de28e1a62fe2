"""Recompute factors: predicted from dependence, counted in the program, and counted while the program runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import flash_attention as example

from uopc import Tensor, num_threads, options
from uopc.inspect.recompute import (
    counted,
    instrumented,
    marked_kernel,
    marked_loops,
    reductions,
    reductions_of_loops,
)
from uopc.options import Options
from uopc.pipeline import Settings, make_plan, settings_for
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.uop import Ops, UOp

N, D = 96, 32
TENSOR_FORMS: dict[str, dict[str, Any]] = {
    "unfused": {"fuse_reduce": False},
    "derived": {},
    "recompute": {"fuse_reduce": True, "opt": example.FlashOpt(16)},
}
LOOP_FORMS: dict[str, Callable[[], UOp]] = {
    "row": lambda: example.few_rows(N, D),
    "rows": lambda: example.few_rows(N, D, rows=4),
    "lanes": lambda: example.rows_in_lanes(N, D),
    "where": lambda: example.few_rows(N, D, causal="where"),
    "loop": lambda: example.few_rows(N, D, causal="loop"),
    "decode": lambda: example.decode(N, D)[0],
    "merge": lambda: example.decode(700, D)[1],
}


def settings(**fields: Any) -> Settings:
    return settings_for(Options(**fields))


def kernels(fields: dict[str, Any], n: int = N, d: int = D) -> list[Any]:
    q, k, v = (Tensor(x) for x in np.random.default_rng(0).standard_normal((3, n, d), np.float32))
    return make_plan([example.attention(q, k, v).uop], **fields).kernels


def run_counting(linear: UOp, slots: list[int]) -> dict[int, int]:
    """Run a marked program that counts, on one thread; marks are 0, other arrays too."""
    buffers = {u.arg.slot: u for u in linear.src if u.op is Ops.BUFFER}
    last = max(buffers) + 1
    arrays = [
        np.zeros(buffers[k].arg.shape or (1,), buffers[k].dtype.numpy) if k in buffers else np.zeros(1, np.float32)
        for k in range(last)
    ]
    counters = np.zeros(max(len(slots), 1), np.int64)
    source = render_c(instrumented(linear, slots, last), "counting")
    with num_threads(1):
        Program(source, "counting", outputs=range(last + 1))(*arrays, counters)
    return dict(zip(slots, counters.tolist()))


def marked_programs() -> Iterator[tuple[str, Any]]:
    for name, fields in TENSOR_FORMS.items():
        for k, kernel in enumerate(kernels(fields)):
            if any(u.op in (Ops.REDUCE, Ops.CASCADE) for u in kernel.root.toposort()):
                yield f"{name} {k}", marked_kernel(kernel.root, settings(**fields))
    for name, program in LOOP_FORMS.items():
        yield name, marked_loops(program(), settings())


def test_what_a_running_kernel_counts_is_what_was_counted() -> None:
    for name, (marked, _, linear) in marked_programs():
        slots = list(marked.marks)
        assert slots, name
        assert run_counting(linear, slots) == counted(linear, slots), name


@pytest.mark.parametrize("form", TENSOR_FORMS)
def test_predicted_is_counted_in_tensor_forms(form: str) -> None:
    for kernel in kernels(TENSOR_FORMS[form]):
        for r in reductions(kernel, settings(**TENSOR_FORMS[form])):
            assert r.predicted == r.counted > 0, (form, str(r))


@pytest.mark.parametrize("form", LOOP_FORMS)
def test_predicted_is_counted_in_loop_programs(form: str) -> None:
    for r in reductions_of_loops(LOOP_FORMS[form](), settings()):
        assert r.predicted == r.counted == r.values > 0, (form, str(r))


@pytest.mark.parametrize(("upcast", "passes"), [(8, 10), (16, 6), (32, 4), (64, 3)])
def test_passes_by_upcast(upcast: int, passes: int) -> None:
    fields = {"fuse_reduce": True, "opt": example.FlashOpt(upcast)}
    (kernel,) = kernels(fields, 64, 64)
    scores = reductions(kernel, settings(**fields))[0]
    assert scores.predicted_factor == scores.factor == passes
    assert any("uses" in text for text in scores.repeats)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 7, 33, 130])
def test_derived_attention_computes_each_score_about_once(n: int, causal: bool) -> None:
    q, k, v = (Tensor(x) for x in np.random.default_rng(0).standard_normal((3, n, 16), np.float32))
    plan = make_plan([q.scaled_dot_product_attention(k, v, is_causal=causal).uop])
    for kernel in plan.kernels:
        for r in reductions(kernel, settings()):
            assert r.predicted == r.counted
            assert r.factor < 3  # tails computed twice; rows that fill no vector


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "bool", "float64"])
def test_every_dtype_can_be_marked(dtype: str) -> None:
    x = Tensor(np.random.default_rng(0).integers(0, 2, (40, 24))).cast(dtype)
    total = x.any(1) if dtype == "bool" else x.max(1)
    for kernel in make_plan([total.uop]).kernels:
        for r in reductions(kernel, settings()):
            assert r.predicted == r.counted >= r.values == 40 * 24


def test_options_scope_is_not_needed() -> None:
    """Sizes come from the settings given, whatever is in force."""
    with options(fuse_reduce=True):
        for kernel in kernels({"fuse_reduce": False}):
            for r in reductions(kernel, settings(fuse_reduce=False)):
                assert r.predicted == r.counted
