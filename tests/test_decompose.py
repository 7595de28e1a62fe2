"""decompose: what each function costs in accuracy and nodes; integers, casts and halves mean what ops.py says.

Accuracy is measured twice: by the interpreter, and by C.
"""

from __future__ import annotations

import functools
import itertools
import shutil

import numpy as np
import pytest
import straight_c
from reference import evaluate

from uopc.decompose import LIBM, decompose, legal_after
from uopc.dtype import ALL, DType, dtypes, float32_to_bfloat16
from uopc.ops import ALU, TABLE, DTypeRule, Flags, Ops, ParamArg, ReduceArg
from uopc.runtime.storage import new_buffer
from uopc.uop import AxisType, UOp, range_, sink, toposort
from uopc.widen import widen

# The greatest error in ULP that a user may see, and the greatest number of ALU nodes: a rule that grows shows here
# before it shows in a benchmark.
FUNCTIONS = {
    Ops.EXP: (1, 19), Ops.EXP2: (1, 16), Ops.EXPM1: (2, 32), Ops.LOG: (2, 41), Ops.LOG2: (2, 43), Ops.LOG1P: (2, 45),
    Ops.SIN: (2, 76), Ops.COS: (2, 75), Ops.TAN: (4, 77), Ops.TANH: (2, 41), Ops.ERF: (2, 35), Ops.NDTR: (7, 30),
}  # fmt: skip
INTEGERS = [d for d in ALL if d.is_int]
FLOATS = [dtypes.float32, dtypes.float64]
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
by_name = {"ids": lambda v: v.name.lower()}


def leaf(array, dtype: DType | None = None) -> UOp:
    """A BUFFER with the values of ``array``."""
    by_numpy = {d.numpy: d for d in ALL if d is not dtypes.bfloat16}
    array = np.ascontiguousarray(array)
    return new_buffer(dtype or by_numpy[array.dtype], array.shape, array.reshape(-1))


def lowered(u: UOp) -> UOp:
    """``u`` decomposed, after a check that all that is left is legal."""
    out = decompose(u)
    assert [n for n in toposort(out) if not legal_after(n)] == []
    return out


