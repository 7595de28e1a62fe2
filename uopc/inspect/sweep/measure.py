"""What a worker process measures with, and how it answers its parent (``process``)."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from uopc.runtime import trim_memory

PR_SET_PDEATHSIG = 1  # linux/prctl.h
BATCH = 1e-4  # seconds that one measurement takes at least: shorter calls are timed many at once
WARM_UP = 0.2  # of a round


class PeakMemory:
    """``grown``: by how many bytes the peak of the process's memory exceeds what it had when this was made."""

    def __init__(self) -> None:
        gc.collect()
        trim_memory()  # else what earlier work freed would be there for this one
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
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


def calls_of(once: float) -> int:
    """How many calls, each of ``once`` seconds, one measurement takes."""
    return max(1, int(BATCH / max(once, 1e-7)))


def times_of(run: Callable[[], Any], calls: int, seconds: float) -> list[float]:
    """Seconds of a call, measured ``calls`` at once again and again for about ``seconds``, at least once."""
    clock = time.perf_counter
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
    return times


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, and one that is stopped would never see its input end."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(server: object) -> None:
    """Answer each line of standard input by the method it names, until the input ends: what that returns, or
    {"skip": reason} where it raises.  What libraries print goes to standard error."""
    _end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
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
