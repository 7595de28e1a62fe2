"""Movement: other shapes of the same elements.

Nothing here computes; ``axis`` is the one name for an axis, -1 the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import copysign, prod
from typing import TYPE_CHECKING, Any, TypeVar

from uopc.dtype import promote
from uopc.ops import Ops
from uopc.tensor.casts import Casts
from uopc.tensor.core import Core, as_dtype
from uopc.tensor.interop import weak_constant
from uopc.tensor.shapes import (
    Axes,
    Shape,
    expand,
    integer,
    integers,
    many_axes,
    number,
    one_axis,
    permute,
    reshape,
    resolve_reshape,
    several,
)
from uopc.uop import UOp

if TYPE_CHECKING:
    from typing_extensions import Self

Some = TypeVar("Some", bound=Core)


class Movement(Casts):
    """Reshaping, permuting, padding, joining and splitting."""

    __slots__ = ()

    # ---- sizes ----

    def reshape(self, *shape: Any) -> Self:
        """The elements, row-major, in another shape; one size may be -1.

        ValueError where the number of elements differs.
        """
        return self._of(reshape(self.uop, resolve_reshape(self.shape, integers(shape, "a size"))))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Axes ``start`` to ``end`` (inclusive) as one; a Tensor without axes gets one."""
        shape = self.shape or (1,)
        first, last = one_axis(start, len(shape)), one_axis(end, len(shape))
        if first > last:
            raise ValueError(
                f"flatten from axis {start} to {end} of shape {self.shape}: the first comes after the last"
            )
        return self._of(reshape(self.uop, shape[:first] + (prod(shape[first : last + 1]),) + shape[last + 1 :]))

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """One axis as several, whose sizes (one may be -1) multiply to its size."""
        at = one_axis(axis, self.ndim)
        inner = resolve_reshape((self.shape[at],), integers(several(sizes, "sizes"), "a size"))
        if prod(inner) != self.shape[at]:
            raise ValueError(f"cannot unflatten axis {at} of shape {self.shape}, of size {self.shape[at]}, to {inner}")
        return self._of(reshape(self.uop, self.shape[:at] + inner + self.shape[at + 1 :]))

    def squeeze(self, axis: Axes = None) -> Self:
        """Without its axes of size 1, or without those given.  As PyTorch, a given axis of another size stays."""
        drop = many_axes(axis, self.ndim)
        return self._of(reshape(self.uop, tuple([n for i, n in enumerate(self.shape) if n != 1 or i not in drop])))

    def unsqueeze(self, axis: int) -> Self:
        """With a new axis of size 1 at ``axis``."""
        at = one_axis(axis, self.ndim + 1)
        return self._of(reshape(self.uop, self.shape[:at] + (1,) + self.shape[at:]))

    def expand(self, *shape: Any) -> Self:
        """Axes of size 1 repeated to the sizes given, without a copy; -1 keeps a size, and new axes come first."""
        wanted = integers(shape, "a size")
        old = (1,) * (len(wanted) - self.ndim) + self.shape
        if len(old) > len(wanted):
            raise ValueError(f"cannot expand {self.shape} to {wanted}: it has more axes")
        target = tuple([n if m == -1 else m for n, m in zip(old, wanted)])
        if target and min(target) < 0:
            raise ValueError(f"negative size in shape {target}")
        return self._of(expand(self.uop, target))

    def repeat(self, *repeats: Any) -> Self:
        """The whole, repeated so many times along each axis; further axes come first."""
        times = integers(repeats, "a number of repeats")
        if len(times) < self.ndim:
            raise ValueError(f"repeat {times} needs a number for each axis of shape {self.shape}")
        if times and min(times) < 0:
            raise ValueError(f"negative number of repeats in {times}")
        old = (1,) * (len(times) - self.ndim) + self.shape
        between = reshape(self.uop, tuple([m for n in old for m in (1, n)]))
        grown = expand(between, tuple([m for t, n in zip(times, old) for m in (t, n)]))
        return self._of(reshape(grown, tuple([t * n for t, n in zip(times, old)])))

    # ---- order ----

    def permute(self, *order: Any) -> Self:
        """Axis ``order[i]`` becomes axis i."""
        axes = tuple([one_axis(a, self.ndim) for a in integers(order, "an axis")])
        if len(axes) != self.ndim or len(set(axes)) != len(axes):
            raise ValueError(f"{axes} is not an order of the {self.ndim} axes of shape {self.shape}")
        return self._of(permute(self.uop, axes))

    def transpose(self, axis0: int = 1, axis1: int = 0) -> Self:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        a, b = one_axis(axis0, self.ndim), one_axis(axis1, self.ndim)
        order[a], order[b] = b, a
        return self._of(permute(self.uop, tuple(order)))

    @property
    def T(self) -> Self:
        """All axes in reverse order."""
        return self._of(permute(self.uop, tuple(range(self.ndim))[::-1]))

    @property
    def mT(self) -> Self:
        """The last two axes exchanged; ValueError where there are fewer."""
        if self.ndim < 2:
            raise ValueError(f"mT needs two axes, and shape {self.shape} has {self.ndim}")
        return self.transpose(-1, -2)

    def flip(self, *axis: Any) -> Self:
        """The order along the given axes reversed; along all for none."""
        every = not axis or (len(axis) == 1 and axis[0] is None)
        axes = many_axes(None if every else integers(axis, "an axis"), self.ndim)
        return self._of(UOp(Ops.FLIP, (self.uop,), axes) if axes else self.uop)

    # ---- edges ----

    def pad(self, padding: Sequence[Any], value: bool | int | float = 0) -> Self:
        """With ``value`` around it.

        padding: a pair (before, after) or None for each axis; or, as PyTorch, flat numbers for the last axis first.
        ValueError for negative padding: ``shrink`` takes elements away.  OverflowError for a value that the dtype
        cannot hold, TypeError for a float around integers.
        """
        pairs, value = _pairs(several(padding, "paddings"), self.shape), number(value, "a value")
        if any(before < 0 or after < 0 for before, after in pairs):
            raise ValueError(f"negative padding {pairs} of shape {self.shape}; shrink takes elements away")
        if all(pair == (0, 0) for pair in pairs):
            return self
        padded = UOp(Ops.PAD, (self.uop,), pairs)
        if isinstance(value, float) and not self.dtype.is_float:
            raise TypeError(f"padding of {self.dtype.name} by {value!r}: cast first")
        if value == 0 and copysign(1.0, value) > 0:
            return self._of(padded)
        inside = UOp(Ops.PAD, (expand(UOp.const(True), self.shape),), pairs)
        return self._of(UOp(Ops.WHERE, (inside, padded, weak_constant(value, self.dtype))))

    def shrink(self, bounds: Sequence[Any]) -> Self:
        """The part from first to last (exclusive) of each axis; None keeps an axis.  ValueError for bounds outside."""
        given = several(bounds, "bounds")
        if len(given) != self.ndim:
            raise ValueError(f"shrink {given} needs bounds for each of the {self.ndim} axes of shape {self.shape}")
        whole = tuple([(0, n) for n in self.shape])
        pairs = tuple(
            [w if b is None else integers(several(b, "bounds of an axis"), "a bound") for b, w in zip(given, whole)]
        )
        if any(len(p) != 2 or not 0 <= p[0] <= p[1] <= n for p, n in zip(pairs, self.shape)):
            raise ValueError(f"cannot shrink shape {self.shape} to {pairs}: bounds satisfy 0 <= first <= last <= size")
        return self._of(self.uop if pairs == whole else UOp(Ops.SHRINK, (self.uop,), pairs))

    # ---- several tensors ----

    def cat(self: Some | Sequence[Some], *others: Some, axis: int = 0) -> Some:
        """Joined with ``others`` along an axis that exists: ``a.cat(b)``, ``Tensor.cat(a, b)`` or ``Tensor.cat([a,
        b])``.

        The dtypes promote; ValueError where the other axes differ.
        """
        tensors = _sequence(self, others, "cat")
        first = tensors[0]
        at = one_axis(axis, first.ndim)
        for t in tensors:
            if t.ndim != first.ndim or t.shape[:at] != first.shape[:at] or t.shape[at + 1 :] != first.shape[at + 1 :]:
                raise ValueError(
                    f"cannot join shapes {first.shape} and {t.shape} along axis {at}: other axes must agree"
                )
        return first._of(tensors[0].uop if len(tensors) == 1 else UOp(Ops.CAT, tuple(_agreeing(tensors)), at))

    def stack(self: Some | Sequence[Some], *others: Some, axis: int = 0) -> Some:
        """Joined with ``others`` of the same shape along a new axis, called as ``cat`` is.  The dtypes promote."""
        tensors = _sequence(self, others, "stack")
        first = tensors[0]
        at = one_axis(axis, first.ndim + 1)
        for t in tensors:
            if t.shape != first.shape:
                raise ValueError(f"cannot stack shapes {first.shape} and {t.shape}: they must agree")
        stacked = UOp(Ops.STACK, tuple(_agreeing(tensors)))
        order = (*range(1, at + 1), 0, *range(at + 1, first.ndim + 1))
        return first._of(permute(stacked, order))

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> tuple[Self, ...]:
        """Parts of ``sizes`` along an axis: of one size (the last may be smaller), or as listed, as PyTorch."""
        at = one_axis(axis, self.ndim)
        total = self.shape[at]
        if isinstance(sizes, (list, tuple)):
            parts = integers((tuple(sizes),), "a size")
            if sum(parts) != total or (parts and min(parts) < 0):
                raise ValueError(f"sizes {parts} do not add up to the size {total} of axis {at} of shape {self.shape}")
        else:
            step = integer(sizes, "a size")
            if step <= 0:
                raise ValueError(f"split into parts of {step}: a positive size is needed")
            parts = tuple([min(step, total - i) for i in range(0, total, step)]) or (0,)
        return tuple(self._parts(parts, at))

    def chunk(self, chunks: int, axis: int = 0) -> tuple[Self, ...]:
        """At most ``chunks`` parts of equal size along an axis, the last one smaller, as PyTorch."""
        if integer(chunks, "a number of chunks") <= 0:
            raise ValueError(f"chunk into {chunks} parts: a positive number is needed")
        total = self.shape[one_axis(axis, self.ndim)]
        if total == 0:
            return (self,) * chunks
        return self.split(-(-total // chunks), axis)

    def _parts(self, parts: Shape, axis: int) -> Iterator[Self]:
        start = 0
        for n in parts:
            bounds = [(0, m) for m in self.shape]
            bounds[axis] = (start, start + n)
            yield self.shrink(bounds)
            start += n


def _pairs(padding: tuple[Any, ...], shape: Shape) -> tuple[tuple[int, int], ...]:
    """Padding in either notation as a pair for each axis."""
    if padding and all(p is not None and not isinstance(p, (tuple, list)) for p in padding):
        flat = integers((padding,), "a padding")
        if len(flat) % 2 or len(flat) > 2 * len(shape):
            raise ValueError(
                f"flat padding {flat} needs two numbers an axis, for at most the {len(shape)} axes of {shape}"
            )
        pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
        return ((0, 0),) * (len(shape) - len(pairs)) + tuple(pairs[::-1])
    if len(padding) != len(shape):
        raise ValueError(f"padding {padding} needs a pair for each of the {len(shape)} axes of shape {shape}")
    found = [(0, 0) if p is None else integers((several(p, "paddings of an axis"),), "a padding") for p in padding]
    if any(len(p) != 2 for p in found):
        raise ValueError(f"padding {padding}: each axis has a pair (before, after) or None")
    return tuple([(p[0], p[1]) for p in found])


def _sequence(first: Some | Sequence[Some], others: tuple[Some, ...], name: str) -> list[Some]:
    """The tensors of ``f(a, b)`` or of ``f([a, b])``."""
    tensors = [first, *others] if isinstance(first, Core) else [*first, *others]
    if not tensors:
        raise ValueError(f"{name} needs at least one Tensor")
    for t in tensors:
        if not isinstance(t, Core):
            raise TypeError(f"{name} joins Tensors, not {type(t).__name__}")
    return tensors


def _agreeing(tensors: Sequence[Core]) -> list[UOp]:
    """The graphs, cast to their common dtype."""
    dtype = tensors[0].dtype
    for t in tensors:
        dtype = promote(dtype, t.dtype)
    return [as_dtype(t.uop, dtype) for t in tensors]