def same(a, b) -> None:
    """Equal bit by bit, but for which NaN a NaN is."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(a, b)
        return
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    kept = ~np.isnan(a)
    np.testing.assert_array_equal(a[kept], b[kept])
    np.testing.assert_array_equal(np.signbit(a[kept]), np.signbit(b[kept]))


def ulps(got, expected):
    """The error of float32 values in units of the last place of the float64 ones; inf for a wrong NaN or zero."""
    with np.errstate(all="ignore"):
        size = np.abs(expected)
        exponent = np.floor(np.log2(np.clip(size, 2.0**-126, 2.0**127)))
        past = 2.0**128  # where an overflow counts as if the floats went on
        a = np.where(np.isinf(got), np.copysign(past, got.astype(np.float64)), got.astype(np.float64))
        b = np.where(size >= past, np.copysign(past, expected), expected)
        error = np.abs(a - b) / np.exp2(exponent - 23)
        error = np.where(np.isnan(got) != np.isnan(expected), np.inf, np.where(np.isnan(expected), 0, error))
        wrong_zero = (expected == 0) & ((got != 0) | (np.signbit(got) != np.signbit(expected)))
        return np.where(wrong_zero, np.inf, error)


@functools.cache
def samples():
    """float32: every exponent, neighbours of integers and multiples of pi/2, where functions change, special values."""
    random = np.random.default_rng(7)
    grid = np.arange(0, 0x7F800000, 30011, dtype=np.uint32).view(np.float32)
    quarters = np.float32(
        np.concatenate([np.arange(1, 4000), np.exp2(random.uniform(12, 100, 4000)).round()]) * (np.pi / 2)
    )
    whole = np.arange(0, 300, dtype=np.float32)
    near = np.concatenate([quarters, whole, whole + np.float32(0.5)])
    near = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))])
    hard = np.float32(
        [16367173 * 2.0**72, 1.0000001, 0.99999994, 5.5e18, 88.72284, 88.7229, 103.97, 104.0, 3.4028235e38]
    )
    denormal = np.arange(0, 2000, dtype=np.uint32).view(np.float32)
    dense = np.concatenate([random.uniform(0, w, 40_000) for w in (1.0, 4.0, 20.0, 130.0)]).astype(np.float32)
    positive = np.concatenate([grid, near, hard, denormal, dense, np.float32([np.inf, np.nan])])
    x = np.concatenate([positive, -positive])
    return x[: len(x) // 16 * 16]


@functools.cache
def compiled(op: Ops, lanes: int = 1):
    """The float32 function ``op`` as C: ``f(out, *inputs)``."""
    arity = TABLE[op].arity[0]
    args = [straight_c.operand(slot, dtypes.float32, lanes) for slot in range(arity)]
    source = straight_c.function("f", lowered(UOp(op, tuple(args))))
    library = straight_c.load(source)
    return functools.partial(straight_c.call, library, "f", lanes=lanes)


# ---- functions of float32 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", FUNCTIONS, **by_name)
def test_functions_are_within_their_bounds(op):
    bound, nodes = FUNCTIONS[op]
    u = UOp(op, (leaf(samples()),))
    v = lowered(u)
    (expected,) = evaluate([u], exact=True)
    worst = ulps(evaluate([v])[0], expected)
    at = int(np.argmax(worst))
    assert worst[at] <= bound, (samples()[at], worst[at])
    assert sum(n.op in ALU for n in toposort(v)) <= nodes


@needs_compiler
@pytest.mark.parametrize("op", FUNCTIONS, **by_name)
def test_functions_are_within_their_bounds_in_c(op):
    x = samples()
    (expected,) = evaluate([UOp(op, (leaf(x),))], exact=True)
    got = np.empty_like(x)
    compiled(op)(got, x)
    worst = ulps(got, expected)
    at = int(np.argmax(worst))
    assert worst[at] <= FUNCTIONS[op][0], (x[at], worst[at])


@needs_compiler
@pytest.mark.parametrize("op", FUNCTIONS, **by_name)
def test_vectors_and_c_give_the_bits_of_the_interpreter(op):
    x = np.ascontiguousarray(samples()[::7])
    x = x[: len(x) // 16 * 16]
    (expected,) = evaluate([lowered(UOp(op, (leaf(x),)))])
    got = np.empty_like(x)
    compiled(op, lanes=16)(got, x)
    same(got, expected)


def pairs():
    """Bases and exponents of pow: special values crossed, results of every size, bases near 1, negative bases."""
    random = np.random.default_rng(3)
    special = np.float32(
        [
            0,
            1,
            2,
            0.5,
            3,
            1.5,
            1 / 3,
            1e-45,
            1e-38,
            3e38,
            16777215,
            16777216,
            33554432,
            8388607.5,
            1.0000001,
            0.99999994,
        ]
    )
    special = np.concatenate([special, -special, np.float32([np.inf, -np.inf, np.nan])])
    grid = [v.ravel() for v in np.meshgrid(special, special)]
    base = np.exp2(random.uniform(-149, 128, 60_000))
    near = 1 + random.uniform(-0.01, 0.01, 60_000)
    target = random.uniform(-152, 130, 60_000)
    negative, small = -random.integers(1, 300, 20_000), random.integers(-20, 20, 20_000)
    x = np.concatenate([grid[0], base, near, negative]).astype(np.float32)
    y = np.concatenate([grid[1], target / np.log2(base), target / np.log2(near), small]).astype(np.float32)
    return x, y


@needs_compiler
def test_pow_is_within_4_ulp_and_has_the_special_cases_of_c():
    x, y = pairs()
    u = UOp(Ops.POW, (leaf(x), leaf(y)))
    (expected,) = evaluate([u], exact=True)
    got = np.empty_like(x)
    compiled(Ops.POW)(got, x, y)
    for result in (evaluate([lowered(u)])[0], got):
        worst = ulps(result, expected)
        at = int(np.argmax(worst))
        assert worst[at] <= 2, (x[at], y[at], worst[at])


@needs_compiler
def test_fmod_is_exact():
    x, y = pairs()
    u = UOp(Ops.FMOD, (leaf(x), leaf(y)))
    same(evaluate([lowered(u)])[0], evaluate([u])[0])


# ---- rounding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [Ops.FLOOR, Ops.CEIL, Ops.ROUND, Ops.TRUNC, Ops.ABS, Ops.RECIP], **by_name)
@pytest.mark.parametrize("dtype", FLOATS, **by_name)
def test_rounding_has_numpys_bits(op, dtype):
    halves = np.arange(-9, 9, 0.25)
    edge = 2.0 ** (23 if dtype is dtypes.float32 else 52)
    large = np.concatenate([edge + np.arange(-8, 9) * 0.5, edge / 2 + np.arange(-8, 9) * 0.25])
    x = np.concatenate([samples()[::11], halves, large, -large]).astype(dtype.numpy)
    u = UOp(op, (leaf(x),))
    same(evaluate([lowered(u)])[0], evaluate([u])[0])


def test_float64_keeps_the_functions_of_the_c_library():
    x = leaf(np.float64([0.5]))
    for op in LIBM:
        u = UOp(op, (x,) * TABLE[op].arity[0])
        assert lowered(u) is u


# ---- integers --------------------------------------------------------------------------------------------------------


def edges(dtype: DType):
    width = 8 * dtype.itemsize
    values = {
        dtype.min,
        dtype.min + 1,
        -101,
        -7,
        -2,
        -1,
        0,
        1,
        2,
        3,
        7,
        width - 1,
        width,
        100,
        dtype.max - 1,
        dtype.max,
    }
    values = [v for v in values if dtype.min <= v <= dtype.max]
    random = np.random.default_rng(1).integers(dtype.min, dtype.max, 40, dtype.numpy, endpoint=True)
    return np.concatenate([np.asarray(values, dtype.numpy), random])


@needs_compiler
@pytest.mark.parametrize("dtype", INTEGERS, **by_name)
def test_division_and_shifts_of_unknown_integers(dtype):
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(edges(dtype), edges(dtype)))
    ops = (Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR)
    graphs = [UOp(op, (leaf(a), leaf(b))) for op in ops]
    args = (straight_c.operand(0, dtype), straight_c.operand(1, dtype))
    library = straight_c.load("\n".join(straight_c.function(op.name, lowered(UOp(op, args))) for op in ops))
    for op, u in zip(ops, graphs):
        (expected,) = evaluate([u])
        same(evaluate([lowered(u)])[0], expected)
        got = np.empty_like(a)
        straight_c.call(library, op.name, got, a, b)
        same(got, expected)


@pytest.mark.parametrize("dtype", INTEGERS, **by_name)
def test_division_by_constants(dtype):
    x = leaf(edges(dtype))
    for c in {1, 2, 3, 7, 16, 100, dtype.max, dtype.min, dtype.min + 1, -1, -3} | {0}:
        if dtype.min <= c <= dtype.max:
            for u in (x // c, x % c, x >> c, x << c):
                same(evaluate([lowered(u)])[0], evaluate([u])[0])


def test_what_bounds_prove_stays_as_it_is():
    i = range_(100, 0)
    for u in (i // 7, i % 7, i >> 2, (i + 1) // (i + 1)):
        assert lowered(u) is u
    assert Ops.IDIV not in {n.op for n in toposort(lowered((i + -50) // 8))}  # a shift is enough


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_half], **by_name)
def test_abs_max_and_min(dtype):
    x = leaf(edges(dtype)) if dtype.is_int else leaf(np.asarray([0, 1, 1, 0]).astype(dtype.numpy))
    for u in (x.alu(Ops.ABS), x.maximum(x), x.minimum(x)):
        same(evaluate([lowered(u)])[0], evaluate([u])[0])


def test_bool_arithmetic_is_logic():
    a, b = leaf(np.asarray([False, False, True, True])), leaf(np.asarray([False, True, False, True]))
    ops = [Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE, Ops.AND, Ops.OR, Ops.XOR]
    for op in ops:
        u = UOp(op, (a, b))
        same(evaluate([lowered(u)])[0], evaluate([u])[0])


# ---- casts -----------------------------------------------------------------------------------------------------------


def of_type(dtype: DType):
    """Values of a type, those that its neighbours do not hold among them."""
    if dtype.is_bool:
        return leaf(np.asarray([False, True]))
    if dtype.is_int:
        return leaf(edges(dtype))
    powers = [
        0.5,
        1.5,
        2.0**7,
        2.0**8,
        2.0**15,
        2.0**16,
        2.0**31,
        2.0**32,
        2.0**63,
        2.0**64,
        65519.0,
        65520.0,
        1e-7,
        1e38,
    ]
    values = np.asarray([0.0, *powers, *[np.nextafter(p, 0) for p in powers], np.inf, np.nan])
    values = np.concatenate([values, -values])
    if dtype is dtypes.bfloat16:
        return leaf(float32_to_bfloat16(values.astype(np.float32)), dtype)
    with np.errstate(over="ignore"):
        return leaf(values.astype(dtype.numpy))


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(ALL, 2)), ids=lambda d: d.name)
def test_casts(source, target):
    u = of_type(source).cast(target)
    same(evaluate([lowered(u)])[0], evaluate([u])[0])


@needs_compiler
@pytest.mark.parametrize("source", FLOATS, **by_name)
def test_casts_to_integers_are_the_same_in_c_where_c_leaves_them_undefined(source):
    x = of_type(source)
    args = straight_c.operand(0, source)
    parts = [straight_c.function(f"to_{d.name}", lowered(args.cast(d))) for d in INTEGERS]
    library = straight_c.load("\n".join(parts))
    for d in INTEGERS:
        got = np.empty(x.shape, d.numpy)
        straight_c.call(library, f"to_{d.name}", got, x.realized.array)
        same(got, evaluate([x.cast(d)])[0])


# ---- halves ----------------------------------------------------------------------------------------------------------


def half(dtype: DType):
    """All 65,536 values."""
    raw = np.arange(1 << 16, dtype=np.uint16)
    return leaf(raw.view(dtype.numpy), dtype)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], **by_name)
def test_halves_compute_in_float32_and_round_where_widen_says(dtype):
    x = half(dtype)
    for u in (
        x,
        x * 1.5 + 0.25,
        x.cast(dtypes.float32),
        (x * 3.0).cast(dtypes.float32).cast(dtype) + x,
        x < 1.0,
        x * 0.1,
    ):
        same(evaluate([lowered(widen(sink(u)).src[0])])[0], evaluate([u])[0])
    for u in (x.bitcast(dtypes.uint16), UOp(Ops.REDUCE, (x * 0.0 + 1.0,), ReduceArg(Ops.MAX, (0,)))):
        same(evaluate([lowered(widen(sink(u)).src[0])])[0], evaluate([u])[0])


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], **by_name)
def test_float64_to_half_rounds_once(dtype):
    random = np.random.default_rng(5)
    digits = 10 if dtype is dtypes.float16 else 7
    ties = (1 + (random.integers(0, 1 << digits, 4000) + 0.5) * 2.0**-digits) * np.exp2(random.integers(-30, 17, 4000))
    x = np.concatenate(
        [ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), -ties, np.exp2(random.uniform(-160, 140, 2000))]
    )
    u = leaf(x).cast(dtype)
    same(evaluate([lowered(u)])[0], evaluate([u])[0])


def loop(dtype: DType, value) -> UOp:
    """out[i] = value(in[i]) over buffers of ``dtype``."""
    out, source = (UOp(Ops.BUFFER, (), ParamArg(slot, dtype, (64,))) for slot in (0, 1))
    i = range_(64, 0)
    return sink(out.index(i).store(value(source.index(i).load())).end(i))


def test_a_copy_of_halves_converts_nothing():
    for dtype in (dtypes.float16, dtypes.bfloat16):
        program = loop(dtype, lambda x: x)
        assert lowered(program) is program


def test_loop_programs_load_and_store_halves():
    for dtype in (dtypes.float16, dtypes.bfloat16):
        nodes = toposort(lowered(loop(dtype, lambda x: x * 2.0)))
        (load,) = [u for u in nodes if u.op is Ops.LOAD]
        (store,) = [u for u in nodes if u.op is Ops.STORE]
        (product,) = [u for u in nodes if u.op is Ops.MUL and u.dtype.is_float]
        assert load.dtype is dtype and store.src[1].dtype is dtype and product.dtype is dtypes.float32


def test_an_accumulator_of_halves_is_float32():
    out, source = (UOp(Ops.BUFFER, (), ParamArg(slot, dtypes.float16, (64,))) for slot in (0, 1))
    acc = UOp(Ops.ALLOC, (), ParamArg(2, dtypes.float16, (1,)))
    r = range_(64, 0, AxisType.REDUCE)
    start = acc.index(0).store(0.0)
    inside = acc.after(start, r)
    step = inside.index(0).store(inside.index(0).load() + source.index(r).load()).end(r)
    program = sink(out.index(0).store(acc.after(step).index(0).load()))
    nodes = toposort(lowered(program))
    (alloc,) = [u for u in nodes if u.op is Ops.ALLOC]
    assert alloc.arg == ParamArg(2, dtypes.float32, (1,))
    stores = [u for u in nodes if u.op is Ops.STORE]
    assert sorted(u.src[1].dtype.name for u in stores) == ["float16", "float32", "float32"]


def test_lanes_of_halves_are_combined_in_float32():
    for dtype in (dtypes.float16, dtypes.bfloat16):
        out = UOp(Ops.BUFFER, (), ParamArg(1, dtype, (1,))).index(0)
        lanes = straight_c.operand(0, dtype, 8) * UOp(Ops.CONST, (), (0.5,) * 8, dtype.vec(8))
        total = UOp(Ops.HREDUCE, (lanes,), Ops.ADD, dtype)
        nodes = toposort(lowered(sink(out.store(total))))
        (reduction,) = [u for u in nodes if u.op is Ops.HREDUCE]
        (store,) = [u for u in nodes if u.op is Ops.STORE]
        assert reduction.dtype is dtypes.float32 and store.src[1].dtype is dtype


# ---- the table -------------------------------------------------------------------------------------------------------


MADE_BY_PASSES = (Ops.LDEXP, Ops.LOOKUP, Ops.PAIR, Ops.DOT2)  # of float32 alone


def applies(op: Ops, dtype: DType) -> bool:
    flags = TABLE[op].flags
    if dtype.is_bool and (op in (Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR) or flags & Flags.FLOAT_ONLY):
        return False
    return not (flags & Flags.INT_ONLY and dtype.is_float) and not (flags & Flags.FLOAT_ONLY and not dtype.is_float)


@pytest.mark.parametrize("dtype", [*ALL, dtypes.index], **by_name)
def test_every_op_of_every_type_becomes_legal_scalar_and_vector(dtype):
    for lanes in (1, 4):
        for op in sorted(ALU):
            if op in (Ops.CAST, Ops.BITCAST, Ops.WHERE, *MADE_BY_PASSES) or not applies(op, dtype):
                continue
            memory = dtype if dtype is not dtypes.index else dtypes.int64
            args = [straight_c.operand(k, memory, lanes).cast(dtype) for k in range(TABLE[op].arity[0])]
            out = lowered(UOp(op, tuple(args)))
            expected = dtypes.bool_ if TABLE[op].dtype is DTypeRule.BOOL else dtype
            assert out.dtype is expected.vec(lanes)
        value = straight_c.operand(0, dtypes.float32, lanes).cast(dtype)
        for target in ALL:
            assert lowered(value.cast(target)).dtype is target.vec(lanes)


def test_positions_in_lanes_are_compared_in_32_bits():
    r, lanes = range_(60, 0), UOp(Ops.CONST, (), tuple(range(16)), dtypes.index.vec(16))
    at = r * 16 + lanes
    for u in (at < 900, at.eq(r + 7), (at.cast(dtypes.int64) * 3).cast(dtypes.float32), at.minimum(r) < 5):
        vectors = [n for n in toposort(lowered(u)) if n.dtype.count > 1]
        assert vectors and all(n.dtype.scalar().itemsize <= 4 for n in vectors)
    far = at + (1 << 32)
    assert lowered(far < (1 << 33)) is (far < (1 << 33))
    # beside doubles, of which as many fill a register
    few = r * 8 + UOp(Ops.CONST, (), tuple(range(8)), dtypes.index.vec(8))
    wide = leaf(np.zeros(8)).index(few).load()
    assert (few < 900) in toposort(lowered((few < 900).where(wide, wide * 2)))


def test_what_is_not_legal():
    x, n = straight_c.operand(0, dtypes.float32), straight_c.operand(1, dtypes.int32)
    assert not legal_after(x.alu(Ops.EXP))
    assert not legal_after(n // 3)
    assert not legal_after(n << n)
    assert not legal_after(x.ne(0.0) + True)
    assert not legal_after(x.cast(dtypes.bool_))
    assert not legal_after(x.cast(dtypes.bfloat16))
    assert not legal_after(x.cast(dtypes.float16) * 2.0)
    assert not legal_after(UOp.const(1.0, dtypes.float16))
    assert not legal_after(UOp(Ops.ALLOC, (), ParamArg(0, dtypes.bfloat16, (1,))))
    assert legal_after(x.cast(dtypes.float64).alu(Ops.EXP))
    assert legal_after(x.cast(dtypes.float16))


def test_a_deep_graph_is_no_problem():
    x = leaf(np.float32([1.0]))
    u = x
    for _ in range(20_000):
        u = (u + 1.0).recip()
    assert len(toposort(lowered(u))) == 40_002
