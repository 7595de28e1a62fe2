"""An interpreter of tensor graphs in NumPy: what every stage of the compiler is measured against.

It shares no code with the compiler beyond the node, the op table and the dtypes, and walks ``toposort``: depth is free.

Values between nodes:

- bool, integers and the wider floats are arrays of ``dtype.numpy`` (``index`` is int64); shape () spreads, as in the IR
- float16 and bfloat16 are float32 arrays that may hold more digits than the type: halves compute in float32 and round
  where they are written down, which is in a BUFFER, at a CAST and in the result
- with ``exact=True`` all floats are float64 and nothing rounds: the yardstick of property tests

A CAST of a float that the integer type does not hold gives what x86-64 gives; ``_float_to_int`` says what that is.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from uopc.dtype import DType, bfloat16_to_float32, dtypes, float32_to_bfloat16
from uopc.ops import Ops, identity
from uopc.uop import UOp, sink, toposort
from uopc.widen import widen

Array = np.ndarray[Any, Any]


def evaluate(uops: Sequence[UOp], exact: bool = False) -> list[Array]:
    """The values of ``uops``, in order.

    Shapes are the nodes'.  Types are ``dtype.numpy``, except that bfloat16 comes as float32 (rounded to bfloat16), and
    that with ``exact`` every float comes as float64.  Raises IndexError for a GATHER out of range, NotImplementedError
    for loop programs.  Halves are rounded where ``widen`` says.
    """
    if not exact:
        uops = widen(sink(*uops)).src
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for u in toposort(list(uops)):
            values[u] = _node(u, [values[s] for s in u.src], exact)
            assert u.op is Ops.BUFFER or values[u].shape == u.shape, (u, values[u].shape)
            assert values[u].dtype == carrier(u.dtype, exact), (u, values[u].dtype)
        return [_result(u, values[u], exact) for u in uops]


def carrier(dtype: DType, exact: bool = False) -> np.dtype[Any]:
    """The NumPy type that holds values of ``dtype`` between nodes."""
    scalar = dtype.scalar()
    if scalar is dtypes.index:
        return np.dtype(np.int64)
    if scalar.is_float and exact:
        return np.dtype(np.float64)
    return np.dtype(np.float32) if scalar.is_half else scalar.numpy


def round_to(dtype: DType, x: Array) -> Array:
    """Float values rounded (once, to nearest even) to the half type ``dtype``, as float32."""
    if dtype.scalar() is dtypes.float16:
        return x.astype(np.float16).astype(np.float32)
    return bfloat16_to_float32(float32_to_bfloat16(_round_to_odd(x) if x.dtype == np.float64 else x))


def _round_to_odd(x: Array) -> Array:
    """float64 to float32 such that a further rounding to fewer digits is that of ``x`` itself."""
    near = x.astype(np.float32)
    inexact = (near.astype(np.float64) != x) & np.isfinite(x)
    toward_zero = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    return np.where(inexact, (toward_zero.view(np.uint32) | 1).view(np.float32), near).astype(np.float32)


def _result(u: UOp, value: Array, exact: bool) -> Array:
    if exact or not u.dtype.is_half:
        return value
    return round_to(u.dtype, value).astype(np.float16 if u.dtype.scalar() is dtypes.float16 else np.float32)


def _node(u: UOp, src: list[Array], exact: bool) -> Array:
    kind = carrier(u.dtype, exact)
    if u.op is Ops.CONST:
        return np.asarray(u.arg, kind)
    if u.op is Ops.BUFFER:
        flat = u.realized.array
        wide = bfloat16_to_float32(flat) if u.dtype is dtypes.bfloat16 else flat
        return wide.astype(kind, copy=False).reshape(u.shape)
    if u.op is Ops.IOTA:
        return np.arange(u.arg, dtype=kind)
    if u.op is Ops.CAST:
        return cast(src[0], u.src[0].dtype, u.dtype, exact)
    if u.op is Ops.BITCAST:
        return _bitcast(src[0], u.src[0].dtype, u.dtype, exact)
    if u.op is Ops.LOOKUP:
        return np.asarray(u.arg, kind)[src[0] & 15]
    if u.op is Ops.REDUCE:
        return _reduce(u, src[0])
    if u.op in MOVE:
        return np.asarray(MOVE[u.op](u, src))
    if u.op in COMPUTE:
        return np.asarray(COMPUTE[u.op](*src)).astype(kind, copy=False)
    raise NotImplementedError(f"{u.op!r} is not part of a tensor graph")


# ---- reductions and movement -----------------------------------------------------------------------------------------


def _reduce(u: UOp, x: Array) -> Array:
    ufunc = {
        Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.MIN: np.minimum,
        Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
    }[u.arg.op]  # fmt: skip
    start = identity(u.arg.op, u.dtype.scalar())
    return np.asarray(ufunc.reduce(x, axis=u.arg.axes, dtype=x.dtype, initial=x.dtype.type(start)))


def _view(u: UOp, src: list[Array]) -> Array:
    flat = np.ascontiguousarray(src[0])
    item = flat.itemsize
    if math.prod(u.arg.shape) == 0:
        return np.empty(u.arg.shape, flat.dtype)
    return np.lib.stride_tricks.as_strided(
        flat[u.arg.offset :], u.arg.shape, [s * item for s in u.arg.strides], writeable=False
    )


def _gather(u: UOp, src: list[Array]) -> Array:
    x, *index = src
    for axis, (i, n) in enumerate(zip(index, x.shape)):
        if i.size and (i.min() < 0 or i.max() >= n):
            raise IndexError(f"gather from axis {axis} of size {n} by indices from {i.min()} to {i.max()}")
    return x[tuple(index)] if x.size or not u.shape or math.prod(u.shape) else np.empty(u.shape, x.dtype)


MOVE: dict[Ops, Callable[[UOp, list[Array]], Array]] = {
    Ops.RESHAPE: lambda u, s: s[0].reshape(u.arg),
    Ops.EXPAND: lambda u, s: np.broadcast_to(s[0], u.arg),
    Ops.PERMUTE: lambda u, s: s[0].transpose(u.arg),
    Ops.SHRINK: lambda u, s: s[0][tuple(slice(lo, hi) for lo, hi in u.arg)],
    Ops.FLIP: lambda u, s: np.flip(s[0], u.arg),
    Ops.STRIDE: lambda u, s: s[0][tuple(slice(None, None, step) for step in u.arg)],
    Ops.PAD: lambda u, s: np.pad(s[0], u.arg) if u.arg else s[0],
    Ops.VIEW: _view,
    Ops.STACK: lambda u, s: np.stack(s),
    Ops.CAT: lambda u, s: np.concatenate(s, u.arg),
    Ops.GATHER: _gather,
    Ops.STAGE: lambda u, s: s[0],
    Ops.ALIAS: lambda u, s: s[0],
}

# ---- casts -----------------------------------------------------------------------------------------------------------


def cast(x: Array, source: DType, target: DType, exact: bool = False) -> Array:
    """``x`` of type ``source`` as ``target``."""
    kind = carrier(target, exact)
    if target.is_bool:
        return x != 0
    if target.is_half and not exact:
        # NumPy takes integers to halves by way of float32
        return round_to(target, x if source.is_float else x.astype(np.float32))
    if source.is_float and target.is_int:
        return _float_to_int(x, target)
    if source.is_int and target.is_float and exact:
        return x.astype(np.float64)
    return x.astype(kind)


def _float_to_int(x: Array, target: DType) -> Array:
    """Towards zero; else as x86-64: the 32 or 64 bit intermediate becomes its least value, and that wraps."""
    scalar = target.scalar()
    if scalar is dtypes.uint64:
        high = x >= 2.0**63
        low = _float_to_signed(np.where(high, x - x.dtype.type(2.0**63), x), 64).astype(np.uint64)
        return low ^ np.where(high, np.uint64(1 << 63), np.uint64(0))
    bits = 64 if scalar in (dtypes.uint32, dtypes.int64, dtypes.index) else 32
    return _float_to_signed(x, bits).astype(carrier(target))


def _float_to_signed(x: Array, bits: int) -> Array:
    limit = 2.0 ** (bits - 1)
    whole = np.trunc(x)
    fits = (whole >= -limit) & (whole < limit)
    return np.where(fits, np.where(fits, whole, 0).astype(np.int64), np.int64(-(1 << (bits - 1))))


def _bitcast(x: Array, source: DType, target: DType, exact: bool) -> Array:
    if source.scalar() is dtypes.bfloat16:
        raw = float32_to_bfloat16(x)
    elif source.is_float:
        raw = x.astype(source.scalar().numpy)
    else:
        raw = np.ascontiguousarray(x)
    if target.is_bool:
        return raw != 0
    bits = raw.reshape(x.shape).view(np.dtype(np.int64) if target.scalar() is dtypes.index else target.scalar().numpy)
    wide = bfloat16_to_float32(bits) if target.scalar() is dtypes.bfloat16 else bits
    return wide.astype(carrier(target, exact), copy=False)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _pow(a: Array, b: Array) -> Array:
    """C's pow.  NumPy takes roots where one exponent, 0.5, is spread by a step of 0."""
    return np.power(a, np.array(np.broadcast_to(b, np.broadcast_shapes(a.shape, b.shape))))


