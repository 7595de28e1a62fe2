"""Reductions against NumPy: values, accumulator types, NaN, nothing, axes."""

from __future__ import annotations

import numpy as np
import pytest
from tensors import ALL, FLOATS, bf16, same, same_all, sample

from uopc import Tensor, dtypes
from uopc.pipeline import make_plan
from uopc.tensor.shapes import AxisError

AXES = [None, 0, 1, -1, (0, 2), (2, 0), (-1, 1), (), (0, 1, 2)]
SHAPE = (3, 4, 2)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_reductions(dtype, name):
    a = sample(dtype, SHAPE)
    wide = 1e-2 if dtype == "float16" else 1e-5 if dtype == "float32" else None
    same_all(
        (
            (getattr(Tensor(a), name)(axis, keepdim), getattr(np, name)(a, axis, keepdims=keepdim))
            for axis in AXES
            for keepdim in (False, True)
        ),
        wide,
    )


@pytest.mark.parametrize("dtype", ALL)
def test_moments(dtype):
    a = sample(dtype, SHAPE)
    wide = 1e-2 if dtype == "float16" else 1e-5
    pairs = []
    for axis in AXES:
        if axis == ():
            continue
        for correction in (0, 1):
            pairs.append((Tensor(a).var(axis, correction=correction), np.var(a, axis, ddof=correction)))
            pairs.append((Tensor(a).std(axis, True, correction), np.std(a, axis, keepdims=True, ddof=correction)))
    same_all(pairs, wide)


def test_variance_of_shifted_data_is_right():
    a = np.float32(1e4 + np.random.default_rng(0).normal(size=1000))
    same(Tensor(a).var(), a.astype(np.float64).var(ddof=1).astype(np.float32), 1e-4)


