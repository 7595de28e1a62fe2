"""Constructors against NumPy: values, dtypes, and that they take no memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensors import ALL, same, sample

from uopc import Tensor, dtypes
from uopc.ops import Ops


def test_constants():
    same(Tensor.zeros(2, 3), np.zeros((2, 3), np.float32))
    same(Tensor.ones((3,), dtype="int8"), np.ones(3, np.int8))
    same(Tensor.zeros(), np.float32(0))
    same(Tensor.zeros(0, 2, dtype=np.float64), np.zeros((0, 2)))
    same(Tensor.full((2,), 3), np.full(2, 3))
    same(Tensor.full(2, 2.5), np.full(2, 2.5, np.float32))
    same(Tensor.full((1, 2), True), np.full((1, 2), True))
    same(Tensor.full((2,), np.float64(3)), np.full(2, 3.0))
    same(Tensor.full((2,), Tensor(7), dtype="uint8"), np.full(2, 7, np.uint8))
    same(Tensor.full((2,), np.nan), np.full(2, np.nan, np.float32))
    empty = Tensor.empty(2, 3, dtype="int16")
    assert (empty.shape, empty.dtype) == ((2, 3), dtypes.int16)
    for wrong in ((-1,), (2, -3)):
        with pytest.raises(ValueError, match="negative size"):
            Tensor.zeros(wrong)
    with pytest.raises(TypeError, match="a size is an int"):
        Tensor.ones(2.0)
    with pytest.raises(ValueError, match="one value"):
        Tensor.full((2,), [1, 2])


@pytest.mark.parametrize("dtype", [*ALL, "bfloat16"])
def test_likes(dtype):
    t = Tensor(sample("float32")).cast(dtype)
    for made, value in ((t.zeros_like(), 0), (t.ones_like(), 1), (t.full_like(1), 1)):
        assert (made.dtype, made.shape) == (t.dtype, t.shape)
        assert (made.numpy() == value).all()
    assert t.zeros_like(dtype="int8").dtype is dtypes.int8
    assert (t.empty_like().dtype, t.empty_like().shape) == (t.dtype, t.shape)


@pytest.mark.parametrize("args", [(5,), (0,), (-3,), (2, 7), (7, 2, -2), (0, 10, 3), (3, 3), (-5, 5, 4)])
def test_arange_of_ints(args):
    same(Tensor.arange(*args), np.arange(*args))
    same(Tensor.arange(*args, dtype="int8"), np.arange(*args, dtype="int8"))
    same(Tensor.arange(*args, dtype="float32"), np.arange(*args, dtype="float32"))
    same(Tensor.arange(*args) * 2 + 1, np.arange(*args) * 2 + 1)


def test_arange_of_floats():
    same(Tensor.arange(0, 1, 0.1), np.arange(0, 1, 0.1).astype(np.float32))
    same(Tensor.arange(5.0), np.arange(5, dtype=np.float32))
    same(Tensor.arange(1, 0, -0.25, dtype="float64"), np.arange(1, 0, -0.25))
    same(Tensor.arange(0.5, 4, dtype="float16"), np.arange(0.5, 4).astype(np.float16))
    same(Tensor.arange(2.0, 1.0), np.zeros(0, np.float32))
    with pytest.raises(ValueError, match="step other than 0"):
        Tensor.arange(0, 1, 0)
    for args in ((math.inf,), (0, math.nan), (0.0, 1e300, 1e-300)):
        with pytest.raises(ValueError, match="no finite number of elements"):
            Tensor.arange(*args)
    with pytest.raises(OverflowError, match="beyond int64"):
        Tensor.arange(2**63, 2**63 + 2)
    same(Tensor.arange(2**63, 2**63 + 2, dtype="uint64"), np.array([2**63, 2**63 + 1], "uint64"))


def test_linspace():
    for args in ((0, 1, 5), (-2.5, 7, 4), (3, 3, 3), (1, 0, 7), (0, 1, 1), (0, 1, 0)):
        same(Tensor.linspace(*args), np.linspace(*args).astype(np.float32))
        same(Tensor.linspace(*args, dtype="float64"), np.linspace(*args))
    assert Tensor.linspace(0, 0.1, 7).numpy()[-1] == np.float32(0.1)
    for args in ((1, -1, 7), (-3, 3, 13), (-0.1, 0.1, 21)):
        assert Tensor.linspace(*args, dtype="float64").numpy()[args[2] // 2] == 0  # half way, exactly
    for args in ((0, 10, 11), (1, -1, 7), (0, 7, 50), (-5, 9, 4), (0, 10**9, 12)):
        exact = [(args[0] * (args[2] - 1) + i * (args[1] - args[0])) // (args[2] - 1) for i in range(args[2])]
        same(Tensor.linspace(*args, dtype="int64"), exact)
    same(Tensor.linspace(-1e308, 1e307, 3, dtype="float64"), np.linspace(-1e308, 1e307, 3), rtol=1e-15)
    with pytest.raises(ValueError, match="linspace of -1"):
        Tensor.linspace(0, 1, -1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [*ALL, "bfloat16"])
def test_python_numbers_are_converted_to_the_dtype_asked_for_once(dtype):
    """Not by way of the default float: 1e300 is no inf, 1e-50 is True, 0.1 keeps its digits, a half is rounded once."""
    values = [0.1, 2.0, 1 + 2**-8 + 2**-30, 1 + 2**-11 + 2**-40, 1e-50, *([1e300, -1e39] * (dtype == "float64"))]
    if dtype == "bfloat16":
        wanted = np.array([0.10009765625, 2.0, 1 + 2**-7, 1.0, 0.0], np.float32)
    else:
        wanted = np.array(values, dtype)
    array = Tensor(values, dtype=dtype)
    assert array.dtype.name.rstrip("_") == dtype
    np.testing.assert_array_equal(array.numpy(), wanted)
    like = Tensor.zeros(2, dtype=dtype)
    for value, one in zip(values, wanted):
        for made in (
            Tensor(value, dtype=dtype),
            Tensor.full((2,), value, dtype=dtype),
            like.full_like(value),
            Tensor([[value]], dtype=dtype),
        ):
            assert made.dtype is array.dtype
            np.testing.assert_array_equal(made.numpy(), np.full(made.shape, one))


@pytest.mark.filterwarnings("error")
def test_python_numbers_beside_float64_keep_their_digits():
    ones, values = np.ones(2), [0.1, 1e300]
    t, held = Tensor(ones), Tensor(np.array([True, False]))
    same(t + values, ones + values, rtol=0)
    same(values - t, values - ones, rtol=0)
    same(t @ values, ones @ values, rtol=0)
    same(Tensor([16777216]) < [16777217.0], np.array([True]))
    same(held.where(values, t), np.array([0.1, 1.0]), rtol=0)
    same(held.where(t, values), np.array([1.0, 1e300]), rtol=0)
    same(held.where(values, 0.7), np.array([0.1, 0.7], np.float32), rtol=0)
    same(held.where(0.1, t), np.array([0.1, 1.0]), rtol=0)
    same(t.masked_fill(held, 1e300), np.array([1e300, 1.0]), rtol=0)
    same(t.maximum(1e300), np.full(2, 1e300), rtol=0)


def test_ints_beyond_64_bits_are_floats_where_that_is_asked_for():
    same(Tensor(2**64, dtype="float64"), np.float64(2**64), rtol=0)
    same(Tensor([2**64, 1], dtype="float64"), np.array([2.0**64, 1.0]), rtol=0)
    same(Tensor.full((1,), 2**100, dtype="float32"), np.full(1, 2.0**100, np.float32), rtol=0)
    with pytest.raises(OverflowError, match="64 bits"):
        Tensor(2**64, dtype="int8")
    with pytest.raises(OverflowError, match="too large for a float"):
        Tensor(10**400, dtype="float64")


@pytest.mark.parametrize("default", [dtypes.float64, dtypes.bfloat16])
def test_another_default_float(default, monkeypatch):
    monkeypatch.setattr(dtypes, "default_float", default)
    for made in (Tensor([0.1, 3.0]), Tensor.full((2,), 0.1)):
        assert made.dtype is default
        assert made.numpy()[0] == (0.1 if default is dtypes.float64 else 0.10009765625)


def test_eye():
    same(Tensor.eye(3), np.eye(3, dtype=np.float32))
    same(Tensor.eye(2, 4, dtype="int64"), np.eye(2, 4, dtype=np.int64))
    same(Tensor.eye(3, 0), np.eye(3, 0, dtype=np.float32))


@pytest.mark.parametrize("k", [0, 1, -1, 2, -4, 9, 2**62, -(2**62)])
def test_triangles(k):
    for a in (
        sample("float32", (3, 4)),
        sample("int8", (2, 4, 3)),
        sample("bool", (2, 2)),
        np.full((2, 2), np.nan, np.float32),
    ):
        same(Tensor(a).tril(k), np.tril(a, k))
        same(Tensor(a).triu(k), np.triu(a, k))
    with pytest.raises(ValueError, match="needs two axes"):
        Tensor([1]).tril()


def test_nothing_is_materialised():
    causal = Tensor.ones(8, 8, dtype="bool").tril()
    for t in (causal, Tensor.arange(10), Tensor.eye(4), Tensor.linspace(0, 1), Tensor.zeros(3)):
        assert not [u for u in t.uop.toposort() if u.op is Ops.BUFFER]
