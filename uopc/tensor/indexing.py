"""``x[...]``: slices as movement, integer arrays as a gather, with NumPy's rules for where the new axes go.

Positions are checked where they are given: what stands in memory is looked at, what is lazy is computed first, unless
its bounds prove it (``arange``, a comparison ...).  A shape never depends on data, so that boolean masks are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from uopc.dtype import dtypes
from uopc.ops import Ops
from uopc.runtime.capture import is_unbound, note_check
from uopc.tensor import interop
from uopc.tensor.arithmetic import graph_of
from uopc.tensor.core import as_dtype
from uopc.tensor.scans import Scans
from uopc.tensor.shapes import Shape, broadcast_shapes, counter, expand, integer, one_axis, reshape
from uopc.uop import UOp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

_ACCEPTED = "ints, slices, ..., None, and integer Tensors, arrays or lists"


class Indexing(Scans):
    """Slices, integer arrays, gather, iteration."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        """As NumPy's basic and integer-array indexing.  IndexError for positions out of range and for boolean masks."""
        given = key if type(key) is tuple else (key,)
        parts = _spelled_out(given, self.shape)
        if all(type(p) is slice or type(p) is int or p is None for p in parts):
            return self._of(_sliced(self.uop, parts))
        return self._gathered(parts, _side_by_side(given))

    def __iter__(self) -> Iterator[Self]:
        """The parts along the first axis; TypeError for a Tensor without axes."""
        if not self.shape:
            raise TypeError("iteration over a 0-d Tensor")
        return (self[i] for i in range(self.shape[0]))

    def gather(self, axis: int, index: Any) -> Self:
        """Elements picked along an axis: ``out[i, j] = x[index[i, j], j]`` for axis 0, as PyTorch.

        index: integers, with as many axes as this Tensor and nowhere larger than it, but along ``axis``.  Negative ones
        count from the end.  IndexError out of range, ValueError for shapes that do not fit.
        """
        at = one_axis(axis, self.ndim)
        given = graph_of(index)
        if given is None or not given.dtype.is_int:
            found = type(index).__name__ if given is None else given.dtype.name
            raise TypeError(f"gather takes integer positions, not {found}")
        picked = self._checked(self._of(given), at)
        shape = picked.shape
        if len(shape) != self.ndim or any(m > n for i, (m, n) in enumerate(zip(shape, self.shape)) if i != at):
            raise ValueError(f"gather along axis {at} of shape {self.shape}: an index of shape {shape} does not fit")
        places = [picked if i == at else counter(shape, i, dtypes.index) for i in range(self.ndim)]
        return self._of(UOp(Ops.GATHER, (self.uop, *places)))

    def _gathered(self, parts: list[Any], in_place: bool) -> Self:
        """Integer arrays among slices: the slices first, then one gather over all axes.

        in_place: the arrays' axes take the place of those they index; else they come first.
        """
        fixed, arrays = _apart(parts)
        sliced = self._of(_sliced(self.uop, fixed))
        # ints among arrays are arrays too; the slicing above kept their axes
        picks = {axis: sliced._checked(a, axis) for axis, a in arrays.items()}
        shared = broadcast_shapes(*[p.shape for p in picks.values()])
        free = [i for i in range(sliced.ndim) if i not in picks]
        first = min(picks) if in_place else 0
        before = [i for i in free if i < first]
        after = [i for i in free if i >= first]
        shape = (*[sliced.shape[i] for i in before], *shared, *[sliced.shape[i] for i in after])
        places = []
        for i in range(sliced.ndim):
            if i in picks:
                u = reshape(picks[i], (1,) * (len(shared) - len(picks[i].shape)) + picks[i].shape + (1,) * len(after))
                places.append(expand(u, shape))
            else:
                at = before.index(i) if i in before else len(before) + len(shared) + after.index(i)
                places.append(counter(shape, at, dtypes.index))
        return self._of(UOp(Ops.GATHER, (sliced.uop, *places)))

    def _checked(self, index: Any, axis: int) -> UOp:
        """Positions along ``axis`` as an index expression that counts from the front.

        TypeError, IndexError as documented above.
        """
        u = UOp.const(index, dtypes.int64) if type(index) is int else graph_of(index)
        if u is None or not u.dtype.is_int:
            found = type(index).__name__ if u is None else u.dtype.name
            raise IndexError(f"positions are integers, not {found}; accepted are {_ACCEPTED}")
        n = self.shape[axis]
        least, most = u.vmin, u.vmax
        if (least < -n or most >= n) and is_unbound(u):
            u, least = self._checked_when_run(u, axis, least)
        elif least < -n or most >= n:
            known = type(self)._of(u).realize()
            u, array = known.uop, known._array()
            least, most = (int(array.min()), int(array.max())) if array.size else (0, -1)
            if array.size and (least < -n or most >= n):
                wrong = most if most >= n else least
                raise IndexError(f"position {wrong} is out of bounds for axis {axis} of size {n} of shape {self.shape}")
        u = as_dtype(u, dtypes.index)
        return u if least >= 0 else (u < 0).where(u + n, u)

    def _checked_when_run(self, u: UOp, axis: int, least: int) -> tuple[UOp, int]:
        """In a function that is being captured: positions held within the axis, and looked at by every run."""
        n = self.shape[axis]
        positions = type(self)._of(u)
        if 0 not in u.shape:
            what = f"out of bounds for axis {axis} of size {n} of shape {self.shape}"
            note_check(positions.min().uop, positions.max().uop, range(-n, n), what)
        low = max(-n, least)
        return (u.maximum(low) if low > least else u).minimum(n - 1), low


