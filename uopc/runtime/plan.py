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
from uopc.runtime.capture import CaptureError, is_drawn
from uopc.runtime.compiler import compile_sources
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp, sink, toposort

# Plans kept; the least recently used goes first.  Each holds its temporaries' arena.
MAX_PLANS = 1024


@dataclass(frozen=True)
class Executable:
    """A plan with its kernels compiled and its arguments laid out for the native executor.

    input_numbers: the number that each input's BUFFER had in the graph, in the order of the plan's slots.
    outs: (dtype, shape) of each result slot, and out_sizes its bytes.  results: for each root, the slot of its value.
    """

    plan: Plan
    native: NativePlan
    input_numbers: tuple[int, ...]
    outs: tuple[tuple[DType, tuple[int, ...]], ...]
    out_sizes: tuple[int, ...]
    results: tuple[int, ...]

    def run(self, buffers: list[Any], debug: int) -> None:
        """Run all kernels: one native call, or with DEBUG >= 2 one that times each kernel."""
        if debug < 2:
            self.native.run(buffers)
            return
        seconds = self.native.run_timed(buffers)
        again = self.native.run_timed(buffers) if debug >= 3 else []
        for k, call in enumerate(self.plan.calls):
            if debug >= 4:
                print(call.kernel.source)
            print(_line(call.kernel.name, count(call.kernel.linear), seconds[k], again[k] if again else None))

    def run_loudly(self, addresses: list[int]) -> None:
        """A captured function's run under DEBUG."""
        start = time.perf_counter()
        self.run(addresses, environment().debug)
        print(f"jit: {len(self.plan.calls)} kernels, run {(time.perf_counter() - start) * 1e3:.1f} ms")


def _line(name: str, work: Any, seconds: float, again: float | None) -> str:
    """One kernel's line: name, time (and that of its second run), rates."""
    best = max(min(seconds, again) if again is not None else seconds, 1e-9)
    second = f" again {again * 1e3:9.3f} ms" if again is not None else ""
    rates = f"{work.flops / best * 1e-9:8.1f} GFLOP/s {work.moved / best * 1e-9:8.1f} GB/s"
    return f"{name:24s} {seconds * 1e3:9.3f} ms{second} {rates}"


ASKED_FOR_VALUE = (
    "the value of a Tensor that depends on an argument or on random numbers was asked for (bool(), item(), numpy(), a "
    "NumPy function, an index that is checked, ...) while uopc.jit captured the function, which has no values then. Use "
    "where(), masks and other Tensor methods, or pass what decides as a Python number: the function is captured anew for "
    "each value"
)

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
    out_sizes = tuple(sizes[len(plan.inputs) : n_buffers])
    return Executable(plan, native, tuple(plan.input_numbers), tuple(plan.outs), out_sizes, tuple(plan.results))


def _sizes(plan: Plan) -> list[int]:
    """Bytes of each buffer of a plan."""
    flat = [*plan.inputs, *((d, math.prod(shape)) for d, shape in plan.outs), *plan.temps]
    return [d.itemsize * n for d, n in flat]


def normal(roots: list[UOp]) -> tuple[UOp, list[UOp]]:
    """The graph of ``roots`` with its BUFFERs numbered in the order in which they stand, and those BUFFERs.

    A value that is computed already stands for itself: what led to it is left out.
    """
    numbered: dict[UOp, UOp] = {}
    buffers: list[UOp] = []
    for u in toposort(roots):
        memory = u.realized
        if memory is None and u.op is not Ops.BUFFER:
            continue
        buffer = memory if type(memory) is UOp else u
        if buffer not in numbered:
            numbered[buffer] = _numbered(buffer, len(buffers))
            buffers.append(buffer)
        numbered[u] = numbered[buffer]
    staged = [UOp(Ops.STAGE, (r,), Level.KERNEL) if r.op is not Ops.STAGE else r for r in roots]
    graph = sink(*staged).substitute(numbered)
    used = {u for u in toposort(graph) if u.op is Ops.BUFFER}
    if len(used) == len(buffers):
        return graph, buffers
    kept = [b for b in buffers if numbered[b] in used]
    again = {numbered[b]: _numbered(b, k) for k, b in enumerate(kept)}
    return graph.substitute(again), kept


def _numbered(buffer: UOp, number: int) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(number, buffer.dtype, buffer.arg.shape))


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
    return new_buffer(dtype, shape, np.ndarray((size,), dtype.numpy, memory), memory.address), memory  # type: ignore[arg-type]


def realize(roots: list[UOp], options: Options | None = None) -> list[UOp]:
    """Compute tensor graphs in one plan.  Returns the BUFFER that holds each value, which ``root.realized`` then names
    too.

    MemoryError, before anything is half done, where memory for results or temporaries cannot be had; CompilerNotFound
    and CompileError where a kernel is new and cannot be compiled.
    """
    todo = list(dict.fromkeys(r for r in roots if r.realized is None))
    if todo:
        debug = environment().debug
        start = time.perf_counter()
        graph, buffers = normal(todo)
        storages = [b.realized for b in buffers]
        if None in storages or any(map(is_drawn, buffers)):
            raise CaptureError(ASKED_FOR_VALUE)
        made = executable(graph, options if options is not None else current(Options()))
        planned = time.perf_counter()
        results = [_result(dtype, shape) for dtype, shape in made.outs]
        # inputs are in the order in which the plan met them, which may be another than that of the numbers
        inputs = [storages[k].address for k in made.input_numbers]
        made.run([*inputs, *(memory for _, memory in results)], debug)
        if debug >= 1:
            spent = f"schedule {(planned - start) * 1e3:.1f} ms, run {(time.perf_counter() - planned) * 1e3:.1f} ms"
            print(f"realize: {len(made.plan.calls)} kernels, {spent}")
        first_out = len(inputs)
        for root, number in zip(todo, made.results):
            root.realized = (
                results[number - first_out][0] if number >= first_out else buffers[made.input_numbers[number]]
            )
    return [r if r.op is Ops.BUFFER else r.realized for r in roots]
