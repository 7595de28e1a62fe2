"""Compiled kernels on disk, shared by all processes of one user.

One file a kernel, named by what it was made from, so that a file never changes once it has its name: it is written
aside, then renamed.  A process that dies at any instant leaves at most a file aside, which is swept later.  Files end
in a checksum, because a disk can fill, and a machine can stop, between a rename and its data.  The folder belongs to
the user and to no one else; one that does not is refused, since loading a file means running it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

try:
    from _blake2 import blake2b  # as hashlib has it, without the 8 ms in which hashlib starts OpenSSL
except ImportError:
    from hashlib import blake2b

FOLDER = "kernels"
SUFFIX = ".so"
NOTE = ".note"
TUNED = ".tuned"  # a note of what measuring schedules gave
ASIDE = ".tmp"
LOCK = "lock"
MAGIC = b"uopc-so1"
DIGEST_BYTES = 16
STALE_SECONDS = 60  # a file aside lives for less than a millisecond, unless its writer died
KEEP_SHARE = 0.75  # of the limit, after an eviction
RESCAN_STORES = 256  # other processes store too
MAX_FILES = 16384  # looking at each of them takes a third of a second
TYPICAL_BYTES = 1 << 16  # of a file that was not looked at; kernels have less
CLAIM_SECONDS = 10.0  # compile anyway rather than wait for a process that was suspended


def digest(*parts: str | bytes) -> str:
    """A name for what these parts, in this order, make."""
    h = blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        h.update(b"%d:" % len(data))
        h.update(data)
    return h.hexdigest()


class CacheRefused(Exception):
    """The folder cannot be used; the text says why."""


class DiskCache:
    """The kernels in `directory`/kernels, at most `limit` bytes.  CacheRefused if the folder is unsafe or unusable.

    Paths that `load` and `store` return stay valid until the file is evicted; loaded kernels outlive their file.
    """

    def __init__(self, directory: str, limit: int) -> None:
        self.path = os.path.join(directory, FOLDER)
        self.limit = limit
        self._bytes: int | None = None  # as far as this process knows
        self._stores = 0
        self._asides = 0
        self._lock_fd = -1
        self._folder = -1
        self._folder = self._open_private()

    def __del__(self) -> None:
        for fd in (self._folder, self._lock_fd):
            if fd >= 0:
                os.close(fd)

    def _open_private(self) -> int:
        if not os.path.isabs(self.path):  # "~", as it was
            raise CacheRefused(f"{self.path}: this user has no home folder; UOPC_CACHE_DIR names another")
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise CacheRefused(f"{self.path}: {error.strerror}") from error
        facts = os.fstat(folder)
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            os.close(folder)
            owner, mode = facts.st_uid, stat.S_IMODE(facts.st_mode)
            raise CacheRefused(f"{self.path} has owner {owner} and mode {mode:o}; this user's own, mode 700, is safe")
        return folder

    def _opener(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)

    # -- one kernel

    def load(self, key: str) -> str | None:
        """The path of a kernel whose file is whole, else None.  A damaged file is removed."""
        name = key + SUFFIX
        return os.path.join(self.path, name) if self._read(name) is not None else None

    def opened(self, path: str) -> str:
        """A path to the same file by way of the folder that was found safe, whatever has its name by now."""
        return f"/proc/self/fd/{self._folder}/{os.path.basename(path)}"

    def store(self, key: str, image: bytes, *others: str) -> str | None:
        """Keep a kernel, or several in one library under the key of each.

        Returns a path, or None if that was not possible.
        """
        if not self._write(key + SUFFIX, image):
            return None
        for other in others:
            try:
                os.link(key + SUFFIX, other + SUFFIX, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except FileExistsError:
                pass  # made meanwhile, as good as this one
            except OSError:  # a file system without links
                self._write(other + SUFFIX, image)
        return os.path.join(self.path, key + SUFFIX)

    def note(self, key: str, kind: str = NOTE) -> bytes | None:
        """What was kept with `keep_note`, else None."""
        return self._read(key + kind)

    def keep_note(self, key: str, data: bytes, kind: str = NOTE) -> None:
        """Keep a few bytes that belong to no kernel alone: a plan, what a compiler said of itself, how schedules
        fared."""
        self._write(key + kind, data)

    def _write(self, name: str, image: bytes) -> bool:
        """Aside, then renamed.  False if that was not possible."""
        self._asides += 1
        aside = f"{name}.{os.getpid()}.{self._asides}{ASIDE}"
        data = image + _trailer(image)
        if len(data) > self.limit:
            return False
        try:
            with open(aside, "xb", opener=self._opener) as file:
                file.write(data)
            os.replace(aside, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            self._remove(aside)
            return False
        self._account(len(data))
        return True

    def _read(self, name: str) -> bytes | None:
        """The content of a file that is whole, else None.  A damaged file is removed."""
        try:
            with open(name, "rb", opener=self._opener) as file:
                data = file.read()
        except OSError:
            return None
        if not _is_whole(data):
            self._remove(name)
            return None
        with suppress(OSError):
            os.utime(name, dir_fd=self._folder)  # the time of last use, for eviction
        return data[: -DIGEST_BYTES - len(MAGIC)]

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold the right to make this kernel, so that of many processes one compiles it.  Best effort.

        The lock is on a byte of a shared file that the key chooses; the system drops it when the process dies.
        """
        import fcntl

        offset, held, patience = int(key[:14], 16), False, time.monotonic() + CLAIM_SECONDS
        try:
            if self._lock_fd < 0:
                self._lock_fd = self._opener(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            while not held and time.monotonic() < patience:
                try:
                    fcntl.lockf(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
                    held = True
                except (BlockingIOError, PermissionError):
                    time.sleep(0.005)
        except OSError:
            pass  # no locks on this file system: work is done twice, nothing worse
        try:
            yield
        finally:
            if held:
                with suppress(OSError):
                    fcntl.lockf(self._lock_fd, fcntl.LOCK_UN, 1, offset)

    # -- all of them

    def files(self) -> list[tuple[float, int, str]]:
        """(time of last use, bytes, name) of each file, oldest first.  Sweeps what dead writers left aside.

        A time from the future, where a clock was put back, says nothing, and counts as the oldest.
        """
        found = []
        now = time.time()
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if entry.name.endswith((SUFFIX, NOTE, TUNED)):
                        used = facts.st_mtime if facts.st_mtime < now + STALE_SECONDS else 0.0
                        found.append((used, facts.st_size, entry.name))
                    elif entry.name.endswith(ASIDE) and abs(now - facts.st_mtime) > STALE_SECONDS:
                        self._remove(entry.name)
        return sorted(found)

    def bytes_on_disk(self) -> int:
        """What the files take; several names of one file count once."""
        sizes = {}
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    sizes[facts.st_ino] = facts.st_size
        return sum(sizes.values())

    def clear(self) -> int:
        """Remove all files.  Returns how many.  Loaded kernels keep working."""
        files = self.files()
        for _, _, name in files:
            self._remove(name)
        self._bytes = 0
        return len(files)

    def _account(self, added: int) -> None:
        """Keep the folder within its bounds, and sweep it, without looking at every file for every file stored."""
        self._stores += 1
        if self._bytes is None or self._stores % RESCAN_STORES == 0:
            names: list[str] = []
            with suppress(OSError):
                names = os.listdir(self._folder)
            self._bytes = len(names) * TYPICAL_BYTES
            if len(names) > MAX_FILES or any(name.endswith(ASIDE) for name in names):
                self._evict()
        else:
            self._bytes += added
        if self._bytes > self.limit:
            self._evict()

    def _evict(self) -> None:
        """Remove what was used longest ago, if there is too much, but never the file just stored, which is about to be
        loaded."""
        files = self.files()
        total, count = sum(size for _, size, _ in files), len(files)
        if total > self.limit or count > MAX_FILES:
            for _, size, name in files[:-1]:
                if total <= KEEP_SHARE * self.limit and count <= KEEP_SHARE * MAX_FILES:
                    break
                self._remove(name)
                total, count = total - size, count - 1
        self._bytes = total

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._folder)


def _trailer(image: bytes) -> bytes:
    return blake2b(image, digest_size=DIGEST_BYTES).digest() + MAGIC


def _is_whole(data: bytes) -> bool:
    size = len(data) - DIGEST_BYTES - len(MAGIC)
    return size > 0 and data[size:] == _trailer(data[:size])
