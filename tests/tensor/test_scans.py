"""cumsum and cumprod against NumPy in float64: dtypes, axes, lengths of one block and of many, and how much work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensors import ALL, same, same_all, sample

from uopc import Tensor
from uopc.count import count
from uopc.pipeline import make_plan


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", ALL)
def test_dtypes(dtype, name):
    pairs = []
    for shape in ((3, 4, 2), (70,), (2, 33), (17, 3), (0, 3), (1,), ()):
        a = sample(dtype, shape)
        if name == "cumprod" and a.dtype.kind == "f":
            a = (1 + a / 16).astype(dtype)
        wide = a.astype(np.float64) if a.dtype.kind == "f" else a
        scanned = getattr(np, name)
        pairs += [
            (getattr(Tensor(a), name)(axis), scanned(wide, axis).astype(scanned(a).dtype))
            for axis in (None, *range(len(shape)))
        ]
    same_all(pairs, 2e-2 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("n", [15, 16, 17, 256, 257, 40000])
def test_lengths(n):
    a = np.random.default_rng(0).integers(-5, 6, n)
    same(Tensor(a).cumsum(), np.cumsum(a))
    same(Tensor(a).cumprod(), np.cumprod(a))


def test_infinities_and_nan_stay_where_they_begin():
    f = np.ones((2, 2500), np.float32)
    f[0, 1300], f[1, 40] = np.inf, np.nan
    for name in ("cumsum", "cumprod"):
        same(getattr(Tensor(f), name)(1), getattr(np, name)(f, 1))


def test_halves_add_in_float32():
    assert Tensor(np.ones(4000)).half().cumsum()[-1].item() == 4000  # where NumPy's float16 accumulator stops at 2048


def test_work_and_temporaries_are_linear():
    for shape in ((1 << 16,), (64, 1 << 10)):
        plan = make_plan([Tensor.empty(*shape).cumsum(-1).uop])
        size = math.prod(shape)
        assert sum(count(k.linear).flops for k in plan.kernels) <= 4 * size
        assert sum(n for _, n in plan.temps) <= size // 4
        assert len(plan.kernels) <= 8
        assert all("THREAD" in repr(k.linear.src) for k in plan.kernels if "65536" in k.name)


def test_a_scan_of_whole_blocks_is_written_in_place():
    (*_, last) = make_plan([Tensor.empty(1 << 12).cumsum(0).uop]).kernels
    assert last.name == "e_256_16"
    (*_, across) = make_plan([Tensor.empty(1 << 8, 64).cumsum(0).uop]).kernels
    assert "shuffle" not in across.source and "f32x" in across.source
