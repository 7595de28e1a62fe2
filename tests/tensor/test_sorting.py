"""sort, argsort and topk against NumPy: every dtype, lengths around powers of two, axes, NaN, ties."""

from __future__ import annotations

import numpy as np
import pytest
from tensors import ALL, bf16, same, sample, special

from uopc import Tensor, dtypes
from uopc.pipeline import make_plan

LENGTHS = [1, 2, 3, 8, 15, 16, 17, 31, 33, 64, 100, 129]


def stable(x, axis=-1, descending=False):
    """The positions in order, equal elements as they come."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


def check(x, axis=-1, descending=False):
    t = Tensor(x)
    order = stable(x, axis, descending)
    same(t.argsort(axis, descending), order)
    same(t.sort(axis, descending), np.take_along_axis(x, order, axis), 0)


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n):
    for dtype in ("int16", "float32"):
        check(sample(dtype, (3, n)))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ALL)
def test_dtypes(dtype, descending):
    x = sample(dtype, (2, 37))
    if x.dtype.kind in "iu":
        x[0, :4] = [np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).min, np.iinfo(dtype).max]
    check(x, descending=descending)


def test_integers_of_64_bits_that_differ_in_either_half():
    x = np.array([[1 << 40, 5, -(1 << 40), (1 << 40) + 1, 5, -1, 0, 1 << 32, (1 << 32) - 1, -(1 << 32)]])
    check(x)
    check(x.astype(np.uint64))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_is_the_greatest_and_zeros_are_equal(dtype):
    x = np.concatenate([special(dtype), -special(dtype), special(dtype)[::-1]])
    assert np.isnan(x).sum() == 3 and np.signbit(x[np.isnan(x)]).any()
    t = Tensor(x)
    order = np.argsort(x, kind="stable")
    same(t.argsort(), order)
    same(t.sort(), x[order])
    same(t.argsort(descending=True), stable(x, descending=True))
    assert np.isnan(t.sort(descending=True).numpy()[:3]).all()
    zeros = np.array([0.0, -0.0, 0.0, -0.0], dtype)
    same(Tensor(zeros).argsort(), np.arange(4))
    np.testing.assert_array_equal(np.signbit(Tensor(zeros).sort().numpy()), [True, True, False, False])


def test_bfloat16():
    x = bf16(sample("float32", (50,)))
    made = Tensor(x).bfloat16().sort()
    assert made.dtype is dtypes.bfloat16
    np.testing.assert_array_equal(made.numpy(), np.sort(x))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_axes(axis):
    check(sample("int8", (5, 20, 3)), axis)
    check(sample("float32", (5, 20, 3)), axis, descending=True)


def test_equal_elements_stay_as_they_were():
    for dtype in ("bool", "int64", "float32"):
        x = sample(dtype, (300,)) * 0 + np.arange(300).astype(bool).astype(dtype)
        same(Tensor(x).argsort(), np.argsort(x, kind="stable"))
        same(Tensor(x).argsort(descending=True), stable(x, descending=True))


def test_nothing_and_one():
    for shape, axis in (((0,), 0), ((0, 3), 0), ((0, 3), 1), ((3, 0), 1), ((1,), 0), ((3, 1), 1)):
        x = sample("float32", shape)
        same(Tensor(x).sort(axis), np.sort(x, axis))
        same(Tensor(x).argsort(axis), np.argsort(x, axis))
    for wrong in ("sort", "argsort"):
        with pytest.raises(ValueError, match="axis"):
            getattr(Tensor(1.0), wrong)()
        with pytest.raises(ValueError, match="axis"):
            getattr(Tensor.zeros(2, 2), wrong)(2)


@pytest.mark.parametrize("k", [0, 1, 4, 9])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(k, largest):
    x = sample("int32", (9, 4))
    values, places = Tensor(x).topk(k, 0, largest)
    order = stable(x, 0, largest)[:k]
    same(places, order)
    same(values, np.take_along_axis(x, order, 0))
    line = np.array([1.0, np.nan, 3.0, 2.0], np.float32)
    values, places = Tensor(line).topk(2)
    same(places, [1, 2])
    same(values, line[[1, 2]])


def test_topk_refuses_more_than_there_are():
    for k in (-1, 4):
        with pytest.raises(ValueError, match=rf"k={k} along axis 1 of shape \(2, 3\)"):
            Tensor.zeros(2, 3).topk(k)
    with pytest.raises(TypeError, match="k is an int"):
        Tensor.zeros(3).topk(1.5)


def test_the_number_of_kernels_grows_with_the_square_of_the_logarithm():
    counts = [len(make_plan([Tensor.empty(1 << bits).sort().uop]).kernels) for bits in (4, 8, 12, 16)]
    assert counts == [2, 10, 22, 38]


@pytest.mark.slow
@pytest.mark.parametrize("n", [5000, 70001])
def test_many(n):
    check(np.random.default_rng(0).standard_normal(n, np.float32))
    check(np.random.default_rng(0).integers(0, 50, (3, n // 3)))
