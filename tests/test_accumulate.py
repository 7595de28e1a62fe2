"""Accumulators: where they live, how many loops there are, and what is refused."""

from __future__ import annotations

import pytest
from loop_ir import AxisType, Ops, buffer, range_, reduce, sink, skeleton, to_linear

from uopc.opt.accumulate import accumulate
from uopc.opt.expand import expand


def test_an_accumulator_lives_inside_exactly_the_loops_that_its_result_depends_on() -> None:
    i, j, k = range_(4, 0), range_(5, 1), range_(6, 2)
    row = reduce(Ops.MAX, buffer(1, 24).index(i * 6 + k).load(), k)
    linear = to_linear(sink(buffer(0, 20).index(i * 5 + j).store(row).end(i, j)))
    assert skeleton(linear) == (
        "LOOP 4\n"
        "  store cell float32 * 1\n"
        "  LOOP 6\n"
        "    load cell float32 * 1\n"
        "    load d1 float32 * 1\n"
        "    store cell float32 * 1\n"
        "  load cell float32 * 1\n"
        "  LOOP 5\n"
        "    store d0 float32 * 1\n"
    )


def test_reductions_over_the_same_ranges_share_one_loop() -> None:
    k = range_(6, 2)
    x = buffer(1, 6).index(k).load()
    total = reduce(Ops.ADD, x, k) + reduce(Ops.MAX, x, k)
    linear = to_linear(sink(buffer(0, 1).index(0).store(total)))
    assert [u.op for u in linear.src].count(Ops.RANGE) == 1


def test_unrolled_copies_share_one_loop_and_combine_in_it() -> None:
    k, u = range_(6, 0), range_(4, 1, AxisType.UNROLL)
    total = reduce(Ops.ADD, buffer(1, 24).index(k * 4 + u).load(), k, u)
    linear = to_linear(sink(buffer(0, 1).index(0).store(total)))
    assert skeleton(linear) == (
        "store cell float32 * 1\n"
        "LOOP 6\n"
        "  load cell float32 * 1\n"
        "  load d1 float32 * 4\n"
        "  store cell float32 * 1\n"
        "load cell float32 * 1\n"
        "store d0 float32 * 1\n"
    )


def test_upcast_copies_share_one_loop_and_accumulate_apart() -> None:
    i, k = range_(3, 0, AxisType.UPCAST), range_(6, 1)
    total = reduce(Ops.ADD, buffer(1, 18).index(i * 6 + k).load(), k)
    linear = to_linear(sink(buffer(0, 3).index(i).store(total).end(i)))
    assert [u.op for u in linear.src].count(Ops.RANGE) == 1
    assert "store cell float32 * 3\nLOOP 6\n" in skeleton(linear)


def test_nothing_is_left_of_reduce_and_nothing_changes_without() -> None:
    i, k = range_(3, 0), range_(6, 1)
    total = reduce(Ops.ADD, buffer(1, 18).index(i * 6 + k).load(), k)
    program = expand(sink(buffer(0, 3).index(i).store(total).end(i)))
    assert not any(u.op is Ops.REDUCE for u in accumulate(program).toposort())
    plain = sink(buffer(0, 3).index(i).store(1.0).end(i))
    assert accumulate(plain) is plain


def test_a_reduction_inside_another() -> None:
    """The inner one starts again at each step of the outer one."""
    i, k = range_(3, 0), range_(6, 1)
    inner = reduce(Ops.MAX, buffer(1, 18).index(i * 6 + k).load(), k)
    linear = to_linear(sink(buffer(0, 1).index(0).store(reduce(Ops.ADD, inner, i))))
    assert skeleton(linear) == (
        "store cell float32 * 1\n"
        "LOOP 3\n"
        "  load cell float32 * 1\n"
        "  store cell float32 * 1\n"
        "  LOOP 6\n"
        "    load cell float32 * 1\n"
        "    load d1 float32 * 1\n"
        "    store cell float32 * 1\n"
        "  load cell float32 * 1\n"
        "  store cell float32 * 1\n"
        "load cell float32 * 1\n"
        "store d0 float32 * 1\n"
    )


def test_a_reduction_that_needs_the_result_of_its_own_loop() -> None:
    k = range_(6, 1)
    x = buffer(1, 6).index(k).load()
    away = reduce(Ops.ADD, x - reduce(Ops.MAX, x, k), k)
    with pytest.raises(ValueError, match=r"REDUCE.*same RANGEs.*id=1"):
        accumulate(sink(buffer(0, 1).index(0).store(away)))
