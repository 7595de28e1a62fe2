"""Attention in all the forms that uopc is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cases.base import Array, Case, Shape, normal

SOFTCAP = 20.0
NO_PAIR = -math.inf


@dataclass(frozen=True, kw_only=True)
class Attention(Case):
    """softmax(mask(q k^T / sqrt(d))) v, of arrays (batch, heads, n, d), or (n, d) where there is one head.

    keys: how many there are, n by default.  kv_heads: for k and v, ``heads`` by default.
    form: "plain"; "causal"; "window" (causal, and no further back than ``window``); "alibi" (a slope for each head
    times the distance); "softcap" (tanh(score / 20) * 20); "bias" (an array (heads, n, keys) is added); "padding" (an
    array of booleans (batch, 1, 1, keys) says which keys exist); "documents" (an array of booleans (n, keys): rows and
    keys are texts of ``window`` one after another, and see their own).
    heads_inside: the arrays are (batch, n, heads, d), seen as (batch, heads, n, d).
    fused: whether uopc may; where not, it runs with ``fuse_reduce=False``.
    """

    n: int
    d: int = 64
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0
    keys: int = 0
    form: str = "plain"
    window: int = 0
    dtype: str = "float32"
    heads_inside: bool = False
    fused: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.keys or self.n)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)

    @property
    def flat(self) -> bool:
        """One head: arrays are (n, d)."""
        return self.batch == self.heads == 1

    @property
    def decode(self) -> bool:
        return self.n == 1

    @property
    def scale(self) -> float:
        return self.d**-0.5

    @property
    def limit(self) -> str:
        return "read" if self.decode else "fma bfloat16" if self.dtype == "bfloat16" else "fma"

    @property
    def pairs(self) -> int:
        """Scores that count, of all heads and batches."""
        if self.form == "causal":
            per_head = self.n * (self.n + 1) // 2
        elif self.form == "window":
            per_head = sum(min(i + 1, self.window) for i in range(self.n))
        elif self.form == "padding":
            return int(self.valid_keys().sum()) * self.heads * self.n
        elif self.form == "documents":
            per_head = int(self.same_document().sum())
        else:
            per_head = self.n * self.keys
        return self.batch * self.heads * per_head

    @property
    def flops(self) -> int:
        return 4 * self.pairs * self.d

    @property
    def moved(self) -> int:
        size = 2 if self.dtype == "bfloat16" else 4
        queries = 2 * self.heads * self.n
        extra = 4 * self.heads * self.n * self.keys if self.form == "bias" else 0
        return size * self.batch * (queries + 2 * self.kv_heads * self.keys) * self.d + extra

    @property
    def scratch(self) -> int:
        return 4 * self.batch * self.heads * self.n * self.keys

    @property
    def out_shape(self) -> Shape:
        return (self.n, self.d) if self.flat else (self.batch, self.heads, self.n, self.d)

    def arrays(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        out = {}
        for name, heads, n in (
            ("q", self.heads, self.n),
            ("k", self.kv_heads, self.keys),
            ("v", self.kv_heads, self.keys),
        ):
            shape = (self.batch, n, heads, self.d) if self.heads_inside else (self.batch, heads, n, self.d)
            out[name] = normal(rng, (n, self.d) if self.flat else shape, self.dtype)
        if self.form == "bias":
            out["mask"] = normal(rng, (self.heads, self.n, self.keys))
        elif self.form == "padding":
            out["mask"] = self.valid_keys().reshape(self.batch, 1, 1, self.keys)
        elif self.form == "documents":
            out["mask"] = self.same_document()
        elif self.form == "alibi":
            out["slopes"] = self.slopes()
        return out

    def slopes(self) -> Array:
        """ALiBi's: a geometric sequence over the heads (Press et al. 2022)."""
        return np.array([2.0 ** (-8.0 * (h + 1) / self.heads) for h in range(self.heads)], np.float32)

    def valid_keys(self) -> Array:
        """(batch, keys): each sequence of the batch is a quarter shorter than the one before."""
        lengths = [max(1, self.keys - b * self.keys // 4) for b in range(self.batch)]
        return np.arange(self.keys) < np.array(lengths)[:, None]

    def same_document(self) -> Array:
        """(n, keys)."""
        return np.arange(self.n)[:, None] // self.window == np.arange(self.keys) // self.window

    def dense_mask(self, arrays: dict[str, Array]) -> Array | None:
        """The mask as an array, for libraries that know no other: booleans (what is seen) or floats (to be added)."""
        if self.form in ("bias", "padding", "documents"):
            return arrays["mask"]
        i, j = np.arange(self.n)[:, None], np.arange(self.keys)
        if self.form == "causal":
            return i >= j
        if self.form == "window":
            return (i >= j) & (i - j < self.window)
        if self.form == "alibi":
            return arrays["slopes"][:, None, None] * (j - i).astype(np.float32)
        return None

    def exact(self, arrays: dict[str, Array], rows: Array) -> Array:
        q, k, v = (self._by_heads(arrays[name]) for name in "qkv")
        mask = self.dense_mask(arrays) if self.form in ("bias", "padding") else None
        out = []
        for row in rows:
            b, h, i = np.unravel_index(row, (self.batch, self.heads, self.n))
            shared = h // (self.heads // self.kv_heads)
            scores = k[b, shared].astype(np.float64) @ q[b, h, i].astype(np.float64) * self.scale
            scores = self._masked(scores, int(h), int(i), mask[b, 0, 0] if self.form == "padding" else mask)
            p = np.exp(scores - scores.max())
            out.append(p @ v[b, shared].astype(np.float64) / p.sum())
        return np.stack(out)

    def _by_heads(self, x: Array) -> Array:
        x = x.reshape(1, 1, *x.shape) if x.ndim == 2 else x
        return x.transpose(0, 2, 1, 3) if self.heads_inside else x

    def _masked(self, scores: Array, h: int, i: int, mask: Array | None) -> Array:
        """One row of scores."""
        j = np.arange(self.keys)
        if self.form == "softcap":
            return SOFTCAP * np.tanh(scores / SOFTCAP)
        if self.form == "alibi":
            return scores + self.slopes()[h].astype(np.float64) * (j - i)
        if mask is not None:
            return np.where(mask, scores, NO_PAIR) if mask.dtype == bool else scores + mask[h, i]
        if self.form == "causal":
            return np.where(j <= i, scores, NO_PAIR)
        if self.form == "documents":
            return np.where(j // self.window == i // self.window, scores, NO_PAIR)
        if self.form == "window":
            return np.where((j <= i) & (i - j < self.window), scores, NO_PAIR)
        return scores


def _head(n: int, **fields: object) -> Attention:
    """One head."""
    d = fields.get("d", 64)
    kind = "bf16 " if fields.get("dtype") == "bfloat16" else ""
    name = f"{kind}N={n}" + (f" D={d}" if d != 64 or kind else "")
    return Attention(name=name, n=n, **fields)  # type: ignore[arg-type]


def _heads(name: str, **fields: object) -> Attention:
    """Twelve heads of 1024 queries each, if ``fields`` do not say otherwise."""
    return Attention(name=name, **{"heads": 12, "n": 1024, "wanted": 1.15, **fields})  # type: ignore[arg-type]


BF16_PEERS = ("torch sdpa", "torch unfused", "torch.compile", "torch flex")

CASES: tuple[Attention, ...] = (
    *(_head(n, wanted=1.05) for n in (128, 256, 512, 1000, 1024)),
    *(_head(n, wanted=1.15, share=0.85) for n in (2048, 4096, 8192, 16384)),
    *(_head(2048, d=d, wanted=1.15, share=0.80 if d == 32 else 0.85) for d in (32, 128, 256)),
    _heads("(1, 12, 1024, 64)"),
    _heads("(8, 12, 512, 64)", batch=8, n=512),
    _heads("(1, 16, 128, 64)", heads=16, n=128),
    _heads("GQA 32/8 N=1024", heads=32, kv_heads=8),
    *(Attention(name=f"causal N={n}", n=n, form="causal", wanted=1.7) for n in (1000, 1024, 2048, 4096)),
    _heads("causal (1, 12, 1024, 64)", form="causal", wanted=1.7),
    Attention(name="window 256 N=4096", n=4096, form="window", window=256, wanted=1.3, peers=("torch flex",)),
    _heads("ALiBi (1, 12, 1024, 64)", form="alibi", wanted=1.25),
    _heads("softcap (1, 12, 1024, 64)", form="softcap", wanted=1.25),
    _heads("additive mask (1, 12, 1024, 64)", form="bias", wanted=1.25),
    _heads("padding mask (2, 12, 1024, 64)", batch=2, form="padding", wanted=1.25),
    _heads("documents (1, 12, 1024, 64)", form="documents", window=160, wanted=1.25),
    Attention(name="decode 1 head 65536 keys", n=1, keys=65536, wanted=1.2),
    Attention(name="decode 12 heads 4096 keys", heads=12, n=1, keys=4096, wanted=1.2),
    Attention(name="decode 12 heads 65536 keys", heads=12, n=1, keys=65536, wanted=1.2),
    Attention(name="decode GQA 32/8 4096 keys", heads=32, kv_heads=8, n=1, keys=4096, wanted=1.2),
    _heads("view of (1, 1024, 12, 64)", heads_inside=True),
    *(_head(2048, d=d, dtype="bfloat16", wanted=1.8, peers=BF16_PEERS) for d in (64, 128)),
    *(
        Attention(name=f"unfused N={n}", n=n, wanted=1.0, fused=False, peers=("torch unfused",))
        for n in (1024, 2048)
    ),
)  # fmt: skip
