"""Chains of two contractions: the values between them stay in a tile where writing them down costs more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.cascade import cascade, derivations
from uopc.inspect.recompute import reductions
from uopc.ops import Ops
from uopc.options import Options
from uopc.pipeline import make_plan, settings_for
from uopc.runtime import num_threads
from uopc.uop import sink, toposort

Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return (np.random.default_rng([seed, *shape]).integers(-8, 9, shape) / 8).astype(dtype)


def operands(
    lead: tuple[int, ...] = (), n: int = 100, m: int = 150, d: int = 8, e: int = 12, dtype: Any = np.float32
) -> Any:
    """q, k and v as Tensors and as float64 arrays."""
    arrays = (
        draw(*lead, n, d, dtype=dtype),
        draw(*lead, m, d, seed=1, dtype=dtype),
        draw(*lead, m, e, seed=2, dtype=dtype),
    )
    return [Tensor(a) for a in arrays], [a.astype(np.float64) for a in arrays]


def chains(*tensors: Tensor) -> int:
    """How many cascades of one reduction there are."""
    graph = cascade(sink(*(t.uop for t in tensors)))
    return sum(u.op is Ops.CASCADE and len(u.arg.components) == 1 for u in toposort(graph))


def one_pass(t: Tensor) -> bool:
    made = make_plan([t.uop])
    return len(made.kernels) == 1 and not made.temps


def check(t: Tensor, want: Array, tolerance: float = 2e-6) -> None:
    got = t.numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max(initial=0))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_sigmoid_attention_is_one_pass():
    (q, k, v), (q64, k64, v64) = operands()
    t = (q @ k.T * 0.5 - 1.0).sigmoid() @ v
    assert one_pass(t) and chains(t) == 1
    check(t, sigmoid(q64 @ k64.T * 0.5 - 1) @ v64)


def test_unnormalised_attention_with_a_mask_is_one_pass():
    (q, k, v), (q64, k64, v64) = operands()
    seen = Tensor.arange(150).reshape(1, 150) <= Tensor.arange(100).reshape(100, 1)
    times, chosen = (q @ k.T * seen) @ v, seen.where(q @ k.T, 0) @ v
    for t in (times, chosen):
        assert one_pass(t)
        check(t, (q64 @ k64.T * np.tri(100, 150)) @ v64)


def test_a_chosen_mask_bounds_the_loop_over_keys():
    (q, k, v), _ = operands(n=1000, m=1000)
    seen = Tensor.arange(1000).reshape(1, 1000) <= Tensor.arange(1000).reshape(1000, 1)
    (kernel,) = make_plan([(seen.where(q @ k.T, 0) @ v).uop]).kernels
    assert any(u.op is Ops.RANGE and u.src[0].op is not Ops.CONST for u in kernel.linear.src)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("n", [1, 3, 17, 64, 1000])
def test_lengths_and_batches(lead, n):
    for m in (2, 65, 130):
        (q, k, v), (q64, k64, v64) = operands(lead, n, m)
        check((q @ k.mT).tanh() @ v, np.tanh(q64 @ np.swapaxes(k64, -1, -2)) @ v64, 4e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_dtypes(dtype):
    (q, k, v), (q64, k64, v64) = operands(dtype=dtype)
    t = (q @ k.T * 0.25).sigmoid() @ v
    assert one_pass(t)
    check(t, sigmoid(q64 @ k64.T * 0.25) @ v64, 1e-13 if dtype == np.float64 else 4e-3)


def test_groups_of_heads_share_their_keys():
    (q, _, _), (q64, _, _) = operands((2, 6))
    (_, k, v), (_, k64, v64) = operands((2, 1))
    t = (q @ k.mT).relu() @ v
    assert one_pass(t)
    check(t, np.maximum(q64 @ np.swapaxes(k64, -1, -2), 0) @ v64)


def test_two_layers_with_biases_are_one_kernel_if_they_are_narrow():
    x, w, u, b, c = (draw(*shape, seed=k) for k, shape in enumerate([(200, 16), (16, 64), (64, 24), (64,), (24,)]))
    t = (Tensor(x) @ Tensor(w) + Tensor(b)).relu() @ Tensor(u) + Tensor(c)
    assert one_pass(t)
    x, w, u, b, c = (a.astype(np.float64) for a in (x, w, u, b, c))
    check(t, np.maximum(x @ w + b, 0) @ u + c)


def test_a_product_of_two_products():
    (q, k, v), (q64, k64, v64) = operands()
    r, r64 = Tensor(draw(100, 8, seed=7)), draw(100, 8, seed=7).astype(np.float64)
    t = ((q @ k.T) * (r @ k.T).sigmoid()) @ v
    assert one_pass(t)
    check(t, (q64 @ k64.T * sigmoid(r64 @ k64.T)) @ v64, 4e-6)


def test_a_maximum_of_products_for_each_column():
    (q, k, _), (q64, k64, _) = operands()
    bias = draw(150, 12, seed=3)
    t = ((q @ k.T).reshape(100, 150, 1) + Tensor(bias).reshape(1, 150, 12)).max(1)
    check(t, ((q64 @ k64.T)[:, :, None] + bias[None]).max(1))


def test_nan_and_inf_stay_in_their_rows():
    (_, k, v), (q64, k64, v64) = operands()
    q64[3, 1], q64[5, 2] = np.nan, np.inf
    t = (Tensor(q64.astype(np.float32)) @ k.T).relu() @ v
    with np.errstate(invalid="ignore"):
        want = np.maximum(q64 @ k64.T, 0) @ v64
    got = t.numpy()
    assert np.array_equal(np.isfinite(got), np.isfinite(want)) and not np.isfinite(got[[3, 5]]).all()
    assert np.array_equal(np.isnan(got), np.isnan(want))


def test_every_score_is_computed_once():
    (q, k, v), _ = operands(n=64, m=96)
    (kernel,) = make_plan([((q @ k.T).sigmoid() @ v).uop]).kernels
    assert [r.factor for r in reductions(kernel, settings_for(Options()))] == [1.0, 1.0]


def test_same_bits_for_any_number_of_threads():
    (q, k, v), _ = operands((3,))
    seen = set()
    for threads in (1, 2, 3):
        with num_threads(threads):
            seen.add(((q @ k.mT + 0.0).sigmoid() @ v).numpy().tobytes())
    assert len(seen) == 1


# ---- what stays as it is ----


def reasons(*tensors: Tensor) -> list[str | None]:
    return [r.reason for r in derivations(sink(*(t.uop for t in tensors)))]


def test_wide_layers_write_down_what_is_between_them():
    x, w, u = Tensor(draw(64, 512)), Tensor(draw(512, 1024)), Tensor(draw(1024, 512))
    assert reasons((x @ w).relu() @ u) == ["writing down what it needs again and again costs less"]


def test_scores_that_are_a_result_too_are_written_down():
    (q, k, v), (q64, k64, v64) = operands()
    s = (q @ k.T).relu()
    t = s @ v
    assert reasons(s, t) == ["what it needs again and again is used elsewhere too"]
    s.realize(t)
    check(t, np.maximum(q64 @ k64.T, 0) @ v64)
    check(s, np.maximum(q64 @ k64.T, 0))


def test_a_column_needs_each_score_once():
    (q, k, v), _ = operands(e=1)
    assert reasons((q @ k.T).relu() @ v.reshape(150)) == []


def test_a_score_of_a_cascade_is_not_a_chain_too():
    (_, k, v), (_, k64, v64) = operands(n=150)
    w, w64 = Tensor(draw(12, 8, seed=9)), draw(12, 8, seed=9).astype(np.float64)
    t = ((v @ w) @ k.T).softmax(-1) @ v
    s = v64 @ w64 @ k64.T
    e = np.exp(s - s.max(1, keepdims=True))
    assert chains(t) == 0
    check(t, e / e.sum(1, keepdims=True) @ v64, 1e-5)


def test_three_products_are_a_chain_and_a_product():
    (q, k, v), (q64, k64, v64) = operands()
    w, w64 = Tensor(draw(12, 20, seed=9)), draw(12, 20, seed=9).astype(np.float64)
    t = (q @ k.T).relu() @ v @ w
    assert chains(t) == 1
    check(t, np.maximum(q64 @ k64.T, 0) @ v64 @ w64)


def test_options_override():
    (q, k, v), _ = operands()
    for fuse_reduce in (True, False):
        with uopc.options(fuse_reduce=fuse_reduce):
            assert not any(
                u.op is Ops.CASCADE for k in make_plan([((q @ k.T).relu() @ v).uop]).kernels for u in toposort(k.root)
            )
