"""grad, value_and_grad, vjp, jvp and hessian of functions, alone, nested, and captured; compiled, as users run them."""

from __future__ import annotations

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.inspect.report import Report
from uopc.ops import Ops
from uopc.tensor.variables import is_variable
from uopc.uop import toposort

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 4))
W, B = RNG.standard_normal((4, 2)), np.zeros(2)


def loss(p, x):
    h = (x @ p["w"] + p["b"]).tanh()
    return (h * h).sum()


def by_hand(w, b, x):
    h = np.tanh(x @ w + b)
    away = 2 * h * (1 - h * h)
    return x.T @ away, away.sum(0)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12, atol=1e-12)


# ---- grad and value_and_grad ----


@pytest.mark.parametrize("kind", ["arrays", "tensors", "lazy"])
def test_gradients_have_the_structure_of_the_argument(kind):
    make = {"arrays": lambda a: a, "tensors": Tensor, "lazy": lambda a: Tensor(a) * 1.0}[kind]
    p = {"w": make(W), "b": make(B)}
    value, grads = uopc.value_and_grad(loss)(p, make(X))
    assert list(grads) == ["w", "b"]
    for g, wanted in zip(grads.values(), by_hand(W, B, X)):
        assert type(g) is Tensor
        close(g, wanted)
    close(value, (np.tanh(X @ W + B) ** 2).sum())
    assert not any(is_variable(u) for u in toposort([value.uop, grads["w"].uop, grads["b"].uop]))


def test_argnums_and_nested_containers():
    def f(a, pair, scale=1.0):
        x, (y, nothing) = pair
        assert nothing is None
        return (a * x[0] * y).sum() * scale

    a, x, y = X[0], X[1], X[2]
    ga, (gx, (gy, nothing)) = uopc.grad(f, argnums=(0, 1))(a, ([x], (y, None)), scale=2.0)
    close(ga, 2 * x * y)
    close(gx[0], 2 * a * y)
    close(gy, 2 * a * x)
    assert nothing is None
    (last,) = uopc.grad(f, argnums=(-1,))(a, ([x], (y, None)))
    close(last[0][0], a * y)


def test_equal_arguments_are_two_variables():
    ga, gb = uopc.grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(X, X)
    close(ga, 2 * X * X)
    close(gb, X * X)
    zero = Tensor.zeros(3)
    ga, gb = uopc.grad(lambda a, b: (a * 2 + b * 3 + zero).sum(), argnums=(0, 1))(zero, zero)
    assert (ga.tolist(), gb.tolist()) == ([2.0] * 3, [3.0] * 3)


def test_an_argument_is_apart_from_what_it_was_made_of():
    w = Tensor(X)
    (g,) = [uopc.grad(lambda x: (x * w).sum())(w.reshape(4, 3).reshape(3, 4) * 1.0)]
    close(g, X)


def test_unused_arguments_and_numbers():
    g, unused = uopc.grad(lambda x, y: (x * 3.0).sum(), argnums=(0, 1))(2.0, X)
    assert (g.item(), unused.tolist()) == (3.0, np.zeros((3, 4)).tolist())
    assert uopc.grad(uopc.grad(lambda x: x**3))(2.0).item() == 12.0


def test_has_aux():
    (value, aux), g = uopc.value_and_grad(lambda x: ((x * x).sum(), {"rows": x.sum(1), "n": 3}), has_aux=True)(X)
    close(value, (X * X).sum())
    close(aux["rows"], X.sum(1))
    assert aux["n"] == 3
    close(g, 2 * X)
    g, aux = uopc.grad(lambda x: ((x * x).sum(), x), has_aux=True)(X)
    close(aux, X)


def test_values_may_be_looked_at_on_the_way():
    """What is computed on the way is still a function of the argument, and not computed again."""
    seen = []

    def f(x):
        y = x.sin()
        seen.append(y.numpy()[0, 0])
        y.realize()
        return (y * y).sum() if y.sum().item() > -100 else y.sum()

    close(uopc.grad(f)(X), np.sin(2 * X))
    assert seen == [np.sin(X)[0, 0]]
    y = Tensor(X).sin().realize()
    assert y.uop.op is Ops.BUFFER  # elsewhere, a Tensor lets go of its graph


