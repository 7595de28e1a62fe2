"""page: a report as one HTML file that needs nothing else: no network, no server, no library.

What it shows is collected here as JSON; ``page.html`` beside this file draws it: the graph with its cuts, collapsed by
kernel; each stage of each kernel, before and after; loops beside the C that they became; the roofline with the kernels
on it; and what each thread did when.
"""

from __future__ import annotations

import html
import json
import math
import time
from importlib.resources import files
from typing import Any

from uopc.inspect.explain import BUDGET, buffers_of, graph_of, measured, of_graph
from uopc.inspect.formula import formula
from uopc.inspect.report import Report, size
from uopc.ops import ALU, MOVEMENT, Ops
from uopc.options import Options, current
from uopc.pipeline import KERNEL_STAGES, LOOP_STAGES, TENSOR_STAGES, Kernel, Plan, Settings, settings_for
from uopc.runtime.plan import Executable
from uopc.tensor import Tensor
from uopc.uop import UOp, format_graph, toposort

# A stage's text is cut after so many lines: a browser stays quick, and nobody reads further.
MAX_LINES = 1500
# Nodes of a kernel's graph that are drawn; what is beyond is counted.
MAX_NODES = 400


def page(target: Any, *args: Any, title: str = "uopc", **kwargs: Any) -> str:
    """The page of what ``explain(target, *args, **kwargs)`` explains; the plan is run, for times and threads."""
    options = current(Options(Tensor.fuse_reduce, Tensor.opt))
    graph, storages = graph_of(target, args, kwargs)
    report = of_graph(graph, options)
    assert report.plan is not None
    inputs = [storages[k] for k in report.plan.input_numbers]
    made = measured(report, inputs)
    data = {
        "title": title,
        "report": report.to_json(),
        "text": str(report),
        "tensor_stages": _stages(graph, TENSOR_STAGES, settings_for(options)),
        "kernels": _kernels(report.plan, settings_for(options)),
        "calls": _calls(report),
        "buffers": _buffers(report.plan),
        "timeline": _timeline(report.plan, made, inputs),
    }
    template = files("uopc.inspect").joinpath("page.html").read_text(encoding="utf-8")
    # inside a script element only "</" could end it
    return template.replace("__TITLE__", html.escape(title)).replace("__DATA__", json.dumps(data).replace("</", "<\\/"))


def _stages(graph: UOp, steps: Any, settings: Settings) -> list[dict[str, Any]]:
    """The text of a graph before the first step and after each."""
    out = [{"name": "before", "nodes": len(toposort(graph)), "text": _text(graph)}]
    for step in steps:
        graph = step.run(graph, settings)
        out.append({"name": step.name, "nodes": len(toposort(graph)), "text": _text(graph)})
    return out


def _text(graph: UOp) -> str:
    lines = format_graph(graph).splitlines()
    more = len(lines) - MAX_LINES
    return "\n".join([*lines[:MAX_LINES], *([f"... and {more} lines"] if more > 0 else [])])


