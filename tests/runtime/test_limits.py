"""Where the system refuses memory, errors name the limit, what is kept for later makes room, and then things work."""

import pytest

from uopc import limits, memo
from uopc._hot.runtime import n_libraries
from uopc.runtime import compile_source
from uopc.runtime.compiler import find_compiler

# Leaves this process `keep` mappings: every other page of a region is protected.
FILL = """
import ctypes
from uopc import Tensor, limits
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
pages = limits.max_mappings() + 10
def fill(keep):
    region = libc.mmap(None, ctypes.c_size_t(pages * 4096), 3, 0x4022, -1, ctypes.c_long(0))
    for k in range((limits.max_mappings() - keep - limits.mappings()) // 2):
        libc.mprotect(ctypes.c_void_p(region + (2 * k + 1) * 4096), ctypes.c_size_t(4096), 1)
    return region
def free(region): assert libc.munmap(ctypes.c_void_p(region), ctypes.c_size_t(pages * 4096)) == 0
x = Tensor(np.ones(7, "f"))
def right(n): assert (x * n + 1.5).numpy()[3] == n + 1.5
right(1)
"""
few_mappings = pytest.mark.skipif(
    limits.max_mappings() > 300_000, reason="too many mappings are allowed to use them up"
)


@few_mappings
@pytest.mark.parametrize("keep", [0, 3, 30])
def test_no_mappings_left(python, keep):
    """An error names vm.max_map_count, and what to do; once there are mappings again, the same thing works."""
    python(
        FILL
        + """
keep, plans, refused = int(sys.argv[1]), [], None
import uopc
region = fill(keep)
for n in range(2, 60):
    work = uopc.jit(lambda x, n=n: x * n + 1.5)  # keeps its library
    try: assert work(np.ones(5, "f"))[0] == n + 1.5; plans.append(work)
    except MemoryError as error: refused = str(error); break
free(region)
assert refused and "vm.max_map_count" in refused and "sysctl -w" in refused, refused
for n in range(2, 9): right(n)
""",
        keep,
    )


@few_mappings
def test_what_is_kept_for_later_makes_room(python):
    """At the limit, libraries that no plan of the caller needs are closed for new ones."""
    python(
        FILL
        + """
for n in range(2, 40): right(n)
region = fill(20)
for n in range(40, 70): right(n)
"""
    )


def variant(source, n):
    return f"{source}\nint number{n} = {n};"


def test_libraries_are_bounded_by_the_mappings_that_a_process_may_have(settings, axpy_source, monkeypatch):
    """Those that nothing holds are closed; where all are held, an error says how many there may be."""
    while memo.shed():
        pass
    before = n_libraries()
    monkeypatch.setattr(limits, "max_mappings", lambda: 8 * (before + 6) // 3 + 1)  # room for 6 libraries
    for n in range(12):
        assert compile_source(variant(axpy_source, n)).launch("axpy")[1] == 10000
        assert n_libraries() <= before + 6
    held = []
    with pytest.raises(MemoryError, match=r"no room for more than \d+ loaded libraries; .*vm.max_map_count"):
        held.extend(compile_source(variant(axpy_source, n)) for n in range(12))
    assert len(held) == 6
    held.clear()
    assert compile_source(variant(axpy_source, 11)).launch("axpy")[1] == 10000


def test_a_library_takes_two_mappings(settings, axpy_source):
    if find_compiler().linker is None:
        pytest.skip("another compiler than gcc links as it likes")
    library = compile_source(axpy_source)
    with open("/proc/self/maps") as file:
        mine = [line.split()[1] for line in file if library.path.rsplit("/", 1)[1] in line]
    assert mine == ["r-xp", "rw-p"]


def test_address_space_is_named(python):
    """A limit set with `ulimit -v` is named for results and for the temporaries of a plan."""
    python("""
import resource
from uopc.runtime import Memory
library = compile_source(os.environ["AXPY"])
plan = NativePlan([(library, "axpy", (0, 1, 2)), (library, "axpy", (3, 1, 2))], 3, [1 << 30])
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
for work in (lambda: Memory(1 << 30), lambda: plan.run([np.zeros(10000, "f"), x, y])):
    try: work()
    except MemoryError as error: assert f"{used + (256 << 20)} that its limit allows (ulimit -v" in str(error), error
    else: sys.exit("no MemoryError")
""")


def test_errors_that_give_no_reason(monkeypatch):
    """They get one only where a limit was hit, and those that have one keep it."""
    monkeypatch.setattr(limits, "shortage", lambda asked=0: "a limit was hit")
    for bare in (MemoryError(), OSError(12, "Cannot allocate memory"), ImportError("failed to map segment")):
        with pytest.raises(MemoryError, match="no memory to try; a limit was hit"), limits.explained("to try"):
            raise bare
    for told in (MemoryError("too large"), OSError(2, "No such file"), ValueError("no")):
        with pytest.raises(type(told)) as raised, limits.explained("to try"):
            raise told
        assert raised.value is told
    monkeypatch.setattr(limits, "shortage", lambda asked=0: None)
    with pytest.raises(MemoryError) as raised, limits.explained("to try"):
        raise MemoryError
    assert not raised.value.args
