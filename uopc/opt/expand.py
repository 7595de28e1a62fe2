"""expand: register ranges become register code.

In: a loop program with UPCAST, UNROLL and VECTOR ranges.
Out: the same program without them: an UPCAST body is copied once for each value of the range, UNROLL copies are
combined into one step of their reduction, and what depends on a VECTOR range becomes a value of a vector type, with
contiguous memory read and written whole.

Guarantees: copies of one reduction keep its RANGEs, so that ``accumulate`` runs them in one loop.  Never adds a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uopc._hot.graph import copies, depending, of_ops, replace_depending
from uopc.ops import AxisType, Ops
from uopc.simplify import linear_in
from uopc.terms import combined
from uopc.uop import UOp, dtypes, sink, toposort

TILE = (AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)


def _kind(r: UOp) -> AxisType:
    return r.arg.axis_type


def vectorize(x: UOp, r: UOp) -> UOp:
    """``x`` for all values of the range ``r`` at once: what depends on it becomes a vector."""
    lanes = r.src[0].arg
    made: dict[UOp, UOp | Callable[[UOp], UOp]] = {r: UOp.const(0, dtypes.index) + _iota(lanes)}
    for u in depending(x, (r,)):
        if u.op is Ops.INDEX:
            made[u] = partial(_vector_index, u, r, lanes)
        elif u.op is Ops.LOAD and len(u.src) == 2 and r not in u.src[0].ranges:
            made[u] = partial(_gated_lanes, lanes)
    return replace_depending(x, (r,), made)


def _iota(lanes: int, step: int = 1) -> UOp:
    return UOp(Ops.CONST, (), tuple(range(0, step * lanes, step)) if step else (0,) * lanes, dtypes.index.vec(lanes))


def _vector_index(u: UOp, r: UOp, lanes: int, new: UOp) -> UOp:
    """``u``, which is ``new`` over vectors.  Memory at consecutive addresses is an INDEX of vector type, any other a
    vector of addresses.
    """
    straight = linear_in(u.src[1], r)
    if straight is None:
        return new
    base, step = straight
    if step * u.src[0].dtype.scalar().itemsize == u.dtype.itemsize:  # a word has several addresses
        return UOp(Ops.INDEX, (new.src[0], base), None, u.dtype.vec(lanes))
    return UOp(Ops.INDEX, (new.src[0], base + _iota(lanes, step)), None, u.dtype)


def _gated_lanes(lanes: int, load: UOp) -> UOp:
    """A LOAD from one address with a gate for each lane."""
    index, gate = load.src
    everywhere = UOp(Ops.INDEX, (index.src[0], index.src[1] + _iota(lanes, 0)), None, index.dtype)
    return UOp(Ops.LOAD, (everywhere, gate))


def _expand_reduce(u: UOp) -> UOp:
    """Lanes and unrolled copies of a REDUCE: combined inside its loop, lanes folded once behind it."""
    value, op = u.src[0], u.arg.op
    loops = [r for r in u.src[1:] if _kind(r) not in TILE]
    for r in u.src[1:]:
        if _kind(r) is AxisType.VECTOR:
            value = vectorize(value, r) if r in value.ranges else _fold(op, [value] * r.src[0].arg)
    unrolled = [r for r in u.src[1:] if _kind(r) in (AxisType.UNROLL, AxisType.UPCAST)]
    value = _fold(op, _copies(value, unrolled))
    if loops:
        value = UOp(Ops.REDUCE, (value, *loops), u.arg)
    folded = value.dtype.count > 1 and any(_kind(r) is AxisType.VECTOR for r in u.src[1:])
    return UOp(Ops.HREDUCE, (value,), op, value.dtype.scalar()) if folded else value


def _copies(x: UOp, ranges: list[UOp]) -> list[UOp]:
    """``x`` at every value of ``ranges``, the last running fastest."""
    return copies(x, ranges, [[UOp.const(i) for i in range(r.src[0].arg)] for r in ranges]) if ranges else [x]


def _fold(op: Ops, values: list[UOp]) -> UOp:
    """Combine in pairs: short chains, and rounding errors that grow with the logarithm."""
    while len(values) > 1:
        odd = [values[-1]] if len(values) % 2 else []
        values = [combined(op, a, b) for a, b in zip(values[::2], values[1::2])] + odd
    return values[0]


def _expand_end(u: UOp) -> UOp:
    """All copies of a loop body, under the loops that remain."""
    body = u.src[0]
    loops = [r for r in u.src[1:] if _kind(r) not in TILE]
    for r in u.src[1:]:
        if _kind(r) is AxisType.VECTOR:
            body = vectorize(body, r)
    copied = [r for r in u.src[1:] if _kind(r) in (AxisType.UPCAST, AxisType.UNROLL)]
    return _copied_body(_share_loops(body, copied), copied).end(*loops)


def _copied_body(body: UOp, ranges: list[UOp]) -> UOp:
    """The copies of a statement, as one."""
    parts = [p for c in _copies(body, ranges) for p in (c.src if c.op is Ops.SINK else (c,))]
    return parts[0] if len(parts) == 1 else sink(*dict.fromkeys(parts))


def _share_loops(body: UOp, ranges: list[UOp]) -> UOp:
    """``body`` with the copies of a loop inside it, one for each value of ``ranges``, made inside that loop: there is
    one.
    """
    copied = tuple(ranges)
    ends = of_ops(depending(body, copied), Ops.END)
    return replace_depending(body, copied, dict.fromkeys(ends, partial(_with_copies, ranges))) if ends else body


def _with_copies(ranges: list[UOp], end: UOp) -> UOp:
    """The loop that ``end`` closes with the copies of its body inside it."""
    inner = [r for r in ranges if r in end.ranges]
    turning = next((r for r in end.src[1:] if any(c in r.src[0].ranges for c in inner)), None)
    if turning is not None:
        raise ValueError(f"{turning!r} ends where {inner[0]!r} says: the copies of a loop must have one end")
    return _copied_body(end.src[0], inner).end(*end.src[1:])


def expand(root: UOp) -> UOp:
    """The program of ``root`` (a SINK) without UPCAST, UNROLL and VECTOR ranges."""
    tiled = [u for u in of_ops(toposort(root), Ops.REDUCE, Ops.END) if any(_kind(r) in TILE for r in u.src[1:])]
    return root.substitute({u: _expand_reduce if u.op is Ops.REDUCE else _expand_end for u in tiled})
