"""Integer division, remainder and shifts as the op table says, by what C's ``/ % << >>`` do right; bool as a number.

C divides towards zero, traps at 0 and at the least integer by -1, and leaves shifts by the width or more undefined.
What remains is an IDIV or MOD of operands that are not negative by a divisor above 0, and shifts by amounts in range;
bounds of the nodes prove both.  Adds and multiplications wrap, as everywhere in uopc: kernels are compiled with
-fwrapv.
"""

from __future__ import annotations

from collections.abc import Callable

from uopc.dtype import DType, dtypes
from uopc.ops import Ops
from uopc.uop import UOp

UNSIGNED: dict[DType, DType] = {
    dtypes.int8: dtypes.uint8,
    dtypes.int16: dtypes.uint16,
    dtypes.int32: dtypes.uint32,
    dtypes.int64: dtypes.uint64,
    dtypes.index: dtypes.uint64,
}


def is_unsigned(u: UOp) -> bool:
    """True where no value is negative by type."""
    return u.dtype.kind == "u"


def divides_as_c(a: UOp, b: UOp) -> bool:
    """Whether C's ``a / b`` and ``a % b`` are IDIV and MOD."""
    return (is_unsigned(a) or a.vmin >= 0) and b.vmin > 0


def shifts_as_c(a: UOp, n: UOp) -> bool:
    """Whether C's ``a << n`` and ``a >> n`` are SHL and SHR."""
    return n.vmin >= 0 and n.vmax < 8 * a.dtype.scalar().itemsize


def _const(value: int, like: UOp) -> UOp:
    return UOp.const(value, like.dtype.scalar())


def _unsigned(u: UOp) -> UOp:
    unsigned = UNSIGNED[u.dtype.scalar()]
    return UOp.const(u.arg, unsigned) if u.op is Ops.CONST and isinstance(u.arg, int) else u.cast(unsigned)


def _sign(u: UOp) -> UOp:
    """-1 where u is negative, else 0."""
    return u >> (8 * u.dtype.scalar().itemsize - 1)


def idiv(a: UOp, b: UOp) -> UOp:
    """a // b, rounded down; 0 where b is 0; wraps where the least integer is divided by -1."""
    if divides_as_c(a, b):
        return UOp(Ops.IDIV, (a, b))
    if is_unsigned(a):
        return b.eq(0).where(_const(0, a), UOp(Ops.IDIV, (a, b.maximum(1))))
    if _power_of_two(b):
        return a >> (b.arg.bit_length() - 1)
    if b.vmin > 0:
        return _by_positive(a, b)
    return _by_any(a, b)


def _power_of_two(u: UOp) -> bool:
    return u.op is Ops.CONST and isinstance(u.arg, int) and u.arg > 0 and u.arg & (u.arg - 1) == 0


def _by_positive(a: UOp, b: UOp) -> UOp:
    """floor(a / b): for a < 0 it is ``~(~a / b)``."""
    sign = _sign(a)
    return UOp(Ops.IDIV, (_unsigned(a ^ sign), _unsigned(b))).cast(a.dtype) ^ sign


def _by_any(a: UOp, b: UOp) -> UOp:
    """floor(a / b): where the signs differ and a is not 0, ``~((|a| - 1) / |b|)``, else ``|a| / |b|``."""
    sign = (((a ^ b) < 0) & a.ne(0)).where(_const(-1, a), _const(0, a))
    size = _unsigned_abs(a) + _unsigned(sign)
    quotient = UOp(Ops.IDIV, (size, _unsigned_abs(b).maximum(1))).cast(a.dtype) ^ sign
    return b.eq(0).where(_const(0, a), quotient)


def _unsigned_abs(u: UOp) -> UOp:
    sign = _unsigned(_sign(u))
    return (_unsigned(u) ^ sign) + sign * -1


def mod(a: UOp, b: UOp) -> UOp:
    """a - (a // b) * b, with the sign of b; 0 where b is 0."""
    if divides_as_c(a, b):
        return UOp(Ops.MOD, (a, b))
    if is_unsigned(a):
        return b.eq(0).where(_const(0, a), UOp(Ops.MOD, (a, b.maximum(1))))
    if _power_of_two(b):
        return a & (b.arg - 1)
    quotient = idiv(a, b)
    rest = a + quotient * b * -1
    return rest if b.vmin > 0 else b.eq(0).where(_const(0, a), rest)


def shl(a: UOp, n: UOp) -> UOp:
    """a << n; 0 where n is negative or at least the width."""
    if shifts_as_c(a, n):
        return UOp(Ops.SHL, (a, n))
    return _inside(a, n).where(UOp(Ops.SHL, (a, _masked(a, n))), _const(0, a))


def shr(a: UOp, n: UOp) -> UOp:
    """a >> n; where n is negative or at least the width, 0, or -1 for a negative a."""
    if shifts_as_c(a, n):
        return UOp(Ops.SHR, (a, n))
    if is_unsigned(a):
        return _inside(a, n).where(UOp(Ops.SHR, (a, _masked(a, n))), _const(0, a))
    last = 8 * a.dtype.scalar().itemsize - 1
    return UOp(Ops.SHR, (a, _unsigned(n).minimum(last).cast(n.dtype)))


def _inside(a: UOp, n: UOp) -> UOp:
    return (n if is_unsigned(n) else _unsigned(n)) < 8 * a.dtype.scalar().itemsize


def _masked(a: UOp, n: UOp) -> UOp:
    """n where it is in range, else something that is."""
    return n & (8 * a.dtype.scalar().itemsize - 1)


def _not(a: UOp) -> UOp:
    return a ^ True


# Arithmetic and comparisons of bool as NumPy has them: + is or, * is and, < is "not a, but b".  bool is one bit wide.
BOOLEAN: dict[Ops, Callable[..., UOp]] = {
    Ops.ADD: lambda a, b: a | b,
    Ops.MAX: lambda a, b: a | b,
    Ops.MUL: lambda a, b: a & b,
    Ops.MIN: lambda a, b: a & b,
    Ops.IDIV: lambda a, b: a & b,
    Ops.MOD: lambda a, b: a & _not(a),
    Ops.CMPEQ: lambda a, b: _not(a ^ b),
    Ops.CMPNE: lambda a, b: a ^ b,
    Ops.CMPLT: lambda a, b: _not(a) & b,
    Ops.CMPLE: lambda a, b: _not(a) | b,
    Ops.SHL: lambda a, b: a & _not(b),
    Ops.SHR: lambda a, b: a & _not(b),
    Ops.ABS: lambda a: a,
}
