"""prefetch: which loads say what is read soon, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from fixed import MACHINE, CompileFor

from uopc import Tensor
from uopc.ops import Ops
from uopc.pipeline import Kernel, make_plan
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.uop import UOp


def kernel(value: Tensor, compile_for: CompileFor, **caches: int) -> Kernel:
    """The one kernel of a value, for the fixed machine with other caches."""
    compile_for(MACHINE.with_caches(**caches))
    (made,) = make_plan([value.uop]).kernels
    return made


def loads(made: Kernel) -> list[UOp]:
    """The vectors that are read from arguments, in order."""
    return [u for u in made.linear.src if u.op is Ops.LOAD and u.dtype.count > 1 and u.src[0].src[0].op is Ops.BUFFER]


def array(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))


@pytest.mark.parametrize("columns", [512, 4096])
def test_exponentials_of_a_row_fetch_the_next_row(columns, compile_for):
    """The maximum reads the row first; the exponentials read it again, and take longer than memory."""
    ahead = [u.arg for u in loads(kernel(array((1 << 20) // columns, columns).softmax(-1), compile_for))]
    half = len([a for a in ahead if a is None])
    assert 0 < half < len(ahead) and ahead == [None] * half + [columns] * (len(ahead) - half)


@pytest.mark.parametrize(
    "value",
    [
        lambda: array(64, 4096).softmax(-1),  # 1 MB: the second-level cache holds it
        lambda: array(4, 1 << 20).softmax(-1),  # a row is larger than the cache has room for
        lambda: array(1 << 16, 64).softmax(-1),  # a row is a few lines, which the processor fetches by itself
        lambda: array(4096, 4096).var(-1),  # too little work to leave memory idle
        lambda: array(4096, 4096).exp(),  # read once
        lambda: (array(64, 1 << 16) * 2.0).sum(-1),
    ],
)
def test_nothing_is_fetched_where_it_would_not_pay(value, compile_for):
    compile_for(MACHINE)
    assert not any(u.arg for made in make_plan([value().uop]).kernels for u in loads(made))


def test_what_is_fetched_changes_no_bit(compile_for):
    """Also at the end of memory, where the next row does not exist."""
    x = np.random.default_rng(0).standard_normal((33, 1024)).astype(np.float32)
    results = []
    for l2 in (64 << 10, 1 << 20):
        made = kernel(Tensor(x).softmax(-1), compile_for, l2=l2)
        assert any(u.arg for u in loads(made)) == (l2 < x.nbytes)
        results.append(np.zeros_like(x))
        Program(render_c(made.linear, "kernel"), "kernel")(results[-1], x)
    np.testing.assert_array_equal(*results)
    wide = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(results[0], wide / wide.sum(-1, keepdims=True), rtol=1e-5)
