"""commands: ``info``, ``explain``, ``sweep`` and ``bench`` of ``python -m uopc``.

Each function adds its parser; what it needs to run is imported when it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], int]
# Adds a subcommand of a name, a summary, examples and what runs; given by __main__.
Command = Callable[[str, str, str, Run], argparse.ArgumentParser]


# ----------------------------------------------------------------------------------------------------------- info --


def add_info(command: Command) -> None:
    """``info``: the machine."""
    parser = command(
        "info",
        "show the processor, caches, threads, compiler, and what they reach: peak and bandwidths",
        "  python -m uopc info\n"
        "  python -m uopc info --again --json\n\n"
        "Rates are measured once, which takes a second, and kept beside the cache of kernels.",
        _info,
    )
    parser.add_argument("--again", action="store_true", help="measure again")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _info(chosen: argparse.Namespace) -> int:
    from dataclasses import asdict

    from uopc.inspect.report import duration, number, size
    from uopc.inspect.roofline import roofline
    from uopc.inspect.sweep.results import environment
    from uopc.runtime.compiler import CompilerNotFound, cache_folder
    from uopc.runtime.device import device

    machine = device()
    try:
        roof, where = roofline(again=chosen.again), environment()
    except CompilerNotFound as missing:
        print(f"rates are unknown: {missing}", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps({**where, "roofline": asdict(roof), "cache": cache_folder()}, indent=1))
        return 0
    target = machine.target
    caches = ", ".join(f"L{k} {size(cache.size)}" for k, cache in enumerate(target.caches, 1))
    lines = [
        ("uopc", f"{where['uopc']} on Python {where['python']}, NumPy {where['numpy']}"),
        ("processor", machine.cpu_model),
        ("cores", f"{target.cores} usable, {where['threads']} threads in use"),
        ("target", f"{target.name}: {target.describe()}"),
        ("caches", caches),
        ("compiler", where["compiler"]),
        ("cache", cache_folder()),
    ]
    several = [(f"{roof.all.threads} threads", roof.all)] if roof.all.threads > 1 else []
    for title, rates in (("1 thread", roof.one), *several):
        reads = ", ".join(f"{level} {number(x)}B/s" for level, x in rates.read.items())
        copies = ", ".join(f"{level} {number(x)}B/s" for level, x in rates.copy.items())
        lines += [(title, f"{number(rates.flops)}FLOP/s float32, launch {duration(rates.launch)}")]
        lines += [("", f"read  {reads}"), ("", f"copy  {copies}")]
    for name, text in lines:
        print(f"{name:10s} {text}")
    return 0


# -------------------------------------------------------------------------------------------------------- explain --


def add_explain(command: Command) -> None:
    """``explain``: what a function's plan does."""
    parser = command(
        "explain",
        "show what a function compiles to, what it computes again, and why",
        "  python -m uopc explain script.py:attention --shape 1024x64\n"
        "  python -m uopc explain package.module:loss --n 4096 --measure --json\n"
        "  python -m uopc explain script.py:attention --html report.html\n\n"
        "Each parameter of the function is given a Tensor of the shape; where the module has a function inputs(n),\n"
        "what that returns is taken instead.",
        _explain,
    )
    parser.add_argument("function", help="module:function or file.py:function")
    parser.add_argument("--shape", action="append", help="of the parameters, as 1024x64; once for all, or one for each")
    parser.add_argument("--n", type=int, default=512, help="what inputs(n) is given, and rows of inputs (512)")
    parser.add_argument("--d", type=int, default=64, help="columns of inputs (64)")
    parser.add_argument("--fuse-reduce", choices=("auto", "yes", "no"), default="auto", help="as uopc.options (auto)")
    parser.add_argument("--measure", action="store_true", help="run it, and say how long each kernel took")
    parser.add_argument("--tune", type=int, metavar="N", help="measure N schedules of each kernel (UOPC_TUNE, or 0)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--html", metavar="FILE", help="write one file with graph, stages, C, roofline and threads")


