"""Limits and tests: where a mask excludes whole blocks, the loop over blocks does not visit them.

A step of a cascade changes nothing unless some conditions hold (``uopc.blockize.conditions``).  Those that are linear
in the row and the position become bounds of the loop over blocks.  Others, such as masks in memory, are looked at when
a block is reached, if that is cheap: where they hold nowhere in it, nothing else of the block is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uopc.blockize.conditions import NOTHING, conditions
from uopc.ops import ALU, COMPARE, Limit, Ops
from uopc.rangeify import Ctx, rangeify
from uopc.rangeify.context import Idx
from uopc.simplify import linear_in
from uopc.uop import UOp, dtypes, toposort

# A linear form: the factor of each range, and the constant.
Linear = tuple[dict[UOp, int], int]
# What a test may consist of, and how much of it: a few vector operations for as many elements as a vector holds.
CHEAP = COMPARE | {Ops.AND, Ops.OR, Ops.XOR, Ops.ADD, Ops.MUL, Ops.MIN, Ops.MAX, Ops.CAST}
MAX_TEST_OPS = 16
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
# Blocks in which an axis that is looked at is cut at least, if they are not short.
LEAST_LOOKS = 4
LEAST_LOOKED = 128
# What makes a condition known only inside the loop, or dear.
INNER = (Ops.STATE, Ops.COMPONENT, Ops.REDUCE, Ops.STAGE)


@dataclass(frozen=True)
class Body:
    """A reduction of a cascade: how it combines, its body, and where the body stands in the kernel."""

    op: Ops
    value: UOp
    at: Idx


@dataclass(frozen=True)
class Condition:
    """A condition that all reductions share, ranged, and at the shape of each of their bodies."""

    ranged: UOp
    tensors: tuple[UOp, ...]


def _common(bodies: Sequence[Body]) -> list[Condition]:
    """What must hold of row and position for any of the reductions to change."""
    found: list[dict[UOp, UOp]] = []
    for body in bodies:
        ctx = Ctx()
        known = conditions(body.value, NOTHING[body.op]) if body.op in NOTHING else []
        plain = [c for c in known if not any(u.op in INNER for u in toposort(c))]
        if not plain:
            return []
        found.append({rangeify(c, body.at, ctx): c for c in plain})
    return [Condition(c, tuple(f[c] for f in found)) for c in found[0] if all(c in f for f in found)]


def _linear(u: UOp) -> Linear | None:
    """``u`` as a sum of multiples of ranges."""
    if u.op is Ops.CONST and isinstance(u.arg, int):
        return {}, u.arg
    if u.op is Ops.RANGE:
        return {u: 1}, 0
    if u.op is Ops.CAST and u.dtype.is_int and u.dtype.itemsize >= 4 and u.src[0].dtype.is_int:
        return _linear(u.src[0])
    if u.op in (Ops.ADD, Ops.MUL) and u.dtype.is_int:
        a, b = _linear(u.src[0]), _linear(u.src[1])
        if a is None or b is None:
            return None
        if u.op is Ops.ADD:
            return _plus(a, b, 1)
        if not b[0]:
            return {r: n * b[1] for r, n in a[0].items()}, a[1] * b[1]
        if not a[0]:
            return {r: n * a[1] for r, n in b[0].items()}, a[1] * b[1]
    return None


def _plus(a: Linear, b: Linear, times: int) -> Linear:
    factors = dict(a[0])
    for r, n in b[0].items():
        factors[r] = factors.get(r, 0) + times * n
    return {r: n for r, n in factors.items() if n}, a[1] + times * b[1]


def _limit(condition: UOp, row: UOp, step: UOp) -> Limit | None:
    """A comparison as ``a * row + b * step + c <= 0``."""
    if condition.op not in (Ops.CMPLT, Ops.CMPLE) or not (
        condition.src[0].dtype.is_int or condition.src[0].dtype is dtypes.index
    ):
        return None
    a, b = (_linear(s) for s in condition.src)
    if a is None or b is None:
        return None
    factors, constant = _plus(a, b, -1)
    if not set(factors) <= {row, step} or step not in factors:
        return None
    return Limit(factors.get(row, 0), factors[step], constant + (condition.op is Ops.CMPLT))


def _limits(shared: Sequence[Condition], row: UOp | None, step: UOp) -> dict[Condition, Limit]:
    """The conditions that bound the loop over blocks."""
    if row is None:
        return {}
    found = {c: _limit(c.ranged, row, step) for c in shared}
    return {c: limit for c, limit in found.items() if limit is not None}


def _tests(shared: Sequence[Condition], step: UOp) -> tuple[UOp, ...]:
    """The conditions that are looked at in each block, as one value for each of the bodies: an integer as wide as what
    is compared, not 0 where all of them hold.  None where there is nothing to look at."""
    looked = [c for c in shared if _is_cheap(c.ranged, step)]
    parts = [u for c in looked for u in _parts(c.ranged)]
    if not looked or len(parts) > MAX_TEST_OPS:
        return ()
    dtype = UNSIGNED[max(map(_width, parts))]
    return tuple(_all([c.tensors[k] for c in looked]).cast(dtype) for k in range(len(looked[0].tensors)))


def _all(values: list[UOp]) -> UOp:
    out = values[0]
    for v in values[1:]:
        out = out & v
    return out


def _is_cheap(condition: UOp, step: UOp) -> bool:
    """Whether a condition is of a few simple operations on memory that stands in a row along the axis, or is the same
    for all of it."""
    for u in toposort(condition):
        if u.op is Ops.LOAD:
            at = linear_in(u.src[0].src[1], step)
            if len(u.src) > 1 or (step in u.ranges and (at is None or at[1] != 1)):
                return False
    return all(u.op in CHEAP or u.op not in ALU for u in _parts(condition))


def _parts(condition: UOp) -> list[UOp]:
    """The operations of a condition, and what they are applied to; not how addresses are made."""
    out: dict[UOp, None] = {}
    stack = [condition]
    while stack:
        u = stack.pop()
        if u not in out and u.op is not Ops.CONST:
            out[u] = None
            stack += u.src if u.op in ALU else ()
    return list(out)


def _width(u: UOp) -> int:
    """Bytes of an element in a register."""
    return 8 if u.dtype is dtypes.index else 4 if u.dtype.is_half else max(u.dtype.itemsize, 1)


def bounded(made: UOp, bodies: Sequence[Body], row: UOp | None, step: UOp, vector_bytes: int) -> UOp:
    """A CASCADE in blocks, those left out in which nothing changes; ``vector_bytes``: of the vectors that look at
    masks, 0: none do."""
    shared = _common(bodies)
    found = _limits(shared, row, step)
    arg = made.arg._replace(limits=tuple(sorted(found.values())))
    looked = _tests([c for c in shared if c not in found], step) if vector_bytes else ()
    if not looked:
        return made.replace(arg=arg)
    arg = arg._replace(test_lanes=vector_bytes // looked[0].dtype.itemsize)
    length = made.src[0].shape[arg.components[0].axis]
    if arg.block == length >= LEAST_LOOKS * LEAST_LOOKED:
        # one block would be left out as a whole or not at all
        arg = arg._replace(block=_part(length))
    return made.replace(src=(*made.src, *looked), arg=arg)


def _part(length: int) -> int:
    """A part of an axis, even, and a divisor of its length if one is near."""
    counts = [n for n in range(LEAST_LOOKS, 2 * LEAST_LOOKS) if length % (2 * n) == 0]
    return length // counts[0] if counts else length // (2 * LEAST_LOOKS) * 2
