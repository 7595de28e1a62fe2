"""Dot products of pairs of bfloat16: what PAIR and DOT2 compute, where they are chosen, and how close the sums are."""

from __future__ import annotations

import math
import platform
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from fixed import MACHINE, ZEN4, CompileFor, Recompute
from loop_ir import buffer, range_, sink

from uopc import Tensor
from uopc.dtype import bfloat16_to_float32, dtypes, float32_to_bfloat16
from uopc.ops import Ops
from uopc.pipeline import Plan, make_plan
from uopc.render_c import render_c
from uopc.runtime import Program, num_threads
from uopc.runtime.compiler import DEFAULT_FLAGS
from uopc.uop import UOp, toposort

WITH_DOTS = ZEN4
PORTABLE = (*DEFAULT_FLAGS, "-mno-avx512bf16")
# Of a sum in float32, rounded once to bfloat16.
ROUNDED = 2.0**-8
LEAST_NORMAL = 2.0**-126


@pytest.fixture
def machine(compile_for: CompileFor) -> Iterator[None]:
    """A machine with dot products, whatever machine this is: where it has none, kernels run their portable C."""
    compile_for(WITH_DOTS)
    yield


def brain(x: np.ndarray) -> Tensor:
    """An array of bfloat16."""
    return Tensor(x.astype(np.float32)).cast("bfloat16").realize()


def draw(*shape: int, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """Normal numbers: as bfloat16, and the same values as float64."""
    tensor = brain(np.random.default_rng(seed).standard_normal(shape))
    return tensor, tensor.numpy().astype(np.float64)


def plan(value: Tensor, compile_for: CompileFor, dots: bool = True) -> Plan:
    """The plan for the fixed machine."""
    compile_for(WITH_DOTS if dots else MACHINE)
    return make_plan([value.uop])


def ops_of(made: Plan) -> set[Ops]:
    return {u.op for k in made.kernels for u in k.linear.src}


# ---- the ops ---------------------------------------------------------------------------------------------------------


def test_types_of_pairs_and_dot_products() -> None:
    half, word, single = (
        buffer(k, 64, dtype=d) for k, d in enumerate((dtypes.bfloat16, dtypes.uint32, dtypes.float32))
    )
    low, bits, total = half.index(0).load(), word.index(0).load(), single.index(0).load()
    lanes = UOp(Ops.INDEX, (word, UOp.const(0)), None, dtypes.uint32.vec(8)).load()
    assert UOp(Ops.PAIR, (low, low)).dtype is dtypes.uint32
    assert UOp(Ops.PAIR, (total, total)).dtype is dtypes.uint32
    assert UOp(Ops.DOT2, (bits, lanes, total)).dtype is dtypes.float32.vec(8)
    assert UOp(Ops.DOT2, (bits, bits, UOp.const(0.0, dtypes.bfloat16))).dtype is dtypes.bfloat16
    with pytest.raises(TypeError, match="takes bfloat16 or float32, not"):
        UOp(Ops.PAIR, (bits, bits))
    with pytest.raises(TypeError, match="the types must agree"):
        UOp(Ops.PAIR, (low, total))
    with pytest.raises(TypeError, match="two uint32 and a bfloat16 or float32"):
        UOp(Ops.DOT2, (total, total, total))
    with pytest.raises(TypeError, match="two uint32 and a bfloat16 or float32"):
        UOp(Ops.DOT2, (bits, bits, bits))
    with pytest.raises(TypeError, match="must be as wide"):
        UOp(Ops.DOT2, (lanes, lanes, UOp(Ops.CONST, (), (0.0,) * 4, dtypes.float32.vec(4))))


def elementwise(op: Ops, n: int, lanes: int, *types: dtypes) -> str:
    """C that applies an op to arrays, slot 0 taking the result."""
    result = dtypes.uint32 if op is Ops.PAIR else dtypes.float32
    i = range_(n // lanes, 0)

    def at(slot: int, dtype: dtypes) -> UOp:
        return UOp(Ops.INDEX, (buffer(slot, n, dtype=dtype), i * lanes), None, dtype.vec(lanes))

    value = UOp(op, tuple(at(k + 1, d).load() for k, d in enumerate(types)))
    return render_c(sink(at(0, result).store(value).end(i)), "kernel")


@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, PORTABLE], ids=["native", "portable"])
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_a_pair_of_float32_is_rounded_to_nearest_even(lanes: int, flags: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1 << 16, np.uint32)
    bits[:1024] = (bits[:1024] & 0xFFFF0000) | 0x8000  # ties
    bits[1024:1032] = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0x7FC00000, 0xFFFFFFFF]
    x, y = bits.view(np.float32), np.roll(bits, 5).view(np.float32)
    out = np.zeros(len(bits), np.uint32)
    Program(elementwise(Ops.PAIR, len(bits), lanes, dtypes.float32, dtypes.float32), "kernel", flags=flags)(out, x, y)
    for got, wanted in ((out.astype(np.uint16), x), ((out >> 16).astype(np.uint16), y)):
        got, rounded = bfloat16_to_float32(got), bfloat16_to_float32(float32_to_bfloat16(wanted))
        normal = ~(np.abs(wanted) < LEAST_NORMAL)
        np.testing.assert_array_equal(got[normal], rounded[normal])
        assert np.all((got[~normal] == rounded[~normal]) | (got[~normal] == 0))


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_a_dot_product_adds_the_upper_halves_first_by_instruction_and_without(lanes: int) -> None:
    """Products of bfloat16 are exact in float32, so the portable C has the instruction's bits."""
    rng, n = np.random.default_rng(1), 1 << 14
    a, b = (rng.standard_normal((2, n)).astype(np.float32) for _ in range(2))
    c = rng.standard_normal(n).astype(np.float32)
    a, b = float32_to_bfloat16(a), float32_to_bfloat16(b)
    a[0, :4], b[1, :4] = float32_to_bfloat16(np.float32([np.inf, np.nan, -np.inf, 0])), 0
    (a0, a1), (b0, b1) = bfloat16_to_float32(a), bfloat16_to_float32(b)
    wanted = (c + a1 * b1) + a0 * b0
    words = [x[0].astype(np.uint32) | (x[1].astype(np.uint32) << 16) for x in (a, b)]
    source = elementwise(Ops.DOT2, n, lanes, dtypes.uint32, dtypes.uint32, dtypes.float32)
    for flags in (DEFAULT_FLAGS, PORTABLE):
        out = np.zeros(n, np.float32)
        Program(source, "kernel", flags=flags)(out, *words, c)
        np.testing.assert_array_equal(out, wanted)