def _explain(chosen: argparse.Namespace) -> int:
    from uopc.inspect.explain import explain
    from uopc.inspect.sweep.problems import Problem, find_user
    from uopc.options import options

    try:
        user = find_user(chosen.function)
        arrays = Problem(chosen.function, chosen.n, chosen.d).inputs()
        if chosen.shape:
            arrays = _of_shapes(chosen.shape, user.arity)
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    fuse = {"auto": None, "yes": True, "no": False}[chosen.fuse_reduce]
    chosen_options: dict[str, Any] = {} if fuse is None else {"fuse_reduce": fuse}
    if chosen.tune is not None:
        chosen_options["tune"] = chosen.tune
    with options(**chosen_options):
        if chosen.html:
            from uopc.inspect.page import page

            with open(chosen.html, "w", encoding="utf-8") as file:
                file.write(page(user.function, *arrays, title=chosen.function))
            print(f"{chosen.html} is written", file=sys.stderr)
            return 0
        report = explain(user.function, *arrays, measure=chosen.measure)
    if chosen.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        report.show()
    return 0


def _of_shapes(texts: list[str], arity: int) -> list[Any]:
    import numpy as np

    shapes = [tuple(int(n) for n in text.split("x") if n) for text in texts]
    shapes = shapes * arity if len(shapes) == 1 else shapes
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


# ---------------------------------------------------------------------------------------------------------- sweep --


def add_sweep(command: Command) -> None:
    """``sweep``: implementations beside each other over sizes."""
    parser = command(
        "sweep",
        "time a computation by several implementations over a range of sizes",
        "  python -m uopc sweep attention --n 256:16384:x2 --impl unfused,recompute,online,derived,torch\n"
        "  python -m uopc sweep matmul --n 128:2048:x2 --plot matmul.png --csv matmul.csv\n"
        "  python -m uopc sweep mymodule.py:attention --n 256:4096:x2 --resume\n\n"
        "Implementations run in processes of their own, in turns.  uopc's are: derived (as it chooses), unfused\n"
        "(fuse_reduce=False), recompute (fuse_reduce=True), online (a loop program by hand).  Peers are torch, jax,\n"
        "onnxruntime and numpy, where they are installed.  Ctrl-C keeps finished points: --resume goes on from them.",
        _sweep,
    )
    parser.add_argument("problem", help="attention, matmul, softmax, layer_norm, or module:function")
    parser.add_argument("--n", default="256:4096:x2", help="sizes: first:last:xFACTOR, first:last:+STEP, or a,b,c")
    parser.add_argument("--d", type=int, default=64, help="elements of a head (64)")
    parser.add_argument("--heads", type=int, default=1, help="heads (1)")
    parser.add_argument("--causal", action="store_true", help="each query sees the keys up to its own")
    parser.add_argument("--impl", help="implementations, by commas (all)")
    parser.add_argument("--threads", type=int, help="of each (those in force)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each implementation (5)")
    parser.add_argument("--seconds", type=float, default=0.4, help="of measuring each point (0.4)")
    parser.add_argument("--resume", action="store_true", help="keep the points of the last such sweep")
    parser.add_argument("--log", metavar="FILE", help="where finished points are kept (in the cache folder)")
    parser.add_argument("--csv", metavar="FILE", help="write the table")
    parser.add_argument("--json", metavar="FILE", help="write all times, and the environment")
    parser.add_argument("--plot", metavar="FILE", help="draw time, rate and memory over n, as .png or .svg")


