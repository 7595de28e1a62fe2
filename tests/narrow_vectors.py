"""Results with vectors of 32 or 16 bytes on a machine that may have wider ones; run by test_vectors.py.

CC="gcc -mno-avx512f" python tests/narrow_vectors.py 32
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import erf
from typing import Any

import numpy as np

from uopc import Tensor, pipeline
from uopc.runtime.device import host
from uopc.target import Feature

rng = np.random.default_rng(0)
vectorized_erf = np.vectorize(erf, otypes=[float])


def draw(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cases() -> dict[str, tuple[Any, Any, float]]:
    """By name: what uopc computes, what NumPy computes in float64, and how far they may be apart."""
    q, k, v, x = draw(67, 33), draw(101, 33), draw(101, 17), draw(37, 259)
    wide, seen = [a.astype(np.float64) for a in (q, k, v, x)], rng.random((67, 101)) < 0.7
    bits = rng.integers(-1000, 1000, (37, 259))
    Q, K, V, X = map(Tensor, (q, k, v, x))
    scores = wide[0] @ wide[1].T / 7
    half = x.astype(np.float16)
    return {
        "attention": ((Q @ K.T / 7).softmax(-1) @ V, softmax(scores) @ wide[2], 1e-5),
        "masked": (
            Tensor(seen).where(Q @ K.T / 7, -np.inf).softmax(-1) @ V,
            softmax(np.where(seen, scores, -np.inf)) @ wide[2],
            1e-5,
        ),
        "softmax": (X.softmax(-1), softmax(wide[3]), 1e-6),
        "product": (X.T @ X, wide[3].T @ wide[3], 1e-4),
        "product of float64": (Tensor(wide[3]) @ Tensor(wide[3]).T, wide[3] @ wide[3].T, 1e-11),
        "product of halves": (Tensor(half) @ Tensor(half).T, half.astype(np.float64) @ half.T.astype(np.float64), 0.5),
        "bfloat16": (X.cast("bfloat16").cast("float32"), wide[3], 0.02),
        "sums": (X.sum(0) + X[:, 0].sum(), wide[3].sum(0) + wide[3][:, 0].sum(), 1e-4),
        "variance": (X.var(-1), wide[3].var(-1, ddof=1), 1e-5),
        "functions": (
            X.exp() + X.erf() + X.tanh() + X.abs().log() + X.sin() + (X * 0.1).exp2(),
            np.exp(wide[3]) + vectorized_erf(wide[3]) + np.tanh(wide[3]) + np.log(np.abs(wide[3])) + np.sin(wide[3])
            + np.exp2(wide[3] * 0.1),
            2e-5,
        ),
        "integers": (
            Tensor(bits) // 7 * 3 + Tensor(bits) % 5 - (Tensor(bits) >> 2),
            bits // 7 * 3 + bits % 5 - (bits >> 2),
            0,
        ),
        "maxima": (
            X.argmax(-1) + X.maximum(0.5).min(-1).floor(),
            wide[3].argmax(-1) + np.floor(np.maximum(wide[3], 0.5).min(-1)),
            0,
        ),
        "prefix sums": (X.cumsum(-1), wide[3].cumsum(-1), 1e-4),
        "chosen": (Tensor(seen).where(Q @ K.T, 2.0).flip(0).T, np.where(seen, wide[0] @ wide[1].T, 2.0)[::-1].T, 1e-4),
    }  # fmt: skip


def main(vector_bytes: int) -> None:
    machine = host().narrowed(vector_bytes)
    machine = replace(machine, features=machine.features - {Feature.BF16_DOT})
    pipeline.host = lambda: machine  # type: ignore[attr-defined]
    for name, (tensor, expected, tolerance) in cases().items():
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=0, atol=tolerance, err_msg=name)
    lanes = {u.dtype.itemsize for made in pipeline._kernels.values() for u in made.linear.src if u.dtype.count > 1}
    assert max(lanes) >= vector_bytes, "no vector is as wide as the machine's"


if __name__ == "__main__":
    main(int(sys.argv[1]))