# ---- where they are chosen -------------------------------------------------------------------------------------------


def test_a_matrix_product_of_bfloat16_multiplies_pairs_and_nothing_else(compile_for: CompileFor) -> None:
    (a, _), (b, _) = draw(256, 256), draw(256, 256, seed=1)
    with_dots, without = plan(a @ b, compile_for), plan(a @ b, compile_for, dots=False)
    assert Ops.DOT2 in ops_of(with_dots)
    floats = [u for k in with_dots.kernels for u in k.linear.src if u.op in (Ops.MUL, Ops.ADD) and u.dtype.is_float]
    assert not floats, "the sums begin at 0 and are dot products all through"
    assert Ops.DOT2 not in ops_of(without)


def test_the_operand_of_the_rows_is_read_word_by_word_and_the_other_packed_once(
    compile_for: CompileFor,
) -> None:
    (a, _), (b, _) = draw(256, 256), draw(256, 256, seed=1)
    (kernel,) = plan(a @ b, compile_for).kernels
    loads = [u for u in kernel.linear.src if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.BUFFER]
    by_slot = {slot: {u.dtype for u in loads if u.src[0].src[0].arg.slot == slot} for slot in (1, 2)}
    assert by_slot[1] == {dtypes.uint32} and by_slot[2] == {dtypes.bfloat16.vec(16)}
    tiles = [u.arg for u in toposort(kernel.linear) if u.op is Ops.ALLOC and math.prod(u.arg.shape) > 1]
    assert [tile.dtype for tile in tiles] == [dtypes.uint32]


def test_words_that_nothing_shares_are_not_made(compile_for: CompileFor) -> None:
    """A row times a matrix: each element is used once.  A matrix times a column reads words as they lie."""
    (row, _), (matrix, _), (column, _) = draw(1, 512), draw(512, 512, seed=1), draw(512, 1, seed=2)
    assert Ops.DOT2 not in ops_of(plan(row @ matrix, compile_for))
    made = plan(matrix @ column, compile_for)
    assert Ops.DOT2 in ops_of(made) and Ops.PAIR not in ops_of(made)


def test_accumulators_of_dot_products_stay_in_their_registers(compile_for: CompileFor) -> None:
    gcc = shutil.which("gcc")
    if gcc is None or platform.machine() != "x86_64":
        pytest.skip("needs gcc for x86")
    (a, _), (b, _) = draw(256, 256), draw(256, 256, seed=1)
    (kernel,) = plan(a @ b, compile_for).kernels
    flags = [f for f in DEFAULT_FLAGS if not f.startswith("-m")]
    machine = ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx512bf16"]
    command = [gcc, *flags, *machine, "-std=gnu11", "-w", "-S", "-x", "c", "-", "-o", "-"]
    done = subprocess.run(command, input=kernel.source, capture_output=True, text=True, check=False)
    if "unrecognized" in done.stderr:
        pytest.skip("gcc does not know AVX512_BF16")
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    first, last = (lines.index("vdpbf16ps"), len(lines) - lines[::-1].index("vdpbf16ps"))
    assert lines[first:last].count("vdpbf16ps") >= 16
    assert not any(op.startswith(("vmovap", "vmovup")) for op in lines[first:last])


