"""The cache on disk under faults: nothing wrong is ever loaded, nothing fails that could work, nothing is left."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import pytest

from uopc.runtime import compile_source
from uopc.runtime.cache import CacheRefused, DiskCache, digest
from uopc.runtime.compiler import clear_memory_cache, disk_cache

IMAGE = b"\x7fELF" + bytes(range(256)) * 20
KEYS = [digest("key", str(n)) for n in range(10)]
is_root = os.geteuid() == 0


@pytest.fixture
def cache(tmp_path):
    return DiskCache(str(tmp_path / "c"), 1 << 20)


def names(cache):
    """Kernels, and what writers left aside; not what compilers said of themselves."""
    return sorted(name for name in os.listdir(cache.path) if name != "lock" and not name.endswith(".note"))


def test_store_and_load(cache):
    assert cache.load(KEYS[0]) is None
    path = cache.store(KEYS[0], IMAGE)
    assert path == cache.load(KEYS[0])
    with open(path, "rb") as file:
        assert file.read().startswith(IMAGE)
    assert os.stat(cache.path).st_mode & 0o777 == 0o700 and os.stat(path).st_mode & 0o777 == 0o600


def test_digests_tell_parts_apart():
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("é",), ("e",)]
    assert len({digest(*p) for p in parts}) == len(parts)


@pytest.mark.parametrize("damage", ["empty", "short", "cut", "flip", "trailer", "longer"])
def test_damaged_files_are_not_loaded_and_go(cache, damage):
    path = cache.store(KEYS[0], IMAGE)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    if damage == "flip":
        data[100] ^= 1
    data = {"empty": data[:0], "short": data[:10], "cut": data[:3000], "trailer": data[:-1], "longer": data + b"x"}.get(
        damage, data
    )
    with open(path, "wb") as file:
        file.write(data)
    assert cache.load(KEYS[0]) is None
    assert names(cache) == []
    assert cache.load(KEYS[0]) is None
    assert cache.load(KEYS[1]) is None and cache.store(KEYS[0], IMAGE) == cache.load(KEYS[0])


def test_truncated_kernel_is_compiled_again(settings, axpy_source):
    compile_source(axpy_source)
    (entry,) = names(disk_cache())
    path = os.path.join(disk_cache().path, entry)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        data = file.read()
    clear_memory_cache()
    os.unlink(path)  # a new file: the old one may still be mapped
    with open(path, "wb") as file:
        file.write(data[: size // 2])
    assert compile_source(axpy_source).launch("axpy")[1] == 10000
    assert os.path.getsize(path) == size


def test_old_kernels_are_evicted(tmp_path):
    cache = DiskCache(str(tmp_path / "c"), 4 * (len(IMAGE) + 24))
    for n, key in enumerate(KEYS[:4]):
        cache.store(key, IMAGE)
        os.utime(os.path.join(cache.path, key + ".so"), (1000 + n, 1000 + n))
    assert cache.load(KEYS[0])  # used now, so the second is the oldest
    cache.store(KEYS[4], IMAGE)
    left = {name.removesuffix(".so") for name in names(cache)}
    assert KEYS[4] in left and KEYS[0] in left and KEYS[1] not in left
    assert len(left) * (len(IMAGE) + 24) <= cache.limit


def test_what_is_larger_than_the_cache_is_not_stored(tmp_path):
    cache = DiskCache(str(tmp_path / "c"), 100)
    assert cache.store(KEYS[0], IMAGE) is None and names(cache) == []


def test_files_of_dead_writers_are_swept(cache):
    for name, age in (("dead.1.1.tmp", 3600), ("alive.1.1.tmp", 0)):
        path = os.path.join(cache.path, name)
        open(path, "w").close()
        os.utime(path, (time.time() - age,) * 2)
    cache.store(KEYS[0], IMAGE)
    assert "dead.1.1.tmp" not in names(cache) and "alive.1.1.tmp" in names(cache)


def test_clear(cache):
    for key in KEYS[:3]:
        cache.store(key, IMAGE)
    assert cache.clear() == 3 and names(cache) == [] and cache.load(KEYS[0]) is None


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_folders_open_to_others_are_refused(tmp_path, mode):
    (tmp_path / "c" / "kernels").mkdir(parents=True)
    (tmp_path / "c" / "kernels").chmod(mode)
    with pytest.raises(CacheRefused, match="mode"):
        DiskCache(str(tmp_path / "c"), 1 << 20)


@pytest.mark.skipif(not is_root, reason="needs root to give a folder to another user")
def test_folders_of_others_are_refused(tmp_path):
    (tmp_path / "c" / "kernels").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / "c" / "kernels", 12345, 12345)
    with pytest.raises(CacheRefused, match="owner 12345"):
        DiskCache(str(tmp_path / "c"), 1 << 20)


def test_links_are_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheRefused):
        DiskCache(str(tmp_path / "c"), 1 << 20)
    cache = DiskCache(str(tmp_path / "d"), 1 << 20)
    os.rename(cache.store(KEYS[0], IMAGE), tmp_path / "file")
    os.symlink(tmp_path / "file", os.path.join(cache.path, KEYS[0] + ".so"))
    assert cache.load(KEYS[0]) is None


def test_unusable_folder_means_no_cache(settings, tmp_path, axpy_source):
    """A file where the folder should be stands for every folder that cannot be made; root may write anywhere else."""
    (tmp_path / "file").touch()
    settings(UOPC_CACHE_DIR=tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="without a cache on disk"):
        assert compile_source(axpy_source).launch("axpy")[1] == 10000


@pytest.mark.parametrize("variables", [{"UOPC_CACHE": "0"}, {"UOPC_CACHE_LIMIT": "0"}])
def test_switched_off(settings, tmp_path, axpy_source, variables):
    settings(UOPC_CACHE_DIR=tmp_path / "none", **variables)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = compile_source(axpy_source)
        clear_memory_cache()
        second = compile_source(axpy_source)  # two libraries in no folder, loaded at once, are two
    assert first is not second and first.address("axpy") != second.address("axpy")
    assert not (tmp_path / "none").exists()


@contextlib.contextmanager
def mounted(folder, *options):
    """A small tmpfs, if this process may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    try:
        failed = subprocess.run(command, capture_output=True).returncode
    except OSError:
        failed = True
    if failed:
        pytest.skip("may not mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk(settings, tmp_path, axpy_source):
    with mounted(tmp_path / "tiny", "size=16k"):
        settings(UOPC_CACHE_DIR=tmp_path / "tiny")
        cache = disk_cache()
        with open(tmp_path / "tiny" / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        assert compile_source(axpy_source).launch("axpy")[1] == 10000
        assert names(cache) == []
        clear_memory_cache()
        (tmp_path / "tiny" / "filler").unlink()
        compile_source(axpy_source)
        assert len(names(cache)) == 1


def test_read_only_disk(settings, tmp_path, axpy_source, python):
    with mounted(tmp_path / "ro", "size=1m"):
        other = axpy_source + "int other;"
        python("compile_source(sys.argv[1])", other, UOPC_CACHE_DIR=tmp_path / "ro")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "ro")], check=True)
        settings(UOPC_CACHE_DIR=tmp_path / "ro")
        before = names(disk_cache())
        assert compile_source(axpy_source).launch("axpy")[1] == 10000  # compiled
        assert compile_source(other).path.startswith(str(tmp_path / "ro"))  # loaded
        assert names(disk_cache()) == before


