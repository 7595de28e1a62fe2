"""Loading libraries, and starting programs, where the system may have no room for one more.

Each library takes memory mappings, of which a process may have 65,530 of all kinds.  Near that, Python itself and
everything else fails without a word.  So libraries have a share of them, and what is kept for later makes room.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from typing import TypeVar

from uopc import limits, memo
from uopc._hot.runtime import Library, n_libraries

T = TypeVar("T")

_loads = itertools.count(1)

MAPPINGS = 2  # of a library as gcc's linker makes it: see ``LINK_FLAGS``
MAPPINGS_SHARE = 0.75  # of what a process may have, that of libraries at most: the rest is for everyone else


def opened(path: str, name: str) -> Library:
    """The library at ``path``, which the loader opens by ``name``.

    The loader takes two files with one name for the same file.  Numbers of descriptors come again, and so do names in
    the cache, when what was there is gone from it but still loaded.  So the name is made unique: in each step of its
    path a bit of a count, `/./` or `///`.

    OSError if it cannot be loaded, MemoryError, which names the limit, if there is no room for it.
    """
    most = int(MAPPINGS_SHARE * limits.max_mappings()) // MAPPINGS
    while n_libraries() >= most:
        if not _make_room() and n_libraries() >= most:
            raise MemoryError(f"no room for more than {most} loaded libraries; {limits.too_many_mappings()}")
    steps = format(next(_loads), "b").replace("0", "//").replace("1", "./")
    folder, _, base = name.rpartition("/")
    return with_room(lambda: Library(path, f"{folder}/{steps}{base}"))


def with_room(work: Callable[[], T]) -> T:
    """``work``, for which memos make room where the system has none; MemoryError, which names the limit, if that is too
    little."""
    may_help = True
    while True:
        try:
            return work()
        except OSError as error:
            why = limits.shortage() if error.errno in (None, errno.ENOMEM) else None
            if why is None:
                raise
            if not may_help:
                raise MemoryError(f"{error}; {why}") from error
            may_help = _make_room()


def _make_room() -> bool:
    """Let go of half of what is kept for later, and of what nothing holds; False if there was nothing to let go of."""
    import gc

    found = memo.shed()
    gc.collect()
    return found
