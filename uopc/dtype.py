"""Data types: one interned object per type, vector forms of it, and NumPy's promotion.

A ``DType`` is compared by identity.  ``dtypes`` is the namespace of all scalar types; ``d.vec(n)`` is the type of a
register that holds ``n`` values of ``d`` side by side and exists in loop programs only.  ``index`` is the type of loop
counters and addresses: 64 bits, signed, never stored.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One element type.  ``kind`` is 'b' bool, 'i' signed, 'u' unsigned, 'f' float, 'v' void; ``itemsize`` is in
    bytes.

    is_int: signed and unsigned integers, not bool.  is_half: the 16-bit floats, which are stored as they are and
    computed in float32.
    """

    name: str
    kind: str
    itemsize: int
    c_name: str
    count: int = 1
    _scalar: DType | None = None
    is_float: bool = field(init=False)
    is_half: bool = field(init=False)
    is_int: bool = field(init=False)
    is_bool: bool = field(init=False)

    def __post_init__(self) -> None:
        # attributes, not properties: passes ask them of every node
        object.__setattr__(self, "is_float", self.kind == "f")
        object.__setattr__(self, "is_half", self.kind == "f" and self.itemsize == 2 * self.count)
        object.__setattr__(self, "is_int", self.kind in "iu")
        object.__setattr__(self, "is_bool", self.kind == "b")

    def __repr__(self) -> str:
        return f"dtypes.{self.name}" if self.count == 1 else f"{self._scalar!r}.vec({self.count})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (by_name, (self.scalar().name, self.count))

    def scalar(self) -> DType:
        """The element type of a vector type; a scalar type is its own."""
        return self if self._scalar is None else self._scalar

    def vec(self, count: int) -> DType:
        """The type of ``count`` values side by side; ``vec(1)`` is the scalar type."""
        scalar = self.scalar()
        if count == 1:
            return scalar
        key = (scalar, count)
        found = _vectors.get(key)
        if found is None:
            made = DType(f"{scalar.name}x{count}", scalar.kind, scalar.itemsize * count, scalar.c_name, count, scalar)
            found = _vectors.setdefault(key, made)
        return found

    @property
    def min(self) -> Any:
        """The smallest value: -inf for floats, False for bool."""
        if self.kind == "f":
            return float("-inf")
        if self.kind == "i":
            return -(1 << (8 * self.scalar().itemsize - 1))
        return False if self.kind == "b" else 0

    @property
    def max(self) -> Any:
        """The largest value: inf for floats, True for bool."""
        if self.kind == "f":
            return float("inf")
        if self.kind == "b":
            return True
        return (1 << (8 * self.scalar().itemsize - (self.kind == "i"))) - 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type with the same bits; bfloat16, which NumPy lacks, is carried as uint16."""
        try:
            return _NUMPY[self]
        except KeyError:
            raise TypeError(f"{self!r} has no NumPy type") from None

    def convert(self, value: Any) -> Any:
        """A Python scalar as this type holds it: ints wrap, halves and floats round; used for constants."""
        if self.kind == "b":
            return bool(value)
        if self.kind == "f":
            value = float(value)
            scalar = self.scalar()
            if scalar is dtypes.float64:
                return value
            if scalar is dtypes.float32:
                return ctypes.c_float(value).value
            with np.errstate(over="ignore"):
                if scalar is dtypes.bfloat16:
                    return float(bfloat16_to_float32(float32_to_bfloat16(_to_odd_float32(value))))
                return float(_NUMPY[scalar].type(value))
        bits = 8 * self.scalar().itemsize
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped - (1 << bits) if self.kind == "i" and wrapped >> (bits - 1) else wrapped


class dtypes:
    """All scalar types."""

    void = DType("void", "v", 0, "void")
    bool_ = DType("bool_", "b", 1, "_Bool")
    int8 = DType("int8", "i", 1, "signed char")
    int16 = DType("int16", "i", 2, "short")
    int32 = DType("int32", "i", 4, "int")
    int64 = DType("int64", "i", 8, "long")
    uint8 = DType("uint8", "u", 1, "unsigned char")
    uint16 = DType("uint16", "u", 2, "unsigned short")
    uint32 = DType("uint32", "u", 4, "unsigned int")
    uint64 = DType("uint64", "u", 8, "unsigned long")
    float16 = DType("float16", "f", 2, "_Float16")
    bfloat16 = DType("bfloat16", "f", 2, "unsigned short")
    float32 = DType("float32", "f", 4, "float")
    float64 = DType("float64", "f", 8, "double")
    index = DType("index", "i", 8, "long")

    default_float = float32
    default_int = int64


SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
ALL = (dtypes.bool_, *SIGNED, *UNSIGNED, *FLOATS)

_vectors: dict[tuple[DType, int], DType] = {}
_NUMPY: dict[DType, np.dtype[Any]] = {d: np.dtype(d.name.rstrip("_")) for d in ALL if d is not dtypes.bfloat16}
_NUMPY[dtypes.bfloat16] = np.dtype(np.uint16)
_FROM_NUMPY = {np_dtype: d for d, np_dtype in _NUMPY.items() if d is not dtypes.bfloat16}
_HELD = {d.name: d for d in ALL}
_BY_NAME = {**_HELD, "void": dtypes.void, "index": dtypes.index}
# spellings that users of NumPy, PyTorch and tinygrad bring along
_ALIASES = {
    "bool": dtypes.bool_,
    "half": dtypes.float16,
    "float": dtypes.float32,
    "double": dtypes.float64,
    "char": dtypes.int8,
    "short": dtypes.int16,
    "int": dtypes.int32,
    "long": dtypes.int64,
}


def by_name(name: str, count: int = 1) -> DType:
    """The type called ``name``, as a vector of ``count``."""
    return _BY_NAME[name].vec(count)


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy dtype; TypeError for types that uopc does not hold (objects, strings, complex, dates)."""
    np_dtype = np.dtype(dtype)
    if np_dtype.name == "bfloat16":
        return dtypes.bfloat16
    found = _FROM_NUMPY.get(np_dtype if np_dtype.isnative else np_dtype.newbyteorder("="))
    if found is None:
        # C's `long long` is a distinct NumPy type of the same name and size
        found = _HELD.get({"bool": "bool_"}.get(np_dtype.name, np_dtype.name))
    if found is None:
        raise TypeError(f"dtype {np_dtype} is not supported; accepted are " + ", ".join(d.name for d in ALL))
    return found


