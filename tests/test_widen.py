"""widen: halves are rounded where an operation ends, and only there."""

from __future__ import annotations

import numpy as np
import pytest
from reference import evaluate

import uopc
from uopc import Tensor
from uopc.dtype import float32_to_bfloat16
from uopc.ops import ALU, Ops
from uopc.pipeline import make_plan
from uopc.uop import UOp, dtypes, sink, toposort
from uopc.widen import widen

HALVES = (dtypes.float16, dtypes.bfloat16)


def halves(*shape: int, dtype=dtypes.float16, seed: int = 0) -> Tensor:
    x = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
    return Tensor(x).cast(dtype).realize()


def widened(t: Tensor) -> list[UOp]:
    return toposort(widen(sink(t.uop)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_operations_are_in_float32_and_rounded(dtype) -> None:
    x = halves(8, dtype=dtype)
    nodes = widened((x * 3 + x).exp() / (x + 1).sqrt())
    computed = [u for u in nodes if u.op in ALU and u.op is not Ops.CAST]
    assert {u.op for u in computed} == {Ops.MUL, Ops.ADD, Ops.EXP, Ops.SQRT, Ops.DIV}
    for u in computed:
        users = [v for v in nodes if u in v.src]
        assert u.dtype is dtypes.float32
        assert users and all(v.op is Ops.CAST and v.dtype is dtype for v in users)


def test_what_gives_a_half_by_itself_is_left_alone() -> None:
    x, y = halves(8), halves(8, seed=1)
    for t in (-x, x.abs(), x.maximum(y), (x > y).where(x, y), x.floor(), x.max(), x.reshape(2, 4).T):
        assert widen(sink(t.uop)) is sink(t.uop)


def test_graphs_without_halves_are_left_alone() -> None:
    t = (Tensor(np.ones((4, 4), np.float32)) * 2).softmax(-1)
    assert widen(sink(t.uop)) is sink(t.uop)


def test_sums_are_rounded_once_and_products_of_a_contraction_not_at_all() -> None:
    x, w = halves(4, 8), halves(8, 4)
    for t in (x @ w, Tensor.einsum("ij,ij->i", x, x)):
        (reduce,) = [u for u in widened(t) if u.op is Ops.REDUCE]
        assert reduce.dtype is dtypes.float32 and reduce.src[0].op is Ops.MUL
    (reduce,) = [u for u in widened((x + x).sum(-1)) if u.op is Ops.REDUCE]
    assert reduce.src[0].op is Ops.CAST and reduce.src[0].src[0].dtype.is_half, "a sum of halves: of rounded ones"


@pytest.mark.parametrize("fuse_reduce", [None, True, False])
def test_chains_have_the_bits_of_numpy(fuse_reduce: bool | None) -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(1000).astype(np.float16) for _ in range(3))
    with uopc.options(fuse_reduce=fuse_reduce):
        t = (Tensor(a) * Tensor(b) + Tensor(c)) / (Tensor(b).abs() + 1) - Tensor(a) * 3
        got = t.numpy()
    wanted = (a * b + c) / (np.abs(b) + np.float16(1)) - a * np.float16(3)
    assert got.tobytes() == wanted.tobytes()


def test_chains_of_bfloat16_are_rounded_at_each_step() -> None:
    x = halves(1000, dtype=dtypes.bfloat16)
    wide = x.float().numpy()

    def rounded(v: np.ndarray) -> np.ndarray:
        return (float32_to_bfloat16(v).astype(np.uint32) << 16).view(np.float32)

    wanted = rounded(rounded(rounded(wide * np.float32(3)) + wide) * wide)
    assert np.array_equal(((x * 3 + x) * x).float().numpy(), wanted)


def test_the_reference_evaluates_what_widen_makes() -> None:
    x = halves(16)
    t = (x * 3 + x) * x
    got, plain = evaluate([widen(sink(t.uop)).src[0]])[0], t.numpy()
    assert np.array_equal(np.asarray(got, np.float16), plain)


def test_scores_that_only_a_cascade_uses_are_not_rounded() -> None:
    """Large scores: rounded to bfloat16 they would be off by more than 1, and so would their exponentials."""
    dtype = dtypes.bfloat16
    q, k, v = halves(64, 64, dtype=dtype) * 8, halves(64, 64, dtype=dtype, seed=1), halves(64, 64, dtype=dtype, seed=2)
    q = q.realize()
    out = (q @ k.T).softmax(-1) @ v
    assert len(make_plan([out.uop]).kernels) == 1
    scores = q.float().numpy().astype(np.float64) @ k.float().numpy().T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.float().numpy()
    assert np.abs(out.float().numpy() - wanted).max() < 0.03