def _sweep(chosen: argparse.Namespace) -> int:
    from pathlib import Path

    from uopc.inspect.sweep import forms, peers, problems, results, run
    from uopc.runtime import get_num_threads

    impls = (
        chosen.impl.split(",")
        if chosen.impl
        else list(problems.DEFAULT_IMPLS.get(chosen.problem, problems.USERS_IMPLS))
    )
    unknown = [i for i in impls if i not in (*forms.NAMES, *peers.NAMES)]
    try:
        sizes = run.sizes_of(chosen.n)
        problem = problems.Problem(chosen.problem, sizes[0], chosen.d, chosen.heads, chosen.causal)
        problem.user()
        if unknown:
            raise ValueError(
                f"no implementation {', '.join(unknown)}; there are {', '.join(forms.NAMES + peers.NAMES)}"
            )
        for path in filter(None, (chosen.csv, chosen.json, chosen.plot)):
            if not Path(path).resolve().parent.is_dir():
                raise ValueError(f"{path}: there is no folder {Path(path).resolve().parent}")
        refusal = results.no_plot(chosen.plot) if chosen.plot else ""
        if refusal:
            raise ValueError(f"{chosen.plot}: {refusal}")
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    threads = chosen.threads or get_num_threads()
    where = results.environment(threads)
    log = results.Log(Path(chosen.log) if chosen.log else results.Log.default(problem, threads))
    known = log.read() if chosen.resume else {}
    if not chosen.resume:
        log.clear()
    peak = f"FMA peak {where['peak_gflops']:.0f} GFLOP/s"
    of = f"{threads} thread{'s' if threads > 1 else ''}"
    print(f"{problem.label}, float32, {of}, {where['cpu']}, {peak}")
    sweep = run.Sweep(problem, sizes, impls, threads, log, chosen.rounds, chosen.seconds, sys.stdout)
    where["versions"] = sweep.versions
    try:
        points = sweep.run(known)
    except KeyboardInterrupt:
        print("\nstopped; --resume goes on from the points above", file=sys.stderr)
        points = [p for (impl, n), p in log.read().items() if n in sizes and impl in impls]
        _write(chosen, points, problem, where)
        return 130
    return _write(chosen, points, problem, where)


def _write(chosen: argparse.Namespace, points: list[Any], problem: Any, where: dict[str, Any]) -> int:
    from uopc.inspect.sweep import results

    if chosen.csv:
        results.write_csv(chosen.csv, points)
    if chosen.json:
        results.write_json(chosen.json, points, problem, where)
    if chosen.plot and not results.plot(chosen.plot, points, problem, where):
        print("no plot: there is no point", file=sys.stderr)
        return 1
    return 0


# ---------------------------------------------------------------------------------------------------------- bench --


def add_bench(command: Command) -> None:
    """``bench compare``: two stored runs of pytest-benchmark."""
    parser = command(
        "bench",
        "compare two runs of pytest-benchmark, by time and by structure",
        "  pytest benchmarks --benchmark-json=before.json\n"
        "  python -m uopc bench compare before.json after.json\n\n"
        "The exit code is 1 where a benchmark became slower beyond its noise and the threshold, or where its plan has\n"
        "more kernels, bytes, FLOPs, temporaries or recompute than before. Benchmarks by the fixture uopc_benchmark\n"
        "have both: facts of the plan, and a reference workload around them: slower machines are not slower code.",
        _bench,
    )
    parser.add_argument("action", choices=("compare",), help="compare: the second run with the first")
    parser.add_argument("before", help="JSON of pytest-benchmark")
    parser.add_argument("after", help="JSON of pytest-benchmark")
    parser.add_argument("--threshold", type=float, default=5.0, help="percent that may be lost (5)")
    parser.add_argument("--reference", help="name of a benchmark that measures the machine: times are divided by it")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _bench(chosen: argparse.Namespace) -> int:
    from uopc.inspect.bench import as_table, compare_files

    try:
        comparison = compare_files(chosen.before, chosen.after, chosen.threshold / 100, chosen.reference)
    except (OSError, ValueError) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    if chosen.json:
        print(json.dumps([c.to_json() for c in comparison], indent=1))
    else:
        print(as_table(comparison))
    return int(any(c.worse for c in comparison))


COMMANDS = (add_info, add_explain, add_sweep, add_bench)
