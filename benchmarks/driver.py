"""The parent's side of the workers: starting, asking, pausing and ending them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


class WorkerFailed(Exception):
    """The worker died or did not answer in time."""


class Worker:
    """One library's process.  ``versions``: of what is measured.  WorkerFailed if it does not start."""

    def __init__(self, variant: str, threads: int) -> None:
        self.variant = variant
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        command = [sys.executable, str(HERE / "worker.py"), variant, str(threads)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment(variant, threads),
            cwd=tempfile.gettempdir(),
        )
        self._unread = b""
        hello = self._reply(START_TIMEOUT)
        if "skip" in hello:
            self.end()
            raise WorkerFailed(hello["skip"])
        self.versions: dict[str, str] = hello["versions"]
        self._signal(signal.SIGSTOP)

    def ask(self, do: str, timeout: float = TIMEOUT, **request: Any) -> dict[str, Any]:
        """Wake the worker, have it answer, and stop it."""
        self._signal(signal.SIGCONT)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None
        reply = self._reply(timeout)
        self._signal(signal.SIGSTOP)
        return reply

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _reply(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        fd, stop = self.process.stdout.fileno(), time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, stop - time.monotonic())):
                    self.end()
                    raise WorkerFailed(f"no answer in {timeout:.0f} s")
                part = os.read(fd, 1 << 16)
                if not part:
                    raise WorkerFailed(self._last_words())
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        code = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        return f"ended with code {code}" + (f": {lines[-1][:160]}" if lines else "")

    def end(self) -> None:
        """Kill the worker, stopped or not."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


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
