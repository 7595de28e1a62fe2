"""Too little memory, a full disk, other libraries with threads, many processes: the next thing still works."""

import importlib.util
import os
import subprocess
import sys
import venv

import pytest

from uopc.options import environment

TENSORS = """
import pickle, resource
import uopc
from uopc import Tensor
rng = np.random.default_rng(0)
def close(a, b, rtol=1e-4): np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-4)
def attention(q, k, v): return ((q @ k.T) * 0.125).softmax(-1) @ v
def exact(q, k, v):
    s = q.astype("f8") @ k.T.astype("f8") * 0.125
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
def arrays(n=40, d=64): return [rng.standard_normal((n, d)).astype("f") for _ in range(3)]
"""


@pytest.mark.parametrize("what", ["temporaries", "results"])
def test_address_space_too_small(python, what):
    """MemoryError before anything ran, and once there is room again the same call works."""
    body = {
        "temporaries": "work = uopc.jit(lambda x: (x.reshape(1, -1) + x.reshape(-1, 1)).contiguous().sum())\n",
        "results": "work = uopc.jit(lambda x: x.reshape(1, -1) + x.reshape(-1, 1))\n",
    }[what]
    python(
        TENSORS
        + body
        + """
small, large = np.ones(8, "f"), np.ones(8192, "f")  # 256 MB
close(work(small).sum(), 128 if work(small).ndim else 128)
uopc.precompile(work, large)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), before[1]))
for _ in range(3):
    try: work(large)
    except MemoryError as error: assert "no memory" in str(error), error
    else: raise AssertionError("it fitted")
close(work(small).sum(), 128)
resource.setrlimit(resource.RLIMIT_AS, before)
close(work(large).sum(dtype="f8"), 2 * 8192 * 8192)
""",
        UOPC_NUM_THREADS=2,
    )


def test_a_tiny_disk_fills_while_plans_are_made(python, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    try:
        code = TENSORS + (
            "x = arrays()[0]\n"
            "for n in range(12): close((Tensor(x) * (n + 0.5) + n).numpy(), x * (n + 0.5) + n)\n"
            "q, k, v = arrays(); close(attention(Tensor(q), Tensor(k), Tensor(v)).numpy(), exact(q, k, v))\n"
        )
        for _ in range(2):
            python(code, UOPC_CACHE_DIR=folder, UOPC_VERIFY=None)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_fork_during_and_after_captured_functions(python):
    python(
        TENSORS
        + """
work, values = uopc.jit(attention), arrays()
expected = work(*values)
close(expected, exact(*values))
def in_child():
    pid = os.fork()
    if pid == 0:
        try:
            assert np.array_equal(work(*values), expected)
            assert np.array_equal(work(*[Tensor(a) for a in values]).numpy(), expected)
            fresh = uopc.jit(lambda a, b: a * 1.75 + b)
            close(fresh(values[0], values[1]), values[0] * 1.75 + values[1])
        except BaseException as error:
            print(repr(error), file=sys.stderr); os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
in_child()
stop = False
def keep_running():
    while not stop: assert np.array_equal(work(*values), expected)
thread = threading.Thread(target=keep_running); thread.start()
for _ in range(10): in_child()
stop = True
thread.join()
""",
        UOPC_NUM_THREADS=3,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pickled_tensors_and_other_processes(tmp_path, python, method):
    """Lazy Tensors travel by value; a worker computes with them and sends lazy ones back."""
    script = tmp_path / "work.py"
    script.write_text(
        "import multiprocessing, sys\nimport numpy as np\nfrom uopc import Tensor\n"
        "def work(t): return t * 2 + 1, t.numpy().sum()\n"
        "if __name__ == '__main__':\n"
        "    x = np.arange(12.0, dtype='f').reshape(3, 4)\n"
        "    lazy = Tensor(x).T + 0.5\n"
        "    (lazy + 0).numpy()\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:\n"
        "        for t, total in pool.map(work, [lazy, Tensor(x), Tensor(x).cast('bfloat16')] * 2):\n"
        "            assert isinstance(t, Tensor) and t.numpy().size == 12 and np.isfinite(total)\n"
        "        np.testing.assert_array_equal(pool.map(work, [lazy])[0][0].numpy(), (x.T + 0.5) * 2 + 1)\n"
    )
    python(f"import subprocess; subprocess.run([sys.executable, {str(script)!r}, {method!r}], check=True)")


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "pass"])
def test_exit_while_captured_functions_run(python, end):
    python(
        TENSORS
        + f"""
work, values = uopc.jit(attention), arrays(200)
work(*values)
def forever():
    while True: work(*values)
for _ in range(2): threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
{end}
""",
        UOPC_NUM_THREADS=3,
    )


