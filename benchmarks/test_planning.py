"""What it takes before a kernel runs: building graphs, planning, compiling, starting a process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor, pipeline
from uopc.pipeline import Plan, make_plan
from uopc.runtime.compiler import clear_memory_cache, compile_source

ROUNDS = 5
WORDS, SEQUENCE, WIDTH, HEADS, LAYERS = 50257, 128, 768, 12, 12  # GPT-2, the small one

Rows = Callable[..., list[np.ndarray]]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T * 64**-0.5).softmax(-1) @ v


# ---- planning ----

# One thread of Python: processor time, which says the same on a machine that is busy.
planning = pytest.mark.benchmark(group="planning, CPU time", timer=time.process_time)


def plan_cold(benchmark: Any, build: Callable[[], Tensor]) -> Plan:
    """From a graph to the text of all its kernels, with nothing remembered; where the time went is in extra_info."""
    plans: list[Plan] = []

    def forget() -> tuple[tuple[Tensor], dict[str, Any]]:
        pipeline._kernels.clear()
        pipeline.timings.clear()
        return (build(),), {}

    benchmark.pedantic(lambda t: plans.append(make_plan([t.uop])), setup=forget, rounds=ROUNDS)
    plan = plans[-1]
    benchmark.extra_info["ms in stages of the last round"] = {
        name: round(seconds * 1e3, 3) for name, seconds in pipeline.timings.items()
    }
    benchmark.extra_info["kernels"] = len(plan.calls)
    benchmark.extra_info["distinct kernels"] = len({call.kernel.source for call in plan.calls})
    return plan


@planning
@pytest.mark.parametrize("fuse", [None, False, True], ids=["derived", "unfused", "recomputed"])
def test_plan_attention(benchmark: Any, rows: Rows, fuse: bool | None) -> None:
    q, k, v = (Tensor(x) for x in rows(3, 1024, 64))
    with uopc.options(fuse_reduce=fuse):
        plan_cold(benchmark, lambda: attention(q, k, v))


class Gpt2:
    """The forward pass; weights are zeros, since nothing is run."""

    def __init__(self) -> None:
        def zeros(*shape: int) -> Tensor:
            return Tensor(np.zeros(shape, np.float32))

        self.tokens = Tensor(np.zeros((1, SEQUENCE), np.int64))
        self.words, self.places = zeros(WORDS, WIDTH), zeros(SEQUENCE, WIDTH)
        self.layers = [
            {
                "norm1": (zeros(WIDTH), zeros(WIDTH)),
                "qkv": (zeros(WIDTH, 3 * WIDTH), zeros(3 * WIDTH)),
                "project": (zeros(WIDTH, WIDTH), zeros(WIDTH)),
                "norm2": (zeros(WIDTH), zeros(WIDTH)),
                "up": (zeros(WIDTH, 4 * WIDTH), zeros(4 * WIDTH)),
                "down": (zeros(4 * WIDTH, WIDTH), zeros(WIDTH)),
            }
            for _ in range(LAYERS)
        ]

    def __call__(self) -> Tensor:
        x = self.words[self.tokens] + self.places
        for layer in self.layers:
            x = x + self.attend(x.layer_norm((WIDTH,), *layer["norm1"]), layer)
            inner = linear(x.layer_norm((WIDTH,), *layer["norm2"]), layer["up"]).gelu()
            x = x + linear(inner, layer["down"])
        return x @ self.words.T

    def attend(self, x: Tensor, layer: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        qkv = linear(x, layer["qkv"]).reshape(1, SEQUENCE, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = uopc.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        return linear(mixed.permute(0, 2, 1, 3).reshape(1, SEQUENCE, WIDTH), layer["project"])


def linear(x: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    return x @ weights[0] + weights[1]


@pytest.fixture(scope="module")
def gpt2() -> Gpt2:
    return Gpt2()


@planning
def test_build_gpt2(benchmark: Any, gpt2: Gpt2) -> None:
    """The graph alone: what its Python costs."""
    y = benchmark.pedantic(gpt2, rounds=ROUNDS, warmup_rounds=1)
    benchmark.extra_info["nodes"] = len(y.uop.toposort())


@planning
def test_plan_gpt2(benchmark: Any, gpt2: Gpt2) -> None:
    plan_cold(benchmark, gpt2)


# ---- compiling ----


@pytest.mark.benchmark(group="compiling")
@pytest.mark.parametrize("name", ["attention", "matmul", "softmax", "add"])
def test_compile(benchmark: Any, rows: Rows, no_disk_cache: None, name: str) -> None:
    """The C compiler, from text to a loaded library."""
    q, k, v = (Tensor(x) for x in rows(3, 1024, 64))
    made = {
        "attention": lambda: attention(q, k, v),
        "matmul": lambda: q @ k.T,
        "softmax": lambda: (q * 2).softmax(-1),
        "add": lambda: q + k,
    }
    sources = [kernel.source for kernel in make_plan([made[name]().uop]).kernels]

    def compile_all() -> None:
        for source in sources:
            compile_source(source)

    benchmark.pedantic(compile_all, setup=clear_memory_cache, rounds=ROUNDS, warmup_rounds=1)
    benchmark.extra_info.update(kernels=len(sources), characters=sum(map(len, sources)))


# ---- starting ----

IMPORT = "import uopc"
FIRST = """
import numpy as np, uopc
q, k, v = (np.full((128, 64), x, np.float32) for x in (1, 2, 3))
(uopc.Tensor(q) @ uopc.Tensor(k).T * 0.125).softmax(-1).__matmul__(uopc.Tensor(v)).numpy()
"""


@pytest.mark.benchmark(group="starting")
@pytest.mark.parametrize("code", [IMPORT, FIRST], ids=["import", "first attention, kernels on disk"])
def test_start(benchmark: Any, code: str) -> None:
    """A process of Python that does one thing and ends."""
    run = [sys.executable, "-c", code]
    benchmark.pedantic(lambda: subprocess.run(run, check=True), rounds=ROUNDS, warmup_rounds=1)
