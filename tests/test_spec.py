"""Each invariant of uopc/spec has graphs that keep it and one that breaks it; the message says which and where."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fixed import MACHINE

from uopc import Tensor, pipeline
from uopc.linearize import linearize
from uopc.ops import CascadeArg, Component, ComponentArg, Level, Stage, StateArg, Tile
from uopc.rangeify import Opts
from uopc.spec import INVARIANTS, SpecError, verify
from uopc.uop import AxisType, KernelInfo, Ops, ParamArg, ReduceArg, UOp, dtypes, range_, sink, toposort

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


def array(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


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


STACK = 1 << 16
ADD = ReduceArg(Ops.ADD, (1,))
ROWS, COLUMNS, KEYS = 32, 64, 128


def kernel(value: UOp, **block: int) -> UOp:
    """A kernel that writes ``value`` in blocks of so many elements of axis a0, a1 ..."""
    opts = Opts(block={int(a[1:]): n for a, n in block.items()})
    out = UOp(Ops.BUFFER, (), ParamArg(9, value.dtype, value.shape))
    return sink(UOp(Ops.STORE, (out, value))).replace(arg=KernelInfo("r", opts))


def staged(extents: tuple, value: UOp | None = None, **tile: object) -> UOp:
    """A value in a tile, read by a sum of its rows."""
    value = tensor((ROWS, COLUMNS)) if value is None else value
    return UOp(Ops.STAGE, (value,), Tile(extents, **tile))


def row_sums(extents: tuple, **tile: object) -> UOp:
    """The sums of rows in a tile, 8 rows a block."""
    return kernel(UOp(Ops.REDUCE, (staged(extents, **tile),), ADD), a0=8)


def accumulated(value: UOp | None = None) -> UOp:
    """The sums of rows, added up element by element in a tile."""
    value = UOp(Ops.REDUCE, (tensor((ROWS, COLUMNS)),), ADD) if value is None else value
    return kernel(staged((8,), value, accumulate=True), a0=8)


def state(component: int = 0, cascade: int = 0, shape: tuple = (ROWS,), dtype: dtypes = F) -> UOp:
    return UOp(Ops.STATE, (), StateArg(cascade, component, True, dtype, shape))


def online(
    block: int = 48,
    tiles: tuple = (Tile((8,)), Tile((8,))),
    body: UOp | None = None,
    correction: UOp | None = None,
    more: tuple[UOp, ...] = (),
    tests: int = 0,
    extents: tuple = (8, -1),
    axis: int = 1,
    running: UOp | None = None,
) -> UOp:
    """The maximum of each row, and the sum of what remains of it, corrected: a CASCADE in blocks of 8 rows and 48 keys,
    its scores in a tile; the parameters say what to get wrong."""
    scores: UOp = UOp(Ops.BUFFER, (), ParamArg(0, F, (ROWS, KEYS)))
    scores = UOp(Ops.STAGE, (scores,), Tile(extents)) if extents else scores
    top = UOp(Ops.RESHAPE, (state() if running is None else running,), (ROWS, 1))
    body = scores * UOp(Ops.EXPAND, (top,), (ROWS, KEYS)) if body is None else body
    correction = state() * 2.0 if correction is None else correction
    components = tuple(
        Component(op, axis, corrected, tile)
        for op, corrected, tile in ((Ops.MAX, False, tiles[0]), (Ops.ADD, True, tiles[1]))
    )
    arg = CascadeArg(0, components, block, (), tests)
    return UOp(Ops.CASCADE, (scores, body, correction, *more), arg)


def final(node: UOp, component: int = 1, dtype: dtypes = F, shape: tuple = (ROWS,)) -> UOp:
    return UOp(Ops.COMPONENT, (node,), ComponentArg(component, dtype, shape))


def rows_of(node: UOp) -> UOp:
    return kernel(final(node), a0=8)


PLAIN = online(0, (None, None), extents=())
LIVE = UOp(Ops.BUFFER, (), ParamArg(3, dtypes.int32, (ROWS, KEYS)))

LEGAL = [
    ("rows in tiles", row_sums((8, COLUMNS)), Stage.TILED),
    ("columns first", row_sums((8, COLUMNS), layout=(1, 0)), Stage.TILED),
    ("accumulated", accumulated(), Stage.TILED),
    ("not in blocks", kernel(UOp(Ops.REDUCE, (tensor((ROWS, COLUMNS)),), ADD)), Stage.TILED),
    ("a cascade", sink(final(PLAIN)), Stage.TENSOR),
    ("a cascade in blocks", rows_of(online()), Stage.TILED),
    ("a cascade with tests", rows_of(online(tests=16, more=(LIVE, LIVE))), Stage.TILED),
    ("a level", sink(UOp(Ops.STAGE, (tensor(),), Level.KERNEL)), Stage.TENSOR),
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
    for stage in (Stage.TENSOR, Stage.TILED, Stage.LOOP, Stage.REGISTER, Stage.LINEAR):
        if stage & stages:
            verify(graph, stage, STACK)


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


def divided(node: UOp) -> CascadeArg:
    """The argument of a CASCADE with a quotient for its last reduction."""
    *rest, last = node.arg.components
    return node.arg._replace(components=(*rest, last._replace(op=Ops.DIV)))


def stored(target: UOp, value: UOp) -> UOp:
    return sink(UOp(Ops.STORE, (target, value))).replace(arg=KernelInfo("e", Opts()))


HALF = tensor().replace(arg=tensor().arg._replace(dtype=dtypes.float16))
HALVES_ADDED = UOp(Ops.REDUCE, (UOp(Ops.STACK, (HALF, HALF)),), ReduceArg(Ops.ADD, (0,)))
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
    (1, "a loop's op", kernel(LOAD), Stage.TILED, "is not legal here"),
    (24, "level", kernel(UOp(Ops.STAGE, (tensor(),), Level.KERNEL)), Stage.TILED, "nothing but tiles"),
    (24, "tile", sink(staged((8, COLUMNS))), Stage.TENSOR, "no tiles yet"),
    (24, "cascade", sink(final(online(extents=()))), Stage.TENSOR, "no blocks or tiles yet"),
    (25, "rank", row_sums((8,)), Stage.TILED, "extents (8,) of a value of shape (32, 64)"),
    (25, "layout", row_sums((8, COLUMNS), layout=(0, 0)), Stage.TILED, "layout (0, 0)"),
    (25, "layout's rank", row_sums((8, COLUMNS), layout=(1,)), Stage.TILED, "layout (1,)"),
    (25, "of a component", rows_of(online(tiles=(Tile((8, 1)), Tile((8,))))), Stage.TILED, "extents (8, 1)"),
    (26, "none", row_sums((8, 0)), Stage.TILED, "extents (8, 0)"),
    (26, "no cascade", row_sums((8, -7)), Stage.TILED, "in no block of a cascade"),
    (26, "twice", rows_of(online(extents=(-1, -1))), Stage.TILED, "extents (-1, -1)"),
    (26, "of a component", rows_of(online(tiles=(Tile((8,)), Tile((-7,))))), Stage.TILED, "extents (-7,)"),
    (27, "memory", accumulated(tensor((ROWS,))), Stage.TILED, "it accumulates"),
    (3, "a component", sink(final(PLAIN.replace(arg=divided(PLAIN)))), Stage.TENSOR, "Ops.DIV"),
    (28, "one source", sink(final(PLAIN.replace(src=PLAIN.src[:1]))), Stage.TENSOR, "1 sources for 2 components, 1 of"),
    (28, "no tests", rows_of(online(tests=16)), Stage.TILED, "with tests: 5 are wanted"),
    (28, "axis", rows_of(online(axis=2)), Stage.TILED, "runs along axis 2"),
    (28, "steps", rows_of(online(body=tensor((ROWS, KEYS // 2)))), Stage.TILED, "64 times 1 steps"),
    (28, "correction's shape", rows_of(online(correction=tensor((ROWS, KEYS)))), Stage.TILED, "the correction of"),
    (28, "test's type", rows_of(online(tests=16, more=(LIVE, tensor((ROWS, KEYS))))), Stage.TILED, "the test of"),
    (28, "ids", sink(final(PLAIN), final(PLAIN.replace(src=(LIVE.cast(F), *PLAIN.src[1:])))), Stage.TENSOR, "number 0"),
    (29, "under none", sink(state()), Stage.TENSOR, "no CASCADE with the number 0"),
    (29, "under another", rows_of(online(running=state(cascade=1))), Stage.TILED, "no CASCADE with the number 1"),
    (29, "number", rows_of(online(running=state(2))), Stage.TILED, "component 2 of 2"),
    (
        29,
        "shape",
        rows_of(online(correction=UOp(Ops.RESHAPE, (state(shape=(4, 8)),), (ROWS,)))),
        Stage.TILED,
        "is (32,) of",
    ),
    (29, "dtype", rows_of(online(running=state(dtype=dtypes.int32).cast(F))), Stage.TILED, "is (32,) of"),
    (29, "its own", rows_of(online(running=state(1))), Stage.TILED, "component 1 of"),
    (29, "final of none", sink(final(tensor())), Stage.TENSOR, "its source is"),
    (29, "final number", rows_of(online()).substitute({final(online()): final(online(), 2)}), Stage.TILED, "2 of 2"),
    (30, "no name", sink(UOp(Ops.STORE, (tensor(), tensor()))), Stage.TILED, "no SINK with a name"),
    (30, "no store", sink(tensor()).replace(arg=KernelInfo("e")), Stage.TILED, "it is no STORE"),
    (30, "shape", stored(tensor(), tensor((2, 2))), Stage.TILED, "is stored to"),
    (30, "dtype", stored(tensor(), tensor().cast(dtypes.int32)), Stage.TILED, "is stored to"),
    (30, "to a value", stored(tensor() * 2.0, tensor()), Stage.TILED, "is stored to"),
    (31, "rows", row_sums((7, COLUMNS)), Stage.TILED, "a block reads (8, 64), and the tile holds (7, 64)"),
    (31, "columns", row_sums((8, COLUMNS - 1)), Stage.TILED, "a block reads (8, 64)"),
    (31, "moved", kernel(UOp(Ops.FLIP, (staged((8, COLUMNS)),), (1,)), a0=9), Stage.TILED, "a block reads (9, 64)"),
    (31, "a block of keys", rows_of(online(extents=(8, 47))), Stage.TILED, "(8, 48), and the tile holds (8, 47)"),
    (31, "half a block", rows_of(online(extents=(8, -2))), Stage.TILED, "(8, 48), and the tile holds (8, 24)"),
    (31, "a running value", rows_of(online(tiles=(Tile((7,)), Tile((8,))))), Stage.TILED, "reads (8,), and the tile"),
    (31, "a final value", rows_of(online(tiles=(Tile((8,)), Tile((7,))))), Stage.TILED, "reads (8,), and the tile"),
    (32, "tiles", row_sums((512, COLUMNS)), Stage.TILED, "131072 bytes of 65536"),
    (33, "a product", stored(HALF, HALF * 3.0), Stage.TILED, "MUL gives dtypes.float16 by itself"),
    (
        33,
        "a sum",
        stored(HALF, HALVES_ADDED),
        Stage.TILED,
        "REDUCE gives",
    ),
]


@pytest.mark.parametrize(("number", "name", "graph", "stage", "says"), BROKEN, ids=[f"{b[0]} {b[1]}" for b in BROKEN])
def test_broken(number: int, name: str, graph: UOp, stage: Stage, says: str) -> None:
    with pytest.raises(SpecError) as info:
        verify(graph, stage, STACK)
    message = str(info.value)
    assert info.value.number == number, message
    assert says in message
    assert f"invariant {number}: {INVARIANTS[number]}" in message
    assert stage.name is not None and stage.name in message and repr(info.value.node) in message


def test_every_invariant_has_a_test_that_breaks_it() -> None:
    assert {b[0] for b in BROKEN} == set(INVARIANTS)


REAL = {
    "attention": lambda: (array(64, 32) @ array(192, 32).T).softmax(-1) @ array(192, 16),
    "product": lambda: array(512, 600) @ array(600, 512),
    "convolution": lambda: array(2, 32, 40, 48).conv2d(array(32, 32, 3, 3), padding=1),
    "row": lambda: array(256, 2000).softmax(-1),
}


# Extents of which the windows say nothing: those of axes that the convolution's reshapes cut and join.
UNKNOWN = {"convolution": 2}


@pytest.mark.parametrize("name", REAL)
def test_real_tiles_are_no_smaller_than_they_must_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each extent of each tile of a real kernel, one less, is found: the windows are those that are read."""
    monkeypatch.setattr(pipeline, "host", lambda: MACHINE)
    monkeypatch.setattr(pipeline, "_kernels", {})
    seen: list[UOp] = []
    with pipeline.watch(lambda stage, graph: seen.append(graph) if stage == "blockize" else None):
        pipeline.make_plan([REAL[name]().uop])
    graph = next(g for g in seen if any(u.op in (Ops.STAGE, Ops.CASCADE) for u in toposort(g)))
    verify(graph, Stage.TILED)
    missed = 0
    for u in toposort(graph):
        for a, n in enumerate(u.arg.extents if u.op is Ops.STAGE else ()):
            if n > 1:
                less = u.arg._replace(extents=(*u.arg.extents[:a], n - 1, *u.arg.extents[a + 1 :]))
                try:
                    verify(graph.substitute({u: u.replace(arg=less)}), Stage.TILED)
                    missed += 1
                except SpecError as error:
                    assert error.number == 31
    assert missed == UNKNOWN.get(name, 0)


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
