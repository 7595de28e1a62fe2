"""Movement against NumPy, on arrays and on what is not in memory yet."""

from __future__ import annotations

import numpy as np
import pytest
from tensors import same, sample

from uopc import Tensor
from uopc.ops import Ops

A = sample("int32", (2, 3, 4))


@pytest.fixture(params=["memory", "lazy"])
def t(request):
    """A seen as it stands, and as the result of a computation."""
    return Tensor(A) if request.param == "memory" else Tensor(A - 1) + 1


def test_reshape(t):
    same(t.reshape(6, 4), A.reshape(6, 4))
    same(t.reshape((4, -1)), A.reshape(4, -1))
    same(t.reshape([-1]), A.reshape(-1))
    same(t.reshape(1, 2, 3, 1, 4), A.reshape(1, 2, 3, 1, 4))
    same(t.reshape(24).reshape(3, 8).reshape(2, 12), A.reshape(2, 12))
    same(Tensor(3).reshape(1, 1), [[3]])
    same(Tensor.zeros(0, 3).reshape(3, -1), np.zeros((3, 0), np.float32))
    assert t.reshape(2, 3, 4).uop is t.uop
    assert t.reshape(24).reshape(2, 12).uop.src[0] is t.uop


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 5), r"\(2, 3, 4\) \(24 elements\) to \(5, 5\)"),
        ((-1, -1), "only one size can be -1"),
        ((5, -1), r"\(2, 3, 4\)"),
        ((-2, -12), "negative size"),
        ((-24,), "negative size"),
        ((0, -1), r"\(0, -1\)"),
    ],
)
def test_reshape_refusals(t, shape, message):
    with pytest.raises(ValueError, match=message):
        t.reshape(shape)


def test_reshape_takes_integers(t):
    same(t.reshape(np.int64(4), 6), A.reshape(4, 6))
    with pytest.raises(TypeError, match=r"a size is an int, not 2\.0"):
        t.reshape(2.0, 12)


def test_flatten_and_unflatten(t):
    same(t.flatten(), A.reshape(-1))
    same(t.flatten(1), A.reshape(2, 12))
    same(t.flatten(0, 1), A.reshape(6, 4))
    same(t.flatten(-2, -1), A.reshape(2, 12))
    same(Tensor(3).flatten(), [3])
    same(t.unflatten(2, (2, -1)), A.reshape(2, 3, 2, 2))
    same(t.unflatten(-3, (1, 2)), A.reshape(1, 2, 3, 4))
    with pytest.raises(ValueError, match="comes after"):
        t.flatten(2, 1)
    with pytest.raises(ValueError, match=r"of size 4, to \(3, 2\)"):
        t.unflatten(2, (3, 2))


def test_squeeze_and_unsqueeze(t):
    u = t.unsqueeze(0).unsqueeze(-1)
    same(u, A[None, ..., None])
    same(t.unsqueeze(1), A[:, None])
    same(u.squeeze(), A)
    same(u.squeeze(0), A[..., None])
    same(u.squeeze(-1), A[None])
    same(u.squeeze((0, -1)), A)
    assert u.squeeze(1).shape == u.shape
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"axis {wrong} is out of bounds"):
            t.unsqueeze(wrong)


def test_expand(t):
    same(t.expand(5, 2, 3, 4), np.broadcast_to(A, (5, 2, 3, 4)))
    same(t[:, :1].expand(2, 3, -1), np.broadcast_to(A[:, :1], (2, 3, 4)))
    same(t[:, :1].expand((-1, 0, 4)), np.broadcast_to(A[:, :1], (2, 0, 4)))
    for shape, message in (((2, 3), "more axes"), ((2, 5, 4), "only size 1 expands"), ((-2, 2, 3, 4), "negative size")):
        with pytest.raises(ValueError, match=message):
            t.expand(shape)


def test_repeat(t):
    same(t.repeat(1, 2, 3), np.tile(A, (1, 2, 3)))
    same(t.repeat(2, 1, 1, 2), np.tile(A, (2, 1, 1, 2)))
    same(t.repeat((0, 1, 1)), np.tile(A, (0, 1, 1)))
    with pytest.raises(ValueError, match="number for each axis"):
        t.repeat(2)
    with pytest.raises(ValueError, match="negative"):
        t.repeat(1, -1, 1)


def test_order_of_axes(t):
    same(t.permute(2, 0, 1), A.transpose(2, 0, 1))
    same(t.permute((-1, 0, 1)), A.transpose(2, 0, 1))
    same(t.transpose(), A.swapaxes(0, 1))
    same(t.transpose(0, -1), A.swapaxes(0, 2))
    same(t.T, A.T)
    same(t.mT, A.swapaxes(1, 2))
    same(t.flip(), np.flip(A))
    same(t.flip(1), np.flip(A, 1))
    same(t.flip((0, -1)), np.flip(A, (0, 2)))
    same(t.flip(0, 2), np.flip(A, (0, 2)))
    for wrong in ((0, 1), (0, 0, 1)):
        with pytest.raises(ValueError, match="not an order"):
            t.permute(wrong)
    with pytest.raises(IndexError, match="axis 3 is out of bounds"):
        t.transpose(0, 3)
    with pytest.raises(ValueError, match="mT needs two axes"):
        Tensor([1]).mT  # noqa: B018 - the property raises
    with pytest.raises(ValueError, match="named twice"):
        t.flip(1, -2)


