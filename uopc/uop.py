"""The node of every graph, and the few functions that act on graphs: the facade of the compiled core.

Loop programs are written by hand with these names alone; ``format_graph`` is what ``print`` shows of a graph.
"""

from __future__ import annotations

from uopc._hot.rewrite import Pattern, PatternMatcher, graph_rewrite
from uopc._hot.uop import UOp, range_, ranges_in, sink, toposort
from uopc.dtype import DType, dtypes
from uopc.ops import ALU, MOVEMENT, AxisType, KernelInfo, Level, Ops, ParamArg, RangeArg, ReduceArg

__all__ = [
    "ALU",
    "MOVEMENT",
    "AxisType",
    "DType",
    "KernelInfo",
    "Level",
    "Ops",
    "ParamArg",
    "Pattern",
    "PatternMatcher",
    "RangeArg",
    "ReduceArg",
    "UOp",
    "dtypes",
    "format_graph",
    "graph_rewrite",
    "memory_of",
    "range_",
    "ranges_in",
    "sink",
    "toposort",
    "widened",
]


def memory_of(place: UOp) -> UOp:
    """The BUFFER or ALLOC under an INDEX, and under what it comes AFTER."""
    while place.op in (Ops.AFTER, Ops.INDEX):
        place = place.src[0]
    return place


def widened(u: UOp) -> UOp:
    """A half as float32, a constant as a constant; any other value as it is."""
    if not u.dtype.is_half:
        return u
    return UOp.const(u.arg, dtypes.float32) if u.op is Ops.CONST else u.cast(dtypes.float32)


def format_graph(*roots: UOp) -> str:
    """One line a node, numbered, sources before users; constants stand where they are used."""
    lines: list[str] = []
    names: dict[UOp, str] = {}
    for u in toposort(roots):
        if u.op is Ops.CONST:
            names[u] = f"{u.arg!r}"
            continue
        names[u] = f"%{len(lines)}"
        arg = "" if u.arg is None else f" {_format_arg(u.arg)}"
        sources = " ".join(names[s] for s in u.src)
        dtype = "" if u.dtype is dtypes.void else f" : {u.dtype.name}"
        shape = _shape(u)
        lines.append(f"{names[u]:>5} = {u.op.name}{arg}{' ' if sources else ''}{sources}{dtype}{shape}")
    return "\n".join(lines)


def _shape(u: UOp) -> str:
    try:
        return "".join(f" {list(u.shape)}") if u.shape else ""
    except TypeError:
        return ""


def _format_arg(arg: object) -> str:
    if isinstance(arg, ParamArg):
        return f"slot={arg.slot}"
    if isinstance(arg, RangeArg):
        return f"r{arg.id} {arg.axis_type.name}"
    if isinstance(arg, ReduceArg):
        return f"{arg.op.name} axes={list(arg.axes)}" if arg.axes else arg.op.name
    if isinstance(arg, KernelInfo):
        return arg.name
    return repr(arg)
