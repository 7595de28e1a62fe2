"""The pipeline: the stages in order, and everything that is done around them.

``TENSOR_STAGES`` and ``KERNEL_STAGES`` are the whole order.  They alone drive verifying (UOPC_VERIFY=1), dumping
(UOPC_DUMP=stage) and timing; a pass does none of these itself.  ``make_plan`` takes tensor graphs to a ``Plan``:
kernels as C text, with their arguments and temporaries.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from uopc import spec
from uopc._hot.graph import of_ops
from uopc.agree import agree
from uopc.blockize import block_candidates, blockize
from uopc.cascade import cascade
from uopc.cost import Candidate
from uopc.decompose import decompose
from uopc.joint import Store, at_root, joint, order
from uopc.kernelize import kernelize, runs
from uopc.linearize import linearize
from uopc.memo import Memo
from uopc.ops import KernelInfo, Level, Ops, ParamArg, Stage
from uopc.opt.accumulate import accumulate
from uopc.opt.expand import expand
from uopc.opt.layout import layout_pass
from uopc.opt.prefetch import prefetch
from uopc.opt.schedule import schedule, schedules
from uopc.opt.stream import stream
from uopc.opt.transpose import transpose
from uopc.opt.words import words
from uopc.options import Options, current, environment
from uopc.rangeify import Ctx, Opts, lower_stores
from uopc.render_c import TilesTooLarge, render_c
from uopc.runtime.device import host
from uopc.simplify import simplify
from uopc.summation import summation
from uopc.target import Target
from uopc.uop import DType, UOp, format_graph, sink, toposort
from uopc.widen import widen


@dataclass(frozen=True)
class Settings:
    """What a stage may depend on besides its graph."""

    options: Options
    target: Target


@dataclass(frozen=True)
class Step:
    """One stage: its name (the file's, the dump's and the timer's), its function, and what kind of graph it returns."""

    name: str
    run: Callable[[UOp, Settings], UOp]
    gives: Stage


def _layout(root: UOp, settings: Settings) -> UOp:
    opt = settings.options.opt
    return sink(*(opt.layout(list(root.src)) if opt is not None else layout_pass(list(root.src))))


def _by_user(root: UOp, settings: Settings) -> bool:
    """Whether the user's own object ranges a kernel."""
    return settings.options.opt is not None and len(root.src) == 1


def _rangeify(root: UOp, settings: Settings) -> UOp:
    """Ranges of a kernel: by the schedule's sizes, or by the user's own object."""
    stores = [(s.src[0], s.src[1]) for s in root.src]
    if _by_user(root, settings):
        ranged = settings.options.opt.lower(stores[0][1], stores[0][0])
    else:
        ranged = lower_stores(stores, Ctx(root.arg.opts or Opts()))
    return ranged.replace(arg=root.arg)


def _schedule(root: UOp, settings: Settings) -> UOp:
    return root if root.arg.settled or _by_user(root, settings) else schedule(root, settings.target)


def _blockize(root: UOp, settings: Settings) -> UOp:
    """In blocks.  TilesTooLarge, before anything is ranged, where their tiles take more than a stack has."""
    blocked = root if root.arg.settled else blockize(root, settings.target)
    stack = settings.target.stack
    kept = spec.tile_bytes(blocked, stack)
    if kept > stack:
        raise TilesTooLarge(f"{root.arg.name} would keep {kept} bytes in tiles, and a stack holds {stack}")
    return blocked


VALUE_STAGES = (  # what each value is, before it is asked how it is computed
    Step("widen", lambda g, s: widen(g), Stage.TENSOR),
    Step("summation", lambda g, s: summation(g) if s.options.batch_invariant else g, Stage.TENSOR),
)
TENSOR_STAGES = (
    *VALUE_STAGES,
    Step("cascade", lambda g, s: cascade(g, s.options.fuse_reduce, s.target), Stage.TENSOR),
    Step("kernelize", lambda g, s: kernelize(g, s.options.fuse_reduce, s.target), Stage.TENSOR),
    Step("agree", lambda g, s: agree(g), Stage.TENSOR),
    Step("layout", _layout, Stage.TENSOR),
)
KERNEL_STAGES = (
    Step("schedule", _schedule, Stage.TILED),
    Step("blockize", _blockize, Stage.TILED),
    Step("rangeify", _rangeify, Stage.LOOP),
)
LOOP_STAGES = (
    Step("simplify", lambda g, s: simplify(g), Stage.LOOP),
    Step("words", lambda g, s: words(g), Stage.LOOP),
    Step("expand", lambda g, s: expand(g), Stage.LOOP),
    Step("transpose", lambda g, s: transpose(g), Stage.LOOP),
    Step("accumulate", lambda g, s: accumulate(g), Stage.REGISTER),
    Step("decompose", lambda g, s: decompose(g), Stage.REGISTER),
    Step("stream", lambda g, s: stream(g, s.target), Stage.REGISTER),
    Step("finish", lambda g, s: simplify(g), Stage.REGISTER),
    Step("linearize", lambda g, s: linearize(g), Stage.LINEAR),
    Step("prefetch", lambda g, s: prefetch(g, s.target), Stage.LINEAR),
)
STAGES = (*TENSOR_STAGES, *KERNEL_STAGES, *LOOP_STAGES)
DUMPS = (*(step.name for step in STAGES), "all")  # what UOPC_DUMP may be

# -- what is done around a stage

_watchers: list[Callable[[str, UOp], None]] = []
timings: dict[str, float] = {}


@contextmanager
def watch(see: Callable[[str, UOp], None]) -> Iterator[None]:
    """Call ``see(stage name, graph)`` after every stage of every graph inside the block."""
    _watchers.append(see)
    try:
        yield
    finally:
        _watchers.remove(see)


def run_stages(steps: tuple[Step, ...], graph: UOp, settings: Settings) -> UOp:
    """Take ``graph`` through ``steps``; verify, dump and time each as the environment asks.

    ValueError where UOPC_DUMP names no stage.
    """
    env = environment()
    if env.dump and env.dump not in DUMPS:
        raise ValueError(f"UOPC_DUMP={env.dump!r}; accepted are {', '.join(DUMPS)}")
    for step in steps:
        start = time.perf_counter()
        graph = step.run(graph, settings)
        timings[step.name] = timings.get(step.name, 0.0) + time.perf_counter() - start
        if env.verify:
            spec.verify(graph, step.gives, settings.target.stack)
        if env.dump in (step.name, "all"):
            name = graph.arg.name if isinstance(graph.arg, KernelInfo) else "graph"
            print(f"-- {step.name}: {name}\n{format_graph(graph)}", file=sys.stderr)
        for see in _watchers:
            see(step.name, graph)
    return graph


def to_linear(root: UOp) -> UOp:
    """A loop program (a SINK, written by hand or by ``rangeify``) through the stages up to LINEAR."""
    return run_stages(LOOP_STAGES, root, settings_for(Options()))


def settings_for(options: Options) -> Settings:
    """What stages depend on where a plan is made for this machine; how much is measured changes no stage."""
    return Settings(replace(options, tune=0), host())


# -- plans


@dataclass(frozen=True)
class Kernel:
    """One C function: its name, its translation unit, its program in LINEAR form, the tensor operations (a SINK of
    STOREs) that it was made from, and those with the sizes that tuning found, if it did."""

    name: str
    source: str
    linear: UOp = field(repr=False)
    root: UOp = field(repr=False)
    tuned: UOp | None = field(default=None, repr=False)

    @property
    def start(self) -> UOp:
        """What ``KERNEL_STAGES`` began with."""
        return self.tuned or self.root

    @property
    def outs(self) -> int:
        """How many buffers it writes: its first slots."""
        return len({_buffer_of(s.src[0]) for s in self.root.src})

    @property
    def slots(self) -> int:
        """How many buffers it takes."""
        return 1 + max((u.arg.slot for u in self.linear.src if u.op is Ops.BUFFER), default=-1)


@dataclass(frozen=True)
class Call:
    """A kernel at work in a plan: for each of its slots a buffer of the plan, and where in it the slot begins, in
    elements."""

    kernel: Kernel
    buffers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plan:
    """What one realize does.

    Buffers are numbered: inputs (in the order of ``inputs``), then outputs, then temporaries.
    inputs: (dtype, elements) of each array read.  outs: (dtype, shape) of each result.  temps: (dtype, elements) of
    each temporary.
    results: for each root, the number of the buffer that holds it.  input_numbers: the slot that each input had in the
    graph.
    """

    calls: list[Call]
    inputs: list[tuple[DType, int]]
    input_numbers: list[int]
    outs: list[tuple[DType, tuple[int, ...]]]
    temps: list[tuple[DType, int]]
    results: list[int]

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels in the order in which they run."""
        return [c.kernel for c in self.calls]

    def __repr__(self) -> str:
        sizes = [f"{len(self.inputs)} inputs", f"{len(self.outs)} outputs", f"{len(self.temps)} temporaries"]
        total = sum(d.itemsize * n for d, n in self.temps)
        lines = [f"Plan: {len(self.calls)} kernels, {', '.join(sizes)} of {total} bytes"]
        for call in self.calls:
            args = ", ".join(self.buffer_name(b) + (f"+{at}" if at else "") for b, at in call.buffers)
            lines.append(f"  {call.kernel.name}({args})")
        return "\n".join(lines)

    def buffer_name(self, number: int) -> str:
        """``in0``, ``out0`` or ``temp0``."""
        for kind, count in (("in", len(self.inputs)), ("out", len(self.outs)), ("temp", len(self.temps))):
            if number < count:
                return f"{kind}{number}"
            number -= count
        raise IndexError(number)


class _Split:
    """Makes a kernel of each STAGE, or of several that share one, sources first."""

    def __init__(self, root: UOp, settings: Settings) -> None:
        self.settings = settings
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
        self.calls: list[Call] = []
        self.results = root.src
        self.memo: dict[UOp, UOp] = {}

    def run(self) -> Plan:
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
                written.update(_buffer_of(target) for target, _ in stores)
                self.call(stores, 0)
        sizes = [(u.dtype, math.prod(u.arg.shape)) for u in self.inputs]
        temps = [(u.dtype, math.prod(u.shape)) for u in self.temps]
        outs = [(u.dtype, u.shape) for u in self.outs]
        slots = [u.arg.slot for u in self.inputs]
        results = [self.numbers[self.buffers.get(r, r)] for r in self.results]
        return Plan(self.calls, sizes, slots, outs, temps, results)

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
        outs = list(dict.fromkeys(_buffer_of(target) for target, _ in stores))
        nodes = toposort(root)
        buffers = list(dict.fromkeys((*outs, *of_ops(nodes, Ops.BUFFER))))
        slots = {u: UOp(Ops.BUFFER, (), ParamArg(k, u.dtype, u.arg.shape)) for k, u in enumerate(buffers)}
        named = KernelInfo(_name(nodes, outs[0].arg.shape))
        kernel = compile_kernel(root.substitute({**slots, **_renumbered(nodes)}).replace(arg=named), self.settings)
        places = tuple((self.numbers[u], offset if u is outs[0] else 0) for u in buffers)
        self.calls.append(Call(kernel, places))


def _buffer_of(target: UOp) -> UOp:
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


# Kernels of plans that are gone, for others that have them too: more than a training step of a large model has that
# differ.  One is tens of kilobytes, most of them its graphs.
MAX_KERNELS = 256
_kernels: Memo[tuple[UOp, Settings], Kernel] = Memo(MAX_KERNELS)


def compile_kernel(root: UOp, settings: Settings, tuned: UOp | None = None) -> Kernel:
    """The C of a kernel (a SINK of STOREs of tensor operations), perhaps with sizes from ``kernel_candidates``; equal
    kernels are compiled once."""
    start = tuned or root
    key = (start, settings)
    found = _kernels.get(key)
    if found is None:
        linear = run_stages(KERNEL_STAGES + LOOP_STAGES, start, settings)
        found = _kernels[key] = Kernel(
            root.arg.name, render_c(linear, root.arg.name, settings.target), linear, root, tuned
        )
    return found


def kernel_candidates(root: UOp, settings: Settings, threads: int) -> list[Candidate]:
    """A kernel with each choice of sizes and blocks that is worth a measurement: first that of ``compile_kernel``, then
    by the time that ``uopc.cost`` predicts for so many threads.  None for a kernel that the user's own object
    ranges."""
    if _by_user(root, settings):
        return []
    usual = _blockize(_schedule(root, settings), settings)
    found = {usual: Candidate(usual, None)}
    for plain in schedules(root, settings.target):
        for candidate in block_candidates(plain, settings.target):
            known = found.get(candidate.root)
            if known is None or known.cost is None:
                found[candidate.root] = candidate
    target = replace(settings.target, cores=threads)
    order = sorted(found.values(), key=lambda c: (c.root is not usual, c.seconds(target)))
    return [c._replace(root=c.root.replace(arg=c.root.arg._replace(settled=True))) for c in order]


def make_plan(roots: list[UOp], **fields: Any) -> Plan:
    """The plan that computes ``roots`` (tensor graphs).

    fields: ``fuse_reduce``, ``opt`` and the other fields of ``Options``; where not given, those in force.
    """
    options = replace(current(Options()), **fields)
    roots = graphs(roots, "make_plan")
    return plan_for(sink(*(r if r.op is Ops.STAGE else UOp(Ops.STAGE, (r,), Level.KERNEL) for r in roots)), options)


def graphs(roots: Any, name: str) -> list[UOp]:
    """``roots``; TypeError, naming the function that was given them, for what is no list of tensor graphs."""
    if not isinstance(roots, (list, tuple)) or not all(isinstance(r, UOp) and r.op is not Ops.SINK for r in roots):
        raise TypeError(f"{name} takes a list of tensor graphs, such as [tensor.uop], not {roots!r}")
    return list(roots)


def plan_for(root: UOp, options: Options) -> Plan:
    """The plan of a SINK whose sources are STAGEs.  Its kernels have the usual sizes; ``uopc.runtime.tune`` finds
    others."""
    settings = settings_for(options)
    try:
        return _Split(run_stages(TENSOR_STAGES, root, settings), settings).run()
    except TilesTooLarge:
        if options.fuse_reduce is not None:
            raise
        # rows of a cascade that lie elsewhere in each result may leave blocks with more than was foreseen
        return plan_for(root, replace(options, fuse_reduce=False))
