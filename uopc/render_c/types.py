"""Names of C: types, literals, and the typedefs and inline functions that a unit needs, each declared at its first
use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from uopc._hot.text import ATOM, UNARY, Code
from uopc.memo import SHAPES
from uopc.uop import DType, dtypes

UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}

# Before version 15, clang knows 16-bit floats on x86 as a type of memory only, which is all that they are here.
HALF = """\
#if __clang__ && __clang_major__ < 15
#define _Float16 __fp16
#endif"""


def type_name(dtype: DType) -> str:
    """What follows a function's name, and the name of a vector type: f32, i64x8, ..."""
    scalar = dtype.scalar()
    kind = "u" if dtype.is_bool or scalar is dtypes.bfloat16 else scalar.kind
    lanes = f"x{dtype.count}" if dtype.count > 1 else ""
    return f"{kind}{8 * scalar.itemsize}{lanes}"


def literal(value: bool | int | float, dtype: DType, exact: bool = True) -> Code:
    """A constant.  ``exact``: the C type is ``dtype``; else the operand beside it decides the type, and a long needs
    no suffix.
    """
    if dtype.is_bool:
        return Code(str(int(value)))
    if dtype.is_float:
        return _float_literal(value, dtype)
    if dtype.kind == "u":
        suffix = "u" if dtype.itemsize == 4 else "ul" if dtype.itemsize == 8 and (exact or value > 0x7FFFFFFF) else ""
        return Code(f"{value}{suffix}")
    suffix = "l" if dtype.itemsize == 8 and (exact or abs(value) > 0x7FFFFFFF) else ""
    if value == dtype.min:  # its negative is no value of the type: nothing may subtract that instead
        return Code(f"-{-value}", UNARY) if dtype.itemsize < 4 else Code(f"(-{-(value + 1)}{suffix} - 1)")
    return _signed(value < 0, f"{abs(value)}{suffix}")


def _float_literal(value: float, dtype: DType) -> Code:
    f = "" if dtype is dtypes.float64 else "f"
    negative = math.copysign(1.0, value) < 0
    if math.isnan(value):
        return Code(f'__builtin_nan{f}("")')
    if math.isinf(value):
        return _signed(negative, f"__builtin_inf{f}()")
    return _signed(negative, (_shortest(abs(value)) if f else repr(abs(value))) + f)


@lru_cache(maxsize=SHAPES)
def _shortest(value: float) -> str:
    """The fewest digits that give this float32."""
    return str(np.float32(value))


def _signed(negative: bool, text: str) -> Code:
    return Code(f"-{text}", UNARY, 0, Code(text)) if negative else Code(text, ATOM)


class Declarations:
    """What stands above the kernel: typedefs of vectors, inline functions and constants, in the order of first use."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.types: dict[DType, str] = {}
        self.types_in_memory: dict[tuple[DType, int], str] = {}
        self.functions: dict[tuple[object, ...], str] = {}

    def type(self, dtype: DType) -> str:
        """The C type, declared if it is a vector."""
        name = self.types.get(dtype)
        if name is None:
            name = self.types[dtype] = self._type(dtype)
        return name

    def _type(self, dtype: DType) -> str:
        if dtype.scalar() is dtypes.float16:
            self.lines.setdefault("_Float16", HALF)
        if dtype.count == 1:
            return dtype.c_name
        name = type_name(dtype)
        self.lines.setdefault(name, f"typedef {_element(dtype)} {name} __attribute__((vector_size({dtype.itemsize})));")
        return name

    def in_memory(self, dtype: DType, element: DType) -> str:
        """The same type for memory of ``element``, to which alone it is aligned: a vector, or a word of several."""
        align = element.scalar().itemsize
        name = self.types_in_memory.get((dtype, align))
        if name is None:
            name = self.types_in_memory[dtype, align] = self._in_memory(dtype, align)
        return name

    def _in_memory(self, dtype: DType, align: int) -> str:
        name = f"{type_name(dtype)}u{align if align != dtype.scalar().itemsize else ''}"
        attributes = f"__attribute__((aligned({align}), may_alias))"
        self.lines.setdefault(name, f"typedef {self.type(dtype)} {name} {attributes};")
        return name

    def mask(self, size: int, count: int) -> str:
        """The type of a vector of bool: integers, -1 or 0, of ``size`` bytes."""
        return self.type(SIGNED[size].vec(count))

    def once(self, function: Callable[..., str], *key: object) -> str:
        """The name of an inline function, which ``function(self, *key)`` declares at the first use."""
        name = self.functions.get((function, key))
        if name is None:
            name, lines = _declared(function, *key)
            self.functions[function, key] = name
            self.lines |= lines
        return name

    def function(self, name: str, head: str, *body: str) -> str:
        """An inline function of these lines, declared once.  ``head`` is its result and parameters: ``int (int a)``."""
        self.lines.setdefault("INLINE", "#define INLINE static inline __attribute__((always_inline))")
        result, parameters = head.split("(", 1)
        opening = f"INLINE {result.strip()} {name}({parameters} {{"
        if len(body) == 1 and len(opening) + len(body[0]) < 118:
            text = f"{opening} {body[0]} }}"
        else:
            lines = [line if line.startswith("#") else f"  {line}" for line in body]
            text = "\n".join([opening, *lines, "}"])
        self.lines.setdefault(name, text)
        return name


@lru_cache(maxsize=SHAPES)
def _declared(function: Callable[..., str], *key: object) -> tuple[str, dict[str, str]]:
    """The name of an inline function, and the lines that declare it and what it needs."""
    unit = Declarations()
    return function(unit, *key), unit.lines


def _element(dtype: DType) -> str:
    return "unsigned char" if dtype.is_bool else dtype.c_name
