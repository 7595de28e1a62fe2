"""What a call costs: tiny kernels, plans of several kernels, first calls, and importing, beside other libraries.

    python benchmarks/runtime/calls.py [torch=/path/to/python ...] [--rounds N]

Each library is measured in worker processes of its own (two processors: `taskset` the whole run for steadier figures),
round by round in turn, and the best round counts.  A library that the given interpreter cannot import is left out; by
default that interpreter is the one that runs this file.  Times are microseconds, of the last rows milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

N, D = 16, 64
LIBRARIES = ("uopc", "numpy", "torch", "jax", "numba", "onnxruntime")


def inputs(n: int = N) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, D), dtype=np.float32) for _ in range(3)]


def best(fn: Callable[[], object], seconds: float = 0.4) -> float:
    """Microseconds a call: the fastest of batches of about a millisecond."""
    fn()
    start = time.perf_counter()
    fn()
    count = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-7)))
    fastest, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        for _ in range(count):
            fn()
        fastest = min(fastest, (time.perf_counter() - start) / count)
    return fastest * 1e6


def outside_kernels(call: Callable[[], object], plan: Any, seconds: float = 0.4) -> float:
    """Microseconds of a call in which no thread is in a kernel: Python, the launches, and waiting; the median call.

    Both clocks are read in the same call, so that a kernel that takes longer counts on both sides.  What the two reads
    around the call take is subtracted; those around each kernel, some 25 ns a thread, count as outside.
    """
    clock = time.perf_counter_ns
    reading = min(-clock() + clock() for _ in range(1000))
    call()
    plan.watch()
    found, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = clock()
        call()
        whole = clock() - start - reading
        kernels = plan.watched_timeline()
        found.append(whole - sum(max(t[2] for t in threads) - min(t[1] for t in threads) for threads in kernels))
    return statistics.median(found) / 1e3


# ------------------------------------------------------------------------------------------------------- workers --


def measure_numpy() -> dict[str, float]:
    a, b = np.arange(16, dtype="f"), np.ones(16, "f")
    return {"add of 16": best(lambda: a + b)}


def measure_uopc() -> dict[str, float]:
    import uopc

    a, b = np.arange(16, dtype="f"), np.ones(16, "f")
    q, k, v = inputs()
    add = uopc.jit(lambda x, y: x + y)
    attention = uopc.jit(lambda q, k, v: ((q @ k.T) * D**-0.5).softmax(-1) @ v)
    ta, tb = uopc.Tensor(a), uopc.Tensor(b)
    tq, tk, tv = map(uopc.Tensor, (q, k, v))
    out = np.empty_like(a)
    rows = {
        "add of 16": best(lambda: add(a, b)),
        "add of 16, out=": best(lambda: add(a, b, out=out)),
        "add of 16, tensors": best(lambda: add(ta, tb)),
        "add of 16, uncaptured": best(lambda: (ta + tb).numpy()),
        f"attention N={N}": best(lambda: attention(q, k, v)),
        f"attention N={N}, uncaptured": best(lambda: (((tq @ tk.T) * D**-0.5).softmax(-1) @ tv).numpy()),
    }
    with uopc.options(fuse_reduce=False):
        unfused = uopc.jit(lambda q, k, v: ((q @ k.T) * D**-0.5).softmax(-1) @ v)
        values = inputs(128)
        rows["unfused attention N=128"] = best(lambda: unfused(*values))
        rows["  outside its kernels"] = outside_kernels(lambda: unfused(*values), unfused.captured[0].plan)
        fused = uopc.jit(lambda x: x * 2 + 1)
    big = np.ones(1 << 24, "f")
    rows["x*2+1 of 16M"] = best(lambda: fused(big), 1.5)
    return rows


def measure_torch() -> dict[str, float]:
    import torch

    a, b = torch.arange(16, dtype=torch.float32), torch.ones(16)
    q, k, v = (torch.from_numpy(x)[None, None] for x in inputs())
    sdpa = torch.nn.functional.scaled_dot_product_attention
    big = torch.ones(1 << 24)
    with torch.inference_mode():
        torch.set_num_threads(1)  # two are slower at this size, and far slower on a busy machine
        rows = {"add of 16": best(lambda: a + b), f"attention N={N}": best(lambda: sdpa(q, k, v))}
        torch.set_num_threads(2)
        return {**rows, "x*2+1 of 16M": best(lambda: big * 2 + 1, 1.5)}


def measure_jax() -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    a, b = jnp.arange(16, dtype="float32"), jnp.ones(16)
    add = jax.jit(lambda x, y: x + y)
    attention = jax.jit(lambda q, k, v: jax.nn.softmax(q @ k.T * D**-0.5, -1) @ v)
    q, k, v = map(jnp.asarray, inputs())
    big, affine = jnp.ones(1 << 24), jax.jit(lambda x: x * 2 + 1)
    return {
        "add of 16": best(lambda: add(a, b).block_until_ready()),
        f"attention N={N}": best(lambda: attention(q, k, v).block_until_ready()),
        "x*2+1 of 16M": best(lambda: affine(big).block_until_ready(), 1.5),
    }


def measure_numba() -> dict[str, float]:
    import numba

    @numba.njit(fastmath=False)
    def add(a, b):
        return a + b

    @numba.njit
    def attention(q, k, v):
        out = np.zeros_like(q)
        for i in range(q.shape[0]):
            s = np.zeros(k.shape[0], np.float32)
            for j in range(k.shape[0]):
                for d in range(q.shape[1]):
                    s[j] += q[i, d] * k[j, d]
                s[j] *= np.float32(0.125)
            s = np.exp(s - s.max())
            s /= s.sum()
            for j in range(k.shape[0]):
                for d in range(q.shape[1]):
                    out[i, d] += s[j] * v[j, d]
        return out

    a, b = np.arange(16, dtype="f"), np.ones(16, "f")
    values = inputs()
    return {"add of 16": best(lambda: add(a, b)), f"attention N={N}": best(lambda: attention(*values))}


def measure_onnxruntime() -> dict[str, float]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    def info(name: str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [N, D])

    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [D**-0.5])
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[1, 0]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    graph = helper.make_graph(nodes, "attention", [info("q"), info("k"), info("v")], [info("o")], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), options)
    feed = dict(zip("qkv", inputs()))
    return {f"attention N={N}": best(lambda: session.run(None, feed))}


# -------------------------------------------------------------------------------------------------------- starts --

FIRST = """
import sys, time
import numpy as np
start = time.perf_counter()
import uopc
imported = time.perf_counter()
q, k, v = (np.random.default_rng(n).standard_normal((1024, 64)).astype("f") for n in range(3))
if sys.argv[1] == "loaded": import uopc.pipeline, uopc.runtime.plan
begun = time.perf_counter()
q, k, v = map(uopc.Tensor, (q, k, v))
(((q @ k.T) * 0.125).softmax(-1) @ v).numpy()
print((imported - start) * 1e3, (time.perf_counter() - begun) * 1e3)
"""


def first_calls(rounds: int) -> dict[str, float]:
    """Milliseconds, the least of all rounds: importing uopc, and attention (N = 1024, D = 64) in a fresh process.

    An installer compiles Python's modules to bytecode; here the first start of all does, and is slower than the rest.
    """
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(rounds):
            first_calls_of_a_round(rows, environment)
    return {name: min(values) for name, values in rows.items()}


def first_calls_of_a_round(rows: dict[str, list[float]], environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, loaded in (("cold cache", "loaded"), ("warm cache", "not")):
            env = {**environment, "UOPC_CACHE_DIR": folder}
            for _ in range(3 if loaded == "not" else 1):
                command = [sys.executable, "-c", FIRST, loaded]
                said = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
                rows.setdefault("import uopc, beyond numpy (ms)", []).append(float(said[0]))
                rows.setdefault(f"first attention N=1024, {name} (ms)", []).append(float(said[1]))


def main(arguments: list[str]) -> None:
    rounds = int(arguments[arguments.index("--rounds") + 1]) if "--rounds" in arguments else 3
    pythons = dict.fromkeys(LIBRARIES, sys.executable) | dict(a.split("=", 1) for a in arguments if "=" in a)
    results: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for library, python in pythons.items():
            said = subprocess.run([python, Path(__file__), "--worker", library], capture_output=True, text=True)
            if said.returncode:
                print(f"{library}: left out: {(said.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
                continue
            known = results.setdefault(library, {})
            for row, value in json.loads(said.stdout.splitlines()[-1]).items():
                known[row] = min(value, known.get(row, value))
    results.setdefault("uopc", {}).update(first_calls(rounds))
    print(f"{'microseconds':40}" + "".join(f"{library:>13}" for library in results))
    for row in dict.fromkeys(row for rows in results.values() for row in rows):
        print(f"{row:40}" + "".join(f"{rows[row]:13.2f}" if row in rows else f"{'':13}" for rows in results.values()))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        print(json.dumps(globals()[f"measure_{sys.argv[-1]}"]()))
    else:
        main(sys.argv[1:])