def _spelled_out(parts: tuple[Any, ...], shape: Shape) -> list[Any]:
    """A key with one entry for each axis, and None for each new one: the ellipsis is filled in."""
    used, dots = 0, 0
    for p in parts:
        if p is Ellipsis:
            dots += 1
        elif p is not None:
            used += 1
    if dots > 1:
        raise IndexError("an index holds at most one ellipsis (...)")
    if used > len(shape):
        raise IndexError(f"too many indices: shape {shape} has {len(shape)} axes, and {used} were given")
    out: list[Any] = []
    for p in parts:
        if p is Ellipsis:
            out += [slice(None)] * (len(shape) - used)
        else:
            out.append(p if type(p) is slice or p is None or type(p) is int else _entry(p))
    return out if dots else out + [slice(None)] * (len(shape) - used)


def _entry(p: Any) -> Any:
    """An int as an int, an array as it is; IndexError for masks and for what is no index."""
    if isinstance(p, (bool, np.bool_)) or (isinstance(p, list) and interop.array_of_list(p).dtype == np.bool_):
        raise IndexError(_MASK)
    dtype = getattr(p, "dtype", None)
    if dtype is not None and dtype in (dtypes.bool_, np.dtype(np.bool_)):
        raise IndexError(_MASK)
    if isinstance(p, list):
        array = interop.array_of_list(p)
        return array if array.size else array.astype(np.int64)
    if isinstance(p, (np.integer, int)):
        return int(p)
    if dtype is not None or hasattr(p, "__array__"):
        return p
    try:
        return integer(p, "a position")
    except TypeError:
        raise IndexError(f"{p!r} is not an index; accepted are {_ACCEPTED}") from None


_MASK = (
    "a boolean mask selects a number of elements that depends on data; use where() or masked_fill(), or the positions "
    "that np.nonzero(mask) gives"
)


def _sliced(u: UOp, parts: list[Any]) -> UOp:
    """Ints, slices and None by movement ops: at most one SHRINK, FLIP, STRIDE and RESHAPE."""
    bounds, flipped, steps, shape = [], [], [], []
    axis = 0
    old = u.shape
    for p in parts:
        if p is None:
            shape.append(1)
            continue
        n = old[axis]
        if type(p) is slice:
            start, stop, step = p.indices(n)
            count = len(range(start, stop, step))
            reach = (count - 1) * step
            bounds.append(
                (0, 0) if not count else (start, start + reach + 1) if step > 0 else (start + reach, start + 1)
            )
            if step < 0 and count > 1:
                flipped.append(axis)
            steps.append(abs(step) if count > 1 else 1)
            shape.append(count)
        else:
            if not -n <= p < n:
                raise IndexError(f"position {p} is out of bounds for axis {axis} of size {n} of shape {old}")
            p = p + n if p < 0 else p
            bounds.append((p, p + 1))
            steps.append(1)
        axis += 1
    if any(b != (0, n) for b, n in zip(bounds, old)):
        u = UOp(Ops.SHRINK, (u,), tuple(bounds))
    if flipped:
        u = UOp(Ops.FLIP, (u,), tuple(flipped))
    if any(step != 1 for step in steps):
        u = UOp(Ops.STRIDE, (u,), tuple(steps))
    return reshape(u, tuple(shape))


def _apart(parts: list[Any]) -> tuple[list[Any], dict[int, Any]]:
    """The key with slices in place of positions, and the positions by the axis that they then stand on."""
    fixed: list[Any] = []
    arrays: dict[int, Any] = {}
    for p in parts:
        if p is None or type(p) is slice:
            fixed.append(p)
        else:
            arrays[len(fixed)] = p
            fixed.append(slice(None))
    return fixed, arrays


def _side_by_side(key: tuple[Any, ...]) -> bool:
    """Whether no slice, ellipsis or None stands between two positions: NumPy's rule for where their axes go."""
    at = [i for i, p in enumerate(key) if p is not None and p is not Ellipsis and type(p) is not slice]
    return at[-1] - at[0] + 1 == len(at)
