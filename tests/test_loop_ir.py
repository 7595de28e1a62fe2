"""Loop programs written by hand: what they compute, and what is said of programs that mean nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loop_ir import F32, AxisType, Ops, UOp, alloc, buffer, dtypes, range_, reduce, run, sink, vector, zeros

from uopc.render_c import render_c
from uopc.spec import SpecError

X = np.arange(12, dtype=np.float32) * 0.5 - 2
NEVER_LEGAL = (ValueError, SpecError)  # the verifier, where it is on, speaks first


def test_a_loop_over_a_buffer() -> None:
    out, i = zeros(12), range_(12, 0)
    run(sink(buffer(0, 12).index(i).store(buffer(1, 12).index(i).load() * 2.0 + 1.0).end(i)), out, X)
    np.testing.assert_array_equal(out, X * 2 + 1)


@pytest.mark.parametrize("axis", [AxisType.LOOP, AxisType.THREAD])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_loop_runs_as_often_as_it_says(n: int, axis: AxisType) -> None:
    """Also where the STORE does not depend on it: none of what a loop that never runs holds may happen."""
    out, i = zeros(2), range_(n, 0, axis)
    run(sink(buffer(0, 2).index(i).store(buffer(1, 2).index(i).load()).end(i)), out, np.ones(2, np.float32))
    np.testing.assert_array_equal(out, [1] * n + [77] * (2 - n))


def test_a_loop_that_never_runs_reads_nothing() -> None:
    out, i, j = zeros(3), range_(3, 0), range_(0, 1)
    total = reduce(Ops.ADD, buffer(1, 0).index(j).load(), j)
    run(sink(buffer(0, 3).index(i).store(total).end(i)), out, np.empty(0, np.float32))
    np.testing.assert_array_equal(out, [0, 0, 0])


def test_a_nest_in_a_loop_that_never_runs() -> None:
    """What stands before the loop is done; what stands in it is not, whether it depends on the loop or not."""
    i, j, k = range_(2, 0), range_(0, 1), range_(3, 2)
    x, total = buffer(0, 3), alloc(0)
    start = total.after(i).index(0).store(5.0)
    cell = total.after(start, j).index(0)
    filled = x.index(k).store(1.0).end(k)
    step = sink(filled, cell.store(cell.load() + x.after(filled).index(0).load())).end(j)
    out = zeros(3), zeros(2)
    program = sink(buffer(1, 2).index(i).store(total.after(step).index(0).load()).end(i))
    run(program, *out, outputs=(0, 1))
    np.testing.assert_array_equal(out[0], [77] * 3)
    np.testing.assert_array_equal(out[1], [5] * 2)


def test_state_in_an_alloc_and_an_end_that_depends_on_the_outer_loop() -> None:
    """Running sums, each from the start: a.after(i) is a inside loop i, a.after(done) what the inner loop left."""
    out, i = zeros(12), range_(12, 0, AxisType.THREAD)
    j = range_(i + 1, 1)
    total = alloc(0)
    start = total.after(i).index(0).store(0.0)
    cell = total.after(start, j).index(0)
    done = cell.store(cell.load() + buffer(1, 12).index(j).load()).end(j)
    run(sink(buffer(0, 12).index(i).store(total.after(done).index(0).load()).end(i)), out, X)
    np.testing.assert_allclose(out, np.cumsum(X), rtol=1e-6)


def test_an_end_of_two_outer_loops() -> None:
    out = zeros(4, 3, dtype=np.int32)
    i, j = range_(4, 0), range_(3, 1)
    k = range_((i * 2 - j).maximum(0), 2)
    count = reduce(Ops.ADD, UOp.const(1, dtypes.int32), k)
    run(sink(buffer(0, 4, 3, dtype=dtypes.int32).index(i, j).store(count).end(i, j)), out)
    np.testing.assert_array_equal(out, [[max(2 * i - j, 0) for j in range(3)] for i in range(4)])


def test_an_end_that_the_loop_overwrites() -> None:
    """How often a loop runs is settled when it begins."""
    x = buffer(0, 8, dtype=dtypes.int32)
    i = range_(x.index(0).load().cast(dtypes.index), 0)
    out = np.int32([5, 77, 77, 77, 77, 77, 77, 77])
    run(sink(x.after(i).index(i).store(1).end(i)), out)
    np.testing.assert_array_equal(out, [1] * 5 + [77] * 3)


def test_several_stores_in_one_loop_and_loops_one_after_the_other() -> None:
    """Two sums over one buffer, the second of what the first one wrote."""
    a, b, x = buffer(0, 12), buffer(1, 12), buffer(2, 12)
    i, j = range_(12, 0), range_(12, 1)
    first = sink(a.index(i).store(x.index(i).load() + 1.0), b.index(i).store(x.index(i).load() - 1.0)).end(i)
    second = b.after(first, j).index(j)
    program = sink(second.store(second.load() * a.after(first, j).index(11 - j).load()).end(j))
    out = zeros(12), zeros(12)
    run(program, *out, X, outputs=(0, 1))
    np.testing.assert_array_equal(out[0], X + 1)
    np.testing.assert_array_equal(out[1], (X - 1) * (X + 1)[::-1])


def test_a_value_used_in_two_loops() -> None:
    """It stands before both."""
    i, j = range_(4, 0), range_(3, 1)
    scale = (buffer(2, 2).index(0).load() * buffer(2, 2).index(1).load()).alu(Ops.SQRT)
    out = zeros(4), zeros(3)
    program = sink(buffer(0, 4).index(i).store(scale).end(i), buffer(1, 3).index(j).store(scale * 2.0).end(j))
    run(program, *out, np.float32([2, 8]), outputs=(0, 1))
    np.testing.assert_array_equal(out[0], [4] * 4)
    np.testing.assert_array_equal(out[1], [8] * 3)


def test_a_load_reads_what_was_there_before_stores_that_it_is_not_after() -> None:
    """Swapping needs no third variable."""
    x = buffer(0, 2)
    a, b = x.index(0).load(), x.index(1).load()
    out = np.float32([1, 2])
    run(sink(x.index(0).store(b), x.index(1).store(a)), out)
    np.testing.assert_array_equal(out, [2, 1])


def test_a_load_before_a_loop_that_overwrites_its_place() -> None:
    x, i = buffer(0, 4), range_(4, 0)
    last = x.index(3).load()
    out = np.float32([1, 2, 3, 4])
    run(sink(x.index(i).store(last + x.after(i).index(i).load()).end(i)), out)
    np.testing.assert_array_equal(out, [5, 6, 7, 8])


def test_in_place_with_neighbours() -> None:
    """A first-order recurrence: each iteration reads what the one before it wrote."""
    x, i = buffer(0, 5), range_(4, 0)
    here = x.after(i)
    out = np.float32([1, 1, 1, 1, 1])
    run(sink(here.index(i + 1).store(here.index(i + 1).load() + here.index(i).load()).end(i)), out)
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_vectors_of_memory_and_of_variables(lanes: int) -> None:
    """An INDEX of vector type is so many elements in a row; an ALLOC may hold vectors."""
    n = 5 * lanes
    x = np.arange(n, dtype=np.float32)
    i = range_(5, 0)
    state = alloc(0, dtype=F32.vec(lanes))
    start = state.index(0).store(UOp.const(0.0, F32))
    cell = state.after(start, i).index(0)
    done = cell.store(cell.load() + vector(buffer(1, n), i * lanes, lanes).load()).end(i)
    out = zeros(lanes)
    run(sink(vector(buffer(0, lanes), 0, lanes).store(state.after(done).index(0).load())), out, x)
    np.testing.assert_array_equal(out, x.reshape(5, lanes).sum(0))


def test_an_alloc_of_vectors_as_an_array() -> None:
    i, j, lanes = range_(3, 0), range_(3, 1), 4
    tile = alloc(0, 3, dtype=F32.vec(lanes))
    filled = tile.index(i).store(vector(buffer(1, 12), i * lanes, lanes).load()).end(i)
    place = vector(buffer(0, 12), j * lanes, lanes)
    out = zeros(12)
    run(sink(place.store(tile.after(filled, j).index(2 - j).load() * 2.0).end(j)), out, X)
    np.testing.assert_array_equal(out, (X.reshape(3, 4)[::-1] * 2).ravel())


def test_a_scalar_stored_to_a_vector_fills_it() -> None:
    out = zeros(8)
    run(sink(vector(buffer(0, 8), 0, 8).store(buffer(1, 1).index(0).load())), out, np.float32([-0.0]))
    assert np.signbit(out).all() and (out == 0).all()


@pytest.mark.parametrize("lanes", [1, 4])
def test_gates(lanes: int) -> None:
    """A gated LOAD is 0 where its gate does not hold, and memory is not touched there; a gated STORE leaves what is."""
    n = 12
    i = range_(n // lanes, 0)
    lane = range_(lanes, 1, AxisType.VECTOR) if lanes > 1 else UOp.const(0)
    at = i * lanes + lane
    value = buffer(1, 5).index(at).load(at < 5)
    store = buffer(0, n).index(at).store(value, (at % 3).ne(1))
    out = zeros(n)
    run(sink(store.end(i, lane) if lanes > 1 else store.end(i)), out, X[:5])
    expected = np.where(np.arange(n) % 3 == 1, 77, np.where(np.arange(n) < 5, X, 0))
    np.testing.assert_array_equal(out, expected)


def test_vector_and_upcast_loops_around_a_loop() -> None:
    """Copies and lanes of one body share the loop inside it."""
    rows, d = range_(3, 0, AxisType.UPCAST), 5
    lane, c = range_(4, 1, AxisType.VECTOR), range_(d, 2)
    at = (rows * 4 + lane) * d + c
    out = zeros(60)
    x = np.arange(60, dtype=np.float32)
    run(sink(buffer(0, 60).index(at).store(buffer(1, 60).index(at).load() + 1.0).end(c).end(rows, lane)), out, x)
    np.testing.assert_array_equal(out, x + 1)
    assert render_c(sink(buffer(0, 60).index(at).store(1.0).end(c).end(rows, lane)), "k").count("for (long i") == 1


def test_online_softmax() -> None:
    """The state of three ALLOCs, each updated from the others as they were."""
    x = np.float32(np.random.default_rng(0).normal(size=100) * 30)
    m, l = alloc(0), alloc(1)
    i = range_(100, 0)
    start = sink(m.index(0).store(-math.inf), l.index(0).store(0.0))
    m1, l1 = m.after(start, i).index(0), l.after(start, i).index(0)
    new = m1.load().maximum(buffer(1, 100).index(i).load())
    total = l1.load() * (m1.load() - new).alu(Ops.EXP) + (buffer(1, 100).index(i).load() - new).alu(Ops.EXP)
    done = sink(m1.store(new), l1.store(total)).end(i)
    out = zeros(2)
    place = buffer(0, 2)
    run(sink(*(place.index(k).store(c.after(done).index(0).load()) for k, c in enumerate((m, l)))), out, x)
    np.testing.assert_allclose(out, [x.max(), np.exp(np.float64(x) - x.max()).sum()], rtol=1e-5)


def test_slots_that_nothing_uses_are_parameters_all_the_same() -> None:
    out, i = zeros(4, dtype=np.int32), range_(4, 0)
    unused = buffer(1, 4, dtype=dtypes.int32).index(i).load() * 0
    run(sink(buffer(0, 4, dtype=dtypes.int32).index(i).store(unused + 3).end(i)), out, np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(out, [3] * 4)


def test_a_value_after_something_is_the_value() -> None:
    out, i = zeros(3), range_(3, 0)
    run(sink(buffer(0, 3).index(i).store((buffer(1, 1).index(0).load() + 1.0).after(i)).end(i)), out, np.float32([4]))
    np.testing.assert_array_equal(out, [5, 5, 5])


# ---- programs that mean nothing ------------------------------------------------------------------


def test_a_loop_that_is_not_closed() -> None:
    with pytest.raises(NEVER_LEGAL, match=r"RANGE.*id=7"):
        render_c(sink(buffer(0, 4).index(range_(4, 7)).store(1.0)), "k")


def test_a_loop_that_is_closed_twice() -> None:
    i = range_(4, 7)
    with pytest.raises(NEVER_LEGAL, match=r"RANGE.*id=7"):
        render_c(sink(buffer(0, 4).index(i).store(1.0).end(i), buffer(1, 4).index(i).store(1.0).end(i)), "k")


def test_loops_that_need_one_another() -> None:
    """Each of two loops overwrites what the other one reads, and neither says which comes first."""
    x, y = buffer(0, 4), buffer(1, 4)
    i, j = range_(4, 0), range_(4, 1)
    one = x.index(i).store(y.index(3 - i).load()).end(i)
    two = y.index(j).store(x.index(3 - j).load()).end(j)
    with pytest.raises(ValueError, match=r"(?s)order.*RANGE.*id=.*RANGE.*id="):
        render_c(sink(one, two), "k")


def test_a_store_beside_the_parallel_loop() -> None:
    i = range_(4, 0, AxisType.THREAD)
    with pytest.raises(ValueError, match=r"STORE.*outside.*THREAD"):
        render_c(sink(buffer(0, 4).index(i).store(1.0).end(i), buffer(1, 1).index(0).store(1.0)), "k")


def test_one_slot_of_two_dtypes() -> None:
    i = range_(4, 0)
    value = buffer(1, 4).index(i).load() + buffer(1, 4, dtype=dtypes.int32).index(i).load().cast(F32)
    with pytest.raises(NEVER_LEGAL, match="slot"):
        render_c(sink(buffer(0, 4).index(i).store(value).end(i)), "k")


def test_a_name_that_c_does_not_know() -> None:
    with pytest.raises(ValueError, match="'2nd'"):
        render_c(sink(buffer(0, 1).index(0).store(1.0)), "2nd")


def test_a_reduction_of_its_own_result() -> None:
    i, j = range_(4, 0), range_(4, 1)
    x = buffer(1, 4).index(j).load()
    away = reduce(Ops.ADD, x - reduce(Ops.MAX, x, j), j)
    with pytest.raises(ValueError, match="same RANGEs"):
        render_c(sink(buffer(0, 4).index(i).store(away).end(i)), "k")
