"""Each invariant of spec.py has graphs that keep it and one that breaks it; the message says which and where."""

from __future__ import annotations

import time

import pytest

from uopc.linearize import linearize
from uopc.ops import Stage
from uopc.spec import INVARIANTS, SpecError, verify
from uopc.uop import AxisType, KernelInfo, Ops, ParamArg, ReduceArg, UOp, dtypes, range_, sink

F = dtypes.float32


def buffer(slot: int, dtype: dtypes = F, size: int = 64) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(slot, dtype, (size,)))


def alloc(slot: int = 0, dtype: dtypes = F) -> UOp:
    return UOp(Ops.ALLOC, (), ParamArg(slot, dtype, ()))


OUT, A = buffer(0), buffer(1)
i, j, k = range_(8, 0), range_(8, 1), range_(8, 2)
ONE = UOp.const(1.0, F)


def dot(
    start: UOp | None = None, update_after: tuple[UOp, ...] = (j,), value: UOp | None = None, close: tuple = (j,)
) -> UOp:
    """out[i] = sum over j of A[i*8 + j], with an accumulator; the parameters say what to get wrong."""
    cell = alloc()
    if start is None:
        start = cell.after(i).index(0).store(0.0)
    place = cell.after(start, *update_after).index(0)
    value = A.index(i * 8 + j).load() if value is None else value
    done = place.store(place.load() + value).end(*close)
    return sink(OUT.index(i).store(cell.after(done).index(0).load()).end(i))


def reduce_(op: Ops = Ops.ADD, axes: tuple = (), ranges: tuple = (j,)) -> UOp:
    return UOp(Ops.REDUCE, (A.index(i * 8 + j).load(), *ranges), ReduceArg(op, axes))


def tensor(shape: tuple = (4, 4)) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(0, F, shape))


def linear(*nodes: UOp) -> UOp:
    return UOp(Ops.LINEAR, nodes)


ADDRESS, LOAD = OUT.index(i), A.index(i).load()
STORE = ADDRESS.store(LOAD)
END = STORE.end(i)
LIST = (OUT, A, i, ADDRESS, A.index(i), LOAD, STORE, END)
LANES = UOp(Ops.INDEX, (A, i), None, F.vec(4))


def of_type(memory: UOp, dtype: dtypes) -> UOp:
    """A loop that reads a memory as another type than its own."""
    return sink(OUT.index(i).store(UOp(Ops.INDEX, (memory, i), None, dtype).load().cast(F)).end(i))


LEGAL = [
    ("elementwise", sink(STORE.end(i)), Stage.LOOP | Stage.REGISTER),
    ("accumulator", dot(), Stage.LOOP | Stage.REGISTER),
    ("reduce", sink(OUT.index(i).store(reduce_()).end(i)), Stage.LOOP),
    ("two reduces of one loop", sink(OUT.index(i).store(reduce_() + reduce_(Ops.MAX)).end(i)), Stage.LOOP),
    ("loops side by side", sink(STORE.end(i), buffer(2).index(j).store(1.0).end(j)), Stage.LOOP | Stage.REGISTER),
    ("triangle", sink(OUT.index(range_(i + 1, 5)).store(1.0).end(i, range_(i + 1, 5))), Stage.LOOP | Stage.REGISTER),
    ("gate", sink(ADDRESS.store(A.index(i).load(gate=i < 3), gate=i < 4).end(i)), Stage.LOOP | Stage.REGISTER),
    ("vector", sink(UOp(Ops.INDEX, (OUT, i), None, F.vec(4)).store(LANES.load()).end(i)), Stage.LOOP | Stage.REGISTER),
    ("vector of one", sink(UOp(Ops.INDEX, (OUT, i), None, F.vec(4)).store(1.0).end(i)), Stage.LOOP | Stage.REGISTER),
    ("words", of_type(buffer(1, dtypes.bfloat16), dtypes.uint32), Stage.LOOP | Stage.REGISTER),
    ("empty", sink(), Stage.TENSOR | Stage.LOOP | Stage.REGISTER),
    ("tensor", sink(UOp(Ops.RESHAPE, (tensor(),), (16,))), Stage.TENSOR),
    ("tensor reduce", UOp(Ops.REDUCE, (tensor(),), ReduceArg(Ops.ADD, (1,))), Stage.TENSOR),
    ("list", linear(*LIST), Stage.LINEAR),
    ("named", sink(END).replace(arg=KernelInfo("e_8")), Stage.LOOP),
]


