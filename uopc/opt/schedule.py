"""schedule: choose the sizes of a kernel's loops from its loop nest.

In: a kernel of tensor operations, ``SINK(STORE(out, body), ...)``.  Out: the same kernel (perhaps with its axes
merged into one), with ``Opts`` in its KernelInfo.

The kernel is ranged once with plain loops, and the step of every memory access along every loop is read off.  From
these alone follow the axis of the vector lanes (where memory is consecutive) and the sizes that are worth a look:
register tiles (which axes reuse a loaded value), unrolling, what the threads share.  Of those ``uopc.cost`` tells which
take the least time.  Never looks at what the kernel is for.
"""

from __future__ import annotations

import math

from uopc.cost import Candidate, Model
from uopc.ops import AxisType, KernelInfo, Ops, Order, ReduceArg
from uopc.opt.sizes import candidates
from uopc.rangeify import Ctx, Opts, rangeify
from uopc.rangeify.nest import analyse
from uopc.target import Target
from uopc.uop import UOp, dtypes, toposort


def _flatten(stores: tuple[UOp, ...]) -> tuple[UOp, ...] | None:
    """The STOREs of a kernel with all axes merged into one, if no address then needs a division."""
    shape = stores[0].src[1].shape
    if len([n for n in shape if n > 1]) < 2:
        return None
    count = (math.prod(shape),)
    flat = tuple(s.replace(src=tuple(UOp(Ops.RESHAPE, (x,), count) for x in s.src)) for s in stores)
    ctx = Ctx(Opts())
    r = ctx.range(count[0], AxisType.LOOP)
    for store in flat:
        for x in store.src:
            if any(u.op in (Ops.IDIV, Ops.MOD) and u.dtype is dtypes.index for u in toposort(rangeify(x, (r,), ctx))):
                return None
    return flat


def _with_merged_reductions(root: UOp) -> UOp:
    """The kernel with neighbouring reduced axes as one, where no address then needs a division: one long axis fills
    lanes and blocks of a sum that two short ones do not."""
    targets = [u for u in toposort(root) if u.op is Ops.REDUCE and _merged_reduction(u) is not u]
    return UOp.wrap([root], targets, _merged_reduction)[0] if targets else root


def _merged_reduction(u: UOp) -> UOp:
    """A REDUCE with its neighbouring axes merged; itself where that does not help."""
    x, op, axes = u.src[0], u.arg.op, u.arg.axes
    shape: list[int] = []
    reduced: list[int] = []
    for a, n in enumerate(x.shape):
        if a in axes and a - 1 in axes:
            shape[-1] *= n
            continue
        reduced += [len(shape)] if a in axes else []
        shape.append(n)
    if len(shape) == len(x.shape) or 0 in x.shape or u.arg.order is not Order.ANY:
        return u
    merged = UOp(Ops.RESHAPE, (x,), tuple(shape))
    ctx = Ctx(Opts())
    value = rangeify(merged, tuple(ctx.range(n, AxisType.LOOP) for n in shape), ctx)
    if any(v.op in (Ops.IDIV, Ops.MOD) and v.dtype is dtypes.index for v in toposort(value)):
        return u
    return UOp(Ops.REDUCE, (merged,), ReduceArg(op, tuple(reduced)))


def _normal(root: UOp) -> UOp:
    """The kernel with axes merged where that costs no divisions."""
    root = _with_merged_reductions(root)
    if not any(u.op is Ops.REDUCE for u in toposort(root)):
        flat = _flatten(root.src)
        if flat is not None:
            return root.replace(src=flat)
    return root


def schedule(root: UOp, target: Target) -> UOp:
    """The kernel ``root`` with ``Opts`` in its KernelInfo, for a machine."""
    if any(u.op is Ops.CASCADE for u in toposort(root)):
        return root  # its sizes follow from its blocks
    root = _normal(root)
    nest = analyse(root.src)
    return root.replace(arg=KernelInfo(root.arg.name, Model(nest, target).choose(candidates(nest, target))))


def schedules(root: UOp, target: Target) -> list[Candidate]:
    """The kernel under each of its candidate sizes."""
    if any(u.op is Ops.CASCADE for u in toposort(root)):
        return [Candidate(root, None)]
    root = _normal(root)
    nest = analyse(root.src)
    model = Model(nest, target)
    return [
        Candidate(root.replace(arg=KernelInfo(root.arg.name, opts)), model.cost(opts))
        for opts in candidates(nest, target)
    ]