@pytest.mark.slow
def test_two_hundred_processes_compile_one_plan(python, tmp_path):
    log, cc = tmp_path / "log", tmp_path / "cc"
    cc.write_text(f'#!/bin/sh\ncase "$*" in *--version*|*-print*) ;; *) echo run >> {log};; esac\nexec cc "$@"\n')
    cc.chmod(0o755)
    code = (
        "import numpy as np, uopc\nx = np.arange(64, dtype='f')\n"
        "assert ((uopc.Tensor(x) * 3 + 1).numpy() == x * 3 + 1).all()"
    )
    env = {**os.environ, "CC": str(cc), "UOPC_CACHE_DIR": str(tmp_path / "cache"), "UOPC_VERIFY": "0"}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(200)]
    assert [p.wait() for p in processes] == [0] * 200
    # one compiles; more only where two cores had two units, or a claim ran out of patience on a crowded machine
    assert log.read_text().count("run") <= 3
    left = os.listdir(tmp_path / "cache" / "kernels")
    assert sum(name.endswith(".so") for name in left) == 1 and not [name for name in left if name.endswith(".tmp")]


OTHERS = {
    "torch": "a = torch.ones(300, 300); assert torch.get_num_threads() == threads(); assert (a @ a)[0, 0] == 300",
    "sklearn": "from sklearn.cluster import KMeans; KMeans(2, n_init=1).fit(rng.standard_normal((500, 4)))",
    "numba": "f = numba.njit(parallel=True)(lambda x: x.sum()); assert f(np.ones(1000)) == 1000",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("first", [True, False])
def test_other_libraries_with_threads(python, name, first):
    """Imported before or after: both sides compute right, with as many threads as alone, and fork still works."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    load = f"import {name}\nthreads = lambda: {name}.get_num_threads() if {name!r} == 'torch' else 0\n"
    mine = (
        "work, values = uopc.jit(attention), arrays(300)\n"
        "bits = work(*values).tobytes()\nclose(work(*values), exact(*values)); assert num_workers() == 2\n"
    )
    theirs = OTHERS[name] + "\n"
    both = mine + theirs if first else theirs + mine
    code = TENSORS + ("" if first else load) + (mine if first else "") + (load if first else "") + both + theirs
    code += "assert work(*values).tobytes() == bits\n"
    code += (
        "pid = os.fork()\nif pid == 0: os._exit(work(*values).tobytes() != bits)\nassert os.waitpid(pid, 0)[1] == 0\n"
    )
    python(code, UOPC_NUM_THREADS=3)


@pytest.mark.slow
def test_the_compiler_from_the_extra(tmp_path):
    """ziglang, installed into an environment of its own, compiles with nothing on PATH."""
    folder = tmp_path / "env"
    venv.create(folder, system_site_packages=True, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "ziglang"]
    if subprocess.run(install, capture_output=True).returncode:
        pytest.skip("ziglang cannot be installed here")
    code = (
        "import numpy as np, uopc\n"
        "from uopc.runtime.compiler import find_compiler\n"
        "assert 'ziglang' in find_compiler().command\n"
        "x = np.linspace(-1, 1, 100, dtype='f')\n"
        "np.testing.assert_allclose((uopc.Tensor(x) * 2 + 1).exp().numpy(), np.exp(x * 2 + 1), rtol=1e-5)\n"
    )
    paths = os.pathsep.join(p for p in sys.path if p)
    env = {"PATH": "/nowhere", "HOME": str(tmp_path), "UOPC_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": paths}
    subprocess.run([python, "-c", code], env=env, cwd=tmp_path, check=True, timeout=300)
    del env["HOME"]
    env["UOPC_CACHE_DIR"] = str(tmp_path / "other")
    subprocess.run([python, "-c", code], env=env, cwd=tmp_path, check=True, timeout=300)


@pytest.mark.slow
def test_eight_threads(python):
    """Shared and separate plans, captured and not, of several sizes: every result is that of a thread alone.

    UOPC_STRESS_SECONDS sets how long (60).
    """
    environment.cache_clear()
    python(
        TENSORS
        + """
seconds = float(os.environ.get("UOPC_STRESS_SECONDS", "60"))
shared = uopc.jit(attention)
sets = [arrays(n) for n in (1, 7, 40, 129, 256)]
expected = [shared(*values) for values in sets]
plain = [[(a * 2 + b).copy() for a, b, _ in [values]][0] for values in sets]
sums = [(Tensor(values[0]) @ Tensor(values[1]).T).numpy().copy() for values in sets]
wrong, stop = [], time.monotonic() + seconds
def work(number):
    mine = uopc.jit(attention) if number % 2 else shared
    order = np.random.default_rng(number)
    outs = [np.empty_like(e) for e in expected]
    while time.monotonic() < stop and not wrong:
        k = int(order.integers(len(sets)))
        q, key, v = sets[k]
        if not np.array_equal(mine(q, key, v), expected[k]): wrong.append((number, "array"))
        if not np.array_equal(mine(q, key, v, out=outs[k]), expected[k]): wrong.append((number, "out"))
        if not np.array_equal((Tensor(q) @ Tensor(key).T).numpy(), sums[k]): wrong.append((number, "lazy"))
        if order.random() < 0.02: uopc.set_num_threads(int(order.integers(1, 5)))
        if order.random() < 0.02: uopc.runtime.trim_memory()
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
""",
        UOPC_NUM_THREADS=4,
    )
