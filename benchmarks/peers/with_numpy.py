"""NumPy, with outputs and temporaries that are allocated once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cases.base import Array, Case, empty
from cases.matmul import Matmul
from cases.memory import EPS

from peers import Prepared, Skip

VERSIONS = {"numpy": np.__version__}


def _axpy(x: Array, y: Array, out: Array, t: Array) -> Array:
    np.multiply(x, 2, out=out)
    return np.add(out, y, out=out)


def _softmax(x: Array, out: Array, t: Array) -> Array:
    np.subtract(x, x.max(-1, keepdims=True), out=out)
    np.exp(out, out=out)
    return np.divide(out, out.sum(-1, keepdims=True), out=out)


def _layer_norm(x: Array, weight: Array, bias: Array, out: Array, t: Array) -> Array:
    np.subtract(x, x.mean(-1, keepdims=True), out=out)
    np.multiply(out, out, out=t)
    out /= np.sqrt(t.mean(-1, keepdims=True) + EPS)
    out *= weight
    return np.add(out, bias, out=out)


def _rms_norm(x: Array, weight: Array, out: Array, t: Array) -> Array:
    np.multiply(x, x, out=t)
    np.divide(x, np.sqrt(t.mean(-1, keepdims=True) + EPS), out=out)
    return np.multiply(out, weight, out=out)


def _logsumexp(x: Array, out: Array, t: Array) -> Array:
    m = x.max(-1, keepdims=True)
    np.exp(np.subtract(x, m, out=t), out=t)
    return np.add(np.log(t.sum(-1)), m[:, 0], out=out)


def _cross_entropy(x: Array, target: Array, out: Array, t: Array) -> Array:
    logs = _logsumexp(x, np.empty(len(x), x.dtype), t)
    return (logs - x[np.arange(len(x)), target]).mean()


OPS: dict[str, Callable[..., Any]] = {
    "axpy": _axpy,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "logsumexp": _logsumexp,
    "var": lambda x, out, t: np.var(x, -1, ddof=1, out=out),
    "sum0": lambda x, out, t: np.sum(x, 0, out=out),
    "sum1": lambda x, out, t: np.sum(x, 1, out=out),
    "cross_entropy": _cross_entropy,
}


def build(variant: str, case: Case, arrays: dict[str, Array]) -> Prepared:
    out = empty(case.out_shape)
    values = list(arrays.values())
    if isinstance(case, Matmul):
        return Prepared(lambda: np.matmul(*values, out=out), np.asarray, "np.matmul(out=)")
    op = OPS.get(getattr(case, "op", ""))
    if op is None:
        raise Skip("NumPy has no such function")
    temporary = empty(values[0].shape)
    return Prepared(lambda: op(*values, out, temporary), np.asarray, "NumPy functions with out=")
