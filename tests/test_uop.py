"""The node: identity, life, inference, and that depth and threads do not matter."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import random
import sys
import threading

import pytest

from uopc._hot.uop import live_nodes
from uopc.ops import TABLE, ReduceArg, ViewArg
from uopc.uop import (
    AxisType,
    KernelInfo,
    Ops,
    ParamArg,
    RangeArg,
    UOp,
    dtypes,
    format_graph,
    range_,
    ranges_in,
    sink,
    toposort,
)

F, I32, IDX = dtypes.float32, dtypes.int32, dtypes.index
A = UOp(Ops.BUFFER, (), ParamArg(0, F, (8, 12)))
i, j = range_(8, 0), range_(12, 1)


def load(dtype: dtypes = I32, slot: int = 1) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(slot, dtype, (64,))).index(0).load()


# ---- wrong parts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UOp(51, (i, j)), "51 is not one of Ops"),
        (lambda: i.alu(-1, j), "-1 is not one of Ops"),
        (lambda: i.alu(10**6, j), "1000000 is not one of Ops"),
        (lambda: UOp(Ops.ADD, 5), r"sources of Ops.ADD are UOps in a tuple or list, not 5"),
        (lambda: UOp(Ops.BUFFER, (), 3), r"Ops.BUFFER is told by ParamArg, not by 3"),
        (lambda: UOp(Ops.REDUCE, (A,), Ops.ADD), r"Ops.REDUCE is told by ReduceArg, not by Ops.ADD"),
        (lambda: UOp(Ops.VIEW, (A,), (1, 2)), r"Ops.VIEW is told by ViewArg, not by \(1, 2\)"),
        (lambda: UOp(Ops.CAT, (A, A), None), r"Ops.CAT is told by int, not by None"),
        (lambda: UOp(Ops.IOTA, (), "a", I32), r"Ops.IOTA is told by int, not by 'a'"),
        (lambda: UOp(Ops.BUFFER, (), ParamArg(0, F, (4,))).index(0.5), r"an index is an int or a UOp, not 0\.5"),
        (lambda: range_(2.5, 0), r"the end of a range is an int or a UOp, not 2\.5"),
    ],
)
def test_wrong_parts_are_refused(call, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


# ---- sizes ------------------------------------------------------------------------------------


def test_shapes_stay_within_64_bits_of_bytes() -> None:
    one, most = UOp(Ops.RESHAPE, (UOp.const(1.0, F),), (1, 1)), 1 << 60
    assert UOp(Ops.EXPAND, (one,), (most, 1)).shape == (most, 1)
    for op, src, arg in (
        (Ops.EXPAND, one, (most, 2)),
        (Ops.EXPAND, one, (1 << 100, 1)),
        (Ops.PAD, one, ((0, most), (0, 0))),
        (Ops.RESHAPE, UOp(Ops.SHRINK, (one,), ((0, 0), (0, 1))), (0, most + 1)),
    ):
        with pytest.raises(ValueError, match=r"more than 2\*\*60 elements"):
            UOp(op, (src,), arg)
    with pytest.raises(ValueError, match=r"shape \(1152921504606846977,\) has more"):
        UOp(Ops.IOTA, (), most + 1, I32)


# ---- identity ---------------------------------------------------------------------------------


def test_same_parts_same_object() -> None:
    assert i + j is UOp(Ops.ADD, (i, j)) is i + j
    assert i + j is not j + i
    assert UOp.const(3) is UOp.const(3, IDX) is not UOp.const(3, I32)
    assert range_(8, 0) is i is not range_(8, 0, AxisType.REDUCE) is not range_(8, 2)
    assert UOp(Ops.RESHAPE, (A,), (96,)) is UOp(Ops.RESHAPE, [A], (96,)) is not UOp(Ops.RESHAPE, (A,), (96, 1))


def test_constants_are_told_apart_by_type_and_bits() -> None:
    zero, minus = UOp.const(0.0, F), UOp.const(-0.0, F)
    assert zero is not minus and math.copysign(1, minus.arg) == -1
    assert UOp.const(math.nan, F) is UOp.const(math.nan, F)
    assert UOp.const(True, dtypes.bool_).arg is True
    lanes = [UOp(Ops.CONST, (), (0.0, 1.0), F.vec(2)), UOp(Ops.CONST, (), (-0.0, 1.0), F.vec(2))]
    assert lanes[0] is not lanes[1]
    assert UOp(Ops.CONST, (), (math.nan, 1.0), F.vec(2)) is UOp(Ops.CONST, (), (float("nan"), 1.0), F.vec(2))
    assert [UOp.const(v, dtypes.uint64).arg for v in (2**63, 2**64 - 1, -1)] == [2**63, 2**64 - 1, 2**64 - 1]
    assert UOp.const(10**30).arg == 10**30
    assert UOp.const(0.1, F).arg != 0.1 and UOp.const(0.1, dtypes.float64).arg == 0.1
    assert UOp.const(300, dtypes.int8).arg == 44


def test_copies_are_the_same_node() -> None:
    u = (i + j) * 3
    assert copy.copy(u) is u and copy.deepcopy(u) is u
    assert hash(u) == hash((i + j) * 3)


def test_immutable() -> None:
    for name in ("op", "src", "arg", "dtype", "shape", "ranges", "vmin"):
        with pytest.raises(AttributeError):
            setattr(i, name, None)
    with pytest.raises(TypeError):
        type("Sub", (UOp,), {})


# ---- life -------------------------------------------------------------------------------------


def test_nodes_die_when_unused() -> None:
    before = live_nodes()
    u = load(dtypes.int8, 77) + load(dtypes.int8, 78)
    assert live_nodes() > before
    del u
    assert live_nodes() == before


def test_the_table_survives_growth_and_decay() -> None:
    before = live_nodes()
    rng = random.Random(0)
    kept: list[UOp] = []
    for step in range(60_000):
        kept.append(UOp.const(rng.randrange(1000, 10**9), dtypes.int64))
        if step % 3 == 0:
            kept[rng.randrange(len(kept))] = kept[-1]
        if step % 20_000 == 19_999:
            del kept[:15_000]
    assert all(UOp.const(u.arg, dtypes.int64) is u for u in kept)
    assert live_nodes() - before == len(set(kept))
    del kept
    assert live_nodes() == before


@pytest.mark.parametrize("users", [1, 5, 6, 7, 8, 300])
def test_users_of_one_source_are_found_and_die_in_any_order(users: int) -> None:
    x = load(dtypes.int64, 97)
    constants = [UOp.const(1000 + n, dtypes.int64) for n in range(users)]
    before = live_nodes()
    for seed in range(4):
        made = [x * c for c in constants]
        assert all(x * c is u for c, u in zip(constants, made)) and live_nodes() == before + users
        random.Random(seed).shuffle(made)
        while made:
            made.pop()
            assert live_nodes() == before + len(made)
            assert all(u.src[0] * u.src[1] is u for u in made[-9:])


def test_a_million_deep_chain_is_made_walked_and_freed() -> None:
    gc.collect()  # what tests before this one left in tracebacks
    before = live_nodes()
    u = load(F, 99)
    for _ in range(1_000_000):
        u = u + 1.0
    assert len(toposort(u)) == 1_000_005
    v = u.substitute({load(F, 99): load(F, 98)})
    assert v is not u and len(v.toposort()) == 1_000_005
    del u, v
    gc.collect()
    assert live_nodes() == before


def test_refused_nodes_leave_nothing_behind() -> None:
    before = live_nodes()
    for _ in range(100):
        with pytest.raises(ValueError, match="cannot reshape"):
            UOp(Ops.RESHAPE, (A,), (95,))
    assert live_nodes() == before


def test_reference_counts() -> None:
    arg = (96,)
    src = (A,)
    counts = [sys.getrefcount(x) for x in (arg, src, A)]
    for _ in range(1000):
        UOp(Ops.RESHAPE, src, arg)
        with pytest.raises(TypeError):
            UOp(Ops.ADD, src)
    assert [sys.getrefcount(x) for x in (arg, src, A)] == counts


def test_threads_make_the_same_nodes() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    made: list[list[UOp]] = []

    def work() -> None:
        mine = []
        for n in range(400):
            x = UOp(Ops.BUFFER, (), ParamArg(n, F, (4, n + 1)))  # the shape is derived by Python code
            mine.append(UOp(Ops.PERMUTE, (UOp(Ops.PAD, (x,), ((0, 1), (n, 0))),), (1, 0)) + 1.0)
        made.append(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(a is b for other in made[1:] for a, b in zip(made[0], other))


class Meddling:
    """An argument whose comparison makes and drops nodes, so that what finds them changes under the one who looks."""

    def __hash__(self) -> int:
        return 5

    def __eq__(self, other: object) -> bool:
        list(map(UOp.const, range(10_000, 30_000)))
        [load(F, 96) * float(n) for n in range(10)]
        return False


def test_comparisons_may_change_the_table() -> None:
    for src in ((), (load(F, 96),)):
        nodes = [UOp(Ops.SINK, src, Meddling()) for _ in range(8)]
        assert len(set(nodes)) == 8


# ---- pickling ---------------------------------------------------------------------------------


def test_pickling() -> None:
    u = sink(A.index(i, j).store(A.index(i, j).load() * 2.0, gate=i < 3).end(i, j)).replace(arg=KernelInfo("e_8_12"))
    lanes = UOp(Ops.CONST, (), (1.0, 2.0), F.vec(2))
    r = UOp(Ops.REDUCE, (A,), ReduceArg(Ops.MAX, (1,)))
    for node in (u, lanes, r, i.cast(dtypes.bfloat16), UOp.const(-0.0, F)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(node, protocol)) is node


def test_pickling_deep_graphs() -> None:
    u = load(F)
    for _ in range(50_000):
        u = u * 2.0 + 1.0
    assert pickle.loads(pickle.dumps(u)) is u


# ---- dtypes and shapes ------------------------------------------------------------------------


def test_dtypes_follow() -> None:
    assert (i < j).dtype is dtypes.bool_
    assert (load(F) < 1.0).where(load(F), 0.0).dtype is F
    assert (i + UOp(Ops.CONST, (), (0, 1), IDX.vec(2))).dtype is IDX.vec(2)
    lanes = i + UOp(Ops.CONST, (), (0, 1), IDX.vec(2))
    assert (lanes < 3).dtype is dtypes.bool_.vec(2)
    assert A.index(lanes).load().dtype is F.vec(2)
    assert lanes.cast(F).dtype is F.vec(2)
    for bad in (
        lambda: load(F) + i,
        lambda: load(F) // 2.0,
        lambda: i.alu(Ops.SIN),
        lambda: i.where(i, j),
        lambda: i + 1.5,
    ):
        with pytest.raises(TypeError):
            bad()
    with pytest.raises(TypeError, match="takes 2 to 2 sources"):
        UOp(Ops.ADD, (i,))
    with pytest.raises(TypeError, match="RangeArg"):
        UOp(Ops.RANGE, (UOp.const(3),), RangeArg("a", AxisType.LOOP))
    with pytest.raises(TypeError, match="sizes differ"):
        load(F).bitcast(dtypes.int64)


@pytest.mark.parametrize(
    ("op", "arg", "shape"),
    [
        (Ops.RESHAPE, (12, 8), (12, 8)),
        (Ops.PERMUTE, (1, 0), (12, 8)),
        (Ops.SHRINK, ((1, 3), (0, 12)), (2, 12)),
        (Ops.PAD, ((1, 3), (0, 1)), (12, 13)),
        (Ops.FLIP, (0,), (8, 12)),
        (Ops.STRIDE, (3, 5), (3, 3)),
        (Ops.EXPAND, (8, 12), (8, 12)),
    ],
)
def test_movement_shapes(op: Ops, arg: tuple, shape: tuple) -> None:
    assert UOp(op, (A,), arg).shape == shape


@pytest.mark.parametrize(
    ("op", "arg"),
    [
        (Ops.RESHAPE, (5, 5)),
        (Ops.PERMUTE, (0, 0)),
        (Ops.PERMUTE, (0,)),
        (Ops.SHRINK, ((1, 9), (0, 12))),
        (Ops.PAD, ((-1, 3), (0, 1))),
        (Ops.FLIP, (2,)),
        (Ops.STRIDE, (1,)),
        (Ops.EXPAND, (9, 12)),
        (Ops.VIEW, ViewArg((2, 2), (1, 1), 0)),
        (Ops.REDUCE, ReduceArg(Ops.ADD, (2,))),
    ],
)
def test_movement_that_does_not_fit(op: Ops, arg: tuple) -> None:
    with pytest.raises(ValueError, match="8, 12"):
        UOp(op, (A,), arg)


def test_shapes_of_operations() -> None:
    assert (A + A).shape == (A * 2.0).shape == (2.0 * A).shape == (8, 12)
    with pytest.raises(ValueError, match="must agree"):
        A + UOp(Ops.PERMUTE, (A,), (1, 0))
    with pytest.raises(TypeError, match="no shape"):
        _ = sink().shape


# ---- ranges and bounds ------------------------------------------------------------------------


def test_ranges_open_and_close() -> None:
    value = A.index(i, j).load()
    assert value.ranges == (i, j) and i.ranges == (i,)
    total = UOp(Ops.REDUCE, (value, j), ReduceArg(Ops.ADD, ()))
    assert total.ranges == (i,)
    done = A.index(i, 0).store(total).end(i)
    assert done.ranges == ()
    assert A.after(done).ranges == () and A.after(i).ranges == (i,)
    assert range_(i + 1, 5).ranges == (i, range_(i + 1, 5))
    assert ranges_in(done) == [i, j]
    many = [range_(4, id) for id in range(100)]
    assert sink(*(A.index(r).store(1.0) for r in many)).ranges == tuple(many)


def test_bounds() -> None:
    cases = {
        i * 12 + j: (0, 95),
        i - j: (-11, 7),
        (i - j) // 3: (-4, 2),
        (i - 4) % 3: (0, 2),
        i % 100: (0, 7),
        (i - 4) * (j - 6): (-20, 24),
        i.maximum(3): (3, 7),
        i.minimum(3): (0, 3),
        (i < 8): (1, 1),
        (i < 3).where(i, j): (0, 11),
        (i - 4).alu(Ops.ABS): (0, 4),
        (i >> 1): (0, 3),
        range_(i + 1, 5): (0, 7),
        i.cast(dtypes.int8).cast(IDX): (0, 7),
        (i * 100).cast(dtypes.int8): (-128, 127),
        100 // (i + 1): (12, 100),
    }
    for u, (low, high) in cases.items():
        assert (u.vmin, u.vmax) == (low, high), u
    unknown = (-(2**63), 2**63 - 1)
    wide = load(dtypes.int64)
    assert (wide.vmin, wide.vmax) == unknown
    above = wide.maximum(0)
    assert (above + 1).vmin == unknown[0]  # may wrap
    big = load(dtypes.uint64)
    assert (big + 1).vmin == 0 and big.cast(dtypes.int64).vmin == unknown[0]
    assert load(F).vmin == -math.inf


# ---- the rest ---------------------------------------------------------------------------------


def test_toposort_is_in_order_and_stable() -> None:
    u = sink((i + j) * (i * j), (i + j) + 1)
    order = u.toposort()
    assert len(order) == len(set(order)) and order[-1] is u
    place = {n: k for k, n in enumerate(order)}
    assert all(place[s] < place[n] for n in order for s in n.src)
    assert order == toposort([u]) == u.toposort()
    assert toposort([i, i + 1]) == toposort(i + 1)
    with pytest.raises(TypeError):
        toposort([1])


def test_substitute_and_wrap() -> None:
    u = (i + j) * i
    assert u.substitute({i: j}) is (j + j) * j
    assert u.substitute({i + j: i, i: j}) is i * j
    assert UOp.wrap([u, i + j], [i + j], lambda v: v + 1) == [(i + j + 1) * i, i + j + 1]
    assert u.replace(src=(i, j)) is i * j
    assert UOp(Ops.RESHAPE, (A,), (96,)).replace(arg=(12, 8)).shape == (12, 8)


def test_format_graph() -> None:
    text = format_graph(sink(A.index(i).store(1.5).end(i)))
    assert "RANGE r0 LOOP 8" in text and "STORE" in text and "1.5" in text


def test_every_op_can_be_named() -> None:
    assert set(TABLE) == set(Ops) and len(Ops) <= 128


def test_substitute_looks_below_no_node_that_it_replaces() -> None:
    x = load(F, 97)
    inner = x + 1.0
    outer = inner * 2.0

    def fail(u: UOp) -> UOp:
        raise AssertionError(u)

    assert outer.substitute({inner: x, x: fail}) == x * 2.0
    with pytest.raises(AssertionError):
        (outer + x).substitute({inner: x, x: fail})
