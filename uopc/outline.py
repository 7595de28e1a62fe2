"""outline: a kernel of each STAGE, or of several that share a cascade.

In: a SINK of STAGEs, as ``layout`` leaves it.  Out: the kernels in the order in which they run, each a SINK of STOREs
whose buffers and cascades are numbered from 0, so that equal kernels are the same graph; and for each the buffers of
the plan that it is called with.  Compiles nothing: ``uopc.price`` asks what kernels a choice of cuts would make.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from uopc._hot.graph import of_ops
from uopc.joint import Store, at_root, joint, order
from uopc.kernelize import runs
from uopc.ops import KernelInfo, Ops, ParamArg
from uopc.uop import UOp, sink, toposort

# For each slot of a kernel a buffer of the plan, and where in it the slot begins, in elements.
Places = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Outline:
    """The kernels of a plan with their places, and its buffers, which are numbered in this order.

    inputs: BUFFERs.  outs, temps: STAGEs.  results: for each root, the number of the buffer that holds it.
    """

    calls: list[tuple[UOp, Places]]
    inputs: list[UOp]
    outs: list[UOp]
    temps: list[UOp]
    results: list[int]


class _Outliner:
    """Makes a kernel of each STAGE, or of several that share one, sources first."""

    def __init__(self, root: UOp) -> None:
        nodes = toposort(root)
        staged = [u for u in nodes if u.op is Ops.STAGE]
        self.inputs = [u for u in nodes if u.op is Ops.BUFFER]
        self.outs = [u for u in staged if u in set(root.src)]
        self.temps = [u for u in staged if u not in set(root.src)]
        self.numbers = {u: k for k, u in enumerate(self.inputs)}
        # slots that no input has: inputs keep the slots they came with
        self.buffers = {
            u: UOp(Ops.BUFFER, (), ParamArg(-1 - k, u.dtype, u.shape))
            for k, u in enumerate((*self.outs, *self.temps), len(self.inputs))
        }
        self.numbers.update({buffer: -1 - buffer.arg.slot for buffer in self.buffers.values()})
        self.stores = joint(root, self.buffers)
        self.order = order(root, self.stores)
        self.calls: list[tuple[UOp, Places]] = []
        self.results = root.src
        self.memo: dict[UOp, UOp] = {}

    def run(self) -> Outline:
        """Rebuild the graph from the inputs up; each STAGE becomes the BUFFER that its kernel writes."""
        written: set[UOp] = set()
        for u in self.order:
            if u.op is Ops.SINK:
                continue
            if u.op is not Ops.STAGE:
                src = tuple(self.memo[s] for s in u.src)
                self.memo[u] = u if src == u.src else u.replace(src=src)
                continue
            self.memo[u] = self.buffers[u]
            if u not in self.stores:
                self.write(self.buffers[u], self.memo[u.src[0]])
            elif self.buffers[u] not in written:
                stores = [(target, self.memo[body]) for target, body in self.stores[u]]
                written.update(buffer_of(target) for target, _ in stores)
                self.call(stores, 0)
        results = [self.numbers[self.buffers.get(r, r)] for r in self.results]
        return Outline(self.calls, self.inputs, self.outs, self.temps, results)

    def write(self, out: UOp, body: UOp) -> None:
        """The kernels that write ``body`` to ``out``."""
        if 0 in body.shape:
            return
        target, value = at_root(out, body)
        if value.op not in (Ops.STACK, Ops.CAT):
            self.call([(target, value)], 0)
            return
        if target.op is Ops.RESHAPE and target.src[0] is out:
            target = self.renamed(out, target.shape)
        self.write_parts(target, value)

    def renamed(self, out: UOp, shape: tuple[int, ...]) -> UOp:
        """The buffer ``out``, or a part of it, in another shape."""
        target = UOp(Ops.BUFFER, (), ParamArg(out.arg.slot, out.dtype, shape))
        self.numbers[target] = self.numbers[out]
        return target

    def write_parts(self, out: UOp, body: UOp) -> None:
        """A STACK or CAT source by source: runs of sources of one shape share a kernel."""
        axis = 0 if body.op is Ops.STACK else body.arg
        parts = [UOp(Ops.RESHAPE, (s,), (1, *s.shape)) if body.op is Ops.STACK else s for s in body.src]
        at = 0
        for first, last in runs(tuple(parts)):
            if 0 not in parts[first].shape:
                self.write_run(out, parts[first:last], axis, at)
            at += (last - first) * parts[first].shape[axis]

    def write_run(self, out: UOp, parts: list[UOp], axis: int, at: int) -> None:
        """Parts of one shape, side by side along ``axis`` from ``at`` on.

        Along the first axis they are a buffer of their own that begins further on, so that runs of equal parts are one
        kernel.
        """
        size, count = parts[0].shape[axis], len(parts)
        target, offset = out, 0
        if axis == 0 and out.op is Ops.BUFFER:
            rest = out.shape[1:]
            target = self.renamed(out, (count * size, *rest))
            offset, at = at * math.prod(rest), 0
        stores = []
        for k, part in enumerate(parts):
            bounds = tuple(
                (at + k * size, at + (k + 1) * size) if a == axis else (0, n) for a, n in enumerate(target.shape)
            )
            stores.append((UOp(Ops.SHRINK, (target,), bounds), part))
        self.call(stores, offset)

    def call(self, stores: list[Store], offset: int) -> None:
        """One kernel: its buffers and cascades renumbered from 0, buffers that it writes first, so that equal kernels
        are the same graph.
        Where it writes only one, ``offset`` is where in it the kernel's part begins."""
        root = sink(*(UOp(Ops.STORE, pair) for pair in stores))
        outs = list(dict.fromkeys(buffer_of(target) for target, _ in stores))
        nodes = toposort(root)
        buffers = list(dict.fromkeys((*outs, *of_ops(nodes, Ops.BUFFER))))
        slots = {u: UOp(Ops.BUFFER, (), ParamArg(k, u.dtype, u.arg.shape)) for k, u in enumerate(buffers)}
        named = KernelInfo(_name(nodes, outs[0].arg.shape))
        kernel = root.substitute({**slots, **_renumbered(nodes)}).replace(arg=named)
        places = tuple((self.numbers[u], offset if u is outs[0] else 0) for u in buffers)
        self.calls.append((kernel, places))


