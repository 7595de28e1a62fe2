"""Traversals that passes share: parts of a graph, copies at many values at once, nodes replaced together."""

from __future__ import annotations

import itertools

import pytest
from loop_ir import F32, Ops, UOp, buffer, range_, reduce, sink

from uopc._hot.graph import (
    chosen,
    cone,
    copies,
    depending,
    dtypes_of,
    newer,
    replace_all,
    replace_depending,
    replace_groups,
    replace_newer,
)
from uopc.uop import dtypes


def test_what_depends_on_a_range_stands_sources_first() -> None:
    i, j = range_(4, 0), range_(5, 1)
    apart, inside = j * 2, i * 3
    both = inside + apart
    assert depending(both, (i,)) == [i, inside, both]
    assert depending(apart, (i,)) == []
    assert [u for u in both.toposort() if u in depending(both, (i, j))] == depending(both, (i, j))


def test_what_is_closed_below_is_not_open() -> None:
    i = range_(4, 0)
    total = reduce(Ops.ADD, buffer(0, 4).index(i).load(), i)
    assert depending(total + 1.0, (i,)) == []


def test_a_cone_ends_at_some_ops_and_after_so_many() -> None:
    a, b = buffer(0, 4).index(0).load(), buffer(1, 4).index(0).load()
    body = (a + b) * (a + b).alu(Ops.EXP2)
    ends = bytes(op is Ops.LOAD for op in Ops)
    assert cone(body, ends, 9) == [body, body.src[1], a + b, b, a]
    assert cone(body, ends, 5) == cone(body, ends, 9)
    assert cone(body, ends, 2) == [body, body.src[1], a + b]
    assert cone(a, ends, 9) == [a]


def test_what_is_newer_than_something_needs_no_walk_below_it() -> None:
    x = buffer(0, 1).index(0).load()
    a = x + 1.0
    b = a * 2.0
    place = {u: k for k, u in enumerate(b.toposort())}
    c = b.alu(Ops.EXP2) + x
    assert newer(c, place, len(place)) == [b.alu(Ops.EXP2), c]
    assert newer(c, place, place[b]) == [b, b.alu(Ops.EXP2), c]
    assert newer(x, place, place[b]) == []
    assert set(newer(c, place, 0)) == set(c.toposort())
    for known in ({b: x}, {a: x}, {x: a}, {a: x, b: a}, {c: a}, {}):
        assert replace_newer(c, place, known) is c.substitute(known)


def test_replacements_are_replaced_again() -> None:
    x, y = (buffer(k, 1).index(0).load() for k in range(2))
    a, b = x.alu(Ops.EXP2), y.alu(Ops.SQRT)
    assert replace_all(sink(a + 1.0, b), {a: b * 2.0, b: y + 3.0}) is sink((y + 3.0) * 2.0 + 1.0, y + 3.0)
    assert replace_all(a, {a: x}) is x
    assert replace_all(a, {b: x}) is a


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 1, 4)])
def test_copies_are_substitutions(sizes: tuple[int, ...]) -> None:
    ranges = [range_(n, k) for k, n in enumerate(sizes)]
    free = range_(7, 9)
    load = buffer(0, 100).index(ranges[0] * 5 + free).load()
    for body in (load * load, ranges[-1] + ranges[0], buffer(1, 9).index(free).load(), ranges[0], ranges[-1] * 2):
        values = [[UOp.const(k) for k in range(n)] for n in sizes]
        one_by_one = [body.substitute(dict(zip(ranges, at))) for at in itertools.product(*values)]
        assert copies(body, ranges, values) == one_by_one


def test_more_ranges_than_bits_are_refused() -> None:
    ranges = [range_(1, k) for k in range(31)]
    with pytest.raises(ValueError, match="31 ranges"):
        copies(ranges[0] + 1, ranges, [[UOp.const(0)] for _ in ranges])


def test_nodes_are_chosen_by_op_and_kind() -> None:
    i = range_(4, 0)
    nodes = (buffer(0, 4).index(i + 1).load() + 1.0).toposort()
    table = bytearray(4 * 128)
    table[4 * Ops.ADD + 1] = 1
    assert chosen(nodes, bytes(table)) == [i + 1]
    assert dtypes_of(nodes) == {F32, dtypes.index}


def test_groups_are_replaced_once_their_sources_are_done() -> None:
    x = buffer(0, 1).index(0).load()
    a, b = x.alu(Ops.EXP2), (x + 1.0).alu(Ops.EXP2)
    c, d = a.alu(Ops.SQRT), b.alu(Ops.SQRT)
    seen = []

    def finish(group: tuple[UOp, ...], rebuilt: list[UOp]) -> list[UOp]:
        seen.append((group, rebuilt))
        return [u.src[0] * 2.0 for u in rebuilt]

    def refuse(first: UOp, second: UOp) -> None:
        raise AssertionError((first, second))

    out = replace_groups(sink(buffer(1, 1).index(0).store(c + d)), [[c, d], [a, b]], finish, refuse)
    assert [group for group, _ in seen] == [(a, b), (c, d)]
    assert out.src[0].src[1] == x * 2.0 * 2.0 + (x + 1.0) * 2.0 * 2.0


def test_a_group_that_uses_itself_is_refused() -> None:
    x = buffer(0, 1).index(0).load()
    a = x.alu(Ops.EXP2)
    b = a.alu(Ops.EXP2)

    def refuse(first: UOp, second: UOp) -> None:
        raise ValueError(f"{first.src[0].op!r} {second.src[0].op!r}")

    with pytest.raises(ValueError, match="EXP2"):
        replace_groups(b, [[a, b]], lambda group, rebuilt: rebuilt, refuse)


def test_what_does_not_depend_on_the_ranges_is_not_replaced() -> None:
    i, j = range_(4, 0), range_(5, 1)
    both = i * 3 + j * 2
    assert replace_depending(both, (i,), {i: UOp.const(2), j * 2: j}) == both.substitute({i: UOp.const(2)})
    assert replace_depending(both, (i, j), {i * 3: lambda u: u + 1, i: j}) == j * 3 + 1 + j * 2
    assert replace_depending(j, (i,), {j: i}) is j
