"""The 16-bit floats: stored as they are, computed in float32.

float16 is a type of the compiler (``_Float16``), bfloat16 a pattern of 16 bits that integer operations widen and round.

In: any graph that decompose takes.  Out: the same graph in which memory (BUFFER, INDEX, LOAD) has half types and
every computed value is float32; a LOAD is widened, a stored value narrowed.  ALLOC and REDUCE of a half become
float32.  A CAST to a half rounds, even where the value stays in a register.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uopc.decompose.floatbits import bits, from_bits, magnitude, select
from uopc.dtype import DType, dtypes
from uopc.ops import Ops, ParamArg
from uopc.uop import UOp

# What makes a value of a half type, and does not only take over the type of its sources.
MAKES = frozenset({Ops.CONST, Ops.ALLOC, Ops.INDEX, Ops.LOAD, Ops.HREDUCE, Ops.CAST, Ops.BITCAST})


def widen(half: UOp) -> UOp:
    """A value of a half type in float32; exact."""
    if half.dtype.scalar() is dtypes.float16:
        return half.cast(dtypes.float32)
    return from_bits(_word(half) << 16)


def narrow(x: UOp, target: DType) -> UOp:
    """A value of any type as a half type, rounded to nearest even, once.  What ``widen`` made is only undone.

    Integers go by way of float32, as in NumPy.
    """
    origin = _widened_from(x)
    if origin is not None and origin.dtype.scalar() is target.scalar():
        return origin
    if x.dtype.scalar() is dtypes.float64:
        x = _to_odd_float32(x)
    x = x.cast(dtypes.float32)
    if target.scalar() is dtypes.float16:
        return x.cast(dtypes.float16)
    return _bfloat16_bits(x).bitcast(dtypes.bfloat16)


def _widened_from(x: UOp) -> UOp | None:
    """The half value of which ``x`` is ``widen``."""
    if x.op is Ops.CAST and x.src[0].dtype.scalar() is dtypes.float16:
        return x.src[0]
    chain = (Ops.BITCAST, Ops.SHL, Ops.CAST, Ops.BITCAST)
    half = x
    for op in chain:
        if half.op is not op:
            return None
        half = half.src[0]
    return half if half.dtype.scalar() is dtypes.bfloat16 else None


def _word(half: UOp) -> UOp:
    """The bits of a bfloat16 in the lower half of a word."""
    return half.bitcast(dtypes.uint16).cast(dtypes.uint32)


def _bfloat16_bits(x: UOp) -> UOp:
    """The upper 16 bits of float32, rounded to nearest even; NaN becomes the quiet NaN of its sign."""
    raw = x.bitcast(dtypes.uint32)
    top = raw >> 16
    rounded = (raw + 0x7FFF + (top & 1)) >> 16
    return select(x.ne(x), (top & 0x8000) | 0x7FC0, rounded, raw).cast(dtypes.uint16)


def _to_odd_float32(x: UOp) -> UOp:
    """float64 to float32, towards zero and with the last bit set where digits were lost (S. Boldo, G. Melquiond, 2008).

    A further rounding to a half then gives what rounding ``x`` itself would: the last bit keeps the tie apart.
    """
    near = x.cast(dtypes.float32)
    back = near.cast(dtypes.float64)
    raw = bits(near)
    outward = (magnitude(x) < magnitude(back)).cast(dtypes.int32)
    odd = from_bits((raw + outward * -1) | 1)
    return select(back.eq(x) | x.ne(x), near, odd, near)


def _over_float32(old: UOp, u: UOp) -> UOp:
    """What stands for ``u``, which is ``old`` over sources that are done: every half value among them is float32."""
    half = old.dtype.is_half
    if u.op is Ops.CONST:
        return UOp(Ops.CONST, (), old.arg, dtypes.float32.vec(old.dtype.count))
    if u.op is Ops.ALLOC and half:
        return UOp(Ops.ALLOC, (), ParamArg(old.arg.slot, dtypes.float32.vec(old.dtype.count), old.arg.shape))
    if u.op is Ops.INDEX and half:
        return u if u.src[0].dtype.is_half else u.replace(dtype=dtypes.float32.vec(old.dtype.count))
    if u.op is Ops.HREDUCE and half:
        return u.replace(dtype=dtypes.float32)
    if u.op is Ops.LOAD and half:
        memory = u.src[0].dtype
        return widen(u) if memory.is_half else u.replace(dtype=memory.scalar().vec(u.dtype.count))
    if u.op is Ops.STORE and u.src[0].dtype.is_half:
        return u.replace(src=(u.src[0], narrow(u.src[1], u.src[0].dtype), *u.src[2:]))
    if u.op is Ops.BUFFER and half:
        return widen(u)
    if u.op is Ops.CAST and half:
        return widen(narrow(u.src[0], u.dtype))
    if u.op is Ops.PAIR:
        low, high = (_widened_from(s) for s in u.src)
        return u if low is None or high is None else _word(low) | (_word(high) << 16)
    if u.op is Ops.BITCAST:
        source = narrow(u.src[0], old.src[0].dtype) if old.src[0].dtype.is_half else u.src[0]
        return widen(source.bitcast(u.dtype)) if half else source.bitcast(u.dtype)
    return u


def _concerns_halves(u: UOp, addressed: set[UOp]) -> bool:
    """Whether a half type is made, read or written here.  A BUFFER is a value only where nothing takes its address."""
    if u.op is Ops.STORE:
        return u.src[0].dtype.is_half
    if u.op in (Ops.BITCAST, Ops.PAIR) and u.src[0].dtype.is_half:
        return True
    return u.dtype.is_half and (u.op in MAKES or (u.op is Ops.BUFFER and u not in addressed))


def halves(graph: UOp, nodes: list[UOp]) -> UOp:
    """The graph, whose nodes these are, with its halves in memory only.  Where ``graph`` is itself a value, it keeps
    its dtype."""
    addressed = {s for u in nodes if u.op in (Ops.INDEX, Ops.AFTER) for s in u.src[:1]}
    steps: dict[UOp, Callable[[UOp], UOp]] = {
        u: partial(_over_float32, u) for u in nodes if _concerns_halves(u, addressed)
    }
    if not steps:
        return graph
    result = graph.substitute(steps)
    return narrow(result, graph.dtype) if graph.dtype.is_half and not result.dtype.is_half else result
