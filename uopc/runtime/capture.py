"""While a function is captured: who is capturing, which random keys were drawn, which positions are to be checked.

A captured function is run once with BUFFERs that have no memory, so that only its graph is left.  The state is the
thread's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from uopc._hot.call import count_captures
from uopc.ops import Ops
from uopc.uop import UOp, toposort


class CaptureError(RuntimeError):
    """A function cannot be captured; the text says why and what would be accepted."""


class Recording:
    """What a function that is being captured did besides building its graph.

    keys: the BUFFERs of the random keys that it drew, in order.  checks: (least, most, accepted, complaint) of
    positions that every run has to look at: IndexError unless both are among those accepted.
    """

    def __init__(self) -> None:
        self.keys: list[UOp] = []
        self.checks: list[tuple[UOp, UOp, range, str]] = []


class _State(threading.local):
    recording: Recording | None = None


_state = _State()


@contextmanager
def recording() -> Iterator[Recording]:
    """A block in which this thread captures."""
    before, _state.recording = _state.recording, Recording()
    count_captures(1)
    try:
        yield _state.recording
    finally:
        _state.recording = before
        count_captures(-1)


def is_recording() -> bool:
    """Whether this thread captures a function now."""
    return _state.recording is not None


def is_unbound(u: UOp) -> bool:
    """Whether this thread captures a function, and the value of ``u`` is not known before its arguments are."""
    if _state.recording is None:
        return False
    return any(b.op is Ops.BUFFER and (b.realized is None or is_drawn(b)) for b in toposort(u))


def note_key(buffer: UOp) -> UOp:
    """Told of the BUFFER of each random key that is drawn, which a captured function has to draw anew."""
    if _state.recording is not None:
        _state.recording.keys.append(buffer)
    return buffer


def note_check(least: UOp, most: UOp, accepted: range, complaint: str) -> None:
    """Positions from ``least`` to ``most``, which are known only when the function runs, have to be accepted ones."""
    assert _state.recording is not None
    _state.recording.checks.append((least, most, accepted, complaint))


def is_drawn(buffer: UOp) -> bool:
    """Whether it is the BUFFER of a random key of the function that is being captured."""
    return _state.recording is not None and buffer in _state.recording.keys
