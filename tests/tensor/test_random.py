"""Random numbers: the cipher against its published vectors, reproducibility, and distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensors import FLOATS

import uopc
from uopc import Tensor, dtypes
from uopc.ops import Ops
from uopc.tensor.random import threefry
from uopc.uop import UOp

# The known answers published with Random123 (kat_vectors, threefry2x32, 20 rounds): counter, key, result.
VECTORS = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_threefry(counter, key, expected):
    assert threefry(*key, *counter) == expected
    words = [UOp.const(w, dtypes.uint32) for w in (*key, *counter)]
    assert tuple(Tensor(u).item() for u in threefry(*words)) == expected


def test_the_seed_decides():
    uopc.manual_seed(7)
    first = [Tensor.rand(5).tolist(), Tensor.randn(5).tolist(), Tensor.randint(5).tolist(), Tensor.rand(5).tolist()]
    Tensor.manual_seed(7)
    assert [
        Tensor.rand(5).tolist(),
        Tensor.randn(5).tolist(),
        Tensor.randint(5).tolist(),
        Tensor.rand(5).tolist(),
    ] == first
    assert first[0] != first[3]
    uopc.manual_seed(8)
    assert Tensor.rand(5).tolist() != first[0]
    with pytest.raises(TypeError, match="seed"):
        uopc.manual_seed(1.5)


def test_element_i_does_not_depend_on_the_shape():
    uopc.manual_seed(1)
    a = Tensor.rand(100).numpy()
    uopc.manual_seed(1)
    b = Tensor.rand(10, 5)[3:5].numpy()
    np.testing.assert_array_equal(a[15:25], b.reshape(-1))


def test_threads_do_not_matter(way):
    if way == "interpreted":
        return
    seen = []
    for n in (1, 2, 3):
        with uopc.num_threads(n):
            uopc.manual_seed(5)
            seen.append(np.concatenate([Tensor.randn(50_000).numpy(), Tensor.rand(100, 501)[::3].numpy().ravel()]))
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[0], seen[2])


def test_a_tensor_keeps_its_numbers():
    t = Tensor.randn(50)
    np.testing.assert_array_equal((t * 2).numpy(), t.numpy() * 2)
    np.testing.assert_array_equal(t.numpy(), t.numpy())


@pytest.mark.parametrize("dtype", [*FLOATS, "bfloat16"])
def test_uniform(dtype):
    uopc.manual_seed(0)
    t = Tensor.rand(100, 200, dtype=dtype)
    x = t.numpy().astype(np.float64)
    assert t.dtype.name == dtype
    assert 0 <= x.min() < x.max() < 1
    counts = np.histogram(x, 16, (0, 1))[0]
    assert ((counts - 1250) ** 2 / 1250).sum() < 45  # chi square of 15 degrees: 37.7 at 0.1 %
    if dtype == "float64":
        assert len(np.unique(x)) == x.size


@pytest.mark.parametrize("dtype", [*FLOATS, "bfloat16"])
def test_normal(dtype):
    uopc.manual_seed(0)
    t = Tensor.randn(200, 100, dtype=dtype)
    x = t.numpy().astype(np.float64).ravel()
    assert t.dtype.name == dtype
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.03
    assert abs(x.std() - 1) < 0.03
    within = np.array([(np.abs(x) < s).mean() for s in (0.5, 1, 2, 3)])
    np.testing.assert_allclose(within, [math.erf(s / math.sqrt(2)) for s in (0.5, 1, 2, 3)], atol=0.015)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 10, None),
        (-5, 5, "int8"),
        (0, 256, "uint8"),
        (3, 4, "int32"),
        (-(2**31), 2**31, "int32"),
        (0, 2**40, "int64"),
        (0, 2**64, "uint64"),
        (-(2**63), 2**63, "int64"),
    ],
)
def test_integers(low, high, dtype):
    uopc.manual_seed(0)
    t = Tensor.randint(5000, low=low, high=high, dtype=dtype)
    assert t.dtype.name == (dtype or "int64")
    x = np.array([float(v) for v in t.tolist()])
    assert low <= x.min()
    assert x.max() < high or high > 2**53
    assert abs((x - low).mean() / (high - low) - 0.5 * (high - low - 1) / (high - low)) < 0.02
    if high - low <= 256:
        assert len(np.unique(x)) == high - low


def test_likes_and_shapes():
    t = Tensor.zeros(2, 3, dtype="float16")
    for made in (t.rand_like(), t.randn_like(), Tensor.rand((2, 3)), Tensor.randint(2, 3)):
        assert made.shape == (2, 3)
    assert t.randn_like().dtype is dtypes.float16
    assert Tensor.rand(0, 3).tolist() == []
    assert Tensor.rand().shape == ()


def test_refusals():
    for attempt, error, message in (
        (lambda: Tensor.rand(-1), ValueError, "negative size"),
        (lambda: Tensor.rand(2, dtype="int32"), TypeError, "random floats of int32"),
        (lambda: Tensor.randint(2, low=3, high=3), ValueError, "from 3 to 3"),
        (lambda: Tensor.randint(2, low=0, high=257, dtype="uint8"), ValueError, "uint8"),
        (lambda: Tensor.randint(2, dtype="float32"), TypeError, "float32"),
        (lambda: Tensor.randint(2, low=0.5), TypeError, "a bound"),
    ):
        with pytest.raises(error, match=message):
            attempt()


def test_one_kernel_serves_every_call():
    def shape_of(t):
        return [(u.op, u.dtype, u.shape, None if u.op is Ops.BUFFER else u.arg) for u in t.uop.toposort()]

    assert shape_of(Tensor.rand(7)) == shape_of(Tensor.rand(7))
    buffers = [u for u in Tensor.rand(7).uop.toposort() if u.op is Ops.BUFFER]
    assert [b.shape for b in buffers] == [(2,)]