def _kernels(plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """What is shown of each kernel once, however often it runs."""
    return [
        {
            "name": k.name,
            "stages": _stages(k.start, (*KERNEL_STAGES, *LOOP_STAGES), settings),
            "source": k.source,
            "loops": _loops(k),
            "graph": _nodes(k),
        }
        for k in dict.fromkeys(plan.kernels)
    ]


def _loops(kernel: Kernel) -> list[list[Any]]:
    """The loops of a kernel: [depth, kind, trips, statements inside, first and last line of its C (from 0)]."""
    out: list[list[Any]] = []
    stack: list[list[Any]] = []
    for u in kernel.linear.src:
        if u.op is Ops.RANGE:
            trips = str(u.src[0].arg) if u.src[0].op is Ops.CONST else f"at most {u.vmax + 1}"
            out.append([len(stack), u.arg.axis_type.name.lower(), trips, 0])
            stack.append(out[-1])
        elif u.op is Ops.END:
            stack.pop()
        elif stack:
            stack[-1][3] += 1
    spans = _spans(kernel)
    if len(spans) != len(out):  # a hand-written kernel, or one of another renderer
        spans = [(None, None)] * len(out)
    return [[*loop, *span] for loop, span in zip(out, spans)]


def _spans(kernel: Kernel) -> list[tuple[int | None, int | None]]:
    """The lines of the C of each loop, in the order in which they begin."""
    lines = kernel.source.splitlines()
    begin = next((k for k, line in enumerate(lines) if f"void {kernel.name}_range(" in line), len(lines))
    out: list[tuple[int | None, int | None]] = []
    for k in range(begin, len(lines)):
        text = lines[k].lstrip()
        if lines[k] == "}":
            break
        if text.startswith("for ("):
            indent = lines[k][: len(lines[k]) - len(text)]
            last = next((m for m in range(k, len(lines)) if lines[m] == indent + "}"), k) if text.endswith("{") else k
            out.append((k, last))
    return out


def _nodes(kernel: Kernel) -> list[dict[str, Any]]:
    """The tensor graph of a kernel, movement and constants left out: id, label, sources, kind."""

    def solid(u: UOp) -> UOp:
        while u.op in MOVEMENT or u.op is Ops.STAGE:
            u = u.src[0]
        return u

    numbers: dict[UOp, int] = {}
    out: list[dict[str, Any]] = []
    for u in toposort(kernel.root):
        if solid(u) is not u or u.op in (Ops.CONST, Ops.SINK) or len(out) >= MAX_NODES:
            continue
        sources = [numbers[s] for s in map(solid, u.src) if s in numbers]
        numbers[u] = len(out)
        kind = "buffer" if u.op is Ops.BUFFER else "reduce" if u.op in (Ops.REDUCE, Ops.CASCADE) else "op"
        label = u.op.name.lower() if u.op not in ALU else formula(u, lambda v, u=u: None if v is u else "_")  # type: ignore[misc]
        if u.op is Ops.BUFFER:
            label = f"d{u.arg.slot}"
        if u.op is Ops.REDUCE:
            label = f"{u.arg.op.name.lower()} over {len(u.arg.axes)} axes"
        shape = "" if u.op in (Ops.STORE, Ops.CASCADE) else "x".join(map(str, u.shape))
        out.append({"label": label, "shape": shape, "src": sorted(set(sources)), "kind": kind})
    return out


def _calls(report: Report) -> list[dict[str, Any]]:
    """The kernels in the order in which they run, with the buffers between them."""
    plan = report.plan
    assert plan is not None
    numbers = {k: n for n, k in enumerate(dict.fromkeys(plan.kernels))}
    return [
        {
            "kernel": numbers[call.kernel],
            "value": k.value,
            "writes": [plan.buffer_name(b) for b, _ in call.buffers[: call.kernel.outs]],
            "reads": [plan.buffer_name(b) for b, _ in call.buffers[call.kernel.outs :]],
        }
        for call, k in zip(plan.calls, report.kernels)
    ]


def _buffers(plan: Plan) -> dict[str, str]:
    """What each buffer of a plan is, by its name."""
    sizes = [(d, n) for d, n in plan.inputs] + [(d, math.prod(shape)) for d, shape in plan.outs] + plan.temps
    return {plan.buffer_name(k): f"{d.name}, {size(n * d.itemsize)}" for k, (d, n) in enumerate(sizes)}


def _timeline(plan: Plan, made: Executable, inputs: list[Any]) -> list[list[tuple[int, int, int]]]:
    """For each kernel what each thread did of the fastest of the runs that most threads joined, in ns from the start:
    (thread, start, stop)."""
    buffers = buffers_of(plan, inputs)
    best: tuple[int, int] | None = None
    seen: list[list[tuple[int, int, int]]] = []
    stop = time.monotonic() + BUDGET
    while best is None or time.monotonic() < stop:
        run = made.native.run_timeline(buffers)
        spans = [span for kernel in run for span in kernel]
        took = max((s[2] for s in spans), default=0) - min((s[1] for s in spans), default=0)
        score = -len({s[0] for s in spans}), took
        if best is None or score < best:
            best, seen = score, run
    first = min((start for kernel in seen for _, start, _ in kernel), default=0)
    return [[(thread, start - first, stop - first) for thread, start, stop in kernel] for kernel in seen]
