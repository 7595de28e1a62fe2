"""decompose: what C has no operator for becomes operators.

In: a graph of loop stage, scalar or vector; graphs of tensor stage too, node by node.
Out: the same graph in which these ALU ops remain, lane by lane, and no others (``legal_after`` says so of one node):

    bool               AND OR XOR WHERE, CAST from (to bool: never, it is a CMPNE; BITCAST to and from: such a CAST)
    integers, index    ADD MUL MAX MIN CMP* AND OR XOR WHERE CAST BITCAST
                       SHL SHR where the bounds of the amount prove it in range
                       IDIV MOD where the bounds of both prove that C's / and % are right
    float32            ADD MUL DIV MAX MIN CMP* WHERE CAST BITCAST SQRT FMA LDEXP PAIR DOT2, and LOOKUP of an int32
    float64            the same without the last four, and EXP EXP2 EXPM1 LOG LOG2 LOG1P SIN COS TAN TANH ERF NDTR POW
                       FMOD: calls of libm
    float16            CAST from and to float32, BITCAST
    bfloat16           BITCAST from and to uint16

Halves are what memory holds: BUFFER, INDEX, LOAD and STORE keep their half types; what is loaded is widened to
float32, what is stored narrowed.  ALLOC and REDUCE of a half type become float32.  A CAST to a half rounds, even
where the value stays in a register.  Positions in lanes are compared and converted in 32 bits where they fit.

It needs of the C compiler wrapping integers (-fwrapv), no contraction and no -ffast-math.  It never changes loops,
addresses or the order of statements.
"""

from __future__ import annotations

from collections.abc import Callable

from uopc._hot.graph import chosen, dtypes_of
from uopc.decompose.casts import cast
from uopc.decompose.error_function import erf
from uopc.decompose.exponential import exp, exp2, expm1, tanh
from uopc.decompose.halves import halves
from uopc.decompose.integers import BOOLEAN, divides_as_c, idiv, mod, shifts_as_c, shl, shr
from uopc.decompose.logarithm import log, log1p, log2
from uopc.decompose.narrow import narrow, of_positions
from uopc.decompose.normal import ndtr
from uopc.decompose.power import pow
from uopc.decompose.rounding import abs_, ceil, floor, recip, round_, trunc
from uopc.decompose.trigonometric import cos, sin, tan
from uopc.dtype import dtypes
from uopc.ops import ALU, COMPARE, ELEMENTARY, Ops
from uopc.uop import UOp, toposort

__all__ = ["decompose", "legal_after"]

LIBM = ELEMENTARY | {Ops.FMOD}
BITWISE = frozenset({Ops.AND, Ops.OR, Ops.XOR})
ORDERED = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN}) | COMPARE


def _fmod(x: UOp, y: UOp) -> UOp:
    """The remainder of two float32 is a float32: that of float64, exactly."""
    return UOp(Ops.FMOD, (x.cast(dtypes.float64), y.cast(dtypes.float64))).cast(dtypes.float32)


# One function for each op and kind of operand; its arguments are the sources.
FLOAT32: dict[Ops, Callable[..., UOp]] = {
    Ops.EXP: exp, Ops.EXP2: exp2, Ops.EXPM1: expm1, Ops.LOG: log, Ops.LOG2: log2, Ops.LOG1P: log1p, Ops.SIN: sin,
    Ops.COS: cos, Ops.TAN: tan, Ops.TANH: tanh, Ops.ERF: erf, Ops.NDTR: ndtr, Ops.POW: pow, Ops.FMOD: _fmod,
}  # fmt: skip
FLOATS: dict[Ops, Callable[..., UOp]] = {
    Ops.FLOOR: floor, Ops.CEIL: ceil, Ops.ROUND: round_, Ops.TRUNC: trunc, Ops.RECIP: recip, Ops.ABS: abs_,
}  # fmt: skip
INTEGERS: dict[Ops, Callable[..., UOp]] = {Ops.IDIV: idiv, Ops.MOD: mod, Ops.SHL: shl, Ops.SHR: shr, Ops.ABS: abs_}


