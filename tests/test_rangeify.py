"""rangeify: values of movement ops and choices, and the loops that are made.  Every fault that random graphs found
has its test here."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from fuzz_graphs import check

from uopc import Tensor
from uopc.count import times
from uopc.dtype import dtypes, from_numpy
from uopc.ops import AxisType, Ops, ReduceArg
from uopc.opt.layout import layout_pass
from uopc.pipeline import make_plan
from uopc.rangeify import Ctx, Opts, lower, movement
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp


def memory(array, dtype=None):
    array = np.asarray(array, order="C")
    return new_buffer(dtype or from_numpy(array.dtype), array.shape, array.reshape(-1))


def counting(*shape, dtype=np.float32):
    return memory(np.arange(math.prod(shape)).astype(dtype).reshape(shape))


def agree(*roots):
    """Compiled values are what the interpreter says, whatever is fused, and the same bits for any number of threads."""
    failures = check(list(roots))
    assert not failures, failures[0].text


def total(x, *axes, op=Ops.ADD):
    return UOp(Ops.REDUCE, (x,), ReduceArg(op, axes or tuple(range(len(x.shape)))))


@pytest.mark.parametrize("shape", [(3, 4), (5,), (0, 7), ()])
def test_pad_reads_memory_inside_only(shape):
    padded = UOp(Ops.PAD, (counting(*shape),), tuple((a + 1, 9) for a in range(len(shape))))
    agree(padded, total(padded + 1.0))


@pytest.mark.parametrize("sizes", [(4, 4), (3, 0, 5), (1, 2, 3, 4), (0, 0)])
@pytest.mark.parametrize("axis", [0, 1])
def test_cat_inside_an_expression(sizes, axis):
    parts = tuple(counting(*((n, 3) if axis == 0 else (3, n))) + float(k) for k, n in enumerate(sizes))
    joined = UOp(Ops.CAT, parts, axis)
    agree(joined, joined * 2.0, total(joined.alu(Ops.SQRT), axis), UOp(Ops.FLIP, (joined,), (axis,)) + 1.0)


def test_cat_of_memory_inside_an_expression():
    """Once two buffers side by side had no rule: random graph 32."""
    joined = UOp(Ops.CAT, (counting(4), counting(5)), 0)
    agree(joined.alu(Ops.SQRT), total(joined), UOp(Ops.SHRINK, (joined,), ((4, 6),)) + 1.0)


@pytest.mark.parametrize("shape", [(0, 9, 5), (5, 0), (1, 0, 1), (0,)])
def test_reshape_of_nothing(shape):
    empty = UOp(Ops.RESHAPE, (counting(0) + 1.0,), shape)
    agree(empty, total(empty), total(empty, 0, op=Ops.MAX), UOp(Ops.PAD, (empty,), ((1, 2),) * len(shape)))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_halves_reduce_in_lanes(axes):
    """An accumulator of lanes lost them where it became float32: random graph 20."""
    x = counting(5, 33, dtype=np.float16) * 0.25
    agree(total(x, *axes), total(x, *axes, op=Ops.MAX), total(x.alu(Ops.MIN, 1.0), *axes, op=Ops.MUL))


def test_choices_between_vectors_in_memory():
    """Vectors in memory are of another C type than those in registers: random graphs 16 and 43."""
    a, b, c = (counting(9, 7) + float(k) for k in range(3))
    stacked = UOp(Ops.STACK, (counting(9, 7), counting(9, 7) * 2.0, c))
    agree(stacked + counting(3, 9, 7), UOp(Ops.PAD, (total(counting(8, 8, 5, 7), 0, 1, 3),), ((2, 3),)), a + b)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.bool_])
def test_one_value_fills_lanes(dtype):
    """A half does not spread by arithmetic: random graph 3."""
    x = counting(5, 1, 1, dtype=dtype)
    agree(UOp(Ops.EXPAND, (x,), (5, 65, 1)), UOp(Ops.EXPAND, (counting(1, 1, dtype=dtype),), (7, 33)))


def test_a_reduction_that_threads_share_runs_before_their_loop():
    """It is computed by each chunk, on memory of its own: random graphs 99, 1237 and 1345."""
    x = counting(7, 4, 16, 3, dtype=np.int8)
    agree(total(x <= x, 0, 2, op=Ops.MAX), total(counting(17, 33, 5, dtype=np.int64) * 0, 2))
    sums = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (total(counting(17)),), (1,)),), (17,))
    row = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (counting(17) - sums * 0.0625,), (1, 17)),), (300, 17))
    agree(total(UOp(Ops.EXPAND, (counting(300, 1),), (300, 17)) * row, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16, np.bool_])
def test_lanes_that_pad_decides_are_constants(dtype):
    """A vector of one value may be written as that value: random graph 1479."""
    padded = UOp(Ops.PAD, (counting(33, 5, dtype=dtype),), ((0, 0), (0, 3)))
    turned = UOp(Ops.PERMUTE, (padded,), (1, 0))
    agree(
        turned,
        turned.alu(Ops.MAX, turned),
        turned.eq(padded.dtype.convert(0)),
        turned.cast(dtypes.float64).alu(Ops.TRUNC),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.float16, np.bool_])
def test_chosen_narrow_scalars_fill_lanes(dtype):
    """C makes an int of the choice between two shorts, which does not go with a vector of shorts: random graph
    20481."""
    rows = [
        memory(np.arange(7).astype(dtype)),
        *(UOp(Ops.EXPAND, (memory(np.array([k]).astype(dtype)),), (7,)) for k in (3, 5)),
    ]
    stacked = UOp(Ops.STACK, tuple(rows))
    padded = UOp(Ops.PAD, (UOp(Ops.EXPAND, (memory(np.ones((2, 1), dtype)),), (2, 33)),), ((1, 1), (0, 0)))
    agree(stacked.alu(Ops.MAX, stacked), stacked.eq(stacked), padded.alu(Ops.MAX, counting(4, 33, dtype=dtype)))


def test_division_of_flipped_positions_rounds_down():
    """(121 - 11i + j) // 4 once lost a multiple of 4, and C rounds what became negative towards zero: random graph
    94."""
    column = UOp(Ops.EXPAND, (counting(33, 1),), (33, 4))
    rows = UOp(Ops.FLIP, (UOp(Ops.RESHAPE, (column,), (12, 11)),), (0,))
    agree(rows, total(rows, 1, op=Ops.MAX), total(rows.alu(Ops.SQRT), 0))


@pytest.mark.parametrize("op", [Ops.MAX, Ops.ADD])
def test_a_reduction_under_a_pad_is_not_about_its_gate(op):
    """Lanes of the padded axis once mixed with those of the reduction inside: random graph 20666."""
    x = counting(8)
    inner = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (total(x, op=op),), (1,)),), (8,))
    padded = UOp(Ops.PAD, (x - inner,), ((1, 0),))
    agree(total(padded), total(padded, op=Ops.MIN), padded)
    wide = UOp(
        Ops.PAD,
        (
            counting(64, 65)
            - UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (total(counting(64, 65), 1, op=op),), (64, 1)),), (64, 65)),
        ),
        ((3, 0), (0, 5)),
    )
    agree(wide, total(wide, 1), total(wide, 0), total(wide))


# ---- loop structure --------------------------------------------------------------------------------------------------


class Flash:
    """The options of a fused attention kernel: output columns in registers, rows on threads."""

    def __init__(self, columns):
        self.columns = columns

    def layout(self, roots):
        return layout_pass(roots)

    def lower(self, body, out):
        return lower(body, out, Ctx(opts=Opts(upcast={1: self.columns}, thread=0)))


def attention(n, d, flat=False):
    """Row by row; ``flat``: the scores and the rows' maxima meet in a vector of n*n, as a reshape would have it."""
    q, k, v = (Tensor(np.zeros((n, d), np.float32)) for _ in range(3))
    scores = (q @ k.T) * 0.125
    most = scores.max(1, keepdim=True).expand(n, n)
    weights = (scores.reshape(n * n) - most.reshape(n * n)).exp().reshape(n, n) if flat else (scores - most).exp()
    return ((weights / weights.sum(1, keepdim=True)) @ v).uop


