"""layout: copies that make memory consecutive where a reduction reads it again and again.

In and out: roots of tensor graphs with their STAGEs.  Where a REDUCE reads an operand in strides along the axis on which vector lanes would run, and reads
it many times, the operand is written down once more (a STAGE) with that axis last: ``q @ k.T`` reads k by columns, and the copy of k.T by rows.

Never copies what is read a few times only, nor where another axis has no strides: the schedule then simply takes that one.
"""

from __future__ import annotations

import math

from uopc.ops import ALU, MOVEMENT, AxisType, Level, Ops
from uopc.rangeify import Ctx, rangeify
from uopc.simplify import linear_in
from uopc.uop import UOp, toposort

# Reads of each element for which one more write and read are cheap.
REUSE = 16
# Shorter output axes get no lanes worth a copy.
LEAST_LANES = 8


def _operands(x: UOp) -> list[UOp]:
    """The memory that a reduced value is computed from: BUFFERs and STAGEs under movement ops only, as seen at the shape of ``x``."""
    out: dict[UOp, None] = {}
    seen, stack = {x}, [x]
    while stack:
        u = stack.pop()
        if u.op in ALU:
            for s in u.src:
                if s not in seen and s.shape == x.shape:
                    seen.add(s)
                    stack.append(s)
        elif _memory(u) is not None:
            out[u] = None
    return list(out)


def _memory(u: UOp) -> UOp | None:
    while u.op in MOVEMENT and u.op is not Ops.PAD:
        u = u.src[0]
    return u if u.op in (Ops.BUFFER, Ops.STAGE) else None


def _steps(operand: UOp) -> list[int | None]:
    """How far the address moves along each axis (None: not in equal steps)."""
    ctx = Ctx()
    idx = tuple(ctx.range(n, AxisType.LOOP) for n in operand.shape)
    memory = _memory(operand)
    assert memory is not None
    flat = UOp(Ops.BUFFER, (), _as_buffer(memory))
    load = rangeify(operand.substitute({memory: flat}), idx, ctx)
    found = [linear_in(load.src[0].src[1], r) for r in idx]
    return [None if f is None else f[1] for f in found]


def _as_buffer(memory: UOp):  # type: ignore[no-untyped-def]
    from uopc.ops import ParamArg

    return ParamArg(0, memory.dtype, memory.shape)


def _with_axis_last(operand: UOp, axis: int, steps: list[int | None]) -> UOp:
    """``operand`` read from a copy in which ``axis`` is consecutive; axes along which it only repeats are not copied."""
    shape = operand.shape
    once = tuple((0, 1) if step == 0 else (0, n) for step, n in zip(steps, shape))
    order = (*[a for a in range(len(shape)) if a != axis], axis)
    back = tuple(order.index(a) for a in range(len(shape)))
    small = UOp(Ops.SHRINK, (operand,), once)
    copy = UOp(Ops.STAGE, (UOp(Ops.PERMUTE, (small,), order),), Level.KERNEL)
    return UOp(Ops.EXPAND, (UOp(Ops.PERMUTE, (copy,), back),), shape)


def _copies(u: UOp) -> dict[UOp, UOp]:
    """For a REDUCE, the operands to read from a copy instead."""
    x, axes = u.src[0], u.arg.axes
    outputs = [a for a in range(len(x.shape)) if a not in axes and x.shape[a] >= LEAST_LANES]
    if not outputs or x.op not in ALU:
        return {}
    operands = {o: _steps(o) for o in _operands(x)}
    strided = {a: [o for o, steps in operands.items() if steps[a] not in (0, 1)] for a in outputs}
    if any(not strided[a] for a in outputs):
        return {}
    out = {}
    axis = outputs[-1]
    for o in strided[axis]:
        steps = operands[o]
        reuse = math.prod(x.shape[a] for a in range(len(x.shape)) if a not in axes and steps[a] == 0)
        if None not in steps and reuse >= REUSE:
            out[o] = _with_axis_last(o, axis, steps)
    return out


def layout_pass(roots: list[UOp]) -> list[UOp]:
    """``roots`` with the copies that pay."""
    replaced: dict[UOp, UOp] = {}
    for u in toposort(roots):
        if u.op is not Ops.REDUCE:
            continue
        copies = _copies(u)
        if copies:
            replaced[u] = u.replace(src=(u.src[0].substitute(copies),))
    if not replaced:
        return list(roots)
    return UOp.wrap(roots, list(replaced), lambda u: _again(u))


def _again(u: UOp) -> UOp:
    """The copies of a REDUCE whose sources may hold copies of their own by now."""
    return u.replace(src=(u.src[0].substitute(_copies(u)),))
