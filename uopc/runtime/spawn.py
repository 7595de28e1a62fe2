"""Running a program, with anonymous files in memory for what it reads and writes, of which nothing is left however it
ends."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

MOST_SAID = 1 << 16  # bytes that are kept of each end of what a program prints
FOLDER_PREFIX = "uopc-build-"  # of folders for programs that write to no file in memory
FOLDER_SECONDS = 3600  # one of that age belongs to a process that was killed
NOT_RUN = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)  # there is no such program, or it is none


@contextmanager
def memory_file(name: str, content: bytes = b"") -> Iterator[int]:
    """An anonymous file.  Its number is never that of a standard stream, though this process may have closed those."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        if fd < 3:
            import fcntl

            low, fd = fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(low)
        view = memoryview(content)
        offset = 0
        while offset < len(view):
            offset += os.pwrite(fd, view[offset:], offset)
        yield fd
    finally:
        os.close(fd)


def _said(fd: int) -> str:
    """What a program printed; of a flood the beginning and the end."""
    size = os.fstat(fd).st_size
    if size <= 2 * MOST_SAID:
        return content(fd).decode("utf-8", "replace")
    ends = [os.pread(fd, MOST_SAID, offset).decode("utf-8", "replace") for offset in (0, size - MOST_SAID)]
    return f"\n[... {size - 2 * MOST_SAID} bytes ...]\n".join(ends)


def content(fd: int) -> bytes:
    """All that is in a file."""
    data = b""
    while part := os.pread(fd, 1 << 24, len(data)):
        data += part
    return data


def run(
    argv: list[str], stdin: int | None = None, shared: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program with `shared` descriptors open under the same numbers.  Returns (exit code, all that it printed).

    posix_spawn and files in place of the subprocess module and pipes: importing that takes as long as a compiler run.
    OSError if it cannot be run.
    """
    with memory_file("uopc-output") as said, memory_file("uopc-no-input") as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in shared]  # which clears close-on-exec
        actions += [(os.POSIX_SPAWN_DUP2, nothing if stdin is None else stdin, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, said, 1), (os.POSIX_SPAWN_DUP2, said, 2)]
        pid = os.posix_spawn(
            argv[0],
            argv,
            os.environ if env is None else env,
            file_actions=actions,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
        )
        code = _wait(pid)
        return code, _said(said) + (f"\nkilled by signal {-code}" if code < 0 else "")


def _wait(pid: int) -> int:
    """The exit code of a program, which is killed if this process is interrupted.

    It is looked at before it is reaped: until then no other process can have its number.
    """
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return 0  # SIGCHLD is ignored in this process: what the program made has to speak for it
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sweep(parent: str) -> None:
    """Remove the folders of processes that were killed."""
    import shutil

    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(FOLDER_PREFIX):
                facts = entry.stat(follow_symlinks=False)
                if facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > FOLDER_SECONDS:
                    shutil.rmtree(entry.path, ignore_errors=True)


def keep(source: str) -> str:
    """Write the source where the user can look at it."""
    import tempfile

    try:
        fd, path = tempfile.mkstemp(prefix="uopc-failed-", suffix=".c")
        with os.fdopen(fd, "w") as file:
            file.write(source)
    except OSError as error:
        return f"(the source could not be kept: {error})"
    return path
