"""A worker process: one implementation, prepared for one size at a time, and timed in rounds.

    python -m uopc.inspect.sweep.worker IMPLEMENTATION

It reads requests from standard input, one JSON object a line, and answers each with one; what libraries print goes to
standard error.  Its parent stops it (SIGSTOP) between requests, so that its threads disturb no other worker.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
BATCH = 1e-4  # seconds that one measurement takes at least: shorter calls are timed many at once
LONG = 5.0  # seconds of a first run after which a second would tell nothing new
WARM_UP = 0.2  # of a round


class PeakMemory:
    """``grown``: by how many bytes the peak of the process's memory exceeds what it had when this was made."""

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from now
        self.before = self.resident()

    @staticmethod
    def resident() -> int:
        """Bytes in use by this process."""
        with suppress(OSError):
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    @property
    def grown(self) -> int:
        """Bytes since then."""
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return max(0, int(line.split()[1]) * 1024 - self.before)
        return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.before)


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
        self.calls = max(1, int(BATCH / max(once, 1e-7)))
        return {"first": first, "once": once, "memory": grown, "error": error, "facts": made.facts}

    def round(self, seconds: float) -> dict[str, Any]:
        """Seconds of a call, measured again and again for about so long, at least once."""
        run, clock, calls = self.run, time.perf_counter, self.calls
        times: list[float] = []
        gc.collect()
        gc.disable()
        try:
            start = clock()
            measure_from, stop = start + WARM_UP * seconds, start + (1 + WARM_UP) * seconds
            while not times or clock() < stop:
                begin = clock()
                for _ in range(calls):
                    run()
                end = clock()
                if begin >= measure_from or end >= stop:
                    times.append((end - begin) / calls)
        finally:
            gc.enable()
        return {"times": times}

    def drop(self) -> dict[str, Any]:
        """Let go of what was prepared."""
        self.run = None
        gc.collect()
        return {}


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, and one that is stopped would never see its input end."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Serve until standard input ends."""
    _end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = Server(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        try:
            answer = getattr(server, do)(**request)
        except PackageNotFoundError as error:
            answer = {"skip": f"{error.name} is not installed"}
        except ImportError as error:
            answer = {"skip": f"not installed ({error})"}
        except Exception as error:  # whatever a library throws is its answer
            text = str(error).strip().splitlines() or [""]
            answer = {"skip": f"{type(error).__name__}: {text[0][:200]}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