def _idiv(a: Array, b: Array) -> Array:
    return np.where(b == 0, a.dtype.type(0), np.floor_divide(a, np.where(b == 0, b.dtype.type(1), b)))


def _mod(a: Array, b: Array) -> Array:
    return np.where(b == 0, a.dtype.type(0), np.remainder(a, np.where(b == 0, b.dtype.type(1), b)))


def _shift(by: Callable[..., Any], a: Array, b: Array) -> Array:
    """A shift by the width or more (or by a negative amount) moves every bit out; the sign of a signed value stays."""
    width = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < width)
    outside = by(a, a.dtype.type(width - 1)) if by is np.right_shift and a.dtype.kind == "i" else a.dtype.type(0)
    return np.where(inside, by(a, np.where(inside, b, b.dtype.type(0))), outside)


def _erf(x: Array) -> Array:
    return np.asarray([math.erf(v) for v in x.ravel().tolist()], np.float64).reshape(x.shape)


def _ndtr(x: Array) -> Array:
    return np.asarray([0.5 * math.erfc(v * -math.sqrt(0.5)) for v in x.ravel().tolist()], np.float64).reshape(x.shape)


def _recip(x: Array) -> Array:
    return np.divide(x.dtype.type(1), x)


def _ldexp(x: Array, n: Array) -> Array:
    return np.ldexp(x, np.where(np.isnan(n), 0, np.floor(n)).astype(np.int32))


