"""Thread counts, and several Python threads at once."""

import threading

import numpy as np
import pytest

from uopc.runtime import NativePlan, compile_source, get_num_threads, num_threads, set_num_threads


@pytest.fixture(autouse=True)
def keep_thread_count():
    before = get_num_threads()
    yield
    set_num_threads(before)


def test_count_is_set_and_scoped():
    set_num_threads(3)
    assert set_num_threads(4) == 3
    with num_threads(2):
        assert get_num_threads() == 2
        with num_threads(7):
            assert get_num_threads() == 7
        assert get_num_threads() == 2
        set_num_threads(5)
        assert get_num_threads() == 2
    assert get_num_threads() == 5


def test_scope_ends_with_an_error_and_is_of_one_thread():
    set_num_threads(3)
    seen = []
    with pytest.raises(KeyError), num_threads(2):
        thread = threading.Thread(target=lambda: seen.append(get_num_threads()))
        thread.start()
        thread.join()
        raise KeyError
    assert seen == [3] and get_num_threads() == 3


@pytest.mark.parametrize("n", [0, -1])
def test_counts_below_one_are_refused(n):
    with pytest.raises(ValueError, match="at least 1"):
        set_num_threads(n)
    with pytest.raises(ValueError, match="at least 1"):
        num_threads(n)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"UOPC_NUM_THREADS": 3, "OMP_NUM_THREADS": 5}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "6,2"}, 6),
        ({"OMP_NUM_THREADS": "nonsense"}, None),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "-3"}, None),
        ({"OMP_NUM_THREADS": "²"}, None),
        ({"OMP_NUM_THREADS": "9" * 5000}, None),
        ({"OMP_NUM_THREADS": "100000"}, 1024),
        ({"UOPC_NUM_THREADS": "1" + "0" * 30}, 1024),
    ],
)
def test_count_from_the_environment(python, variables, expected):
    code = "from uopc.runtime.device import usable_cores; print(get_num_threads(), usable_cores())"
    count, cores = python(code, **{"UOPC_NUM_THREADS": None, "OMP_NUM_THREADS": None, **variables}).split()
    assert int(count) == (expected or int(cores))


@pytest.mark.parametrize("text", ["0", "-1", "4,2", "abc", "1.5"])
def test_counts_that_make_no_sense_are_refused_by_name(python, text):
    result = python("", check=False, UOPC_NUM_THREADS=text)
    assert result.returncode == 1 and "ValueError: UOPC_NUM_THREADS=" in result.stderr and text in result.stderr


def test_count_from_the_affinity_mask(python):
    code = """
import subprocess
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
code = "from uopc.runtime import *; print(get_num_threads())"
print(subprocess.check_output([sys.executable, "-c", code], text=True))
"""
    assert python(code, UOPC_NUM_THREADS=None, OMP_NUM_THREADS=None) == "1"


def test_workers_are_made_when_needed(python):
    said = python("print(num_workers()); check(make()); print(num_workers())", UOPC_NUM_THREADS=4)
    assert said.split() == ["0", "3"]


def test_one_thread_makes_no_workers(python):
    assert python("check(make()); print(num_workers())", UOPC_NUM_THREADS=1) == "0"


def test_more_threads_than_processors(python):
    python("plan = make()\nfor _ in range(200): check(plan)", UOPC_NUM_THREADS=40)


def test_without_permission_to_make_threads(python):
    """RLIMIT_NPROC does not bind root, so address space for their stacks is what is missing here."""
    python(
        """
import resource
plan = make()
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (12 << 20), resource.RLIM_INFINITY))
for _ in range(20): check(plan)
assert num_workers() < 30
""",
        UOPC_NUM_THREADS=31,
    )


def test_python_threads_with_shared_and_own_plans(schedules):
    """Eight threads; results compared bit for bit.  Temporaries of a plan that runs twice at once must not meet."""
    set_num_threads(3)
    libraries = [compile_source(source) for source in schedules]

    def make(library):
        return NativePlan([(library, "axpy", args) for args in [(3, 1, 2), (4, 3, 2), (0, 4, 2)]], 3, [40000, 40000])

    shared, errors = make(libraries[0]), []

    def work(seed):
        own = make(libraries[seed % 3])
        x, y = np.full(10000, seed, "f"), np.arange(10000, dtype="f")
        expected = ((x * 2 + y) * 2 + y) * 2 + y
        for _ in range(60):
            for plan in (shared, own):
                out = np.empty(10000, "f")
                plan.run([out, x, y])
                if out.tobytes() != expected.tobytes():
                    errors.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("size", [128 << 10, 1 << 20])
def test_python_threads_with_small_stacks(python, size):
    """Kernels keep their tiles on the stack, and a thread may have less than they take."""
    python(
        f"""
import uopc
rng = np.random.default_rng(0)
a, b = (rng.standard_normal((700, 900)).astype("f") for _ in range(2))
product = uopc.jit(lambda a, b: a @ b.T)
expected = product(a, b)
np.testing.assert_allclose(expected, a.astype("f8") @ b.T, rtol=1e-4, atol=1e-3)
results = []
threading.stack_size({size})
threads = [threading.Thread(target=lambda: results.append(product(a, b))) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(results) == 3 and all(np.array_equal(r, expected) for r in results)
""",
        UOPC_NUM_THREADS=2,
    )


@pytest.mark.parametrize("size", [128 << 10, 2 << 20, 3 << 20, 6 << 20])
def test_tiles_of_as_much_as_a_kernel_may_keep(python, size):
    """2.8 MB of ALLOCs called on a thread with a stack of 2 MB were a segmentation fault: what a kernel may keep is one
    number, that of the Target, by which the pool chooses the thread."""
    python(
        f"""
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.target import STACK
from uopc.uop import Ops, ParamArg, UOp, dtypes, range_, sink
def program(nbytes):
    n = nbytes // 4
    out, tile = (UOp(op, (), ParamArg(0, dtypes.float32, (n,))) for op in (Ops.BUFFER, Ops.ALLOC))
    i, j = range_(n, 0), range_(n, 1)
    filled = tile.index(i).store(i.cast(dtypes.float32) * 2.0).end(i)
    return sink(out.index(j).store(tile.after(filled).index(n - 1 - j).load()).end(j)), n
threading.stack_size({size})
wrong = []
for nbytes in (2800 << 10, STACK):
    graph, n = program(nbytes)
    kernel, out = Program(render_c(graph, "k"), "k"), np.zeros(n, np.float32)
    def call():
        kernel(out)
        wrong.append(not np.array_equal(out, np.arange(n, dtype=np.float32)[::-1] * 2))
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
assert wrong == [False, False]
try: render_c(program(STACK + 4)[0], "k")
except ValueError as refused: assert str(STACK) in str(refused)
else: assert False
"""
    )


def test_a_process_with_a_small_stack(python):
    python(
        """
import resource, subprocess
code = "import numpy as np, uopc; a = np.ones((900, 900), 'f'); print((uopc.Tensor(a) @ uopc.Tensor(a)).numpy()[3, 3])"
small = lambda: resource.setrlimit(resource.RLIMIT_STACK, (256 << 10, resource.RLIM_INFINITY))
assert subprocess.check_output([sys.executable, "-c", code], preexec_fn=small, text=True).strip() == "900.0"
"""
    )
