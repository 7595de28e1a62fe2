"""Plans at work: tensor graphs in, memory that holds their values out.

A plan is made once for each graph structure (the graph with its arrays numbered, and the options in force) and kept
with its compiled kernels and the arena of its temporaries.  A later graph of the same structure only allocates its
results and launches.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from uopc._hot.runtime import Memory, NativePlan
from uopc.count import count
from uopc.dtype import DType
from uopc.ops import Level, Ops, ParamArg
from uopc.options import Options, current, environment
from uopc.pipeline import Plan, plan_for
from uopc.runtime.compiler import compile_sources
from uopc.runtime.storage import Storage, new_buffer
from uopc.uop import UOp, sink, toposort

# Plans kept; the least recently used goes first.  Each holds its temporaries' arena.
MAX_PLANS = 1024


@dataclass(frozen=True)
class Executable:
    """A plan with its kernels compiled and its arguments laid out for the native executor."""

    plan: Plan
    native: NativePlan

    def run(self, inputs: list[Any], results: list[Any], debug: int) -> None:
        """Run all kernels: one native call, or with DEBUG >= 2 one that times each kernel."""
        buffers = [*inputs, *results]
        if debug < 2:
            self.native.run(buffers)
            return
        seconds = self.native.run_timed(buffers)
        again = self.native.run_timed(buffers) if debug >= 3 else []
        for k, call in enumerate(self.plan.calls):
            if debug >= 4:
                print(call.kernel.source)
            print(_line(call.kernel.name, count(call.kernel.linear), seconds[k], again[k] if again else None))


def _line(name: str, work: Any, seconds: float, again: float | None) -> str:
    """One kernel's line: name, time (and that of its second run), rates."""
    best = max(min(seconds, again) if again is not None else seconds, 1e-9)
    second = f" again {again * 1e3:9.3f} ms" if again is not None else ""
    rates = f"{work.flops / best * 1e-9:8.1f} GFLOP/s {work.moved / best * 1e-9:8.1f} GB/s"
    return f"{name:24s} {seconds * 1e3:9.3f} ms{second} {rates}"


_executables: OrderedDict[tuple[UOp, Options], Executable] = OrderedDict()


def compile_plan(plan: Plan) -> Executable:
    """Compile what is not compiled yet, all at once.  CompilerNotFound, CompileError: see ``uopc.runtime.compiler``."""
    sources = list(dict.fromkeys(k.source for k in plan.kernels))
    libraries = dict(zip(sources, compile_sources(sources)))
    sizes = _sizes(plan)
    n_buffers = len(plan.inputs) + len(plan.outs)
    dtypes = [*(d for d, _ in plan.inputs), *(d for d, _ in plan.outs), *(d for d, _ in plan.temps)]
    calls = [
        (
            libraries[call.kernel.source],
            call.kernel.name,
            [(number, at * dtypes[number].itemsize) if at else number for number, at in call.buffers],
        )
        for call in plan.calls
    ]
    written = range(len(plan.inputs), n_buffers)
    native = NativePlan(calls, n_buffers, sizes[n_buffers:], sizes=sizes[:n_buffers], written=written)
    return Executable(plan, native)


def _sizes(plan: Plan) -> list[int]:
    """Bytes of each buffer of a plan."""
    flat = [*plan.inputs, *((d, math.prod(shape)) for d, shape in plan.outs), *plan.temps]
    return [d.itemsize * n for d, n in flat]


def _normal(roots: list[UOp]) -> tuple[UOp, list[Storage]]:
    """The graph of ``roots`` with its arrays numbered in the order in which they stand, and those arrays.

    A value that is computed already stands for itself: what led to it is left out.
    """
    numbered: dict[UOp, UOp] = {}
    storages: list[Storage] = []
    for u in toposort(roots):
        memory = u.realized
        if memory is None:
            continue
        if type(memory) is UOp:
            buffer, memory = memory, memory.realized
        else:
            buffer = u
        if buffer not in numbered:
            numbered[buffer] = UOp(Ops.BUFFER, (), ParamArg(len(storages), buffer.dtype, buffer.arg.shape))
            storages.append(memory)
        numbered[u] = numbered[buffer]
    staged = [UOp(Ops.STAGE, (r,), Level.KERNEL) if r.op is not Ops.STAGE else r for r in roots]
    graph = sink(*staged).substitute(numbered)
    used = {u for u in toposort(graph) if u.op is Ops.BUFFER}
    if len(used) == len(storages):
        return graph, storages
    kept = [k for k, b in enumerate(dict.fromkeys(numbered.values())) if b in used]
    again = {
        b: UOp(Ops.BUFFER, (), ParamArg(kept.index(k), b.dtype, b.arg.shape))
        for k, b in enumerate(dict.fromkeys(numbered.values()))
        if b in used
    }
    return graph.substitute(again), [storages[k] for k in kept]


def executable(graph: UOp, options: Options) -> Executable:
    """The executable of a numbered graph, made at its first use."""
    key = (graph, options)
    found = _executables.get(key)
    if found is not None:
        _executables.move_to_end(key)
        return found
    found = _executables[key] = compile_plan(plan_for(graph, options))
    if len(_executables) > MAX_PLANS:
        _executables.popitem(last=False)
    return found


def _result(dtype: DType, shape: tuple[int, ...]) -> tuple[UOp, Memory]:
    """Memory for a result, and its BUFFER."""
    size = math.prod(shape)
    memory = Memory(size * dtype.itemsize)
    return new_buffer(dtype, shape, np.ndarray((size,), dtype.numpy, memory)), memory


def realize(roots: list[UOp], options: Options | None = None) -> list[UOp]:
    """Compute tensor graphs in one plan.  Returns the BUFFER that holds each value, which ``root.realized`` then names
    too.

    MemoryError, before anything is half done, where memory for results or temporaries cannot be had; CompilerNotFound
    and CompileError where a kernel is new and cannot be compiled.
    """
    todo = list(dict.fromkeys(r for r in roots if r.op is not Ops.BUFFER and r.realized is None))
    if todo:
        debug = environment().debug
        start = time.perf_counter()
        graph, storages = _normal(todo)
        made = executable(graph, options if options is not None else current(Options()))
        planned = time.perf_counter()
        results = [_result(dtype, shape) for dtype, shape in made.plan.outs]
        # inputs are in the order in which the plan met them, which may be another than that of the numbers
        inputs = [storages[k].address for k in made.plan.input_numbers]
        made.run(inputs, [memory for _, memory in results], debug)
        if debug >= 1:
            spent = f"schedule {(planned - start) * 1e3:.1f} ms, run {(time.perf_counter() - planned) * 1e3:.1f} ms"
            print(f"realize: {len(made.plan.calls)} kernels, {spent}")
        first_out = len(made.plan.inputs)
        for root, number in zip(todo, made.plan.results):
            root.realized = results[number - first_out][0]
    return [r if r.op is Ops.BUFFER else r.realized for r in roots]
