"""Plans at work: tensor graphs in, memory that holds their values out.

A plan is made once for each graph structure (the graph with its arrays numbered, and the options in force) and kept
with its compiled kernels and the arena of its temporaries.  A later graph of the same structure only allocates its
results and launches.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uopc._hot.runtime import DefaultFloats, Library, Memory, NativePlan, get_num_threads
from uopc.dtype import DType, by_name
from uopc.limits import explained
from uopc.memo import SHAPES, Memo
from uopc.ops import Level, Ops, ParamArg
from uopc.options import Options, current, environment
from uopc.runtime.capture import CaptureError, is_drawn
from uopc.runtime.compiler import Kernels, disk_cache, toolchain
from uopc.runtime.records import Record, record_key, unpack
from uopc.runtime.storage import new_buffer
from uopc.runtime.units import Source
from uopc.uop import UOp, sink, toposort

if TYPE_CHECKING:
    from uopc.pipeline import Plan

MAX_BYTES = 1 << 47  # no address space holds more
MAX_PLANS = 1024  # each holds its temporaries' arena and its kernels' libraries

ASKED_FOR_VALUE = (
    "the value of a Tensor that depends on an argument or on random numbers was asked for (bool(), item(), numpy(), a "
    "NumPy function, an index that is checked, ...) while uopc.jit captured the function, which has no values then. "
    "Use where(), masks and other Tensor methods, or pass what decides as a Python number: the function is captured "
    "anew for each value"
)


class Executable(NamedTuple):
    """A plan with its kernels compiled and its arguments laid out for the native executor.

    input_numbers: the number that each input's BUFFER had in the graph, in the order of the plan's slots.
    outs: (dtype, shape) of each result slot, and out_sizes its bytes.  results: for each root, the slot of its value.
    plan: None where the plan was found on disk, or nobody will ask for it.
    """

    native: NativePlan
    n_kernels: int
    input_numbers: tuple[int, ...]
    outs: tuple[tuple[DType, tuple[int, ...]], ...]
    out_sizes: tuple[int, ...]
    results: tuple[int, ...]
    plan: Plan | None

    def run(self, buffers: list[Any], debug: int) -> None:
        """Run all kernels: one native call, or with DEBUG >= 2 one that times each kernel."""
        if debug < 2 or self.plan is None:
            self.native.run(buffers)
            return
        from uopc.count import count

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
        print(f"jit: {self.n_kernels} kernels, run {(time.perf_counter() - start) * 1e3:.1f} ms")


def _line(name: str, work: Any, seconds: float, again: float | None) -> str:
    """One kernel's line: name, time (and that of its second run), rates."""
    best = max(min(seconds, again) if again is not None else seconds, 1e-9)
    second = f" again {again * 1e3:9.3f} ms" if again is not None else ""
    rates = f"{work.flops / best * 1e-9:8.1f} GFLOP/s {work.moved / best * 1e-9:8.1f} GB/s"
    return f"{name:24s} {seconds * 1e3:9.3f} ms{second} {rates}"


# ---------------------------------------------------------------------------------------------------- making plans --

_executables: Memo[tuple[UOp, Options, int], Executable] = Memo(MAX_PLANS)


def compile_plan(plan: Plan, key: str | None = None) -> Executable:
    """Compile what is not compiled yet, all at once.  CompilerNotFound, CompileError: see ``uopc.runtime.compiler``.

    key: of the record to keep on disk, if any.
    """
    sources = list(dict.fromkeys(Source(k.name, k.source) for k in plan.kernels))
    kernels = Kernels()
    libraries = kernels.compile(sources)
    record = _record(plan, sources, [kernels.key(source) for source in sources])
    cache = disk_cache()
    if key is not None and cache is not None:
        cache.keep_note(key, record.pack())
    return _assemble(record, libraries, plan)


def _record(plan: Plan, sources: list[Source], keys: list[str]) -> Record:
    dtypes = [d for d, _ in (*plan.inputs, *plan.outs, *plan.temps)]
    numbers = {source: k for k, source in enumerate(sources)}
    calls = []
    for call in plan.calls:
        places = tuple((number, at * dtypes[number].itemsize) for number, at in call.buffers)
        calls.append((numbers[Source(call.kernel.name, call.kernel.source)], places))
    return Record(
        kernels=tuple((key, source.symbol) for key, source in zip(keys, sources)),
        calls=tuple(calls),
        inputs=tuple((d.name, n) for d, n in plan.inputs),
        input_numbers=tuple(plan.input_numbers),
        outs=tuple((d.name, tuple(shape)) for d, shape in plan.outs),
        temps=tuple((d.name, n) for d, n in plan.temps),
        results=tuple(plan.results),
    )


