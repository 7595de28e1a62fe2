"""Work counted from loops."""

from __future__ import annotations

import pytest
from loop_ir import AxisType, Ops, alloc, buffer, range_, reduce, sink, to_linear

from uopc import count as module
from uopc.count import count, products, times


def test_a_matrix_product() -> None:
    i, j, k = range_(4, 0), range_(5, 1), range_(6, 2)
    total = reduce(Ops.ADD, buffer(1, 24).index(i * 6 + k).load() * buffer(2, 30).index(k * 5 + j).load(), k)
    linear = to_linear(sink(buffer(0, 20).index(i * 5 + j).store(total).end(i, j)))
    work = count(linear)
    assert work.flops == 2 * 4 * 5 * 6
    assert work.moved == 4 * (20 + 24 + 30)
    assert work.loads == 2 * 4 * 5 * 6
    assert products(linear, {1}) == products(linear, {2}) == 4 * 5 * 6
    assert products(linear, {0}) == 0


@pytest.mark.parametrize("lanes", [2, 8])
def test_lanes_count(lanes: int) -> None:
    i, lane = range_(4, 0), range_(lanes, 1, AxisType.VECTOR)
    at = i * lanes + lane
    linear = to_linear(sink(buffer(0, 64).index(at).store(buffer(1, 64).index(at).load() * 2.0).end(i, lane)))
    assert count(linear).flops == count(linear).loads == 4 * lanes


def test_ends_that_depend_on_outer_loops_are_summed() -> None:
    """Triangles, also where two loops depend on one."""
    i = range_(10, 0)
    j, k = range_(i + 1, 1), range_((i * 2).minimum(7), 2)
    linear = to_linear(sink(buffer(0, 1000).index((i * 10 + j) * 7 + k).store(1.0).end(i, j, k)))
    store = next(u for u in linear.src if u.op is Ops.STORE)
    assert times(linear)[store] == sum((i + 1) * min(2 * i, 7) for i in range(10))


def test_ends_of_large_nests_are_taken_at_their_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    i = range_(10, 0)
    linear = to_linear(sink(buffer(0, 100).index(i * 10 + range_(i + 1, 1)).store(1.0).end(i, range_(i + 1, 1))))
    store = next(u for u in linear.src if u.op is Ops.STORE)
    assert times(linear)[store] == 55
    monkeypatch.setattr(module, "MAX_GRID", 9)
    assert times(linear)[store] == 100


def test_products_are_followed_through_tiles() -> None:
    tile, i, j, k = alloc(0, 8), range_(8, 0), range_(5, 1), range_(8, 2)
    filled = tile.index(i).store(buffer(1, 8).index(i).load()).end(i)
    total = reduce(Ops.ADD, tile.after(filled, j, k).index(k).load() * buffer(2, 8).index(k).load(), k)
    linear = to_linear(sink(buffer(0, 5).index(j).store(total).end(j)))
    assert products(linear, {1}) == 40
