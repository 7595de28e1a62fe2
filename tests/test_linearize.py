"""The order of statements: loops, invariants, loads before stores, and time that grows with the graph."""

from __future__ import annotations

import itertools
import time

import pytest
from loop_ir import Ops, UOp, alloc, buffer, range_, sink, to_linear

from uopc.linearize import linearize
from uopc.ops import Stage
from uopc.spec import verify


def position(linear: UOp, op: Ops, slot: int) -> list[int]:
    """Where the LOADs or STOREs of a slot stand."""

    def memory(u: UOp) -> UOp:
        while u.op not in (Ops.BUFFER, Ops.ALLOC):
            u = u.src[0]
        return u

    return [k for k, u in enumerate(linear.src) if u.op is op and memory(u).arg.slot == slot]


def loops_around(linear: UOp, at: int) -> list[UOp]:
    """The loops open at a place in the list, outermost first."""
    out: list[UOp] = []
    for u in linear.src[:at]:
        if u.op is Ops.RANGE:
            out.append(u)
        elif u.op is Ops.END:
            out.pop()
    return out


def test_a_value_stands_as_far_out_as_it_can() -> None:
    i, j = range_(4, 0), range_(5, 1)
    row, both = buffer(1, 4).index(i).load(), buffer(2, 20).index(i * 5 + j).load()
    linear = linearize(sink(buffer(0, 20).index(i * 5 + j).store(row * 2.0 + both).end(j).end(i)))
    verify(linear, Stage.LINEAR)
    assert loops_around(linear, position(linear, Ops.LOAD, 1)[0]) == [i]
    assert loops_around(linear, position(linear, Ops.LOAD, 2)[0]) == [i, j]


def test_one_end_of_two_loops_closes_the_inner_one_first() -> None:
    i, j = range_(4, 0), range_(5, 1)
    linear = linearize(sink(buffer(0, 20).index(i * 5 + j).store(1.0).end(i, j)))
    assert loops_around(linear, position(linear, Ops.STORE, 0)[0]) == [i, j]
    assert [u.op for u in linear.src].count(Ops.END) == 2


def test_a_statement_stays_in_the_loop_whose_body_it_is() -> None:
    i, j = range_(4, 0), range_(5, 1)
    inner = buffer(0, 5).index(j).store(1.0).end(j)
    linear = linearize(sink(sink(inner, buffer(1, 1).index(0).store(2.0)).end(i)))
    assert loops_around(linear, position(linear, Ops.STORE, 0)[0]) == [i, j]
    assert loops_around(linear, position(linear, Ops.STORE, 1)[0]) == [i]


def test_the_initialisation_dominates_its_loop_from_outside() -> None:
    i, j = range_(4, 0), range_(5, 1)
    cell = alloc(0)
    start = cell.after(i).index(0).store(0.0)
    place = cell.after(start, j).index(0)
    done = place.store(place.load() + buffer(1, 20).index(i * 5 + j).load()).end(j)
    linear = linearize(sink(buffer(0, 4).index(i).store(cell.after(done).index(0).load()).end(i)))
    verify(linear, Stage.LINEAR)
    first, update = position(linear, Ops.STORE, 0)[:2]
    assert loops_around(linear, first) == [i]
    assert loops_around(linear, update) == [i, j]


def test_loads_stand_before_the_stores_that_they_are_not_after() -> None:
    """Whatever the order of the graph."""
    x = buffer(0, 2)
    for stores in itertools.permutations((x.index(0).store(x.index(1).load()), x.index(1).store(x.index(0).load()))):
        linear = linearize(sink(*stores))
        assert max(position(linear, Ops.LOAD, 0)) < min(position(linear, Ops.STORE, 0))


