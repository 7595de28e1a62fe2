"""The parent's side of the workers: starting, asking, pausing and ending them."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uopc.inspect.sweep.process import Process, WorkerFailed

HERE = Path(__file__).resolve().parent
START_TIMEOUT, TIMEOUT = 120.0, 400.0  # seconds; a compiler may take minutes on a busy machine

# glibc keeps what is freed and asks for huge pages, so that code is compared and not page faults.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def environment(variant: str, threads: int) -> dict[str, str]:
    """Of a worker: so many threads, whatever the library's variable is called, and memory that is kept."""
    names = (
        "UOPC_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
        "NUMEXPR_MAX_THREADS",
    )  # fmt: skip
    made = {**os.environ, **KEEP_MEMORY, **dict.fromkeys(names, str(threads)), "JAX_PLATFORMS": "cpu"}
    made["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiling processes beside the worker
    if variant == "numpy":  # as shipped
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            made.pop(name, None)
    return made


class Worker(Process):
    """One library's process.  ``versions``: of what is measured.  WorkerFailed if it does not start."""

    def __init__(self, variant: str, threads: int) -> None:
        command = [sys.executable, str(HERE / "worker.py"), variant, str(threads)]
        super().__init__(command, environment(variant, threads), tempfile.gettempdir())
        hello = self.ask("hello", START_TIMEOUT)
        if "skip" in hello:
            self.end()
            raise WorkerFailed(hello["skip"])
        self.versions: dict[str, str] = hello["versions"]

    def ask(self, do: str, timeout: float = TIMEOUT, **request: Any) -> dict[str, Any]:
        """As of any Process, with more patience."""
        return super().ask(do, timeout, **request)


class Workers:
    """A worker for each library, started when first needed and again after it failed; ``absent``: why some are not."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._running: dict[str, Worker] = {}

    def get(self, variant: str) -> Worker:
        """WorkerFailed where the library is absent."""
        if variant in self.absent:
            raise WorkerFailed(self.absent[variant])
        if variant not in self._running:
            try:
                worker = self._running[variant] = Worker(variant, self.threads)
            except WorkerFailed as failed:
                self.absent[variant] = str(failed)
                raise
            self.versions.update(worker.versions)
        return self._running[variant]

    def forget(self, variant: str) -> None:
        """End a worker; the next case gets a new one."""
        worker = self._running.pop(variant, None)
        if worker is not None:
            worker.end()

    def end(self) -> None:
        for variant in list(self._running):
            self.forget(variant)


@contextlib.contextmanager
def workers(threads: int) -> Iterator[Workers]:
    """Workers that have ended when the block has, however it ends."""
    made = Workers(threads)
    try:
        yield made
    finally:
        made.end()
