"""PyTorch: eager, scaled_dot_product_attention, torch.compile, and flex_attention compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from cases.attention import SOFTCAP, Attention
from cases.base import Array, Case
from cases.fusion import EPS as NORM_EPS
from cases.fusion import Fused
from cases.matmul import Conv2d, Matmul
from cases.memory import EPS
from cases.model import Model
from torch import Tensor

from peers import Prepared, Skip

VERSIONS = {"torch": torch.__version__, "blas": "mkl" if torch.backends.mkl.is_available() else "?"}
MAX_SHARE = 0.2  # of the memory that is free, for one temporary

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

OPS: dict[str, Callable[..., Tensor]] = {
    "axpy": lambda x, y: x * 2 + y,
    "gelu": lambda x: F.gelu(x),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, EPS),
    "rms_norm": lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, EPS),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "var": lambda x: torch.var(x, -1),
    "sum0": lambda x: torch.sum(x, 0),
    "sum1": lambda x: torch.sum(x, 1),
    "cross_entropy": lambda x, target: F.cross_entropy(x, target),
    "exp_sum": lambda x, y, z: (x * y + z).exp().sum(),
}
# those that take out=, which spares them the allocation
OPS_OUT: dict[str, Callable[..., Tensor]] = {
    "axpy": lambda x, y, out: torch.add(y, x, alpha=2, out=out),
    "softmax": lambda x, out: torch.softmax(x, -1, out=out),
    "logsumexp": lambda x, out: torch.logsumexp(x, -1, out=out),
    "var": lambda x, out: torch.var(x, -1, out=out),
    "sum0": lambda x, out: torch.sum(x, 0, out=out),
    "sum1": lambda x, out: torch.sum(x, 1, out=out),
}


class Functions:
    """What the expressions of the suite "fusion" use."""

    exp, log, silu, rsqrt, conv1d, logsumexp = torch.exp, torch.log, F.silu, torch.rsqrt, F.conv1d, torch.logsumexp

    @staticmethod
    def sum(x: Tensor, axis: int | None) -> Tensor:
        return x.sum() if axis is None else x.sum(axis)

    @staticmethod
    def max(x: Tensor, axis: int | None) -> Tensor:
        return x.max() if axis is None else x.amax(axis)

    @staticmethod
    def mean(x: Tensor, axis: int | None, keep: bool = False) -> Tensor:
        return x.mean() if axis is None else x.mean(axis, keepdim=keep)

    @staticmethod
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    @staticmethod
    def layer_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], None, None, NORM_EPS)

    @staticmethod
    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (1, 1, 1, 1))

    @staticmethod
    def flip(x: Tensor) -> Tensor:
        return x.flip(0)

    @staticmethod
    def float(x: Tensor) -> Tensor:
        return x.float()


def build(variant: str, case: Case, arrays: dict[str, Array]) -> Prepared:
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    if case.dtype == "bfloat16":
        tensors = {name: x.to(torch.bfloat16) for name, x in tensors.items()}
    if isinstance(case, Attention):
        fn, args, how = ATTENTION[variant](case, tensors, arrays)
    else:
        fn, args, how = _plain(variant, case, list(tensors.values()))

    def run() -> Tensor:
        with torch.inference_mode():
            return fn(*args)

    return Prepared(run, lambda x: x.float().contiguous().numpy(), how)


def _plain(variant: str, case: Case, args: list[Tensor]) -> tuple[Callable[..., Tensor], list[Any], str]:
    """Everything but attention."""
    if isinstance(case, Matmul):
        out = torch.empty(case.out_shape, dtype=args[0].dtype)
        return lambda a, b: torch.matmul(a, b, out=out), args, "torch.matmul(out=)"
    if isinstance(case, Conv2d):
        return lambda x, w: F.conv2d(x, w, padding=1), args, "F.conv2d"
    if isinstance(case, (Model, Fused)):
        fn = _model(case) if isinstance(case, Model) else lambda *xs: case.expression(Functions, lambda x: x, *xs)
        return (torch.compile(fn, dynamic=False) if variant == "torch.compile" else fn), args, variant
    op: str = case.op  # type: ignore[attr-defined]
    if variant == "torch.compile":
        return torch.compile(OPS[op], dynamic=False), args, "torch.compile"
    if op in OPS_OUT:
        return OPS_OUT[op], [*args, torch.empty(case.out_shape)], "eager, out="
    return OPS[op], args, "eager"


def _model(case: Model) -> Callable[..., Tensor]:
    n, gpt, shape = case.positions, case.form == "gpt", (case.channels,)

    def norm(x: Tensor, layer: dict[str, Tensor], which: int) -> Tensor:
        weight = layer[f"norm{which}"]
        return F.layer_norm(x, shape, weight, layer[f"bias{which}"], EPS) if gpt else F.rms_norm(x, shape, weight, EPS)

    def linear(x: Tensor, layer: dict[str, Tensor], name: str) -> Tensor:
        return torch.addmm(layer[f"{name}_bias"], x, layer[name]) if gpt else x @ layer[name]

    def fn(*weights: Tensor) -> Tensor:
        named = dict(zip(case.shapes(), weights))
        x = named["x"]
        for layer in case.of_layers(named):  # type: ignore[arg-type]
            qkv = linear(norm(x, layer, 1), layer, "qkv").reshape(n, 3, case.heads, case.head)
            q, k, v = qkv.permute(1, 2, 0, 3)[:, None]
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
            x = x + linear(mixed.transpose(0, 1).reshape(n, case.channels), layer, "project")
            y = norm(x, layer, 2)
            inner = F.gelu(linear(y, layer, "up")) if gpt else F.silu(y @ layer["gate"]) * (y @ layer["up"])
            x = x + linear(inner, layer, "down")
        return x @ named["words"]

    return fn


# ---- attention ----


def _four(x: Tensor, case: Attention) -> Tensor:
    """As (batch, heads, n, d), which is what the fused kernels take."""
    x = x[None, None] if x.ndim == 2 else x
    return x.transpose(1, 2) if case.heads_inside else x


def _dense_mask(case: Attention, arrays: dict[str, Array], dtype: torch.dtype) -> Tensor | None:
    mask = case.dense_mask(arrays)
    if mask is None:
        return None
    made = torch.from_numpy(np.ascontiguousarray(mask))
    return made if made.dtype == torch.bool else made.to(dtype)


def _sdpa(case: Attention, tensors: dict[str, Tensor], arrays: dict[str, Array]) -> Any:
    if case.form == "softcap":
        raise Skip("scaled_dot_product_attention has no softcap")
    q, k, v = (_four(tensors[name], case) for name in "qkv")
    causal, gqa = case.form == "causal", case.heads != case.kv_heads
    mask = None if causal else _dense_mask(case, arrays, q.dtype)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=gqa)

    return fn, [q, k, v], "F.scaled_dot_product_attention"


def _unfused(case: Attention, tensors: dict[str, Tensor], arrays: dict[str, Array]) -> Any:
    """Matmul, softmax, matmul, with a mask that is made beforehand."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if case.scratch > MAX_SHARE * free:
        raise Skip(f"scores of {case.scratch >> 20} MB with {free >> 20} MB of memory free")
    q, k, v = (_four(tensors[name], case) if not case.flat else tensors[name] for name in "qkv")
    mask = _dense_mask(case, arrays, q.dtype)
    hidden = None if mask is None or mask.dtype != torch.bool else ~mask
    group = case.heads // case.kv_heads

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if group > 1:
            q = q.reshape(case.batch, case.kv_heads, group * case.n, case.d)
        s = q @ k.transpose(-1, -2) * case.scale
        if case.form == "softcap":
            s = (s / SOFTCAP).tanh() * SOFTCAP
        elif hidden is not None:
            s = s.masked_fill(hidden, -torch.inf)
        elif mask is not None:
            s = s + mask
        return (torch.softmax(s, -1) @ v).reshape(case.out_shape)

    return fn, [q, k, v], "matmul, softmax, matmul"


