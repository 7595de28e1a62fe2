"""uopc through its public API: a captured function of NumPy arrays that writes to an array it is given."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from cases.attention import SOFTCAP, Attention
from cases.base import Array, Case, empty
from cases.fusion import Fused
from cases.matmul import Conv2d, Matmul
from cases.memory import EPS
from cases.model import Model

import uopc
from peers import Prepared
from uopc import Tensor

WAY_ROUNDS = 30  # of each way to cut, to find the fastest
VERSIONS = {"uopc": "in this checkout"}

OPS: dict[str, Callable[..., Tensor]] = {
    "axpy": lambda x, y: x * 2 + y,
    "gelu": lambda x: x.gelu(),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x, weight, bias: x.layer_norm(None, weight, bias, EPS),
    "rms_norm": lambda x, weight: x.rms_norm(None, weight, EPS),
    "logsumexp": lambda x: x.logsumexp(-1),
    "var": lambda x: x.var(-1),
    "sum0": lambda x: x.sum(0),
    "sum1": lambda x: x.sum(1),
    "cross_entropy": lambda x, target: x.cross_entropy(target),
    "exp_sum": lambda x, y, z: (x * y + z).exp().sum(),
}


def attention(case: Attention) -> Callable[..., Tensor]:
    """The function of q, k, v and, where there is one, the mask or the slopes."""
    if case.kv_heads != case.heads:
        return lambda q, k, v: uopc.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def fn(q: Tensor, k: Tensor, v: Tensor, extra: Tensor | None = None) -> Tensor:
        scores = q @ k.transpose(-1, -2) * case.scale
        return _masked(case, scores, extra).softmax(-1) @ v

    return fn


def _masked(case: Attention, scores: Tensor, extra: Tensor | None) -> Tensor:
    if case.form == "softcap":
        return (scores / SOFTCAP).tanh() * SOFTCAP
    if case.form == "bias":
        return scores + extra
    if case.form in ("padding", "documents") and extra is not None:
        return extra.where(scores, -math.inf)
    if case.form == "alibi" and extra is not None:
        i, j = Tensor.arange(case.n, dtype="float32").reshape(-1, 1), Tensor.arange(case.keys, dtype="float32")
        return scores + extra.reshape(-1, 1, 1) * (j - i)
    i, j = Tensor.arange(case.n).reshape(-1, 1), Tensor.arange(case.keys)
    if case.form == "causal":
        return (i >= j).where(scores, -math.inf)
    if case.form == "window":
        return ((i >= j) & (i - j < case.window)).where(scores, -math.inf)
    return scores


class Functions:
    """What the expressions of the suite "fusion" use."""

    exp, log, silu, rsqrt = Tensor.exp, Tensor.log, Tensor.silu, Tensor.rsqrt
    sum, max, logsumexp = Tensor.sum, Tensor.max, Tensor.logsumexp

    @staticmethod
    def mean(x: Tensor, axis: int | None, keep: bool = False) -> Tensor:
        return x.mean(axis, keepdim=keep)

    @staticmethod
    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    @staticmethod
    def layer_norm(x: Tensor) -> Tensor:
        return x.layer_norm(x.shape[-1])

    @staticmethod
    def pad(x: Tensor) -> Tensor:
        return x.pad(((1, 1), (1, 1)))

    @staticmethod
    def flip(x: Tensor) -> Tensor:
        return x.flip(0)

    @staticmethod
    def conv1d(x: Tensor, w: Tensor) -> Tensor:
        return x.conv1d(w)

    @staticmethod
    def float(x: Tensor) -> Tensor:
        return x.float()


def cut_at(case: Fused, mask: int) -> Callable[..., Tensor]:
    """An expression that is cut where ``mask`` has a bit."""

    def fn(*inputs: Tensor) -> Tensor:
        places = itertools.count()
        return case.expression(  # type: ignore[no-any-return]
            Functions, lambda x: x.contiguous() if mask >> next(places) & 1 else x, *inputs
        )

    return fn


def best_cut(case: Fused, arrays: dict[str, Array]) -> Prepared:
    """The fastest of all ways to cut an expression by hand."""
    found: list[Tensor] = []
    case.expression(Functions, lambda x: found.append(x) or x, *map(Tensor, arrays.values()))
    ways = []
    for mask in range(1, 1 << len(found)):
        made = _captured(case, arrays, {}, cut_at(case, mask))
        ways.append(replace(made, how=f"cut at {mask:0{len(found)}b}"))
    best = [math.inf] * len(ways)
    for _ in range(WAY_ROUNDS):
        for k, way in enumerate(ways):
            start = time.perf_counter()
            way.run()
            best[k] = min(best[k], time.perf_counter() - start)
    return ways[best.index(min(best))]


def function(case: Case) -> Callable[..., Tensor]:
    """The expression of a case, of Tensors in the order of ``case.arrays()``."""
    if isinstance(case, Attention):
        return attention(case)
    if isinstance(case, Matmul):
        return lambda a, b: a @ b
    if isinstance(case, Conv2d):
        return lambda x, w: x.conv2d(w, padding=1)
    if isinstance(case, Model):
        return model(case)
    if isinstance(case, Fused):
        return cut_at(case, 0)
    return OPS[case.op]  # type: ignore[attr-defined]


def model(case: Model) -> Callable[..., Tensor]:
    """The function of all weights, in the order of ``case.shapes()``."""
    n, gpt = case.positions, case.form == "gpt"

    def norm(x: Tensor, layer: dict[str, Tensor], which: int) -> Tensor:
        weight = layer[f"norm{which}"]
        return x.layer_norm(None, weight, layer[f"bias{which}"], EPS) if gpt else x.rms_norm(None, weight, EPS)

    def linear(x: Tensor, layer: dict[str, Tensor], name: str) -> Tensor:
        return x @ layer[name] + layer[f"{name}_bias"] if gpt else x @ layer[name]

    def fn(*weights: Tensor) -> Tensor:
        named = dict(zip(case.shapes(), weights))
        x = named["x"]
        for layer in case.of_layers(named):  # type: ignore[arg-type]
            qkv = linear(norm(x, layer, 1), layer, "qkv").reshape(n, 3, case.heads, case.head)
            mixed = uopc.scaled_dot_product_attention(*qkv.permute(1, 2, 0, 3), is_causal=True)
            x = x + linear(mixed.transpose(0, 1).reshape(n, case.channels), layer, "project")
            y = norm(x, layer, 2)
            inner = linear(y, layer, "up").gelu() if gpt else (y @ layer["gate"]).silu() * (y @ layer["up"])
            x = x + linear(inner, layer, "down")
        return x @ named["words"]

    return fn


def arguments(case: Case, arrays: dict[str, Array]) -> list[Array | Tensor]:
    """Arrays as they are, seen by heads where they lie otherwise; Tensors where NumPy has no such type."""
    if case.dtype == "bfloat16":
        return [Tensor(x).cast("bfloat16").realize() for x in arrays.values()]
    if getattr(case, "heads_inside", False):
        return [x.transpose(0, 2, 1, 3) for x in arrays.values()]
    return list(arrays.values())


def build(variant: str, case: Case, arrays: dict[str, Array]) -> Prepared:
    """CaptureError leads to the other public way: Tensors, realized at each call."""
    if variant == "uopc cut":
        assert isinstance(case, Fused)
        return best_cut(case, arrays)
    fields = {} if getattr(case, "fused", True) else {"fuse_reduce": False}
    try:
        with uopc.options(**fields):
            return _captured(case, arrays, fields, function(case))
    except uopc.CaptureError:
        return _realized(case, arrays)


def _captured(
    case: Case, arrays: dict[str, Array], fields: dict[str, bool], function: Callable[..., Tensor]
) -> Prepared:
    fn, args = uopc.jit(function), arguments(case, arrays)
    half = case.dtype == "bfloat16"
    out = empty(case.out_shape, np.uint16 if half else np.float32)

    def run() -> Array:
        return fn(*args, out=out)

    def run_with_options() -> Array:
        with uopc.options(**fields):
            return fn(*args, out=out)

    run()
    how = f"uopc.jit({'Tensors' if half else 'arrays'}, out=)"
    return Prepared(run_with_options if fields else run, _widened if half else np.asarray, how)


def _realized(case: Case, arrays: dict[str, Array]) -> Prepared:
    fn, args = function(case), [Tensor(x) for x in arguments(case, arrays)]
    return Prepared(lambda: fn(*args).realize(), np.asarray, "Tensor.realize")


def _widened(bits: Array) -> Array:
    """bfloat16 in uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
