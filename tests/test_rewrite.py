"""The matcher and the traversal: what matches, in which order, how deep, and that it ends."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from uopc.uop import Ops, Pattern, PatternMatcher, UOp, dtypes, graph_rewrite, range_, sink

X, Y = Pattern(name="x"), Pattern(name="y")
C = Pattern(Ops.CONST, name="c")
F = dtypes.float32


def const(value: float, dtype: dtypes = dtypes.index) -> UOp:
    return UOp.const(value, dtype)


def i_(n: int = 10, id: int = 0) -> UOp:
    return range_(n, id)


def rules(*table: tuple) -> PatternMatcher:
    return PatternMatcher(table)


def test_first_rule_that_answers_wins() -> None:
    i = i_()
    first = rules((Pattern(Ops.ADD, (X, Y)), lambda x, y: None), (Pattern(Ops.ADD, (X, Y)), lambda x, y: x))
    second = rules((Pattern(Ops.ADD, (X, Y)), lambda x, y: y))
    assert graph_rewrite(i + 5, first + second) is i
    assert graph_rewrite(i + 5, second + first) is const(5)


def test_parameters_are_names_in_any_order_and_ctx() -> None:
    seen = []

    def rule(y: UOp, ctx: list, whole: UOp, x: UOp) -> None:
        ctx.append((x, y, whole))

    i = i_()
    u = i + 5
    graph_rewrite(u, rules((Pattern(Ops.ADD, (X, Y), "whole"), rule)), ctx=seen)
    assert seen == [(i, const(5), u)]


def test_bound_methods_are_rules() -> None:
    class Table:
        def first(self, x: UOp, y: UOp) -> UOp:
            return x

    assert graph_rewrite(i_() + 5, rules((Pattern(Ops.ADD, (X, Y)), Table().first))) is i_()


def test_op_sets_args_dtypes() -> None:
    i = i_()
    either = rules((Pattern({Ops.ADD, Ops.MUL}, (X, Pattern(Ops.CONST, arg=3))), lambda x: x))
    assert graph_rewrite((i * 3 + 3) + 4, either) is i + 4
    big = rules((Pattern(Ops.CONST, name="c", arg=lambda v: v > 100), lambda c: const(100)))
    assert graph_rewrite(i * 1000 + 7, big) is i * 100 + 7
    f = UOp.const(1.5, F)
    by_type = rules((Pattern(Ops.CONST, name="c", dtype=F), lambda c: UOp.const(2.5, F)))
    assert graph_rewrite(sink(f, i), by_type) is sink(UOp.const(2.5, F), i)
    vector = UOp(Ops.CONST, (), (1.5, 2.0), F.vec(2))
    for dtype in (F, {F, dtypes.float64}, lambda d: d.is_float):
        assert rules((Pattern(Ops.CONST, dtype=dtype), lambda: f)).rewrite(vector) is f
    assert rules((Pattern(Ops.CONST, dtype=dtypes.float64), lambda: f)).rewrite(vector) is None


def test_arg_is_compared_by_type_and_bits() -> None:
    zero = rules((Pattern(Ops.CONST, arg=0.0), lambda: UOp.const(7.0, F)))
    assert zero.rewrite(UOp.const(0.0, F)) is not None
    assert zero.rewrite(UOp.const(-0.0, F)) is None
    assert zero.rewrite(const(0)) is None
    assert zero.rewrite(UOp.const(False, dtypes.bool_)) is None


def test_a_name_used_twice_is_one_node() -> None:
    i, j = i_(), i_(10, 1)
    double = rules((Pattern(Ops.ADD, (X, X)), lambda x: x * 2))
    assert graph_rewrite(i + i, double) is i * 2
    assert graph_rewrite(i + j, double) is i + j


def test_commutative_patterns_match_in_every_order() -> None:
    i, j, k = i_(), i_(10, 1), i_(10, 2)
    product = lambda a, b: Pattern(Ops.MUL, (Pattern(name=a), Pattern(name=b)), commutative=True)  # noqa: E731
    factor = rules(
        (Pattern(Ops.ADD, (product("a", "x"), product("b", "x")), commutative=True), lambda x, a, b: x * (a + b))
    )
    for u in (i * j + i * k, j * i + i * k, i * j + k * i, j * i + k * i):
        assert graph_rewrite(u, factor).op is Ops.MUL
    assert graph_rewrite(i * i_(10, 4) + j * k, factor).op is Ops.ADD
    ordered = rules((Pattern(Ops.ADD, (C, X)), lambda c, x: x))
    assert graph_rewrite(i + 3, ordered) is i + 3
    with pytest.raises(ValueError, match="not commutative"):
        Pattern(Ops.CMPLT, (X, Y), commutative=True)


def test_source_counts() -> None:
    i, j = i_(), i_(10, 1)
    s = sink(i, j)
    assert rules((Pattern(Ops.SINK, (X,)), lambda x: x)).rewrite(s) is None
    assert rules((Pattern(Ops.SINK, (X, ...)), lambda x: x)).rewrite(s) is i
    assert rules((Pattern(Ops.SINK, (X, Y, X)), lambda x, y: x)).rewrite(s) is None
    assert rules((Pattern(Ops.SINK, (X, Y, ...)), lambda x, y: y)).rewrite(s) is j
    with pytest.raises(TypeError, match="source pattern"):
        Pattern(Ops.SINK, (..., X))


def test_faults_in_tables_are_found_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="takes z; its pattern captures x"):
        rules((X, lambda z: z))
    with pytest.raises(TypeError, match="a Pattern and a function"):
        rules((Ops.ADD, lambda: None))
    with pytest.raises(TypeError, match="returned 3"):
        graph_rewrite(i_() + 1, rules((Pattern(Ops.ADD), lambda: 3)))


def test_replacements_are_rewritten_to_a_fixed_point() -> None:
    def smaller(x: UOp, c: UOp) -> UOp:
        return x + UOp.const(c.arg - 1, dtypes.index) if c.arg else x

    table = rules((Pattern(Ops.ADD, (X, C)), smaller))
    assert graph_rewrite(i_() + 5000, table) is i_()
    # new nodes inside a replacement too
    unfold = rules(
        (Pattern(Ops.MUL, (X, Pattern(Ops.CONST, name="c", arg=lambda v: v > 1))), lambda x, c: x * (c.arg - 1) + x),
        (Pattern(Ops.MUL, (X, Pattern(Ops.CONST, arg=1))), lambda x: x),
    )
    got = graph_rewrite(i_() * 50, unfold)
    assert [u.op for u in got.toposort() if u.op is Ops.MUL] == []
    assert got.vmax == 450


DEEP = 100_000


def test_deep_graphs() -> None:
    u = UOp.const(0.0, F) + UOp(Ops.CONST, (), 1.0, F)
    for _ in range(DEEP):
        u = u + 1.0
    swapped = graph_rewrite(u, rules((Pattern(Ops.ADD, (X, C)), lambda x, c: x * c)))
    assert len(swapped.toposort()) >= DEEP


def test_deep_chains_of_new_nodes() -> None:
    def smaller(c: UOp) -> UOp | None:
        return UOp.const(c.arg - 1, c.dtype) if c.arg > 0 else None

    assert graph_rewrite(const(DEEP), rules((Pattern(Ops.CONST, name="c"), smaller))) is const(0)

    def chain(x: UOp, c: UOp) -> UOp | None:
        return (x * UOp.const(c.arg - 1, c.dtype)).cast(dtypes.int64).cast(dtypes.index) + x if c.arg > 0 else None

    got = graph_rewrite(i_() * (DEEP // 4), rules((Pattern(Ops.MUL, (X, C)), chain)))
    assert len(got.toposort()) > DEEP // 2

    def built(x: UOp) -> UOp:
        u = x
        for _ in range(DEEP):
            u = u + 2
        return u

    got = graph_rewrite(i_() * 7, rules((Pattern(Ops.MUL, (X, C)), lambda x, c: built(x))))
    assert len(got.toposort()) >= DEEP


def ping(x: UOp) -> UOp:
    return x * 3


def pong(x: UOp) -> UOp:
    return x + 3


def grow(x: UOp) -> UOp:
    return (x + 3) * 2


def more(x: UOp, c: UOp) -> UOp:
    return x + (c.arg + 1)


THREE = Pattern(Ops.CONST, arg=3)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ([(Pattern(Ops.ADD, (X, THREE)), ping), (Pattern(Ops.MUL, (X, THREE)), pong)], ("ping", "pong")),
        ([(Pattern(Ops.ADD, (X, THREE)), grow)], ("grow",)),
        ([(Pattern(Ops.ADD, (X, C)), more)], ("more",)),
    ],
)
def test_endless_rewriting_is_an_error_that_names_the_rules(table: list, names: tuple[str, ...]) -> None:
    with pytest.raises(RecursionError, match="endless rewriting") as info:
        graph_rewrite(i_() + 3, PatternMatcher(table))
    assert all(name in str(info.value) for name in names)


def test_rules_may_rewrite_and_a_memo_is_of_one_call() -> None:
    inner = rules((Pattern(Ops.CONST, name="c", arg=1), lambda c: const(2)))
    outer = rules((Pattern(Ops.ADD, (X, C), "u"), lambda u, x, c: graph_rewrite(u, inner)))
    i = i_()
    assert graph_rewrite(((i + 1) * 5) + 1, outer) is ((i + 2) * 5) + 2
    count = [0]

    def counted(x: UOp) -> None:
        count[0] += 1

    shared = i + 1
    graph_rewrite([shared * shared, shared * 3], rules((Pattern(Ops.ADD, (X, C)), counted)))
    assert count == [1]


def test_an_exception_in_a_rule_leaves_nothing_behind() -> None:
    class Kept:
        pass

    ctx = Kept()
    gone = weakref.ref(ctx)

    def broken(c: UOp, ctx: Kept) -> UOp:
        raise ZeroDivisionError("broken")

    table = rules((Pattern(Ops.CONST, name="c", arg=77), broken))
    with pytest.raises(ZeroDivisionError):
        graph_rewrite((i_() + 3) * 77, table, ctx=ctx)
    del ctx
    gc.collect()
    assert gone() is None


def test_threads_interleave() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    table = rules((Pattern(Ops.ADD, (X, C)), lambda x, c: x if c.arg == 0 else x + UOp.const(c.arg - 1, dtypes.index)))
    results: list[bool] = []

    def work(seed: int) -> None:
        for n in range(20):
            u = i_(10, seed) if n % 2 else i_()
            deep = u
            for _ in range(20):
                deep = (deep + 7) * 3
            plain = u
            for _ in range(20):
                plain = plain * 3
            results.append(graph_rewrite(deep, table) is plain)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == [True] * 80
