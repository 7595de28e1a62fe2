"""argmax and argmin: NumPy's answer for every dtype, axis and plan: ties, NaN, zeros of both signs, ends of a range."""

from __future__ import annotations

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.count import count
from uopc.dtype import dtypes
from uopc.pipeline import make_plan

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def draw(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Few different values, and all that is special."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    x = rng.integers(-6 if dtype[0] != "u" else 0, 7, shape)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        ends = np.array([info.min, info.max, 0, info.max - 1], dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice(ends, shape), x.astype(dtype))
    special = np.array([np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice(special, shape), x.astype(dtype))


def check(t: Tensor, x: np.ndarray) -> None:
    for axis in (None, *range(x.ndim)):
        for name in ("argmax", "argmin"):
            got = getattr(t, name)(axis)
            assert got.dtype is dtypes.int64
            np.testing.assert_array_equal(got.numpy(), getattr(x, name)(axis), f"{name} over {axis}")


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("fuse_reduce", [None, True, False])
def test_memory_and_what_is_computed_from_it(dtype: str, fuse_reduce: bool | None) -> None:
    with uopc.options(fuse_reduce=fuse_reduce):
        for shape in ((7,), (5, 33), (3, 4, 5)):
            x = draw(shape, dtype)
            check(Tensor(x), x)
            check(Tensor(x).flip(0), np.flip(x, 0))
            if dtype not in ("bool", "float16"):
                with np.errstate(all="ignore"):
                    check(Tensor(x) * 3, x * np.array(3, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_of_either_sign_comes_first(dtype: str) -> None:
    x = draw((6, 40), dtype)
    x[1, 7] = x[2, 9] = np.nan
    x[2, 5] = x[4, 0] = -np.array(np.nan, dtype)
    for t, wanted in ((Tensor(x), x), (Tensor(x) + 1, x + np.array(1, dtype)), (Tensor(x).T, x.T)):
        check(t, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_ties_and_zeros_of_both_signs_give_the_first(dtype: str) -> None:
    x = np.zeros((4, 50), dtype)
    if dtype != "int32":
        x[:, ::2] = -0.0
    check(Tensor(x), x)
    check(Tensor(x) * 1, x)
    check((Tensor(x) * 1).T, x.T)


def test_a_computed_element_travels_with_its_position() -> None:
    """One reduction, which reads each element once: nothing is computed again and compared."""
    x = Tensor(draw((64, 300), "float32"))
    (kernel,) = make_plan([(x.exp() * 3).argmax(-1).uop]).kernels
    assert count(kernel.linear).loads == 64 * 300
    (searched,) = make_plan([x.argmax(-1).uop]).kernels
    assert count(searched.linear).loads == 2 * 64 * 300


def test_bfloat16() -> None:
    x = draw((8, 100), "float32")
    t = Tensor(x).cast("bfloat16")
    wide = t.float().numpy()
    check(t, wide)
    check(t * 3, (t * 3).float().numpy())
