"""What a call costs besides its work: kernels so small that they take no time.

benchmarks/runtime/calls.py holds the same against other libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor

pytestmark = pytest.mark.benchmark(group="calls", max_time=0.25, min_rounds=100, disable_gc=True)
Rows = Callable[..., list[np.ndarray]]


@uopc.jit
def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@uopc.jit
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T * 64**-0.5).softmax(-1) @ v


def test_add_into(benchmark: Any, rows: Rows) -> None:
    """A captured function that writes to memory it is given."""
    x, y, out = rows(3, 16)
    benchmark(lambda: add(x, y, out=out))


def test_add(benchmark: Any, rows: Rows) -> None:
    """The same with a new array for its result."""
    x, y = rows(2, 16)
    benchmark(lambda: add(x, y))


def test_add_tensors(benchmark: Any, rows: Rows) -> None:
    """The same with Tensors."""
    x, y = (Tensor(a).realize() for a in rows(2, 16))
    benchmark(lambda: add(x, y))


def test_add_uncaptured(benchmark: Any, rows: Rows) -> None:
    """A graph that is built, found in the cache of plans, and run at each call."""
    x, y = (Tensor(a) for a in rows(2, 16))
    benchmark(lambda: (x + y).numpy())


def test_attention_into(benchmark: Any, rows: Rows) -> None:
    q, k, v, out = rows(4, 16, 64)
    benchmark(lambda: attention(q, k, v, out=out))


def test_attention_uncaptured(benchmark: Any, rows: Rows) -> None:
    q, k, v = (Tensor(a) for a in rows(3, 16, 64))
    benchmark(lambda: ((q @ k.T * 64**-0.5).softmax(-1) @ v).numpy())