def test_pad(t):
    same(t.pad(((1, 0), (0, 2), (3, 4))), np.pad(A, ((1, 0), (0, 2), (3, 4))))
    same(t.pad((None, None, (1, 1)), value=7), np.pad(A, ((0, 0), (0, 0), (1, 1)), constant_values=7))
    same(t.pad((1, 2)), np.pad(A, ((0, 0), (0, 0), (1, 2))))
    same(t.pad((1, 2, 3, 4)), np.pad(A, ((0, 0), (3, 4), (1, 2))))
    same(t.float().pad((0, 1), -np.inf)[..., -1], np.full((2, 3), -np.inf, np.float32))
    assert t.pad((0, 0)) is t
    for wrong, message in (
        ((1,), "two numbers an axis"),
        (((1, 1),), "pair for each of the 3 axes"),
        ((-1, 0), "negative padding"),
        (((1, 1, 1),) * 3, "pair"),
    ):
        with pytest.raises(ValueError, match=message):
            t.pad(wrong)
    with pytest.raises(TypeError, match=r"int32 by 0\.5"):
        t.pad((1, 1), 0.5)
    with pytest.raises(TypeError, match=r"int32 by 2\.5"):
        t.pad((1, 1), np.float32(2.5))
    with pytest.raises(OverflowError, match="300 is out of bounds for uint8"):
        t.cast("uint8").pad((1, 1), 300)
    with pytest.raises(TypeError, match="paddings are a list or tuple, not 3"):
        t.pad(3)
    assert np.signbit(t.float().pad((1, 1), -0.0).numpy()[0, 0, 0])


def test_shrink(t):
    same(t.shrink(((0, 1), None, (1, 3))), A[:1, :, 1:3])
    same(t.shrink(((1, 1), None, None)), A[1:1])
    for wrong, message in (
        (((0, 1),), "each of the 3 axes"),
        (((0, 3), None, None), "0 <= first"),
        (((-1, 1), None, None), "0 <= first"),
    ):
        with pytest.raises(ValueError, match=message):
            t.shrink(wrong)


def test_cat(t):
    b = sample("int64", (2, 1, 4), seed=1)
    same(t.cat(Tensor(b), axis=1), np.concatenate([A, b], 1))
    same(Tensor.cat(t, t, t), np.concatenate([A, A, A]))
    same(Tensor.cat([t, Tensor(b)], axis=-2), np.concatenate([A, b], 1))
    same(t.cat(), A)
    same(t.cat(Tensor.zeros(2, 0, 4), axis=1), A.astype(np.float64))
    with pytest.raises(ValueError, match=r"\(2, 3, 4\) and \(2, 1, 4\) along axis 0"):
        t.cat(Tensor(b))
    with pytest.raises(ValueError, match="at least one"):
        Tensor.cat([])
    with pytest.raises(TypeError, match="joins Tensors, not ndarray"):
        t.cat(A)
    with pytest.raises(IndexError, match="axis 3"):
        t.cat(t, axis=3)


def test_stack(t):
    b = sample("float64", (2, 3, 4), seed=1)
    for axis in (0, 1, 3, -1, -2):
        same(t.stack(Tensor(b), axis=axis), np.stack([A.astype(np.float64), b], axis))
    same(Tensor.stack([Tensor(1), Tensor(2)]), [1, 2])
    with pytest.raises(ValueError, match="cannot stack shapes"):
        t.stack(t.T)


def test_thousands_of_parts():
    parts = [Tensor(np.float32([i])) for i in range(6000)]
    same(Tensor.cat(parts), np.arange(6000, dtype=np.float32))
    same(Tensor.stack(parts), np.arange(6000, dtype=np.float32)[:, None])
    assert len(Tensor.cat(parts).uop.toposort()) == 6001


def test_split_and_chunk(t):
    for got, expected in (
        (t.split(2, 2), [A[..., :2], A[..., 2:]]),
        (t.split(2, axis=1), [A[:, :2], A[:, 2:]]),
        (t.split([1, 0, 3], -1), [A[..., :1], A[..., 1:1], A[..., 1:]]),
        (t.chunk(2, 2), [A[..., :2], A[..., 2:]]),
        (t.chunk(2, 1), [A[:, :2], A[:, 2:]]),
        (t.chunk(5), [A[:1], A[1:]]),
    ):
        assert len(got) == len(expected)
        for part, array in zip(got, expected):
            same(part, array)
    for wrong, message in ((0, "positive size"), ([1, 1], "do not add up"), ([-1, 5], "do not add up")):
        with pytest.raises(ValueError, match=message):
            t.split(wrong, 2)
    with pytest.raises(ValueError, match="positive number"):
        t.chunk(0)


def test_movement_of_memory_needs_no_kernel(monkeypatch):
    from uopc.tensor import core

    monkeypatch.setattr(core, "compute", None)
    t = Tensor(A).T[1:, ::-1].permute(1, 0, 2).unsqueeze(0).expand(3, -1, -1, -1)
    same(t, np.broadcast_to(A.T[1:, ::-1].transpose(1, 0, 2), (3, 3, 3, 2)))
    same(Tensor.ones(2, 3)[0], np.ones(3, np.float32))


def test_a_chain_of_thousands_does_not_recurse():
    t = Tensor(np.ones(4, np.float32))
    for _ in range(5000):
        t = t * 0.999 + 0.001
    same(t, np.ones(4, np.float32), rtol=1e-3)
    assert t.uop.op is Ops.BUFFER
