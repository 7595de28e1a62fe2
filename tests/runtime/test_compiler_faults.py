"""Compilers that fail in every way, and processes that lack what running one takes: a clear error, nothing left, and
then the next thing works."""

import gc
import os
import threading

import pytest

from uopc.runtime import compile_source, compile_sources
from uopc.runtime.compiler import CompileError, CompilerNotFound, disk_cache, find_compiler
from uopc.runtime.spawn import MOST_SAID

FAULTY = {  # what a script does in place of compiling: the error, and what its text must have
    "exit 0": (CompileError, "wrote no library"),
    "exit 3": (CompileError, "failed on"),
    "kill -SEGV $$": (CompileError, "killed by signal 11"),
    "echo no > $out; exit 0": (CompileError, "wrote no library"),  # no object
    'exec "$cc" "$@" -o /dev/full': (CompileError, "No space left"),
    "yes 'error: again' | head -c 9000000; exit 1": (CompileError, "error: again"),
}


@pytest.fixture
def script(tmp_path, settings):
    """Make a compiler of a shell script, which answers questions as the real one does, and set CC."""
    real = find_compiler().command

    def make(does, shebang="#!/bin/sh"):
        path = tmp_path / "bin-cc"
        ask = f'case "$*" in *--version*|*-print*) exec {" ".join(real)} "$@";; esac'
        where = 'for word; do [ "$was" = -o ] && out=$word; was=$word; done'
        path.write_text(f"{shebang}\ncc={real[0]}\n{ask}\n{where}\n{does}\n")
        path.chmod(0o755)
        settings(CC=path)
        return path

    return make


@pytest.mark.parametrize("does", FAULTY)
def test_compilers_that_fail(script, settings, axpy_source, does, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kind, text = FAULTY[does]
    script(does)
    for _ in range(2):
        with pytest.raises(kind, match=text) as raised:
            compile_source(axpy_source)
        assert len(str(raised.value)) < 2 * MOST_SAID + 2000
        with open(raised.value.path) as kept:
            assert kept.read() == axpy_source
    assert [name for name in os.listdir(disk_cache().path) if name != "lock" and ".note" not in name] == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith("uopc-") and "failed" not in name]
    settings(CC=None)
    assert compile_source(axpy_source).launch("axpy")[1] == 10000


def test_a_flood_of_warnings_is_no_error(script, axpy_source):
    script('yes warning | head -c 9000000 >&2; exec "$cc" "$@"')
    assert compile_source(axpy_source).launch("axpy")[1] == 10000


@pytest.mark.parametrize("kind", ["gone", "interpreter gone", "no program", "not allowed"])
def test_compilers_that_cannot_be_run(script, axpy_source, kind, tmp_path):
    path = script('exec "$cc" "$@"', "#!/no/such/shell" if kind == "interpreter gone" else "#!/bin/sh")
    if kind == "gone":
        find_compiler()
        path.unlink()
    elif kind == "no program":
        path.write_bytes(b"\0\1\2")
    elif kind == "not allowed":
        path.chmod(0o644)
    with pytest.raises(CompilerNotFound, match="bin-cc"):
        compile_source(axpy_source)


