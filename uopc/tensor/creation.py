"""Tensors from nothing: constants, ranges, triangles.

All of them are index expressions and constants, and take no memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from uopc.dtype import DType, dtypes, to_dtype
from uopc.ops import Ops
from uopc.runtime.storage import new_buffer
from uopc.tensor import interop
from uopc.tensor.core import Core, as_dtype
from uopc.tensor.indexing import Indexing
from uopc.tensor.shapes import Shape, counter, expand, integer, number, sizes
from uopc.uop import UOp

if TYPE_CHECKING:
    from typing_extensions import Self


class Creation(Indexing):
    """Constructors, and what they make of the last two axes."""

    __slots__ = ()

    # ---- constants ----

    @classmethod
    def full(cls, shape: int | tuple[int, ...] | list[int], value: Any, dtype: Any = None) -> Self:
        """``value`` everywhere; its type by default (float32, int64, bool).

        ValueError for negative sizes, OverflowError for a Python int that the dtype cannot hold.
        """
        asked = None if dtype is None else to_dtype(dtype)
        constant = value.uop if isinstance(value, Core) else interop.from_data(value, asked)
        if constant.shape:
            raise ValueError(f"full takes one value, not shape {constant.shape}")
        kind = constant.dtype if asked is None else asked
        if type(value) is int:
            constant = interop.weak_constant(value, kind)
        return cls._of(expand(as_dtype(constant, kind), sizes((shape,))))

    @classmethod
    def zeros(cls, *shape: Any, dtype: Any = None) -> Self:
        """0 everywhere, float32 by default."""
        return cls.full(sizes(shape), 0, dtypes.default_float if dtype is None else dtype)

    @classmethod
    def ones(cls, *shape: Any, dtype: Any = None) -> Self:
        """1 everywhere, float32 by default."""
        return cls.full(sizes(shape), 1, dtypes.default_float if dtype is None else dtype)

    @classmethod
    def empty(cls, *shape: Any, dtype: Any = None) -> Self:
        """Memory of whatever content, float32 by default."""
        kind, shape = dtypes.default_float if dtype is None else to_dtype(dtype), sizes(shape)
        return cls._of(new_buffer(kind, shape, np.empty(math.prod(shape), kind.numpy)))

    def full_like(self, value: Any, dtype: Any = None) -> Self:
        """``value`` everywhere, in the shape and dtype of this Tensor."""
        return self.full(self.shape, value, self.dtype if dtype is None else dtype)

    def zeros_like(self, dtype: Any = None) -> Self:
        """0 everywhere, in the shape and dtype of this Tensor."""
        return self.full_like(0, dtype)

    def ones_like(self, dtype: Any = None) -> Self:
        """1 everywhere, in the shape and dtype of this Tensor."""
        return self.full_like(1, dtype)

    def empty_like(self, dtype: Any = None) -> Self:
        """Memory of whatever content, in the shape and dtype of this Tensor."""
        return self.empty(self.shape, dtype=self.dtype if dtype is None else dtype)

    # ---- ranges ----

    @classmethod
    def arange(
        cls, start: int | float, stop: int | float | None = None, step: int | float = 1, dtype: Any = None
    ) -> Self:
        """start, start + step ... before stop; ``arange(n)`` from 0.

        int64 for ints, else float32.  ValueError for step 0, and for bounds that are not finite.
        """
        first, last = (0, start) if stop is None else (start, stop)
        first, last, step = number(first, "a bound"), number(last, "a bound"), number(step, "a step")
        if step == 0:
            raise ValueError("arange needs a step other than 0")
        exact = all(isinstance(x, int) for x in (first, last, step))
        kind = (dtypes.default_int if exact else dtypes.default_float) if dtype is None else to_dtype(dtype)
        if exact:
            count = max(int(-((first - last) // step)), 0)
            if dtype is None and not all(kind.min <= x <= kind.max for x in (first, last)):
                raise OverflowError(f"arange from {first} to {last} is beyond {kind.name}; dtype says what holds it")
        elif math.isfinite(length := (last - first) / step):
            count = max(math.ceil(length), 0)
        else:
            raise ValueError(f"arange from {first} to {last} in steps of {step} is no finite number of elements")
        return cls._of(_line(count, first, step, kind))

    @classmethod
    def linspace(cls, start: int | float, stop: int | float, steps: int = 50, dtype: Any = None) -> Self:
        """``steps`` values from start to stop, both included, float32 by default; rounded down to integers.

        ValueError for a negative number of steps.
        """
        kind, n = dtypes.default_float if dtype is None else to_dtype(dtype), integer(steps, "a number of steps")
        first, last = (float(number(x, "a bound")) for x in (start, stop))
        if n < 0:
            raise ValueError(f"linspace of {n} steps: a number from 0 on is needed")
        place, reach = counter((n,), 0, dtypes.int64).cast(dtypes.float64), last - first
        # A division is rounded by itself: a product that the compiler adds unrounded would give 5e-17 for a 0 half way.
        whole = math.isfinite(reach * n)
        line = (place * reach / float(max(n - 1, 1)) if whole else place * (reach / max(n - 1, 1))) + first
        if n > 1:  # the last one exactly, whatever was rounded
            line = counter((n,), 0, dtypes.index).eq(n - 1).where(UOp.const(last, dtypes.float64), line)
        return cls._of(as_dtype(line.alu(Ops.FLOOR) if kind.is_int else line, kind))

    @classmethod
    def eye(cls, n: int, m: int | None = None, dtype: Any = None) -> Self:
        """1 on the diagonal of n x m (n x n), 0 elsewhere; float32 by default."""
        shape = sizes((n, n if m is None else m))
        same = counter(shape, 0, dtypes.index).eq(counter(shape, 1, dtypes.index))
        return cls._of(same.cast(dtypes.default_float if dtype is None else to_dtype(dtype)))

    # ---- triangles ----

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangle of the last two axes, 0 above diagonal ``diagonal`` (above the main one where it is
        positive).
        """
        return self._triangle(diagonal, lower=True)

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangle of the last two axes, 0 below diagonal ``diagonal``."""
        return self._triangle(diagonal, lower=False)

    def _triangle(self, diagonal: int, lower: bool) -> Self:
        k = integer(diagonal, "a diagonal")
        bound = sum(self.shape[-2:])  # diagonals beyond it are all alike, and may be beyond 64 bits
        k = min(max(k, -bound), bound)
        inside = lower_triangle(self.shape, k if lower else k - 1)
        return self._of((inside if lower else inside ^ True).where(self.uop, UOp.const(0, self.dtype)))


def lower_triangle(shape: Shape, diagonal: int = 0) -> UOp:
    """Where the column is at most the row plus ``diagonal``, over the last two axes; ValueError for fewer axes."""
    if len(shape) < 2:
        raise ValueError(f"a triangle needs two axes, and shape {shape} has {len(shape)}")
    row, column = (counter(shape, len(shape) - i, dtypes.index) for i in (2, 1))
    return column.alu(Ops.CMPLE, row + diagonal if diagonal else row)


def _line(count: int, start: int | float, step: int | float, dtype: DType) -> UOp:
    """start + i * step for i below ``count``; floats narrower than float64 are rounded once, at the end."""
    if dtype.is_int and int(start) == start and int(step) == step:
        line = counter((count,), 0, dtype)
        line = line * int(step) if step != 1 else line
        return line + int(start) if start != 0 else line
    line = counter((count,), 0, dtypes.int64)
    if step == 1 and start == 0:
        return line.cast(dtype)
    return as_dtype(line.cast(dtypes.float64) * float(step) + float(start), dtype)
