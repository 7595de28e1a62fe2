"""issue: what an operation takes of a processor.

``own_issue`` is that of an operator of C, from the column of ``ops.TABLE``; ``issue_of`` that of any operation:
``decompose`` takes it apart, and what it is made of is counted.  In vectors of the operation's own elements: what it
computes in wider ones counts as many times as they are wider.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from uopc.decompose import decompose
from uopc.dtype import DType, dtypes
from uopc.ops import ALU, FREE, ONE, TABLE, Issue, Ops, ParamArg
from uopc.uop import UOp, toposort

# What takes less with some constants than with others.
_BY_CONSTANT = frozenset({Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR, Ops.POW})


def own_issue(u: UOp) -> Issue:
    """What a node takes that ``decompose`` leaves as it is.  A maximum of integers, or with a number, which is no NaN,
    is one instruction."""
    if u.op in (Ops.MAX, Ops.MIN) and (not u.dtype.is_float or any(s.op is Ops.CONST for s in u.src)):
        return ONE
    return TABLE[u.op].issue


def issue_of(u: UOp) -> Issue:
    """What an ALU node takes, before ``decompose``.  Halves are computed as float32, converted where they are loaded
    and stored alone."""
    sources = tuple(s.dtype.scalar() for s in u.src)
    dtype = u.dtype.scalar()
    if u.op is Ops.CAST and sources[0].is_half and dtype is dtypes.float32:
        return FREE  # part of loading it, or of nothing where pairs are multiplied
    if u.op is not Ops.CAST:
        dtype, *rest = (dtypes.float32 if d.is_half else d for d in (dtype, *sources))
        sources = tuple(rest)
    return _counted(u.op, dtype, sources, tuple(_constant(u.op, s) for s in u.src), u.arg)


def _constant(op: Ops, source: UOp) -> Any:
    """The value of a source that decides what an op takes: for a maximum any does as well."""
    if source.op is not Ops.CONST or isinstance(source.arg, tuple):
        return None
    return 1 if op in (Ops.MAX, Ops.MIN) else source.arg if op in _BY_CONSTANT else None


@lru_cache(maxsize=1024)
def _counted(op: Ops, dtype: DType, sources: tuple[DType, ...], constants: tuple[Any, ...], arg: Any) -> Issue:
    """What the op takes on operands of these types: of the constants, or (None) of numbers in memory."""
    places = (UOp(Ops.BUFFER, (), ParamArg(k, source, (1,))).index(0) for k, source in enumerate(sources))
    operands = (
        place.load() if value is None else UOp.const(value, source)
        for place, source, value in zip(places, sources, constants)
    )
    node = UOp(op, tuple(operands), arg, dtype)
    width = max(_width(node), 4)
    total = FREE
    for u in toposort(decompose(node)):
        if u.op not in ALU or u.dtype.scalar() is dtypes.index:
            continue
        own, wider = own_issue(u), max(_width(u), 4) / width
        total += Issue(own.simple * wider, own.divisions * wider, own.scalar)
    return total


def _width(u: UOp) -> int:
    """Bytes of what a lane computes; conversions count by their wider side, comparisons by what they compare."""
    return max((s.dtype.scalar().itemsize for s in (u, *u.src) if not s.dtype.is_bool), default=1)