def _compiled(case: Attention, tensors: dict[str, Tensor], arrays: dict[str, Array]) -> Any:
    fn, args, _ = _unfused(case, tensors, arrays)
    return torch.compile(fn, dynamic=False), args, "torch.compile of matmul, softmax, matmul"


def _flex(case: Attention, tensors: dict[str, Tensor], arrays: dict[str, Array]) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (_four(tensors[name], case) for name in "qkv")
    mask, score = _mask_mod(case, tensors), _score_mod(case, tensors)
    blocks = None
    if mask is not None:
        batch = case.batch if case.form == "padding" else None
        blocks = create_block_mask(mask, batch, None, case.n, case.keys, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    gqa = case.heads != case.kv_heads

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=gqa)

    return fn, [q, k, v], "torch.compile(flex_attention)"


def _mask_mod(case: Attention, tensors: dict[str, Tensor]) -> Callable[..., Tensor] | None:
    if case.form == "causal":
        return lambda b, h, i, j: i >= j
    if case.form == "window":
        return lambda b, h, i, j: (i >= j) & (i - j < case.window)
    if case.form == "padding":
        valid = tensors["mask"].reshape(case.batch, case.keys)
        return lambda b, h, i, j: valid[b, j]
    if case.form == "documents":
        return lambda b, h, i, j: i // case.window == j // case.window
    return None


def _score_mod(case: Attention, tensors: dict[str, Tensor]) -> Callable[..., Tensor] | None:
    if case.form == "softcap":
        return lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP)
    if case.form == "alibi":
        slopes = tensors["slopes"]
        return lambda s, b, h, i, j: s + slopes[h] * (j - i)
    if case.form == "bias":
        bias = tensors["mask"]
        return lambda s, b, h, i, j: s + bias[h, i, j]
    return None


ATTENTION: dict[str, Callable[..., Any]] = {
    "torch sdpa": _sdpa,
    "torch unfused": _unfused,
    "torch.compile": _compiled,
    "torch flex": _flex,
}
