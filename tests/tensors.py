"""What tests of Tensors share: sample arrays of every dtype, and comparisons that look at dtype and shape too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from uopc import Tensor
from uopc.dtype import from_numpy

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]  # bfloat16 has tests of its own: NumPy has no such type
ALL = ["bool", *INTS, *FLOATS]
TOLERANCE = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.nan, np.inf, -np.inf, 1e-3, 7.25]


def sample(dtype: str, shape: tuple[int, ...] = (3, 4), seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers of small size, both signs where there are, zeros among them."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return rng.normal(0, 2, shape).astype(dtype)
    low = 0 if dtype.startswith("u") else -7
    return rng.integers(low, 8, shape).astype(dtype)


def special(dtype: str) -> np.ndarray[Any, Any]:
    """The floats at which functions go wrong."""
    return np.array(SPECIAL, dtype)


def same(tensor: Tensor, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """``tensor`` has the dtype, shape and values of ``expected``; NaN equals NaN."""
    expected = np.asarray(expected)
    assert isinstance(tensor, Tensor)
    assert tensor.dtype is from_numpy(expected.dtype), (tensor.dtype, expected.dtype)
    assert tensor.shape == expected.shape, (tensor.shape, expected.shape)
    value = tensor.numpy()
    assert value.dtype == expected.dtype and value.shape == expected.shape
    if not tensor.dtype.is_float:
        np.testing.assert_array_equal(value, expected)
        return
    near = TOLERANCE[tensor.dtype.name] if rtol is None else rtol
    np.testing.assert_allclose(value, expected, rtol=near, atol=near if atol is None else atol, equal_nan=True)


def same_all(pairs: Iterable[tuple[Tensor, Any]], rtol: float | None = None) -> None:
    """``same`` of each pair; all are computed in one plan, since a kernel compiled with others costs a fraction."""
    pairs = list(pairs)
    tensors = [tensor for tensor, _ in pairs]
    tensors[0].realize(*tensors[1:])
    for tensor, expected in pairs:
        same(tensor, expected, rtol)


def bf16(array: Any) -> np.ndarray[Any, Any]:
    """float32 values rounded to bfloat16 and back."""
    return Tensor(np.asarray(array, np.float32)).bfloat16().numpy()
