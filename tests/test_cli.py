"""python -m uopc, as a person or a script would call it."""

import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

from uopc.__main__ import main
from uopc.options import environment
from uopc.runtime.cache import TUNED, DiskCache, digest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UOPC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("UOPC_CACHE", raising=False)
    environment.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    environment.cache_clear()


def fill(folder, n):
    cache = DiskCache(str(folder), 1 << 30)
    cache.store(*[digest("0")], b"x" * 3000, *[digest(str(k)) for k in range(1, n)])
    return cache


def test_info(folder, capsys):
    assert main(["cache", "info"]) == 0
    assert "empty" in capsys.readouterr().out
    fill(folder, 3).keep_note(digest("schedules"), b"measured", TUNED)
    assert main(["cache", "info"]) == 0
    said = capsys.readouterr().out
    assert "tuned      1" in said
    assert str(folder) in said and "kernels    3" in said and "3.0 KiB of 1.0 GiB" in said


def test_clear(folder, capsys):
    cache = fill(folder, 3)
    assert main(["cache", "clear"]) == 0
    assert "removed 3 files" in capsys.readouterr().out
    assert cache.files() == []
    assert main(["cache", "clear"]) == 0


def test_switched_off(folder, monkeypatch, capsys):
    monkeypatch.setenv("UOPC_CACHE", "0")
    environment.cache_clear()
    assert main(["cache", "info"]) == 0
    assert "no cache" in capsys.readouterr().out


def test_unsafe_folder(folder, capsys):
    fill(folder, 1)
    os.chmod(folder / "kernels", 0o777)
    assert main(["cache", "clear"]) == 1
    assert "mode 777" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["info", "explain", "sweep", "bench", "cache"])
def test_help_has_examples(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert caught.value.code == 0 and "examples:" in said and f"python -m uopc {name}" in said


def test_help_names_every_command():
    command = [sys.executable, "-m", "uopc", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"\n    {name} " in said for name in ("info", "explain", "sweep", "bench", "cache"))


def test_the_command_uopc_is_this_one():
    text = (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text()
    (place,) = re.findall(r"^\[project\.scripts\]\nuopc = \"(.*)\"$", text, re.M)
    assert pkgutil.resolve_name(place) is main


def test_a_reader_who_has_read_enough_is_no_error():
    """As `head` is, which ends before all is written."""
    command = f"{sys.executable} -m uopc cache --help | head -1; {sys.executable} -m uopc info | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr and done.stdout.startswith("usage")


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["cache"], ["cache", "nonsense"]])
def test_wrong_command_lines(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and "usage" in capsys.readouterr().err
