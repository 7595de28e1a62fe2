"""Convolution and pooling against NumPy's sliding windows in float64: sizes, steps, gaps, edges, groups, dtypes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tensors import ALL, bf16, same, sample

import uopc
from uopc import Tensor, dtypes


def over_windows(x, kernel, stride, dilation):
    """(..., places, elements) of the last axes, as NumPy sees them."""
    n = len(kernel)
    axes = tuple(range(x.ndim - n, x.ndim))
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    steps = tuple(slice(None, None, s) for s in stride)
    return seen[(..., *steps, *(slice(None, None, d) for d in dilation))]


def padded(x, edges, value=0):
    return np.pad(x, ((0, 0),) * (x.ndim - len(edges)) + tuple(edges), constant_values=value)


def convolved(x, w, stride, edges, dilation, groups):
    n = w.ndim - 2
    seen = over_windows(padded(x, edges), w.shape[2:], stride, dilation)
    parts = []
    for channels, own in zip(np.split(seen, groups, -2 * n - 1), np.split(w, groups, 0)):
        letters = "hw"[:n], "ij"[:n]
        parts.append(np.einsum(f"nc{letters[0]}{letters[1]},oc{letters[1]}->no{letters[0]}", channels, own))
    return np.concatenate(parts, 1)


SIZES = [
    # x, w, stride, padding, dilation, groups
    ((2, 3, 8, 7), (4, 3, 3, 3), 1, 1, 1, 1),
    ((2, 3, 8, 7), (4, 3, 3, 3), 1, 0, 1, 1),
    ((1, 4, 9, 11), (6, 2, 3, 2), (2, 3), (1, 2), (2, 1), 2),
    ((2, 4, 6, 6), (4, 1, 3, 3), 1, 1, 1, 4),
    ((2, 4, 6, 6), (8, 1, 5, 5), 2, 2, 1, 4),
    ((1, 2, 5, 5), (3, 2, 1, 1), 1, 0, 1, 1),
    ((1, 2, 5, 5), (3, 2, 1, 1), 3, 1, 1, 1),
    ((1, 2, 5, 6), (3, 2, 5, 6), 1, 0, 1, 1),
    ((1, 1, 13, 13), (2, 1, 3, 3), 1, 4, 4, 1),
    ((1, 2, 7, 7), (2, 2, 2, 2), 5, 0, 1, 1),
    ((0, 2, 4, 4), (3, 2, 3, 3), 1, 1, 1, 1),
    ((2, 0, 4, 4), (3, 0, 3, 3), 1, 1, 1, 1),
    ((2, 2, 4, 4), (0, 2, 3, 3), 1, 1, 1, 1),
    ((1, 3, 20, 34), (9, 3, 3, 3), 1, 1, 1, 1),
]


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


@pytest.mark.parametrize("case", SIZES, ids=str)
def test_conv2d(case):
    shape, weight, stride, padding, dilation, groups = case
    x, w = sample("int64", shape), sample("int64", weight, seed=1)
    edges = [(p, p) for p in pair(padding)]
    exact = convolved(x, w, pair(stride), edges, pair(dilation), groups)
    same(Tensor(x).conv2d(w, None, stride, padding, dilation, groups), exact)
    f, g = x.astype(np.float32), w.astype(np.float32)
    bias = sample("float32", weight[:1], seed=2)
    made = Tensor(f).conv2d(Tensor(g), bias, stride, padding, dilation, groups)
    same(made, (exact + bias[:, None, None].astype(np.float64)).astype(np.float32), 1e-5)


@pytest.mark.parametrize("dtype", ALL)
def test_dtypes_promote_and_stay(dtype):
    x, w = sample(dtype, (1, 2, 5, 5)), sample(dtype, (2, 2, 3, 3), seed=1)
    wide = x.astype(np.float64) if dtype == "float16" else x
    exact = convolved(wide, w.astype(wide.dtype), (1, 1), [(1, 1)] * 2, (1, 1), 1).astype(x.dtype)
    same(Tensor(x).conv2d(w, padding=1), exact, 5e-3 if dtype == "float16" else None)
    mixed = Tensor(x).conv2d(w.astype(np.float64), padding=1)
    assert mixed.dtype is dtypes.float64


def test_bfloat16():
    x, w = bf16(sample("float32", (1, 2, 5, 5))), bf16(sample("float32", (2, 2, 3, 3), seed=1))
    made = Tensor(x).bfloat16().conv2d(Tensor(w).bfloat16())
    assert made.dtype is dtypes.bfloat16
    exact = convolved(x.astype(np.float64), w.astype(np.float64), (1, 1), [(0, 0)] * 2, (1, 1), 1)
    np.testing.assert_allclose(made.numpy(), exact, rtol=2**-8, atol=2**-6)


@pytest.mark.parametrize(("kernel", "dilation"), list(itertools.product([(3, 3), (2, 5), (4, 1)], [1, 2])))
def test_same_keeps_sizes_and_valid_pads_nothing(kernel, dilation):
    x, w = sample("float64", (1, 2, 9, 10)), sample("float64", (2, 2, *kernel), seed=1)
    missing = [dilation * (k - 1) for k in kernel]
    edges = [(m // 2, m - m // 2) for m in missing]
    made = Tensor(x).conv2d(w, padding="same", dilation=dilation)
    same(made, convolved(x, w, (1, 1), edges, (dilation,) * 2, 1), 1e-12)
    none = [(0, 0)] * 2
    same(Tensor(x).conv2d(w, padding="valid"), convolved(x, w, (1, 1), none, (1, 1), 1), 1e-12)


def test_one_image_and_the_function():
    x, w = sample("float32", (2, 6, 7)), sample("float32", (3, 2, 3, 3), seed=1)
    exact = convolved(x[None].astype(np.float64), w, (1, 1), [(0, 0)] * 2, (1, 1), 1)[0].astype(np.float32)
    same(Tensor(x).conv2d(w), exact, 1e-5)
    same(uopc.conv2d(x, w), exact, 1e-5)


@pytest.mark.parametrize("stride, padding, dilation, groups", [(1, 0, 1, 1), (2, 3, 2, 2), (3, 1, 1, 4)])
def test_conv1d(stride, padding, dilation, groups):
    x, w = sample("float64", (2, 4, 17)), sample("float64", (8, 4 // groups, 4), seed=1)
    made = Tensor(x).conv1d(w, None, stride, padding, dilation, groups)
    same(made, convolved(x, w, (stride,), [(padding, padding)], (dilation,), groups), 1e-12)
    line = Tensor(x[0]).conv1d(w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    same(line, made.numpy()[0], 1e-12)


def test_infinities_stay_in_their_windows():
    x = np.zeros((1, 1, 6, 6))
    x[0, 0, 2, 2] = np.inf
    made = Tensor(x).conv2d(np.ones((1, 1, 3, 3)), padding=1).numpy()
    assert np.isinf(made[0, 0, 1:4, 1:4]).all() and np.isinf(made).sum() == 9


POOLS = [
    # shape, kernel, stride, padding, dilation
    ((2, 3, 8, 8), 2, None, 0, 1),
    ((2, 3, 9, 7), 3, 2, 1, 1),
    ((1, 2, 10, 12), (3, 2), (1, 3), (1, 0), 1),
    ((1, 2, 12, 11), 3, 1, 2, 2),
    ((7, 5), 2, 1, 1, 1),
    ((0, 2, 4, 4), 2, None, 0, 1),
    ((1, 1, 5, 40), (5, 1), 1, 0, 1),
]


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_max_pool2d(case):
    shape, kernel, stride, padding, dilation = case
    steps = pair(kernel if stride is None else stride)
    edges = [(p, p) for p in pair(padding)]
    for dtype in ("float32", "float16", "int16", "uint8", "bool"):
        x = sample(dtype, shape)
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(dtype).min if x.dtype.kind == "i" else 0
        seen = over_windows(padded(x, edges, least), pair(kernel), steps, pair(dilation))
        same(Tensor(x).max_pool2d(kernel, stride, padding, dilation), seen.max((-2, -1)), 0)


def test_a_window_with_nan_has_no_other_maximum():
    x = sample("float32", (1, 1, 6, 6))
    x[0, 0, 1, 4] = np.nan
    made = Tensor(x).max_pool2d(2, 1).numpy()
    assert np.isnan(made[0, 0, 0:2, 3:5]).all() and np.isnan(made).sum() == 4
    lowest = Tensor(np.full((1, 1, 3, 3), -np.inf, np.float32)).max_pool2d(2, 1, 1)
    assert np.isneginf(lowest.numpy()).all()


@pytest.mark.parametrize("case", [p for p in POOLS if p[-1] == 1], ids=str)
def test_avg_pool2d(case):
    shape, kernel, stride, padding, _ = case
    steps, edges = pair(kernel if stride is None else stride), [(p, p) for p in pair(padding)]
    for dtype in ("float32", "float16", "int16", "bool"):
        x = sample(dtype, shape)
        wanted = x.dtype if x.dtype.kind == "f" else np.float64
        total = over_windows(padded(x.astype(np.float64), edges), pair(kernel), steps, (1, 1)).sum((-2, -1))
        there = over_windows(padded(np.ones(shape), edges), pair(kernel), steps, (1, 1)).sum((-2, -1))
        every = float(np.prod(pair(kernel)))
        same(Tensor(x).avg_pool2d(kernel, stride, padding), (total / every).astype(wanted))
        same(Tensor(x).avg_pool2d(kernel, stride, padding, False), (total / there).astype(wanted))


def test_refusals():
    x, w = Tensor.zeros(1, 4, 5, 5), Tensor.zeros(6, 4, 3, 3)
    for arguments, message in (
        ((Tensor.zeros(6, 3, 3, 3),), r"\(1, 4, 5, 5\) with weight \(6, 3, 3, 3\) in 1 groups"),
        ((Tensor.zeros(6, 2, 3, 3), None, 1, 0, 1, 4), "in 4 groups"),
        ((Tensor.zeros(5, 2, 3, 3), None, 1, 0, 1, 2), "groups to divide 5"),
        ((Tensor.zeros(6, 4, 3),), r"needed are \(N, C, H, W\)"),
        ((Tensor.zeros(6, 4, 0, 3),), "at least one element"),
        ((w, Tensor.zeros(5)), r"the bias has shape \(5,\), and \(6,\) is needed"),
        ((w, None, 0), "stride=0: accepted are one or 2 numbers of at least 1"),
        ((w, None, (1, 2, 3)), r"stride=\(1, 2, 3\)"),
        ((w, None, 1, -1), "padding=-1"),
        ((w, None, 1, "full"), "padding='full'; accepted"),
        ((w, None, 2, "same"), r"stride=\(2, 2\) does not"),
        ((w, None, 1, 0, 3), r"a window of \(3, 3\), dilated by \(3, 3\), does not fit into \(5, 5\)"),
    ):
        with pytest.raises(ValueError, match=message):
            x.conv2d(*arguments)
    for wrong in (None, 2.0, "a"):
        with pytest.raises(TypeError, match="conv2d takes"):
            x.conv2d(wrong)
    with pytest.raises(TypeError, match="conv2d takes"):
        x.conv2d(w, "a")
    with pytest.raises(ValueError, match=r"padding=2 is more than half of a window of \(2, 2\)"):
        x.max_pool2d(2, padding=2)
    with pytest.raises(ValueError, match=r"a window of \(6, 6\)"):
        x.avg_pool2d(6)
    with pytest.raises(ValueError, match="there are not as many"):
        Tensor.zeros(3).max_pool2d(2)
