"""Where values of Tensors come from in these tests.

The Tensor builds graphs, and thousands of small ones are tried, of which each would cost a C compilation.  So every
test runs with the NumPy interpreter, and once more, with what a user has, where slow tests run.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference

from uopc.dtype import dtypes, float32_to_bfloat16
from uopc.options import Options
from uopc.runtime.storage import new_buffer
from uopc.tensor import core
from uopc.uop import UOp


def interpret(roots: list[UOp], options: Options) -> list[UOp]:
    """What ``core.compute`` promises, by the interpreter."""
    for u, value in zip(roots, reference.evaluate(roots)):
        bits = float32_to_bfloat16(value) if u.dtype is dtypes.bfloat16 else value
        u.realized = new_buffer(u.dtype, u.shape, np.array(bits, u.dtype.numpy).reshape(-1))
    return [u.realized for u in roots]


@pytest.fixture(autouse=True, params=["interpreted", pytest.param("compiled", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two computes."""
    if request.param == "interpreted":
        monkeypatch.setattr(core, "compute", interpret)
    return str(request.param)
