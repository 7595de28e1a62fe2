"""The same C, built with -fopenmp against a stock OpenMP runtime, gives the same bits as the pool."""

import ctypes
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.options import Options
from uopc.pipeline import plan_for
from uopc.runtime import Program, num_threads
from uopc.runtime.compiler import ALWAYS, DEFAULT_FLAGS, find_compiler
from uopc.runtime.plan import compile_plan, normal

# d0[i] = sum over j of d1[i * 100 + j] * d2[j], where rounding shows every change of order
SUM = """
void sum_range(void *const *args, long lo, long hi) {
  float *restrict d0 = args[0]; const float *restrict d1 = args[1]; const float *restrict d2 = args[2];
  for (long i = lo; i < hi; i++) {
    float acc = 0.0f;
    for (long j = 0; j < 100; j++) acc += d1[i * 100 + j] * d2[j];
    d0[i] = acc;
  }
}
const long sum_launch[3] = {1000, 64, 1};
void sum(float *restrict d0, const float *restrict d1, const float *restrict d2) {
  void *args[3] = {d0, (void *)d1, (void *)d2};
  #pragma omp parallel for schedule(dynamic, 1)
  for (long c = 0; c < 16; c++) sum_range(args, c * 64, c == 15 ? 1000 : c * 64 + 64);
}
"""
CHILD = """
import ctypes, sys
import numpy as np
folder = sys.argv[1]
x, y, out = np.load(folder + "/x.npy"), np.load(folder + "/y.npy"), np.empty(1000, "f")
kernel = ctypes.CDLL(folder + "/openmp.so").sum
kernel(*(ctypes.c_void_p(a.ctypes.data) for a in (out, x, y)))
np.save(folder + "/out.npy", out)
"""


def build(source, path, flags=DEFAULT_FLAGS):
    command = [*find_compiler().command, *ALWAYS, *flags, "-fopenmp", "-shared", "-x", "c", "-", "-o", str(path), "-lm"]
    built = subprocess.run(command, input=source, text=True, capture_output=True)
    if built.returncode:
        pytest.skip(f"no OpenMP here: {built.stderr.strip()[-200:]}")


@pytest.fixture
def openmp_library(tmp_path):
    path = tmp_path / "openmp.so"
    build(SUM, path)
    return path


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_same_bits(openmp_library, tmp_path, threads):
    """In a process of its own: a stock OpenMP runtime does not survive the forks of other tests."""
    random = np.random.default_rng(1)
    x, y = random.standard_normal(100_000, dtype="f"), random.standard_normal(100, dtype="f")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], env=env, check=True, timeout=60)
    out = np.empty(1000, "f")
    with num_threads(threads):
        Program(SUM, "sum")(out, x, y)
    assert out.tobytes() == np.load(tmp_path / "out.npy").tobytes()
    np.testing.assert_allclose(out, x.reshape(1000, 100) @ y, rtol=1e-4, atol=1e-4)


def test_without_openmp_the_whole_kernel_is_a_serial_loop(tmp_path):
    """The function that says `#pragma omp` is complete C as it is."""
    x, y, out = np.ones(100_000, "f"), np.ones(100, "f"), np.empty(1000, "f")
    library = Program(SUM, "sum").library
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library.address("sum"))
    kernel(out.ctypes.data, x.ctypes.data, y.ctypes.data)
    assert (out == 100).all()


# -- kernels that the compiler wrote


def floats(*shape, dtype="f"):
    return Tensor(np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype))


def norm(x):
    x = x - x.mean(axis=-1, keepdim=True)
    return x * ((x * x).mean(axis=-1, keepdim=True) + 1e-5).rsqrt()


def attention(q, k, v):
    return (q @ k.T * 0.125).softmax(-1) @ v


