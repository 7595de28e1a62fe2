"""The interpreter that other tests trust is itself held against NumPy, written out case by case."""

from __future__ import annotations

import numpy as np
import pytest
from reference import evaluate

from uopc.dtype import ALL, dtypes, float32_to_bfloat16, from_numpy
from uopc.ops import Level, Ops, ReduceArg, ViewArg
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp


def buffer(array, dtype=None):
    array = np.asarray(array)
    return new_buffer(dtype or from_numpy(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1))


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("op", "arg", "expected"),
    [
        (Ops.RESHAPE, (4, 6), X.reshape(4, 6)),
        (Ops.PERMUTE, (2, 0, 1), X.transpose(2, 0, 1)),
        (Ops.SHRINK, ((0, 1), (1, 3), (2, 2)), X[0:1, 1:3, 2:2]),
        (Ops.FLIP, (0, 2), X[::-1, :, ::-1]),
        (Ops.STRIDE, (1, 2, 3), X[:, ::2, ::3]),
        (Ops.PAD, ((1, 0), (0, 2), (0, 0)), np.pad(X, ((1, 0), (0, 2), (0, 0)))),
        (Ops.STAGE, Level.KERNEL, X),
        (Ops.REDUCE, ReduceArg(Ops.ADD, (0, 2)), X.sum((0, 2))),
        (Ops.REDUCE, ReduceArg(Ops.MAX, (1,)), X.max(1)),
    ],
)
def test_movement_and_reduction(op, arg, expected):
    (got,) = evaluate([UOp(op, (buffer(X),), arg)])
    np.testing.assert_array_equal(got, expected)


def test_expand_view_iota_stack_gather():
    column = UOp(Ops.EXPAND, (buffer(X[:, :1, :1]),), (2, 3, 4))
    view = UOp(Ops.VIEW, (buffer(np.arange(10)),), ViewArg((3, 2), (-1, 4), 3))
    iota = UOp(Ops.IOTA, (), 3, dtypes.int32)
    stack = UOp(Ops.STACK, (iota, iota * 2))
    i, j = buffer([[0, 1], [1, 0]]), buffer([[2, 2], [0, 1]])
    gather = UOp(Ops.GATHER, (buffer(X[0]), i, j))
    got = evaluate([column, view, stack, gather])
    np.testing.assert_array_equal(got[0], np.broadcast_to(X[:, :1, :1], X.shape))
    np.testing.assert_array_equal(got[1], [[3, 7], [2, 6], [1, 5]])
    np.testing.assert_array_equal(got[2], [[0, 1, 2], [0, 2, 4]])
    np.testing.assert_array_equal(got[3], X[0][[[0, 1], [1, 0]], [[2, 2], [0, 1]]])
    with pytest.raises(IndexError, match="axis 0 of size 3"):
        evaluate([UOp(Ops.GATHER, (buffer(X[0]), i + 2, j))])


def test_scalars_spread_and_empty_axes_reduce_to_the_identity():
    x = buffer(np.zeros((0, 3), np.float32))
    total, largest = (UOp(Ops.REDUCE, (x + 1.0,), ReduceArg(op, (0,))) for op in (Ops.ADD, Ops.MAX))
    got = evaluate([total, largest])
    np.testing.assert_array_equal(got[0], [0, 0, 0])
    np.testing.assert_array_equal(got[1], [-np.inf] * 3)


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_int], ids=lambda d: d.name)
def test_integer_division_and_shifts_are_as_the_op_table_says(dtype):
    lo, hi = dtype.min, dtype.max
    width = 8 * dtype.itemsize
    values = sorted({lo, lo + 1, max(lo, -7), max(lo, -1), 0, 1, 2, 7, width - 1, width, hi})
    a, b = (v.ravel() for v in np.meshgrid(np.asarray(values, dtype.numpy), np.asarray(values, dtype.numpy)))
    ua, ub = buffer(a), buffer(b)
    got = evaluate([ua // ub, ua % ub, ua << ub, ua >> ub])

    def wrap(v):
        return dtype.convert(v)

    pairs = [(int(p), int(q)) for p, q in zip(a, b)]
    assert got[0].tolist() == [wrap(p // q) if q else 0 for p, q in pairs]
    assert got[1].tolist() == [p % q if q else 0 for p, q in pairs]
    assert got[2].tolist() == [wrap(p << q) if 0 <= q < width else 0 for p, q in pairs]
    assert got[3].tolist() == [p >> q if 0 <= q < width else (-1 if p < 0 else 0) for p, q in pairs]


def test_nan_propagates_through_max_and_min_alone_and_reduced():
    x, y = buffer(np.float32([1, np.nan, 3])), buffer(np.float32([np.nan, 2, 1]))
    got = evaluate([x.maximum(y), x.minimum(y), UOp(Ops.REDUCE, (x,), ReduceArg(Ops.MAX, (0,)))])
    np.testing.assert_array_equal(got[0], [np.nan, np.nan, 3])
    np.testing.assert_array_equal(got[1], [np.nan, np.nan, 1])
    assert np.isnan(got[2])


def test_halves_compute_in_float32_and_round_where_an_operation_ends():
    x = np.float16([1.0, 2048.0])
    half = buffer(x)
    kept = ((half.cast(dtypes.float32) + 1.0) + half.cast(dtypes.float32) * -1.0).cast(dtypes.float16)
    rounded = (half + 1.0) + half.alu(Ops.MUL, -1.0)  # 2049 is no float16
    got = evaluate([kept, rounded, half + 1.0])
    assert got[0].dtype == np.float16
    np.testing.assert_array_equal(got[0], [1, 1])
    np.testing.assert_array_equal(got[1], [1, 0])
    np.testing.assert_array_equal(got[2], x + np.float16(1))


def test_bfloat16_is_carried_as_bits_and_comes_back_as_float32():
    values = np.float32([1.0, 3.140625, -0.0, np.inf, np.nan])
    b = buffer(float32_to_bfloat16(values), dtypes.bfloat16)
    got = evaluate([b, b.cast(dtypes.float64), b.bitcast(dtypes.uint16)])
    np.testing.assert_array_equal(got[0], values)
    assert got[0].dtype == np.float32 and got[1].dtype == np.float64
    np.testing.assert_array_equal(got[2], float32_to_bfloat16(values))
    # 1 + 2^-8 + 2^-40 lies above the middle of two neighbours: float64 to float32 to bfloat16 would round twice
    tie = buffer(np.float64([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8 - 2.0**-40]))
    np.testing.assert_array_equal(evaluate([tie.cast(dtypes.bfloat16)])[0], [1 + 2.0**-7, 1, 1 + 2.0**-7])


def test_exact_computes_every_float_in_float64():
    x = buffer(np.float32([1.0]))
    total = (x + 2.0**-40) + -1.0
    assert evaluate([total])[0][0] == 0
    (got,) = evaluate([total], exact=True)
    assert got.dtype == np.float64 and got[0] == 2.0**-40


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("target", [d for d in ALL if d.is_int], ids=lambda d: d.name)
def test_float_to_int_in_range_is_numpy(source, target):
    x = source([0.0, -0.0, 0.99, 1.5, 100.7, 2.0 ** (8 * target.itemsize - 2)])
    x = np.concatenate([x, -x]) if target.kind == "i" else x
    np.testing.assert_array_equal(evaluate([buffer(x).cast(target)])[0], x.astype(target.numpy))


def test_a_deep_graph_does_not_recurse():
    x = buffer(np.float64([1.0]))
    u = x
    for _ in range(20_000):
        u = u + 1.0
    assert evaluate([u])[0][0] == 20_001
