"""Shapes and axes as callers write them, checked and made canonical; broadcasting; and graphs of movement ops.

The functions here act on UOps and plain tuples.  They make no node that would change nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

from uopc.ops import Ops
from uopc.uop import UOp

try:
    from numpy.exceptions import AxisError
except ImportError:  # NumPy before 1.25
    from numpy import AxisError  # type: ignore[attr-defined,no-redef]

Shape = tuple[int, ...]
Axes = int | Sequence[int] | None


def integer(value: Any, what: str) -> int:
    """``value`` as an int; TypeError, naming ``what`` it was meant for, where it is not one.  A bool is none: as an
    axis or a size it is a slip, such as ``sum(True)`` for ``sum(keepdim=True)``.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what} is an int, not {value!r}")


def number(value: Any, what: str) -> bool | int | float:
    """``value`` as a Python number; TypeError, naming ``what`` it was meant for, where it is not one."""
    if isinstance(value, (bool, int, float)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{what} is a number, not {value!r}")


def several(value: Any, what: str) -> tuple[Any, ...]:
    """The elements of a list or tuple; TypeError, naming ``what`` they were meant for, where ``value`` is neither."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    raise TypeError(f"{what} are a list or tuple, not {value!r}")


def integers(args: Sequence[Any], what: str) -> Shape:
    """The ints of ``f(2, 3)`` or of ``f((2, 3))``."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = args[0]
    return tuple([a if type(a) is int else integer(a, what) for a in args])


def sizes(args: Sequence[Any]) -> Shape:
    """A shape given as ints or as one sequence; ValueError for a negative size."""
    shape = integers(args, "a size")
    if shape and min(shape) < 0:
        raise ValueError(f"negative size in shape {shape}")
    return shape


def one_axis(axis: Any, ndim: int) -> int:
    """``axis`` counted from the front; AxisError (a ValueError and an IndexError) where there is no such axis."""
    number = axis if type(axis) is int else integer(axis, "an axis")
    if not -ndim <= number < ndim:
        raise AxisError(number, ndim)
    return number + ndim if number < 0 else number


def many_axes(axis: Axes, ndim: int) -> Shape:
    """Axes counted from the front, in order; all of them for None.  ValueError where one is named twice.

    Without axes, as in NumPy, 0 and -1 alone (not in a tuple) are taken for none.
    """
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, (tuple, list)):
        axes = tuple([one_axis(a, ndim) for a in axis])
        if len(set(axes)) != len(axes):
            raise ValueError(f"an axis is named twice in {tuple(axis)}")
        return tuple(sorted(axes))
    return (one_axis(axis, ndim),) if ndim or integer(axis, "an axis") not in (0, -1) else ()


def resolve_reshape(old: Shape, new: Shape) -> Shape:
    """``new`` with its -1 worked out; ValueError where it cannot hold the elements of ``old``."""
    if -1 in new:
        known = prod([n for n in new if n != -1])
        total = prod(old)
        if new.count(-1) > 1:
            raise ValueError(f"reshape to {new}: only one size can be -1")
        if known == 0 or total % known:
            raise ValueError(f"cannot reshape {old} ({total} elements) to {new}")
        new = tuple([total // known if n == -1 else n for n in new])
    if new and min(new) < 0:
        raise ValueError(f"negative size in shape {new}")
    return new


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all ``shapes`` expand to, as NumPy; ValueError naming them where there is none."""
    best: Shape = ()
    for shape in shapes:
        if shape == best or (len(shape) < len(best) and best[len(best) - len(shape) :] == shape):
            continue
        if len(shape) > len(best):
            best = (1,) * (len(shape) - len(best)) + best
        padded = (1,) * (len(best) - len(shape)) + shape
        merged = tuple([b if a == 1 else a for a, b in zip(best, padded)])
        if any(n not in (1, m) for n, m in zip(padded, merged)):
            raise ValueError(f"shapes do not broadcast together: {' and '.join(map(str, shapes))}")
        best = merged
    return best


# ---- graphs ----


def reshape(u: UOp, shape: Shape) -> UOp:
    """``u`` with other sizes; reshapes of reshapes collapse, unless the one between has its value already."""
    if u.op is Ops.RESHAPE and u.realized is None:
        u = u.src[0]
    return u if u.shape == shape else UOp(Ops.RESHAPE, (u,), shape)


def expand(u: UOp, shape: Shape) -> UOp:
    """``u`` broadcast to ``shape``, new axes first; ValueError where it does not fit."""
    old = u.shape
    if old == shape:
        return u
    new = len(shape) - len(old)
    if new < 0:
        raise ValueError(f"cannot expand {old} to {shape}: it has more axes")
    return UOp(Ops.EXPAND, (reshape(u, (1,) * new + old) if new else u,), shape)


def operand(u: UOp, shape: Shape) -> UOp:
    """``u`` as an operand of an elementwise op of ``shape``: a constant goes in as it is."""
    return u if u.op is Ops.CONST else expand(u, shape)


def along(u: UOp) -> UOp:
    """``u`` with an axis to run along: one of size 1 where it has none, which is then 0 and -1, as in NumPy."""
    return u if u.shape else reshape(u, (1,))


def permute(u: UOp, order: Shape) -> UOp:
    """``u`` with axis ``order[i]`` of it as axis i; permutations of permutations collapse, as reshapes do."""
    if u.op is Ops.PERMUTE and u.realized is None:
        inner = u.arg
        u, order = u.src[0], tuple([inner[i] for i in order])
    return u if order == tuple(range(len(order))) else UOp(Ops.PERMUTE, (u,), order)


def counter(shape: Shape, axis: int, dtype: Any) -> UOp:
    """The position along ``axis`` (from the front) of every element of ``shape``: an index expression, no memory."""
    line = UOp(Ops.IOTA, (), shape[axis], dtype)
    return expand(reshape(line, (shape[axis],) + (1,) * (len(shape) - axis - 1)), shape)
