"""Options: everything that changes generated code or how it runs, and the one place that reads the environment.

``Options`` is frozen and hashable, so that it can be part of every cache key.  ``options(...)`` sets fields for the
current thread (and tasks started from it) for the length of a ``with`` block.
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any


def _tune() -> int:
    return environment().tune


@dataclass(frozen=True)
class Options:
    """What changes generated code.

    fuse_reduce: None lets the cost model choose, False cuts at every REDUCE, True never writes a reduction's input
    down.
    opt: an object with ``layout(roots)`` and ``lower(body, out)``, or None for the built-in schedules.
    batch_invariant: a row's bits do not depend on the rows beside it: the order of each sum follows from its own length
    alone, and every operation is rounded by itself.
    tune: how many schedules of each kernel are measured when a plan is first compiled; the fastest is kept on disk, and
    other processes that tune take it from there.  0 (UOPC_TUNE says otherwise): none is, and none is read, so that the
    code follows from the expression, the options and the machine alone.  Schedules may round differently, so that
    ``batch_invariant`` keeps the usual ones.
    """

    fuse_reduce: bool | None = None
    opt: Any = None
    batch_invariant: bool = False
    tune: int = field(default_factory=_tune)


@dataclass(frozen=True)
class Environment:
    """The environment variables that uopc reads, parsed."""

    cc: str | None
    num_threads: int | None
    cache: bool
    cache_dir: str | None
    cache_limit: int
    arena_limit: int | None
    debug: int
    verify: bool
    dump: str
    tune: int


def _integer(name: str, default: int | None, least: int = 0) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not an integer") from None
    if value < least:
        raise ValueError(f"{name}={value} is too small; at least {least} is accepted")
    return value


def _folder(name: str) -> str | None:
    """The same folder wherever this process may go."""
    text = os.environ.get(name)
    return os.path.abspath(os.path.expanduser(text)) if text else None


def _omp_threads() -> int | None:
    """OMP_NUM_THREADS may be a list, one number a nesting level; the first one counts.  It is not ours: what makes no
    sense is ignored."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(int(first), 1 << 30) or None if first.isdecimal() and len(first) < 20 else None


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The environment as it was when first asked for.  ValueError names a variable that cannot be parsed."""
    limit = _integer("UOPC_CACHE_LIMIT", 1 << 30)
    assert limit is not None
    return Environment(
        cc=os.environ.get("CC") or None,
        num_threads=_integer("UOPC_NUM_THREADS", None, 1) or _omp_threads(),
        cache=os.environ.get("UOPC_CACHE", "1") != "0",
        cache_dir=_folder("UOPC_CACHE_DIR"),
        cache_limit=limit,
        arena_limit=_integer("UOPC_ARENA_LIMIT", None),
        debug=_integer("DEBUG", 0) or 0,
        verify=os.environ.get("UOPC_VERIFY", "0") not in ("", "0"),
        dump=os.environ.get("UOPC_DUMP", ""),
        tune=_integer("UOPC_TUNE", 0) or 0,
    )


_scoped: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("uopc_options", default=None)
_FIELDS = tuple(f.name for f in dataclasses.fields(Options))


@contextmanager
def options(**fields: Any) -> Iterator[None]:
    """Set fields of ``Options`` inside a ``with`` block, for this thread only; blocks nest, and inner ones win.

    TypeError for a field that does not exist or a value of another type, ValueError for a negative number.
    """
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise TypeError(f"options() has no field {', '.join(unknown)}; accepted are {', '.join(_FIELDS)}")
    if not (fields.get("fuse_reduce") is None or isinstance(fields["fuse_reduce"], bool)):
        raise TypeError(f"fuse_reduce={fields['fuse_reduce']!r}; accepted are None, False and True")
    tune = fields.get("tune", 0)
    if isinstance(tune, bool) or not isinstance(tune, int):
        raise TypeError(f"tune={tune!r}; how many schedules of each kernel to measure, an int, is accepted")
    if tune < 0:
        raise ValueError(f"tune={tune}; 0 (measure nothing) and more are accepted")
    if not isinstance(fields.get("batch_invariant", False), bool):
        raise TypeError(f"batch_invariant={fields['batch_invariant']!r}; accepted are False and True")
    token = _scoped.set({**(_scoped.get() or {}), **fields})
    try:
        yield
    finally:
        _scoped.reset(token)


def current(defaults: Options) -> Options:
    """The options in force: those of the innermost ``options`` blocks, over ``defaults``."""
    scoped = _scoped.get()
    return dataclasses.replace(defaults, **scoped) if scoped else defaults
