"""NativePlan: what it computes, and what it refuses."""

import array
import os
import signal
import threading

import numpy as np
import pytest

from uopc.runtime import Memory, NativePlan, compile_source, num_threads

COPY = """
void copy_range(void *const *args, long lo, long hi) {
  for (long i = lo; i < hi; i++) ((char *)args[0])[i] = ((char *)args[1])[i];
}
const long copy_launch[3] = {100, 10, 1};
"""
SLEEP = """
int usleep(unsigned);
void doze_range(void *const *args, long lo, long hi) { usleep(5000); ++*(int *)args[0]; }
const long doze_launch[3] = {1, 1, 0};
"""


@pytest.fixture
def arrays():
    return np.empty(10000, "f"), np.arange(10000, dtype="f"), np.full(10000, 3, "f")


@pytest.fixture
def axpy(axpy_source):
    return compile_source(axpy_source)


def test_every_schedule_and_thread_count_gives_the_same_bits(schedules, arrays):
    out, x, y = arrays
    expected = x * 2 + y
    for source in schedules:
        plan = NativePlan([(compile_source(source), "axpy", (0, 1, 2))], 3)
        for n in (1, 2, 3, 8):
            with num_threads(n):
                out[:] = 0
                plan.run([out, x, y])
            assert out.tobytes() == expected.tobytes()


def test_buffers_of_every_kind(axpy, arrays):
    out, x, y = arrays
    plan = NativePlan([(axpy, "axpy", (0, 1, 2))], 3)
    memory = Memory(40000)
    np.ndarray(10000, "f", memory)[:] = y
    plan.run((out, array.array("f", x.tolist()), memory))
    assert (out == x * 2 + y).all()
    out[:] = 0
    plan.run([out.ctypes.data, x.ctypes.data, memory.address])
    assert (out == x * 2 + y).all()
    plan.run([out.reshape(10, 10, 100), memoryview(x), y.reshape(100, 100)])
    assert (out == x * 2 + y).all()


def test_offsets_into_buffers_and_temporaries():
    library = compile_source(COPY)
    source, out = np.arange(200, dtype="u1"), np.zeros(150, "u1")
    plan = NativePlan([(library, "copy", [(2, 64), (1, 100)]), (library, "copy", [(0, 50), (2, 64)])], 2, [164])
    plan.run([out, source])
    assert (out[:50] == 0).all() and (out[50:] == source[100:]).all()


def test_many_buffers():
    library = compile_source(COPY)
    buffers = [np.full(100, i, "u1") for i in range(40)]
    plan = NativePlan([(library, "copy", (i, i + 20)) for i in range(20)], 40)
    plan.run(buffers)
    assert [int(b[99]) for b in buffers] == [*range(20, 40), *range(20, 40)]
    with pytest.raises(TypeError):
        plan.run([*buffers[:39], None])


def test_no_kernels_and_no_buffers():
    NativePlan([], 0).run([])


def test_refusals_when_made(axpy):
    with pytest.raises(ValueError, match="slot 4; there are 3 buffers and 1 temporaries"):
        NativePlan([(axpy, "axpy", (0, 1, 4))], 3, [8])
    with pytest.raises(ValueError, match="slot -1"):
        NativePlan([(axpy, "axpy", (0, 1, -1))], 3)
    with pytest.raises(ValueError, match="slot 3 is not one of the plan's 3 buffers"):
        NativePlan([(axpy, "axpy", (0, 1, 2))], 3, written=[3])
    with pytest.raises(LookupError, match="no symbol absent"):
        NativePlan([(axpy, "absent", (0, 1, 2))], 3)
    with pytest.raises(TypeError):
        NativePlan([("a library", "axpy", (0, 1, 2))], 3)
    with pytest.raises(MemoryError):
        NativePlan([(axpy, "axpy", (0, 3, 4))], 3, [1 << 62, 1 << 62])
    with pytest.raises(OverflowError):
        NativePlan([(axpy, "axpy", (0, 1, 3))], 3, [-1])


def test_refusals_when_run(axpy, arrays):
    out, x, y = arrays
    plan = NativePlan([(axpy, "axpy", (0, 1, 2))], 3, sizes=[40000] * 3, written=[0])
    frozen = out.copy()
    frozen.flags.writeable = False
    out[:] = -1
    with pytest.raises(ValueError, match="2 buffers; the plan takes 3"):
        plan.run([out, x])
    with pytest.raises(ValueError, match="slot 2 has 39996 bytes; at least 40000"):
        plan.run([out, x, y[1:]])
    with pytest.raises(ValueError, match="slot 1 has 64 bytes"):
        plan.run([out, Memory(64), y])
    with pytest.raises(ValueError, match="contiguous"):
        plan.run([out, np.empty(20000, "f")[::2], y])
    with pytest.raises(ValueError, match="read-only"):
        plan.run([frozen, x, y])
    with pytest.raises((BufferError, ValueError)):
        plan.run([b"0" * 40000, x, y])
    for wrong in (None, "text", 1.5, object()):
        with pytest.raises(TypeError):
            plan.run([out, wrong, y])
    with pytest.raises(TypeError):
        plan.run(7)
    assert (out == -1).all()
    plan.run([out, frozen, y])


