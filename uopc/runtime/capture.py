"""While a function is captured: who is capturing, and which random keys were drawn.

A captured function is run once with BUFFERs that have no memory, so that only its graph is left.  The state is the
thread's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from uopc._hot.call import count_captures

if TYPE_CHECKING:
    from uopc.uop import UOp


class CaptureError(RuntimeError):
    """A function cannot be captured; the text says why and what would be accepted."""


class _State(threading.local):
    keys: list[UOp] | None = None


_state = _State()


@contextmanager
def recording() -> Iterator[list[UOp]]:
    """A block in which this thread captures.  Gives the BUFFERs of the random keys drawn so far, in order."""
    before, _state.keys = _state.keys, []
    count_captures(1)
    try:
        yield _state.keys
    finally:
        _state.keys = before
        count_captures(-1)


def is_recording() -> bool:
    """Whether this thread captures a function now."""
    return _state.keys is not None


def note_key(buffer: UOp) -> UOp:
    """Told of the BUFFER of each random key that is drawn, which a captured function has to draw anew."""
    if _state.keys is not None:
        _state.keys.append(buffer)
    return buffer


def is_drawn(buffer: UOp) -> bool:
    """Whether it is the BUFFER of a random key of the function that is being captured."""
    return _state.keys is not None and buffer in _state.keys
