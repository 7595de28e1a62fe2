"""Finding and running the C compiler, and what happens when there is none or it fails."""

import os
import shutil
import stat
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from uopc.runtime import CompileError, CompilerNotFound, NativePlan, Program, compile_source, compile_sources
from uopc.runtime import compiler as module
from uopc.runtime.compiler import find_compiler

GCC = shutil.which("gcc")


def constant(n):
    return f"""
void k_range(void *const *args, long lo, long hi) {{ *(int *)args[0] = {n}; }}
const long k_launch[3] = {{1, 1, 0}};
"""


def value(library):
    out = np.zeros(1, "i4")
    NativePlan([(library, "k", (0,))], 1).run([out])
    return int(out[0])


@pytest.fixture
def fake_cc(tmp_path, settings):
    """Use a shell script as the compiler.  $REAL is gcc."""
    if GCC is None:
        pytest.skip("no gcc to build on")

    def use(body, name="fake-cc"):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\nREAL={GCC}\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        settings(CC=script)
        return script

    return use


def test_same_source_gives_the_same_library(settings):
    assert compile_source(constant(1)) is compile_source(constant(1))
    assert compile_source(constant(1)) is not compile_source(constant(2))
    assert compile_source(constant(1)) is not compile_source(constant(1), ("-O2",))


def test_many_sources(settings):
    sources = [constant(n % 7) for n in range(20)]
    assert [value(library) for library in compile_sources(sources)] == [n % 7 for n in range(20)]
    assert compile_sources([]) == []


def test_one_bad_source_among_many(settings):
    with pytest.raises(CompileError, match="<stdin>:1") as caught:
        compile_sources([constant(1), "nonsense", constant(2)])
    os.unlink(caught.value.path)
    assert value(compile_source(constant(2))) == 2


def test_compile_error_has_output_source_and_command(settings):
    source = "int broken( {"
    with pytest.raises(CompileError) as caught:
        compile_source(source)
    error = caught.value
    assert "error" in error.output and "error" in str(error) and error.path in str(error)
    assert Path(error.path).read_text() == source
    assert error.command[0] == find_compiler().command[0] and "-o" in error.command
    os.unlink(error.path)


def test_undefined_symbols_do_not_load(settings):
    source = "int missing(void); " + constant(1).replace("= 1", "= missing()")
    with pytest.raises(OSError, match="missing"):
        compile_source(source)


def test_what_no_processor_has_is_linked_in(settings):
    """libm, and the helper functions of libgcc."""
    source = """
double pow(double, double);
void k_range(void *const *args, long lo, long hi) { *(_Float16 *)args[0] = (_Float16)pow(*(double *)args[1], 3.0); }
const long k_launch[3] = {1, 1, 0};
"""
    out, x = np.zeros(1, "e"), np.full(1, 1.5)
    Program(source, "k")(out, x)
    assert out[0] == np.float16(1.5**3)


def test_cc_may_have_arguments(settings):
    settings(CC=f"{GCC or 'cc'} -DVALUE=42")
    assert value(compile_source(constant("VALUE"))) == 42
    settings(CC=f"{GCC or 'cc'} -DVALUE=43")
    assert value(compile_source(constant("VALUE"))) == 43


@pytest.mark.parametrize(
    ("cc", "expected"),
    [
        ("{path}", "1"),
        ("'{path}' -DVALUE=42", "42"),
        ('"{path}" -DVALUE=43 -DOTHER="a b"', "43"),
        ("my\\ tools/../my\\ tools/gcc -DVALUE=44", "44"),
    ],
)
def test_cc_may_have_spaces_in_its_path(settings, tmp_path, monkeypatch, cc, expected):
    """Alone as it is, before flags in quotes or with backslashes."""
    if GCC is None:
        pytest.skip("no gcc to link to")
    path = tmp_path / "my tools" / "gcc"
    path.parent.mkdir()
    path.symlink_to(GCC)
    monkeypatch.chdir(tmp_path)
    settings(CC=cc.format(path=path))
    source = "#ifndef VALUE\n#define VALUE 1\n#endif\n" + constant("VALUE")
    assert value(compile_source(source)) == int(expected)
    assert os.path.samefile(find_compiler().command[0], path)


