"""agree: a sum that is computed in several kernels, or at several places of one, has the same bits in each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.agree import agree
from uopc.kernelize import kernelize
from uopc.ops import Level, Ops, Order
from uopc.pipeline import make_plan
from uopc.uop import UOp, sink, toposort


def draw(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


SUMS: dict[str, Callable[[int, int], Tensor]] = {
    "rows": lambda n, k: draw(n, k).exp().sum(-1),
    "columns": lambda n, k: (draw(k, n) * 1.1).sum(0),
    "product": lambda n, k: draw(n, k) @ draw(k, 24),
    "squares": lambda n, k: (draw(n, 3, k) ** 2).sum((1, 2)),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("fuse_reduce", [True, None, False])
def test_a_sum_equals_its_own_maximum(name: str, fuse_reduce: bool | None) -> None:
    with uopc.options(fuse_reduce=fuse_reduce):
        for n, k in ((64, 17), (500, 33), (7, 64), (500, 100), (64, 257)):
            x = SUMS[name](n, k)
            for axis in (0, 1, None) if x.ndim == 2 else (0,):
                top = x.max(axis, keepdim=True)
                assert (x - top).max().item() == 0, (n, k, axis)
                assert (x == top).any(axis).all().item(), (n, k, axis)


def staged(t: Tensor) -> UOp:
    return kernelize(sink(UOp(Ops.STAGE, (t.uop,), Level.KERNEL)))


def orders(root: UOp) -> list[Order]:
    return [u.arg.order for u in toposort(root) if u.op is Ops.REDUCE and u.arg.op is Ops.ADD]


def test_a_sum_that_two_kernels_compute_gets_an_order() -> None:
    short = draw(4096, 4).sum(-1)
    cut = staged(short - short.max())
    assert [u.op for u in toposort(cut)].count(Ops.STAGE) == 2
    assert orders(cut) == [Order.ANY] and orders(agree(cut)) == [Order.LANES]


def test_others_are_left_alone() -> None:
    long = draw(64, 4096).sum(-1)  # materialized, and so computed once
    for t in (long - long.max(), draw(64, 64) @ draw(64, 64), draw(64, 64).softmax(-1), draw(4096, 4).max(-1)):
        cut = staged(t)
        assert agree(cut) is cut


def test_reductions_of_attention_keep_their_order() -> None:
    q, k, v = draw(256, 64), draw(256, 64), draw(256, 64)
    (kernel,) = make_plan([((q @ k.T).softmax(-1) @ v).uop]).kernels
    assert set(orders(kernel.root)) == {Order.ANY}
