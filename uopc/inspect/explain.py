"""explain: what a plan will do and why, computed from the plan alone.

Each kernel with its loops, its work, the recompute factor of each of its reductions and the time that the roofline of
this machine predicts; then what was decided: every value that could be written down or computed again, with predicted
costs of both, every cascade that was derived or refused, and what options overrode.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from uopc.cascade import derivations
from uopc.inspect.formula import formula
from uopc.inspect.predict import predict
from uopc.inspect.recompute import reductions, reductions_of_loops
from uopc.inspect.report import CascadeReport, DecisionReport, KernelReport, Report
from uopc.inspect.roofline import Roofline, roofline
from uopc.inspect.work import loop_nest, work
from uopc.jit import Jit
from uopc.kernelize import decisions
from uopc.ops import Ops
from uopc.options import Options, current
from uopc.pipeline import (
    LOOP_STAGES,
    REDUCTION_STAGES,
    VALUE_STAGES,
    Call,
    Kernel,
    Plan,
    Settings,
    plan_for,
    prices,
    run_stages,
    settings_for,
)
from uopc.render_c import render_c
from uopc.runtime import Memory
from uopc.runtime.plan import Executable, compile_plan, normal
from uopc.runtime.tune import Tuning, tuned
from uopc.tensor import Tensor
from uopc.uop import UOp, toposort

# The measured time is that of the fastest run of those that fit in so many seconds, and of at least so many.
BUDGET = 0.3
LEAST_RUNS = 3


def explain(target: Any, *args: Any, measure: bool = False, **kwargs: Any) -> Report:
    """What computing ``target`` will do: its kernels, their predicted times, and the decisions behind them.

    target: a Tensor; several in a list or tuple; a function of ``args`` and ``kwargs`` (arrays or Tensors) that returns
    such; or a loop program (a SINK).  Nothing is run; with ``measure`` each kernel is, on arrays of zeros where an
    input has no memory, and with ``options(tune=n)`` so are the schedules of kernels that nobody has measured yet.
    TypeError for anything else.
    """
    options = current(Options(Tensor.fuse_reduce, Tensor.opt))
    if isinstance(target, UOp) and target.op is Ops.SINK:
        return _of_loops(target, options, measure)
    graph, storages = graph_of(target, args, kwargs)
    report = of_graph(graph, options)
    if measure:
        assert report.plan is not None
        measured(report, [storages[k] for k in report.plan.input_numbers])
    return report


def graph_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[UOp, list[Any]]:
    """The numbered graph of what is to be explained, and the memory behind its BUFFERs."""
    graph, buffers = normal(list(dict.fromkeys(_roots(target, args, kwargs))))
    return graph, [b.realized for b in buffers]


def _roots(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[UOp]:
    """The tensor graphs of what is to be explained."""
    if callable(target) and not isinstance(target, Tensor):
        fn = target.__wrapped__ if isinstance(target, Jit) else target
        target = fn(*(Tensor(x) if isinstance(x, np.ndarray) else x for x in args), **kwargs)
    elif args or kwargs:
        raise TypeError("explain takes further arguments only after a function")
    found: list[UOp] = []
    stack = [target]
    while stack:
        x = stack.pop(0)
        if isinstance(x, Tensor):
            found.append(x.uop)
        elif isinstance(x, (list, tuple)):
            stack[:0] = x
        elif isinstance(x, dict):
            stack[:0] = x.values()
        elif x is not None and not isinstance(x, (bool, int, float, str, np.generic, np.ndarray)):
            raise TypeError(f"explain takes Tensors, or a function that returns Tensors, not a {type(x).__name__}")
    if not found:
        raise TypeError(f"explain found no Tensor in {target!r}")
    return found


def of_graph(graph: UOp, options: Options) -> Report:
    """The report of a numbered graph (a SINK of STAGEs)."""
    settings = settings_for(options)
    plan, tunings = tuned(plan_for(graph, options), options) if options.tune else (plan_for(graph, options), {})
    roof = roofline()
    known = {k: kernel_report(k, settings, roof, tunings.get(k)) for k in dict.fromkeys(plan.kernels)}
    kernels = []
    for call, since in zip(plan.calls, _since(plan.calls, known)):
        report = known[call.kernel]
        writes, reads = _arguments(call, plan)
        predicted = predict(report.work, call.kernel, roof, settings.target, since)
        kernels.append(replace(report, predicted=predicted, value=_value_of(call, plan), writes=writes, reads=reads))
    temps = [(d.name, n, n * d.itemsize) for d, n in plan.temps]
    graph = run_stages(VALUE_STAGES, graph, settings)
    made = _decisions(run_stages(REDUCTION_STAGES, graph, settings), settings)
    return Report(kernels, temps, made, _cascades(graph, settings), roof, options, plan)


def _arguments(call: Call, plan: Plan) -> tuple[list[str], list[str]]:
    """The buffers that a call writes and reads, with their shapes."""
    shapes = {
        u.arg.slot: "x".join(map(str, u.arg.shape)) or "scalar"
        for u in toposort(call.kernel.root)
        if u.op is Ops.BUFFER
    }
    names = [f"{plan.buffer_name(b)}[{shapes.get(slot, '')}]" for slot, (b, _) in enumerate(call.buffers)]
    return names[: call.kernel.outs], names[call.kernel.outs :]


def _since(calls: list[Call], known: dict[Kernel, KernelReport]) -> list[dict[int, int]]:
    """For each call and slot, how many bytes were moved since that buffer was last used, in a plan that runs again and
    again.  Who reads a small part of a buffer leaves the rest where it was."""
    uses = [
        [(a.slot, call.buffers[a.slot][0], a.read + a.written) for a in known[call.kernel].work.arguments]
        for call in calls
    ]
    whole: dict[int, int] = {}
    for _, b, nbytes in (use for of_call in uses for use in of_call):
        whole[b] = max(whole.get(b, 0), nbytes)
    moved, last = 0, dict.fromkeys(whole, 0)
    out: list[dict[int, int]] = []
    for of_call in (*uses, *uses):
        out.append({slot: moved - last[b] for slot, b, _ in of_call})
        last.update((b, moved) for _, b, nbytes in of_call if 2 * nbytes >= whole[b])
        moved += sum(nbytes for _, _, nbytes in of_call)
    return out[len(calls) :]


def kernel_report(kernel: Kernel, settings: Settings, roof: Roofline, tuning: Tuning | None = None) -> KernelReport:
    """One kernel, apart from its place in a plan."""
    done = work(kernel.linear, settings.target)
    return KernelReport(
        name=kernel.name,
        value="",
        loops=loop_nest(kernel.linear),
        work=done,
        reductions=reductions(kernel, settings),
        predicted=predict(done, kernel, roof, settings.target),
        tuning=tuning,
    )


def _value_of(call: Call, plan: Plan) -> str:
    """What a call computes, of the plan's buffers."""

    def name(u: UOp) -> str | None:
        return plan.buffer_name(call.buffers[u.arg.slot][0]) if u.op is Ops.BUFFER else _cascade_names(u)

    stores = [u for u in call.kernel.root.src if u.op is Ops.STORE]
    # stores to one buffer are its parts, side by side: the first stands for all
    shown = stores if call.kernel.outs > 1 else stores[:1]
    return "; ".join(formula(s.src[1], name) for s in shown)