@pytest.mark.parametrize(("name", "graph", "stages"), LEGAL, ids=[name for name, _, _ in LEGAL])
def test_legal(name: str, graph: UOp, stages: Stage) -> None:
    for stage in (Stage.TENSOR, Stage.LOOP, Stage.REGISTER, Stage.LINEAR):
        if stage & stages:
            verify(graph, stage)


GATED = UOp(Ops.STORE, (ADDRESS, LOAD, A.index(i).load() < 0.0))
LOAD_OF_CELL = alloc().after(i).index(0).load().replace(arg=4)


def looked_up(n: int, index: dtypes = dtypes.int32) -> UOp:
    return UOp(Ops.LOOKUP, (i.cast(index),), (0.0,) * n, F)


def wide_power() -> UOp:
    x = buffer(2, dtypes.float64).index(i).load()
    return buffer(3, dtypes.float64).index(i).store(x.alu(Ops.LDEXP, x))


def shuffled(order: tuple[int, ...]) -> UOp:
    x = LANES.load()
    return UOp(Ops.INDEX, (OUT, i), None, F.vec(4)).store(UOp(Ops.SHUFFLE, (x, x), order))


def unclosed() -> UOp:
    return sink(STORE)


def inside_use() -> UOp:
    """b is used inside its loop j, and the value of that loop outside it."""
    value = A.index(j).load()
    return sink(sink(OUT.index(j).store(value)).end(j), buffer(2).index(0).store(value))


def crossed() -> UOp:
    """The sum along i of sums along j, and the other way round, in the same two loops."""
    add = ReduceArg(Ops.ADD, ())
    one, two = (
        UOp(Ops.REDUCE, (UOp(Ops.REDUCE, (A.index(i * 8 + j).load(), *r), add), *s), add)
        for r, s in (((i,), (j,)), ((j,), (i,)))
    )
    return sink(OUT.index(0).store(one * two))


def second_thread() -> UOp:
    t = [range_(4, id, AxisType.THREAD) for id in (0, 1)]
    return sink(*(buffer(n).index(r).store(1.0).end(r) for n, r in enumerate(t)))


def inner_thread() -> UOp:
    t = range_(4, 9, AxisType.THREAD)
    return sink(OUT.index(i * 4 + t).store(1.0).end(i, t))


def start_inside() -> UOp:
    """The initialisation runs in each iteration of the loop that it should start: looks fine, is wrong."""
    return dot(start=alloc().after(i, j).index(0).store(0.0))


def start_too_far_out() -> UOp:
    """The initialisation runs once, and the sums of all rows pile up."""
    return dot(start=alloc().index(0).store(0.0))


def update_not_in_loop() -> UOp:
    cell = alloc()
    start = cell.after(i).index(0).store(0.0)
    place = cell.after(start).index(0)
    done = place.store(place.load() + A.index(i * 8 + j).load()).end(j)
    return sink(OUT.index(i).store(cell.after(done).index(0).load()).end(i))


def gate_lanes() -> UOp:
    return sink(ADDRESS.store(1.0, gate=(i + UOp(Ops.CONST, (), (0, 1), dtypes.index.vec(2))) < 3).end(i))


U = AxisType.UNROLL


def in_a_tile(at: int) -> UOp:
    """A program that fills a tile of eight elements, from one behind ``at`` on."""
    tile, j = UOp(Ops.ALLOC, (), ParamArg(7, dtypes.float32, (8,))), range_(8, 0)
    filled = tile.after(tile.index(j + at + 1).store(1.0).end(j))
    k = range_(4, 1)
    return sink(OUT.index(k).store(filled.after(k).index(k).load()).end(k))


