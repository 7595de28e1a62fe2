"""The model of a kernel's time: what it counts, and that it follows the roofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from uopc import Tensor
from uopc.inspect.roofline import Rates, Roofline
from uopc.inspect.work import launch_of, loop_nest, predict, work
from uopc.pipeline import Kernel, make_plan

LEVELS = {"L2": 1e11, "L3": 5e10, "memory": 2e10}
ROOF = Roofline(Rates(1, 1e11, LEVELS, LEVELS, 1e-7), Rates(2, 2e11, LEVELS, LEVELS, 1e-7), 64, 1 << 20, 1 << 25)


def kernel(x: Tensor, **options: Any) -> Kernel:
    (found,) = make_plan([x.uop], **options).kernels
    return found


def rand(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def test_an_fma_is_one_operation() -> None:
    done = work(kernel(rand(64, 64) @ rand(64, 64)).linear, 64)
    assert done.flops >= 2 * 64**3
    assert done.operations < 1.3 * done.flops / 2 / 16
    assert done.read == 2 * 4 * 64 * 64 and done.written == 4 * 64 * 64
    assert done.loaded >= done.read and done.stored == done.written


def test_bytes_of_a_gather_are_those_it_touches() -> None:
    rows = Tensor(np.array([3, 5]))
    done = work(kernel(rand(1000, 16)[rows]).linear, 64)
    assert done.read <= 2 * 16 * 4 + 2 * 8 * 16


def test_narrow_vectors_take_more_operations() -> None:
    linear = kernel(rand(1024) * 2 + rand(1024)).linear
    assert work(linear, 32).operations > 1.5 * work(linear, 64).operations


def test_the_tightest_roof_decides() -> None:
    k = kernel(rand(1 << 16) * 2)
    done = work(k.linear, 64)
    assert predict(done, k, ROOF).bound == "L2"
    assert predict(replace(done, read=1 << 30), k, ROOF).bound == "memory"
    slow = predict(replace(done, operations=1e9), k, ROOF)
    assert slow.bound == "operations" and slow.seconds == pytest.approx(
        1e9 / (ROOF.all.flops / 32), rel=0.2
    )  # the last chunks fill no round


def test_threads_are_those_that_have_chunks() -> None:
    small = kernel(rand(8) * 2)
    assert launch_of(small) == (1, 1) or launch_of(small)[0] == launch_of(small)[1]
    assert predict(work(small.linear, 64), small, ROOF).threads == 1
    large = kernel(rand(1 << 20) * 2)
    assert predict(work(large.linear, 64), large, ROOF).threads == 2


def test_loop_nests_in_a_line() -> None:
    assert loop_nest(kernel(rand(4) * 2).linear) == "no loop"
    nest = loop_nest(kernel(rand(300, 40).sum(1)).linear)
    assert nest.startswith("thread ") and ">" in nest