_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBM.fma.restype, _LIBM.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
FMA = np.frompyfunc(_LIBM.fma, 3, 1)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """One rounding: float32 by way of float64 rounded to odd, float64 by C's own function."""
    if a.dtype == np.float64:
        return np.asarray(FMA(a, b, c), np.float64)
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)  # exact
    near = product + addend
    back = near - addend
    lost = (product - back) + (addend - (near - back))
    inexact = (lost != 0) & np.isfinite(near)
    # towards 0, and then the last bit: a sum that was rounded up is one too far
    outward = inexact & ((lost > 0) == (near < 0)) & (near != 0)
    bits = near.view(np.int64) - outward
    return np.where(inexact, (bits | 1).view(np.float64), near).astype(np.float32)


COMPUTE: dict[Ops, Callable[..., Any]] = {
    Ops.RECIP: _recip, Ops.SQRT: np.sqrt, Ops.EXP: np.exp, Ops.EXP2: np.exp2, Ops.EXPM1: np.expm1,
    Ops.LOG: np.log, Ops.LOG2: np.log2, Ops.LOG1P: np.log1p, Ops.SIN: np.sin, Ops.COS: np.cos, Ops.TAN: np.tan,
    Ops.TANH: np.tanh, Ops.ERF: _erf, Ops.NDTR: _ndtr, Ops.ABS: np.abs, Ops.FLOOR: np.floor,
    Ops.CEIL: np.ceil, Ops.ROUND: np.rint, Ops.TRUNC: np.trunc, Ops.ADD: np.add, Ops.MUL: np.multiply,
    Ops.DIV: np.divide, Ops.IDIV: _idiv, Ops.MOD: _mod, Ops.FMOD: np.fmod, Ops.POW: _pow, Ops.LDEXP: _ldexp,
    Ops.MAX: np.maximum, Ops.MIN: np.minimum, Ops.CMPLT: np.less,
    Ops.CMPLE: np.less_equal, Ops.CMPEQ: np.equal, Ops.CMPNE: np.not_equal, Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.SHL: lambda a, b: _shift(np.left_shift, a, b),
    Ops.SHR: lambda a, b: _shift(np.right_shift, a, b), Ops.WHERE: np.where, Ops.FMA: _fma,
}  # fmt: skip
