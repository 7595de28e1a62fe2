"""The system's limits on the memory of this process: errors name the one that was hit, and what lifts it.

Where one of them is hit, nothing can be counted on: here only small files are read, and no module is imported.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

MAX_MAPPINGS = 65530  # Linux's own, where it does not say
# What is refused needed more than is left: a library takes a few mappings, a thread's stack or a heap some megabytes.
NEAR_MAPPINGS = 16
NEAR_BYTES = 16 << 20
CHUNK = 1 << 14
# The name in /proc/self/limits, what of /proc/self/status counts, and what sets it.
BYTES = (("Max address space", "VmSize", "ulimit -v"), ("Max data size", "VmData", "ulimit -d"))


@lru_cache(maxsize=1)
def max_mappings() -> int:
    """How many mappings a process may have: vm.max_map_count."""
    try:
        return int(_content("/proc/sys/vm/max_map_count"))
    except (OSError, ValueError):
        return MAX_MAPPINGS


def shortage(asked: int = 0) -> str | None:
    """Which limit leaves no room for ``asked`` bytes more, and what to do; None where none that is known does."""
    try:
        return too_many_mappings() if mappings() + NEAR_MAPPINGS > max_mappings() else _too_many_bytes(asked)
    except OSError:
        return None  # without /proc


def because(asked: int = 0) -> str:
    """``shortage`` as the end of a sentence, empty where no limit is known."""
    found = shortage(asked)
    return f"; {found}" if found else ""


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Inside the block, what was refused without a reason (a MemoryError without text, an import that finds no room) is
    a MemoryError that names the limit, where one was hit."""
    try:
        yield
    except (MemoryError, ImportError, OSError) as error:
        why = shortage() if _is_bare(error) else None
        if why is None:
            raise
        raise MemoryError(f"no memory {doing}; {why}") from error


def _is_bare(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return not (isinstance(error, MemoryError) and error.args)


def too_many_mappings() -> str:
    """What to say where there are so many mappings that one more is refused."""
    return (
        f"this process has {mappings()} memory mappings, of {max_mappings()} that vm.max_map_count allows: keep fewer "
        f"captured functions, plans and arrays alive, or raise it (sysctl -w vm.max_map_count={4 * max_mappings()})"
    )


def mappings() -> int:
    """How many this process has."""
    return _content("/proc/self/maps").count(b"\n")


def _too_many_bytes(asked: int) -> str | None:
    """Which limit of bytes leaves no room for ``asked`` more; None where none does."""
    used = dict(line.split(":", 1) for line in _content("/proc/self/status").decode().splitlines() if ":" in line)
    for line in _content("/proc/self/limits").decode().splitlines():
        for name, kind, command in BYTES:
            limit = line[len(name) :].split()[:1] if line.startswith(name) else []
            taken = int(used.get(kind, "0").split()[0]) * 1024
            if limit and limit[0].isdigit() and taken + asked + NEAR_BYTES > int(limit[0]):
                return f"this process has {taken} bytes, of {limit[0]} that its limit allows ({command} sets it)"
    return None


def _content(path: str) -> bytes:
    parts = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, CHUNK):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)
