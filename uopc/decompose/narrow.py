"""Positions in lanes are compared and converted in 32 bits where their bounds show that they fit.

A position is a 64-bit integer.  Beside a vector of 32-bit values stand as many positions, which are twice as many bytes
as a register has: compilers take such vectors apart, and what costs a mask of 32-bit lanes one instruction then takes a
hundred.
"""

from __future__ import annotations

from uopc._hot.graph import of_ops
from uopc.dtype import DType, dtypes
from uopc.ops import COMPARE, Ops
from uopc.uop import UOp

# In these the low half of a result follows from the low halves of the operands.
MODULAR = frozenset({Ops.ADD, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR})
LARGEST = (1 << 31) - 1
# Bytes of the largest vector register.
REGISTER = 64


def _is_wide(u: UOp) -> bool:
    return u.dtype.is_int and u.dtype.scalar().itemsize == 8


def _fits(u: UOp) -> bool:
    return u.vmin >= -LARGEST and u.vmax <= LARGEST


def _low_half(u: UOp, low: dict[UOp, UOp]) -> UOp | None:
    """``u`` modulo 2^32, given that of what it is made of; None where its lanes come from elsewhere than positions."""
    to = dtypes.int32.vec(u.dtype.count) if u.dtype.count > 1 else dtypes.int32
    if u.op is Ops.CONST:
        values = u.arg if isinstance(u.arg, tuple) else (u.arg,)
        return UOp(Ops.CONST, (), u.arg, to) if all(abs(v) <= LARGEST for v in values) else None
    if u.dtype.count == 1:
        return u.cast(to)
    if u in low:
        return low[u]
    if u.op is Ops.CAST and u.src[0].dtype.is_int:
        return low.get(u.src[0]) if _is_wide(u.src[0]) else u.src[0].cast(to)
    if u.op in MODULAR or (u.op in (Ops.MIN, Ops.MAX) and all(map(_fits, u.src))):
        a, b = (_low_half(s, low) if s.dtype.count == 1 or s.op is Ops.CONST else low.get(s) for s in u.src)
        return None if a is None or b is None else a.alu(u.op, b)
    return None


def _in_low_halves(u: UOp, low: dict[UOp, UOp]) -> UOp | None:
    """A comparison or conversion of positions, of their low halves; None for any other."""
    if all(s.dtype.count == 1 for s in u.src) or _is_wide(u) or not all(_is_wide(s) and _fits(s) for s in u.src):
        return None
    sources = [half for half in (_low_half(s, low) for s in u.src) if half is not None]
    if len(sources) < len(u.src):
        return None
    return sources[0] if u.dtype is sources[0].dtype else u.replace(src=tuple(sources))


def _lanes(u: UOp) -> int:
    return max(s.dtype.count for s in u.src)


def of_positions(dtype: DType) -> bool:
    """Whether this is the type of positions in lanes."""
    return dtype.count > 1 and dtype.is_int and dtype.scalar().itemsize == 8


def narrow(graph: UOp, order: list[UOp]) -> UOp:
    """``graph``, whose nodes these are, with positions in 32 bits where they are compared and converted: beside values
    that are as narrow, and wherever as many in 64 bits are more than any register has room for."""
    low: dict[UOp, UOp] = {}
    for u in of_ops(order, Ops.CAST, Ops.MIN, Ops.MAX, *MODULAR):
        half = _low_half(u, low) if of_positions(u.dtype) else None
        if half is not None:
            low[u] = half
    wide = any(u.dtype.scalar().itemsize == 8 for u in of_ops(order, Ops.BUFFER, Ops.ALLOC))
    targets = [u for u in of_ops(order, Ops.CAST, *COMPARE) if not wide or 8 * _lanes(u) > REGISTER]
    made = {u: _in_low_halves(u, low) for u in targets}
    return graph.substitute({u: new for u, new in made.items() if new is not None})
