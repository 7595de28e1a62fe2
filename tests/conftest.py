"""What holds for every test: graphs are verified between stages, the kernel cache is private, slow tests run in CI."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# What a shell starts in the background ignores SIGINT, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start Python processes from wherever pytest was started, which may be a checkout without built modules: they too
# see the installed package.  (Python 3.10 knows no such variable: see `elsewhere`.)
os.environ.setdefault("PYTHONSAFEPATH", "1")
# Before anything imports uopc, which reads its environment once.
os.environ.setdefault("UOPC_VERIFY", "1")
if "UOPC_CACHE_DIR" not in os.environ:
    os.environ["UOPC_CACHE_DIR"] = tempfile.mkdtemp(prefix="uopc-test-cache-")
    atexit.register(shutil.rmtree, os.environ["UOPC_CACHE_DIR"], ignore_errors=True)

# A first example may compile a kernel: time says nothing. `derandomize` keeps CI's verdict a function of the code.
settings.register_profile("uopc", deadline=None, print_blob=True)
settings.register_profile("uopc-ci", settings.get_profile("uopc"), derandomize=True)
IN_CI = os.environ.get("CI", "") not in ("", "0", "false")
settings.load_profile("uopc-ci" if IN_CI else "uopc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, as CI does")
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before Python 3.11, tests run in a folder that holds no uopc: the processes that they start look there first."""
    if sys.version_info < (3, 11):
        os.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def compile_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """From the call on, kernels are made for a Target, and none that was made for another is used."""

    def use(target: Any) -> None:
        pipeline = import_module("uopc.pipeline")
        monkeypatch.setattr(pipeline, "host", lambda: target)
        monkeypatch.setattr(pipeline, "_kernels", {})

    return use


@pytest.fixture
def target(request: pytest.FixtureRequest, compile_for: Callable[[Any], None]) -> Any:
    """The Target of a test that says by ``fixed.targets`` for which it holds."""
    compile_for(request.param)
    return request.param


GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with a file in tests/golden.  A file that is missing is a failure; --update-golden writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; pytest --update-golden writes it, and a reviewer reads it"
        assert text == path.read_text(), f"{path} has another text; pytest --update-golden shows the change to git"

    return compare


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IN_CI or config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: runs in CI, or with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