def test_loads_that_wait_for_other_values_too() -> None:
    """A LOAD at an address that is loaded itself cannot go first by priority alone."""
    x, i = buffer(0, 4), range_(4, 0)
    at = buffer(1, 1).index(0).load().cast(i.dtype) % 4
    late = x.index(at).load()
    linear = linearize(sink(x.index(i).store(1.0).end(i), buffer(2, 1).index(0).store(late)))
    assert position(linear, Ops.LOAD, 0)[0] < linear.src.index(i)


def test_places_that_are_apart_need_no_order() -> None:
    """Each loop reads what the other one writes but for the element, so any order will do."""
    x, y = buffer(0, 8), buffer(1, 8)
    i, j, n = range_(4, 0), range_(4, 1), range_(2, 2)
    for a, b in ((UOp.const(0), UOp.const(1)), (n * 4, n * 4 + 1)):
        one, two = x.after(i).index(a).store(y.index(a).load()), y.after(j).index(b).store(x.index(b).load())
        both = sink(one.end(i), two.end(j))
        linear = linearize(sink(both) if a.op is Ops.CONST else sink(both.end(n)))
        assert len(position(linear, Ops.STORE, 0)) == len(position(linear, Ops.STORE, 1)) == 1


def test_statements_that_nothing_orders_keep_the_order_of_the_graph() -> None:
    x = buffer(0, 9)
    stores = [x.index(k).store(float(k)) for k in (3, 1, 4, 5, 2)]
    assert [u for u in linearize(sink(*stores)).src if u.op is Ops.STORE] == stores


def test_each_node_names_what_cannot_be_ordered() -> None:
    i, j = range_(4, 3), range_(4, 8)
    with pytest.raises(ValueError, match=r"RANGE.*id=3.*never closed"):
        linearize(sink(buffer(0, 4).index(i).store(1.0)))
    with pytest.raises(ValueError, match=r"RANGE.*id=3.*is closed by .*END.* and by .*END"):
        linearize(sink(buffer(0, 4).index(i).store(1.0).end(i), buffer(1, 4).index(i).store(2.0).end(i)))
    crossed = sink(buffer(0, 16).index(i * 4 + j).store(1.0).end(i), buffer(1, 16).index(i * 4 + j).store(1.0).end(j))
    with pytest.raises(ValueError, match=r"id=[38]"):
        linearize(crossed)


def test_a_cycle_through_memory() -> None:
    x, y = buffer(0, 4), buffer(1, 4)
    i, j = range_(4, 0), range_(4, 1)
    one = x.index(i).store(y.index(3 - i).load()).end(i)
    two = y.index(j).store(x.index(3 - j).load()).end(j)
    with pytest.raises(ValueError, match=r"(?s)cannot be put in an order.*id=0.*id=1|id=1.*id=0"):
        linearize(sink(one, two))


def chain(n: int) -> UOp:
    """A program of n steps, each with a load of its own."""
    i = range_(8, 0)
    x = buffer(1, 8).index(i).load()
    for k in range(n):
        x = x * 1.5 + buffer(2, n).index(k).load()
    return sink(buffer(0, 8).index(i).store(x).end(i))


def test_time_is_near_linear() -> None:
    """Ten times the graph takes about ten times as long, where neither fits in a cache."""

    def seconds(program: UOp) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            linearize(program)
            best = min(best, time.perf_counter() - start)
        return best

    small, large = seconds(chain(4_000)), seconds(chain(40_000))
    assert large < 40 * small
    assert large < 5


def test_many_loops_one_after_the_other() -> None:
    """Loops in a chain of 300, each after the one before; depth of recursion plays no part."""
    x = buffer(0, 4)
    memory = x
    ranges = [range_(4, k) for k in range(300)]
    for r in ranges:
        place = memory.after(r).index(r)
        memory = x.after(place.store(place.load() + 1.0).end(r))
    last = buffer(1, 1).index(0).store(memory.index(0).load())
    linear = to_linear(sink(last))
    assert [u for u in linear.src if u.op is Ops.RANGE] == ranges
