"""The runtime: compiled kernels, threads and memory.

Importing it sets the number of threads and the memory limit from the environment, and the stack that kernels may take,
and nothing else: the compiler and NumPy are imported when first used.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from uopc._hot.runtime import (
    Library,
    Memory,
    NativePlan,
    get_num_threads,
    memory_stats,
    override_num_threads,
    set_kernel_stack,
    set_machine_memory,
    set_memory_limit,
    trim_memory,
)
from uopc._hot.runtime import set_num_threads as _set_native_threads
from uopc.options import environment
from uopc.target import STACK

if TYPE_CHECKING:
    from types import TracebackType

    from uopc.runtime.compiler import CompileError, CompilerNotFound, compile_source, compile_sources
    from uopc.runtime.device import Device
    from uopc.runtime.program import Program

__all__ = [
    "CompileError",
    "CompilerNotFound",
    "Device",
    "Library",
    "Memory",
    "NativePlan",
    "Program",
    "compile_source",
    "compile_sources",
    "get_num_threads",
    "memory_stats",
    "num_threads",
    "set_num_threads",
    "trim_memory",
]

_LATE = frozenset(__all__) - globals().keys() - {"num_threads", "set_num_threads"}  # what brings the compiler along


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uopc.runtime import compiler, device, program

    for home in (compiler, device, program):
        if hasattr(home, name):
            return globals().setdefault(name, getattr(home, name))
    raise AttributeError(name)


def set_num_threads(n: int | None) -> int:
    """Use n threads, the calling one included; None: UOPC_NUM_THREADS, else OMP_NUM_THREADS, else the usable cores.

    Returns the number in force before.  ValueError if n < 1.
    """
    if n is None:
        from uopc.runtime.device import usable_cores

        n = environment().num_threads or usable_cores()
    return _set_native_threads(_count(n))


def _count(n: int) -> int:
    """A number of threads; TypeError for what is no integer, ValueError below 1."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"{n!r} threads; an integer of at least 1 is accepted")
    if n < 1:
        raise ValueError(f"{n} threads; at least 1 is accepted")
    return n.__index__()


class num_threads:
    """`with num_threads(n):` work that this thread starts inside uses n threads.  Blocks nest.  ValueError if n < 1."""

    def __init__(self, n: int) -> None:
        self._n = _count(n)
        self._before: list[int | None] = []

    def __enter__(self) -> None:
        self._before.append(override_num_threads(self._n))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        override_num_threads(self._before.pop())


def _set_memory_bounds() -> None:
    from uopc.runtime.device import memory_quota

    quota, limit = memory_quota(), environment().arena_limit
    if quota is not None:
        set_machine_memory(quota)
    if limit:
        set_memory_limit(limit)


def _await_imports() -> None:
    """Before a fork: modules are imported when first used, and the lock of one that another thread is importing would
    never be released in the child.
    """
    patience = time.monotonic() + 10.0  # no import takes as long, unless it waits for this thread
    while _is_importing() and time.monotonic() < patience:
        time.sleep(0.001)


def _is_importing() -> bool:
    """Whether another thread has the lock of a module, of ours or of what ours import."""
    locks = getattr(importlib._bootstrap, "_module_locks", {})
    held = (ref() for ref in list(locks.values()))
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in held)


os.register_at_fork(before=_await_imports)
set_kernel_stack(STACK)
set_num_threads(None)
_set_memory_bounds()
