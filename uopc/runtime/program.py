"""Program: one compiled kernel, called with arrays."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from uopc._hot.runtime import Library, NativePlan
from uopc.dtype import to_dtype
from uopc.runtime.compiler import compile_source


class Program:
    """A kernel named `name` in C source, compiled, called with arrays in slot order, writing its outputs in place.

    source: C that defines NAME_range and NAME_launch, as render_c gives it.
    outputs: the slots that the kernel writes.  Arrays of other slots may be read-only.
    flags: compiler flags in place of the default ones.
    CompileError if the compiler refuses the source; LookupError if it does not define the kernel.
    """

    def __init__(
        self, source: str, name: str, *, outputs: Iterable[int] = (0,), flags: Sequence[str] | None = None
    ) -> None:
        if not isinstance(source, str) or not isinstance(name, str):
            raise TypeError(f"Program takes C as a str, and the name of its kernel, not {source!r:.80} and {name!r}")
        self.source = source
        self.name = name
        self.outputs = frozenset(outputs)
        self.library: Library = compile_source(source) if flags is None else compile_source(source, flags)
        self.library.launch(name)  # a wrong name fails here, not at the first call
        self._n_slots = _parameters(source, name)
        self._buffers = _buffers(source, name)
        self._plans: dict[int, NativePlan] = {}

    def _check(self, slot: int, array: Any) -> None:
        """What the buffer protocol does not refuse, or refuses without saying which array it was."""
        if not isinstance(array, (np.ndarray, np.generic)):
            self._check_buffer(slot, array)
            return
        if array.dtype.hasobject:
            raise TypeError(f"{self.name}: slot {slot} is an array of objects; arrays of numbers are accepted")
        if not array.flags.c_contiguous:
            layout = f"shape {array.shape} and strides {array.strides}"
            raise ValueError(f"{self.name}: slot {slot} with {layout} is not C-contiguous, as it must be")
        if slot in self._buffers:
            dtype, shape = self._buffers[slot]
            if array.dtype != dtype:
                raise TypeError(f"{self.name}: slot {slot} holds {dtype}, not {array.dtype}")
            if array.size < math.prod(shape):
                raise ValueError(
                    f"{self.name}: slot {slot} has shape {shape}, {math.prod(shape)} elements; "
                    f"an array of shape {array.shape} has {array.size}"
                )
        if slot in self.outputs and not array.flags.writeable:
            raise ValueError(f"{self.name}: slot {slot} is an output, and its array is read-only")

    def _check_buffer(self, slot: int, buffer: Any) -> None:
        """The size of an object that exports a buffer.  A plan would take an int for an address."""
        try:
            nbytes = memoryview(buffer).nbytes
        except TypeError:
            what = type(buffer).__name__
            raise TypeError(f"{self.name}: slot {slot} takes an array or a buffer of numbers, not {what}") from None
        if slot in self._buffers:
            dtype, shape = self._buffers[slot]
            needed = dtype.itemsize * math.prod(shape)
            if nbytes < needed:
                raise ValueError(f"{self.name}: slot {slot} has shape {shape}, {needed} bytes; the buffer has {nbytes}")

    def _plan(self, arrays: Sequence[Any]) -> NativePlan:
        """The plan for these arrays, which are checked."""
        n = len(arrays)
        if self._n_slots is not None and n != self._n_slots:
            raise ValueError(f"{self.name} takes {self._n_slots} arrays; {n} were given")
        for slot, array in enumerate(arrays):
            self._check(slot, array)
        plan = self._plans.get(n)
        if plan is None:
            written = [slot for slot in self.outputs if slot < n]
            plan = self._plans[n] = NativePlan([(self.library, self.name, range(n))], n, written=written)
        return plan

    def __call__(self, *arrays: Any) -> None:
        """Run the kernel.  Arrays of any shape, or objects that export a buffer, in slot order.

        ValueError for an array that is not C-contiguous or, in an output slot, read-only (BufferError for objects other
        than arrays), or that is smaller than a rendered kernel's slot; TypeError for an array of Python objects or of
        another dtype than the slot's, and for what exports no buffer.
        """
        self._plan(arrays).run(arrays)

    def time(self, *arrays: Any, repeat: int = 1) -> float:
        """Run the kernel `repeat` times.  Returns the seconds of the fastest run, measured around the native call."""
        plan = self._plan(arrays)
        best = float("inf")
        for _ in range(repeat):
            start = time.perf_counter()
            plan.run(arrays)
            best = min(best, time.perf_counter() - start)
        return best

    def __repr__(self) -> str:
        return f"Program({self.name!r})"


def _buffers(source: str, name: str) -> dict[int, tuple[np.dtype[Any], tuple[int, ...]]]:
    """The dtype and shape of each slot, as the comment on top of a rendered kernel says; other C says nothing."""
    comment = re.search(rf"/\* {re.escape(name)}: (.*?)\*/", source, re.DOTALL)
    out = {}
    for slot, dtype, shape in re.findall(r"\bd(\d+)\s+(\w+)\[([\d,\s]*)\]", comment.group(1) if comment else ""):
        out[int(slot)] = to_dtype(dtype).numpy, tuple(int(n) for n in shape.split(",") if n.strip())
    return out


def _parameters(source: str, name: str) -> int | None:
    """How many parameters the whole-kernel function `name` has; None if the source has no such function."""
    found = re.search(rf"\bvoid\s+{re.escape(name)}\s*\(([^()]*)\)", source)
    if found is None:
        return None
    inside = found.group(1).strip()
    return 0 if inside in ("", "void") else inside.count(",") + 1
