"""Operators of two tensors: arithmetic, comparisons, bits, choice.

Types promote as in NumPy 2: arrays by ``promote_types``, while a Python number is weak and takes the type of the
array.  Shapes broadcast.  A Python number becomes a constant of the kernel, a Tensor without axes a value that is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from uopc.dtype import DType, dtypes, promote, promote_scalar
from uopc.ops import Ops
from uopc.tensor import division, interop, power
from uopc.tensor.core import Core, as_dtype
from uopc.tensor.interop import weak_constant
from uopc.tensor.movement import Movement
from uopc.tensor.shapes import broadcast_shapes, expand, operand
from uopc.uop import UOp

if TYPE_CHECKING:
    from typing_extensions import Self

Number = bool | int | float


def graph_of(x: Any) -> UOp | None:
    """The graph of an operand that is not a Python number: a Tensor's, or of what is array-like; None for anything
    else.
    """
    if isinstance(x, Core):
        return x.uop
    if isinstance(x, (np.ndarray, np.generic, list, tuple)) or hasattr(x, "__array__") or hasattr(x, "__dlpack__"):
        return interop.from_data(x)
    return None


def in_type(x: Any, u: UOp, dtype: DType) -> UOp:
    """The graph ``u`` of an operand ``x`` as ``dtype``; Python numbers in a list are converted to that alone."""
    return as_dtype(interop.from_data(x, dtype) if isinstance(x, (list, tuple)) else u, dtype)


def pair(u: UOp, x: Any) -> tuple[UOp, UOp] | None:
    """``u`` and ``x`` in their common dtype and shape; None where ``x`` is not an operand at all."""
    kind = type(x)
    if kind is float or kind is int or kind is bool:
        dtype = promote_scalar(u.dtype, x)
        return as_dtype(u, dtype), weak_constant(x, dtype)
    v = graph_of(x)
    if v is None:
        return None
    if u.dtype is not v.dtype:
        dtype = promote(u.dtype, v.dtype)
        u, v = as_dtype(u, dtype), in_type(x, v, dtype)
    if u.shape == v.shape:
        return u, v
    shape = broadcast_shapes(u.shape, v.shape)
    return operand(u, shape), operand(v, shape)


def add(a: UOp, b: UOp) -> UOp:
    """a + b of equal dtypes; of bools it is "or", as in NumPy."""
    return a.alu(Ops.OR if a.dtype.is_bool else Ops.ADD, b)


def multiply(a: UOp, b: UOp) -> UOp:
    """a * b of equal dtypes; of bools it is "and", as in NumPy."""
    return a.alu(Ops.AND if a.dtype.is_bool else Ops.MUL, b)


def subtract(a: UOp, b: UOp) -> UOp:
    """a - b of equal dtypes; TypeError for bools."""
    if a.dtype.is_bool:
        raise TypeError("- is not defined for bool, as in NumPy; use ^ or logical_not()")
    return a + (UOp.const(-b.arg, b.dtype) if b.op is Ops.CONST else -b)


class Arithmetic(Movement):
    """Operators, and the functions of two tensors."""

    __slots__ = ()

    # ---- the ways in ----

    def _binary(self, x: Any, fn: Any) -> Any:
        """``fn`` of this and ``x``, or NotImplemented."""
        uops = pair(self.uop, x)
        return NotImplemented if uops is None else self._of(fn(*uops))

    def _reflected(self, x: Any, fn: Any) -> Any:
        """``fn`` of ``x`` and this, or NotImplemented."""
        uops = pair(self.uop, x)
        return NotImplemented if uops is None else self._of(fn(uops[1], uops[0]))

    def _needed(self, x: Any, fn: Any, name: str) -> Self:
        """``fn`` of this and ``x`` for a method, which has nobody to pass NotImplemented to."""
        made = self._binary(x, fn)
        if made is NotImplemented:
            raise TypeError(f"{name} takes a Tensor, an array or a number, not {type(x).__name__}")
        return made

    # ---- arithmetic ----

    def __add__(self, x: Any) -> Self:
        return self._binary(x, add)

    def __radd__(self, x: Any) -> Self:
        return self._reflected(x, add)

    def __sub__(self, x: Any) -> Self:
        return self._binary(x, subtract)

    def __rsub__(self, x: Any) -> Self:
        return self._reflected(x, subtract)

    def __mul__(self, x: Any) -> Self:
        return self._binary(x, multiply)

    def __rmul__(self, x: Any) -> Self:
        return self._reflected(x, multiply)

    def __truediv__(self, x: Any) -> Self:
        """Floats divide as they are, integers as float64."""
        return self._binary(self._dividing(x), division.true_divide)

    def __rtruediv__(self, x: Any) -> Self:
        return self._reflected(self._dividing(x), division.true_divide)

    def _dividing(self, x: Any) -> Any:
        """A Python int beside integers as a float: it divides as float64, so that their type need not hold it."""
        return float(x) if type(x) is int and not self.dtype.is_float else x

    def __floordiv__(self, x: Any) -> Self:
        """Rounded towards minus infinity.  Integers by 0 give 0, floats inf or NaN, as NumPy."""
        return self._binary(x, division.floor_divide)

    def __rfloordiv__(self, x: Any) -> Self:
        return self._reflected(x, division.floor_divide)

    def __mod__(self, x: Any) -> Self:
        """The remainder, with the sign of the divisor.  Integers by 0 give 0, floats NaN, as NumPy."""
        return self._binary(x, division.remainder)

    def __rmod__(self, x: Any) -> Self:
        return self._reflected(x, division.remainder)

    def __divmod__(self, x: Any) -> tuple[Self, Self]:
        return self // x, self % x

    def __rdivmod__(self, x: Any) -> tuple[Self, Self]:
        return x // self, x % self

    def __pow__(self, x: Any) -> Self:
        """Powers.  Integers stay integers, wrapping; ValueError where an exponent of integers is negative, as NumPy.

        As NumPy, ``x ** 0.5`` is the square root: NaN of -inf, -0.0 of -0.0.  C's pow, which gives inf and 0.0, is what
        exponents with axes get, and halves with any exponent that has a dtype.
        """
        return self._power(x, swapped=False)

    def __rpow__(self, x: Any) -> Self:
        return self._power(x, swapped=True)

    def _power(self, x: Any, swapped: bool) -> Any:
        uops = pair(self.uop, x)
        if uops is None:
            return NotImplemented
        base, exponent = uops[::-1] if swapped else uops
        if not base.dtype.is_float and exponent.vmin < 0:  # nothing proves that it is not negative: look
            known = type(self)._of(exponent).realize()
            if (known._array() < 0).any():
                raise ValueError("integers to negative integer powers are not allowed: cast the base to a float")
            exponent = known.uop
        return self._of(power.power(base, exponent, python=type(x) in (int, float, bool)))

    def __neg__(self) -> Self:
        """TypeError for bools, as NumPy."""
        if self.dtype.is_bool:
            raise TypeError("the negative of a bool is not defined, as in NumPy; use ~ or logical_not()")
        return self._of(-self.uop)

    def __pos__(self) -> Self:
        return self._of(self.uop)

    # ---- comparisons: bool ----

    def _compared(self, op: Ops, x: Any, swapped: bool = False) -> Any:
        """A comparison; an integer beyond the type of this Tensor compares as what it is."""
        if type(x) is int and not self.dtype.is_float:
            held = dtypes.int64 if self.dtype.is_bool else self.dtype
            if not held.min <= x <= held.max:
                below = x > held.max  # this Tensor is below x
                truth = {Ops.CMPEQ: False, Ops.CMPNE: True}.get(op, below is not swapped)
                return self._of(filled(truth, self.shape))
        elif self.dtype in (dtypes.int64, dtypes.uint64):
            v = graph_of(x)
            if v is not None and {self.dtype, v.dtype} == {dtypes.int64, dtypes.uint64}:
                return self._of(_compare_signs(op, *((v, self.uop) if swapped else (self.uop, v))))
            x = x if v is None or isinstance(x, (list, tuple)) else self._of(v)
        uops = pair(self.uop, x)
        if uops is None:
            return NotImplemented
        return self._of(uops[1].alu(op, uops[0]) if swapped else uops[0].alu(op, uops[1]))

    def __lt__(self, x: Any) -> Self:
        return self._compared(Ops.CMPLT, x)

    def __le__(self, x: Any) -> Self:
        return self._compared(Ops.CMPLE, x)

    def __gt__(self, x: Any) -> Self:
        return self._compared(Ops.CMPLT, x, swapped=True)

    def __ge__(self, x: Any) -> Self:
        return self._compared(Ops.CMPLE, x, swapped=True)

    def __eq__(self, x: Any) -> Self:  # type: ignore[override]
        return self._compared(Ops.CMPEQ, x)

    def __ne__(self, x: Any) -> Self:  # type: ignore[override]
        return self._compared(Ops.CMPNE, x)

    __hash__ = Core.__hash__  # defining __eq__ alone would take it away

    # ---- bits: integers and bool ----

    def __and__(self, x: Any) -> Self:
        """TypeError for floats, as for all of | ^ << >>."""
        return self._binary(x, lambda a, b: _bits(Ops.AND, a, b))

    def __or__(self, x: Any) -> Self:
        return self._binary(x, lambda a, b: _bits(Ops.OR, a, b))

    def __xor__(self, x: Any) -> Self:
        return self._binary(x, lambda a, b: _bits(Ops.XOR, a, b))

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lshift__(self, x: Any) -> Self:
        """By the width or more: 0."""
        return self._binary(x, lambda a, b: _shift(Ops.SHL, a, b))

    def __rlshift__(self, x: Any) -> Self:
        return self._reflected(x, lambda a, b: _shift(Ops.SHL, a, b))

    def __rshift__(self, x: Any) -> Self:
        """Arithmetic for signed types.  By the width or more: 0, or -1 where the value is negative."""
        return self._binary(x, lambda a, b: _shift(Ops.SHR, a, b))

    def __rrshift__(self, x: Any) -> Self:
        return self._reflected(x, lambda a, b: _shift(Ops.SHR, a, b))

    def __invert__(self) -> Self:
        """Every bit the other way; of bools, "not"."""
        if self.dtype.is_float:
            raise TypeError(f"~ takes integers or bool, not {self.dtype.name}")
        return self._of(self.uop ^ (True if self.dtype.is_bool else -1))

    def logical_not(self) -> Self:
        """True where this is 0 or False."""
        return self._of(truth(self.uop) ^ True)

    # ---- choice ----

    def where(self, a: Any, b: Any) -> Self:
        """``a`` where this holds (is True or not 0), else ``b``; also ``Tensor.where(condition, a, b)``.

        The three broadcast, the types of a and b promote; two Python numbers give bool, int64 or float32.
        """
        if not isinstance(self, Core):
            raise TypeError(f"where takes a Tensor for its condition, not {type(self).__name__}")
        a, b = alternatives(a, b)
        shape = broadcast_shapes(self.shape, a.shape, b.shape)
        return self._of(UOp(Ops.WHERE, (operand(truth(self.uop), shape), operand(a, shape), operand(b, shape))))

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """``value`` where the bool ``mask`` holds, else this.  TypeError for a mask of another type."""
        held = graph_of(mask)
        if held is None or not held.dtype.is_bool:
            raise TypeError(
                f"masked_fill takes a bool mask, not {type(mask).__name__ if held is None else held.dtype.name}"
            )
        return self._of(held).where(value, self)

    def maximum(self, x: Any) -> Self:
        """The greater of two; NaN where either is."""
        return self._needed(x, lambda a, b: a.alu(Ops.MAX, b), "maximum")

    def minimum(self, x: Any) -> Self:
        """The smaller of two; NaN where either is."""
        return self._needed(x, lambda a, b: a.alu(Ops.MIN, b), "minimum")

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """Not less than ``min``, and then not greater than ``max``; None sets no bound."""
        made = self if min is None else self.maximum(min)
        return made if max is None else made.minimum(max)


def truth(u: UOp) -> UOp:
    """``u`` as bool: what is not 0 holds."""
    return u if u.dtype.is_bool else u.alu(Ops.CMPNE, UOp.const(0, u.dtype))


def filled(value: Number, shape: tuple[int, ...]) -> UOp:
    """A constant spread over ``shape``."""
    return expand(interop.from_scalar(value), shape)


def alternatives(a: Any, b: Any) -> tuple[UOp, UOp]:
    """Two operands of any kind in their common dtype; TypeError where one is none."""
    numbers = (bool, int, float)
    if type(a) in numbers and type(b) in numbers:
        x, y = interop.from_scalar(a), interop.from_scalar(b)
        dtype = dtypes.default_float if float in (type(a), type(b)) else promote(x.dtype, y.dtype)
        return as_dtype(x, dtype), as_dtype(y, dtype)
    if type(a) in numbers:
        return alternatives(b, a)[::-1]
    u = graph_of(a)
    v = graph_of(b) if type(b) not in numbers else None
    if u is None or (v is None and type(b) not in numbers):
        raise TypeError(f"neither Tensor, array nor number: {type(a if u is None else b).__name__}")
    if v is None:
        dtype = promote_scalar(u.dtype, b)
        return in_type(a, u, dtype), weak_constant(b, dtype)
    dtype = promote(u.dtype, v.dtype)
    return in_type(a, u, dtype), in_type(b, v, dtype)


def _bits(op: Ops, a: UOp, b: UOp) -> UOp:
    if a.dtype.is_float:
        raise TypeError(f"{op.name.lower()} of bits takes integers or bool, not {a.dtype.name}")
    return a.alu(op, b)


def _shift(op: Ops, a: UOp, b: UOp) -> UOp:
    if a.dtype.is_bool:  # NumPy's smallest shift is of int8
        a, b = as_dtype(a, dtypes.int8), as_dtype(b, dtypes.int8)
    return _bits(op, a, b)


def _compare_signs(op: Ops, a: UOp, b: UOp) -> UOp:
    """int64 against uint64, exactly: their common type, float64, would round."""
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = operand(a, shape), operand(b, shape)
    signed = a if a.dtype is dtypes.int64 else b
    negative = signed < 0
    plain = as_dtype(a, dtypes.uint64).alu(op, as_dtype(b, dtypes.uint64))
    if op is Ops.CMPEQ or (op is not Ops.CMPNE and signed is b):
        return plain & (negative ^ True)
    return plain | negative