EXPRESSIONS = {
    "elementwise": lambda: floats(400, 700) * 2 + floats(700),
    "a reduction in parts": lambda: floats(1 << 19).sum(),
    "softmax": lambda: floats(300, 1000).softmax(-1),
    "norm": lambda: norm(floats(500, 300)),
    "maximum and where": lambda: floats(300, 900).argmax(axis=1),
    "columns": lambda: floats(3000, 90, dtype="f8").exp().sum(axis=0),
    "matmul": lambda: floats(512, 300) @ floats(300, 400),
    "bfloat16": lambda: (floats(200, 100).cast("bfloat16") @ floats(100, 200).cast("bfloat16")).cast("float32"),
    "cascade": lambda: attention(floats(300, 64), floats(290, 64), floats(290, 64)),
    "cascade in parts": lambda: attention(floats(1, 64), floats(20000, 64), floats(20000, 64)),
    "longest first": lambda: Tensor.scaled_dot_product_attention(
        floats(300, 64), floats(300, 64), floats(300, 64), is_causal=True
    ),
    "unfused": lambda: attention(floats(200, 64), floats(190, 64), floats(190, 64)),
    "one order for every row": lambda: floats(100, 300) @ floats(300, 200),
    "running sums": lambda: floats(100, 3000).cumsum(1),
    "random numbers": lambda: Tensor.rand(300, 300) + 1,
    "positions that are data": lambda: floats(900, 60)[Tensor(np.arange(3000) * 7 % 900)] * 2,
    "integers": lambda: (Tensor(np.arange(90000)) // 7 % 13).sum(),
}
OPTIONS = {"unfused": {"fuse_reduce": False}, "one order for every row": {"batch_invariant": True}}
RUN_PLANS = """
import ctypes, pickle, sys
import numpy as np
folder = sys.argv[1]
plans, results = pickle.load(open(folder + "/plans.pickle", "rb")), {}
for name, (buffers, sizes, n_inputs, n_outs, calls) in plans.items():
    memory = [np.frombuffer(b, np.uint8).copy() for b in buffers] + [np.zeros(n + 64, np.uint8) for n in sizes]
    at = [a.ctypes.data if k < n_inputs else a.ctypes.data + -a.ctypes.data % 64 for k, a in enumerate(memory)]
    for path, symbol, places in calls:
        getattr(ctypes.CDLL(path), symbol)(*(ctypes.c_void_p(at[number] + offset) for number, offset in places))
    results[name] = [ctypes.string_at(at[n_inputs + k], sizes[k]) for k in range(n_outs)]
pickle.dump(results, open(folder + "/results.pickle", "wb"))
"""


def bytes_of(parts):
    """The bytes of inputs or temporaries (dtype, elements), or of results (dtype, shape)."""
    return [d.itemsize * int(np.prod(n)) for d, n in parts]


def test_kernels_give_the_same_bits(tmp_path):
    """Reductions in parts, cascades, dynamic and longest-first loops: by the pool, and by OpenMP, with any threads."""
    plans, made, schedules = {}, {}, set()
    for name, expression in EXPRESSIONS.items():
        uopc.manual_seed(1)
        graph, buffers = normal([expression().uop])
        plan = plan_for(graph, Options(**OPTIONS.get(name, {})))
        calls = []
        dtypes = [d for d, _ in (*plan.inputs, *plan.outs, *plan.temps)]
        for call in plan.calls:
            path = tmp_path / f"k{len(made)}-{len(calls)}.so"
            build(call.kernel.source, path, DEFAULT_FLAGS)
            places = [(number, at * dtypes[number].itemsize) for number, at in call.buffers]
            calls.append((str(path), call.kernel.name, places))
            trips, chunk, schedule = map(
                int, re.search(r"_launch\[3\] = {(\d+), (\d+), (\d+)}", call.kernel.source).groups()
            )
            schedules |= {schedule} if trips > chunk else set()
        executable = compile_plan(plan)
        inputs = [buffers[number].realized for number in executable.input_numbers]
        plans[name] = (
            [storage.array.tobytes() for storage in inputs],
            bytes_of(plan.outs) + bytes_of(plan.temps),
            len(plan.inputs),
            len(plan.outs),
            calls,
        )
        made[name] = executable, inputs
    assert schedules >= {1, 2}
    with open(tmp_path / "plans.pickle", "wb") as file:
        pickle.dump(plans, file)
    for threads in (1, 3):
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([sys.executable, "-c", RUN_PLANS, str(tmp_path)], env=env, check=True, timeout=200)
        with open(tmp_path / "results.pickle", "rb") as file:
            stock = pickle.load(file)
        for name, (executable, inputs) in made.items():
            outs = [np.zeros(size, np.uint8) for size in executable.out_sizes]
            with num_threads(threads + 1):
                executable.native.run([*(storage.address for storage in inputs), *outs])
            assert all(out.any() for out in outs)
            assert [out.tobytes() for out in outs] == stock[name], name
