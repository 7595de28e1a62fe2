"""Traversals that passes share: parts of a graph, copies at many values at once, nodes replaced together."""

from __future__ import annotations

import itertools

import pytest
from loop_ir import F32, Ops, UOp, buffer, range_, reduce, sink

from uopc._hot.graph import chosen, copies, depending, dtypes_of, replace_depending, replace_groups
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