BROKEN = [
    (1, "RANGE in a tensor graph", sink(i), Stage.TENSOR, "not legal here"),
    (1, "movement in a loop", sink(UOp(Ops.FLIP, (tensor(),), (0,))), Stage.LOOP, "not legal here"),
    (1, "movement in a list", linear(tensor(), UOp(Ops.FLIP, (tensor(),), (0,))), Stage.LINEAR, "not legal here"),
    (1, "argument", sink().replace(arg="name"), Stage.LOOP, "the argument of"),
    (2, "a float of an int", sink(UOp(Ops.CONST, (), 1.5, dtypes.int32)), Stage.TENSOR, "not a value"),
    (2, "too large", sink(UOp(Ops.CONST, (), 256, dtypes.uint8)), Stage.TENSOR, "not a value"),
    (2, "too precise", sink(UOp(Ops.CONST, (), 0.1, F)), Stage.TENSOR, "not a value"),
    (2, "lanes", sink(UOp(Ops.CONST, (), (1.0, 2.0), F.vec(4))), Stage.TENSOR, "2 values"),
    (3, "tensor", UOp(Ops.REDUCE, (tensor(),), ReduceArg(Ops.CMPLT, (1,))), Stage.TENSOR, "Ops.CMPLT"),
    (3, "loop", sink(OUT.index(i).store(reduce_(Ops.DIV)).end(i)), Stage.LOOP, "Ops.DIV"),
    (4, "load", sink(OUT.index(i).store(UOp(Ops.LOAD, (A.index(i), i))).end(i)), Stage.LOOP, "the gate is"),
    (4, "store", sink(UOp(Ops.STORE, (ADDRESS, ONE, ONE)).end(i)), Stage.LOOP, "the gate is"),
    (4, "lanes", gate_lanes(), Stage.LOOP, "for 1 lanes"),
    (
        5,
        "index of a value",
        sink(OUT.index(i).store(UOp(Ops.INDEX, (ONE, i)).load()).end(i)),
        Stage.LOOP,
        "an INDEX of",
    ),
    (5, "index by a float", sink(OUT.index(ONE).store(1.0)), Stage.LOOP, "at dtypes.float32"),
    (5, "half a word", of_type(A, dtypes.bfloat16), Stage.LOOP, "an INDEX of dtypes.bfloat16 in"),
    (5, "a word of a tile", of_type(alloc(0, dtypes.bfloat16), F), Stage.LOOP, "an INDEX of dtypes.float32 in"),
    (5, "load of a buffer", sink(OUT.index(i).store(UOp(Ops.LOAD, (A,))).end(i)), Stage.LOOP, "Ops.LOAD of"),
    (6, "type", sink(UOp(Ops.STORE, (ADDRESS, UOp.const(1, dtypes.int32))).end(i)), Stage.LOOP, "is stored to"),
    (6, "lanes", sink(UOp(Ops.STORE, (ADDRESS, LANES.load())).end(i)), Stage.LOOP, "is stored to"),
    (7, "end of a number", sink(UOp(Ops.END, (STORE, i, ONE))), Stage.LOOP, "are RANGEs"),
    (7, "end of a value", sink(UOp(Ops.END, (LOAD, i))), Stage.LOOP, "not a statement"),
    (7, "reduce of nothing", sink(OUT.index(i).store(reduce_(ranges=())).end(i, j)), Stage.LOOP, "as sources"),
    (
        8,
        "ids",
        sink(STORE.end(i), buffer(2).index(range_(9, 0)).store(1.0).end(range_(9, 0))),
        Stage.LOOP,
        "has its id",
    ),
    (9, "never", sink(unclosed()), Stage.LOOP, "nothing closes it"),
    (9, "twice", sink(STORE.end(i), buffer(2).index(i).store(1.0).end(i)), Stage.LOOP, "2 nodes close it"),
    (
        9,
        "reduces",
        sink(OUT.index(0).store(reduce_(ranges=(i, j)) + reduce_(ranges=(j, i)))),
        Stage.LOOP,
        "different RANGEs",
    ),
    (10, "outside", inside_use(), Stage.LOOP, "is open"),
    (11, "crossed", crossed(), Stage.LOOP, "not inside one another"),
    (12, "two", second_thread(), Stage.LOOP, "it is the second"),
    (12, "inner", inner_thread(), Stage.LOOP, "it stands inside"),
    (13, "initialised inside", start_inside(), Stage.REGISTER, "inside the loop"),
    (14, "initialised too far out", start_too_far_out(), Stage.REGISTER, "accumulates along"),
    (14, "update not in its loop", update_not_in_loop(), Stage.LOOP, "accumulates along"),
    (15, "read first", sink(OUT.index(i).store(alloc().index(0).load()).end(i)), Stage.LOOP, "is read but not"),
    (16, "lanes", sink(OUT.index(i).store(UOp(Ops.LOAD, (LANES,), None, F)).end(i)), Stage.LOOP, "from 4 lanes"),
    (17, "range", sink(OUT.index(range_(8, 4, U)).store(1.0).end(range_(8, 4, U))), Stage.REGISTER, "AxisType.UNROLL"),
    (17, "reduce", sink(OUT.index(i).store(reduce_()).end(i)), Stage.REGISTER, "a REDUCE"),
    (18, "buffers", sink(OUT.index(0).store(buffer(0, dtypes.int32).index(0).load().cast(F))), Stage.LOOP, "slot 0 is"),
    (
        18,
        "allocs",
        sink(alloc().index(0).store(1.0), alloc(0, dtypes.int32).index(0).store(1)),
        Stage.LOOP,
        "slot 0 is",
    ),
    (19, "no list", sink(END), Stage.LINEAR, "not a LINEAR list"),
    (19, "order", linear(*LIST[:4], LOAD, A.index(i), *LIST[6:]), Stage.LINEAR, "does not stand before"),
    (19, "not closed", linear(*LIST[:-1], OUT.index(0), OUT.index(0).store(1.0), END), Stage.LINEAR, "does not depend"),
    (19, "outside", linear(OUT, A, ADDRESS, i, *LIST[4:]), Stage.LINEAR, "does not stand before"),
    (19, "never closed", linear(*LIST, i), Stage.LINEAR, "is not closed"),
    (19, "closed twice", linear(*LIST, END), Stage.LINEAR, "closes none"),
    (20, "gate", sink(GATED.replace(arg=True).end(i)), Stage.LOOP, "1 gates"),
    (20, "places", sink(OUT.index(i).store(LOAD_OF_CELL).end(i)), Stage.LOOP, "0 gates"),
    (21, "fifteen", sink(OUT.index(i).store(looked_up(15)).end(i)), Stage.LOOP, "15 values"),
    (21, "index", sink(OUT.index(i).store(looked_up(16, dtypes.int64)).end(i)), Stage.LOOP, "int64"),
    (21, "float64", sink(wide_power().end(i)), Stage.LOOP, "float64"),
    (22, "lanes", sink(shuffled((0, 1, 2)).end(i)), Stage.LOOP, "(0, 1, 2) of twice 4 lanes"),
    (22, "beyond", sink(shuffled((0, 1, 2, 8)).end(i)), Stage.LOOP, "(0, 1, 2, 8) of twice 4 lanes"),
    (23, "beyond", linearize(in_a_tile(0)), Stage.LINEAR, "elements 1 to 8 of"),
    (23, "before", linearize(in_a_tile(-2)), Stage.LINEAR, "elements -1 to 6 of"),
]