# ---- captured ----


def test_a_gradient_is_captured_with_what_the_function_reads():
    scale = 2.0
    captured = uopc.jit(uopc.grad(lambda x: (x * x).sum() * scale))
    close(captured(X), 4 * X)
    close(captured(X + 1), 4 * (X + 1))
    scale = 3.0
    close(captured(X), 6 * X)
    assert len(captured.captured) == 2


def test_gradients_of_captured_functions():
    inner = uopc.jit(lambda x: x.sin() * 2)
    close(uopc.grad(lambda x: (inner(x) * x).sum())(X), 2 * np.cos(X) * X + 2 * np.sin(X))
    close(uopc.grad(uopc.jit(lambda x: (x * x).sum()))(X), 2 * X)
    assert type(inner(X)) is np.ndarray


def test_a_training_step_is_one_plan():
    def step(p, x):
        value, grads = uopc.value_and_grad(loss)(p, x)
        return value, {name: p[name] - 0.1 * g for name, g in grads.items()}

    captured = uopc.jit(step)
    p = {"w": W, "b": B}
    for _ in range(3):
        before, p = captured(p, X)
    assert captured(p, X)[0] < before
    assert len(captured.captured) == 1


def test_classes_may_be_arguments_of_a_captured_step():
    def f(x, labels):
        return uopc.value_and_grad(lambda x: x.cross_entropy(labels, ignore_index=-1))(x)

    captured, labels = uopc.jit(f), np.array([1, -1, 3])
    for got, wanted in zip(captured(X, labels), f(X, labels)):
        close(got, wanted.numpy())
    for wrong in (4, -2):
        with pytest.raises(
            IndexError, match=rf"position {wrong} is no class: the logits of shape \(3, 4\) have 4 classes"
        ):
            captured(X, np.array([1, wrong, 3]))


def test_backward_is_refused_in_a_captured_function():
    w = Tensor(X)
    with pytest.raises(uopc.CaptureError, match=r"would set \.grad once only"):
        uopc.jit(lambda x: (x * w).sum().backward(w))(X)


# ---- vjp, jvp, hessian ----


def test_vjp():
    out, pull = uopc.vjp(lambda a, b: {"product": a @ b, "sum": a.sum()}, X, W)
    close(out["product"], X @ W)
    ga, gb = pull({"product": np.ones((3, 2)), "sum": 2.0})
    close(ga, np.ones((3, 2)) @ W.T + 2)
    close(gb, X.T @ np.ones((3, 2)))
    (again, _) = pull({"product": np.zeros((3, 2)), "sum": 1.0})
    close(again, np.ones((3, 4)))


def test_jvp():
    t = RNG.standard_normal(X.shape)
    out, moved = uopc.jvp(lambda x: [x.sin(), (x > 0).where(x.log(), 0.0).sum()], (X,), (t,))
    close(out[0], np.sin(X))
    close(moved[0], np.cos(X) * t)
    close(moved[1], (t / X)[X > 0].sum())
    out, moved = uopc.jvp(lambda p, x: loss(p, x), ({"w": W, "b": B}, X), ({"w": W, "b": B}, X * 0))
    close(moved, (by_hand(W, B, X)[0] * W).sum())


def test_hessian():
    x = X[0]
    s = np.exp(x) / np.exp(x).sum()
    close(uopc.hessian(lambda x: x.logsumexp())(x), np.diag(s) - np.outer(s, s))
    close(
        uopc.hessian(lambda x: (x.cumsum() ** 2).sum() * 0.5)(x), np.tril(np.ones((4, 4))).T @ np.tril(np.ones((4, 4)))
    )
    h = uopc.hessian(lambda x: (x[[0, 2, 2]] ** 3).sum() + x.sort()[0] * x.stack(x)[1, 1] + x.cat(x)[5:].prod())(x)
    assert h.shape == (4, 4)
    close(h, h.numpy().T)
    h = uopc.hessian(loss)({"w": W, "b": B}, X)
    assert {a: {b: t.shape for b, t in row.items()} for a, row in h.items()} == {
        "w": {"w": (4, 2, 4, 2), "b": (4, 2, 2)},
        "b": {"w": (2, 4, 2), "b": (2, 2)},
    }
    close(h["w"]["b"], h["b"]["w"].permute(1, 2, 0).numpy())
    assert uopc.jit(uopc.hessian(lambda x: (x**3).sum()))(x).shape == (4, 4)


