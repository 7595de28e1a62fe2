"""A worker process: one implementation, prepared for one size at a time, and timed in rounds.

Started by run.Worker.  It reads requests from standard input, one JSON object a line, and answers each with one; what
libraries print goes to standard error.  Its parent stops it (SIGSTOP) between requests, so that its threads disturb no
other worker.
"""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from uopc.inspect.sweep.measure import PeakMemory, calls_of, serve, times_of

LONG = 5.0  # seconds of a first run after which a second would tell nothing new


class Server:
    """What the requests do."""

    def __init__(self, impl: str) -> None:
        self.impl = impl
        self.run: Any = None
        self.calls = 1

    def hello(self) -> dict[str, Any]:
        """Load what is measured; its versions."""
        names = {"torch": ("torch",), "jax": ("jax", "jaxlib"), "onnxruntime": ("onnxruntime",)}.get(self.impl, ())
        for name in names:
            version(name)
        found = {}
        for name in (*names, "numpy", "uopc"):
            with suppress(PackageNotFoundError):
                found[name] = version(name)
        return {"versions": found}

    def prepare(self, problem: dict[str, Any]) -> dict[str, Any]:
        """Compile and run once beside the exact result."""
        from uopc.inspect.sweep import forms, peers
        from uopc.inspect.sweep.problems import Problem

        what = Problem(**problem)
        inputs = what.inputs()
        start = time.perf_counter()
        try:
            made = (forms if self.impl in forms.NAMES else peers).build(self.impl, what, inputs)
            memory = PeakMemory()  # what compiling took is no part of it
            begin = time.perf_counter()
            result = made.run()
            once = time.perf_counter() - begin
        except forms.Skip as skip:
            return {"skip": str(skip)}
        first = time.perf_counter() - start
        grown = memory.grown
        error = what.error(made.read(result), *what.exact(inputs))
        del result
        self.run = made.run
        if once < LONG:
            start = time.perf_counter()
            self.run()
            once = time.perf_counter() - start
        self.calls = calls_of(once)
        return {"first": first, "once": once, "memory": grown, "error": error, "facts": made.facts}

    def round(self, seconds: float) -> dict[str, Any]:
        """Seconds of a call, measured again and again for about so long, at least once."""
        return {"times": times_of(self.run, self.calls, seconds)}

    def drop(self) -> dict[str, Any]:
        """Let go of what was prepared."""
        self.run = None
        gc.collect()
        return {}


def main(impl: str) -> None:
    """The whole life of a worker."""
    serve(Server(impl))
