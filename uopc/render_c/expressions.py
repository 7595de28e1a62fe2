"""The C expression of a value over the expressions of its sources.

A vector of bool is a vector of integers, -1 or 0, as wide as the values whose comparison made it; ``masks`` says how
wide, and where two meet, or one chooses among wider values, it is converted.
"""

from __future__ import annotations

import math
from typing import Any

from uopc.ops import COMPARE, Ops
from uopc.render_c import functions
from uopc.render_c.code import ATOM, Code, call, cast, choice, infix, prefix
from uopc.render_c.functions import INFIX, LIBM, ON_MASKS
from uopc.render_c.types import SIGNED, Declarations, literal
from uopc.uop import UOp


def _is_zero(u: UOp) -> bool:
    """A constant whose bits are all 0."""
    return u.op is Ops.CONST and u.arg == 0 and not (u.dtype.is_float and math.copysign(1.0, u.arg) < 0)


def _is_number(u: UOp) -> bool:
    """A scalar constant that is no NaN."""
    return u.op is Ops.CONST and u.dtype.count == 1 and u.arg == u.arg


def constants(u: UOp) -> tuple[Any, ...]:
    """The values of a constant of a vector type, which may be written as the one that all lanes have."""
    return u.arg if isinstance(u.arg, tuple) else (u.arg,) * u.dtype.count


def narrowed(text: Code, u: UOp) -> Code:
    """The text of a scalar operation in the type of ``u``: C computes in int what is narrower."""
    narrow = u.dtype.is_int and u.dtype.count == 1 and u.dtype.itemsize < 4
    return cast(u.dtype.c_name, text) if narrow else text