def to_dtype(spec: Any) -> DType:
    """The type of an array's elements, from a DType, its name, a Python type or anything that NumPy takes for a dtype;
    else TypeError.
    """
    if isinstance(spec, DType):
        if spec in ALL:
            return spec
    elif isinstance(spec, str) and (spec in _HELD or spec in _ALIASES):
        return _ALIASES.get(spec) or _HELD[spec]
    elif spec is bool:
        return dtypes.bool_
    elif spec is int:
        return dtypes.default_int
    elif spec is float:
        return dtypes.default_float
    elif isinstance(spec, (str, type, np.dtype)):
        try:
            return from_numpy(spec)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{spec!r} is not a dtype; accepted are " + ", ".join(d.name for d in ALL))


def _promotion() -> dict[tuple[DType, DType], DType]:
    """NumPy's table; bfloat16 stands where float16 does, and the two together need float32."""
    table: dict[tuple[DType, DType], DType] = {}
    f16, bf16 = dtypes.float16, dtypes.bfloat16
    for a in ALL:
        for b in ALL:
            if {a, b} == {f16, bf16}:
                table[a, b] = dtypes.float32
                continue
            np_a, np_b = (_NUMPY[f16 if d is bf16 else d] for d in (a, b))
            result = _FROM_NUMPY[np.promote_types(np_a, np_b)]
            table[a, b] = bf16 if result is f16 and bf16 in (a, b) else result
    return table


_PROMOTE = _promotion()


def promote(a: DType, b: DType) -> DType:
    """The type of an operation between arrays of types ``a`` and ``b``, as NumPy's ``promote_types``."""
    return a if a is b else _PROMOTE[a, b]


def promote_scalar(a: DType, value: bool | int | float) -> DType:
    """The type of an operation between an array of type ``a`` and a Python scalar, as NumPy 2 (NEP 50): the scalar is
    weak."""
    if isinstance(value, bool):
        return a
    if isinstance(value, int):
        return dtypes.int64 if a.is_bool else a
    return a if a.is_float else dtypes.float64


def float_of(a: DType) -> DType:
    """The type in which NumPy computes a float function such as ``exp`` of an array of type ``a``."""
    if a.is_float:
        return a
    return {1: dtypes.float16, 2: dtypes.float32}.get(a.itemsize, dtypes.float64)


def _to_odd_float32(value: float) -> Any:
    """A float64 as a float32 whose last bit is set where digits were lost: rounded once more, it is as if once."""
    near = np.float32(value)
    if float(near) == value or value != value:
        return near
    return ((near.view(np.uint32) - np.uint32(abs(float(near)) > abs(value))) | np.uint32(1)).view(np.float32)


def float32_to_bfloat16(x: Any) -> Any:
    """The bits (uint16) of float32 values rounded to nearest even; NaN stays NaN."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0) | ((bits >> 16).astype(np.uint16) & np.uint16(0x8000)), rounded)


def bfloat16_to_float32(bits: Any) -> Any:
    """The float32 values of bfloat16 bits (uint16); exact."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)
