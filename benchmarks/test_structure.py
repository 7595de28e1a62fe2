"""What plans cost, whatever the clock says: no value is computed more and more often as a problem grows.

    pytest benchmarks/test_structure.py --benchmark-json=out.json

Each case is planned at two sizes.  The larger has twice as many rows and columns: four times the work, or so, and the
same recompute factor.  A loop nest with a misplaced accumulator has eight times the work and a factor that doubles,
with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor, options
from uopc.inspect.fixture import UopcBenchmark

SMALL, LARGE, WIDTH = 64, 128, 16
GROWTH = 4.5  # of FLOPs where the work is that of the square: blocks that are not filled are a part of the rest
pytestmark = pytest.mark.benchmark(group="structure", max_time=0.05, min_rounds=3)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T * WIDTH**-0.5).softmax(-1) @ v


def flat_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With weights computed in a flat array of n*n elements, square before and after: each index that goes through it
    seems to depend on both loops, until it is simplified."""
    n = q.shape[0]
    scores = q @ k.T * WIDTH**-0.5
    largest = scores.max(1, keepdim=True).expand(n, n)
    weights = (scores.reshape(n * n) - largest.reshape(n * n)).exp()
    total = weights.reshape(n, n).sum(1, keepdim=True).expand(n, n)
    return (weights / total.reshape(n * n)).reshape(n, n) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return uopc.scaled_dot_product_attention(q, k, v, is_causal=True)


class Rows:
    """Loop sizes that write nothing down: threads take rows, eight columns of the result are computed at a time."""

    def layout(self, roots: list[Any]) -> list[Any]:
        return roots

    def lower(self, body: Any, out: Any) -> Any:
        from uopc.rangeify import Ctx, Opts, lower

        return lower(body, out, Ctx(opts=Opts(upcast={1: 8}, thread=0)))


# name: function, options, and how often a value may be computed
CASES: dict[str, tuple[Callable[..., Tensor], dict[str, Any], float]] = {
    "derived": (attention, {}, 1.1),
    "unfused": (attention, {"fuse_reduce": False}, 1.1),
    "recompute": (attention, {"fuse_reduce": True, "opt": Rows()}, 2 + WIDTH / 8),
    "through a flat array, derived": (flat_attention, {}, 1.1),
    "through a flat array, recompute": (flat_attention, {"fuse_reduce": True, "opt": Rows()}, 2 + WIDTH / 8),
    "causal": (causal, {}, 1.1),
}


@pytest.mark.parametrize("name", CASES)
def test_work_grows_as_the_problem_does(uopc_benchmark: UopcBenchmark, name: str) -> None:
    function, fields, most = CASES[name]

    def inputs(n: int) -> list[Any]:
        return list(np.random.default_rng(0).standard_normal((3, n, WIDTH), np.float32))

    with options(**fields):
        small = uopc_benchmark.record(function, *inputs(SMALL))
        large = uopc_benchmark.record(function, *inputs(LARGE))
        assert large["recompute"] <= most, f"a value is computed {large['recompute']:g} times"
        assert large["flops"] <= GROWTH * small["flops"]
        uopc_benchmark.time(uopc.jit(function), *inputs(LARGE))
