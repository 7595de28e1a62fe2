"""Kernels as render_c writes them, and a cache folder for each test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from uopc.options import environment

# d0[i] = d1[i] * 2 + d2[i] over 10,000 floats, in chunks of 256
AXPY = """
void axpy_range(void *const *args, long lo, long hi) {
  float *restrict d0 = args[0]; const float *restrict d1 = args[1]; const float *restrict d2 = args[2];
  for (long i = lo; i < hi; i++) d0[i] = d1[i] * 2.0f + d2[i];
}
const long axpy_launch[3] = {10000, 256, SCHEDULE};
void axpy(float *restrict d0, const float *restrict d1, const float *restrict d2) {
  void *args[3] = {d0, (void *)d1, (void *)d2};
  #pragma omp parallel for schedule(static)
  for (long c = 0; c < 40; c++) axpy_range(args, c * 256, c == 39 ? 10000 : c * 256 + 256);
}
"""


@pytest.fixture
def axpy_source():
    return AXPY.replace("SCHEDULE", "0")


@pytest.fixture(scope="session")
def schedules():
    """The same kernel for each schedule."""
    return [AXPY.replace("SCHEDULE", str(schedule)) for schedule in range(3)]


def forget_settings():
    from uopc.runtime import compiler

    environment.cache_clear()
    compiler._find_compiler.cache_clear()
    compiler._open_cache.cache_clear()
    compiler.clear_memory_cache()


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """Call it with environment variables, which hold for the rest of the test.  The cache starts empty."""

    def set_all(**variables):
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))
        forget_settings()

    set_all(UOPC_CACHE_DIR=tmp_path / "cache", UOPC_CACHE=None, UOPC_CACHE_LIMIT=None)
    yield set_all
    monkeypatch.undo()
    forget_settings()


@pytest.fixture
def python(tmp_path):
    """Run Python code in a fresh process.  Returns what it printed; fails if it fails or takes five minutes."""

    def run(code, *args, check=True, **variables):
        folder = str(tmp_path / "cache")
        env = {**os.environ, "UOPC_CACHE_DIR": folder, "AXPY": AXPY.replace("SCHEDULE", "0")}
        env = {name: str(value) for name, value in {**env, **variables}.items() if value is not None}
        command = [sys.executable, "-c", PRELUDE + code, *map(str, args)]
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        if check and result.returncode:
            pytest.fail(f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
        return result.stdout.strip() if check else result

    return run


# `check()` runs the kernel once and compares.
PRELUDE = """
import os, sys, threading, time
import numpy as np
from uopc.runtime import *
from uopc._hot.runtime import num_workers, shutdown
from uopc.runtime.compiler import compile_source
x = np.arange(10000, dtype="float32"); y = np.full(10000, 3, "float32")
def make():
    return NativePlan([(compile_source(os.environ["AXPY"]), "axpy", (0, 1, 2))], 3)
def check(plan):
    out = np.empty(10000, "float32")
    plan.run([out, x, y])
    assert (out == x * 2 + y).all()
"""

RUNTIME_C = Path(__file__).parents[2] / "runtime_c"
