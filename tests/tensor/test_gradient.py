"""Gradients against central differences in float64; their own gradients too; and what PyTorch has at kinks.

pytest tests/tensor/test_gradient.py             by the interpreter; with --slow also as compiled
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uopc import Tensor, dtypes, gradient
from uopc.cascade import cascade
from uopc.gradient import elementwise, structure
from uopc.ops import ALU, MOVEMENT, TABLE, Flags, Level, Ops, Stage
from uopc.uop import UOp, sink, without_aliases

Array = np.ndarray
Function = Callable[[Tensor], Tensor]

RNG = np.random.default_rng(3)
X = RNG.standard_normal((3, 4))
POSITIVE = np.abs(X) + 0.3
W = Tensor(RNG.standard_normal((3, 4)))
SQUARE = Tensor(RNG.standard_normal((4, 5)))
STEP = 1e-5


def numeric(f: Function, x: Array) -> Array:
    """The gradient of ``f(x)``, one element, by central differences."""
    moved = []
    for i in np.ndindex(x.shape):
        for sign in (STEP, -STEP):
            near = x.copy()
            near[i] += sign
            moved.append(f(Tensor(near)))
    if moved:
        moved[0].realize(*moved[1:])
    values = np.array([m.item() for m in moved]).reshape(*x.shape, 2)
    return (values[..., 0] - values[..., 1]) / (2 * STEP)


def weighted(f: Function) -> Function:
    """One element, of which the gradient shows that of every element of ``f``."""

    def total(x: Tensor) -> Tensor:
        y = f(x)
        return (y * Tensor(np.cos(np.arange(y.numel())).reshape(y.shape))).sum()

    return total


def derivative(f: Function) -> Function:
    """One element, of which the gradient shows that of every element of the gradient of ``f``."""
    return lambda x: weighted(lambda t: f(t).gradient(t)[0])(x)


def check(of: Function, x: Array, second: bool = False) -> None:
    """The gradient of ``of`` at ``x`` is what differences say; or that of the gradient of its square."""
    f = derivative(weighted(lambda t: of(t) * of(t))) if second else weighted(of)
    t = Tensor(x)
    (g,) = f(t).gradient(t)
    assert g.shape == x.shape
    assert g.dtype is dtypes.float64
    np.testing.assert_allclose(g.numpy(), numeric(f, x), rtol=2e-5, atol=2e-6)


UNARY: dict[str, tuple[Function, Array]] = {
    "recip": (lambda x: x.reciprocal(), X),
    "sqrt": (lambda x: x.sqrt(), POSITIVE),
    "rsqrt": (lambda x: x.rsqrt(), POSITIVE),
    "exp": (lambda x: x.exp(), X),
    "exp2": (lambda x: x.exp2(), X),
    "expm1": (lambda x: x.expm1(), X),
    "log": (lambda x: x.log(), POSITIVE),
    "log2": (lambda x: x.log2(), POSITIVE),
    "log1p": (lambda x: x.log1p(), POSITIVE),
    "sin": (lambda x: x.sin(), X),
    "cos": (lambda x: x.cos(), X),
    "tan": (lambda x: x.tan(), X * 0.4),
    "tanh": (lambda x: x.tanh(), X),
    "erf": (lambda x: x.erf(), X),
    "abs": (lambda x: x.abs(), X),
    "gelu": (lambda x: x.gelu(), X),
    "gelu_tanh": (lambda x: x.gelu("tanh"), X),
    "sigmoid": (lambda x: x.sigmoid(), X),
    "silu": (lambda x: x.silu(), X),
    "softplus": (lambda x: x.softplus(), X),
    "relu": (lambda x: x.relu(), X),
    "clip": (lambda x: x.clip(-0.5, 0.5), X),
    "floor": (lambda x: x.floor() + x.ceil() + x.trunc() + x.round() + x, X),
    "cube": (lambda x: x**3, X),
    "power": (lambda x: x**2.5, POSITIVE),
    "inverse_square": (lambda x: x**-2, X),
    "float32": (lambda x: (x * 2).cast(dtypes.float64) * x, X),
    "detach": (lambda x: x.sin() * 3 + x.cos().detach() * 0, X),
}
BINARY: dict[str, tuple[Function, Array]] = {
    "add": (lambda x: x + x * W, X),
    "sub": (lambda x: W - x - x, X),
    "mul": (lambda x: x * W * x, X),
    "div": (lambda x: (x + 9.0) / W + W / (x + 9.0), X),
    "pow": (lambda x: x**W + W.abs() ** x, POSITIVE),
    "fmod": (lambda x: (x * 7) % 2.5 + W % (x + 9.0), X),
    "floor_divide": (lambda x: (x * 7) // 2.5 * x, X),
    "maximum": (lambda x: x.maximum(W) * x.minimum(W * 2), X),
    "where": (lambda x: (W > 0).where(x * x, x.sin()), X),
    "compare": (lambda x: (x > W).where(x, 1.0) * (x == x), X),
    "masked_fill": (lambda x: x.masked_fill(W > 0, 2.0).exp(), X),
    "broadcast": (lambda x: (x[:, :1] * x[0]).sin() + x[1, 1], X),
}
MOVING: dict[str, tuple[Function, Array]] = {
    "reshape": (lambda x: x.reshape(2, 6).sin() @ x.reshape(6, 2), X),
    "expand": (lambda x: x.unsqueeze(1).expand(3, 2, 4).exp(), X),
    "permute": (lambda x: x.T @ x.sin(), X),
    "flip": (lambda x: x.flip(0) * x.flip(1).sin(), X),
    "slices": (lambda x: x[1:, ::2] * x[:2, ::-2].exp() + x[0, 1], X),
    "stride": (lambda x: x.flatten()[1:11:3] * x.flatten()[::-4][0], X),
    "shrink": (lambda x: x.shrink(((0, 2), (1, 3))).sin(), X),
    "pad": (lambda x: (x.pad(((1, 0), (2, 1))) * 2).cos() + x.pad(((0, 1), (0, 3)), 7.0), X),
    "stack": (lambda x: Tensor.stack(x, x.sin(), W, axis=1), X),
    "cat": (lambda x: x.cat(x.exp(), W, axis=1), X),
    "split": (lambda x: x.split([1, 3], 1)[0] * x.chunk(2, 1)[1], X),
    "rows": (lambda x: sum((row * (i + 1.0) for i, row in enumerate(x)), Tensor(0.0)), X),
    "overlapping": (lambda x: x[:, 1:] * x[:, :-1] + x[:, 1:].sin(), X),
    "repeat": (lambda x: x.repeat(2, 3).sin(), X),
    "tril": (lambda x: x.tril().exp() + x.triu(1), X),
    "rows_by_array": (lambda x: x[[2, 0, 2, 2]].sin(), X),
    "columns_by_array": (lambda x: x[:, [1, 1, 3]].sin(), X),
    "pairs": (lambda x: x[[2, 0, 2], [1, 3, 1]].sin(), X),
    "apart": (lambda x: x.reshape(3, 2, 2)[[2, 0, 2], :, [1, 0, 1]].sin(), X),
    "gather": (lambda x: x.gather(1, Tensor(np.array([[0, 0], [3, 1]]))).exp(), X),
    "contiguous": (lambda x: x.sin().contiguous().exp(), X),
}
REDUCING: dict[str, tuple[Function, Array]] = {
    "sum": (lambda x: x.sum(1).exp() + x.sum(), X),
    "mean": (lambda x: x.mean(0, keepdim=True).exp(), X),
    "prod": (lambda x: x.prod(1) + x.prod(), X),
    "prod_axes": (lambda x: x.reshape(3, 2, 2).prod((0, 2)), X),
    "prod_of_zeros": (lambda x: x.prod(1), X * np.array([[1, 1, 0, 1], [0, 1, 0, 1], [1, 1, 1, 1]])),
    "prod_long": (lambda x: x.prod(), 1 + 0.1 * RNG.standard_normal(40)),
    "max": (lambda x: x.max(1).exp() + x.max(), X),
    "min": (lambda x: x.min((0, 1)) * x.min(0), X),
    "var": (lambda x: x.var(1), X),
    "std": (lambda x: x.std(0).exp() + x.std(), X),
    "logsumexp": (lambda x: x.logsumexp(1), X),
    "softmax": (lambda x: x.softmax(1), X),
    "log_softmax": (lambda x: x.log_softmax(0), X),
    "cumsum": (lambda x: x.cumsum(1).sin(), X),
    "cumsum_long": (lambda x: x.cumsum().sin(), RNG.standard_normal(37)),
    "cumprod": (lambda x: x.cumprod(1), X),
    "cumprod_of_zeros": (lambda x: x.cumprod(1), X * np.array([[1, 1, 0, 1], [0, 1, 0, 1], [1, 1, 1, 1]])),
    "cumprod_long": (lambda x: x.cumprod(), 1 + 0.1 * RNG.standard_normal(37)),
    "sort": (lambda x: x.sort(1).exp(), X),
    "sort_descending": (lambda x: x.sort(0, descending=True).exp(), X),
    "topk": (lambda x: x.topk(2, 1)[0].exp(), X),
    "topk_smallest": (lambda x: x.topk(2, 0, largest=False)[0].exp(), X),
}
IMAGE = RNG.standard_normal((1, 2, 5, 4))
KERNEL = Tensor(RNG.standard_normal((3, 2, 2, 3)))
MASK = Tensor(np.tril(np.ones((3, 3), bool)) & (np.arange(3) != 1)[:, None])
NETWORKS: dict[str, tuple[Function, Array]] = {
    "matmul": (lambda x: x @ SQUARE, X),
    "matmul_right": (lambda x: SQUARE.T @ x.T, X),
    "matmul_batches": (lambda x: x.reshape(3, 1, 2, 2) @ x.reshape(1, 3, 2, 2), X),
    "vectors": (lambda x: x[0] @ x.T, X),
    "einsum": (lambda x: Tensor.einsum("ij,kj,il->kl", x, W, x), X),
    "diagonal": (lambda x: Tensor.einsum("ii->i", x[:, :3].sin()), X),
    "layer_norm": (lambda x: x.layer_norm(4, W[0], W[1]), X),
    "layer_norm_weight": (lambda x: W.layer_norm(4, x[0], x[1]), X),
    "rms_norm": (lambda x: x.rms_norm(4, W[0]), X),
    "cross_entropy": (lambda x: x.cross_entropy(Tensor([0, 3, 3]), label_smoothing=0.1), X),
    "cross_entropy_ignored": (lambda x: x.cross_entropy(Tensor([0, -100, 3]), reduction="sum"), X),
    "cross_entropy_probabilities": (lambda x: x.cross_entropy(W.softmax(1)), X),
    "attention": (lambda x: x.scaled_dot_product_attention(x.sin(), W + x), X),
    "causal": (lambda x: x.scaled_dot_product_attention(x, W * x, is_causal=True), X),
    "attention_bias": (lambda x: W.scaled_dot_product_attention(W.sin(), W, attn_mask=x[:, :3]), X),
    "attention_rows_without_keys": (lambda x: x.scaled_dot_product_attention(x.sin(), W + x, attn_mask=MASK), X),
    "attention_groups": (
        lambda x: x.reshape(2, 3, 2).scaled_dot_product_attention(x[:, :2][None], x[:, 2:][None], enable_gqa=True),
        X,
    ),
    "conv2d": (lambda x: x.conv2d(KERNEL, W[0, :3], stride=2, padding=1), IMAGE),
    "conv2d_dilated": (lambda x: x.conv2d(KERNEL[:, :1, :, :2], dilation=(2, 1)), IMAGE[:, :1]),
    "conv2d_weight": (lambda w: Tensor(IMAGE).conv2d(w, groups=2), RNG.standard_normal((2, 1, 2, 2))),
    "conv1d": (lambda x: x.conv1d(SQUARE[:, :3].reshape(2, 2, 3), padding="same"), IMAGE[0, :, :, 0]),
    "max_pool2d": (lambda x: x.max_pool2d(2, 1, 1), IMAGE),
    "avg_pool2d": (lambda x: x.avg_pool2d(2, 2, 1, count_include_pad=False).exp(), IMAGE),
}
CASES = {**UNARY, **BINARY, **MOVING, **REDUCING, **NETWORKS}
# A third of them, of every kind.
SECOND = [
    *("recip", "sqrt", "exp", "log", "log1p", "sin", "tan", "tanh", "erf", "gelu", "silu", "softplus", "cube", "power"),
    *("mul", "div", "pow", "maximum", "where", "permute", "slices", "pad", "cat", "rows_by_array", "pairs", "rows"),
    *("prod", "prod_of_zeros", "std", "logsumexp", "softmax", "cumprod_of_zeros", "sort", "topk", "matmul"),
    *("layer_norm", "cross_entropy", "causal", "attention_rows_without_keys", "conv2d", "max_pool2d"),
]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_what_differences_say(name: str) -> None:
    check(*CASES[name])


@pytest.mark.parametrize("name", SECOND)
def test_the_gradient_of_a_gradient(name: str) -> None:
    check(*CASES[name], second=True)


def test_every_op_of_tensor_graphs_has_a_rule() -> None:
    """But for those on integers, those that `decompose` and later stages make, and what has no float operand."""
    made_later = {Ops.LOOKUP, Ops.LDEXP, Ops.PAIR, Ops.DOT2, Ops.FMA}
    integers = {op for op in Ops if Flags.INT_ONLY in TABLE[op].flags}
    assert set(elementwise.RULES) == ALU - made_later - integers
    assert all(len(rules) == TABLE[op].arity[0] for op, rules in elementwise.RULES.items())
    assert set(structure.MOVED) == MOVEMENT - {Ops.VIEW}
    handled = {*elementwise.RULES, *structure.MOVED, *structure.RULES, Ops.ALIAS}
    leaves = {Ops.CONST, Ops.BUFFER, Ops.IOTA, Ops.VIEW}
    cascades = {Ops.CASCADE, Ops.STATE, Ops.COMPONENT, Ops.SINK, Ops.STORE}
    legal = {op for op in Ops if Stage.TENSOR in TABLE[op].stages}
    assert legal - handled - leaves - cascades - made_later - integers == set()


# ---- compositions ----

SMOOTH: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a / (b * b + 1.0),
    lambda a, b: a.tanh() - b.sin(),
    lambda a, b: a.sigmoid() * b.softplus(),
    lambda a, b: (a * 0.3).exp2() + (b * b + 0.5).log(),
    lambda a, b: a.softmax(-1) + b.mean(0, keepdim=True),
    lambda a, b: (a @ b.T @ b) * 0.1,
    lambda a, b: a.flip(1) + b.cat(a, axis=0)[2:5],
    lambda a, b: a.cumsum(1) * 0.3 + b.var(1, keepdim=True),
    lambda a, b: a[[2, 2, 0]] - b.T.reshape(3, 4),
    lambda a, b: (b > 0.0).where(a, b * 2.0),
    lambda a, b: a.pad(((0, 0), (1, 0)))[:, :4] + b.logsumexp(1, keepdim=True),
    lambda a, b: a.layer_norm(4) + (b * b + 0.5).sqrt(),
]


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(range(len(SMOOTH))), st.integers(0, 8), st.integers(0, 8)), min_size=8, max_size=8
    ),
    seed=st.integers(0, 1 << 16),
)
def test_compositions_of_depth_eight(steps: list[tuple[int, int, int]], seed: int) -> None:
    """In a random direction; an input that lies on a kink is another test's matter."""
    rng = np.random.default_rng(seed)
    x, direction = rng.standard_normal((2, 3, 4))

    def f(t: Tensor) -> Tensor:
        values = [t]
        for op, i, j in steps:
            values.append(SMOOTH[op](values[-1 - i % len(values)], values[j % len(values)]).tanh() * 2)
        return weighted(lambda _: values[-1])(t) + weighted(lambda _: values[len(values) // 2])(t)

    t = Tensor(x)
    (g,) = f(t).gradient(t)
    along = float((g.numpy() * direction).sum())
    slopes = [(f(Tensor(x + h * direction)) - f(Tensor(x - h * direction))).item() / (2 * h) for h in (1e-6, 3e-6)]
    if abs(slopes[0] - slopes[1]) > 1e-5 * max(1.0, abs(slopes[0])):
        return  # a kink between, or differences that say nothing
    assert math.isclose(along, slopes[0], rel_tol=1e-4, abs_tol=1e-5)


# ---- what holds at kinks, zeros and where nothing is taken ----


def at(f: Function, *values: float) -> list[float]:
    """The gradient of the sum of ``f``."""
    t = Tensor(np.array(values))
    return f(t).sum().gradient(t)[0].tolist()


def test_the_side_that_is_not_taken_does_not_leak() -> None:
    assert at(lambda x: (x > 0).where(x.log(), 0.0), -1.0, 0.0, 2.0) == [0.0, 0.0, 0.5]
    assert at(lambda x: (x > 0).where(x.sqrt() * x.sqrt(), 0.0), -1.0, 0.0, 4.0) == [0.0, 0.0, 1.0]
    assert at(lambda x: (x != 0).where(x * (1 / x), x), 0.0, 2.0) == [1.0, 0.0]
    assert at(lambda x: (x < 100).where(x.exp(), 1.0), 0.0, 1000.0) == [1.0, 0.0]
    assert at(lambda x: (x > 1).where(x.log(), (x > 0).where(x.log() * 2, 0.0)), -1.0, 0.0, 0.5, 2.0) == [0, 0, 4, 0.5]
    # through movement, and where one condition holds for a row
    assert at(lambda x: (x.flip(0)[:2] > 0).where(x.flip(0).log()[:2], 0.0), 0.0, -1.0, 2.0) == [0.0, 0.0, 0.5]
    rows = np.array([[0.0, 0.0], [1.0, 3.0]])
    t = Tensor(rows)
    total = t.sum(1, keepdim=True)
    (g,) = (total > 0).where(t / total, 0.0)[:, 0].sum().gradient(t)
    assert g.tolist() == [[0.0, 0.0], [3 / 16, -1 / 16]]


def test_ties() -> None:
    assert at(lambda x: x.max(), 1.0, 3.0, 3.0) == [0.0, 0.5, 0.5]
    assert at(lambda x: x.min(), 1.0, 1.0, 1.0, 1.0) == [0.25] * 4
    assert at(lambda x: x.maximum(Tensor(np.array([1.0, 2.0]))), 1.0, 3.0) == [0.5, 1.0]
    assert at(lambda x: x.relu(), -1.0, 0.0, 1.0) == [0.0, 0.0, 1.0]
    assert at(lambda x: x.abs(), -2.0, 0.0, 1.0) == [-1.0, 0.0, 1.0]
    assert at(lambda x: x.max() * 0 + x.sort()[1:].sum(), 2.0, 2.0, 1.0) == [1.0, 1.0, 0.0]
    assert math.isnan(at(lambda x: x.max() * x, 1.0, math.nan)[1])


def test_zeros() -> None:
    assert at(lambda x: x.std(), 2.0, 2.0, 2.0) == [0.0, 0.0, 0.0]
    assert at(lambda x: x.prod(), 0.0, 2.0, 3.0) == [6.0, 0.0, 0.0]
    assert at(lambda x: x.prod(), 0.0, 2.0, 0.0) == [0.0, 0.0, 0.0]
    assert at(lambda x: x.cumprod(), 2.0, 0.0, 3.0) == [1.0, 8.0, 0.0]
    assert at(lambda x: x**2.5, 0.0, 1.0) == [0.0, 2.5]
    assert at(lambda x: Tensor(np.zeros(2)) ** x, 1.0, 2.0) == [0.0, 0.0]
    assert at(lambda x: x.sqrt(), 0.0, 4.0) == [math.inf, 0.25]
    assert at(lambda x: x.softmax().sum(), 0.0, 1000.0) == [0.0, 0.0]


def test_empty_and_single() -> None:
    t = Tensor(np.zeros((0, 3)))
    assert (t.exp().sum() + 1.0).gradient(t)[0].shape == (0, 3)
    assert at(lambda x: x.prod() + x.cumprod().sum() + x.sort().sum(), 3.0) == [3.0]
    scalar = Tensor(np.array(2.0))
    assert (scalar**3).gradient(scalar)[0].item() == 12.0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_gradients_have_the_dtypes_of_the_forward_pass(dtype) -> None:
    t, w = Tensor(X).cast(dtype).realize(), Tensor(np.ones((4, 2), np.float32))
    loss = (t.softmax(-1).float() @ w).sum() + (t * t).mean().float()
    g, gw = loss.gradient(t, w)
    assert (g.dtype, gw.dtype) == (dtype, dtypes.float32)
    x = t.cast(dtypes.float64).realize()
    (exact,) = (x.softmax(-1) @ w.double()).sum().__add__((x * x).mean()).gradient(x)
    np.testing.assert_allclose(g.double().numpy(), exact.numpy(), atol=1e-2 if dtype.is_half else 1e-6)


# ---- which node is a target ----


def test_intermediate_results_are_targets_too() -> None:
    x = Tensor(X)
    y = x.sin()
    g, gy = (y * y + x).sum().gradient(x, y)
    np.testing.assert_allclose(gy.numpy(), 2 * np.sin(X))
    np.testing.assert_allclose(g.numpy(), 2 * np.sin(X) * np.cos(X) + 1)


def test_a_target_that_was_realized_afterwards_is_found() -> None:
    x = Tensor(X)
    y = x.sin()
    loss = (y * y).sum()
    y.realize()
    assert y.uop.op is Ops.BUFFER
    g, gy = loss.gradient(x, y)
    np.testing.assert_allclose(gy.numpy(), 2 * np.sin(X))
    np.testing.assert_allclose(g.numpy(), np.sin(2 * X))


def test_strided_arrays_are_targets() -> None:
    x = Tensor(X.T[::-1])
    assert x.uop.op is Ops.VIEW
    (g,) = (x * x).sum().gradient(x)
    np.testing.assert_array_equal(g.numpy(), 2 * X.T[::-1])


def test_detach_stops_the_gradient_and_costs_nothing() -> None:
    x = Tensor(X)
    d = x.detach()
    assert (d * x).sum().gradient(x)[0].tolist() == X.tolist()
    assert d.contiguous() is d
    assert d.detach().uop is d.uop
    assert d.numpy().ctypes.data == X.ctypes.data
    y = x.sin().detach()
    assert (y * 2).sum().gradient(x)[0].tolist() == np.zeros((3, 4)).tolist()
    assert (y * 2).sum().gradient(y)[0].tolist() == np.full((3, 4), 2.0).tolist()


def test_a_gradient_flows_in_from_further_on() -> None:
    x = Tensor(X)
    (g,) = x.sin().gradient(x, grad=X + 1)
    np.testing.assert_allclose(g.numpy(), np.cos(X) * (X + 1))
    (g,) = (x[:1, :1] * 2).gradient(x, grad=Tensor([[3.0]]))
    assert g.numpy()[0].tolist() == [6.0, 0.0, 0.0, 0.0]


def test_backward_adds_up() -> None:
    x, w = Tensor(X), Tensor(np.ones((3, 4)))
    assert x.grad is None
    (x * w).sum().backward(x, w)
    (x * 2).sum().backward(x)
    assert x.grad.tolist() == np.full((3, 4), 3.0).tolist()
    assert w.grad.tolist() == X.tolist()
    x.grad = None
    assert x.grad is None
    with pytest.raises(ValueError, match=r"grad is None or a Tensor of shape \(3, 4\), not a Tensor of shape \(4, 5\)"):
        x.grad = SQUARE


# ---- refusals ----


def test_refusals() -> None:
    x = Tensor(X)
    loss = (x * x).sum()
    with pytest.raises(ValueError, match=r"the gradient of shape \(3, 4\) needs grad="):
        (x * x).gradient(x)
    with pytest.raises(ValueError, match=r"grad has shape \(4,\), and what is differentiated has \(3, 4\)"):
        (x * x).gradient(x, grad=np.ones(4))
    with pytest.raises(TypeError, match="grad is a Tensor, an array or a number, not str"):
        (x * x).gradient(x, grad="1")
    with pytest.raises(TypeError, match=r"target 1 is int64 of shape \(3,\)"):
        loss.gradient(x, Tensor([1, 2, 3]))
    with pytest.raises(TypeError, match=r"bool_ of shape .* has no gradient"):
        (x > 0).all().gradient(x)
    with pytest.raises(TypeError, match="target 0 is a ndarray; accepted are Tensors"):
        loss.gradient(X)
    with pytest.raises(TypeError, match="no targets"):
        loss.gradient()
    with pytest.raises(ValueError, match=r"target 1, float64 of shape \(4, 5\), is no part of the graph"):
        loss.gradient(x, SQUARE)
    with pytest.raises(ValueError, match="consists of constants"):
        zero = Tensor.zeros(3)
        (zero + 1).sum().gradient(zero)
    with pytest.raises(ValueError, match=r"target 1, .* is the same expression as another one"):
        loss.gradient(x, Tensor(x))
    with pytest.raises(ValueError, match="the result was computed already"):
        loss.realize().gradient(x)


def test_graphs_of_later_stages_are_refused_by_name() -> None:
    x = Tensor(X)
    y = (x @ SQUARE).softmax(-1).sum(-1)
    (made,) = cascade(sink(UOp(Ops.STAGE, tuple(without_aliases([y.uop])), Level.KERNEL)), None).src
    with pytest.raises(TypeError, match=r"a gradient through Ops.CASCADE is not defined"):
        Tensor(made).gradient(x, grad=np.ones(3))
    y = Tensor(X.T)
    base = Tensor(y.uop.src[0])
    with pytest.raises(TypeError, match=r"a gradient through Ops.VIEW is not defined"):
        y.sum().gradient(base)


def test_what_has_no_influence_gets_zero() -> None:
    x = Tensor(X)
    for loss in ((x > 0).where(1.0, 2.0).sum(), x.floor().sum(), x.argsort().double().sum()):
        assert loss.gradient(x)[0].tolist() == np.zeros((3, 4)).tolist()


def test_gradients_of_slices_are_joined_and_not_added() -> None:
    x = Tensor(X)
    (g,) = sum((x[:, i].sin() for i in range(4)), Tensor(np.zeros(3))).sum().gradient(x)
    ops = [u.op for u in g.uop.toposort()]
    assert Ops.CAT in ops
    assert Ops.PAD not in ops
    assert gradient.gradients([x.uop], [x.uop], [x.uop]) == [x.uop]
