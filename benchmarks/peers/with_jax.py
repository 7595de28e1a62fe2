"""jax: jitted functions, waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases.attention import SOFTCAP, Attention
from cases.base import Array, Case
from cases.matmul import Conv2d, Matmul
from cases.memory import EPS

from peers import Prepared, Skip

VERSIONS = {"jax": jax.__version__}


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + EPS) * weight + bias


def _cross_entropy(x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x, -1), target[:, None], 1).mean()


OPS: dict[str, Callable[..., Any]] = {
    "axpy": lambda x, y: x * 2 + y,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "layer_norm": _layer_norm,
    "rms_norm": lambda x, weight: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS) * weight,
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "var": lambda x: x.var(-1, ddof=1),
    "sum0": lambda x: x.sum(0),
    "sum1": lambda x: x.sum(1),
    "cross_entropy": _cross_entropy,
    "exp_sum": lambda x, y, z: jnp.exp(x * y + z).sum(),
}


def attention(case: Attention) -> Callable[..., Any]:
    """The function of q, k, v and the mask or slopes; masks by comparison are made inside."""
    group = case.heads // case.kv_heads

    def fn(q: Any, k: Any, v: Any, extra: Any = None) -> Any:
        if case.heads_inside:
            q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        if group > 1:
            q = q.reshape(case.batch, case.kv_heads, group * case.n, case.d)
        s = _masked(case, q @ jnp.swapaxes(k, -1, -2) * case.scale, extra)
        return (jax.nn.softmax(s, -1) @ v).reshape(case.out_shape)

    return fn


def _masked(case: Attention, s: Any, extra: Any) -> Any:
    i, j = jnp.arange(case.n)[:, None], jnp.arange(case.keys)
    if case.form == "softcap":
        return SOFTCAP * jnp.tanh(s / SOFTCAP)
    if case.form == "bias":
        return s + extra
    if case.form in ("padding", "documents"):
        return jnp.where(extra, s, -jnp.inf)
    if case.form == "causal":
        return jnp.where(i >= j, s, -jnp.inf)
    if case.form == "window":
        return jnp.where((i >= j) & (i - j < case.window), s, -jnp.inf)
    if case.form == "alibi":
        return s + extra[:, None, None] * (j - i)
    return s


def build(variant: str, case: Case, arrays: dict[str, Array]) -> Prepared:
    if isinstance(case, Attention):
        fn = attention(case)
    elif isinstance(case, Matmul):
        fn = jnp.matmul
    elif isinstance(case, Conv2d):
        raise Skip("not compared")
    else:
        fn = OPS[case.op]  # type: ignore[attr-defined]
    compiled = jax.jit(fn)
    args = [jnp.asarray(x) for x in arrays.values()]
    return Prepared(lambda: compiled(*args).block_until_ready(), np.asarray, "jax.jit")
