"""The C expression of a value over the expressions of its sources.

A vector of bool is a vector of integers, -1 or 0, as wide as the values whose comparison made it; ``masks`` says how
wide, and where two meet, or one chooses among wider values, it is converted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from uopc._hot.statements import Texts
from uopc._hot.text import ATOM, Code, call, cast, choice, infix, narrowed, prefix
from uopc.ops import COMPARE, Ops
from uopc.render_c import functions
from uopc.render_c.functions import INFIX, LIBM, ON_MASKS
from uopc.render_c.types import SIGNED, Declarations, literal
from uopc.uop import UOp, dtypes


def _is_zero(u: UOp) -> bool:
    """A constant whose bits are all 0."""
    return u.op is Ops.CONST and u.arg == 0 and not (u.dtype.is_float and math.copysign(1.0, u.arg) < 0)


def _is_number(u: UOp) -> bool:
    """A scalar constant that is no NaN."""
    return u.op is Ops.CONST and u.dtype.count == 1 and u.arg == u.arg


def constants(u: UOp) -> tuple[Any, ...]:
    """The values of a constant of a vector type, which may be written as the one that all lanes have."""
    return u.arg if isinstance(u.arg, tuple) else (u.arg,) * u.dtype.count


class Expressions(Texts):
    """Texts of values.  ``masks`` holds the width of the vectors of bool that were seen."""

    def __init__(self, unit: Declarations) -> None:
        super().__init__(unit.types, INFIX, RULES)
        self.unit = unit
        self.masks: dict[UOp, int] = {}

    # -- operands

    def constant(self, u: UOp, exact: bool) -> Code:
        """The text of a CONST."""
        if u.dtype.count == 1:
            return literal(u.arg, u.dtype, exact)
        values = ", ".join(literal(v, u.dtype.scalar(), False).text for v in constants(u))
        return Code(f"({self.unit.type(u.dtype)}){{{values}}}")

    def spread(self, u: UOp, count: int) -> Code:
        """A scalar in ``count`` lanes.  ``x - {}`` keeps -0.0, which ``{} + x`` would not."""
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

    def variable_type(self, u: UOp) -> str:
        """The C type of a constant that holds a value."""
        if u.dtype.is_bool and u.dtype.count > 1:
            return self.unit.mask(self.masks[u], u.dtype.count)
        return self.unit.type(u.dtype)

    def renamed(self, u: UOp) -> Code:
        """An AFTER."""
        if u.src[0] in self.masks:
            self.masks[u] = self.masks[u.src[0]]
        return self.operand(u.src[0])

    def shuffle(self, u: UOp) -> Code:
        """Lanes of two vectors."""
        if not u.dtype.is_bool:
            return self.called(self.unit.once(functions.shuffle, u.arg, u.dtype), u)
        size = self.masks[u] = self.widest(u)
        masks = (self.mask(s, size, s.dtype.count) for s in u.src)
        return call(self.unit.once(functions.shuffle, u.arg, functions.mask_dtype(size, u.dtype.count)), *masks)

    def ldexp(self, u: UOp) -> Code:
        """A float times a power of two."""
        return self.called(self.unit.once(functions.ldexp, u.dtype), u)

    def lookup(self, u: UOp) -> Code:
        """Elements of a table."""
        table, index = self.unit.once(functions.table, u.arg), self.operand(u.src[0])
        if u.dtype.count == 1:
            return Code(f"{table}[{infix('&', index, Code('15')).text}]")
        return call(self.unit.once(functions.lookup, u.dtype), Code(table), index)

    def pair(self, u: UOp) -> Code:
        """Two float32 rounded to the halves of a word."""
        return self.called(self.unit.once(functions.pair, dtypes.float32.vec(u.dtype.count)), u)

    def dot2(self, u: UOp) -> Code:
        """A dot product of words, and what it is added to."""
        return self.called(self.unit.once(functions.dot2, u.dtype), u)

    def fma(self, u: UOp) -> Code:
        """a * b + c, rounded once."""
        return self.called(self.unit.once(functions.fma, u.dtype), u)

    # -- scalars

    def scalar_cast(self, u: UOp) -> Code:
        """A scalar as another type."""
        return cast(self.unit.type(u.dtype), self.operand(u.src[0]))

    def scalar_bitcast(self, u: UOp) -> Code:
        """The bits of a scalar as another type."""
        return call(self.unit.once(functions.reinterpret, u.dtype, u.src[0].dtype), self.operand(u.src[0]))

    def scalar_libm(self, u: UOp) -> Code:
        """A function of C's library."""
        return self.called(self.unit.once(functions.libm, u.op, u.dtype), u)

    def scalar_choice(self, u: UOp) -> Code:
        """One of two scalars."""
        return narrowed(choice(*(self.operand(s) for s in u.src)), u)

    def scalar_extremum(self, u: UOp) -> Code:
        """MAX or MIN of scalars."""
        return self.extremum(u, *(self.operand(s, False) for s in u.src))

    def scalar_xor(self, u: UOp) -> Code:
        """XOR of scalars; of a bool with True, its contrary."""
        a, b = u.src
        if u.dtype.is_bool and b.op is Ops.CONST:
            return prefix("!", self.operand(a)) if b.arg else self.operand(a)
        return self.binary(u)

    def extremum(self, u: UOp, a: Code, b: Code) -> Code:
        """MAX or MIN of two texts."""
        if u.dtype.is_float and _is_number(u.src[1]):
            return call(self.unit.once(functions.bound, u.op, u.dtype), a, b)
        if u.dtype.is_float and _is_number(u.src[0]):
            return call(self.unit.once(functions.bound, u.op, u.dtype), b, a)
        return call(self.unit.once(functions.extremum, u.op, u.dtype), a, b)

    # -- vectors

    def vector_bitcast(self, u: UOp) -> Code:
        """The bits of a vector as another type."""
        return cast(self.unit.type(u.dtype), self.vector(u.src[0], u.dtype.count))

    def vector_choice(self, u: UOp) -> Code:
        """Lanes of one vector or another, or one of two vectors."""
        dtype = u.dtype
        a, b = self.vector(u.src[1], dtype.count), self.vector(u.src[2], dtype.count)
        if u.src[0].dtype.count == 1:
            t = self.unit.type(dtype)  # in memory, vectors are of another type
            return choice(self.operand(u.src[0]), cast(t, a), cast(t, b))
        mask = self.mask(u.src[0], dtype.scalar().itemsize, dtype.count)
        return call(self.unit.once(functions.select, dtype), mask, a, b)

    def vector_extremum(self, u: UOp) -> Code:
        """MAX or MIN lane by lane."""
        return self.extremum(u, *(self.vector(s, u.dtype.count) for s in u.src))

    def vector_libm(self, u: UOp) -> Code:
        """A function of C's library on each lane."""
        return self.called(self.unit.once(functions.lane_by_lane, u.op, u.dtype), u)

    def vector_shift(self, u: UOp) -> Code:
        """A shift.  C spreads no scalar that is to its left."""
        if u.src[0].dtype.count > 1:
            return self.binary(u)
        return infix(INFIX[u.op], self.vector(u.src[0], u.dtype.count), self.operand(u.src[1], False))

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
            return call(self.unit.once(functions.select, functions.mask_dtype(size, count)), *masks)
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
            return call(self.unit.once(functions.fold, op, source.dtype), self.operand(source))
        size = self.masks.get(source, 1)
        whole = self.mask(source, size, source.dtype.count)
        function = functions.fold(self.unit, ON_MASKS.get(op, op), functions.mask_dtype(size, source.dtype.count))
        return infix("!=", call(function, whole), Code("0"))


