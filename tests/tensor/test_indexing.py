"""Indexing against NumPy: slices, integer arrays in every arrangement, checks of positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensors import same, sample

from uopc import Tensor
from uopc.ops import Ops

A = sample("int32", (5, 4, 3))


@pytest.fixture(params=["memory", "lazy"])
def t(request):
    return Tensor(A) if request.param == "memory" else Tensor(A - 1) + 1


BASIC = [
    np.s_[0],
    np.s_[-1],
    np.s_[1:3],
    np.s_[::2],
    np.s_[::-1],
    np.s_[4:0:-2],
    np.s_[-2:],
    np.s_[10:],
    np.s_[:, 1:1],
    np.s_[3:1],
    np.s_[...],
    np.s_[..., 0],
    np.s_[0, ..., 1],
    np.s_[None],
    np.s_[:, None, 1],
    np.s_[..., None],
    np.s_[2, 1, 0],
    np.s_[::3, ::-1, -1],
    np.s_[:, :, ::-2],
    np.s_[-100:100],
    np.s_[np.int64(2)],
    np.s_[()],
    np.s_[0, None, 0, None, 0],
    np.s_[1::-1],
]


@pytest.mark.parametrize("key", BASIC, ids=str)
def test_basic(t, key):
    same(t[key], A[key])


@given(st.data())
def test_slices_of_slices(data):
    array = np.arange(60).reshape(5, 4, 3)
    tensor = Tensor(array)
    for _ in range(data.draw(st.integers(1, 4))):
        key = tuple(data.draw(st.slices(n)) for n in array.shape)
        array, tensor = array[key], tensor[key]
    assert tensor.shape == array.shape
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert (tensor + 1).tolist() == (array + 1).tolist()


I, J = np.array([[0, 2], [-1, 3]]), np.array([1, -2])
ADVANCED = [
    (I,),
    (slice(None), I % 4),
    (I, J),
    (I, slice(1, 3)),
    (I, slice(None), J),
    (slice(None), J, J),
    (Ellipsis, J),
    (J, Ellipsis, J),
    (None, J),
    (J, None, J),
    (0, J),
    (J, 0),
    (0, slice(None), J),
    (slice(None, None, 2), J),
    (J, J, J),
    (slice(None), J, Ellipsis, 0),
    (J, slice(None, None, -1), 0),
    (None, 1, None, J),
    (np.zeros((0, 2), int),),
    (np.array(3),),
    (np.array(3), J),
    (I.astype(np.uint8) % 4,),
    (slice(0, 0), J),
]


@pytest.mark.parametrize("key", ADVANCED, ids=str)
def test_integer_arrays(t, key):
    same(t[key], A[key])
    same(t[tuple(Tensor(k) if isinstance(k, np.ndarray) else k for k in key)], A[key])


def test_lists(t):
    same(t[[0, 2]], A[[0, 2]])
    same(t[[[0], [-1]], [1, 2]], A[[[0], [-1]], [1, 2]])
    same(t[[]], A[[]])


def test_positions_that_are_proven_are_not_computed(monkeypatch):
    from uopc.tensor import core

    monkeypatch.setattr(core, "compute", None)
    t = Tensor(A) + 0
    picked = t[Tensor.arange(5), Tensor.arange(5) % 4]
    assert picked.shape == (5, 3)
    assert picked.uop.op is Ops.GATHER
    assert t[Tensor.arange(2) - 2].shape == (2, 4, 3)


def test_lazy_positions_are_computed_and_checked(t):
    same(t[Tensor(J) + 0], A[J])
    with pytest.raises(IndexError, match="position 5 is out of bounds for axis 0 of size 5"):
        t[Tensor(J) + 4]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (5, "position 5 is out of bounds for axis 0 of size 5"),
        ((0, -5), "position -5 is out of bounds for axis 1 of size 4"),
        ([0, 5], "position 5 .* size 5"),
        (([0], [4]), "axis 1 of size 4"),
        (np.array([-6]), "position -6"),
        ((0, 0, 0, 0), "too many indices"),
        ((Ellipsis, Ellipsis), "at most one ellipsis"),
        (1.0, "1.0 is not an index"),
        ("a", "'a' is not an index"),
        (np.array([1.0]), "integers, not float64"),
        (A > 0, "boolean mask selects a number of elements that depends on data; use where"),
        (True, "boolean mask"),
        ([True, False, True, False, True], "boolean mask"),
    ],
    ids=str,
)
def test_refusals(t, key, message):
    with pytest.raises(IndexError, match=message):
        t[key]


def test_masks_as_tensors_are_refused(t):
    with pytest.raises(IndexError, match=r"np\.nonzero"):
        t[t > 0]
    same(t[np.nonzero(A > 0)], A[A > 0])
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        t[[0, 1], [0, 1, 2]]


def test_zero_sized():
    t = Tensor(np.zeros((0, 3), np.float32))
    same(t[:, 1], np.zeros(0, np.float32))
    same(t[np.zeros(0, int)], np.zeros((0, 3), np.float32))
    with pytest.raises(IndexError, match="size 0"):
        t[0]


def test_gather(t):
    for axis, shape in ((0, (2, 4, 3)), (1, (5, 7, 3)), (-1, (2, 3, 2)), (2, (5, 4, 0))):
        index = np.random.default_rng(0).integers(-A.shape[axis], A.shape[axis], shape)
        rows = A[tuple(slice(0, n) if i != axis % 3 else slice(None) for i, n in enumerate(shape))]
        expected = np.take_along_axis(rows, index, axis)
        same(t.gather(axis, index), expected)
        same(t.gather(axis, Tensor(index)), expected)
    with pytest.raises(IndexError, match="axis 1 of size 4"):
        t.gather(1, np.full((5, 1, 3), 4))
    with pytest.raises(ValueError, match=r"index of shape \(6, 1, 3\) does not fit"):
        t.gather(1, np.zeros((6, 1, 3), int))
    with pytest.raises(ValueError, match="does not fit"):
        t.gather(1, [0])
    with pytest.raises(TypeError, match="integer positions, not float32"):
        t.gather(0, Tensor.zeros(1, 1, 1))


def test_iteration(t):
    for part, array in zip(t, A, strict=True):
        same(part, array)
    with pytest.raises(TypeError, match="0-d"):
        iter(Tensor(3))
    assert [int(x) for x in Tensor([1, 2, 3])] == [1, 2, 3]


def test_a_tensor_is_not_written():
    with pytest.raises(TypeError, match="item assignment"):
        Tensor(A)[0] = 1