def buffer_of(target: UOp) -> UOp:
    while target.op is not Ops.BUFFER:
        target = target.src[0]
    return target


def _renumbered(nodes: list[UOp]) -> dict[UOp, UOp | Callable[[UOp], UOp]]:
    """For the cascades of a kernel, and their running values, what takes their place."""
    numbers = {u.arg.id: k for k, u in enumerate(of_ops(nodes, Ops.CASCADE))}
    out: dict[UOp, UOp | Callable[[UOp], UOp]] = {}
    for u in of_ops(nodes, Ops.CASCADE, Ops.STATE):
        if u.op is Ops.STATE:
            out[u] = u.replace(arg=u.arg._replace(cascade=numbers[u.arg.cascade]))
        elif u.arg.id != numbers[u.arg.id]:
            out[u] = lambda v: v.replace(arg=v.arg._replace(id=numbers[v.arg.id]))
    return out


def _name(nodes: list[UOp], shape: tuple[int, ...]) -> str:
    """What the kernel is: r for a reduction, e for elementwise, and the shape that it writes."""
    kind = "r" if of_ops(nodes, Ops.REDUCE, Ops.CASCADE) else "e"
    return "_".join([kind, *(str(n) for n in shape if n != 1)]) if any(n != 1 for n in shape) else f"{kind}_1"


def outline(root: UOp) -> Outline:
    """The kernels and buffers of a SINK of STAGEs."""
    return _Outliner(root).run()
