"""terms: which products are not rounded, and that nothing else decides it."""

from __future__ import annotations

import numpy as np
import pytest
from loop_ir import buffer, reduce

from uopc import Tensor
from uopc.ops import Ops, ParamArg
from uopc.pipeline import make_plan, to_linear
from uopc.runtime.compiler import DEFAULT_FLAGS
from uopc.terms import combined
from uopc.uop import UOp, dtypes, range_, sink

A, B, C = (buffer(k, 8).index(0).load() for k in (1, 2, 3))


def floats(linear: UOp) -> list[Ops]:
    """The float operations of a program, in order."""
    return [u.op for u in linear.src if u.op in (Ops.ADD, Ops.MUL, Ops.FMA) and u.dtype.is_float]


def test_a_sum_takes_its_products_unrounded() -> None:
    assert combined(Ops.ADD, C, A * B) is UOp(Ops.FMA, (A, B, C))
    assert combined(Ops.ADD, A * B, C) is UOp(Ops.FMA, (A, B, C))
    assert combined(Ops.ADD, A * B, A * C) is UOp(Ops.FMA, (A, C, A * B))
    assert combined(Ops.ADD, A, B) is A + B
    assert combined(Ops.MAX, C, A * B) is C.maximum(A * B)
    i, j = (buffer(k, 8, dtype=dtypes.int32).index(0).load() for k in (4, 5))
    assert combined(Ops.ADD, i, i * j) is i + i * j


def test_the_compiler_is_told_to_contract_nothing() -> None:
    assert [f for f in DEFAULT_FLAGS if "contract" in f] == ["-ffp-contract=off"]


def test_reductions_become_fmas_and_elementwise_products_do_not() -> None:
    i = range_(12, 0)
    x, y = (buffer(k, 12).index(i).load() for k in (1, 2))
    dot = buffer(0, 1).index(0).store(reduce(Ops.ADD, x * y, i))
    assert floats(to_linear(sink(dot))) == [Ops.FMA]
    store = buffer(0, 12).index(i).store(x * y + x).end(i)
    assert floats(to_linear(sink(store))) == [Ops.MUL, Ops.ADD]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_accumulators_by_hand_take_products_unrounded(sign: float) -> None:
    """``total = total * a + b * c``: the product that waits for the total is the one that is not rounded."""
    i = range_(12, 0)
    x, y = (buffer(k, 12).index(i).load() for k in (1, 2))
    cell = UOp(Ops.ALLOC, (), ParamArg(0, dtypes.float32, ()))
    begun = cell.index(0).store(UOp.const(0.0, dtypes.float32))
    place = cell.after(begun, i).index(0)
    plain = place.store(place.load() + x * y).end(i)
    corrected = place.store(place.load() * (x * sign) + x * y).end(i)
    for loop, wanted in ((plain, [Ops.FMA]), (corrected, [Ops.MUL, Ops.FMA])):
        out = buffer(0, 1).index(0).store(cell.after(loop).index(0).load())
        made = [op for op in floats(to_linear(sink(out))) if op in (Ops.MUL, Ops.FMA)]
        assert made[-len(wanted) :] == wanted and made.count(Ops.FMA) == 1


def test_a_product_that_overflows_is_infinite_before_it_is_added() -> None:
    assert (Tensor([3e38]) * 2 - 3e38).item() == np.inf
    a = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert not (Tensor(a) * Tensor(a) - Tensor(a.copy()) * Tensor(a.copy())).sqrt().numpy().any()


def test_matrix_products_multiply_and_add_in_one() -> None:
    x = np.ones((64, 64), np.float32)
    for value in (Tensor(x) @ Tensor(x), (Tensor(x) * Tensor(x)).sum(-1)):
        (kernel,) = make_plan([value.uop]).kernels
        added = [s for u in kernel.linear.src if u.op is Ops.ADD and u.dtype.is_float for s in u.src]
        assert Ops.FMA in floats(kernel.linear) and all(s.op is not Ops.MUL for s in added)
    attention = make_plan([((Tensor(x) @ Tensor(x)).softmax(-1) @ Tensor(x)).uop]).kernels
    inner = [u.op for k in attention for u in k.linear.src if u.dtype.is_float and len(u.ranges) > 1]
    assert inner.count(Ops.FMA) > inner.count(Ops.MUL) > 0