def test_a_name_on_path_may_have_spaces(settings, tmp_path):
    if GCC is None:
        pytest.skip("no gcc to link to")
    (tmp_path / "my gcc").symlink_to(GCC)
    settings(CC="my gcc", PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    assert value(compile_source(constant(7))) == 7


@pytest.mark.parametrize(
    ("cc", "match"),
    [("/a folder/gcc -O2", "'/a'. A path with spaces needs quotes"), ("'gcc", "No closing quotation")],
)
def test_cc_that_cannot_be_split_or_found(settings, cc, match):
    settings(CC=cc)
    with pytest.raises(CompilerNotFound, match=match):
        compile_source(constant(1))


def test_no_compiler(settings, tmp_path):
    settings(PATH=tmp_path, CC=None)
    if module._has_ziglang():
        pytest.skip("the ziglang package is installed")
    with pytest.raises(CompilerNotFound, match=r"apt install gcc.*uopc\[cc\]"):
        compile_source(constant(1))


def test_cc_that_is_not_there(settings):
    settings(CC="no-such-compiler -O3")
    with pytest.raises(CompilerNotFound, match="no-such-compiler"):
        compile_source(constant(1))


def test_compiler_from_a_wheel(settings, tmp_path, monkeypatch):
    """With nothing on PATH, a package named ziglang is called as `python -m ziglang cc`."""
    if GCC is None:
        pytest.skip("no gcc to build on")
    package = tmp_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        f"import os, sys; assert sys.argv[1] == 'cc'; os.execv({GCC!r}, [{GCC!r}, *sys.argv[2:]])"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings(PATH=os.pathsep.join([str(tmp_path)]), CC=None, PYTHONPATH=tmp_path)
    assert find_compiler().command == (sys.executable, "-m", "ziglang", "cc")
    settings(PATH=os.defpath, CC=f"{sys.executable} -m ziglang cc")
    assert value(compile_source(constant(5))) == 5
    (package / "zig").write_text("one")
    settings()
    one = find_compiler().identity
    (package / "zig").write_text("another")
    settings()
    assert find_compiler().identity != one  # an update, though the version of its clang is the same


def test_folders_of_killed_builds_are_swept(fake_cc, tmp_path, monkeypatch):
    """With compilers that need a folder; what is not an hour old may be in use."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name, age in (("uopc-build-dead", 7200), ("uopc-build-alive", 60), ("other", 7200)):
        (tmp_path / "tmp" / name).mkdir(parents=True)
        (tmp_path / "tmp" / name / "kernel.so").touch()
        os.utime(tmp_path / "tmp" / name, (time.time() - age,) * 2)
    fake_cc('case "$*" in *--version*) echo "other compiler 1.0";; *) exec $REAL "$@";; esac')
    assert value(compile_source(constant(6))) == 6
    assert sorted(os.listdir(tmp_path / "tmp")) == ["other", "uopc-build-alive"]


def test_compilers_other_than_gcc_link_for_themselves(fake_cc, tmp_path, settings):
    fake_cc('case "$*" in *--version*) echo "other compiler 1.0";; *) exec $REAL "$@";; esac')
    left = tmp_path / "tmp"
    left.mkdir()
    settings(TMPDIR=left)
    assert not find_compiler().is_gcc
    assert value(compile_source(constant(6))) == 6
    assert not list(left.iterdir())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('case "$*" in *--version*|*-print*) exec $REAL "$@";; esac; kill -9 $$', "signal 9"),
        ('case "$*" in *--version*|*-print*) exec $REAL "$@";; esac; exit 0', "failed"),
        ('case "$*" in *--version*|*-print*) exec $REAL "$@";; esac; echo no licence; exit 3', "no licence"),
    ],
)
def test_compiler_that_dies(fake_cc, body, message):
    """Killed, silently without output, or with an error: CompileError, and the next try with a sane one works."""
    fake_cc(body)
    with pytest.raises(CompileError, match=message) as caught:
        compile_source(constant(7))
    os.unlink(caught.value.path)
    fake_cc('exec $REAL "$@"')
    assert value(compile_source(constant(7))) == 7


def test_compiler_without_a_version(fake_cc):
    fake_cc("exit 1")
    with pytest.raises(CompilerNotFound, match="--version failed"):
        compile_source(constant(1))


def test_an_updated_compiler_compiles_again(fake_cc):
    """Same path, another file: what the old one made is not loaded."""
    fake_cc('exec $REAL -DVALUE=1 "$@"')
    assert value(compile_source(constant("VALUE"))) == 1
    fake_cc('exec $REAL -DVALUE=2222 "$@"')
    assert value(compile_source(constant("VALUE"))) == 2222


def test_many_threads_compile_one_kernel_once(fake_cc, tmp_path):
    log = tmp_path / "log"
    fake_cc(f'case "$*" in *--version*|*-print*) ;; *) echo run >> {log};; esac; exec $REAL "$@"')
    find_compiler()
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(compile_source(constant(8)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == 1 and len(seen) == 8
    assert log.read_text().count("run") == 1


@pytest.mark.parametrize("n_open", [0, 40])
def test_nothing_is_left_behind(settings, tmp_path, n_open):
    """No temporary file and no descriptor, whether or not low descriptor numbers are taken."""
    left = tmp_path / "tmp"
    left.mkdir()
    settings(TMPDIR=left)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(n_open)]
    compile_source(constant(9))
    before = len(os.listdir("/proc/self/fd"))
    for n in range(10, 14):
        compile_source(constant(n))
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list(left.iterdir())
    for fd in held:
        os.close(fd)
