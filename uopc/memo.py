"""Memos: what was computed is kept for its next use, within a bound, and what was used longest ago goes first.

A process may meet any number of shapes, so that nothing may be kept for each of them without a bound.  A function whose
value follows from its arguments has ``functools.lru_cache`` with a bound; what is found, made and kept in separate
steps is in a ``Memo``.  Neither owns anything: what a memo drops lives on while a plan or a caller holds it, and is
made again when it is next asked for.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Generic, TypeVar
from weakref import WeakSet

K = TypeVar("K")
V = TypeVar("V")

# Entries of what is kept for each shape, dtype or number that a function is asked about: several times what the largest
# models have of them, and a hundred kilobytes.
SHAPES = 256


class Memo(Generic[K, V]):
    """At most ``most`` values by key; one more drops the one used longest ago.  Safe in several threads."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"a memo of {most} entries; at least 1 is accepted")
        self.most = most
        self._held: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.RLock()  # what dies while it is held may look here again
        _memos.add(self)

    def get(self, key: K) -> V | None:
        """The value kept under ``key``, which counts as a use; None for none."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
        self._drop_to(self.most)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[K]:
        """The keys, the one used longest ago first."""
        with self._lock:
            return iter(list(self._held))

    def values(self) -> list[V]:
        """What is kept, what was used longest ago first."""
        with self._lock:
            return list(self._held.values())

    def clear(self) -> None:
        """Forget everything."""
        self._drop_to(0)

    def _drop_to(self, most: int) -> None:
        dropped = []  # dies outside the lock
        with self._lock:
            while len(self._held) > most:
                dropped.append(self._held.popitem(last=False))


_memos: WeakSet[Memo[Any, Any]] = WeakSet()


def shed() -> bool:
    """Drop the half of every memo that was used longest ago.  Whether there was anything to drop."""
    found = [(memo, len(memo)) for memo in list(_memos)]
    for memo, held in found:
        memo._drop_to(held // 2)
    return any(held for _, held in found)


def _after_fork() -> None:
    """The thread that held a lock is not in the child."""
    for memo in list(_memos):
        memo._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