def test_disk_from_which_nothing_may_run(settings, tmp_path, axpy_source):
    with mounted(tmp_path / "noexec", "size=1m,noexec"):
        settings(UOPC_CACHE_DIR=tmp_path / "noexec")
        assert compile_source(axpy_source).path.startswith("/proc/self/fd/")


def test_many_processes_compile_one_kernel(tmp_path, python):
    """One of them compiles, all of them compute, and one file is left."""
    log, cc = tmp_path / "log", tmp_path / "cc"
    cc.write_text(f'#!/bin/sh\ncase "$*" in *--version*|*-print*) ;; *) echo run >> {log};; esac\nexec cc "$@"\n')
    cc.chmod(0o755)
    python(
        """
import subprocess
code = "import os, numpy as np\\nfrom uopc.runtime import Program\\n" \\
       "o, x = np.empty(10000, 'f'), np.ones(10000, 'f')\\n" \\
       "Program(os.environ['AXPY'], 'axpy')(o, x, x); assert (o == 3).all()"
processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(12)]
assert [p.wait() for p in processes] == [0] * 12
""",
        CC=cc,
    )
    left = [name for name in os.listdir(tmp_path / "cache" / "kernels") if name.endswith(".so")]
    assert len(left) == 1 and left[0].endswith(".so")
    assert log.read_text().count("run") == 1


