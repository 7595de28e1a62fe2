"""price: how long the kernels will take that a choice of cuts makes, each with the sizes and blocks that it will get.

In: a tensor expression whose inputs are BUFFERs, as ``kernelize`` thinks of writing it down by itself.  Out: seconds.
The kernels are made as the pipeline makes them (``layout``, ``outline``, ``schedule``, ``blockize``), and their times
are those by which ``schedule`` and ``blockize`` choose.  So what is predicted of a fused kernel is what it can become:
one whose product gets no panels, because another reduction or a movement stands above it, has the price of a product
without panels.  Changes no graph.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from uopc import spec
from uopc._hot.graph import of_ops
from uopc.blockize import block_candidates, blockize
from uopc.cost import Candidate, Model
from uopc.ops import Level, Ops, ParamArg
from uopc.opt.layout import layout_pass
from uopc.opt.schedule import schedule
from uopc.outline import outline
from uopc.rangeify.nest import analyse
from uopc.target import Target
from uopc.uop import UOp, sink, toposort

# What is written down must not depend on how many cores there are: it is decided for a few, which share work and do
# not do all of it at once.
CORES = 2
# Expressions whose price is remembered.  Layers of a model are alike.
KNOWN = 512


def price(value: UOp, target: Target) -> float:
    """Seconds that a kernel (or the several that it takes) spends on writing ``value`` down.

    ``value`` has its buffers numbered in the order in which they stand, so that equal expressions are one.
    """
    return min(_seconds(value, target, copies) for copies in (True, False))


def copies_pay(value: UOp, target: Target) -> bool:
    """Whether ``value`` takes less time with the copies of ``layout``, these included; numbered as for ``price``."""
    return _seconds(value, target, True) <= _seconds(value, target, False)


@lru_cache(maxsize=KNOWN)
def _seconds(value: UOp, target: Target, copies: bool) -> float:
    few = replace(target, cores=CORES)
    staged = [UOp(Ops.STAGE, (value,), Level.KERNEL)]
    laid = layout_pass(staged) if copies else staged
    return sum(kernel_price(root, few) for root, _ in outline(sink(*laid)).calls)


@lru_cache(maxsize=KNOWN)
def kernel_price(root: UOp, target: Target) -> float:
    """Seconds of a kernel (a SINK of STOREs, as ``outline`` gives it) on a machine."""
    scheduled = schedule(root, target)
    blocked = blockize(scheduled, target)
    if spec.tile_bytes(blocked, target.stack) > target.stack:
        return math.inf  # the pipeline refuses it
    if of_ops(toposort(root), Ops.CASCADE):
        return _of_cascade(root, scheduled, blocked, target)
    cost = Model(analyse(scheduled.src), target).cost(scheduled.arg.opts)
    if blocked is not scheduled:
        found = {c.root: c.cost for c in block_candidates(Candidate(scheduled, cost), target)}
        cost = found.get(blocked) or cost
    return cost.seconds(target)


def _of_cascade(root: UOp, scheduled: UOp, blocked: UOp, target: Target) -> float:
    """A kernel with cascades: these in blocks, and what is computed from their results as if those came from memory."""
    found = {c.root: c for c in block_candidates(Candidate(scheduled, None), target)}
    cascades = found[blocked].seconds(target)
    nodes = toposort(root)
    slot = 1 + max(u.arg.slot for u in of_ops(nodes, Ops.BUFFER))
    results = {
        u: UOp(Ops.BUFFER, (), ParamArg(slot + k, u.dtype, u.shape)) for k, u in enumerate(of_ops(nodes, Ops.COMPONENT))
    }
    rest = root.substitute(results)
    if not of_ops(toposort(rest), Ops.REDUCE):
        return cascades
    return cascades + Model(analyse(rest.src), target).cost(replace(blocked.arg.opts, block=())).seconds(target)
