"""onnxruntime: graphs of ONNX operators, with inputs and outputs bound to memory once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from cases.attention import SOFTCAP, Attention
from cases.base import Array, Case, empty
from cases.matmul import Matmul
from cases.memory import EPS
from onnx import TensorProto, helper, numpy_helper

from peers import Prepared, Skip

VERSIONS = {"onnxruntime": ort.__version__, "onnx": onnx.__version__}
OPSET = 23
TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
MAX_SHARE = 0.2  # of the memory that is free, for one temporary


class Graph:
    """A graph as it is written: every method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def model(self, result: str, inputs: dict[str, Array], shape: tuple[int, ...]) -> bytes:
        graph_in = [helper.make_tensor_value_info(n, TYPES[str(x.dtype)], x.shape) for n, x in inputs.items()]
        self.nodes.append(helper.make_node("Identity", [result], ["out"]))
        graph_out = [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "case", graph_in, graph_out, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


def build(variant: str, case: Case, arrays: dict[str, Array]) -> Prepared:
    g = Graph()
    shape = case.out_shape
    if isinstance(case, Attention):
        arrays = _with_mask(case, arrays)
        result, shape = ATTENTION[variant](g, case)
        how = {"onnxruntime": "MatMul-Softmax-MatMul"}.get(variant, variant.split()[-1])
    elif isinstance(case, Matmul):
        result, how = g("MatMul", "a", "b"), "MatMul"
    else:
        op = OPS.get(getattr(case, "op", ""))
        if op is None:
            raise Skip("no such operator")
        result, how = op(g, case), "graph of ONNX operators"
    return _session(g.model(result, arrays, shape), arrays, shape, f"{how}, memory bound once")


def _session(model: bytes, arrays: dict[str, Array], shape: tuple[int, ...], how: str) -> Prepared:
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    out = empty(shape)
    for name, x in arrays.items():
        binding.bind_input(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("out", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

    def run() -> tuple[Array, Any]:
        session.run_with_iobinding(binding)
        return out, arrays  # which the session reads in place

    return Prepared(run, lambda result: result[0], how)


# ---- attention ----


def _with_mask(case: Attention, arrays: dict[str, Array]) -> dict[str, Array]:
    mask = case.dense_mask(arrays)
    kept = {name: arrays[name] for name in "qkv"}
    return kept if mask is None else {**kept, "mask": np.ascontiguousarray(mask)}


def _graph(g: Graph, case: Attention) -> tuple[str, tuple[int, ...]]:
    """Matmul, softmax, matmul, with a mask that is made beforehand."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if case.scratch > MAX_SHARE * free:
        raise Skip(f"scores of {case.scratch >> 20} MB with {free >> 20} MB of memory free")
    q, k, v = "q", "k", "v"
    if case.heads_inside:
        q, k, v = (g("Transpose", x, perm=[0, 2, 1, 3]) for x in (q, k, v))
    if case.heads != case.kv_heads:
        rows = case.heads // case.kv_heads * case.n
        q = g("Reshape", q, g.constant(np.array([case.batch, case.kv_heads, rows, case.d])))
    axes = [1, 0] if case.flat else [0, 1, 3, 2]
    s = g("Mul", g("MatMul", q, g("Transpose", k, perm=axes)), g.constant(np.float32(case.scale)))
    if case.form == "softcap":
        cap = g.constant(np.float32(SOFTCAP))
        s = g("Mul", g("Tanh", g("Div", s, cap)), cap)
    elif case.form in ("causal", "window", "padding", "documents"):
        s = g("Where", "mask", s, g.constant(np.float32(-np.inf)))
    elif case.form in ("alibi", "bias"):
        s = g("Add", s, "mask")
    out = g("MatMul", g("Softmax", s, axis=-1), v)
    return g("Reshape", out, g.constant(np.array(case.out_shape))), case.out_shape


def _attention(g: Graph, case: Attention) -> tuple[str, tuple[int, ...]]:
    """The operator of opset 23."""
    shape = (case.batch, case.heads, case.n, case.d)
    inputs, attributes = ["q", "k", "v"], {"scale": case.scale}
    if case.flat:
        inputs = [g("Unsqueeze", x, g.constant(np.array([0, 1]))) for x in inputs]
    elif case.heads_inside:
        inputs = [g("Transpose", x, perm=[0, 2, 1, 3]) for x in inputs]
    if case.form == "softcap":
        attributes["softcap"] = SOFTCAP
    elif case.form == "causal":
        attributes["is_causal"] = 1
    elif case.form == "padding":
        full = g.constant(np.array([case.batch, 1, case.n, case.keys]))
        inputs.append(g("Expand", "mask", full))
    elif case.form != "plain":
        inputs.append("mask")
    return g("Attention", *inputs, **attributes), shape


def _multi_head(g: Graph, case: Attention) -> tuple[str, tuple[int, ...]]:
    """onnxruntime's own fused operator, which takes (batch, n, heads * d)."""
    if not (case.flat or case.heads_inside) or case.form not in ("plain", "causal"):
        raise Skip("the operator takes arrays (batch, n, heads * d), and no such mask")
    shape = (case.batch, case.n, case.heads * case.d)
    size = g.constant(np.array(shape))
    inputs = [g("Reshape", x, size) for x in "qkv"]
    causal = int(case.form == "causal")
    attributes = {"num_heads": case.heads, "scale": case.scale, "unidirectional": causal}
    out = g("MultiHeadAttention", *inputs, domain="com.microsoft", **attributes)
    if case.heads_inside:
        out = g("Reshape", out, g.constant(np.array((case.batch, case.n, case.heads, case.d))))
        out = g("Transpose", out, perm=[0, 2, 1, 3])
    return out, case.out_shape if case.heads_inside else shape


ATTENTION = {
    "onnxruntime": _graph,
    "onnxruntime Attention": _attention,
    "onnxruntime MultiHeadAttention": _multi_head,
}


# ---- everything else ----


def _variance(g: Graph, case: Any) -> str:
    axes = g.constant(np.array([-1]))
    away = g("Sub", "x", g("ReduceMean", "x", axes))
    total = g("ReduceSum", g("Mul", away, away), axes, keepdims=0)
    return g("Div", total, g.constant(np.float32(case.shape[-1] - 1)))


def _axis(g: Graph, op: str, axis: int) -> str:
    return g(op, "x", g.constant(np.array([axis])), keepdims=0)


OPS: dict[str, Callable[[Graph, Any], str]] = {
    "axpy": lambda g, case: g("Add", g("Mul", "x", g.constant(np.float32(2))), "y"),
    "gelu": lambda g, case: g("Gelu", "x"),
    "softmax": lambda g, case: g("Softmax", "x", axis=-1),
    "layer_norm": lambda g, case: g("LayerNormalization", "x", "weight", "bias", axis=-1, epsilon=EPS),
    "rms_norm": lambda g, case: g("RMSNormalization", "x", "weight", axis=-1, epsilon=EPS),
    "logsumexp": lambda g, case: _axis(g, "ReduceLogSumExp", -1),
    "var": _variance,
    "sum0": lambda g, case: _axis(g, "ReduceSum", 0),
    "sum1": lambda g, case: _axis(g, "ReduceSum", 1),
    "cross_entropy": lambda g, case: g("SoftmaxCrossEntropyLoss", "x", "target", reduction="mean"),
}
