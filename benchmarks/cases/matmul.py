"""Matrix products of the sizes that matter, and a convolution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cases.base import Array, Case, Shape, normal

BALANCE = 6  # operations a byte from memory, of the machines at hand: below it, reading takes longer than computing


@dataclass(frozen=True, kw_only=True)
class Matmul(Case):
    """a @ b, of two matrices or two equal batches of them."""

    a: Shape
    b: Shape
    dtype: str = "float32"

    @property
    def limit(self) -> str:
        if self.flops < BALANCE * self.moved:
            return "read"
        return "fma bfloat16" if self.dtype == "bfloat16" else "fma"

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.out_shape) * self.a[-1]

    @property
    def moved(self) -> int:
        size = 2 if self.dtype == "bfloat16" else 4
        return size * (math.prod(self.a) + math.prod(self.b) + math.prod(self.out_shape))

    @property
    def out_shape(self) -> Shape:
        return (*self.a[:-1], self.b[-1])

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        return {"a": normal(rng, self.a, self.dtype), "b": normal(rng, self.b, self.dtype)}

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        a, b = arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)
        flat = a.reshape(-1, a.shape[-1])[rows]
        if b.ndim == 2:
            return flat @ b
        batches = b.reshape(-1, *b.shape[-2:])
        return np.stack([x @ batches[row // self.a[-2]] for x, row in zip(flat, rows)])


@dataclass(frozen=True, kw_only=True)
class Conv2d(Case):
    """A 3 x 3 convolution with padding 1: (batch, channels, side, side) in and out."""

    batch: int
    channels: int
    side: int

    limit = "fma"

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.out_shape) * self.channels * 9

    @property
    def moved(self) -> int:
        return 4 * (2 * math.prod(self.out_shape) + self.channels**2 * 9)

    @property
    def out_shape(self) -> Shape:
        return (self.batch, self.channels, self.side, self.side)

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        return {"x": normal(rng, self.out_shape), "w": normal(rng, (self.channels, self.channels, 3, 3))}

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        x = np.pad(arrays["x"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        w = arrays["w"].astype(np.float64)
        out = []
        for row in rows:
            image, channel, y = np.unravel_index(row, self.out_shape[:3])
            window = x[image, :, y : y + 3]
            taps = [np.einsum("ck,ckw->w", w[channel, :, :, i], window[:, :, i : i + self.side]) for i in range(3)]
            out.append(sum(taps))
        return np.stack(out)


def _square(n: int, share: float | None = None, dtype: str = "float32") -> Matmul:
    return Matmul(name=f"{n}^3", a=(n, n), b=(n, n), dtype=dtype, share=share)


def _product(a: Shape, b: Shape, wanted: float = 1.0, share: float | None = None) -> Matmul:
    name = " @ ".join("x".join(map(str, shape)) for shape in (a, b))
    return Matmul(name=name, a=a, b=b, wanted=wanted, share=share)


CASES: tuple[Case, ...] = (
    *(_square(n) for n in (64, 128, 256)),
    *(_square(n, share=0.85) for n in (512, 1024, 2048, 1000)),
    _product((1023, 1025), (1025, 1027), share=0.85),
    _square(130),
    _product((2048, 64), (64, 2048)),
    _product((4096, 64), (64, 4096)),
    _product((16, 4096), (4096, 4096)),
    _product((64, 128, 64), (64, 64, 128)),
    _product((17, 33), (33, 65)),
    _product((1, 4096), (4096, 4096), wanted=0.95),
    _product((4, 4096), (4096, 1024), wanted=0.95),
    Matmul(name="bf16 1024^3", a=(1024, 1024), b=(1024, 1024), dtype="bfloat16", peers=("torch",)),
    Conv2d(name="conv2d 3x3 64ch 56x56 batch 8", batch=8, channels=64, side=56, wanted=0.7, peers=("torch",)),
)
