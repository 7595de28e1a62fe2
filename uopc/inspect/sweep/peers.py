"""peers: the problems as other libraries compute them, each as its users would call it.

A library is imported by the function that prepares it, in the process that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from uopc.inspect.sweep.forms import Prepared, Skip
from uopc.inspect.sweep.problems import EPS, Array, Problem

NAMES = ("torch", "jax", "onnxruntime", "numpy")


def build(impl: str, problem: Problem, inputs: list[Array]) -> Prepared:
    """Prepare a library; ImportError where it is absent, Skip where it does not do the problem."""
    if problem.user() is not None:
        raise Skip("a user's function is written for uopc")
    makers = {"torch": _torch, "jax": _jax, "onnxruntime": _onnxruntime, "numpy": _numpy}
    return makers[impl](problem, inputs)


def _numpy(problem: Problem, inputs: list[Array]) -> Prepared:
    def attention(q: Array, k: Array, v: Array) -> Array:
        scores = q @ np.swapaxes(k, -1, -2) * np.float32(problem.d**-0.5)
        if problem.causal:
            scores = np.where(np.tri(problem.n, dtype=bool), scores, np.float32(-np.inf))
        e = np.exp(scores - scores.max(-1, keepdims=True))
        out: Array = e / e.sum(-1, keepdims=True) @ v
        return out

    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        out: Array = e / e.sum(-1, keepdims=True)
        return out

    def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
        scale = np.sqrt(x.var(-1, keepdims=True) + np.float32(EPS))
        out: Array = (x - x.mean(-1, keepdims=True)) / scale * weight + bias
        return out

    forms: dict[str, Callable[..., Array]] = {
        "attention": attention, "matmul": np.matmul, "softmax": softmax, "layer_norm": layer_norm,
    }  # fmt: skip
    fn = forms[problem.name]
    return Prepared(lambda: fn(*inputs), np.asarray, {})


def _torch(problem: Problem, inputs: list[Array]) -> Prepared:
    import torch
    from torch.nn import functional

    tensors = [torch.from_numpy(x) for x in inputs]
    if problem.name == "attention":
        tensors = [t.reshape(1, problem.heads, problem.n, problem.d) for t in tensors]

    def run() -> Any:
        with torch.inference_mode():
            if problem.name == "attention":
                q, k, v = tensors
                return functional.scaled_dot_product_attention(q, k, v, is_causal=problem.causal)
            if problem.name == "matmul":
                return tensors[0] @ tensors[1]
            if problem.name == "softmax":
                return tensors[0].softmax(-1)
            return functional.layer_norm(tensors[0], (problem.n,), tensors[1], tensors[2], EPS)

    return Prepared(run, lambda out: out.numpy().reshape(problem.shape), {})


def _jax(problem: Problem, inputs: list[Array]) -> Prepared:
    import jax
    import jax.numpy as jnp

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ jnp.swapaxes(k, -1, -2) * problem.d**-0.5
        if problem.causal:
            scores = jnp.where(jnp.tri(problem.n, dtype=bool), scores, -jnp.inf)
        return jax.nn.softmax(scores, -1) @ v

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + EPS) * weight + bias

    forms: dict[str, Callable[..., Any]] = {
        "attention": attention, "matmul": jnp.matmul, "softmax": lambda x: jax.nn.softmax(x, -1),
        "layer_norm": layer_norm,
    }  # fmt: skip
    fn = jax.jit(forms[problem.name])
    arrays = [jnp.asarray(x) for x in inputs]
    return Prepared(lambda: fn(*arrays).block_until_ready(), np.asarray, {})


def _onnxruntime(problem: Problem, inputs: list[Array]) -> Prepared:
    import onnxruntime
    from onnx import TensorProto, helper

    names = [f"x{k}" for k in range(len(inputs))]
    nodes, constants = _onnx_nodes(problem)
    values = [helper.make_tensor_value_info(k, TensorProto.FLOAT, x.shape) for k, x in zip(names, inputs)]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, problem.shape)
    graph = helper.make_graph(
        nodes, "problem", values, [out], [helper.make_tensor(k, *_onnx_constant(v)) for k, v in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    settings = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    feed = dict(zip(names, inputs))
    return Prepared(lambda: session.run(None, feed)[0], np.asarray, {})


def _onnx_constant(x: Array) -> tuple[int, tuple[int, ...], bytes, bool]:
    from onnx import TensorProto

    kind = TensorProto.BOOL if x.dtype == bool else TensorProto.FLOAT
    return kind, x.shape, x.tobytes(), True


def _onnx_nodes(problem: Problem) -> tuple[list[Any], dict[str, Array]]:
    """The nodes of x0, x1, ... to out, and constants."""
    from onnx import helper

    node = helper.make_node
    if problem.name == "matmul":
        return [node("MatMul", ["x0", "x1"], ["out"])], {}
    if problem.name == "softmax":
        return [node("Softmax", ["x0"], ["out"], axis=-1)], {}
    if problem.name == "layer_norm":
        return [node("LayerNormalization", ["x0", "x1", "x2"], ["out"], axis=-1, epsilon=EPS)], {}
    order = [1, 0] if problem.heads == 1 else [0, 2, 1]
    nodes = [
        node("Transpose", ["x1"], ["kt"], perm=order),
        node("MatMul", ["x0", "kt"], ["dots"]),
        node("Mul", ["dots", "scale"], ["scores"]),
    ]
    constants = {"scale": np.array(problem.d**-0.5, np.float32)}
    last = "scores"
    if problem.causal:
        nodes.append(node("Where", ["seen", "scores", "never"], ["masked"]))
        constants |= {"seen": np.tri(problem.n, dtype=bool), "never": np.array(-np.inf, np.float32)}
        last = "masked"
    nodes += [node("Softmax", [last], ["weights"], axis=-1), node("MatMul", ["weights", "x2"], ["out"])]
    return nodes, constants
