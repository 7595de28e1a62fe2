"""The same C, built with -fopenmp against a stock OpenMP runtime, gives the same bits as the pool."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from uopc.runtime import Program, num_threads
from uopc.runtime.compiler import ALWAYS, DEFAULT_FLAGS, find_compiler

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


@pytest.fixture
def openmp_library(tmp_path):
    path = tmp_path / "openmp.so"
    command = [
        *find_compiler().command,
        *ALWAYS,
        *DEFAULT_FLAGS,
        "-fopenmp",
        "-shared",
        "-x",
        "c",
        "-",
        "-o",
        str(path),
    ]
    built = subprocess.run(command, input=SUM, text=True, capture_output=True)
    if built.returncode:
        pytest.skip(f"no OpenMP here: {built.stderr.strip()[-200:]}")
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
