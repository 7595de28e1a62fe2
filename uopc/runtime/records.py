"""Plans on disk: what a fresh process needs to launch a plan that some process has made before, and nothing else.

A record holds no code, only the keys of compiled kernels and how their arguments are laid out.  It is found by a digest
of the graph, the options, the compiler, the machine, and the files of uopc itself.  Loading one takes a millisecond
where making the plan takes tens, most of them to import the passes.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from uopc._hot.runtime import get_num_threads
from uopc.options import Options
from uopc.runtime.cache import digest
from uopc.runtime.device import device
from uopc.uop import UOp, toposort

VERSION = 1


class Record(NamedTuple):
    """A plan as the native executor sees it, in plain values.

    kernels: (key on disk, symbol) of each kernel.  calls: (number of a kernel, ((buffer, offset in bytes), ...)) in the
    order in which they run.  inputs, outs, temps: (dtype's name, elements or shape) of each buffer, numbered in that
    order.  input_numbers, results: as in ``pipeline.Plan``.
    """

    kernels: tuple[tuple[str, str], ...]
    calls: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    inputs: tuple[tuple[str, int], ...]
    input_numbers: tuple[int, ...]
    outs: tuple[tuple[str, tuple[int, ...]], ...]
    temps: tuple[tuple[str, int], ...]
    results: tuple[int, ...]

    def pack(self) -> bytes:
        """As bytes."""
        return marshal.dumps(tuple(self))


def unpack(data: bytes | None) -> Record | None:
    """The record that these bytes hold; None for none."""
    return None if data is None else Record(*marshal.loads(data))


def record_key(graph: UOp, options: Options, toolchain: str) -> str | None:
    """The name of a plan's record; None for options that only this process understands.

    toolchain: what tells compiler and flags from others.
    """
    if options.opt is not None:
        return None
    if options.tune:  # measured with so many threads
        toolchain += f" {get_num_threads()}"
    return digest(f"plan {VERSION}", repr(options), toolchain, identity(), *graph_lines(graph))


def graph_lines(graph: UOp) -> Iterable[str]:
    """The graph as text, one line a node, sources by number: equal for equal graphs, in any process."""
    numbers: dict[UOp, int] = {}
    for u in toposort(graph):
        numbers[u] = len(numbers)
        yield f"{u.op.name} {u.dtype.name} {[numbers[s] for s in u.src]} {_text(u.arg)}"


def _text(arg: Any) -> str:
    return f"{type(arg).__name__} {arg!r}"


@lru_cache(maxsize=1)
def identity() -> str:
    """What a plan depends on besides graph and options: the machine, and the code of uopc."""
    facts = [repr(device()), device().identity]
    folders = [os.path.dirname(os.path.dirname(__file__))]
    for folder in folders:  # grows
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".so")):
                    status = entry.stat()
                    facts.append(f"{entry.path} {status.st_mtime_ns} {status.st_size}")
                elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    folders.append(entry.path)
    return digest(*sorted(facts))