class Expressions:
    """Texts of values.  ``code`` holds those of the nodes that were seen: an expression, or the name that it was
    given.
    """

    def __init__(self, unit: Declarations) -> None:
        self.unit = unit
        self.code: dict[UOp, Code] = {}
        self.masks: dict[UOp, int] = {}

    # -- operands

    def operand(self, u: UOp, exact: bool = True) -> Code:
        """The text of a source.  ``exact``: of its very C type, where it is a constant."""
        if u.op is not Ops.CONST:
            return self.code[u]
        if u.dtype.count == 1:
            return literal(u.arg, u.dtype, exact)
        if u not in self.code:
            values = ", ".join(literal(v, u.dtype.scalar(), False).text for v in constants(u))
            self.code[u] = Code(f"({self.unit.type(u.dtype)}){{{values}}}")
        return self.code[u]

    def vector(self, u: UOp, count: int) -> Code:
        """``u`` in ``count`` lanes: itself, or a scalar spread.  ``x - {}`` keeps -0.0, which ``{} + x`` would not."""
        if u.dtype.count == count:
            return self.operand(u)
        spread = self.unit.type(u.dtype.vec(count))
        nothing = Code(f"({spread}){{}}")
        if u.dtype.is_half and not _is_zero(u):  # C computes in float, which does not go with lanes of a half
            return Code(f"({spread}){{{', '.join([self.operand(u).text] * count)}}}")
        return nothing if _is_zero(u) else infix("-", self.operand(u), nothing)

    def mask(self, u: UOp, size: int, count: int) -> Code:
        """A bool as a mask of ``count`` lanes of ``size`` bytes."""
        to = self.unit.mask(size, count)
        if u.op is Ops.CONST and u.dtype.count > 1:
            return Code(f"({to}){{{', '.join('-1' if v else '0' for v in constants(u))}}}")
        if u.dtype.count == 1:
            return infix("-", Code(f"({to}){{}}"), cast(SIGNED[size].c_name, self.operand(u)))
        return self.code[u] if self.masks[u] == size else call("__builtin_convertvector", self.code[u], Code(to))

    def lane(self, gate: UOp, i: int) -> Code:
        """Whether a gate, of one lane or several, holds in lane ``i``."""
        if gate.dtype.count == 1:
            return self.operand(gate)
        return Code(str(int(constants(gate)[i]))) if gate.op is Ops.CONST else Code(f"{self.code[gate].at(ATOM)}[{i}]")

    # -- values

    def expression(self, u: UOp) -> Code:
        """The text of a value."""
        if u.op is Ops.AFTER:
            self.masks.update({u: self.masks[u.src[0]]} if u.src[0] in self.masks else {})
            return self.operand(u.src[0])
        if u.op is Ops.HREDUCE:
            return self.fold(u)
        if u.op is Ops.SHUFFLE:
            return call(functions.shuffle(self.unit, u.arg, u.dtype), *(self.operand(s) for s in u.src))
        if u.dtype.count == 1:
            return self.scalar(u)
        if u.op in COMPARE:
            return self.vector_compare(u)
        return self.on_masks(u) if u.dtype.is_bool else self.on_vectors(u)

    def scalar(self, u: UOp) -> Code:
        """An operation on scalars."""
        if u.op is Ops.CAST:
            return cast(self.unit.type(u.dtype), self.operand(u.src[0]))
        if u.op is Ops.BITCAST:
            return call(functions.reinterpret(self.unit, u.dtype, u.src[0].dtype), self.operand(u.src[0]))
        if u.op in LIBM:
            return call(functions.libm(u.op, u.dtype), *(self.operand(s) for s in u.src))
        if u.op is Ops.WHERE:
            return narrowed(choice(*(self.operand(s) for s in u.src)), u)
        if u.op in (Ops.MAX, Ops.MIN):
            return self.extremum(u, *(self.operand(s, False) for s in u.src))
        a, b = u.src
        if u.op is Ops.XOR and u.dtype.is_bool and b.op is Ops.CONST:
            return prefix("!", self.operand(a)) if b.arg else self.operand(a)
        text = self.binary(u, a, b)
        return narrowed(text, u)

    def binary(self, u: UOp, a: UOp, b: UOp) -> Code:
        """An operator of C between scalars, one of which may be a constant without a suffix, or vectors and scalars."""
        if u.op is Ops.MUL and b.op is Ops.CONST and b.arg == -1:
            return prefix("-", self.operand(a))
        shift = u.op in (Ops.SHL, Ops.SHR)
        return infix(INFIX[u.op], self.operand(a, shift or b.op is Ops.CONST), self.operand(b, False))

    def extremum(self, u: UOp, a: Code, b: Code) -> Code:
        """MAX or MIN of two texts."""
        if u.dtype.is_float and _is_number(u.src[1]):
            return call(functions.bound(self.unit, u.op, u.dtype), a, b)
        if u.dtype.is_float and _is_number(u.src[0]):
            return call(functions.bound(self.unit, u.op, u.dtype), b, a)
        return call(functions.extremum(self.unit, u.op, u.dtype), a, b)

    def on_vectors(self, u: UOp) -> Code:
        """An operation whose result is a vector of numbers."""
        count, scalar = u.dtype.count, u.dtype.scalar()
        if u.op is Ops.CAST:
            return self.vector_cast(u)
        if u.op is Ops.BITCAST:
            return cast(self.unit.type(u.dtype), self.vector(u.src[0], count))
        if u.op is Ops.WHERE:
            a, b = self.vector(u.src[1], count), self.vector(u.src[2], count)
            if u.src[0].dtype.count == 1:
                t = self.unit.type(u.dtype)  # in memory, vectors are of another type
                return choice(self.operand(u.src[0]), cast(t, a), cast(t, b))
            return call(functions.select(self.unit, u.dtype), self.mask(u.src[0], scalar.itemsize, count), a, b)
        if u.op in (Ops.MAX, Ops.MIN):
            return self.extremum(u, *(self.vector(s, count) for s in u.src))
        if u.op in LIBM:
            return call(functions.lane_by_lane(self.unit, u.op, u.dtype), *(self.vector(s, count) for s in u.src))
        if u.op in (Ops.SHL, Ops.SHR) and u.src[0].dtype.count == 1:  # a scalar is not spread to the left of a shift
            return infix(INFIX[u.op], self.vector(u.src[0], count), self.operand(u.src[1], False))
        return self.binary(u, *u.src)

    def vector_compare(self, u: UOp) -> Code:
        """A comparison in lanes, which makes a mask as wide as what it compares."""
        count, compared = u.dtype.count, u.src[0].dtype
        size = self.widest(u) if compared.is_bool else compared.scalar().itemsize
        self.masks[u] = size
        self.unit.mask(size, count)
        sides = [self.mask(s, size, count) if compared.is_bool else self.vector(s, count) for s in u.src]
        return infix(INFIX[u.op], *sides)

    def widest(self, u: UOp) -> int:
        """Bytes of the widest mask among the sources of ``u``."""
        return max((self.masks.get(s, 1) for s in u.src), default=1)

    def on_masks(self, u: UOp) -> Code:
        """Logic on vectors of bool, in the width of the widest."""
        count, size = u.dtype.count, self.widest(u)
        self.masks[u] = size
        if u.op is Ops.CAST:  # from a bool: no other is left
            return self.mask(u.src[0], size, count)
        if u.op is Ops.WHERE:
            masks = (self.mask(s, size, count) for s in u.src)
            return call(functions.select(self.unit, functions.mask_dtype(size, count)), *masks)
        if u.op is Ops.XOR and u.src[1].op is Ops.CONST and u.src[1].arg is True:
            return prefix("~", self.mask(u.src[0], size, count))
        return infix(INFIX[ON_MASKS.get(u.op, u.op)], *(self.mask(s, size, count) for s in u.src))

    def vector_cast(self, u: UOp) -> Code:
        """Lanes as another type of number."""
        source = u.src[0]
        if not source.dtype.is_bool:
            return functions.convert(self.unit, u.dtype, source.dtype, self.operand(source))
        size = self.masks.get(source, 1)
        ones = prefix("-", self.mask(source, size, u.dtype.count))
        return call("__builtin_convertvector", ones, Code(self.unit.type(u.dtype)))

    def fold(self, u: UOp) -> Code:
        """The lanes of a vector combined to a scalar."""
        source, op = u.src[0], u.arg
        if not source.dtype.is_bool:
            return call(functions.fold(self.unit, op, source.dtype), self.operand(source))
        size = self.masks.get(source, 1)
        whole = self.mask(source, size, source.dtype.count)
        function = functions.fold(self.unit, ON_MASKS.get(op, op), functions.mask_dtype(size, source.dtype.count))
        return infix("!=", call(function, whole), Code("0"))