def _cascade_names(u: UOp) -> str | None:
    return f"y{u.arg.component + 1}" if u.op in (Ops.COMPONENT, Ops.STATE) else None


def _of_loops(program: UOp, options: Options, measure: bool) -> Report:
    """A loop program written by hand."""
    if measure:
        raise TypeError("a loop program has no arrays to be measured with; time its Program")
    settings, roof = settings_for(options), roofline()
    linear = run_stages(LOOP_STAGES, program, settings)
    kernel = Kernel("program", render_c(linear, "program"), linear, program)
    done = work(linear, settings.target)
    report = KernelReport(
        name="program",
        value="",
        loops=loop_nest(linear),
        work=done,
        reductions=reductions_of_loops(program, settings),
        predicted=predict(done, kernel, roof, settings.target),
    )
    return Report([report], [], [], [], roof, options, None)


# ------------------------------------------------------------------------------------------------------ decisions --


def _decisions(graph: UOp, settings: Settings) -> list[DecisionReport]:
    """What kernelize decided about the graph that it is given."""
    out, fuse_reduce = [], settings.options.fuse_reduce
    for d in decisions(graph, fuse_reduce, settings.target, prices(settings)):
        shape = "x".join(map(str, d.value.shape)) or "scalar"
        out.append(
            DecisionReport(
                value=formula(d.value, _cascade_names),
                shape=shape,
                written=d.written,
                recompute_seconds=d.fused,
                write_seconds=d.cut,
                factor=d.evaluations / d.size if d.size else 0.0,
                reason=d.reason,
                overridden=d.written != d.model and fuse_reduce is not None,
            )
        )
    return out


def _cascades(graph: UOp, settings: Settings) -> list[CascadeReport]:
    """Dependent reductions: those that became one, and those that did not, with the reason."""
    out = []
    fuse_reduce = settings.options.fuse_reduce
    for found in derivations(graph, settings.target):
        reason = found.reason
        if reason is None and fuse_reduce is not None:
            reason = f"fuse_reduce={fuse_reduce} asks for another way"
        out.append(
            CascadeReport(
                derived=reason is None,
                reason=reason or "",
                length=found.axis_length,
                state=list(found.state),
                step=list(found.step),
                merge=list(found.merge),
                anchored=list(found.anchored),
                deferred=list(found.deferred),
            )
        )
    return out


# ------------------------------------------------------------------------------------------------------ measuring --


def buffers_of(plan: Plan, storages: list[Any]) -> list[Any]:
    """Memory for each input and output of a plan: the user's where it stands, else zeros."""
    out: list[Any] = []
    for (dtype, n), storage in zip(plan.inputs, storages):
        if storage is not None:
            out.append(storage.address)
        else:
            memory = Memory(max(n * dtype.itemsize, 1))
            np.frombuffer(memory, np.uint8)[:] = 0  # type: ignore[call-overload]
            out.append(memory)
    out += [Memory(max(d.itemsize * math.prod(shape), 1)) for d, shape in plan.outs]
    return out


def measured(report: Report, storages: list[Any]) -> Executable:
    """Run the plan of a report, and add the time of each kernel."""
    assert report.plan is not None
    made = compile_plan(report.plan)
    buffers = buffers_of(report.plan, storages)
    best = made.native.run_timed(buffers)
    runs, stop = 1, time.perf_counter() + BUDGET
    while runs < LEAST_RUNS or time.perf_counter() < stop:
        best = [min(a, b) for a, b in zip(best, made.native.run_timed(buffers))]
        runs += 1
    report.kernels = [k.with_time(seconds) for k, seconds in zip(report.kernels, best)]
    return made
