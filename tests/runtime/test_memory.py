"""Result memory and temporaries: aligned, recycled, bounded, and refused when there is none."""

import gc

import numpy as np
import pytest

from uopc import Tensor
from uopc.runtime import Memory, NativePlan, compile_source, memory_stats, trim_memory


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, 100_000, 1 << 20, (5 << 20) + 3])
def test_memory_is_aligned_and_writable(size):
    memory = Memory(size)
    assert memory.address % 64 == 0 and memory.nbytes == len(memory) == size
    array = np.ndarray((size,), "uint8", memory)
    array[:] = 7
    assert array.sum() == 7 * size


def test_an_array_keeps_its_memory_alive():
    array = np.ndarray((1000,), "float32", Memory(4000))
    array[:] = 1
    for _ in range(10):
        np.ndarray((1000,), "float32", Memory(4000))[:] = 2
    assert (array == 1).all()


@pytest.mark.parametrize("size", [64, 5000, 3 << 20])
def test_dead_memory_is_used_again(size):
    memory = Memory(size)
    address, before = memory.address, memory_stats()["recycled"]
    del memory
    gc.collect()
    assert Memory(size).address == address
    assert memory_stats()["recycled"] == before + 1


def test_live_memory_is_never_shared():
    blocks = [Memory(0) for _ in range(50)] + [Memory(100) for _ in range(50)]
    assert len({block.address for block in blocks}) == 100


def test_what_cannot_be_had_is_a_memory_error():
    with pytest.raises(MemoryError, match="1152921504606846976 bytes"):
        Memory(1 << 60)
    with pytest.raises(OverflowError):
        Memory(-1)
    assert Memory(64).nbytes == 64


def test_trim_gives_idle_memory_back():
    del_me = Memory(1 << 20)
    del del_me
    assert memory_stats()["idle_bytes"] >= 1 << 20
    trim_memory()
    assert memory_stats()["idle_bytes"] == 0


def chain_plan(source):
    """d0 = ((d1 * 2 + d2) * 2 + d2) * 2 + d2, with two temporaries of 40,000 bytes."""
    library = compile_source(source)
    kernels = [(library, "axpy", args) for args in [(3, 1, 2), (4, 3, 2), (0, 4, 2)]]
    return NativePlan(kernels, 3, [40000, 40000])


def test_an_arena_lives_as_long_as_its_plan(axpy_source):
    before = memory_stats()["arena_bytes"]
    plan = chain_plan(axpy_source)
    x, y, out = np.ones(10000, "f"), np.ones(10000, "f"), np.empty(10000, "f")
    for _ in range(3):
        plan.run([out, x, y])
    assert (out == 15).all()
    assert memory_stats()["arena_bytes"] - before == -(-plan.arena_size // 4096) * 4096
    del plan
    assert memory_stats()["arena_bytes"] == before


def test_arena_limit(python):
    code = """
library = compile_source(os.environ["AXPY"])
kernels = [(library, "axpy", (3, 1, 2)), (library, "axpy", (0, 3, 2))]
small, large = (NativePlan(kernels, 3, [size]) for size in (1 << 16, 1 << 20))
out = np.empty(10000, "f")
small.run([out, x, y])
try: large.run([out, x, y])
except MemoryError as error: print(error)
small.run([out, x, y]); assert (out == (x * 2 + y) * 2 + y).all()
"""
    said = python(code, UOPC_ARENA_LIMIT=1 << 18)
    assert "1048576 bytes" in said and "UOPC_ARENA_LIMIT is 262144" in said


def test_arenas_are_bounded_together(python):
    """Several plans, one after the other and two at once: never more than the limit, and a refusal says so."""
    python(
        """
library = compile_source(os.environ["AXPY"])
kernels = [(library, "axpy", (3, 1, 2)), (library, "axpy", (0, 3, 2))]
plans = [NativePlan(kernels, 3, [100_000]) for _ in range(5)]
for _ in range(3):
    for plan in plans:
        out = np.empty(10000, "f")
        plan.run([out, x, y])
        assert (out == (x * 2 + y) * 2 + y).all()
        assert memory_stats()["arena_bytes"] <= 250_000
refused, right = [], []
def work(plan):
    for _ in range(300):
        out = np.empty(10000, "f")
        try: plan.run([out, x, y])
        except MemoryError as error: refused.append(str(error)); continue
        right.append((out == (x * 2 + y) * 2 + y).all())
        if memory_stats()["arena_bytes"] > 250_000: refused.append("over")
threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert all("UOPC_ARENA_LIMIT is 250000 for all plans together" in text for text in refused), refused[0]
assert all(right) and len(right) + len(refused) == 1500
stats = memory_stats()
del plans, plan
assert stats["live_bytes"] == 0 and memory_stats()["arena_bytes"] == 0
""",
        UOPC_ARENA_LIMIT=250_000,
    )


def test_idle_memory_is_bounded_by_what_a_container_has(python):
    """A quarter of it, where that is less than the machine's."""
    python("""
from uopc._hot.runtime import set_machine_memory
before = memory_stats()["keep_bytes"]
set_machine_memory(before * 8)  # more than there is
assert memory_stats()["keep_bytes"] == before
set_machine_memory(40 << 20)
assert memory_stats()["keep_bytes"] == 10 << 20
blocks = [Memory(4 << 20) for _ in range(5)]
del blocks
assert 0 < memory_stats()["idle_bytes"] <= 10 << 20
""")


def test_address_space_too_small_for_the_arena(python):
    """MemoryError before any kernel has run; afterwards smaller work, and later the same work, succeeds."""
    python("""
import resource
library = compile_source(os.environ["AXPY"])
plan = NativePlan([(library, "axpy", (0, 1, 2)), (library, "axpy", (3, 1, 2))], 3, [1 << 30])
check(make())
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
out = np.zeros(10000, "f")
for _ in range(2):
    try: plan.run([out, x, y])
    except MemoryError: pass
    else: sys.exit("no MemoryError")
    assert not out.any()
try: Memory(1 << 30)
except MemoryError: pass
else: sys.exit("no MemoryError")
check(make())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
plan.run([out, x, y])
assert (out == x * 2 + y).all()
""")


def test_idle_memory_makes_room_for_new(python):
    """Under a limit of address space, what is kept for reuse is given back rather than refused to another size."""
    python("""
import resource
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
for size in (200, 150, 250, 100, 200):
    np.ndarray((size << 20,), "uint8", Memory(size << 20))[::4096] = 1
""")


def test_a_result_that_no_memory_holds_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="more than memory can hold"):
        Tensor.zeros(2**29, 2**29).contiguous().numpy()
