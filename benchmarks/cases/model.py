"""Whole forward passes: layers of language models, where everything is computed in one plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cases.base import Array, Case, Shape, normal

EPS = 1e-5
Weights = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Model(Case):
    """Decoder layers on rows that are embedded already, and the product with the words at the end.

    form: "gpt" (layer norms, biases, gelu) or "gated" (RMS norms, no biases, a gated unit, as Llama has it).
    """

    form: str
    positions: int
    layers: int = 4
    channels: int = 768
    heads: int = 12
    words: int = 8192

    @property
    def hidden(self) -> int:
        return 4 * self.channels if self.form == "gpt" else 2 * self.channels

    @property
    def head(self) -> int:
        return self.channels // self.heads

    @property
    def limit(self) -> str:
        return "fma"

    @property
    def flops(self) -> int:
        """Products alone; attention is causal, and half of its scores count."""
        n, w = self.positions, self.channels
        inner = (2 if self.form == "gpt" else 3) * w * self.hidden
        layer = 2 * n * (4 * w * w + inner) + 2 * n * n * w
        return self.layers * layer + 2 * n * w * self.words

    @property
    def moved(self) -> int:
        return 4 * (sum(math.prod(s) for s in self.shapes().values()) + math.prod(self.out_shape))

    @property
    def out_shape(self) -> Shape:
        return (self.positions, self.words)

    @property
    def scratch(self) -> int:
        return 4 * self.heads * self.positions**2

    def shapes(self) -> dict[str, Shape]:
        """Of every input: x, the words, and the weights of each layer, named with its number."""
        w, h = self.channels, self.hidden
        one: dict[str, Shape] = {"norm1": (w,), "qkv": (w, 3 * w), "project": (w, w), "norm2": (w,)}
        one.update({"up": (w, h), "down": (h, w)})
        if self.form == "gpt":
            one.update({"bias1": (w,), "qkv_bias": (3 * w,), "project_bias": (w,), "bias2": (w,)})
            one.update({"up_bias": (h,), "down_bias": (w,)})
        else:
            one["gate"] = (w, h)
        out: dict[str, Shape] = {"x": (self.positions, w), "words": (w, self.words)}
        return {**out, **{f"{name}_{k}": shape for k in range(self.layers) for name, shape in one.items()}}

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        out = {name: normal(rng, shape) for name, shape in self.shapes().items()}
        for name, x in out.items():
            if name != "x":
                x *= x.shape[0] ** -0.5 if x.ndim == 2 else 0.1
            if name.startswith("norm"):
                x += 1
        return out

    def of_layers(self, named: dict[str, Array]) -> Iterator[Weights]:
        """The weights of each layer, by their names without its number."""
        for k in range(self.layers):
            end = f"_{k}"
            yield {name.removesuffix(end): x for name, x in named.items() if name.endswith(end)}

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        wide = {name: x.astype(np.float64) for name, x in arrays.items()}
        x = wide["x"]
        for layer in self.of_layers(wide):
            x = x + self._attention(self._norm(x, layer, 1), layer)
            x = x + self._inner(self._norm(x, layer, 2), layer)
        return x[rows] @ wide["words"]

    def _norm(self, x: Array, layer: Weights, which: int) -> Array:
        if self.form == "gpt":
            x = x - x.mean(-1, keepdims=True)
        out = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * layer[f"norm{which}"]
        return out + layer.get(f"bias{which}", 0.0)

    def _attention(self, x: Array, layer: Weights) -> Array:
        n = self.positions
        qkv = (x @ layer["qkv"] + layer.get("qkv_bias", 0.0)).reshape(n, 3, self.heads, self.head)
        q, k, v = qkv.transpose(1, 2, 0, 3)
        scores = np.where(np.tri(n, dtype=bool), q @ k.transpose(0, 2, 1) * self.head**-0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return mixed.transpose(1, 0, 2).reshape(n, self.channels) @ layer["project"] + layer.get("project_bias", 0.0)

    def _inner(self, x: Array, layer: Weights) -> Array:
        up = x @ layer["up"] + layer.get("up_bias", 0.0)
        if self.form == "gpt":
            inner = 0.5 * up * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
        else:
            gate = x @ layer["gate"]
            inner = gate / (1 + np.exp(-gate)) * up
        return inner @ layer["down"] + layer.get("down_bias", 0.0)


CASES: tuple[Case, ...] = (
    Model(name="gpt 128", form="gpt", positions=128),
    Model(name="gpt 512", form="gpt", positions=512),
    Model(name="gated 128", form="gated", positions=128),
    Model(name="gated 512", form="gated", positions=512),
)
