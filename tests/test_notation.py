"""What is printed of a graph is the graph: it is read back as the same node, at every stage."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
from fixed import MACHINE
from fuzz_graphs import graph_of, machine

from uopc import Tensor, pipeline
from uopc.dtype import ALL
from uopc.ops import CascadeArg, Component, ComponentArg, Level, Limit, Opts, Order, StateArg, Tile, ViewArg
from uopc.pipeline import make_plan
from uopc.uop import (
    AxisType,
    KernelInfo,
    Ops,
    ParamArg,
    ReduceArg,
    UOp,
    dtypes,
    format_graph,
    parse_graph,
    range_,
    sink,
)

F = dtypes.float32


def array(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


def tensor(*shape: int) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(0, F, shape))


def same(graph: UOp) -> None:
    text = format_graph(graph)
    assert parse_graph(text) is graph, text


def constant(value: object, dtype: dtypes) -> UOp:
    return UOp(Ops.CONST, (), value, dtype)


def nan(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


FLOATS = [0.0, -0.0, 0.1, 1e300, -1e-320, math.inf, -math.inf]
NANS = [math.nan, -math.nan, nan(0x7FF8000000000001), nan(0xFFF8000000000123)]
CONSTANTS = [
    *(constant(v, d) for v in (*FLOATS, *NANS) for d in (dtypes.float64, F)),
    *(constant(d.convert(v), d) for d in ALL for v in (0, 1, 2.5)),
    *(constant(v, d) for d in (dtypes.int8, dtypes.uint64, dtypes.index) for v in (d.min, d.max)),
    constant((0, 1, 2, 3), dtypes.index.vec(4)),
    constant((0.5, -0.0, math.nan, math.inf), F.vec(4)),
    constant((True, False), dtypes.bool_.vec(2)),
    constant(1.0, F.vec(16)),
    constant(True, dtypes.index),  # what the verifier refuses is printed too
]


@pytest.mark.parametrize("value", CONSTANTS, ids=lambda u: f"{u.arg!r} {u.dtype.name}")
def test_constants(value: UOp) -> None:
    """Alone, and as a source: of each type, minus zero and every NaN."""
    same(value)
    same(sink(value))
    if value.dtype.is_float:
        same(UOp(Ops.SQRT, (value,)))


x, i = tensor(6, 4), range_(8, 3)
FILL = Opts({0: 4, 1: 16}, unroll=2, thread=(1, 0), vector=1, lanes=16, order=(1, 0), block={0: 8})
BODY = UOp(Ops.STAGE, (x,), Tile((2, -1), FILL, layout=(1, 0)))
STATE = UOp(Ops.STATE, (), StateArg(2, 0, True, F, (6,), 1))
COMPONENTS = (
    Component(Ops.MAX, 1, False, Tile((2,), Opts())),
    Component(Ops.ADD, 1, True, Tile((2,), accumulate=True), 2, Order.LANES),
)
CASCADE = UOp(Ops.CASCADE, (BODY, BODY, STATE), CascadeArg(2, COMPONENTS, 4, (Limit(-1, 1, 3),), 8))
INDEX = UOp(Ops.BUFFER, (), ParamArg(1, F, (8,))).index(i)
VECTOR = UOp(Ops.INDEX, (INDEX.src[0], i), None, F.vec(4)).load()
NAMES = ("True", "nan", "mark 1", 'it\'s "x"', "r_6_4", "")
ARGUMENTS = {
    "sizes": sink(x).replace(arg=KernelInfo("r_6_4", FILL, True)),
    "names": sink(*(sink(constant(True, dtypes.bool_)).replace(arg=KernelInfo(name)) for name in NAMES)),
    "cascade": UOp(Ops.COMPONENT, (CASCADE,), ComponentArg(1, F, (6,))),
    "order": UOp(Ops.REDUCE, (x,), ReduceArg(Ops.ADD, (0, 1), Order.STEPS)),
    "no axes": UOp(Ops.REDUCE, (x,), ReduceArg(Ops.MAX, ())),
    "loop": sink(INDEX.store(1.0).end(i)),
    "reduce": sink(UOp(Ops.REDUCE, (INDEX.load(), i), ReduceArg(Ops.ADD, ()))),
    "negative id": range_(i + 1, -4, AxisType.VECTOR),
    "level": UOp(Ops.STAGE, (x,), Level.KERNEL),
    "view": UOp(Ops.VIEW, (tensor(40),), ViewArg((2, 3), (-5, 0), 20)),
    "moved": UOp(Ops.PAD, (UOp(Ops.SHRINK, (x,), ((1, 3), (0, 4))),), ((0, 1), (2, 0))),
    "flip": UOp(Ops.FLIP, (x,), (1,)),
    "no axis": UOp(Ops.RESHAPE, (tensor(1),), ()),
    "empty": UOp(Ops.RESHAPE, (tensor(0, 3),), (3, 0)),
    "cat": UOp(Ops.CAT, (x, x), 1),
    "iota": UOp(Ops.IOTA, (), 7, dtypes.int32),
    "gated": INDEX.store(INDEX.load(gate=i < 3), gate=i < 4),
    "streamed": UOp(Ops.STORE, (INDEX, constant(2.0, F)), True),
    "ahead": UOp(Ops.LOAD, (INDEX,), 64, F),
    "lanes": UOp(Ops.HREDUCE, (VECTOR,), Ops.ADD, F),
    "shuffled": UOp(Ops.SHUFFLE, (VECTOR, VECTOR), (0, 4, 1, 5)),
    "lookup": UOp(Ops.LOOKUP, (i.cast(dtypes.int32),), (0.0, math.inf, *[-0.0] * 14), F),
    "cast": x.cast(dtypes.float16).bitcast(dtypes.bfloat16),
    "cell": UOp(Ops.ALLOC, (), ParamArg(3, F.vec(8), ())).after(i).index(0),
    "list": UOp(Ops.LINEAR, (INDEX.src[0], i, INDEX), KernelInfo("e_8")),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str) -> None:
    same(ARGUMENTS[name])


def test_only_what_is_not_as_by_default_is_printed() -> None:
    def last(u: UOp) -> str:
        return format_graph(u).splitlines()[-1].strip()

    assert last(ARGUMENTS["level"]) == "%1 = STAGE Level.KERNEL %0 : float32 [6, 4]"
    assert last(UOp(Ops.STAGE, (x,), Tile((2, 4)))) == "%1 = STAGE extents=(2, 4) %0 : float32 [6, 4]"
    assert last(STATE) == "%0 = STATE cascade=2 component=0 new=True part=1 : float32 [6]"


KERNELS: dict[str, Callable[[], Tensor]] = {
    "attention": lambda: (array(40, 16) @ array(50, 16).T).softmax(-1) @ array(50, 8),
    "product": lambda: (array(64, 600) @ array(600, 96)).relu(),
    "convolution": lambda: array(1, 4, 12, 12).conv2d(array(4, 4, 3, 3), padding=1),
    "halves": lambda: array(40, 30).cast("bfloat16").exp().sum(-1),
    "integers": lambda: (array(40, 30).cast("int32") // 7).max(0) ** 2,
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_stage_of_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "host", lambda: MACHINE)
    monkeypatch.setattr(pipeline, "_kernels", {})
    seen = set()

    def see(stage: str, graph: UOp) -> None:
        seen.add(stage)
        same(graph)

    with pipeline.watch(see):
        make_plan([KERNELS[name]().uop])
    assert seen == {step.name for step in pipeline.STAGES}


@pytest.mark.parametrize("name", ["own", "small", "narrow"])
def test_random_graphs_at_every_stage(name: str) -> None:
    with machine(name), pipeline.watch(lambda stage, graph: same(graph)):
        for seed in range(12):
            make_plan(graph_of(seed))


BUFFER = "%0 = BUFFER slot=0 : float32 [2, 3]\n"
GOOD = format_graph(sink(INDEX.store(1.0).end(i)))
REFUSED = [
    ("", "no line"),
    ("%0 = NEG 1.0 : float32", "line 1: there is no Ops.NEG: %0 = NEG"),
    ("hello there all", "line 1: a line begins with a number and an op, as in '%3 = ADD': hello there all"),
    ("%0 =", "line 1: a line begins with a number and an op"),
    ("\n%0 = SQRT %1 : float32", "line 2: no line above is %1: %0 = SQRT %1"),
    ("%0 = SQRT one : float32", "line 1: one is no number, type or argument: %0"),
    ("%0 = SQRT (1, 2) : float32", r"line 1: (1, 2) has no type: %0"),
    ("%0 = SQRT 1.0 : float99", "line 1: there is no dtype float99"),
    ("%0 = SQRT 1.0 : float64", "line 1: the node is float32: %0 = SQRT 1.0 : float64"),
    (BUFFER + "%1 = FLIP (0,) %0 : float32 [3, 2]", "line 2: the node is float32 [2, 3]: %1 = FLIP"),
    (BUFFER + "%0 = FLIP (0,) %0 : float32 [2, 3]", "line 2: %0 stands above too: %0 = FLIP"),
    (BUFFER + "%1 = RESHAPE (5,) %0 : float32 [5]", "line 2: cannot reshape (2, 3) (6 elements) to (5,) (5 elements)"),
    ("%0 = BUFFER size=0 : float32 [2]", "unexpected keyword argument 'size': %0 = BUFFER size=0"),
    ("%0 = IOTA : int32", "line 1: IOTA has an argument: %0 = IOTA"),
    ("%0 = RANGE r0 SPIRAL 8 : index", "line 1: there is no AxisType.SPIRAL"),
    ("%0 = RANGE r0 : index", "line 1: RANGE has an argument: %0 = RANGE r0"),
    ("%0 = IOTA (1, 2 : int32", "line 1: a bracket does not end"),
    ("%0 = SINK 'r_1", "line 1: a quote does not end"),
    ("%0 = IOTA __import__('os') : int32", "line 1: __import__('os') is no number, type or argument"),
    (GOOD.replace("STORE %2 1.0", "STORE %2"), "takes 2 to 3 sources, not 1: %3 = STORE %2"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_errors_name_the_line_and_its_text(text: str, says: str) -> None:
    with pytest.raises(ValueError) as info:
        parse_graph(text)
    assert says in str(info.value)


def test_deep_graphs() -> None:
    deep = INDEX.load()
    for step in range(20_000):
        deep = deep * 2.0 + float(step % 7)
    same(deep)
