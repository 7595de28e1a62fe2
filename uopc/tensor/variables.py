"""Variables: what a function is differentiated by, told apart from every other node of the same value.

While a function is differentiated, what it computes on the way keeps the graph that says how: a value that is looked at
(``item()``, ``realize()``) is still a function of the variables.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from uopc._hot.call import count_captures
from uopc.ops import Ops
from uopc.uop import UOp, toposort

_numbers = itertools.count(1)


class _State(threading.local):
    depth = 0


_state = _State()


@contextmanager
def differentiating() -> Iterator[None]:
    """A block in which this thread runs a function to differentiate it: captured functions are part of it."""
    _state.depth += 1
    count_captures(1)
    try:
        yield
    finally:
        _state.depth -= 1
        count_captures(-1)


def is_differentiating() -> bool:
    """Whether this thread runs a function to differentiate it."""
    return _state.depth > 0


def variable(u: UOp) -> UOp:
    """The value of ``u`` as a node that there is once."""
    return UOp(Ops.ALIAS, (u,), next(_numbers))


def is_variable(u: UOp) -> bool:
    """Whether ``variable`` made it."""
    return u.op is Ops.ALIAS and u.arg is not None


def holds_variable(u: UOp) -> bool:
    """Whether this thread differentiates a function, and ``u`` depends on a variable."""
    return is_differentiating() and any(is_variable(v) for v in toposort(u))
