"""The C that is printed: every dtype and op against NumPy, on scalars and vectors, and how it reads."""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_ir import F32, AxisType, Ops, UOp, alloc, buffer, dtypes, range_, reduce, run, sink, vector, zeros

from uopc._hot.text import Code, call, cast, choice, infix, prefix
from uopc.decompose.floatbits import lookup
from uopc.dtype import SIGNED, UNSIGNED, DType
from uopc.render_c import render_c

INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*INTEGERS, dtypes.float32, dtypes.float64)
N = 16  # elements of an array here


Values = Sequence[tuple[Callable[..., UOp], DType]]


def compute(values: Values, arrays: Sequence[np.ndarray], dtype: DType, lanes: int) -> list[np.ndarray]:
    """Each of ``values``, a function of elements of arrays of ``dtype`` and the type of its result, in one kernel that
    takes ``lanes`` elements at a time."""
    loop = range_(N // lanes, 0)
    lane = range_(lanes, 1, AxisType.VECTOR) if lanes > 1 else UOp.const(0)
    at = loop * lanes + lane
    n = len(values)
    read = [buffer(n + k, N, dtype=dtype).index(at).load() for k in range(len(arrays))]
    stores = [buffer(k, N, dtype=d).index(at).store(fn(*read)) for k, (fn, d) in enumerate(values)]
    outs = [np.zeros(N, d.numpy) for _, d in values]
    closed = sink(*stores).end(loop, lane) if lanes > 1 else sink(*stores).end(loop)
    run(sink(closed), *outs, *arrays, outputs=range(n))
    return outs


def numbers(dtype: DType, seed: int = 0) -> np.ndarray:
    """Small numbers, and those at the ends of the type."""
    random = np.random.default_rng(seed)
    if dtype.is_bool:
        return random.random(N) < 0.5
    if dtype.is_float:
        x = random.normal(size=N).astype(dtype.numpy)
        x[:4] = (np.nan, np.inf, -np.inf, -0.0) if seed == 0 else (1, np.nan, -np.inf, 0.0)
        return x
    x = random.integers(max(dtype.min, -9), 9, N).astype(dtype.numpy)
    x[0], x[1] = dtype.min, dtype.max
    return x


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", NUMBERS, ids=repr)
def test_arithmetic(dtype: DType, lanes: int) -> None:
    """Integers wrap, a NaN on either side of MAX and MIN is the result, -0.0 stays."""
    a, b = numbers(dtype), numbers(dtype, 1)
    three = np.asarray(3, a.dtype)
    cases = [
        (lambda x, y: x + y, a + b),
        (lambda x, y: x * y, a * b),
        (lambda x, y: x.maximum(y), np.maximum(a, b)),
        (lambda x, y: x.minimum(y), np.minimum(a, b)),
        (lambda x, y: x.maximum(3), np.maximum(a, three)),
        (lambda x, y: UOp.const(3, dtype).minimum(x), np.minimum(a, three)),
    ]
    if dtype.kind != "u":  # where -1 is another number
        cases += [(lambda x, y: x - y, a - b), (lambda x, y: -x, -a), (lambda x, y: y - 3, b - three)]
    got = compute([(fn, dtype) for fn, _ in cases], (a, b), dtype, lanes)
    for out, (_, expected) in zip(got, cases):
        np.testing.assert_array_equal(out, expected)
    if dtype.is_float:
        np.testing.assert_array_equal(np.signbit(got[7][1:]), np.signbit(-a[1:]))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", (*NUMBERS, dtypes.bool_), ids=repr)
def test_comparisons_choose(dtype: DType, lanes: int) -> None:
    """Every comparison of NaN but != is false, and masks of all widths choose among values of another width."""
    a, b = numbers(dtype), numbers(dtype, 1)
    one, two = (UOp.const(v, dtypes.float64) for v in (1.0, 2.0))
    cases = [
        (lambda x, y: x < y, a < b),
        (lambda x, y: x <= y, a <= b),
        (lambda x, y: x.eq(y), a == b),
        (lambda x, y: x.ne(y), a != b),
    ]
    values: list[tuple[Callable[..., UOp], DType]] = [(fn, dtypes.bool_) for fn, _ in cases]
    values += [(lambda x, y, fn=fn: fn(x, y).where(one, two), dtypes.float64) for fn, _ in cases]
    got = compute(values, (a, b), dtype, lanes)
    for k, (_, expected) in enumerate(cases):
        np.testing.assert_array_equal(got[k], expected)
        np.testing.assert_array_equal(got[k + len(cases)], np.where(expected, 1.0, 2.0))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_bits(dtype: DType, lanes: int) -> None:
    a, b = numbers(dtype), numbers(dtype, 1)
    one, two, three, seven = (np.asarray(k, a.dtype) for k in (1, 2, 3, 7))
    cases = [
        (lambda x, y: x & y, a & b),
        (lambda x, y: x | y, a | b),
        (lambda x, y: x ^ y, a ^ b),
        (lambda x, y: x << 3, a << three),
        (lambda x, y: x >> 2, a >> two),
        (lambda x, y: UOp.const(1, dtype) << (x & 7), one << (a & seven)),
    ]
    for out, (_, expected) in zip(compute([(fn, dtype) for fn, _ in cases], (a, b), dtype, lanes), cases):
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("source", (*NUMBERS, dtypes.bool_, dtypes.float16), ids=repr)
def test_casts(source: DType, lanes: int) -> None:
    a = np.abs(np.random.default_rng(2).normal(size=N) * 20).astype(source.numpy)
    targets = (*NUMBERS, dtypes.float16)
    for target, out in zip(targets, compute([(lambda x, t=t: x.cast(t), t) for t in targets], (a,), source, lanes)):
        np.testing.assert_array_equal(out, a.astype(target.numpy))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=repr)
