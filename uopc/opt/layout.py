"""layout: copies that make memory consecutive where a reduction reads it again and again.

In and out: roots of tensor graphs with their STAGEs.  Where a REDUCE reads an operand in strides along every axis on
which vector lanes could run,
and reads it many times, the operand is written down once more (a STAGE) with its last output axis consecutive: ``q @
k.T`` reads k by columns, and from then on a copy of k.T by rows.

Never copies what is read a few times only, nor where some output axis has no strides: the schedule then simply takes
that one.  A reduction that can also run along its own axis, where its memory is consecutive, may do so for less than
the copy takes: whoever calls the pass tells by prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from uopc.isolate import isolated
from uopc.ops import ALU, MOVEMENT, AxisType, Level, Ops, Order, ParamArg
from uopc.rangeify import Ctx, rangeify
from uopc.rangeify.nest import SMALL_STEPS
from uopc.simplify import linear_in
from uopc.uop import UOp, toposort

# Reads of each element for which one more write and read are cheap.
REUSE = 16
# Shorter output axes get no lanes worth a copy.
LEAST_LANES = 8

# How far an address moves with each axis; None: not in equal steps.
Steps = tuple["int | None", ...]


def _operands(x: UOp) -> list[UOp]:
    """The memory that a reduced value is computed from: BUFFERs and STAGEs under movement ops only, as seen at the
    shape of ``x``."""
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


def _steps(operand: UOp, known: dict[UOp, Steps]) -> Steps:
    """The steps of an operand along its axes; ``known`` holds those of operands that differ in their memory only."""
    memory = _memory(operand)
    assert memory is not None
    any_memory = UOp(Ops.BUFFER, (), ParamArg(0, memory.dtype, memory.shape))
    same = operand.substitute({memory: any_memory})
    if same not in known:
        ctx = Ctx()
        idx = tuple(ctx.range(n, AxisType.LOOP) for n in operand.shape)
        address = rangeify(same, idx, ctx).src[0].src[1]
        found = [linear_in(address, r) for r in idx]
        known[same] = tuple(None if f is None else f[1] for f in found)
    return known[same]


def _with_axis_last(operand: UOp, axis: int, steps: Steps) -> UOp:
    """``operand`` read from a copy in which ``axis`` is consecutive; axes along which it only repeats are not
    copied."""
    shape = operand.shape
    once = tuple((0, 1) if step == 0 else (0, n) for step, n in zip(steps, shape))
    order = (*[a for a in range(len(shape)) if a != axis], axis)
    back = tuple(order.index(a) for a in range(len(shape)))
    small = UOp(Ops.SHRINK, (operand,), once)
    copy = UOp(Ops.STAGE, (UOp(Ops.PERMUTE, (small,), order),), Level.KERNEL)
    return UOp(Ops.EXPAND, (UOp(Ops.PERMUTE, (copy,), back),), shape)


def _copies(u: UOp, known: dict[UOp, Steps]) -> dict[UOp, UOp]:
    """For a REDUCE, the operands to read from a copy instead."""
    x, axes = u.src[0], u.arg.axes
    kept = [a for a in range(len(x.shape)) if a not in axes]
    outputs = [a for a in kept if x.shape[a] >= LEAST_LANES]
    if not outputs or x.op not in ALU:
        return {}
    steps = {o: _steps(o, known) for o in _operands(x)}
    strided = {a: [o for o in steps if steps[o][a] not in SMALL_STEPS] for a in outputs}
    if not all(strided.values()):
        return {}
    axis = outputs[-1]
    reuse = {o: math.prod(x.shape[a] for a in kept if steps[o][a] == 0) for o in strided[axis]}
    # one step after the other leaves lanes along the reduced axis to nobody
    least = 1 if u.arg.order is Order.STEPS else REUSE
    return {o: _with_axis_last(o, axis, steps[o]) for o, n in reuse.items() if n >= least and None not in steps[o]}


def _within(node: UOp) -> list[UOp]:
    """The nodes of the bodies of a CASCADE or REDUCE, down to memory."""
    seen: dict[UOp, None] = {}
    stack = list(node.src)
    while stack:
        u = stack.pop()
        if u not in seen:
            seen[u] = None
            if u.op not in (Ops.STAGE, Ops.BUFFER, Ops.COMPONENT):
                stack += u.src
    return list(seen)


def layout_pass(roots: list[UOp], pays: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """``roots`` with the copies that pay.

    pays: whether a REDUCE, its buffers numbered in the order in which they stand, is worth its copies; without it all
    are.
    """
    known: dict[UOp, Steps] = {}
    order = toposort(roots)
    # a cascade's own reductions run with lanes along another axis, which blockize packs
    inside = {u for c in order if c.op is Ops.CASCADE for u in _within(c)}
    reads = [u for u in order if u.op is Ops.REDUCE and u not in inside]

    def read_copies(u: UOp) -> UOp:
        copies = _copies(u, known)
        if not copies or (pays is not None and u.arg.order is Order.ANY and not pays(isolated(u))):
            return u
        # what is written down below reads what it read: else it would be computed twice
        ends = {s: s for s in _within(u) if s.op is Ops.STAGE}
        return u.replace(src=(u.src[0].substitute({**ends, **copies}),))

    return UOp.wrap(roots, reads, read_copies) if reads else list(roots)
