"""Values of tensor graphs come from the NumPy interpreter here, unless a test is about compiled code.

The Tensor builds graphs, and thousands of small ones are tried: each would cost a C compilation.  Tests that ask for the fixture ``compiled``
take the way of a user.
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


@pytest.fixture
def compiled() -> None:
    """Asked for by tests that compile kernels."""


@pytest.fixture(autouse=True)
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "compiled" not in request.fixturenames:
        monkeypatch.setattr(core, "compute", interpret)
