"""The node of every graph, and the few functions that act on graphs: the facade of the compiled core.

Loop programs are written by hand with these names alone; ``format_graph`` prints a graph, and ``parse_graph`` reads it.
"""

from __future__ import annotations

from uopc._hot.rewrite import Pattern, PatternMatcher, graph_rewrite
from uopc._hot.uop import UOp, range_, ranges_in, sink, toposort
from uopc.dtype import DType, dtypes
from uopc.notation import format_graph, parse_graph
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
    "parse_graph",
    "range_",
    "ranges_in",
    "sink",
    "toposort",
    "unmoved",
    "widened",
    "without_aliases",
]


def memory_of(place: UOp) -> UOp:
    """The BUFFER or ALLOC under an INDEX, and under what it comes AFTER."""
    while place.op in (Ops.AFTER, Ops.INDEX):
        place = place.src[0]
    return place


def unmoved(u: UOp) -> UOp:
    """What a chain of movement ops moves."""
    while u.op in MOVEMENT:
        u = u.src[0]
    return u


def widened(u: UOp) -> UOp:
    """A half as float32, a constant as a constant; any other value as it is."""
    if not u.dtype.is_half:
        return u
    return UOp.const(u.arg, dtypes.float32) if u.op is Ops.CONST else u.cast(dtypes.float32)


def without_aliases(roots: list[UOp]) -> list[UOp]:
    """Tensor graphs with the value of each ALIAS in its place."""
    aliases = [u for u in toposort(roots) if u.op is Ops.ALIAS]
    return UOp.wrap(roots, aliases, lambda u: u.src[0]) if aliases else roots
