"""Memory, loaded libraries, plans and thread counts: the binding of runtime_c."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, final

from typing_extensions import Buffer

@final
class Memory:
    """nbytes of uninitialised memory, aligned to 64 bytes, recycled when it dies; exports a writable buffer of bytes."""

    nbytes: int
    def __init__(self, nbytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

Address: TypeAlias = int
Argument: TypeAlias = int | tuple[int, int]  # a slot, or (slot, byte offset)

@final
class DefaultFloats:
    """This thread rounds to nearest and keeps denormals inside."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Library:
    """A shared object, loaded while this object lives; opened: its name for the loader, if that is another."""

    path: str
    def __init__(self, path: str, opened: str | None = None) -> None: ...
    def address(self, name: str) -> Address: ...
    def launch(self, name: str) -> tuple[Address, int, int, int]:
        """(address of NAME_range, trips, chunk, schedule).  LookupError if there is no such kernel."""

def n_libraries() -> int:
    """How many libraries are loaded."""

@final
class NativePlan:
    """Kernels (library, name, args) that run in order in one call, with temporaries of the sizes `temps` in bytes."""

    def __init__(
        self,
        kernels: Iterable[tuple[Library, str, Sequence[Argument]]],
        n_buffers: int,
        temps: Iterable[int] = (),
        *,
        sizes: Sequence[int] | None = None,
        written: Iterable[int] = (),
    ) -> None: ...
    @property
    def n_buffers(self) -> int: ...
    @property
    def arena_size(self) -> int: ...
    def temp_offset(self, temp: int) -> int: ...
    def run(self, buffers: Sequence[Address | Memory | Buffer]) -> None:
        """Run all kernels with the GIL released; Ctrl-C is honoured between kernels."""
    def run_timed(self, buffers: Sequence[Address | Memory | Buffer]) -> list[float]:
        """Run, and return the seconds that each kernel took."""
    def run_timeline(self, buffers: Sequence[Address | Memory | Buffer]) -> list[list[tuple[int, int, int]]]:
        """Run, and return for each kernel a list of (thread, start, stop) in ns of CLOCK_MONOTONIC."""
    def watch(self) -> None:
        """Note, from the next call of a captured function on, when threads work on the kernels."""
    def watched_timeline(self) -> list[list[tuple[int, int, int]]]:
        """As `run_timeline` returns it, of the last call that was watched."""

def memory_stats() -> dict[str, int]: ...
def set_memory_limit(nbytes: int) -> None: ...
def set_machine_memory(nbytes: int) -> None: ...
def trim_memory() -> int: ...
def set_kernel_stack(nbytes: int) -> None: ...
def set_num_threads(n: int | None) -> int: ...
def override_num_threads(n: int | None) -> int | None: ...
def get_num_threads() -> int: ...
def num_workers() -> int: ...
def shutdown() -> None: ...
