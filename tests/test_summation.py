"""batch_invariant: a row has the same bits alone and in any batch, at any place in it, for any number of threads.

``rows`` computes an expression for batches of several sizes and compares the rows that they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.dtype import dtypes
from uopc.ops import Ops, Order
from uopc.options import Options
from uopc.pipeline import make_plan, plan_for
from uopc.runtime import num_threads
from uopc.runtime.plan import normal
from uopc.terms import order_of
from uopc.uop import UOp, toposort

Array = np.ndarray[Any, Any]
Formula = Callable[..., Any]
SIZES = (1, 2, 3, 17, 64, 1000)
DTYPES = ["float32", "float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float64", "bfloat16"))]


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def tensor(a: Array, dtype: str) -> Tensor:
    if dtype == "bfloat16":
        return Tensor(a.astype(np.float32)).cast(dtype)
    return Tensor(a.astype(dtype))


def weights(*shape: int) -> Tensor:
    return Tensor(draw(*shape, seed=5).astype(np.float32))


def computed(f: Formula, args: Sequence[Tensor], threads: int, invariant: bool) -> list[Array]:
    with uopc.options(batch_invariant=invariant), num_threads(threads):
        out = f(*args)
        outs = list(out) if isinstance(out, tuple) else [out]
        outs[0].realize(*outs[1:])
    return [(t.cast("float32") if t.dtype is dtypes.bfloat16 else t).numpy() for t in outs]


def rows(
    f: Formula,
    batch: Sequence[Array],
    shared: Sequence[Array] = (),
    dtype: str = "float32",
    sizes: Sequence[int] = SIZES,
    invariant: bool = True,
) -> list[str]:
    """The sizes for which rows differ: ``f(*batch, *shared)``, of whose arrays ``batch`` the first axis is cut."""
    fixed = [tensor(a, dtype) for a in shared]
    largest = computed(f, [*(tensor(a, dtype) for a in batch), *fixed], 2, invariant)
    last = len(batch[0]) - 1
    cuts = [(0, n, t) for n in sizes for t in ((1, 2, 3) if n == 17 else (2,)) if n <= last]
    cuts += [(last, last + 1, 1), (last // 2, last // 2 + 1, 2), (last // 3, last, 3)]
    wrong = []
    for first, end, threads in cuts:
        args = [tensor(np.ascontiguousarray(a[first:end]), dtype) for a in batch]
        for got, want in zip(computed(f, [*args, *fixed], threads, invariant), largest):
            if got.tobytes() != want[first:end].tobytes():
                wrong.append(f"rows {first} to {end}, {threads} threads: {(got != want[first:end]).mean():.0%} differ")
    return wrong


X, W, B = draw(1000, 300), draw(300, 70, seed=1), draw(70, seed=2)

ELEMENTWISE: dict[str, Formula] = {
    "products and sums": lambda x, c: x * c + x.exp() * 2 - c * c * x,
    "gelu": lambda x, c: x.gelu() * c + x.tanh(),
    "a row shared by all": lambda x, c: x + (c * c + c.exp() * c),
}
REDUCTIONS: dict[str, Formula] = {
    "sum": lambda x: x.sum(-1),
    "sum of products": lambda x: (x * (x + 1)).sum(-1),
    "moments": lambda x: (x.mean(-1), x.var(-1), (x.abs() + 1).prod(-1)),
    "extrema": lambda x: (x.max(-1), x.min(-1), x.argmax(-1)),
    "across": lambda x: x.reshape(x.shape[0], 30, 10).sum(1),
    "all but the first axis": lambda x: x.reshape(x.shape[0], 30, 10).sum((1, 2)),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumulative": lambda x: x[:, :40].cumsum(1),
}
PRODUCTS: dict[str, Formula] = {
    "product": lambda x, w, b: x @ w,
    "layer": lambda x, w, b: (x @ w + b).gelu(),
    "by a transposed matrix": lambda x, w, b: x @ w.T.contiguous().T,
    "with a vector": lambda x, w, b: x @ w[:, 0].contiguous(),
    "two layers": lambda x, w, b: (x @ w + b).gelu() @ w.T,
    "normed": lambda x, w, b: (x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt()) @ w,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name, dtype):
    assert not rows(ELEMENTWISE[name], [X], [draw(300, seed=3)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dtype):
    assert not rows(REDUCTIONS[name], [X], [], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_matrices(name, dtype):
    assert not rows(PRODUCTS[name], [X], [W, B], dtype)


def test_large_products_and_long_sums():
    """Packed panels, blocks of the reduced axis, and sums in parts."""
    assert not rows(lambda x, w: x @ w, [draw(400, 1200)], [draw(1200, 600, seed=1)], sizes=(1, 2, 17, 64))
    assert not rows(lambda x: (x.sum(-1), x.mean(-1)), [draw(20, 200_001)], sizes=(1, 2, 3, 17))
    assert not rows(lambda x: x.sum(1), [draw(6, 3000, 300)], sizes=(1, 2, 3))


ATTENTION: dict[str, Formula] = {
    "softmax": lambda q, k, v: (q @ k.mT * 0.125).softmax(-1) @ v,
    "sigmoid": lambda q, k, v: (q @ k.mT * 0.125).sigmoid() @ v,
    "softcap": lambda q, k, v: ((q @ k.mT * 0.125).tanh() * 8).softmax(-1) @ v,
    "normed keys": lambda q, k, v: (q @ (k / (k * k).sum(-1, keepdim=True).sqrt()).mT).softmax(-1) @ v,
    "with its sums": lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, (q @ k.mT).logsumexp(-1)),
    "linear": lambda q, k, v: (q.relu() + 1) @ ((k.relu() + 1).mT @ v),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ATTENTION)
def test_queries_of_attention(name, dtype):
    """A query alone is decoding; all of them are a prompt."""
    assert not rows(ATTENTION[name], [draw(1000, 32)], [draw(150, 32, seed=1), draw(150, 24, seed=2)], dtype)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_sequences_of_attention(name, n):
    batch = [draw(64, 3, m, 16, seed=k) for k, m in enumerate((n, 70, 70))]
    assert not rows(ATTENTION[name], batch, sizes=(1, 2, 3, 17, 63))


def test_attention_over_many_keys():
    shared = [draw(3000, 64, seed=1), draw(3000, 64, seed=2)]
    assert not rows(ATTENTION["softmax"], [draw(200, 64)], shared, sizes=(1, 2, 3, 17, 64))


def test_causal_attention_of_sequences():
    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[-2]
        mask = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
        return mask.where(q @ k.mT, float("-inf")).softmax(-1) @ v

    batch = [draw(20, 2, 200, 16, seed=k) for k in range(3)]
    assert not rows(causal, batch, sizes=(1, 2, 3, 17))


def test_convolution():
    assert not rows(
        lambda x, w: x.conv2d(w).relu(), [draw(18, 5, 12, 12)], [draw(7, 5, 3, 3, seed=1)], sizes=(1, 2, 3, 17)
    )


@pytest.mark.parametrize("fuse_reduce", [True, False])
def test_with_other_options(fuse_reduce):
    with uopc.options(fuse_reduce=fuse_reduce):
        assert not rows(PRODUCTS["normed"], [X[:70]], [W, B], sizes=(1, 2, 17))
        assert not rows(REDUCTIONS["softmax"], [X[:70]], sizes=(1, 2, 17))


STEPS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x * 0.37 + 0.11,
    lambda x: x * x - x,
    lambda x: x.tanh() * x,
    lambda x: x - x.mean(-1, keepdim=True) * 0.5,
    lambda x: x.softmax(-1) + x,
    lambda x: x @ weights(x.shape[-1], 24) * 0.2,
    lambda x: x @ weights(40, x.shape[-1]).T * 0.2,
    lambda x: x / ((x * x).sum(-1, keepdim=True) + 1.0).sqrt(),
    lambda x: (x * weights(x.shape[-1])).cumsum(-1) * 0.1,
    lambda x: (x @ weights(x.shape[-1], 50)).softmax(-1) @ weights(50, 20),
    lambda x: x.reshape(x.shape[0], 2, -1).max(1) - 0.25 * x.reshape(x.shape[0], 2, -1).sum(1),
]


@pytest.mark.parametrize("seed", range(12))
def test_random_chains(seed):
    """Expressions nobody thought of."""
    rng = np.random.default_rng(seed)
    chosen = [STEPS[k] for k in rng.integers(0, len(STEPS), 5)]

    def chain(x: Tensor) -> Any:
        out = []
        for step in chosen:
            x = step(x)
            out.append(x)
        return tuple(out[-2:])

    assert not rows(chain, [draw(100, 48, seed=seed)], sizes=(1, 2, 3, 17, 64))


# ---- the option ----


@pytest.mark.parametrize("name", ["by a transposed matrix", "two layers", "with a vector"])
def test_without_the_option_rows_depend_on_their_batch(name):
    """These comparisons can fail."""
    assert rows(PRODUCTS[name], [X], [W, B], invariant=False)


def test_values():
    for dtype, tolerance in [("float32", 3e-6), ("float64", 1e-13), ("float16", 4e-3)]:
        x, w, b = (a.astype(dtype).astype(np.float64) for a in (X[:50], W, B))
        args = [tensor(a, dtype) for a in (x, w, b)]
        (got,) = computed(lambda x, w, b: (x @ w * 0.1 + b).softmax(-1) @ w.T, args, 2, True)
        s = x @ w * 0.1 + b
        e = np.exp(s - s.max(1, keepdims=True))
        want = e / e.sum(1, keepdims=True) @ w.T
        assert np.abs(got - want).max() < tolerance * np.abs(want).max()


def test_special_values_stay():
    x = np.array([[np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0], [-np.inf, -np.inf, -np.inf], [-0.0, -0.0, -0.0]], np.float32)
    (got,) = computed(lambda x: x.softmax(-1), [Tensor(x)], 1, True)
    assert np.isnan(got[:3]).all() and np.allclose(got[3], 1 / 3)
    sums, largest = computed(lambda x: (x.sum(-1), x.max(-1)), [Tensor(x)], 1, True)
    assert np.array_equal(sums, [np.nan, np.inf, -np.inf, 0.0], equal_nan=True)
    assert np.array_equal(largest, [np.nan, np.inf, -np.inf, 0.0], equal_nan=True)


def reduction(t: Tensor) -> UOp:
    (u,) = [u for u in toposort(t.uop) if u.op is Ops.REDUCE]
    return u


def test_the_order_of_a_sum_does_not_depend_on_rows():
    for n in (1, 2, 64):
        x = Tensor(draw(n, 30))
        assert order_of(reduction(x.sum(-1))) is Order.LANES
        assert order_of(reduction(x @ Tensor(draw(30)))) is Order.LANES
        assert order_of(reduction(x @ Tensor(draw(30, 5)))) is Order.STEPS
        assert order_of(reduction(x @ Tensor(draw(5, 30)).T)) is Order.STEPS
        assert order_of(reduction(x.reshape(n, 5, 6).sum(1))) is Order.STEPS
        assert order_of(reduction(x.reshape(n, 5, 6).sum((1, 2)))) is Order.LANES


def test_products_under_sums_are_not_rounded_and_others_are():
    x, w, b = (Tensor(a.astype(np.float32)) for a in (X[:64], W, B))
    graph, _ = normal([(x @ w + b * b).uop])
    for invariant in (True, False):
        nodes = [u for k in plan_for(graph, Options(batch_invariant=invariant)).kernels for u in k.linear.src]
        products = [u for u in nodes if u.op is Ops.MUL and u.dtype.is_float]
        assert any(u.op is Ops.FMA for u in nodes) and products
        assert all(u.src[0] is u.src[1] for u in products), "b * b, and no product of x and w"


def test_a_sum_is_fused_with_its_product_whatever_else_uses_that():
    x = Tensor(X[:40].astype(np.float32))
    y = x * (x + 2.0).exp()
    with uopc.options(batch_invariant=True):
        plan = make_plan([y.sum(-1).uop, (y @ Tensor(W.astype(np.float32))).uop])
    assert all("fma_" in k.source for k in plan.kernels if k.name.startswith("r_"))


def test_explain_shows_the_option():
    x, w = Tensor(X[:64].astype(np.float32)), Tensor(W.astype(np.float32))
    with uopc.options(batch_invariant=True):
        report = uopc.explain(x @ w)
    assert report.options.batch_invariant


def test_only_true_and_false_are_accepted():
    with pytest.raises(TypeError, match="batch_invariant=2; accepted are"), uopc.options(batch_invariant=2):
        pass
