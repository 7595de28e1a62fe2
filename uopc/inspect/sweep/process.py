"""A worker process as its parent sees it: started, asked, stopped between requests, ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any


class WorkerFailed(Exception):
    """A worker died, did not answer in time, or cannot do what it is for."""


class Process:
    """A process that answers each line of JSON with one.  It is stopped (SIGSTOP) between requests, so that its threads
    disturb no other."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._unread = b""

    def ask(self, do: str, timeout: float, **request: Any) -> dict[str, Any]:
        """Wake the worker, have it answer, and stop it.  WorkerFailed if it does not answer in ``timeout`` seconds."""
        self._signal(signal.SIGCONT)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None
        answer = self._answer(timeout)
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _answer(self, timeout: float) -> dict[str, Any]:
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
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self.process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"its process ended with code {code}" + (f": {lines[-1][:160]}" if lines else "")

    def end(self) -> None:
        """Kill the worker, stopped or not."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