def test_buffers_are_released(axpy, arrays):
    out, _, y = arrays
    plan = NativePlan([(axpy, "axpy", (0, 1, 2))], 3)
    exported = bytearray(40000)
    plan.run([out, exported, y])
    with pytest.raises(TypeError):
        plan.run([out, exported, None])
    exported.append(0)  # BufferError while somebody holds the buffer


def test_timings(axpy, arrays):
    plan = NativePlan([(axpy, "axpy", (0, 1, 2))] * 3, 3)
    seconds = plan.run_timed(arrays)
    assert len(seconds) == 3 and all(0 < s < 1 for s in seconds)
    with num_threads(2):
        kernels = plan.run_timeline(arrays)
    assert len(kernels) == 3
    for spans in kernels:
        assert spans and {thread for thread, _, _ in spans} <= {0, 1}
        assert all(start <= stop for _, start, stop in spans)


def test_a_watched_plan_tells_of_the_last_call_of_a_captured_function():
    import uopc

    with uopc.options(fuse_reduce=False):
        f = uopc.jit(lambda x: (x - x.sum()).exp().sum())
        x = np.ones(1000, np.float32)
        expected = f(x)
        plan = f.captured[0].plan
        plan.watch()
        ends = 0
        for _ in range(3):
            assert (f(x) == expected).all()
            kernels = plan.watched_timeline()
            assert len(kernels) > 1 and all(threads for threads in kernels)
            for threads in kernels:
                assert ends <= min(start for _, start, _ in threads)  # one kernel after another, call after call
                ends = max(stop for _, _, stop in threads)


def test_a_library_lives_as_long_as_a_plan_uses_it(settings, axpy_source, arrays):
    from uopc.runtime.compiler import clear_memory_cache

    out, x, y = arrays
    plan = NativePlan([(compile_source(axpy_source), "axpy", (0, 1, 2))], 3)
    clear_memory_cache()
    plan.run([out, x, y])
    assert (out == x * 2 + y).all()


def test_interrupt_between_kernels():
    """The signal arrives while a kernel runs; the run ends before the next one, and the plan can run again."""
    library = compile_source(SLEEP)
    plan = NativePlan([(library, "doze", (0,))] * 400, 1)
    count = np.zeros(1, "i4")
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        plan.run([count])
    timer.join()
    assert 0 < count[0] < 400
    short = NativePlan([(library, "doze", (0,))], 1)
    count[:] = 0
    short.run([count])
    assert count[0] == 1


HOW_CALLERS_ROUND = """
import ctypes, hashlib, uopc
source = "unsigned get(void) { return __builtin_ia32_stmxcsr(); } void set(unsigned v) { __builtin_ia32_ldmxcsr(v); }"
library = compile_source(source)
get = ctypes.CFUNCTYPE(ctypes.c_uint)(library.address("get"))
put = ctypes.CFUNCTYPE(None, ctypes.c_uint)(library.address("set"))
before, control = get(), int(sys.argv[1])
x = uopc.Tensor(np.linspace(-3, 3, 999, dtype="f"))
values = [x.softmax(-1), x.tanh(), x.sin(), x.exp(), (x + 4).log2(), x.sigmoid()]
small = uopc.Tensor(np.array([1e-40, -3e-39], "f"))
halves = small * 0.5
put(control)
try:
    for value in values: value.realize()
    halves.realize()
    assert (get() ^ control) & ~0x3f == 0
finally: put(before)
assert (halves.numpy() == small.numpy() / 2).all()
print(hashlib.sha1(b"".join(value.numpy().tobytes() for value in values)).hexdigest())
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the control word of x86")
def test_how_a_caller_rounds_changes_no_kernel(python):
    """A plan is made once, and kept for other processes: its constants are those of a thread that rounds to nearest.

    The caller's own way, denormals that it flushes included, is in force again afterwards.
    """
    ways = [0x1F80, 0x1F80 | 0x4000 | 0x8040, 0x1F80 | 0x6000]
    assert len({python(HOW_CALLERS_ROUND, way, UOPC_CACHE="0") for way in ways}) == 1