def test_halves_and_square_roots(dtype: DType, lanes: int) -> None:
    a = np.abs(np.random.default_rng(3).normal(size=N)).astype(dtype.numpy)
    (got,) = compute([(lambda x: x.alu(Ops.SQRT), dtype)], (a,), dtype, lanes)
    np.testing.assert_array_equal(got, np.sqrt(a))


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_powers_of_two_and_tables(lanes: int) -> None:
    """LDEXP over- and underflows as one product does, denormals rounded once; LOOKUP takes four bits of any int32."""
    random = np.random.default_rng(4)
    special = np.array([math.inf, -math.inf, math.nan, -0.0, 1e-45, 3e38, 1.0, -1.1754944e-38], np.float32)
    a = np.concatenate([special, random.normal(size=N - len(special)).astype(np.float32)])
    n = (random.integers(-254 * 16, 254 * 16, N) / 16).astype(np.float32)
    (got,) = compute([(lambda x, n: x.alu(Ops.LDEXP, n), dtypes.float32)], (a, n), dtypes.float32, lanes)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.ldexp(a, np.floor(n).astype(np.int32)))
    assert (np.signbit(got) == np.signbit(a))[~np.isnan(a)].all()
    table = tuple(random.normal(size=16).astype(np.float32).tolist())
    i = random.integers(-(2**31), 2**31, N).astype(np.int32)
    (got,) = compute([(lambda i: lookup(table, i), dtypes.float32)], (i,), dtypes.int32, lanes)
    np.testing.assert_array_equal(got, np.array(table, np.float32)[i & 15])


