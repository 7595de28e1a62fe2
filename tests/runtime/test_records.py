"""Plans on disk: a fresh process launches what another has made, and never what was made for something else."""

import os

import numpy as np
import pytest

from uopc import Tensor
from uopc.options import Options, environment
from uopc.runtime import plan as plans
from uopc.runtime import records
from uopc.runtime.compiler import disk_cache, toolchain
from uopc.runtime.plan import normal

WORK = """
import uopc
q, k, v = (np.random.default_rng(n).standard_normal((33, 16)).astype("f") for n in range(3))
def work(scale=0.25): return ((uopc.Tensor(q) @ uopc.Tensor(k).T) * scale).softmax(-1) @ uopc.Tensor(v)
"""


def graph(build):
    return normal([build.uop])[0]


@pytest.fixture(autouse=True)
def forget_plans(monkeypatch):
    """Plans are made anew, and records used although the tests verify every stage."""
    monkeypatch.setattr(plans, "_executables", {})
    monkeypatch.setenv("UOPC_VERIFY", "0")
    forget_settings()
    yield
    monkeypatch.undo()
    forget_settings()


def forget_settings():
    environment.cache_clear()


def test_a_fresh_process_imports_no_pass(python):
    say = "print(work().numpy().tobytes().hex(), 'uopc.pipeline' in sys.modules)"
    first, second = (python(WORK + say, UOPC_VERIFY=None).split() for _ in range(2))
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("True", "False")
    other = python(WORK + say.replace("work()", "work(0.5)"), UOPC_VERIFY=None).split()
    assert other[1] == "True" and other[0] != first[0]


def test_a_fresh_process_runs_no_compiler(python, tmp_path):
    python(WORK + "work().numpy()", UOPC_VERIFY=None, CC=None)
    python(WORK + "os.posix_spawn = None; work().numpy()", UOPC_VERIFY=None, CC=None)


@pytest.mark.parametrize("variable", ["DEBUG", "UOPC_VERIFY"])
def test_what_shows_the_stages_makes_the_plan(python, variable):
    python(WORK + "work().numpy()", UOPC_VERIFY=None)
    said = python(
        WORK + "work().numpy(); print('uopc.pipeline' in sys.modules)", **{"UOPC_VERIFY": None, variable: "1"}
    )
    assert said.split()[-1] == "True"


def test_keys_tell_plans_apart():
    x, y = Tensor(np.ones((4, 6), "f")), Tensor(np.ones((6, 4), "f"))
    builds = [
        x + 1,
        x + 2,
        x + 1.5,
        x * 1.5,
        x.sum(0),
        x.sum(1),
        x @ y,
        x.T + y,
        x.reshape(6, 4) + y,
        x[1:],
        x[:1],
        y + 1,
    ]
    keys = [records.record_key(graph(b), Options(), "cc") for b in builds]
    assert len(set(keys)) == len(builds)
    assert keys == [records.record_key(graph(b), Options(), "cc") for b in builds]
    assert records.record_key(graph(x + 1), Options(fuse_reduce=False), "cc") != keys[0]
    assert records.record_key(graph(x + 1), Options(opt=object()), "cc") is None
    again = Tensor(np.zeros((4, 6), "f"))
    assert records.record_key(graph(again + 1), Options(), "cc") == keys[0]


def test_another_compiler_is_another_key(settings):
    keys = []
    for cc in ("gcc", "gcc -DX=1", "gcc"):
        settings(CC=cc)
        keys.append(toolchain())
    assert keys[0] == keys[2] != keys[1]


def test_changed_code_is_another_key(monkeypatch):
    key = records.record_key(graph(Tensor.ones(3) + 1), Options(), "cc")
    monkeypatch.setattr(records, "identity", lambda: "another")
    assert records.record_key(graph(Tensor.ones(3) + 1), Options(), "cc") != key


def test_a_record_whose_kernels_are_gone(settings):
    x = np.arange(100, dtype="f")
    expected = x * 3.5 - 1
    np.testing.assert_allclose((Tensor(x) * 3.5 - 1).numpy(), expected, rtol=1e-6)
    from uopc.runtime.compiler import clear_memory_cache

    cache = disk_cache()
    for name in os.listdir(cache.path):
        if name.endswith(".so"):
            os.unlink(os.path.join(cache.path, name))
    clear_memory_cache()
    plans._executables.clear()
    np.testing.assert_allclose((Tensor(x) * 3.5 - 1).numpy(), expected, rtol=1e-6)


def test_a_damaged_record(settings):
    x = np.arange(100, dtype="f")
    for damage in (lambda data: data[:-1], lambda data: b"", lambda data: data[:20] + b"?" + data[21:]):
        plans._executables.clear()
        np.testing.assert_allclose((Tensor(x) * 4.5).numpy(), x * 4.5, rtol=1e-6)
        cache = disk_cache()
        for name in os.listdir(cache.path):
            if name.endswith(".note"):
                path = os.path.join(cache.path, name)
                with open(path, "rb") as file:
                    data = file.read()
                with open(path, "wb") as file:
                    file.write(damage(data))
    plans._executables.clear()
    np.testing.assert_allclose((Tensor(x) * 4.5).numpy(), x * 4.5, rtol=1e-6)
