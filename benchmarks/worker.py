"""A worker process: one library, the cases it is asked to prepare, and rounds of timing them.

It reads requests from stdin, one JSON object a line, and answers each with one; what the libraries print goes to
stderr.  It is stopped (SIGSTOP) between requests, so its pools of threads cannot disturb another worker.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BATCH = 1e-4  # seconds that one measurement takes at least: shorter calls are timed many at once
TRIALS, TRIAL_SECONDS = 20, 0.1  # to find out how many that is
WARM_UP = 0.25  # of a round


def resident() -> int:
    """Bytes of memory in use by this process."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class PeakMemory:
    """``grown``: by how many bytes the peak of the process's memory exceeds what it had when this was made."""

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from now
        self.before = resident()

    @property
    def grown(self) -> int:
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return max(0, int(line.split()[1]) * 1024 - self.before)
        return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.before)


class Work:
    """A prepared case: how to run it, and how many calls one measurement takes."""

    def __init__(self, prepared: Any) -> None:
        self.run = prepared.run
        self.calls = max(1, int(BATCH / max(self.quickest(), 1e-7)))

    def quickest(self) -> float:
        """Seconds of a call, roughly: the fastest of some."""
        times: list[float] = []
        while not times or (len(times) < TRIALS and sum(times) < TRIAL_SECONDS):
            start = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - start)
        return min(times)

    def round(self, seconds: float) -> list[float]:
        """Seconds of a call, measured again and again for about ``seconds``, at least once."""
        run, clock, calls = self.run, time.perf_counter, self.calls
        times: list[float] = []
        start = clock()
        measure_from, stop = start + WARM_UP * seconds, start + (1 + WARM_UP) * seconds
        while not times or clock() < stop:
            begin = clock()
            for _ in range(calls):
                run()
            end = clock()
            if begin >= measure_from or end >= stop:
                times.append((end - begin) / calls)
        return times


class Server:
    """What the requests do."""

    def __init__(self, variant: str) -> None:
        import peers

        self.variant = variant
        self.peer = peers.load(variant)
        self.work: dict[str, Work] = {}

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"versions": self.peer.VERSIONS}

    def oracle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write the exact rows of a case to a file."""
        import numpy as np
        from cases import find

        case = find(request["suite"], request["case"])
        np.save(request["path"], case.exact(case.arrays(), case.sampled_rows()))
        return {}

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile a case and run it, beside the exact rows in the file ``path`` if that is given."""
        import numpy as np
        from cases import find

        case = find(request["suite"], request["case"])
        arrays = case.arrays()
        memory, start = PeakMemory(), time.perf_counter()
        prepared = self.peer.build(self.variant, case, arrays)
        result = prepared.run()
        reply = {"how": prepared.how, "first_seconds": time.perf_counter() - start, "peak_growth": memory.grown}
        if request.get("path"):
            reply["error"] = case.error(prepared.read(result), np.load(request["path"]))
        del result
        self.work[case.name] = Work(prepared)
        return reply

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        gc.collect()
        gc.disable()
        try:
            return {"times": self.work[request["case"]].round(request["seconds"])}
        finally:
            gc.enable()

    def drop(self, request: dict[str, Any]) -> dict[str, Any]:
        self.work.pop(request["case"], None)
        gc.collect()
        return {}


def answer(server: Server | None, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request; {"skip": reason} where the library cannot do it, or fails."""
    from peers import Skip

    try:
        return getattr(server, request["do"])(request)
    except Skip as skip:
        return {"skip": str(skip)}
    except Exception as error:  # whatever a library throws is its answer
        text = str(error).strip().splitlines() or [""]
        return {"skip": f"{type(error).__name__}: {text[0][:200]}"}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    variant, threads = sys.argv[1], int(sys.argv[2])
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    try:
        server = Server(variant)
    except ImportError as error:
        reply({"skip": f"not installed ({error})"})
        return
    reply(server.hello({}))
    for line in sys.stdin:
        reply(answer(server, json.loads(line)))


if __name__ == "__main__":
    main()