EXTREMES = {
    "float32": [0.1, -0.0, 1e38, 1e-45, math.inf, -math.inf, math.nan],
    "float64": [0.1, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    "float16": [0.1, -0.0, 65504.0, math.inf, -math.inf, math.nan],
    **{d.name: [0, 1, d.min, d.max, d.max - 1, d.max // 3] for d in INTEGERS},
    "bool_": [False, True],
}


@pytest.mark.parametrize("name", EXTREMES)
def test_constants(name: str) -> None:
    """Exactly, at the ends of every type, alone and as an operand."""
    dtype: DType = getattr(dtypes, name)
    values = np.array(EXTREMES[name], dtype.numpy)
    place = buffer(0, len(values), dtype=dtype)
    program = sink(*(place.index(k).store(UOp.const(v, dtype)) for k, v in enumerate(EXTREMES[name])))
    out = np.ones(len(values), dtype.numpy)
    run(program, out)
    assert out.tobytes() == values.tobytes() or dtype.is_float
    np.testing.assert_array_equal(out, values)
    np.testing.assert_array_equal(np.signbit(out) & (out == out), np.signbit(values) & (values == values))


def test_a_long_stays_a_long() -> None:
    """Constants of 64 bits that a shift or a choice makes of small ones."""
    place, x = buffer(0, 2, dtype=dtypes.int64), buffer(1, 1, dtype=dtypes.int64).index(0).load()
    one = UOp.const(1, dtypes.int64)
    big = (x < 0).where(UOp.const(100_000, dtypes.int64), UOp.const(200_000, dtypes.int64))
    out = np.zeros(2, np.int64)
    run(sink(place.index(0).store(one << (x & 63)), place.index(1).store(big * 300_000)), out, np.int64([40]))
    np.testing.assert_array_equal(out, [1 << 40, 60_000_000_000])


@pytest.mark.parametrize("dtype", NUMBERS, ids=repr)
@pytest.mark.parametrize("lanes", [2, 16])
def test_lanes_of_a_vector_combined(dtype: DType, lanes: int) -> None:
    x = np.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1][:lanes], dtype.numpy)
    folds = {Ops.ADD: np.sum, Ops.MUL: np.prod, Ops.MAX: np.max, Ops.MIN: np.min}
    stores = []
    for k, op in enumerate(folds):
        lane = range_(lanes, k, AxisType.VECTOR)
        total = reduce(op, buffer(1, lanes, dtype=dtype).index(lane).load(), lane)
        stores.append(buffer(0, len(folds), dtype=dtype).index(k).store(total))
    out = np.zeros(len(folds), dtype.numpy)
    run(sink(*stores), out, x)
    np.testing.assert_array_equal(out, [fold(x) for fold in folds.values()])


@pytest.mark.parametrize("op", [Ops.MAX, Ops.MIN, Ops.OR, Ops.AND])
def test_any_and_all_lanes(op: Ops) -> None:
    lane = range_(16, 0, AxisType.VECTOR)
    holds = buffer(1, 16).index(lane).load() < 1.0
    for x in (np.zeros(16), np.ones(16), np.arange(16) % 2):
        out = np.zeros(1, np.bool_)
        run(sink(buffer(0, 1, dtype=dtypes.bool_).index(0).store(reduce(op, holds, lane))), out, x.astype(np.float32))
        assert out[0] == ((x < 1).any() if op in (Ops.MAX, Ops.OR) else (x < 1).all())


def test_masks_of_different_widths_meet() -> None:
    """A comparison of bytes, one of doubles and a loaded bool."""
    lane = range_(N, 0, AxisType.VECTOR)
    bytes_, doubles, flags = numbers(dtypes.int8), numbers(dtypes.float64), numbers(dtypes.bool_)
    a = buffer(1, N, dtype=dtypes.int8).index(lane).load() < 3
    b = buffer(2, N, dtype=dtypes.float64).index(lane).load() < 0.5
    c = buffer(3, N, dtype=dtypes.bool_).index(lane).load()
    out = np.zeros(N, np.bool_)
    place = buffer(0, N, dtype=dtypes.bool_).index(lane)
    run(sink(place.store((a & b) | c.logical_not()).end(lane)), out, bytes_, doubles, flags)
    np.testing.assert_array_equal(out, ((bytes_ < 3) & (doubles < 0.5)) | ~flags)


def test_bools_in_vector_allocs() -> None:
    state = alloc(0, dtype=dtypes.bool_.vec(4))
    start = state.index(0).store(vector(buffer(1, 4), 0, 4).load() < 0.0)
    read = state.after(start).index(0).load()
    chosen = read.where(UOp.const(1.0), UOp.const(2.0))
    out = zeros(4)
    run(sink(vector(buffer(0, 4), 0, 4).store(chosen)), out, np.float32([-1, 1, -2, 2]))
    np.testing.assert_array_equal(out, [1, 2, 1, 2])


@pytest.mark.parametrize("lanes", [1, 8])
def test_addresses_that_are_computed(lanes: int) -> None:
    """Strides, reversals and gathers."""
    x = np.arange(40, dtype=np.float32)
    at = np.random.default_rng(4).integers(0, 40, N).astype(np.int32)
    for fn, expected in (
        (lambda i, j: i * 2 + 1, x[1 : 2 * N : 2]),
        (lambda i, j: 39 - i, x[::-1][:N]),
        (lambda i, j: j.cast(dtypes.index), x[at]),
        (lambda i, j: i % 5, x[np.arange(N) % 5]),
    ):
        loop = range_(N // lanes, 0)
        lane = range_(lanes, 1, AxisType.VECTOR) if lanes > 1 else UOp.const(0)
        i = loop * lanes + lane
        position = buffer(2, N, dtype=dtypes.int32).index(i).load()
        value = buffer(1, 40).index(fn(i, position)).load()
        store = buffer(0, N).index(i).store(value + (position * 0).cast(F32))
        out = zeros(N)
        run(sink(store.end(loop, lane) if lanes > 1 else store.end(loop)), out, x, at)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("fold", [lambda x, k: x * 1.0001 + float(k), lambda x, k: (x < float(k)).where(x, -x)])
def test_deep_expressions(fold: Any) -> None:
    """No C expression nests deeper than a compiler accepts."""
    i = range_(4, 0)
    x: UOp = buffer(1, 4).index(i).load()
    for k in range(3000):
        x = fold(x, k)
    source = render_c(sink(buffer(0, 4).index(i).store(x).end(i)), "deep")
    nesting = max(line.count("(") for line in source.splitlines())
    assert nesting < 64
    assert len(source) < 400 * 3000


def test_one_value_for_all_lanes() -> None:
    """A constant of a vector type may be one value: as an operand, an address, a gate and a thing to store."""
    index = dtypes.index.vec(4)
    same, i = UOp(Ops.INDEX, (buffer(1, 9), UOp(Ops.CONST, (), 7, index)), None, F32), range_(3, 0)
    moved = UOp(Ops.INDEX, (buffer(1, 9), i + UOp(Ops.CONST, (), 2, index)), None, F32)
    value = same.load() * UOp(Ops.CONST, (), 2.0, F32.vec(4)) + moved.load()
    gate = UOp(Ops.CONST, (), True, dtypes.bool_.vec(4))
    out, x = zeros(12), np.arange(9, dtype=np.float32)
    run(sink(vector(buffer(0, 12), i * 4, 4).store(value, gate).end(i)), out, x)
    np.testing.assert_array_equal(out, np.repeat(x[7] * 2 + x[2:5], 4))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int16], ids=repr)