def test_sums_of_bfloat16_in_float32_are_dot_products_too(compile_for: CompileFor) -> None:
    (a, _), (b, _) = draw(64, 64), draw(64, 64, seed=1)
    made = plan(a.cast("float32") @ b.cast("float32"), compile_for)
    assert Ops.DOT2 in ops_of(made) and not made.temps, "widening is no reason to write float32 down"
    assert Ops.DOT2 in ops_of(plan((a.cast("float32") * b.cast("float32")).sum(1), compile_for))
    assert Ops.DOT2 in ops_of(plan(Tensor.einsum("ij,ij->i", a, b), compile_for))


def test_what_has_more_digits_than_a_bfloat16_is_not_rounded_to_it(compile_for: CompileFor) -> None:
    (a, _), (b, _) = draw(64, 64), draw(64, 64, seed=1)
    single = Tensor(np.ones((64, 64), np.float32))
    for value in (
        a.cast("float32") @ single,
        ((a.float() + 1.0) * b.float()).sum(1),
        (a * b).sum(1),  # a sum of products that are rounded
        a.half() @ b.half(),
        (a * b).max(1),
    ):
        assert Ops.DOT2 not in ops_of(plan(value, compile_for))


def test_a_user_s_own_loops_stay_as_they_are(compile_for: CompileFor) -> None:
    (a, _), (b, _) = draw(64, 64), draw(64, 64, seed=1)
    compile_for(WITH_DOTS)
    assert Ops.DOT2 not in ops_of(make_plan([(a @ b).uop], opt=Recompute(16)))


# ---- values ----------------------------------------------------------------------------------------------------------

SHAPES = [
    (64, 64, 64), (1, 512, 300), (300, 512, 1), (33, 17, 65), (100, 101, 130), (7, 301, 1000), (130, 2050, 130),
    (200, 1025, 96), (5, 15, 7), (2, 16, 2), (256, 1, 256), (40, 0, 40),
]  # fmt: skip


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_matrix_products(m: int, k: int, n: int) -> None:
    """Operands in any order of axes; the sum is as exact as one in float32."""
    (a, A), (b, B) = draw(m, k), draw(k, n, seed=1)
    wanted = A @ B
    size = np.abs(A) @ np.abs(B)
    forms = {"plain": a @ b, "columns": a @ brain(B.T).T, "rows": brain(A.T).T @ b, "both": (brain(B.T) @ brain(A.T)).T}
    for name, value in forms.items():
        error = np.abs(value.numpy() - wanted)
        assert np.all(error <= ROUNDED * np.abs(wanted) + 1e-6 * size), name
    wide = (a.cast("float32") @ b.cast("float32")).numpy()
    assert np.all(np.abs(wide - wanted) <= 1e-6 * size)


@pytest.mark.usefixtures("machine")
def test_batches_and_several_reduced_axes() -> None:
    (a, A), (b, B) = draw(3, 40, 34), draw(3, 34, 50, seed=1)
    np.testing.assert_allclose((a @ b).numpy(), A @ B, rtol=ROUNDED, atol=1e-5)
    (x, X), (w, W) = draw(20, 3, 17), draw(30, 3, 17, seed=1)
    got = Tensor.einsum("ack,bck->ab", x, w).numpy()
    np.testing.assert_allclose(got, np.einsum("ack,bck->ab", X, W), rtol=ROUNDED, atol=1e-5)


@pytest.mark.usefixtures("machine")
def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    A, B = draw(48, 65)[1], draw(65, 48, seed=1)[1]
    A[3, 7], A[5, 64], B[10, 9], B[64, 11] = np.nan, np.inf, -np.inf, np.nan
    got = (brain(A) @ brain(B)).numpy()
    with np.errstate(invalid="ignore"):
        wanted = A @ B
    np.testing.assert_allclose(got, wanted, rtol=ROUNDED, atol=1e-5)
    assert np.isfinite(got).sum() == 46 * 46


@pytest.mark.usefixtures("machine")
def test_below_the_normal_numbers_a_sum_loses_no_more_than_the_least_of_them_a_step() -> None:
    k = 64
    tiny = np.full((32, k), 2.0**-70)
    got = (brain(tiny) @ brain(tiny.T)).numpy()
    assert np.all(np.abs(got - k * 2.0**-140) <= k * LEAST_NORMAL)


@pytest.mark.usefixtures("machine")
def test_any_number_of_threads_gives_the_same_bits() -> None:
    (a, _), (b, _) = draw(300, 1100), draw(1100, 130, seed=1)
    seen = []
    for threads in (1, 2, 3):
        with num_threads(threads):
            seen.append((a @ b).numpy().tobytes())
    assert len(set(seen)) == 1
