"""A choice that holds for all of a tile is made once for the tile, not for each element.

Most blocks of a causal or windowed score lie wholly inside the mask.  Where the comparisons that a value chooses by are
linear in the ranges inside the tile, whether they hold everywhere in it is one comparison of the block's ranges.
"""

from __future__ import annotations

from uopc.ops import COMPARE, AxisType, Ops
from uopc.rangeify.context import Ctx
from uopc.simplify import linear_in
from uopc.uop import UOp, toposort


def _as_index(u: UOp) -> UOp | None:
    """An integer expression of ranges as an index expression; None where it is made of anything else."""
    if u.op is Ops.CONST:
        return UOp.const(u.arg) if isinstance(u.arg, int) else None
    if u.op is Ops.RANGE:
        return u
    if u.op is Ops.CAST and u.dtype.is_int and u.dtype.itemsize >= 4:
        return _as_index(u.src[0])
    if u.op in (Ops.ADD, Ops.MUL, Ops.MIN, Ops.MAX, Ops.IDIV, Ops.MOD) and u.dtype.is_int:
        a, b = (_as_index(s) for s in u.src)
        return None if a is None or b is None else a.alu(u.op, b)
    return None


def _everywhere(condition: UOp, ctx: Ctx) -> UOp | None:
    """Whether a bool holds for all values of the ranges inside the block, as a bool of the block's; None: not known."""
    if condition.op is Ops.AND:
        both = [_everywhere(s, ctx) for s in condition.src]
        return None if both[0] is None or both[1] is None else both[0] & both[1]
    a, b = condition.src[0], condition.src[-1]
    strict = condition.op is Ops.CMPLT
    if condition.op is Ops.XOR and b.op is Ops.CONST and b.arg is True and a.op in (Ops.CMPLT, Ops.CMPLE):
        a, b, strict = a.src[1], a.src[0], a.op is Ops.CMPLE
    elif condition.op not in (Ops.CMPLT, Ops.CMPLE):
        return None
    left, right = _as_index(a), _as_index(b)
    if left is None or right is None:
        return None
    worst = ctx.simplify(left - right)
    for r in [r for r in worst.ranges if r not in ctx.blocks]:
        found = linear_in(worst, r)
        if found is None:
            return None
        worst = ctx.simplify(found[0] + max(found[1], 0) * r.vmax)
    return ctx.simplify(worst < 0 if strict else worst <= 0)


def unswitch(value: UOp, ctx: Ctx) -> tuple[UOp, UOp] | None:
    """``value`` where all its choices hold, and the bool of the block's ranges that says so; None: there is nothing to
    gain."""
    chosen, holds = [], UOp.const(True)
    for u in _here(value):
        if u.op is not Ops.WHERE or not any(r not in ctx.blocks for r in u.src[0].ranges):
            continue
        if any(v.op is Ops.LOAD or (v.op in COMPARE and v.src[0].dtype.is_float) for v in toposort(u.src[0])):
            continue
        everywhere = _everywhere(u.src[0], ctx)
        if everywhere is not None and everywhere.vmax == 1 and everywhere.ranges:
            chosen.append(u)
            holds = holds & everywhere
    if not chosen:
        return None
    return UOp.wrap([value], chosen, lambda u: u.src[1])[0], ctx.simplify(holds)


def once_if(condition: UOp, then: bool, ctx: Ctx) -> UOp:
    """A RANGE of one iteration where ``condition`` is as ``then`` says, and of none where it is not."""
    count = condition.where(UOp.const(int(then)), UOp.const(int(not then)))
    return ctx.range(count, AxisType.LOOP)


def renewed(ranges: list[UOp], value: UOp, ctx: Ctx) -> dict[UOp, UOp]:
    """New RANGEs for a second copy of a nest over ``ranges`` that computes ``value``: for the nest's, and for those of
    the reductions inside it."""
    mine = dict.fromkeys(ranges)
    for u in _here(value):
        if u.op is Ops.REDUCE:
            mine.update(dict.fromkeys(u.src[1:]))
    return {r: ctx.range(r.src[0], r.arg.axis_type) for r in mine}


def _here(value: UOp) -> list[UOp]:
    """The nodes of a value but for what was done before it, which stands behind AFTER."""
    seen, stack = {value: None}, [value]
    while stack:
        u = stack.pop()
        for s in u.src[:1] if u.op is Ops.AFTER else u.src:
            if s not in seen:
                seen[s] = None
                stack.append(s)
    return list(seen)
