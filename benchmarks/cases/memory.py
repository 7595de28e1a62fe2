"""Elementwise expressions, reductions and normalisations: rows that memory bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cases.base import Array, Case, Shape, normal

EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class Memory(Case):
    """One of ``EXACT``'s operations on arrays of ``shape``, along the last axis if not said otherwise.

    vectors: how many further inputs have the size of the last axis.  writes: whether the result is as large as x.
    operations: for each element of x, roughly.
    """

    op: str
    shape: Shape
    arrays_of_shape: int = 1
    vectors: int = 0
    writes: bool = True
    operations: int = 2
    share: float | None = 0.85

    @property
    def limit(self) -> str:
        return "copy" if self.writes else "read"

    @property
    def flops(self) -> int:
        return self.operations * math.prod(self.shape)

    @property
    def moved(self) -> int:
        classes = 8 * self.shape[0] if self.op == "cross_entropy" else 0
        inputs = self.arrays_of_shape * math.prod(self.shape) + self.vectors * self.shape[-1]
        return 4 * (inputs + math.prod(self.out_shape)) + classes

    @property
    def out_shape(self) -> Shape:
        if self.writes:
            return self.shape
        if self.op in ("cross_entropy", "exp_sum"):
            return ()
        return self.shape[1:] if self.op == "sum0" else self.shape[:-1]

    @property
    def scratch(self) -> int:
        return 4 * math.prod(self.shape)

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        out = {name: normal(rng, self.shape) for name in ("x", "y", "z")[: self.arrays_of_shape]}
        out.update({name: normal(rng, self.shape[-1:]) for name in ("weight", "bias")[: self.vectors]})
        if self.op == "cross_entropy":
            out["target"] = rng.integers(0, self.shape[-1], self.shape[0])
        return out

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        return EXACT[self.op](arrays, rows)


def _some(arrays: dict[str, Array], name: str, rows: Array) -> Array:
    """Rows of an input, along its last axis, in float64; of a vector, as rows of the last axis of the result: all."""
    x = arrays[name]
    return (x[None] if x.ndim == 1 else x[rows]).astype(np.float64)


def _logsumexp(x: Array) -> Array:
    m = x.max(-1, keepdims=True)
    return np.log(np.exp(x - m).sum(-1, keepdims=True)) + m


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS) * weight + bias


def _cross_entropy(arrays: dict[str, Array], rows: Array) -> Array:
    blocks = range(0, len(arrays["x"]), 256)
    total = 0.0
    for start in blocks:
        x, target = arrays["x"][start : start + 256].astype(np.float64), arrays["target"][start : start + 256]
        total += float((_logsumexp(x) - np.take_along_axis(x, target[:, None], 1)).sum())
    return np.array([[total / len(arrays["x"])]])


def _exp_sum(arrays: dict[str, Array], rows: Array) -> Array:
    x, y, z = (arrays[name].astype(np.float64) for name in ("x", "y", "z"))
    return np.exp(x * y + z).sum().reshape(1, 1)


def _norm_rows(arrays: dict[str, Array], rows: Array) -> Array:
    x = _some(arrays, "x", rows)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * arrays["weight"].astype(np.float64)


EXACT: dict[str, Callable[[dict[str, Array], Array], Array]] = {
    "axpy": lambda a, rows: _some(a, "x", rows) * 2 + _some(a, "y", rows),
    "gelu": lambda a, rows: _gelu(_some(a, "x", rows)),
    "softmax": lambda a, rows: np.exp(_some(a, "x", rows) - _logsumexp(_some(a, "x", rows))),
    "layer_norm": lambda a, rows: _layer_norm(_some(a, "x", rows), a["weight"], a["bias"]),
    "rms_norm": _norm_rows,
    "logsumexp": lambda a, rows: _logsumexp(a["x"].astype(np.float64)).reshape(1, -1),
    "var": lambda a, rows: a["x"].var(-1, ddof=1, dtype=np.float64).reshape(1, -1),
    "sum0": lambda a, rows: a["x"].sum(0, dtype=np.float64).reshape(1, -1),
    "sum1": lambda a, rows: a["x"].sum(1, dtype=np.float64).reshape(1, -1),
    "cross_entropy": _cross_entropy,
    "exp_sum": _exp_sum,
}

_FUSED_PEERS = ("numexpr", "torch.compile", "jax")
CASES: tuple[Case, ...] = tuple(
    Memory(wanted=1.1 if row.get("peers") else 1.05, **row)  # type: ignore[arg-type]
    for row in (
        {"name": "x*2+y 16M", "op": "axpy", "shape": (4096, 4096), "arrays_of_shape": 2},
        {"name": "gelu 4M", "op": "gelu", "shape": (4096, 1024), "operations": 20},
        {"name": "softmax 4096x4096", "op": "softmax", "shape": (4096, 4096), "operations": 20},
        {"name": "layer_norm 4096x1024", "op": "layer_norm", "shape": (4096, 1024), "vectors": 2, "operations": 8},
        {"name": "rms_norm 4096x1024", "op": "rms_norm", "shape": (4096, 1024), "vectors": 1, "operations": 5},
        {"name": "logsumexp 4096x4096", "op": "logsumexp", "shape": (4096, 4096), "writes": False, "operations": 20},
        {"name": "var 4096x4096", "op": "var", "shape": (4096, 4096), "writes": False, "operations": 4},
        {"name": "sum axis 0 8192x8192", "op": "sum0", "shape": (8192, 8192), "writes": False, "operations": 1},
        {"name": "sum axis 1 8192x8192", "op": "sum1", "shape": (8192, 8192), "writes": False, "operations": 1},
        {"name": "cross_entropy 4096x32000", "op": "cross_entropy", "shape": (4096, 32000), "writes": False,
         "operations": 20},
        {"name": "exp(a*b+c).sum() 16M", "op": "exp_sum", "shape": (4096, 4096), "arrays_of_shape": 3,
         "writes": False, "operations": 20, "peers": _FUSED_PEERS},
    )
)  # fmt: skip
