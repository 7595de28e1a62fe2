"""Case: inputs, exact results, and how much work it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
ALIGNMENT = 64  # a cache line, and what jax wants of memory that it reads in place
SAMPLED_ROWS = 48


def empty(shape: Shape, dtype: Any = np.float32) -> Array:
    """Uninitialised memory that starts at a multiple of ``ALIGNMENT``."""
    n = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n].view(dtype).reshape(shape)


def normal(rng: np.random.Generator, shape: Shape, dtype: str = "float32") -> Array:
    """Standard normal float32; for "bfloat16" rounded to what that type can hold."""
    out = empty(shape)
    rng.standard_normal(out=out, dtype=np.float32)
    if dtype == "bfloat16":
        bits = out.view(np.uint32)
        bits += 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
        bits &= 0xFFFF0000
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row.

    wanted: how many times as fast as the best peer uopc should be.
    share: how much of the machine's ``limit`` it should reach, if that is asked.
    peers: the only ones to compare with, if not all.
    """

    name: str
    wanted: float = 1.0
    share: float | None = None
    peers: tuple[str, ...] | None = None

    dtype = "float32"  # of inputs and outputs; a field of the cases that have others

    @property
    def limit(self) -> str:
        """The probe of the machine that bounds this case: "fma", "fma bfloat16", "copy" or "read"."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Useful floating-point operations, an FMA being two."""
        raise NotImplementedError

    @property
    def moved(self) -> int:
        """Bytes of inputs and outputs, each counted once."""
        raise NotImplementedError

    @property
    def out_shape(self) -> Shape:
        raise NotImplementedError

    @property
    def scratch(self) -> int:
        """Bytes of the largest temporary of an implementation that fuses nothing."""
        return 0

    def arrays(self) -> dict[str, Array]:
        """The inputs, the same at each call: float32 (rounded for bfloat16), integers and booleans, C-contiguous."""
        raise NotImplementedError

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        """Some rows of the result, seen as (rows, ``width``), in float64."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """The size of the last axis of the result; 1 where there is none."""
        return self.out_shape[-1] if self.out_shape else 1

    def sampled_rows(self) -> Array:
        """Which rows of the result are checked: the first, the last, and some between."""
        n = math.prod(self.out_shape) // self.width
        return np.unique(np.linspace(0, n - 1, min(n, SAMPLED_ROWS)).astype(int))

    def error(self, result: Array, exact: Array) -> float:
        """The largest difference from the exact rows, relative to their largest element."""
        if result.size != math.prod(self.out_shape):
            raise ValueError(f"{self.name}: result of shape {result.shape} instead of {self.out_shape}")
        got = result.reshape(-1, self.width)[self.sampled_rows()].astype(np.float64)
        return float(np.abs(got - exact).max() / np.abs(exact).max())