def test_interrupting_a_compiler_that_hangs(script, python, tmp_path):
    """Ctrl-C ends the compiler, and then the error is KeyboardInterrupt; nothing holds up the next kernel."""
    path = script(f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    python(
        """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
from uopc.runtime.compiler import _find_compiler, environment
folder = sys.argv[1]
done = threading.Event()
def interrupt():
    while not os.path.exists(folder + "/pid") or not open(folder + "/pid").read(): time.sleep(0.01)
    while not done.wait(0.5):  # again, as a person would: a signal just before a thread blocks is noticed after it
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try: make()
except KeyboardInterrupt: done.set()
else: sys.exit("not interrupted")
pid = int(open(folder + "/pid").read())
for _ in range(500):
    if not os.path.exists(f"/proc/{pid}"): break
    time.sleep(0.01)
else: sys.exit("the compiler is still there")
os.environ.pop("CC"); environment.cache_clear()
check(make())
""",
        tmp_path,
        CC=path,
    )


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("cache", ["0", "1"])
def test_without_standard_streams(python, closed, cache):
    """As daemons run: files of the compiler must not be taken for its input or output."""
    streams = "; ".join(f"os.close({fd})" for fd in closed)
    code = f"""
from uopc.runtime.compiler import find_compiler
{streams}
try: check(make()); text = repr(find_compiler())
except BaseException as error: text = repr(error)
with open(sys.argv[1], "w") as file: file.write(text)
os._exit(0)
"""
    said = python("import tempfile; print(tempfile.mkdtemp())") + "/said"
    python(code, said, UOPC_CACHE=cache)
    with open(said) as file:
        assert file.read() == repr(find_compiler())


def test_libraries_without_a_cache_hold_no_descriptors(settings, axpy_source):
    settings(UOPC_CACHE="0")
    gc.collect()  # caches of tests before this one, in the tracebacks of errors
    before = len(os.listdir("/proc/self/fd"))
    libraries = [compile_source(axpy_source + f"int number{n} = {n};") for n in range(12)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len({library.address("axpy") for library in libraries}) == 12
    for n, library in enumerate(libraries):
        with pytest.raises(LookupError):
            library.address(f"number{n + 1}")


def test_without_threads_to_compile_with(settings, axpy_source, monkeypatch):
    """As at the end of an interpreter, or where no more threads may be made."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    made = compile_sources([axpy_source + f"int number{n};" for n in range(4)])
    assert all(library.launch("axpy")[1] == 10000 for library in made)


def test_without_descriptors(python):
    """OSError while there are none, and then the same thing works."""
    python(
        """
import resource, uopc
import uopc.pipeline
check(make())
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
try:
    while True: taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError: pass
x = uopc.Tensor(np.ones(7, "f"))
outcomes = []
for n in range(40):
    try: assert (x * n + 1).numpy()[3] == n + 1; outcomes.append("right")
    except OSError: outcomes.append("OSError")
    os.close(taken.pop())
assert outcomes[0] == "OSError" and outcomes[-1] == "right", outcomes
"""
    )


@pytest.mark.parametrize("linker", ["exit 1", "exit 0"])
def test_linkers_that_do_not_write_where_they_are_told(script, settings, axpy_source, tmp_path, linker):
    """lld and mold rename what they wrote; then the compiler links, and finds its own."""
    ld = tmp_path / "ld-other"
    ld.write_text(f"#!/bin/sh\n{linker}\n")
    ld.chmod(0o755)
    path = script('exec "$cc" "$@"')
    path.write_text(
        path.read_text().replace("\n", f'\ncase "$*" in *-print-prog-name=ld*) echo {ld}; exit;; esac\n', 1)
    )
    if find_compiler().linker is None:
        pytest.skip("not gcc")
    assert find_compiler().linker[0] == str(ld)
    assert compile_source(axpy_source).launch("axpy")[1] == 10000


@pytest.mark.parametrize("variables", [{"TMPDIR": "/proc"}, {"HOME": None}, {"TMPDIR": "/nowhere", "HOME": "/proc"}])
def test_without_places_to_write_to(python, variables):
    if find_compiler().linker is None and "TMPDIR" in variables:
        pytest.skip("other compilers than gcc write temporary files of their own")
    python("check(make())", **variables)


def test_work_at_the_end_of_the_interpreter(python):
    code = """
import atexit, uopc
def late():
    ones = [uopc.Tensor(np.ones(n + 2, "f")) * (n + 0.5) for n in range(4)]
    uopc.Tensor.realize(*ones)
    print([float(t.numpy()[0]) for t in ones])
atexit.register(late)
"""
    assert python(code) == "[0.5, 1.5, 2.5, 3.5]"