def _assemble(record: Record, libraries: list[Library], plan: Plan | None) -> Executable:
    inputs = [by_name(name).itemsize * n for name, n in record.inputs]
    outs = [(by_name(name), shape) for name, shape in record.outs]
    out_sizes = [d.itemsize * math.prod(shape) for d, shape in outs]
    temps = [by_name(name).itemsize * n for name, n in record.temps]
    too_large = [n for n in (*out_sizes, *temps) if n > MAX_BYTES]
    if too_large:
        raise MemoryError(f"a result or temporary of {too_large[0]} bytes is more than memory can hold")
    calls = [(libraries[k], record.kernels[k][1], places) for k, places in record.calls]
    n_buffers = len(inputs) + len(outs)
    written = range(len(inputs), n_buffers)
    native = NativePlan(calls, n_buffers, temps, sizes=[*inputs, *out_sizes], written=written)
    numbers, results = record.input_numbers, record.results
    return Executable(native, len(calls), numbers, tuple(outs), tuple(out_sizes), results, plan)


def _from_disk(key: str) -> Executable | None:
    """The executable of a plan whose record and kernels are all on disk."""
    cache = disk_cache()
    record = unpack(cache.note(key)) if cache else None
    if record is None:
        return None
    libraries = Kernels().load([key for key, _ in record.kernels])
    return None if libraries is None else _assemble(record, libraries, None)


def normal(roots: list[UOp]) -> tuple[UOp, list[UOp]]:
    """The graph of ``roots`` with its BUFFERs numbered in the order in which they stand, and those BUFFERs.

    A value that is computed already stands for itself: what led to it is left out.  So does the value of an ALIAS.
    """
    numbered: dict[UOp, Any] = {}  # by a node, or by what a function gives for it
    buffers: list[UOp] = []
    computed = False
    for u in toposort(roots):
        memory = u.realized
        if memory is None and u.op is Ops.ALIAS:
            numbered[u] = _value
            computed = computed or len(u.src) > 1  # what the second source alone reads is left out
            continue
        if memory is None and u.op is not Ops.BUFFER:
            continue
        if type(memory) is UOp:
            buffer, computed = memory, True
        else:
            buffer = u
        if buffer not in numbered:
            numbered[buffer] = _numbered(len(buffers), buffer.dtype, buffer.arg.shape)
            buffers.append(buffer)
        numbered[u] = numbered[buffer]
    staged = [UOp(Ops.STAGE, (r,), Level.KERNEL) if r.op is not Ops.STAGE else r for r in roots]
    graph = sink(*staged).substitute(numbered)
    if not computed:
        return graph, buffers
    used = {u for u in toposort(graph) if u.op is Ops.BUFFER}
    kept = [b for b in buffers if numbered[b] in used]
    again = {numbered[b]: _numbered(k, b.dtype, b.arg.shape) for k, b in enumerate(kept)}
    return graph.substitute(again), kept


def _value(alias: UOp) -> UOp:
    return alias.src[0]


@lru_cache(maxsize=SHAPES)
def _numbered(number: int, dtype: DType, shape: tuple[int, ...]) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(number, dtype, shape))


def executable(graph: UOp, options: Options) -> Executable:
    """The executable of a numbered graph, made at its first use."""
    key = (graph, options, get_num_threads() if options.tune else 0)
    found = _executables.get(key)
    if found is None:
        # the constants of kernels that others load must not depend on how this thread rounds
        with DefaultFloats(), explained("to make a plan"):
            found = _made(graph, options)
        _executables[key] = found
    return found


def _made(graph: UOp, options: Options) -> Executable:
    """From disk, or by all passes and the compiler."""
    env = environment()
    # what prints or checks the stages needs them
    name = None if env.debug or env.verify or env.dump else record_key(graph, options, toolchain())
    found = _from_disk(name) if name else None
    if found is None:
        from uopc.pipeline import plan_for

        plan = plan_for(graph, options)
        if options.tune:
            from uopc.runtime.tune import tuned

            plan, tunings = tuned(plan, options)
            if env.debug >= 2:
                for kernel, tuning in tunings.items():
                    print(f"{kernel.name:24s} {tuning}")
        found = compile_plan(plan, name)
        if env.debug < 2:  # which prints of each kernel: its graphs take many times what running it does
            found = found._replace(plan=None)
    return found


def _result(dtype: DType, shape: tuple[int, ...]) -> tuple[UOp, Memory]:
    """Memory for a result, and its BUFFER."""
    size = math.prod(shape)
    memory = Memory(size * dtype.itemsize)
    return new_buffer(dtype, shape, np.ndarray((size,), dtype.numpy, memory)), memory  # type: ignore[arg-type]


def realize(roots: list[UOp], options: Options | None = None) -> list[UOp]:
    """Compute tensor graphs in one plan.  Returns the BUFFER that holds each value, which ``root.realized`` then names
    too.

    MemoryError, before anything is half done, where memory for results or temporaries cannot be had; CompilerNotFound
    and CompileError where a kernel is new and cannot be compiled.
    """
    if not isinstance(roots, (list, tuple)) or not all(isinstance(r, UOp) for r in roots):
        raise TypeError(f"realize takes a list of tensor graphs, such as [tensor.uop], not {roots!r}")
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
            print(f"realize: {made.n_kernels} kernels, {spent}")
        first_out = len(inputs)
        for root, number in zip(todo, made.results):
            root.realized = (
                results[number - first_out][0] if number >= first_out else buffers[made.input_numbers[number]]
            )
    return [r if r.op is Ops.BUFFER else r.realized for r in roots]
