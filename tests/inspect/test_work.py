"""The model of a kernel's time: what it counts, and that the tightest resource decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixed import MACHINE, ROOF

import uopc
from uopc import Tensor
from uopc.inspect.predict import launch_of, predict
from uopc.inspect.streams import PAGE, jumping, run
from uopc.inspect.work import Body, Work, loop_nest, work
from uopc.pipeline import Kernel, make_plan


def kernel(x: Tensor, **options: Any) -> Kernel:
    (found,) = make_plan([x.uop], **options).kernels
    return found


def rand(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def of(x: Tensor, vector_bytes: int = 64) -> Work:
    return work(kernel(x).linear, MACHINE.narrowed(vector_bytes))


def test_an_fma_is_one_operation() -> None:
    done = of(rand(64, 64) @ rand(64, 64))
    assert done.flops >= 2 * 64**3
    assert done.total.operations < 1.3 * done.flops / 2 / 16
    assert done.total.multiplies == pytest.approx(done.flops / 2 / 16, rel=0.05)
    assert done.read == 2 * 4 * 64 * 64 and done.written == 4 * 64 * 64
    assert done.loaded >= done.read and done.stored == done.written


def test_what_needs_no_multiplier_is_counted_apart() -> None:
    x, y = rand(1 << 12), rand(1 << 12)
    assert of(x + y).total.multiplies == 0 < of(x * y).total.multiplies
    both, product = of(x * y + y).total, of(x * y).total
    assert both.multiplies == product.multiplies and both.operations > product.operations, "rounded before it is added"
    dot = of((x * y).reshape(64, 64).sum(0)).total
    assert dot.multiplies == product.multiplies and dot.operations < both.operations, "a sum takes it as it is"


def test_a_chain_is_what_waits_for_the_iteration_before() -> None:
    assert of(rand(1 << 12) * 2).total.chain == 0
    total, largest = (of(x) for x in (rand(64, 4096).sum(1), rand(64, 4096).max(1)))
    assert 0 < total.total.chain < largest.total.chain


def test_bytes_of_a_gather_are_those_it_touches() -> None:
    done = of(rand(1000, 16)[Tensor(np.array([3, 5]))])
    assert done.read <= 2 * 16 * 4 + 2 * 8 * 16
    lines = sorted(a.lines for a in done.arguments)
    assert lines[:2] == [0, 0] and 2 <= lines[2] <= 4  # of the array, and not of the numbers of its rows
    scattered = of(rand(1000, 16)[Tensor(np.arange(64)), Tensor(np.arange(64) % 16)])
    assert max(a.lines for a in scattered.arguments) == 64


def test_narrow_vectors_take_more_operations() -> None:
    x = rand(1024) * 2 + rand(1024)
    assert of(x, 32).total.operations > 1.5 * of(x, 64).total.operations


def test_the_tightest_resource_decides() -> None:
    k = kernel(rand(1 << 16) * 2)
    done = work(k.linear, MACHINE)
    assert predict(done, k, ROOF, MACHINE).bound == "L2"
    (of_x,) = [a for a in done.arguments if a.loaded]
    larger = [replace(a, read=1 << 30) if a is of_x else a for a in done.arguments]
    assert predict(replace(done, arguments=larger), k, ROOF, MACHINE).bound == "memory"
    for bound, body, seconds in [
        ("operations", Body(operations=1e9), 1e9 / ROOF.all.mixed),
        ("operations", Body(operations=1e9, multiplies=1e9), 1e9 / (ROOF.all.flops / 32)),
        ("accesses", Body(loads=1e9), 1e9 * 64 / ROOF.all.read["L1"]),
        ("accesses", Body(stores=1e9), 2e9 * 64 / ROOF.all.copy["L1"]),
        ("latency", Body(chain=1e9), 1e9 * ROOF.all.latency / 2),
    ]:
        said = predict(replace(done, bodies=[body]), k, ROOF, MACHINE)
        assert said.bound == bound and said.seconds == pytest.approx(seconds, rel=0.2)  # the last chunks fill no round


def test_bodies_add_up() -> None:
    """What one loop computes cannot hide behind what another loads."""
    k = kernel(rand(1 << 16) * 2)
    done = work(k.linear, MACHINE)
    one, other = Body(operations=1e9), Body(loads=1e9)
    seconds = [predict(replace(done, bodies=b), k, ROOF, MACHINE).seconds for b in ([one], [other], [one, other])]
    assert seconds[2] == pytest.approx(seconds[0] + seconds[1], rel=0.01)
    together = predict(replace(done, bodies=[Body(operations=1e9, loads=1e9)]), k, ROOF, MACHINE).seconds
    assert together == pytest.approx(max(seconds[:2]), rel=0.01)


def test_where_an_argument_is_depends_on_when_it_was_last_used() -> None:
    k = kernel(rand(1 << 16) * 2)
    done = work(k.linear, MACHINE)
    near, far = (predict(done, k, ROOF, MACHINE, dict.fromkeys(range(2), n)) for n in (1 << 10, 1 << 30))
    assert near.bound == "L2" and far.bound == "memory" and far.moved["memory"] == (1 << 18, 1 << 18)


def test_a_plan_knows_what_its_kernels_left_in_the_caches() -> None:
    """One megabyte that is summed again and again stays in L2; not so if a large array is summed in between."""
    small, large = rand(1 << 9, 1 << 9), rand(1 << 12, 1 << 12)
    (alone,) = uopc.explain(small.sum(1)).kernels
    beside, _ = uopc.explain([small.sum(1), large.sum(1)]).kernels
    assert set(alone.predicted.moved) == {"L1", "L2"} and set(beside.predicted.moved) == {"L1", "memory"}
    assert beside.predicted.seconds > alone.predicted.seconds


def test_threads_are_those_that_have_chunks() -> None:
    small = kernel(rand(8) * 2)
    assert launch_of(small) == (1, 1) or launch_of(small)[0] == launch_of(small)[1]
    assert predict(work(small.linear, MACHINE), small, ROOF, MACHINE).threads == 1
    large = kernel(rand(1 << 20) * 2)
    assert predict(work(large.linear, MACHINE), large, ROOF, MACHINE).threads == 2


def test_loop_nests_in_a_line() -> None:
    assert loop_nest(kernel(rand(4) * 2).linear) == "no loop"
    nest = loop_nest(kernel(rand(300, 40).sum(1)).linear)
    assert nest.startswith("thread ") and ">" in nest


# -------------------------------------------------------------------------------------------------------- streams --


def test_a_run_ends_where_a_walk_jumps() -> None:
    vector = [(0, 64)]
    assert run(vector, (64, 8192), (16, 100)) == 1024  # rows of 1 KB, 8 KB apart
    assert run(vector, (64, 8192), (128, 100)) == 8192 * 100  # whole rows
    assert run(vector, (0, 64), (1000, 10)) == PAGE  # it never jumps
    assert run([(0, 64), (64, 64)], (128,), (100,)) == 12800  # two copies of a body walk as one
    assert run([(0, 64), (64, 64)], (256, 4096), (16, 100)) == 128  # and leave gaps


def test_some_walks_at_once_are_each_followed() -> None:
    rows_first = (16384, 256, 131072)
    assert run([(0, 256)], rows_first, (8, 16, 100)) == 4096  # 8 rows are read side by side, each to its end
    assert run([(0, 256)], rows_first, (32, 16, 100)) == 256  # 32 are too many


def test_columns_of_a_block_are_no_stream() -> None:
    x = rand(512, 4096)
    assert not jumping(kernel(x * 2).linear)
    (transposed,) = make_plan([x.T.contiguous().uop]).kernels
    assert jumping(transposed.linear)
