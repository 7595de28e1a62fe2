"""fork, spawn, exit and signals, in processes of their own: none may hang, and none may leave a wrong result."""

import os

import pytest

IN_CHILD = """
def in_child(work):
    pid = os.fork()
    if pid == 0:
        try: work()
        except BaseException as error: print(repr(error), file=sys.stderr); os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.fixture(params=[1, 3])
def threads(request):
    return request.param


def test_fork_before_the_pool_starts(python, threads):
    python(IN_CHILD + "in_child(lambda: check(make())); check(make())", UOPC_NUM_THREADS=threads)


def test_fork_after_a_kernel(python, threads):
    python(
        IN_CHILD + "plan = make(); check(plan)\nfor _ in range(5): in_child(lambda: check(plan)); check(plan)",
        UOPC_NUM_THREADS=threads,
    )


def test_fork_in_a_forked_child(python):
    python(
        IN_CHILD + "plan = make(); check(plan); in_child(lambda: (check(plan), in_child(lambda: check(plan))))",
        UOPC_NUM_THREADS=3,
    )


def test_fork_while_kernels_run(python):
    python(
        IN_CHILD
        + """
plan, stop = make(), False
def keep_running():
    while not stop: check(plan)
thread = threading.Thread(target=keep_running); thread.start()
for _ in range(25): in_child(lambda: (check(plan), check(make())))
stop = True
thread.join()
""",
        UOPC_NUM_THREADS=3,
    )


def test_fork_while_another_thread_compiles(python):
    """The child compiles the very kernel that the parent is compiling."""
    python(
        IN_CHILD
        + """
thread = threading.Thread(target=make); thread.start()
time.sleep(0.005)
in_child(lambda: check(make()))
thread.join()
"""
    )


@pytest.mark.parametrize("module", ["uopc.runtime.records", "uopc.kernelize", "uopc.render_c", "shlex"])
def test_fork_while_another_thread_imports(python, module):
    """Modules are imported when first used; the child must not wait for a lock that nobody in it will release."""
    python(
        IN_CHILD
        + """
import signal, uopc

reached = threading.Event()
def slow(event, arguments):
    if event == "import" and arguments[0] == sys.argv[1] and not reached.is_set():
        reached.set()
        time.sleep(0.3)
sys.addaudithook(slow)
def work():
    import uopc.runtime.plan
    assert ((uopc.Tensor(x) @ uopc.Tensor(y)).numpy() == (x * y).sum()).all()
def in_child_in_time():
    signal.alarm(60)
    work()
thread = threading.Thread(target=work); thread.start()
assert reached.wait(60)
in_child(in_child_in_time)
thread.join()
""",
        module,
        CC=os.environ.get("CC", "cc"),  # what names a compiler is taken apart by shlex
        UOPC_VERIFY=None,
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(tmp_path, python, method):
    script = tmp_path / "work.py"
    script.write_text("""
import multiprocessing, os, sys
import numpy as np
from uopc.runtime import Program

def work(k):
    out, x = np.empty(10000, "f"), np.full(10000, k, "f")
    Program(os.environ["AXPY"], "axpy")(out, x, x)
    return float(out[-1])

if __name__ == "__main__":
    work(1)
    with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
        assert pool.map(work, range(12)) == [3.0 * k for k in range(12)]
""")
    python(
        f"import runpy; sys.argv = ['work', {method!r}]\nimport subprocess\n"
        f"subprocess.run([sys.executable, {str(script)!r}, {method!r}], check=True)",
        UOPC_NUM_THREADS=2,
    )


def test_exit_joins_the_workers(python):
    code = "import atexit; atexit.register(lambda: print(num_workers())); check(make())"
    assert python(code, UOPC_NUM_THREADS=3) == "2"  # ours was registered earlier and therefore runs later
    code = "check(make()); shutdown(); print(num_workers()); check(make()); print(num_workers())"
    assert python(code, UOPC_NUM_THREADS=3).split() == ["0", "0"]


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "pass"])
def test_exit_while_a_daemon_thread_computes(python, end):
    python(
        f"""
plan = make()
def forever():
    while True: check(plan)
for _ in range(2): threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
{end}
""",
        UOPC_NUM_THREADS=3,
    )


def test_signals_go_to_the_main_thread(python):
    """Workers block all signals: a handler runs although a worker was there to take the signal."""
    python(
        """
import signal
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread() is threading.main_thread()))
check(make())
for _ in range(20): os.kill(os.getpid(), signal.SIGUSR1)
assert seen and all(seen)
blocked = []
for task in os.listdir("/proc/self/task"):
    if int(task) != os.getpid():
        fields = dict(line.split(":", 1) for line in open(f"/proc/self/task/{task}/status"))
        blocked.append(int(fields["SigBlk"], 16) >> (signal.SIGUSR1 - 1) & 1)
assert blocked.count(1) >= 2, blocked
""",
        UOPC_NUM_THREADS=3,
    )


def test_children_are_ignored(python):
    """With SIGCHLD ignored, the system reaps the compiler before we can ask for its exit code."""
    python("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); check(make())")


def test_a_compiler_may_have_children_where_ours_are_ignored(python):
    """What ignores SIGCHLD passes that on to what it starts; clang then cannot wait for its own children."""
    python(
        "import signal; from uopc.runtime.spawn import run; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "code = 'import signal; print(signal.getsignal(signal.SIGCHLD).name)'\n"
        "assert run([sys.executable, '-c', code])[1].strip() == 'SIG_DFL'"
    )


def test_idle_workers_sleep(python):
    """Processor time of a process that does nothing, between two looks 0.5 s apart, the first 0.1 s after work."""
    used = python(
        "check(make()); time.sleep(0.1); before = time.process_time()\n"
        "time.sleep(0.5); print(time.process_time() - before)",
        UOPC_NUM_THREADS=3,
    )
    assert float(used) < 0.05
