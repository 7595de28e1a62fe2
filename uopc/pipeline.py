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
from uopc.agree import agree
from uopc.blockize import block_candidates, blockize
from uopc.cascade import cascade
from uopc.cost import Candidate
from uopc.decompose import decompose
from uopc.fusion import Price
from uopc.kernelize import kernelize
from uopc.linearize import linearize
from uopc.memo import Memo
from uopc.ops import KernelInfo, Level, Ops, Stage
from uopc.opt.accumulate import accumulate
from uopc.opt.expand import expand
from uopc.opt.layout import layout_pass
from uopc.opt.prefetch import prefetch
from uopc.opt.schedule import schedule, schedules
from uopc.opt.stream import stream
from uopc.opt.transpose import transpose
from uopc.opt.words import words
from uopc.options import Options, current, environment
from uopc.outline import Outline, buffer_of, outline
from uopc.price import copies_pay, price
from uopc.rangeify import Ctx, Opts, lower_stores
from uopc.render_c import TilesTooLarge, render_c
from uopc.runtime.device import host
from uopc.simplify import simplify
from uopc.split import split
from uopc.summation import summation
from uopc.target import Target
from uopc.uop import DType, UOp, format_graph, sink, without_aliases
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
    options, roots = settings.options, list(root.src)
    if options.opt is not None:
        return sink(*options.opt.layout(roots))
    pays = None if options.fuse_reduce is not None else lambda value: copies_pay(value, settings.target)
    return sink(*layout_pass(roots, pays))


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


def prices(settings: Settings) -> Price | None:
    """By what ``kernelize`` weighs kernels; None where the options say what is written down, or make the kernels."""
    options = settings.options
    if options.fuse_reduce is not None or options.opt is not None:
        return None
    return lambda value: price(value, settings.target)


VALUE_STAGES = (  # what each value is, before it is asked how it is computed
    Step("widen", lambda g, s: widen(g), Stage.TENSOR),
    Step("summation", lambda g, s: summation(g) if s.options.batch_invariant else g, Stage.TENSOR),
)
REDUCTION_STAGES = (  # which reductions there are, before it is decided what is written down
    Step("cascade", lambda g, s: cascade(g, s.options.fuse_reduce, s.target), Stage.TENSOR),
    Step("split", lambda g, s: g if s.options.fuse_reduce is True else split(g), Stage.TENSOR),
)
TENSOR_STAGES = (
    *VALUE_STAGES,
    *REDUCTION_STAGES,
    Step("kernelize", lambda g, s: kernelize(g, s.options.fuse_reduce, s.target, prices(s)), Stage.TENSOR),
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
        return len({buffer_of(s.src[0]) for s in self.root.src})

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
    roots = without_aliases(graphs(roots, "make_plan"))
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
        return _plan(outline(run_stages(TENSOR_STAGES, root, settings)), settings)
    except TilesTooLarge:
        if options.fuse_reduce is not None:
            raise
        # rows of a cascade that lie elsewhere in each result may leave blocks with more than was foreseen
        return plan_for(root, replace(options, fuse_reduce=False))


def _plan(parts: Outline, settings: Settings) -> Plan:
    """The plan of an outline: its kernels compiled."""
    calls = [Call(compile_kernel(root, settings), places) for root, places in parts.calls]
    inputs = [(u.dtype, math.prod(u.arg.shape)) for u in parts.inputs]
    slots = [u.arg.slot for u in parts.inputs]
    temps = [(u.dtype, math.prod(u.shape)) for u in parts.temps]
    outs = [(u.dtype, u.shape) for u in parts.outs]
    return Plan(calls, inputs, slots, outs, temps, parts.results)
