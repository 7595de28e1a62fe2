"""transpose: squares of scattered accesses are read and written by rows."""

from __future__ import annotations

import numpy as np
import pytest

from uopc import Tensor
from uopc.ops import Ops
from uopc.pipeline import make_plan
from uopc.runtime.device import device
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


def test_rows_of_a_cascade_are_packed_by_shuffles():
    q, k, v = (Tensor(np.ones((64, 32), np.float32)) for _ in range(3))
    (kernel,) = make_plan([((q @ k.T).softmax(-1) @ v).uop]).kernels
    lanes = device().vector_bytes // 4
    # what is packed and what is written, a square at a time
    assert shuffles(kernel.linear) == 2 * lanes * (lanes.bit_length() - 1)
    assert not scattered(kernel.linear)