def legal_after(u: UOp) -> bool:
    """Whether ``u`` may stand in a graph after this pass."""
    if u.op not in ALU:
        return not u.dtype.is_half or u.op not in (Ops.CONST, Ops.ALLOC, Ops.REDUCE, Ops.HREDUCE)
    if u.op in (Ops.CAST, Ops.BITCAST):
        return _legal_conversion(u)
    if u.op in (Ops.LDEXP, Ops.LOOKUP):
        return u.dtype.scalar() is dtypes.float32
    operand = u.src[-1].dtype
    if operand.is_half:
        return False
    if u.op in (Ops.PAIR, Ops.DOT2):
        return True
    if u.op is Ops.WHERE:
        return True
    if operand.is_bool:
        return u.op in BITWISE
    if operand.is_float:
        arithmetic = u.op in ORDERED or u.op in (Ops.DIV, Ops.SQRT, Ops.FMA)
        return arithmetic or (operand.scalar() is dtypes.float64 and u.op in LIBM)
    if u.op in (Ops.IDIV, Ops.MOD):
        return divides_as_c(*u.src)
    if u.op in (Ops.SHL, Ops.SHR):
        return shifts_as_c(*u.src)
    return u.op in ORDERED or u.op in BITWISE


def _legal_conversion(u: UOp) -> bool:
    source, target = u.src[0].dtype.scalar(), u.dtype.scalar()
    if dtypes.bfloat16 in (source, target):
        return u.op is Ops.BITCAST and dtypes.uint16 in (source, target)
    if u.op is Ops.BITCAST:
        return not (source.is_bool or target.is_bool)
    if dtypes.float16 in (source, target):
        return dtypes.float32 in (source, target)
    return not target.is_bool


def _rule(u: UOp) -> Callable[..., UOp] | None:
    """What makes ``u``, an ALU node, from its sources; None where it may stay whatever they are."""
    kind = u.src[-1].dtype
    if u.op is Ops.CAST or (u.op is Ops.BITCAST and (kind.is_bool or u.dtype.is_bool)):
        # the byte of a bool in memory is 0 or 1, whatever its mask is in lanes, and any other byte is True
        return lambda x: cast(x, u.dtype)
    if u.op in (Ops.WHERE, Ops.BITCAST, Ops.LOOKUP):
        return None
    if kind.is_bool:
        return None if u.op in BITWISE else BOOLEAN.get(u.op)
    if kind.is_int:
        return INTEGERS.get(u.op)
    return (FLOAT32.get(u.op) if kind.scalar() is dtypes.float32 else None) or FLOATS.get(u.op)


def _candidates() -> bytes:
    """For each op and kind of the last source (floats, index, integers, bool) whether ``_rule`` may know a rule."""
    table = bytearray(4 * len(Ops))
    for kind, rules in enumerate(({**FLOAT32, **FLOATS}, INTEGERS, INTEGERS, BOOLEAN)):
        for op in (Ops.CAST, Ops.BITCAST, *rules):
            table[4 * op + kind] = 1
    return bytes(table)


CANDIDATES = _candidates()


def _lower(u: UOp) -> UOp:
    rule = _rule(u)
    assert rule is not None
    return rule(*u.src)


def decompose(graph: UOp) -> UOp:
    """The graph in the ops of the table above.  Where ``graph`` is itself a value, it keeps its dtype, halves too."""
    nodes = toposort(graph)
    if any(dtype.is_half for dtype in dtypes_of(nodes)):
        graph = halves(graph, nodes)
        nodes = toposort(graph)
    if any(of_positions(dtype) for dtype in dtypes_of(nodes)):
        graph = narrow(graph, nodes)
        nodes = toposort(graph)
    targets = [u for u in chosen(nodes, CANDIDATES) if _rule(u) is not None]
    return UOp.wrap([graph], targets, _lower)[0]
