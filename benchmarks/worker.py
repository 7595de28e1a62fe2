"""A worker process: one library, the cases it is asked to prepare, and rounds of timing them.

It reads requests from stdin, one JSON object a line, and answers each with one; what the libraries print goes to
stderr.  It is stopped (SIGSTOP) between requests, so its pools of threads cannot disturb another worker.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from typing import Any

from uopc.inspect.sweep.measure import PeakMemory, calls_of, serve, times_of

TRIALS, TRIAL_SECONDS = 20, 0.1  # to find out how many that is


class Work:
    """A prepared case: how to run it, and how many calls one measurement takes."""

    def __init__(self, prepared: Any) -> None:
        self.run = prepared.run
        self.calls = calls_of(self.quickest())

    def quickest(self) -> float:
        """Seconds of a call, roughly: the fastest of some."""
        times: list[float] = []
        while not times or (len(times) < TRIALS and sum(times) < TRIAL_SECONDS):
            start = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - start)
        return min(times)


class Server:
    """What the requests do."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.peer: Any = None
        self.work: dict[str, Work] = {}

    def hello(self) -> dict[str, Any]:
        """Load the library."""
        import peers

        self.peer = peers.load(self.variant)
        return {"versions": self.peer.VERSIONS}

    def oracle(self, suite: str, case: str, path: str) -> dict[str, Any]:
        """Write the exact rows of a case to a file."""
        import numpy as np
        from cases import find

        found = find(suite, case)
        np.save(path, found.exact(found.arrays(), found.sampled_rows()))
        return {}

    def prepare(self, suite: str, case: str, path: str | None = None) -> dict[str, Any]:
        """Compile a case and run it, beside the exact rows in the file ``path`` if that is given."""
        import numpy as np
        from cases import find
        from peers import Skip

        found = find(suite, case)
        arrays = found.arrays()
        memory, start = PeakMemory(), time.perf_counter()
        try:
            prepared = self.peer.build(self.variant, found, arrays)
            result = prepared.run()
        except Skip as skip:
            return {"skip": str(skip)}
        reply = {"how": prepared.how, "first_seconds": time.perf_counter() - start, "peak_growth": memory.grown}
        if path:
            reply["error"] = found.error(prepared.read(result), np.load(path))
        del result
        self.work[found.name] = Work(prepared)
        return reply

    def round(self, case: str, seconds: float) -> dict[str, Any]:
        work = self.work[case]
        return {"times": times_of(work.run, work.calls, seconds)}

    def drop(self, case: str) -> dict[str, Any]:
        self.work.pop(case, None)
        gc.collect()
        return {}


def main() -> None:
    variant, threads = sys.argv[1], int(sys.argv[2])
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    serve(Server(variant))


if __name__ == "__main__":
    main()