def test_moments_of_too_little():
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):
        same(Tensor(np.zeros((2, 0))).mean(1), np.zeros((2, 0)).mean(1))
    assert np.isnan(Tensor([1.0]).var().item())
    assert np.isnan(Tensor(np.zeros(0)).std(correction=0).item())


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions(dtype, name):
    a = sample(dtype, SHAPE)
    for axis in (None, 0, 1, -1):
        same(getattr(Tensor(a), name)(axis), getattr(np, name)(a, axis))
        same(getattr(Tensor(a), name)(axis, True), getattr(np, name)(a, axis, keepdims=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_wins(dtype):
    a = np.array([[1, np.nan, 3, np.nan], [2, np.inf, 2, np.inf], [-np.inf] * 4], dtype)
    for name in ("max", "min", "argmax", "argmin", "any", "all", "sum"):
        for axis in (0, 1):  # lanes across and along
            for x in (a, np.tile(a, (1, 9)), np.tile(a, (9, 1))):
                with np.errstate(all="ignore"):
                    same(getattr(Tensor(x), name)(axis), getattr(np, name)(x, axis))


def test_positions_are_as_wide_as_masks():
    (*_, kernel) = make_plan([Tensor.empty(64, 1024).argmax(1).uop]).kernels
    assert "f32x" in kernel.source and "i64x" not in kernel.source


def test_nothing():
    a = np.zeros((0, 3), np.float32)
    for name in ("sum", "prod", "any", "all"):
        for axis in (None, 0, 1):
            same(getattr(Tensor(a), name)(axis), getattr(np, name)(a, axis))
    same(Tensor(a).max(1), a.max(1))
    for name, word in (("max", "max"), ("min", "min"), ("argmax", "argmax"), ("argmin", "argmin")):
        with pytest.raises(ValueError, match=rf"the {word} over ax.* of shape \(0, 3\) has no elements|shape \(0,\)"):
            getattr(Tensor(a), name)(0)
    same(Tensor(np.float32(3)).sum(), np.float32(3))
    same(Tensor(np.float32(3)).max(), np.float32(3))
    same(Tensor(np.float32(3)).argmax(), 0)


def test_dtype_of_sums():
    a = sample("int8")
    same(Tensor(a).sum(dtype="float32"), a.sum(dtype="float32"))
    same(Tensor(a).prod(0, dtype="int8"), a.prod(0, dtype="int8"))
    b = Tensor(np.ones(4000)).half()
    assert b.sum().dtype is dtypes.float16
    assert b.sum().item() == 4000  # a float16 accumulator would stop at 2048
    assert Tensor(np.full(100, 1000)).half().mean().item() == 1000  # though the sum overflows


def test_axes_out_of_range():
    t = Tensor.zeros(2, 3)
    for attempt in (
        lambda: t.sum(2),
        lambda: t.max(-3),
        lambda: t.softmax(2),
        lambda: t.cumsum(5),
        lambda: t.cumprod(2),
        lambda: t.argmax(2),
    ):
        for error in (IndexError, ValueError):
            with pytest.raises(error, match="is out of bounds for array of dimension 2"):
                attempt()
    with pytest.raises(ValueError, match="named twice"):
        t.sum((0, -2))
    with pytest.raises(TypeError, match=r"an axis is an int, not 1\.5"):
        t.sum(1.5)


def test_contains():
    t = Tensor([1, 2, 3])
    assert 2 in t
    assert 5 not in t
    with pytest.raises(TypeError, match="str"):
        assert "a" in t


def reference_softmax(a, axis):
    with np.errstate(all="ignore"):
        e = np.exp(a - a.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype):
    a = sample(dtype, SHAPE)
    a[0, 0] = np.inf
    a[1, 1] = -np.inf
    a[2, 2, 0] = np.nan
    a[0, 3, 0] = -np.inf
    w = a.astype(np.float64)
    wide = 2e-3 if dtype == "float16" else 1e-6
    for axis in (-1, 0, 1):
        expected = reference_softmax(w, axis)
        same(Tensor(a).softmax(axis), expected.astype(dtype), wide)
        with np.errstate(all="ignore"):
            logs = w - w.max(axis, keepdims=True)
            logs = logs - np.log(np.exp(logs).sum(axis, keepdims=True))
        same(Tensor(a).log_softmax(axis), logs.astype(dtype), wide)
    same(Tensor(np.zeros((2, 0), dtype)).softmax(), np.zeros((2, 0), dtype))
    same(Tensor(np.zeros((2, 0), dtype)).log_softmax(), np.zeros((2, 0), dtype))


def test_softmax_of_integers():
    assert Tensor([1, 2]).softmax().dtype is dtypes.float64


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp(dtype):
    rows = np.array(
        [
            [1, 2, 3],
            [-np.inf] * 3,
            [np.inf, 1, 2],
            [np.inf, -np.inf, 0],
            [np.nan, 1, -np.inf],
            [1000, 1000, -1000],
            [-np.inf, 5, 5],
        ],
        dtype,
    )
    expected = [np.log(np.exp([1.0, 2, 3]).sum()), -np.inf, np.inf, np.inf, np.nan, 1000 + np.log(2), 5 + np.log(2)]
    same(Tensor(rows).logsumexp(1), np.array(expected).astype(dtype))
    same(Tensor(rows[:2]).logsumexp(), np.array(expected[0]).astype(dtype))
    same(Tensor(rows).logsumexp(-1, keepdim=True), np.array(expected).astype(dtype)[:, None])
    same(Tensor(np.zeros((2, 0), dtype)).logsumexp(1), np.full(2, -np.inf, dtype))


def test_bfloat16():
    x = bf16(sample("float32", (3, 50)))
    t = Tensor(x).bfloat16()
    for made, expected in (
        (t.sum(1), x.sum(1)),
        (t.mean(0), x.mean(0)),
        (t.max(), x.max()),
        (t.var(1), x.var(1, ddof=1)),
        (t.softmax(), reference_softmax(x, 1)),
        (t.cumsum(1)[:, :3], np.cumsum(x, 1)[:, :3]),
        (t.logsumexp(1), np.log(np.exp(x).sum(1))),
    ):
        assert made.dtype is dtypes.bfloat16
        np.testing.assert_allclose(made.numpy(), expected, rtol=2**-7, atol=1e-2)
    assert t.argmax(1).tolist() == x.argmax(1).tolist()


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_a_tensor_without_axes_takes_0_and_minus_1(dtype, axis):
    """As NumPy (mean and var, which it refuses, as PyTorch); a scan has as many axes as the one that it runs along."""
    a = np.array(3, dtype)
    t, names = Tensor(a), ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all")
    pairs = [(getattr(t, name)(axis), getattr(a, name)(axis=axis)) for name in (*names, "cumsum", "cumprod", "squeeze")]
    pairs += [(getattr(t, name)(axis, keepdim=True), getattr(a, name)(axis=axis, keepdims=True)) for name in names]
    pairs += [(t.mean(axis), a.mean()), (t.var(axis, correction=0), a.var()), (t.std(axis, correction=0), a.std())]
    float_of_it = t.float()
    pairs += [(float_of_it.softmax(axis), np.float32(1)), (float_of_it.log_softmax(axis), np.float32(0))]
    pairs += [(float_of_it.logsumexp(axis), np.float32(float(a)))]
    same_all(pairs)


@pytest.mark.parametrize("axis", [1, -2, (0,), (-1,)])
def test_other_axes_of_a_tensor_without_axes_are_refused(axis):
    t = Tensor(3.0)
    names = ("sum", "max", "mean", "any", "var", "logsumexp")
    names += ("argmax", "cumsum", "softmax", "log_softmax") if isinstance(axis, int) else ()
    for name in names:
        with pytest.raises(AxisError, match="out of bounds"):
            getattr(t, name)(axis)
    for axis in (0, -1):
        for name in ("sort", "argsort", "flip"):  # NumPy has no order of a number
            with pytest.raises(AxisError, match="out of bounds"):
                getattr(t, name)(axis)
