"""transpose: squares of scattered accesses are read and written by rows."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from uopc import Tensor
from uopc.ops import Ops
from uopc.pipeline import make_plan
from uopc.runtime.device import host
from uopc.uop import UOp, dtypes


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 2, (100, 60)).astype(t) for t in (bool, np.int8, np.uint16, np.int32, np.float32, "d")]


def scattered(linear: UOp) -> list[UOp]:
    """Accesses at a vector of addresses."""
    return [u for u in linear.src if u.op in (Ops.LOAD, Ops.STORE) and u.src[0].src[1].dtype is not dtypes.index]


def shuffles(linear: UOp) -> int:
    return sum(u.op is Ops.SHUFFLE for u in linear.src)


@pytest.mark.parametrize("x", arrays(), ids=lambda x: str(x.dtype))
def test_a_transposed_copy_shuffles_whole_rows(x):
    copy = Tensor(x).T.contiguous()
    (kernel,) = make_plan([copy.uop]).kernels
    assert shuffles(kernel.linear) and not scattered(kernel.linear)
    assert np.array_equal(copy.numpy(), x.T)


def test_an_access_behind_another_one_is_made_over_what_becomes_of_that():
    """Two columns of a tile, read along it, and behind them a tile that is written from what was read."""
    rng = np.random.default_rng(4)
    q, k, u = (rng.standard_normal(s).astype(np.float32) for s in ((63, 64), (2, 64), (3, 63)))
    t = Tensor(u) @ (Tensor(q) @ Tensor(k).T * 0.1).softmax(0)
    s = q.astype(np.float64) @ k.T * 0.1
    e = np.exp(s - s.max(0))
    np.testing.assert_allclose(t.numpy(), u @ (e / e.sum(0)), rtol=1e-5, atol=1e-6)


def test_rows_of_a_cascade_are_packed_by_shuffles():
    q, k, v = (Tensor(np.ones((64, 32), np.float32)) for _ in range(3))
    (kernel,) = make_plan([((q @ k.T).softmax(-1) @ v).uop]).kernels
    lanes = host().vector_bytes // 4
    # what is packed and what is written, a square at a time
    assert shuffles(kernel.linear) == 2 * lanes * (lanes.bit_length() - 1)
    assert not scattered(kernel.linear)


@pytest.mark.parametrize("x", arrays(), ids=lambda x: str(x.dtype))
@pytest.mark.parametrize("part", [slice(None, None, 2), slice(1, None, 2), slice(None, None, -1)], ids=str)
def test_every_other_element_and_backwards(x, part):
    line = x.reshape(-1)
    copy = Tensor(line)[part].contiguous()
    (kernel,) = make_plan([copy.uop]).kernels
    assert shuffles(kernel.linear) and not scattered(kernel.linear)
    assert np.array_equal(copy.numpy(), line[part])


def test_nothing_behind_the_last_element_is_read():
    """The array ends where its page does, and the next page cannot be read."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    x = np.frombuffer(pages, np.float32)[: mmap.PAGESIZE // 4]
    x[:] = np.arange(len(x))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    assert mprotect(ctypes.c_void_p(x.ctypes.data + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    for part in (slice(1, None, 2), slice(None, None, 2), slice(None, None, -1)):
        assert np.array_equal((Tensor(x)[part] + 0).numpy(), x[part])