# What prints a value: whatever its type, of scalars, of vectors of bool, and of vectors of numbers.  What is named
# nowhere is logic in a vector of bool, and elsewhere an operator of C.
Rule = Callable[[Any, UOp], Code]
ON_ANY: dict[Ops, Rule] = {
    Ops.AFTER: Expressions.renamed,
    Ops.HREDUCE: Expressions.fold,
    Ops.SHUFFLE: Expressions.shuffle,
    Ops.LDEXP: Expressions.ldexp,
    Ops.LOOKUP: Expressions.lookup,
    Ops.PAIR: Expressions.pair,
    Ops.DOT2: Expressions.dot2,
    Ops.FMA: Expressions.fma,
    Ops.LOAD: lambda self, u: self.load(u),  # of the subclass that knows memory
}
ON_SCALARS: dict[Ops, Rule] = {
    **ON_ANY,
    Ops.CAST: Expressions.scalar_cast,
    Ops.BITCAST: Expressions.scalar_bitcast,
    Ops.WHERE: Expressions.scalar_choice,
    Ops.MAX: Expressions.scalar_extremum,
    Ops.MIN: Expressions.scalar_extremum,
    Ops.XOR: Expressions.scalar_xor,
    **dict.fromkeys(LIBM, Expressions.scalar_libm),
}
ON_BOOLS: dict[Ops, Rule] = {**ON_ANY, **dict.fromkeys(COMPARE, Expressions.vector_compare)}
ON_VECTORS: dict[Ops, Rule] = {
    **ON_ANY,
    Ops.CAST: Expressions.vector_cast,
    Ops.BITCAST: Expressions.vector_bitcast,
    Ops.WHERE: Expressions.vector_choice,
    Ops.MAX: Expressions.vector_extremum,
    Ops.MIN: Expressions.vector_extremum,
    Ops.SHL: Expressions.vector_shift,
    Ops.SHR: Expressions.vector_shift,
    **dict.fromkeys(LIBM, Expressions.vector_libm),
}
RULES = tuple(
    tuple(rules.get(op, otherwise) for op in Ops)
    for rules, otherwise in ((ON_SCALARS, None), (ON_VECTORS, None), (ON_BOOLS, Expressions.on_masks))
)
