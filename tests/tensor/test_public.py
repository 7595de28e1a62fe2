"""The names that `import uopc` gives, and what it leaves unloaded."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import uopc
from uopc import Tensor

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


def test_threads_may_ask_for_the_same_tensor_at_once() -> None:
    shared, results = Tensor(np.ones(1000)) + 1, []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait()
        results.append(shared.numpy().sum())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [2000.0] * 4


def test_a_pickle_keeps_the_shape_of_a_scalar() -> None:
    assert pickle.loads(pickle.dumps(Tensor(3.5))).shape == ()
