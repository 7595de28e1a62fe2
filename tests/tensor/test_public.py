"""The names that `import uopc` gives, and what it leaves unloaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

import uopc

PROBE = """
import sys, uopc
x = uopc.Tensor([1.0, 2.0]) * 2
assert not {"uopc.pipeline", "uopc.kernelize", "uopc.render_c", "uopc.runtime.compiler"} & set(sys.modules)
"""


def test_the_compiler_is_loaded_when_a_value_is_asked_for():
    subprocess.run([sys.executable, "-c", PROBE], check=True)


def test_names():
    for name in uopc.__all__:
        assert getattr(uopc, name) is not None
    assert issubclass(uopc.CompilerNotFound, Exception)
    assert issubclass(uopc.CompileError, Exception)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        uopc.nothing  # noqa: B018 - the lookup raises
    with uopc.options(fuse_reduce=True), uopc.options(fuse_reduce=None):
        pass


def test_every_method_says_what_it_does():
    for name in dir(uopc.Tensor):
        value = getattr(uopc.Tensor, name)
        if not name.startswith("_") and callable(value):
            assert value.__doc__, name