def test_lanes_whose_gate_does_not_hold_are_not_read(dtype: DType, lanes: int) -> None:
    """The array ends where its page does, and the next page cannot be read."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    whole = np.frombuffer(pages, dtype.numpy)
    x = whole[: page // dtype.itemsize]
    x[:] = np.arange(1, len(x) + 1) % 1000
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    assert mprotect(ctypes.c_void_p(x.ctypes.data + page), ctypes.c_size_t(page), 0) == 0
    first, lane = len(x) - 3, range_(lanes, 0, AxisType.VECTOR)
    loaded = buffer(1, len(x), dtype=dtype).index(lane + first).load(gate=lane + first < len(x))
    out = np.full(lanes, 7, dtype.numpy)
    run(sink(buffer(0, lanes, dtype=dtype).index(lane).store(loaded).end(lane)), out, x)
    np.testing.assert_array_equal(out, [*x[-3:], *[0] * (lanes - 3)])


# ---- how it reads --------------------------------------------------------------------------------


def test_parentheses_stand_where_c_or_a_reader_needs_them() -> None:
    a, b, c = Code("a"), Code("b"), Code("c")
    assert infix("+", infix("*", a, b), c).text == "a * b + c"
    assert infix("*", infix("+", a, b), c).text == "(a + b) * c"
    assert infix("+", infix("+", a, b), c).text == "a + b + c"
    assert infix("+", a, infix("+", b, c)).text == "a + (b + c)"
    assert infix("/", a, infix("*", b, c)).text == "a / (b * c)"
    assert infix("+", a, prefix("-", b)).text == "a - b"
    assert infix("+", prefix("-", a), b).text == "b - a"
    assert infix("+", a, prefix("-", infix("+", b, c))).text == "a - (b + c)"
    assert prefix("-", prefix("-", a)).text == "-(-a)"
    assert infix("&", infix("<", a, b), infix("<", b, c)).text == "(a < b) & (b < c)"
    assert infix("<<", infix("+", a, b), c).text == "(a + b) << c"
    assert choice(infix("<", a, b), a, choice(b, b, c)).text == "a < b ? a : (b ? b : c)"
    assert cast("int", infix("+", a, b)).text == "(int)(a + b)"
    assert call("f", infix("+", a, b)).text == "f(a + b)"


def test_equal_programs_are_equal_text() -> None:
    """Whatever the ids of their ranges."""

    def program(first: int) -> str:
        i, j = range_(3, first), range_(4, first + 5)
        return render_c(sink(buffer(0, 3, 4).index(i, j).store(1.0).end(i, j)), "k")

    assert program(0) == program(100)


def test_accumulators_update_in_place() -> None:
    i = range_(12, 0)
    total = reduce(Ops.ADD, buffer(1, 12).index(i).load() * 2.0, i)
    assert "a0 = fma_f32(d1[i0], 2.0f, a0);" in render_c(sink(buffer(0, 1).index(0).store(total)), "k")
    total = reduce(Ops.ADD, buffer(1, 12).index(i).load(), i)
    assert "a0 += d1[i0];" in render_c(sink(buffer(0, 1).index(0).store(total)), "k")


def test_the_state_of_a_thread_is_declared_inside_the_parallel_loop() -> None:
    i, j = range_(64, 0, AxisType.THREAD), range_(12, 1)
    total = reduce(Ops.ADD, buffer(1, 64, 12).index(i, j).load(), j)
    lines = render_c(sink(buffer(0, 64).index(i).store(total).end(i)), "k").splitlines()
    head = next(k for k, line in enumerate(lines) if "= lo;" in line)
    assert lines[head + 1].strip() == "float a0;"


def test_the_launch_depends_on_counted_work() -> None:
    """Cheap iterations come in large chunks, dear ones one by one; the number of threads has no part in it."""

    def launch(n: int, inner: int) -> list[int]:
        i, j = range_(n, 0, AxisType.THREAD), range_(inner, 1)
        total = reduce(Ops.ADD, buffer(1, n, inner).index(i, j).load(), j)
        source = render_c(sink(buffer(0, n).index(i).store(total).end(i)), "k")
        found = re.search(r"k_launch\[3\] = \{(.*)\}", source)
        assert found is not None
        return [int(x) for x in found.group(1).split(",")]

    assert launch(64, 100_000) == [64, 1, 1]
    trips, chunk, dynamic = launch(100_000, 4)
    assert trips == 100_000 and chunk > 500 and dynamic == 1
    assert launch(10, 4) == [10, 10, 0]


def test_vector_code_becomes_vector_instructions() -> None:
    """A choice is a blend, a square root and a clamp are one instruction: no loop over lanes, no branch."""
    gcc = shutil.which("gcc")
    if gcc is None or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs gcc on a machine with AVX2")
    lane = range_(8, 0, AxisType.VECTOR)
    x, y = (buffer(k, 8).index(lane).load() for k in (1, 2))
    value = (x < y).where(x.alu(Ops.SQRT), y.maximum(x)).maximum(0.0)
    source = render_c(sink(buffer(0, 8).index(lane).store(value).end(lane)), "k")
    flags = [
        "-O1",
        "-fexpensive-optimizations",
        "-mavx2",
        "-mf16c",
        "-fno-math-errno",
        "-w",
        "-S",
        "-x",
        "c",
        "-",
        "-o",
        "-",
    ]
    assembly = subprocess.run([gcc, *flags], input=source, capture_output=True, text=True, check=True).stdout
    body = assembly[assembly.index("k_range:") : assembly.index("ret", assembly.index("k_range:"))]
    assert "vsqrtps" in body and "vmaxps" in body and "vblendvp" in body.replace("vpblendvb", "vblendvp")
    assert "vsqrtss" not in body and not re.search(r"\bj[a-z]+\s+\.L", body)


@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang")
def test_clang_takes_the_same_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lane = range_(16, 0, AxisType.VECTOR)
    x, y = (buffer(k, 16).index(lane).load() for k in (1, 2))
    value = (x < y).where(x.alu(Ops.SQRT), y.maximum(x)).maximum(0.0).alu(Ops.EXP)
    total = reduce(Ops.MAX, value, lane)
    source = render_c(sink(buffer(0, 1).index(0).store(total)), "k")
    command = ["clang", "-O1", "-march=native", "-std=gnu11", "-Werror", "-Wno-psabi", "-c", "-x", "c", "-", "-o"]
    subprocess.run([*command, str(tmp_path / "k.o")], input=source, text=True, check=True)


def test_what_is_no_program_is_refused() -> None:
    i, out = range_(4, 0), buffer(0, 4)
    program = sink(out.index(i).store(1.0).end(i))
    for wrong in (None, "x", out, program.src[0]):
        with pytest.raises(TypeError, match="render_c takes a SINK of statements, or a LINEAR list, not"):
            render_c(wrong, "k")
    for name in (None, 3, "", "1k", "a b", "\u00e4"):
        with pytest.raises(ValueError, match="cannot be the name of a C function"):
            render_c(program, name)