@pytest.mark.parametrize(("number", "name", "graph", "stage", "says"), BROKEN, ids=[f"{b[0]} {b[1]}" for b in BROKEN])
def test_broken(number: int, name: str, graph: UOp, stage: Stage, says: str) -> None:
    with pytest.raises(SpecError) as info:
        verify(graph, stage)
    message = str(info.value)
    assert info.value.number == number, message
    assert says in message
    assert f"invariant {number}: {INVARIANTS[number]}" in message
    assert stage.name is not None and stage.name in message and repr(info.value.node) in message


def test_every_invariant_has_a_test_that_breaks_it() -> None:
    assert {b[0] for b in BROKEN} == set(INVARIANTS)


def test_message_shows_the_neighbourhood() -> None:
    with pytest.raises(SpecError) as info:
        verify(start_inside(), Stage.REGISTER)
    assert "LOAD" in str(info.value).splitlines()[-1]
    deep = A.index(i).load()
    for _ in range(100):
        deep = deep + 1.0
    with pytest.raises(SpecError) as info:
        verify(sink(ADDRESS.store(deep)), Stage.LOOP)
    assert len(str(info.value).splitlines()) < 25


def test_lists_of_roots() -> None:
    verify([dot(), sink(END)], Stage.LOOP)
    with pytest.raises(SpecError):
        verify([dot(), unclosed()], Stage.LOOP)


def test_time_is_linear() -> None:
    def seconds(n: int) -> float:
        value = A.index(i * 8 + j).load()
        for step in range(n):
            value = value * 2.0 + float(step % 7)
        graph = dot(value=value)
        start = time.perf_counter()
        verify(graph, Stage.REGISTER)
        return time.perf_counter() - start

    small, large = min(seconds(2_000) for _ in range(3)), min(seconds(20_000) for _ in range(2))
    assert large < 40 * small
