"""From C source to a loaded library: find the compiler, run it, and keep what it made in memory and on disk.

Compile time is what a user waits for, and half of it is processes that start.  Measured with gcc 12 on a small kernel:
`cc -shared` with libm 34 ms, without libm 28, `cc -c` and then the linker itself 25, of which 11 are gcc's front end
doing nothing.  So the compiler driver stops at the object, the linker is called directly, kernels are linked with
libgcc alone (libm is in the process already), and source, object and library are anonymous files in memory, of which
nothing can be left behind however the process ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import NamedTuple, TypeVar

from uopc._hot.runtime import Library
from uopc.memo import Memo
from uopc.options import environment
from uopc.runtime.cache import CacheRefused, DiskCache, digest
from uopc.runtime.device import device, host
from uopc.runtime.loading import opened, with_room
from uopc.runtime.units import Source, Unit, units_of

S = TypeVar("S")
T = TypeVar("T")

ABI = 1  # of generated kernels; part of every key
# Not -ffast-math, ever: it breaks NaN, and what it links in flushes denormals for the whole process.
DEFAULT_FLAGS = (
    "-O1",
    "-fexpensive-optimizations",
    "-march=native",
    "-mtune=generic",  # tuned for some processors, gcc reads a vector from memory at each use instead of once
    "-fira-region=one",  # the same, in some loops, where it assigns registers loop by loop
    "-ffp-contract=off",  # which products are not rounded is said by FMA nodes
    "-fno-math-errno",
    "-fno-trapping-math",
)
ALWAYS = ("-std=gnu11", "-fPIC", "-w", "-fwrapv")  # integers wrap, as NumPy's do
# Two mappings a library, code and data, where a process may have 65,530 of all kinds: constants stand beside the code,
# and what the loader has written is not made another mapping by protecting it.  No id that nobody asks for.
LINK_FLAGS = (
    *("-shared", "-z", "noseparate-code", "-z", "norelro", "-z", "noexecstack"),
    *("--build-id=none", "--hash-style=gnu"),
)
LIBRARIES_IN_MEMORY = 1024  # by source, and as many by key: what is dropped is loaded from disk again


class CompilerNotFound(RuntimeError):
    """There is no C compiler; the text says what to install."""


class CompileError(RuntimeError):
    """The C compiler failed.

    output: what it printed.  path: the source, kept for inspection.  command: how it was called.
    """

    def __init__(self, output: str, path: str, command: Sequence[str]) -> None:
        from shlex import join

        self.output, self.path, self.command = output, path, tuple(command)
        super().__init__(f"{join(command)} failed on {path}:\n{output}")


# --------------------------------------------------------------------------------------------- finding the compiler --


class Compiler(NamedTuple):
    """A C compiler: how to call it, what tells it from any other, whether it is gcc, and how its objects are linked.

    linker: gcc's linker and libgcc.a, which has what the processor lacks (halves from doubles).  None: cc links.
    """

    command: tuple[str, ...]
    identity: str
    is_gcc: bool
    linker: tuple[str, str] | None


def find_compiler() -> Compiler:
    """$CC, else cc, gcc or clang on PATH, else the one in the `ziglang` package.  CompilerNotFound if there is none."""
    return _find_compiler(environment().cc, tuple(os.get_exec_path()))


@lru_cache(maxsize=8)
def _find_compiler(cc: str | None, folders: tuple[str, ...]) -> Compiler:
    if cc:
        return _identify(_command(cc, folders), folders)
    for name in ("cc", "gcc", "clang"):
        program = _which(name, folders)
        if program is not None:
            return _identify((program,), folders)
    if _has_ziglang():
        return _identify((sys.executable, "-m", "ziglang", "cc"), folders)
    raise CompilerNotFound(f"uopc compiles with a C compiler, and none of cc, gcc, clang is on PATH. {_advice()}")


def _command(cc: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """What $CC says: the path or name of a program, which may have spaces, else words as a shell splits them."""
    from shlex import split

    program = _which(cc, folders)
    if program is not None:
        return (program,)
    try:
        words = split(cc)
    except ValueError as error:
        raise CompilerNotFound(f"CC={cc!r}: {error}. {_advice()}") from error
    program = _which(words[0], folders) if words else None
    if program is None:
        quotes = " A path with spaces needs quotes where flags follow it." if len(words) > 1 else ""
        raise CompilerNotFound(f"CC={cc!r}: there is no program {words[0] if words else ''!r}.{quotes} {_advice()}")
    return (program, *words[1:])


def _advice() -> str:
    return (
        "Install one (Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc; conda: conda install gcc), or install "
        "the one that comes as a Python package: pip install 'uopc[cc]'. CC names another."
    )


def _has_ziglang() -> bool:
    from importlib.util import find_spec

    return find_spec("ziglang") is not None


def _zig() -> str | None:
    """The program in the `ziglang` package, which is replaced with it; its version is that of the clang inside."""
    from importlib.util import find_spec

    spec = find_spec("ziglang")
    path = os.path.join(os.path.dirname(spec.origin or ""), "zig") if spec is not None else ""
    return path if os.path.exists(path) else None


def _which(name: str, folders: Sequence[str]) -> str | None:
    candidates = [name] if os.sep in name else [os.path.join(folder, name) for folder in folders]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _identify(command: tuple[str, ...], folders: tuple[str, ...]) -> Compiler:
    """Look at the files of every word of the command that is a program (`ccache gcc`), and ask for the version.

    A plain compiler, and no wrapper around one, is what its file is: the answers of such are kept on disk, since asking
    takes longer than loading a kernel.
    """
    facts = [*command]
    for word in command:
        path = _zig() if word == "ziglang" else _which(word, folders)
        if path is not None:
            status = os.stat(path)
            facts.append(f"{os.path.realpath(path)} {status.st_mtime_ns} {status.st_size}")
    files = "\n".join(facts)
    cache = disk_cache() if len(command) == 1 and _is_plain(os.path.realpath(command[0])) else None
    key = digest("compiler", files, os.environ.get("PATH", ""))
    kept = cache.note(key) if cache else None
    answers = kept.decode().split("\0") if kept else _ask(command)
    version, *linker = answers
    if cache and not kept:
        cache.keep_note(key, "\0".join(answers).encode())
    is_gcc = "Free Software Foundation" in version
    return Compiler(command, f"{version}\n{files}", is_gcc, (linker[0], linker[1]) if linker else None)


def _is_plain(path: str) -> bool:
    """By its real name: gcc-12, x86_64-linux-gnu-gcc-12, clang-16; not ccache or a script named cc."""
    words = os.path.basename(path).split("-")
    if len(words) > 1 and words[-1].replace(".", "").isdecimal():
        words.pop()
    return words[-1] in ("gcc", "clang")


def _ask(command: tuple[str, ...]) -> list[str]:
    """What a compiler says of itself: its version, and for gcc the linker and libgcc.a that belong to it."""
    code, version = _run([*command, "--version"])
    if code != 0:
        from shlex import join

        raise CompilerNotFound(f"{join(command)} --version failed: {version.strip()}. {_advice()}")
    if "Free Software Foundation" not in version:
        return [version]
    code, linker = _run([*command, "-print-prog-name=ld"])
    other_code, libgcc = _run([*command, "-print-libgcc-file-name"])
    path = _which(linker.strip(), os.get_exec_path())
    return [version] if code or other_code or path is None else [version, path, libgcc.strip()]


def _run(argv: list[str], stdin: int | None = None, shared: Sequence[int] = ()) -> tuple[int, str]:
    """As ``spawn.run``.  CompilerNotFound if there is no such program, or it is none, MemoryError if no room for it."""
    from uopc.runtime.spawn import NOT_RUN, run

    environ = _zig_environment() if argv[1:3] == ["-m", "ziglang"] else None
    try:
        return with_room(lambda: run(argv, stdin, shared, environ))
    except OSError as error:
        if error.errno not in NOT_RUN:
            raise
        raise CompilerNotFound(f"{argv[0]} cannot be run: {error.strerror}. {_advice()}") from error


def _zig_environment() -> dict[str, str] | None:
    """zig does nothing without a place for a cache of its own, which it looks for in the home that HOME names."""
    cache = disk_cache()
    if cache is None or "ZIG_GLOBAL_CACHE_DIR" in os.environ or os.access(os.environ.get("HOME", ""), os.W_OK):
        return None
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": os.path.join(os.path.dirname(cache.path), "zig")}


# ------------------------------------------------------------------------------------------------------- compiling --


def _build(compiler: Compiler, source: str, flags: tuple[str, ...]) -> bytes:
    """The bytes of a shared library.  CompileError if the compiler fails, CompilerNotFound if it is gone."""
    if not compiler.is_gcc:  # for gcc alone; to zig a tuning names the processor, and takes back -march
        flags = tuple(flag for flag in flags if not flag.startswith(("-mtune=", "-fira-")))
    command = [*compiler.command, *ALWAYS, *flags]
    image = _build_in_memory(command, *compiler.linker, source) if compiler.linker is not None else None
    return image or _build_in_folder(command, source)


def _build_in_memory(command: list[str], linker: str, libgcc: str, source: str) -> bytes | None:
    """With gcc, which writes its output into whatever file it is given.

    None where the linker does not: GNU's does, and may not be the one in use.
    """
    from uopc.runtime.spawn import content, keep, memory_file

    with (
        memory_file("uopc.c", source.encode()) as text,
        memory_file("uopc.o") as obj,
        memory_file("uopc.so") as library,
    ):
        compile_command = [*command, "-pipe", "-c", "-x", "c", "-", "-o", f"/dev/fd/{obj}"]
        code, said = _run(compile_command, text, [obj])
        if code != 0 or not os.fstat(obj).st_size:
            raise CompileError(_complaint(code, said), keep(source), compile_command)
        link_command = [linker, *LINK_FLAGS, "-o", f"/dev/fd/{library}", f"/dev/fd/{obj}", libgcc]
        code, _ = _run(link_command, None, [obj, library])
        return None if code else content(library)


def _build_in_folder(command: list[str], source: str) -> bytes:
    """With compilers that write aside and rename, and bring their own linker."""
    import tempfile

    from uopc.runtime.spawn import FOLDER_PREFIX, keep, memory_file, sweep

    sweep(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
        path = os.path.join(folder, "kernel.so")
        whole = [*command, "-shared", "-x", "c", "-", "-o", path, "-lm"]
        with memory_file("uopc.c", source.encode()) as text:
            code, said = _run(whole, text)
        image = b""
        with suppress(OSError), open(path, "rb") as file:
            image = file.read()
        if code != 0 or not image.startswith(b"\x7fELF"):
            raise CompileError(_complaint(code, said), keep(source), whole)
        return image


def _complaint(code: int, said: str) -> str:
    """What the compiler said, or what is to be said of one that is silent."""
    return said if code else f"it ended as if all were well and wrote no library\n{said}"


def _load_image(image: bytes) -> Library:
    """Load a library that is in no folder.

    Nothing but the mapping is left of the file: with a descriptor for each library, a process without a cache would run
    out of them.
    """
    from uopc.runtime.spawn import memory_file

    with memory_file("uopc.so", image) as fd:
        path = f"/proc/self/fd/{fd}"
        return opened(path, path)


# ----------------------------------------------------------------------------------------------------------- caches --

_libraries: Memo[tuple[Compiler, tuple[str, ...], str], Library] = Memo(LIBRARIES_IN_MEMORY)
_kernels: Memo[str, Library] = Memo(LIBRARIES_IN_MEMORY)  # by key; one library may hold several
_making: dict[str, threading.Lock] = {}  # keys that a thread of this process is making
_guard = threading.Lock()


def _after_fork() -> None:
    """The thread that held a lock is not in the child."""
    global _guard
    _guard = threading.Lock()
    _making.clear()


os.register_at_fork(after_in_child=_after_fork)


def disk_cache() -> DiskCache | None:
    """The cache on disk, or None if there is none: switched off, or its folder cannot be used."""
    settings = environment()
    if not settings.cache or settings.cache_limit == 0:
        return None
    return _open_cache(cache_folder(), settings.cache_limit)


def cache_folder() -> str:
    """Where compiled kernels are kept."""
    return environment().cache_dir or os.path.expanduser("~/.cache/uopc")


@lru_cache(maxsize=8)
def _open_cache(directory: str, limit: int) -> DiskCache | None:
    try:
        return DiskCache(directory, limit)
    except CacheRefused as refusal:
        import warnings

        warnings.warn(f"uopc compiles without a cache on disk: {refusal}", RuntimeWarning, stacklevel=2)
        return None


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """Hold the right to make this kernel among the threads of this process."""
    with _guard:
        lock = _making.setdefault(key, threading.Lock())
    try:
        with lock:
            yield
    finally:
        with _guard:
            _making.pop(key, None)


def _key(compiler: Compiler, flags: tuple[str, ...], source: str) -> str:
    facts = (str(ABI), compiler.identity, device().identity, *ALWAYS, *LINK_FLAGS, *flags)
    return digest(*facts, source)


def _find_or_build(compiler: Compiler, flags: tuple[str, ...], source: str) -> Library:
    known = _libraries.get((compiler, flags, source))
    if known is not None:
        return known
    key, cache = _key(compiler, flags, source), disk_cache()
    with _alone(key):
        library = _libraries.get((compiler, flags, source)) or (_load(cache, key) if cache else None)
        if library is None:
            with cache.claim(key) if cache else nullcontext():
                library = _load(cache, key) if cache else None  # another process may have made it meanwhile
                if library is None:
                    image = _build(compiler, source, flags)
                    path = cache.store(key, image) if cache else None
                    library = (_load(cache, key) if cache and path else None) or _load_image(image)
    _libraries[compiler, flags, source] = library
    return library


def _load(cache: DiskCache, key: str) -> Library | None:
    """None also when the file went away in between, or the folder is on a file system from which nothing may run.
    MemoryError as for ``loading.opened``."""
    path = cache.load(key)
    if path is None:
        return None
    try:
        return opened(path, cache.opened(path))
    except OSError:
        return None


# ------------------------------------------------------------------------------------------------------ entry points --


def compile_source(source: str, flags: Sequence[str] = DEFAULT_FLAGS) -> Library:
    """Compile one unit of C and load it; the same source and flags give the same library.

    CompilerNotFound if there is no compiler, CompileError if it fails.  Safe in several threads and processes at once.
    """
    return _find_or_build(find_compiler(), tuple(flags), source)


def compile_sources(sources: Sequence[str], flags: Sequence[str] = DEFAULT_FLAGS) -> list[Library]:
    """As compile_source for each unit, several at once.  After an error no more are started, and it is raised."""
    compiler, all_flags = find_compiler(), tuple(flags)
    units = list(dict.fromkeys(sources))
    made = dict(zip(units, _at_once(lambda unit: _find_or_build(compiler, all_flags, unit), units)))
    return [made[source] for source in sources]


def toolchain() -> str:
    """What tells the compiler and the flags from any others."""
    return _key(find_compiler(), DEFAULT_FLAGS, "")


class Kernels:
    """Kernels of a plan, each known by its own key, whatever it was compiled together with."""

    def __init__(self, flags: Sequence[str] = DEFAULT_FLAGS) -> None:
        self.compiler = find_compiler()
        self.flags = tuple(flags)
        self.cache = disk_cache()

    def key(self, kernel: Source) -> str:
        """Its name on disk."""
        return _key(self.compiler, self.flags, f"{kernel.name}\0{kernel.text}")

    def load(self, keys: Sequence[str]) -> list[Library] | None:
        """The libraries of kernels that this process or the disk has; None unless it has all."""
        found = [self._find(key) for key in keys]
        return None if None in found else [library for library in found if library is not None]

    def compile(self, kernels: Sequence[Source]) -> list[Library]:
        """The library of each kernel, in which its name is its ``symbol``.

        Those that neither this process nor the disk has are compiled in few units, all at once.  Errors as for
        ``compile_source``.
        """
        keys = {kernel: self.key(kernel) for kernel in kernels}
        found = {kernel: library for kernel, key in keys.items() if (library := self._find(key)) is not None}
        units = units_of([kernel for kernel in keys if kernel not in found], host().cores)
        for made in _at_once(lambda unit: self._build(unit, keys), units):
            found |= made
        return [found[kernel] for kernel in kernels]

    def _find(self, key: str) -> Library | None:
        library = _kernels.get(key)
        if library is None and self.cache:
            library = _load(self.cache, key)
            if library is not None:
                _remember([key], [library])
        return library

    def _build(self, unit: Unit, keys: dict[Source, str]) -> dict[Source, Library]:
        """Compile a unit, unless another thread or process did meanwhile."""
        wanted = [keys[kernel] for kernel in unit.kernels]
        name = digest(*wanted)
        with _alone(name), self.cache.claim(name) if self.cache else nullcontext():
            libraries = self.load(wanted)
            if libraries is None:
                image = _build(self.compiler, unit.text, self.flags)
                path = self.cache.store(wanted[0], image, *wanted[1:]) if self.cache else None
                library = (_load(self.cache, wanted[0]) if self.cache and path else None) or _load_image(image)
                libraries = [library] * len(wanted)
        _remember(wanted, libraries)
        return dict(zip(unit.kernels, libraries))


def _remember(keys: Sequence[str], libraries: Sequence[Library]) -> None:
    for key, library in zip(keys, libraries):
        _kernels[key] = library


def _at_once(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """``work`` of each item, by as many threads as there are cores.  After an error none is begun, and it is raised."""
    done: dict[int, T] = {}
    errors: list[BaseException] = []
    waiting = iter(range(len(items)))

    def take() -> None:
        try:
            while not errors and (number := _next(waiting)) is not None:
                done[number] = work(items[number])
        except BaseException as error:  # of whichever thread, and Ctrl-C in this one
            errors.append(error)

    threads = []
    with suppress(RuntimeError):  # threads are not to be had: at the end of the interpreter, or under a limit
        for _ in range(min(host().cores, len(items)) - 1):
            thread = threading.Thread(target=take, daemon=True)
            thread.start()
            threads.append(thread)
    take()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [done[number] for number in range(len(items))]


def _next(waiting: Iterator[int]) -> int | None:
    """One thread at a time: an iterator is safe for that under the GIL, and without it under the guard."""
    with _guard:
        return next(waiting, None)


def clear_memory_cache() -> None:
    """Forget the libraries in memory; those that plans use stay loaded."""
    _libraries.clear()
    _kernels.clear()