def test_killed_at_any_instant(tmp_path, axpy_source):
    """Processes that compile are killed after ever longer times; then one compiles, loads, and finds no damage."""
    env = {
        **os.environ,
        "UOPC_CACHE_DIR": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
        "AXPY": axpy_source,
    }
    (tmp_path / "tmp").mkdir()
    code = """
import os, sys
from uopc.runtime.compiler import compile_source
print("ready", flush=True)
for n in range(1000): compile_source(os.environ["AXPY"] + f"int variant{n};")
"""
    for n in range(10):
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.017 * n)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    cache = DiskCache(str(tmp_path / "cache"), 1 << 30)
    whole = [name for name in names(cache) if name.endswith(".so")]
    assert whole
    for name in whole:
        path = cache.load(name.removesuffix(".so"))
        assert path and ctypes.CDLL(path).axpy
    time.sleep(0.1)  # the killed processes' compilers finish on their own
    assert not os.listdir(tmp_path / "tmp")


def test_a_folder_that_was_put_in_the_place_of_ours_is_not_loaded_from(settings, tmp_path, axpy_source):
    """Whoever may rename the folder above can put another there; the one that was found safe is open."""
    compile_source(axpy_source)
    cache = disk_cache()
    (entry,) = [name for name in names(cache) if name.endswith(".so")]
    os.rename(cache.path, tmp_path / "moved")
    os.mkdir(cache.path)
    with open(os.path.join(cache.path, entry), "wb") as file:
        file.write(b"not ours")
    clear_memory_cache()
    library = compile_source(axpy_source)
    assert library.launch("axpy")[1] == 10000 and library.path.endswith(entry)
    assert os.listdir(tmp_path / "moved") and os.listdir(cache.path) == [entry]


def test_a_folder_that_is_deleted_while_in_use(settings, axpy_source):
    compile_source(axpy_source)
    shutil.rmtree(os.path.dirname(disk_cache().path))
    clear_memory_cache()
    for n in range(3):
        assert compile_source(axpy_source + f"int n{n};").launch("axpy")[1] == 10000
    assert not os.path.exists(disk_cache().path) and disk_cache().clear() == 0


def test_a_relative_folder_stays_where_it_was(settings, monkeypatch, tmp_path, axpy_source):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    settings(UOPC_CACHE_DIR="rel")
    paths = set()
    for name in (".", "a", "../b"):
        monkeypatch.chdir(name)
        clear_memory_cache()
        paths.add(compile_source(axpy_source).path)
    (path,) = paths
    assert path.startswith(str(tmp_path / "rel"))
    assert not os.listdir(tmp_path / "a") and not os.listdir(tmp_path / "b")


def test_a_user_without_a_home(settings, monkeypatch, axpy_source, tmp_path):
    settings(UOPC_CACHE_DIR=None)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning, match="no home"):
        assert compile_source(axpy_source).launch("axpy")[1] == 10000
    assert os.listdir(tmp_path) == []


def test_a_clock_that_goes_backwards(tmp_path):
    """Files from the future are not preferred for ever, what was just stored is there, what a writer left goes."""
    cache = DiskCache(str(tmp_path / "c"), 4 * (len(IMAGE) + 24))
    for key in KEYS[:4]:
        os.utime(cache.store(key, IMAGE), (time.time() + 1e6,) * 2)
    left = os.path.join(cache.path, "dead.1.1.tmp")
    open(left, "w").close()
    os.utime(left, (time.time() + 1e6,) * 2)
    path = cache.store(KEYS[4], IMAGE)
    assert not os.path.exists(left)
    assert path and cache.load(KEYS[4]) == path
    assert sum(os.path.getsize(os.path.join(cache.path, name)) for name in names(cache)) <= cache.limit
    assert cache.store(KEYS[5], IMAGE) == cache.load(KEYS[5])