def test_derivatives_of_derivatives():
    f = lambda x: (x.tanh() * x).sum()  # noqa: E731
    rows = [uopc.grad(lambda x, i=i: uopc.grad(f)(x)[i])(X[0]).numpy() for i in range(4)]
    close(uopc.hessian(f)(X[0]), np.stack(rows))
    t = RNG.standard_normal(4)
    close(uopc.jvp(uopc.grad(f), (X[0],), (t,))[1], np.stack(rows) @ t)


# ---- refusals ----


def test_refusals():
    f = lambda x: (x * 1.0).sum()  # noqa: E731
    with pytest.raises(TypeError, match=r"argument 0 holds int64 of shape \(3,\)"):
        uopc.grad(f)(np.arange(3))
    with pytest.raises(TypeError, match="argument 0 holds int, which has no gradient"):
        uopc.grad(f)({"w": X, "n": 3})
    with pytest.raises(ValueError, match=r"argnums=1 for 1 positional arguments"):
        uopc.grad(f, argnums=1)(X)
    with pytest.raises(ValueError, match="each once"):
        uopc.grad(f, argnums=(0, -1))(X)
    with pytest.raises(ValueError, match=r"returned shape \(3, 4\); one element is accepted"):
        uopc.grad(lambda x: x * 2)(X)
    with pytest.raises(TypeError, match="returned a float; a Tensor of one element"):
        uopc.grad(lambda x: 1.0)(X)
    with pytest.raises(TypeError, match="bool_ of shape"):
        uopc.grad(lambda x: (x > 0).any())(X)
    with pytest.raises(TypeError, match="grad takes a function of Tensors, not 3"):
        uopc.grad(3)
    with pytest.raises(ValueError, match="a tangent is needed for each array"):
        uopc.jvp(f, (X,), (X, X))
    with pytest.raises(ValueError, match=r"a tangent has shape \(4,\), and \(3, 4\) is needed"):
        uopc.jvp(f, (X,), (X[0],))
    with pytest.raises(ValueError, match="a gradient is needed for each array"):
        uopc.vjp(lambda x: [x, x], X)[1](X)
    with pytest.raises(TypeError, match="returned int64"):
        uopc.vjp(lambda x: x.argmax(), X)


# ---- compiled ----


@pytest.mark.parametrize("causal", [False, True])
def test_attention_backward(causal):
    n, d = 100, 16
    arrays = [RNG.standard_normal((2, n, d)) for _ in range(4)]
    q, k, v, do = arrays

    def run(dtype):
        tensors = [Tensor(a.astype(dtype)) for a in arrays]
        out = tensors[0].scaled_dot_product_attention(tensors[1], tensors[2], is_causal=causal)
        made = [out, *out.gradient(*tensors[:3], grad=tensors[3])]
        made[0].realize(*made[1:])
        return [m.numpy() for m in made]

    s = q @ k.swapaxes(1, 2) * d**-0.5
    s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf) if causal else s
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = do @ v.swapaxes(1, 2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * d**-0.5
    wanted = [p @ v, ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ do]
    for got, narrow, right in zip(run(np.float64), run(np.float32), wanted):
        np.testing.assert_allclose(got, right, atol=1e-13)
        np.testing.assert_allclose(narrow, right, atol=3e-6)


def test_the_maximum_of_a_softmax_has_no_gradient_to_compute():
    """A shift that cancels is not differentiated: no kernel looks for where the maximum was."""
    x = Tensor(np.ones((64, 96), np.float32))
    (g,) = x.softmax(-1).square().sum().gradient(x)
    assert not any(u.op is Ops.CMPEQ for u in toposort(g.uop))
    assert isinstance(uopc.explain(g), Report)
