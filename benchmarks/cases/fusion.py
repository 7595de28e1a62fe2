"""Products with something above or beside them that could take their tiles and blocks away: where to cut decides.

An expression is written once, of the few functions that ``Library`` names, and each library brings those.  ``cut`` is
called where a product, a norm or a reduction ends, and gives the value back, or has it written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cases.base import Array, Case, Shape, normal

EPS = 1e-5


class Library(Protocol):
    """What an expression may use besides operators, ``@``, ``.T``, slices and ``.reshape``."""

    def exp(self, x: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def silu(self, x: Any) -> Any: ...
    def rsqrt(self, x: Any) -> Any: ...
    def sum(self, x: Any, axis: int | None) -> Any: ...
    def max(self, x: Any, axis: int | None) -> Any: ...
    def mean(self, x: Any, axis: int | None, keep: bool = False) -> Any: ...
    def softmax(self, x: Any) -> Any: ...
    def logsumexp(self, x: Any, axis: int) -> Any: ...
    def layer_norm(self, x: Any) -> Any: ...
    def pad(self, x: Any) -> Any: ...
    def flip(self, x: Any) -> Any: ...
    def conv1d(self, x: Any, w: Any) -> Any: ...
    def float(self, x: Any) -> Any: ...


class Exact:
    """NumPy."""

    exp, log, sum, max = np.exp, np.log, np.sum, np.max

    @staticmethod
    def silu(x: Array) -> Array:
        return x / (1 + np.exp(-x))

    @staticmethod
    def rsqrt(x: Array) -> Array:
        return 1 / np.sqrt(x)

    @staticmethod
    def mean(x: Array, axis: int | None, keep: bool = False) -> Array:
        return np.asarray(x.mean(axis, keepdims=keep))

    @staticmethod
    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))

    @staticmethod
    def logsumexp(x: Array, axis: int) -> Array:
        m = x.max(axis, keepdims=True)
        return np.asarray(np.log(np.exp(x - m).sum(axis)) + m.squeeze(axis))

    @staticmethod
    def layer_norm(x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True)
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS))

    @staticmethod
    def pad(x: Array) -> Array:
        return np.pad(x, 1)

    @staticmethod
    def flip(x: Array) -> Array:
        return x[::-1]

    @staticmethod
    def conv1d(x: Array, w: Array) -> Array:
        seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[-1], 2)
        return np.einsum("nclk,ock->nol", seen, w, optimize=True)

    @staticmethod
    def float(x: Array) -> Array:
        return x.astype(np.float64)


Cut = Callable[[Any], Any]
Expression = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Fused(Case):
    """expression: of a Library, a ``cut`` and the inputs.  shapes: of the inputs, scaled so that products have elements
    of about 1; ``bytes``: those that are int8.  products: multiplications."""

    expression: Expression
    shapes: tuple[Shape, ...]
    out_shape: Shape = ()
    products: int
    bytes: tuple[int, ...] = ()

    limit = "fma"

    @property
    def flops(self) -> int:
        return 2 * self.products

    @property
    def moved(self) -> int:
        sizes = [math.prod(s) * (1 if k in self.bytes else 4) for k, s in enumerate(self.shapes)]
        return sum(sizes) + 4 * math.prod(self.out_shape)

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        out: dict[str, Array] = {}
        for k, shape in enumerate(self.shapes):
            x = normal(rng, shape)
            out[f"x{k}"] = np.clip(x * 40, -127, 127).astype(np.int8) if k in self.bytes else x
            if k not in self.bytes:
                x *= max(shape) ** -0.25
        return out

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        wide = [x if x.dtype == np.int8 else x.astype(np.float64) for x in arrays.values()]
        return np.asarray(self.expression(Exact, lambda x: x, *wide)).reshape(-1, self.width)[rows]


def _rms(lib: Library, x: Any) -> Any:
    return x * lib.rsqrt(lib.mean(x * x, -1, True) + EPS)


def _entropy(lib: Library, scores: Any) -> Any:
    p = lib.softmax(scores)
    return -lib.sum(p * lib.log(p), -1)


def _clip(lib: Library, scores: Any) -> Any:
    return lib.mean(lib.logsumexp(scores, 0), None) + lib.mean(lib.logsumexp(scores, 1), None)


def _row(
    name: str, expression: Expression, shapes: tuple[Shape, ...], out: Shape, products: int, **fields: Any
) -> Fused:
    return Fused(
        name=name, expression=expression, shapes=shapes, out_shape=out, products=products, wanted=0.95, **fields
    )


_GATED: tuple[Shape, ...] = ((512, 768), (768, 2048), (768, 2048))
_GATED_WORK = 512 * 768 * 2048
_WIDE: tuple[Shape, ...] = ((768, 512), (512, 768))
_WIDE_WORK = 768 * 512 * 768
_SQUARE: tuple[Shape, ...] = ((512, 512), (512, 512))
_ROWS: tuple[Shape, ...] = ((1024, 128), (1024, 128))
_ROWS_WORK = 1024 * 1024 * 128

CASES: tuple[Case, ...] = (
    _row("gate", lambda f, c, x, a, b: f.silu(c(x @ a)) * c(x @ b), _GATED, (512, 2048), 2 * _GATED_WORK),
    _row(
        "gate, down",
        lambda f, c, x, a, b, d: c(f.silu(c(x @ a)) * c(x @ b)) @ d,
        (*_GATED, (2048, 768)),
        (512, 768),
        3 * _GATED_WORK,
    ),
    _row("pad", lambda f, c, x, w: f.pad(c(x @ w)), _SQUARE, (514, 514), 512**3),
    _row(
        "pad, large",
        lambda f, c, x, w: f.pad(c(x @ w)),
        ((1024, 1024), (1024, 2048)),
        (1026, 2050),
        1024 * 1024 * 2048,
    ),
    _row("maximum of rows", lambda f, c, x, w: f.max(c(x @ w), 1), _WIDE, (768,), _WIDE_WORK),
    _row("sum of rows", lambda f, c, x, w: f.sum(c(x @ w), 1), _WIDE, (768,), _WIDE_WORK),
    _row("maximum", lambda f, c, x, w: f.max(c(x @ w), None), _WIDE, (), _WIDE_WORK),
    _row("maximum of columns", lambda f, c, x, w: f.max(c(x @ w), 0), _WIDE, (768,), _WIDE_WORK),
    _row(
        "conv1d, maximum",
        lambda f, c, x, w: f.max(c(f.conv1d(x, w)), 2),
        ((8, 64, 512), (128, 64, 5)),
        (8, 128),
        8 * 128 * 508 * 64 * 5,
    ),
    _row("sum of exp of scores", lambda f, c, x, y: f.sum(f.exp(c(x @ y.T) * 0.01), None), _ROWS, (), _ROWS_WORK),
    _row(
        "MaxSim",
        lambda f, c, x, y: f.sum(f.max(c(x @ y).reshape(64, 32, 180), 2), 1),
        ((32, 128), (64, 128, 180)),
        (64,),
        64 * 32 * 128 * 180,
    ),
    _row(
        "smoothed cross entropy",
        lambda f, c, x, y: (lambda s: f.logsumexp(s, -1) - 0.1 * f.mean(s, -1))(c(x @ y.T)),
        _ROWS,
        (1024,),
        _ROWS_WORK,
    ),
    _row("entropy of scores", lambda f, c, x, y: _entropy(f, c(x @ y.T)), _ROWS, (1024,), _ROWS_WORK),
    _row("SigLIP", lambda f, c, x, y: f.mean(f.log(1 + f.exp(c(x @ y.T))), None), _ROWS, (), _ROWS_WORK),
    _row("CLIP", lambda f, c, x, y: _clip(f, c(x @ y.T)), ((2000, 128), (2000, 128)), (), 2000 * 2000 * 128),
    _row("16 rows @ w.T", lambda f, c, x, w: x @ c(w.T), ((16, 1024), (2048, 1024)), (16, 2048), 16 * 1024 * 2048),
    _row("flip", lambda f, c, x, w: f.flip(c(x @ w)), _SQUARE, (512, 512), 512**3),
    _row(
        "flip, large",
        lambda f, c, x, w: f.flip(c(x @ w)),
        ((1024, 1024), (1024, 2048)),
        (1024, 2048),
        1024 * 1024 * 2048,
    ),
    _row(
        "factor of rows",
        lambda f, c, x, w: c(x @ w) * c(f.rsqrt(f.mean(x * x, -1, True) + EPS)),
        _GATED[:2],
        (512, 2048),
        _GATED_WORK,
    ),
    _row(
        "two products",
        lambda f, c, x, w, y, v: c(x @ w) + c(y @ v),
        (*_SQUARE, *_SQUARE),
        (512, 512),
        2 * 512**3,
    ),
    _row("RMS norm", lambda f, c, x, w: c(_rms(f, x)) @ w, _GATED[:2], (512, 2048), _GATED_WORK),
    _row("layer norm", lambda f, c, x, w: c(f.layer_norm(x)) @ w, _GATED[:2], (512, 2048), _GATED_WORK),
    _row(
        "16 rows @ int8",
        lambda f, c, x, w, s: x @ c(f.float(w) * s).T,
        ((16, 1024), (1024, 1024), (1024, 1)),
        (16, 1024),
        16 * 1024 * 1024,
        bytes=(1,),
    ),
    _row("chain", lambda f, c, x, a, b: c(f.silu(c(x @ a))) @ b, (*_SQUARE, (512, 512)), (512, 512), 2 * 512**3),
    _row(
        "attention",
        lambda f, c, q, k, v: c(f.softmax(c(q @ k.T))) @ v,
        ((1024, 64), (1024, 64), (1024, 64)),
        (1024, 64),
        2 * 1024 * 1024 * 64,
    ),
)