def passes(root, n, d, opt):
    """How often the attention kernel computes each product of q and k, from its loops."""
    kernel = make_plan([root], fuse_reduce=True, opt=opt).kernels[-1]
    runs = times(kernel.linear)
    slots = [u.arg.slot for u in kernel.linear.src if u.op is Ops.BUFFER]
    products = 0
    for u, n_runs in runs.items():
        loads = [s.src[0].src[0] for s in u.src[:2] if s.op is Ops.LOAD]
        if u.op in (Ops.MUL, Ops.FMA) and len(loads) == 2 and all(b.op is Ops.BUFFER for b in loads):
            products += n_runs * u.dtype.count
    assert len(slots) == 4
    return products / (n * n * d)


@pytest.mark.parametrize(("columns", "expected"), [(8, 10), (16, 6), (32, 4), (64, 3)])
def test_passes_over_the_scores(columns, expected):
    """One for the maximum, one for the sum, and one for each group of columns."""
    assert passes(attention(128, 64), 128, 64, Flash(columns)) == expected


def test_reshapes_simplify_before_anything_asks_what_an_index_depends_on():
    assert passes(attention(64, 64, flat=True), 64, 64, Flash(16)) == 6


def test_without_simplification_in_the_reshape_rule_work_is_done_again():
    """So the test above can fail: the row's maximum is asked for at (i*N + j)//N, which is another index for each j."""
    with mock.patch.object(movement, "simplify_index", lambda expr, ctx: expr):
        assert passes(attention(64, 64, flat=True), 64, 64, Flash(16)) > 6


def test_an_accumulator_stands_in_the_loops_of_its_index():
    x = counting(6, 7, 8)
    kernel = make_plan([total(x, 2)], opt=Plain()).kernels[0]
    ranges = [u for u in kernel.linear.src if u.op is Ops.RANGE]
    starts = [u for u in kernel.linear.src if u.op is Ops.STORE and u.src[1].op is Ops.CONST]
    assert [r.src[0].arg for r in ranges] == [6, 7, 8]
    assert len(starts) == 1 and set(starts[0].ranges) == set(ranges[:2])


class Plain:
    """Plain loops."""

    def layout(self, roots):
        return roots

    def lower(self, body, out):
        return lower(body, out, Ctx())


def test_unrolled_copies_share_a_loop():
    kernel = make_plan([total(counting(64, 64), 1)], opt=Flash4()).kernels[0]
    assert sum(u.op is Ops.RANGE and u.arg.axis_type is AxisType.REDUCE for u in kernel.linear.src) == 1


class Flash4(Plain):
    """Four rows at a time, four steps at a time."""

    def lower(self, body, out):
        return lower(body, out, Ctx(opts=Opts(upcast={0: 4}, unroll=4)))
