"""Attention and its relatives against formulas in float64 NumPy: values, special values, shapes, dtypes, masks.

Cases are written twice, as Tensors and as arrays, by functions of a namespace of names: ``T`` for Tensors, ``np`` for
arrays would hide what is compared.  Results of many cases come from one plan, so that their kernels are compiled in
parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.cascade import cascade
from uopc.ops import Ops
from uopc.pipeline import make_plan
from uopc.runtime import num_threads
from uopc.uop import sink, toposort

Array = np.ndarray[Any, Any]
Pair = tuple[Tensor, Array]
INF = np.inf


# ---- the formulas ----


def softmax(s: Array, axis: int = -1) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(s - s.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


def exact(*arrays: Array) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


def wanted(q: Array, k: Array, v: Array, change: Callable[[Array], Array] = lambda s: s, scale: float = 0.25) -> Array:
    """softmax(change(q k' scale)) v in float64."""
    q, k, v = exact(q, k, v)
    with np.errstate(all="ignore"):
        return softmax(change(q @ np.swapaxes(k, -1, -2) * scale)) @ v


def attention(q: Any, k: Any, v: Any, change: Callable[[Tensor], Tensor] = lambda s: s, scale: float = 0.25) -> Tensor:
    q, k, v = (x if isinstance(x, Tensor) else Tensor(x) for x in (q, k, v))
    return change(q @ k.mT * scale).softmax(-1) @ v


def draw(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Multiples of 1/8 of both signs: products and sums of a few hundred are exact in float32."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.integers(-12, 13, shape) / 8).astype(dtype)


def agree(pairs: Iterable[Pair | tuple[str, Pair]], rtol: float = 4e-6) -> None:
    """Each Tensor has the values of its array: errors by the largest value; NaN and inf at the same places."""
    named = [p if isinstance(p[0], str) else (f"case {i}", p) for i, p in enumerate(pairs)]
    tensors = [t for _, (t, _) in named]
    tensors[0].realize(*tensors[1:])
    wrong = [f"{name}: {text}" for name, (t, want) in named if (text := difference(t.numpy(), want, rtol))]
    assert not wrong, "\n".join(wrong)


def difference(got: Array, want: Array, rtol: float) -> str:
    """What is wrong, or nothing."""
    if got.shape != want.shape:
        return f"shape {got.shape}, wanted {want.shape}"
    got = got.astype(np.float64)
    special = ~np.isfinite(want)
    if not np.array_equal(got[special], want[special], equal_nan=True) or not np.isfinite(got[~special]).all():
        places = np.argwhere(
            ~((got == want) | (np.isnan(got) & np.isnan(want)) | (np.isfinite(got) & np.isfinite(want)))
        )
        at = tuple(places[0])
        return f"NaN or inf elsewhere, first at {at}: {got[at]}, wanted {want[at]}"
    size = np.abs(want[~special]).max(initial=1e-30)
    error = np.abs(got[~special] - want[~special]).max(initial=0) / size
    return f"error {error:.1e} of the largest value" if error > rtol else ""


def one_pass(*tensors: Tensor, limit: int = 0) -> bool:
    """Whether each has one kernel that reads keys and values, and no temporary of more elements than ``limit``.

    What belongs to the rows or to the keys alone (a scaled operand, a norm) may be written down before.
    """
    plans = [make_plan([t.uop]) for t in tensors]
    return all(len(p.kernels) == 1 + len(p.temps) and all(n <= limit for _, n in p.temps) for p in plans)


# ---- sizes ----

SIZES = [1, 2, 3, 63, 64, 65, 1000, 1023]


def sized(n: int, m: int, d: int, e: int) -> Pair:
    q, k, v = draw(n, d), draw(m, d, seed=1), draw(m, e, seed=2)
    return attention(q, k, v, scale=d**-0.5), wanted(q, k, v, scale=d**-0.5)


def test_lengths():
    agree((str(n), sized(n, n, 16, 16)) for n in SIZES)


def test_queries_and_keys_of_other_lengths():
    agree((f"{n}, {m}", sized(n, m, 8, 8)) for n, m in [(1, 1000), (1000, 1), (3, 65), (65, 3), (64, 1023), (17, 2)])


def test_head_dimensions():
    agree(
        (f"{d}, {e}", sized(33, 70, d, e))
        for d, e in [(1, 1), (3, 3), (64, 64), (257, 257), (1, 257), (257, 1), (3, 64)]
    )


@pytest.mark.slow
def test_all_sizes():
    for d, e in [(1, 3), (3, 1), (64, 64), (257, 3), (64, 257)]:
        agree((f"{n}, {m}, {d}, {e}", sized(n, m, d, e)) for n in SIZES for m in SIZES)


def test_nothing():
    q, k, v = draw(5, 4), draw(7, 4), draw(7, 3)
    agree(
        [
            (attention(q[:0], k, v), np.zeros((0, 3))),
            (attention(q, k, v[:, :0]), np.zeros((5, 0))),
            (attention(q[:, :0], k[:, :0], v), np.broadcast_to(v.astype(np.float64).mean(0), (5, 3))),
            (uopc.scaled_dot_product_attention(q, k[:0], v[:0]), np.zeros((5, 3))),
            (
                uopc.scaled_dot_product_attention(q[:, :0], k[:, :0], v),
                np.broadcast_to(v.astype(np.float64).mean(0), (5, 3)),
            ),
            (attention(q, k[:0], v[:0]), np.zeros((5, 3))),
        ]
    )


def test_keys_and_values_of_different_length():
    q, k, v = Tensor(draw(5, 4)), Tensor(draw(7, 4)), Tensor(draw(6, 3))
    with pytest.raises(ValueError, match="7"):
        (q @ k.mT).softmax(-1) @ v
    with pytest.raises(ValueError, match=r"\(7, 4\) and \(6, 3\)"):
        uopc.scaled_dot_product_attention(q, k, v)


# ---- values ----


def rising(n: int = 40, m: int = 500) -> tuple[Array, Array, Array]:
    """Scores that rise along the keys, so that every block moves the maximum."""
    q = np.abs(draw(n, 4)) + 0.125
    k = np.repeat(np.arange(m, dtype=np.float32)[:, None] / 8, 4, axis=1)
    return q, k, draw(m, 8, seed=2)


def values() -> Iterable[tuple[str, tuple[Array, Array, Array]]]:
    q, k, v = rising()
    yield "rising", (q, k, v)
    yield "falling", (q, k[::-1].copy(), v)
    yield (
        "rises in the last key",
        (q, np.where(np.arange(500)[:, None] == 499, np.float32(50), np.float32(-50)) + 0 * k, v),
    )
    yield "equal rows", (np.ones_like(q), np.ones_like(k), v)
    yield "zeros", (np.zeros_like(q), k, v)
    yield "1e4", (q * 0 + 100, np.round(draw(500, 4, seed=3)) * 25, v)
    yield "-1e4", (q * 0 - 100, np.abs(np.round(draw(500, 4, seed=3))) * 25 + 25, v)
    yield "1e-30", (q * np.float32(1e-15), k * np.float32(1e-15), v)
    yield "huge values", (q, k / 64, v * np.float32(1e36))
    yield "tiny values", (q, k / 64, v * np.float32(1e-36))


def test_values():
    agree((name, (attention(*a), wanted(*a))) for name, a in values())


SPECIAL = [np.nan, INF, -INF]


def poisoned() -> Iterable[tuple[str, tuple[Array, Array, Array]]]:
    """NaN or an infinity in one place of an operand, early, late, and alone in its block."""
    for which, name in enumerate("qkv"):
        for bad in SPECIAL:
            for place in (0, 20) if which == 0 else (0, 131, 299):
                arrays = [draw(33, 4) + 0.0625, draw(300, 4, seed=1) + 0.0625, draw(300, 5, seed=2)]
                arrays[which][place, 2] = bad
                yield f"{bad} in {name}[{place}]", (arrays[0], arrays[1], arrays[2])


def test_nan_and_infinity_in_one_place():
    agree((name, (attention(*a), wanted(*a))) for name, a in poisoned())


def test_nan_in_a_query_stays_in_its_row():
    q, k, v = draw(33, 4), draw(300, 4, seed=1), draw(300, 5, seed=2)
    q[7, 1] = np.nan
    got = attention(q, k, v).numpy()
    assert np.isnan(got[7]).all() and not np.isnan(np.delete(got, 7, 0)).any()


# ---- masks ----

N, M = 50, 70


def masks() -> Iterable[tuple[str, Array, Callable[[Tensor, Tensor], Tensor] | None]]:
    """Which keys a row sees, as an array, and the same computed from positions (row, key) where it can be."""
    i, j = np.arange(N)[:, None], np.arange(M)[None, :]
    document = np.sort(np.random.default_rng(5).integers(0, 5, M))
    here = Tensor(document[:N].reshape(N, 1)), Tensor(document.reshape(1, M))
    yield "causal", j <= i, lambda i, j: j <= i
    yield "causal, aligned at the end", j <= i + (M - N), lambda i, j: j <= i + (M - N)
    yield "window", (j <= i) & (j > i - 9), lambda i, j: (j <= i) & (j > i - 9)
    yield "symmetric window", np.abs(i - j) < 6, lambda i, j: (i - j).abs() < 6
    yield "prefix", (j < 20) | (j <= i), lambda i, j: (j < 20) | (j <= i)
    yield "dilated", ((i - j) % 3 == 0) & (j <= i), lambda i, j: ((i - j) % 3 == 0) & (j <= i)
    yield "documents", document[:N, None] == document[None], lambda i, j: here[0] == here[1]
    yield "later keys only", j > i + 15, lambda i, j: j > i + 15
    yield "random", np.random.default_rng(6).random((N, M)) > 0.6, None
    yield "padding", np.broadcast_to(j < 41, (N, M)), None
    yield "rows of nothing", np.random.default_rng(7).random((N, M)) * (i % 4 != 1) > 0.5, None
    yield "nothing at all", np.zeros((N, M), bool), None


def positions() -> tuple[Tensor, Tensor]:
    return Tensor.arange(N).reshape(N, 1), Tensor.arange(M).reshape(1, M)


def test_boolean_masks():
    """Fully masked rows are NaN, as NumPy's are."""
    q, k, v = draw(N, 8), draw(M, 8, seed=1), draw(M, 6, seed=2)

    def case(seen: Array, mask: Tensor) -> Pair:
        return attention(q, k, v, lambda s: mask.where(s, -INF)), wanted(q, k, v, lambda s: np.where(seen, s, -INF))

    agree((name, case(seen, Tensor(np.ascontiguousarray(seen)))) for name, seen, _ in masks())
    agree((name, case(seen, made(*positions()))) for name, seen, made in masks() if made is not None)


def test_windows_as_narrow_as_a_block():
    """No tile of scores lies wholly inside such a window: the loops that were made for those never run."""
    n = 256
    q, k, v = draw(n, 8), draw(n, 8, seed=1), draw(n, 6, seed=2)
    i, j = Tensor.arange(n).reshape(n, 1), Tensor.arange(n)
    at, to = np.arange(n)[:, None], np.arange(n)[None, :]

    def case(width: int) -> Pair:
        seen = (at >= to) & (at - to < width)
        got = attention(q, k, v, lambda s: ((i >= j) & (i - j < width)).where(s, -INF))
        return got, wanted(q, k, v, lambda s: np.where(seen, s, -INF))

    agree((f"{width} keys", case(width)) for width in (1, 2, 16, 31, 32, 33, 48, 63, 64, 65, 96, 128))


def test_float_masks():
    q, k, v = draw(N, 8), draw(M, 8, seed=1), draw(M, 6, seed=2)

    def case(mask: Array) -> Pair:
        return attention(q, k, v, lambda s: s + Tensor(mask)), wanted(q, k, v, lambda s: s + row(mask))

    agree(
        (f"{name}, {low}", case(np.where(seen, 0, low).astype(np.float32)))
        for name, seen, _ in masks()
        for low in (-INF, -1e4)
        if seen.any(-1).all() or low == -INF  # float32 loses some of a score beside -1e4
    )
    # float32 absorbs a score in its smallest number: all scores of such a row are equal
    full = Tensor(np.full((N, M), np.finfo(np.float32).min, np.float32))
    agree([(attention(q, k, v, lambda s: s * 0 + full), wanted(q * 0, k, v))])


def test_masks_filled_with_the_smallest_float():
    q, k, v = draw(N, 8), draw(M, 8, seed=1), draw(M, 6, seed=2)
    least = float(np.finfo(np.float32).min)

    def case(seen: Array) -> Pair:
        mask = Tensor(np.ascontiguousarray(seen))
        want = wanted(q, k, v, lambda s: np.where(seen, s, least))
        return attention(q, k, v, lambda s: mask.where(s, least)), want

    agree((name, case(seen)) for name, seen, _ in masks())


def test_nan_in_a_key_that_a_boolean_mask_excludes():
    """The score of the key is replaced before anything sees it; the value of an excluded key is multiplied by 0."""
    q, k, v = draw(N, 8), draw(M, 8, seed=1), draw(M, 6, seed=2)
    seen = np.ones((N, M), bool)
    seen[:, 13] = False
    k[13] = np.nan
    mask = Tensor(seen)
    clean = wanted(q, np.nan_to_num(k), v, lambda s: np.where(seen, s, -INF))
    agree(
        [
            (attention(q, k, v, lambda s: mask.where(s, -INF)), clean),
            (uopc.scaled_dot_product_attention(q, k, v, mask, scale=0.25), clean),
        ]
    )
    v[13, 2] = np.nan
    want = wanted(q, k, v, lambda s: np.where(seen, s, -INF))
    assert np.isnan(want[:, 2]).all() and not np.isnan(want[:, [0, 1, 3]]).any()
    agree([(attention(q, k, v, lambda s: mask.where(s, -INF)), want)])


def test_nan_in_a_mask():
    q, k, v = draw(N, 8), draw(M, 8, seed=1), draw(M, 6, seed=2)

    def case(bad: float) -> Pair:
        mask = draw(N, M, seed=3)
        mask[17, 44] = bad
        return attention(q, k, v, lambda s: s + Tensor(mask)), wanted(q, k, v, lambda s: s + row(mask))

    agree((str(bad), case(bad)) for bad in SPECIAL)


def test_first_blocks_masked():
    """Nothing is met for several blocks; then scores far below 0, and far above."""
    n, m = 20, 900
    v = draw(m, 4, seed=2)
    cases: list[tuple[str, Pair]] = []
    for first in (300, 899, 900):
        for level in (-1000.0, 0.0, 1000.0):
            s = draw(n, 3), np.ones((m, 3), np.float32)
            seen = np.broadcast_to(np.arange(m) >= first, (n, m))
            mask = Tensor(np.ascontiguousarray(seen))
            want = exact(s[0])[0] @ exact(s[1])[0].T + level
            want = np.where(seen, want, -INF)
            scores = mask.where(Tensor(s[0]) @ Tensor(s[1]).T + level, -INF)
            top = want.max(-1)
            with np.errstate(all="ignore"):
                lse = np.log(np.exp(want - np.where(np.isfinite(top), top, 0)[:, None]).sum(-1)) + np.where(
                    np.isfinite(top), top, 0
                )
            cases.append((f"softmax {first} {level}", (scores.softmax(-1) @ Tensor(v), softmax(want) @ exact(v)[0])))
            cases.append((f"logsumexp {first} {level}", (scores.logsumexp(-1), lse)))
    agree(cases)


def test_100_000_keys():
    q, k, v = draw(2, 4), draw(100_000, 4, seed=1), draw(100_000, 3, seed=2)
    seen = np.random.default_rng(3).random((2, 100_000)) > 0.5
    mask = Tensor(seen)
    t = attention(q, k, v, lambda s: mask.where(s, -INF))
    agree([(t, wanted(q, k, v, lambda s: np.where(seen, s, -INF)))], rtol=1e-5)


# ---- expressions ----


def row(x: Array) -> Array:
    return x.astype(np.float64)


def expressions() -> Iterable[tuple[str, Pair, bool]]:
    """Name, what is compared, and whether it is one pass over the keys without a temporary."""
    n, m = 45, 130
    q, k, v, b = draw(n, 8), draw(m, 8, seed=1), draw(m, 6, seed=2), draw(n, m, seed=3)
    w, t, column = draw(m, 6, seed=4), np.abs(draw(n, 1, seed=5)) + 0.5, draw(n, 1, seed=6)
    Q, K, V, B, W, Temperature, C = (Tensor(x) for x in (q, k, v, b, w, t, column))
    Q64, K64, V64, B64, W64, T64, C64 = exact(q, k, v, b, w, t, column)
    S, s = Q @ K.T * 0.25, Q64 @ K64.T * 0.25
    slope = Tensor.arange(m).reshape(1, m) - Tensor.arange(n).reshape(n, 1)
    slope64 = np.arange(m)[None] - np.arange(n)[:, None]
    p = softmax(s)
    top, lse = s.max(-1, keepdims=True), np.log(np.exp(s).sum(-1, keepdims=True))
    M_ = S.max(-1, keepdim=True)
    E = (S - M_).exp()
    e = np.exp(s - top)
    yield "plain", (S.softmax(-1) @ V, p @ V64), True
    yield "scale on q", ((Q * 0.25 @ K.T).softmax(-1) @ V, p @ V64), True
    yield "scale on k", ((Q @ (K * 0.25).T).softmax(-1) @ V, p @ V64), True
    yield "division", ((Q @ K.T / 4.0).softmax(-1) @ V, p @ V64), True
    yield "scale as a Tensor", ((Q @ K.T * Tensor(np.float32([0.25]))).softmax(-1) @ V, p @ V64), True
    yield "division by a Tensor", ((Q @ K.T / Tensor(np.float32([4.0]))).softmax(-1) @ V, p @ V64), True
    yield "scale on the result", (S.softmax(-1) @ V * 3.0 + 1.0, p @ V64 * 3 + 1), True
    yield "temperature a row", ((S / Temperature).softmax(-1) @ V, softmax(s / T64) @ V64), True
    Et = ((S - M_) / Temperature).exp()
    et = np.exp((s - top) / T64)
    yield (
        "temperature behind the maximum",
        ((Et / Et.sum(-1, keepdim=True)) @ V, et / et.sum(-1, keepdims=True) @ V64),
        True,
    )
    yield "additive bias", ((S + B).softmax(-1) @ V, softmax(s + B64) @ V64), True
    yield "ALiBi", ((S + slope.cast("float32") * 0.0625).softmax(-1) @ V, softmax(s + slope64 * 0.0625) @ V64), True
    yield "softcap", (((S / 2.0).tanh() * 2.0).softmax(-1) @ V, softmax(np.tanh(s / 2) * 2) @ V64), True
    table, bucket = draw(32, seed=7), np.clip(slope64 + 16, 0, 31)
    position = Tensor(table)[Tensor(bucket)]
    yield "relative position bias", ((S + position).softmax(-1) @ V, softmax(s + row(table)[bucket]) @ V64), True
    full = M_.maximum(C)
    Es, es = (S - full).exp(), np.exp(s - np.maximum(top, C64))
    total, total64 = (
        Es.sum(-1, keepdim=True) + (C - full).exp(),
        es.sum(-1, keepdims=True) + np.exp(C64 - np.maximum(top, C64)),
    )
    yield "sink", (Es @ V / total, es @ V64 / total64), True
    yield "sink inside", (Es / total @ V, es / total64 @ V64), True
    yield (
        "off by one",
        (E / (E.sum(-1, keepdim=True) + (-M_).exp()) @ V, e / (e.sum(-1, keepdims=True) + np.exp(-top)) @ V64),
        True,
    )
    yield "logsumexp", (S.logsumexp(-1), lse[:, 0]), True
    yield "sum of exponentials", (E.sum(-1), e.sum(-1)), True
    yield "log_softmax", (S.log_softmax(-1), s - lse), False
    yield "softmax", (S.softmax(-1), p), False
    labels = np.arange(n) % m
    yield (
        "cross entropy",
        (S.cross_entropy(Tensor(labels)), np.asarray((lse[:, 0] - s[np.arange(n), labels]).mean())),
        False,
    )
    P = S.softmax(-1)
    yield "entropy", (-(P * P.log()).sum(-1), -(p * np.log(p)).sum(-1)), False
    yield (
        "entropy from log_softmax",
        (-(S.log_softmax(-1).exp() * S.log_softmax(-1)).sum(-1), -(p * np.log(p)).sum(-1)),
        False,
    )
    yield "two expectations", (P @ V * (P @ W), (p @ V64) * (p @ W64)), True
    yield "second moment", (P @ (V * V) - (P @ V) * (P @ V), p @ (V64 * V64) - (p @ V64) ** 2), True
    yield "log of an expectation", ((P @ (V * V + 0.5)).log(), np.log(p @ (V64 * V64 + 0.5))), True
    Q2, K2, q2, k2 = (
        Tensor(draw(n, 8, seed=8)),
        Tensor(draw(m, 8, seed=9)),
        *exact(draw(n, 8, seed=8), draw(m, 8, seed=9)),
    )
    P2, p2 = (Q2 @ K2.T * 0.25).softmax(-1), softmax(q2 @ k2.T * 0.25)
    yield "differential", ((P - 0.375 * P2) @ V, (p - 0.375 * p2) @ V64), True
    yield "differential, apart", (P @ V - 0.375 * (P2 @ V), (p - 0.375 * p2) @ V64), True
    yield "difference by rows", ((P - C * P2) @ V, (p - C64 * p2) @ V64), True
    yield "linear attention", (S @ V, s @ V64), False
    yield "sigmoid attention", (S.sigmoid() @ V, 1 / (1 + np.exp(-s)) @ V64), False
    square = S * S + 0.25
    yield (
        "normalised by a sum",
        (square / square.sum(-1, keepdim=True) @ V, (s * s + 0.25) / (s * s + 0.25).sum(-1, keepdims=True) @ V64),
        True,
    )
    root, root64 = ((S * S).mean(-1, keepdim=True) + 1e-5).sqrt(), np.sqrt((s * s).mean(-1, keepdims=True) + 1e-5)
    yield "RMSNorm of a product", (S / root @ V, s / root64 @ V64), True
    centred, centred64 = S - S.mean(-1, keepdim=True), s - s.mean(-1, keepdims=True)
    spread = (centred * centred).mean(-1, keepdim=True) + 1e-5
    spread64 = (centred64**2).mean(-1, keepdims=True) + 1e-5
    yield "LayerNorm of a product", (centred / spread.sqrt() @ V, centred64 / np.sqrt(spread64) @ V64), False
    qn, kn = Q / (Q * Q).sum(-1, keepdim=True).sqrt(), K / (K * K).sum(-1, keepdim=True).sqrt()
    qn64, kn64 = Q64 / np.sqrt((Q64**2).sum(-1, keepdims=True)), K64 / np.sqrt((K64**2).sum(-1, keepdims=True))
    yield "L2-normalised", ((qn @ kn.T * 5.0).softmax(-1) @ V, softmax(qn64 @ kn64.T * 5) @ V64), False
    low = S.min(-1, keepdim=True)
    Em, em = (low - S).exp(), np.exp(s.min(-1, keepdims=True) - s)
    yield "softmin", (Em / Em.sum(-1, keepdim=True) @ V, em / em.sum(-1, keepdims=True) @ V64), True
    two = (S - M_).exp2()
    two64 = np.exp2(s - top)
    yield "powers of two", (two / two.sum(-1, keepdim=True) @ V, two64 / two64.sum(-1, keepdims=True) @ V64), True
    yield (
        "squared weights",
        (E * E / (E * E).sum(-1, keepdim=True) @ V, e * e / (e * e).sum(-1, keepdims=True) @ V64),
        True,
    )
    yield "times the maximum", (E * M_ @ V, e * top @ V64), True
    yield "range", (M_.reshape(n) - S.min(-1), top[:, 0] - s.min(-1)), False
    # what is not of the form
    yield "sigmoid behind the maximum", ((S - M_).sigmoid() @ V, 1 / (1 + np.exp(top - s)) @ V64), False
    total = (S * S).sum(-1, keepdim=True)
    yield "tanh of a ratio", ((S / total).tanh() @ V, np.tanh(s / (s * s).sum(-1, keepdims=True)) @ V64), False
    step, step64 = S.abs().max(-1, keepdim=True) / 127, np.abs(s).max(-1, keepdims=True) / 127
    yield "clamped weights", (P.maximum(0.01) @ V, np.maximum(p, 0.01) @ V64), False
    yield "keys near the maximum", ((S > M_ - 0.5).where(S, 0.0) @ V, np.where(s > top - 0.5, s, 0) @ V64), False
    yield "softmax of a softmax", ((P * 5.0).softmax(-1) @ V, softmax(p * 5) @ V64), False
    quantised = (S / step).round() * step
    yield "quantised", (quantised @ V, np.round(s / step64) * step64 @ V64), False


def test_expressions():
    """``quantised`` divides by a rounded number: a score between two steps may fall to either side."""
    found = list(expressions())
    agree((name, pair) for name, pair, _ in found if name != "quantised")
    agree([(name, pair) for name, pair, _ in found if name == "quantised"], rtol=1e-2)


def test_what_is_one_pass():
    """One kernel over the keys, and nothing written down that is as large as the scores."""
    for name, (t, _), derived in expressions():
        assert not derived or one_pass(t, limit=130 * 8), name


def test_refused_are_not_cascades_of_their_last_sum():
    """What is refused stays a sum of its own, behind a cascade at most of what it divides by."""
    for name, (t, _), derived in expressions():
        graph = cascade(sink(t.uop))
        sums = [u for u in toposort(graph) if u.op is Ops.REDUCE and u.shape == t.shape and u.arg.op is Ops.ADD]
        if name in (
            "sigmoid behind the maximum",
            "tanh of a ratio",
            "quantised",
            "keys near the maximum",
            "clamped weights",
        ):
            assert sums and not derived, name


# ---- shapes ----


def test_ranks():
    agree((str(lead), lead_case(lead)) for lead in [(), (3,), (2, 3), (2, 1, 3), (2, 2, 1, 2)])


def lead_case(lead: tuple[int, ...]) -> Pair:
    q, k, v = draw(*lead, 21, 8), draw(*lead, 37, 8, seed=1), draw(*lead, 37, 5, seed=2)
    return attention(q, k, v), wanted(q, k, v)


def test_broadcast_of_leading_axes():
    cases = []
    for a, b, c in [((2, 1), (1, 3), (2, 3)), ((3,), (), ()), ((), (3,), (3,)), ((2, 3), (3,), (1, 1)), ((), (), (4,))]:
        q, k, v = draw(*a, 21, 8), draw(*b, 37, 8, seed=1), draw(*c, 37, 5, seed=2)
        cases.append((f"{a} {b} {c}", (attention(q, k, v), wanted(q, k, v))))
    agree(cases)


def test_heads_beside_one_another_in_memory():
    """(B, N, H, D) arrays seen as (B, H, N, D), as arrays and as Tensors; every other row; backwards."""
    q, k, v = draw(2, 21, 3, 8), draw(2, 37, 3, 8, seed=1), draw(2, 37, 3, 8, seed=2)
    want = wanted(*(x.swapaxes(1, 2) for x in (q, k, v)))
    views = [x.swapaxes(1, 2) for x in (q, k, v)]
    moved = [Tensor(x).transpose(1, 2) for x in (q, k, v)]
    back = attention(*moved).transpose(1, 2).reshape(2, 21, 24)
    far = [draw(42, 8), draw(74, 16, seed=1), draw(74, 5, seed=2)]
    odd = far[0][::2], far[1][::-2, ::2], far[2][::-2]
    agree(
        [
            ("views", (attention(*views), want)),
            ("Tensors", (attention(*moved), want)),
            ("joined heads", (back, want.swapaxes(1, 2).reshape(2, 21, 24))),
            ("strides", (attention(*odd), wanted(*odd))),
            (
                "sliced Tensors",
                (attention(Tensor(far[0])[::2], Tensor(far[1])[::-2, ::2], Tensor(far[2])[::-2]), wanted(*odd)),
            ),
        ]
    )


def test_groups_of_heads():
    q, k, v = draw(2, 8, 21, 8), draw(2, 2, 37, 8, seed=1), draw(2, 2, 37, 5, seed=2)
    want = wanted(q, np.repeat(k, 4, 1), np.repeat(v, 4, 1))
    seen = np.random.default_rng(1).random((2, 8, 21, 37)) > 0.3
    masked = wanted(q, np.repeat(k, 4, 1), np.repeat(v, 4, 1), lambda s: np.where(seen, s, -INF))
    assert one_pass(uopc.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    grouped = Tensor(q).reshape(2, 2, 4, 21, 8)
    shared = [Tensor(x).reshape(2, 2, 1, 37, x.shape[-1]) for x in (k, v)]
    whole = uopc.scaled_dot_product_attention(q, k, v, scale=0.25, enable_gqa=True)
    agree(
        [
            (whole, want),
            (uopc.scaled_dot_product_attention(q, k, v, seen, scale=0.25, enable_gqa=True), masked),
            (attention(grouped, *shared).reshape(2, 8, 21, 5), want),
        ]
    )


def test_softmax_over_another_axis():
    q, k = draw(31, 8), draw(47, 8, seed=1)
    Q, K, Q64, K64 = Tensor(q), Tensor(k), *exact(q, k)
    u, v = draw(31, 5, seed=2), draw(5, 31, seed=3)
    s, p = Q @ K.T * 0.25, softmax(Q64 @ K64.T * 0.25, 0)
    cube, cube64 = Tensor(draw(3, 31, 47)), exact(draw(3, 31, 47))[0]
    agree(
        [
            ("columns", (s.softmax(0).T @ Tensor(u), p.T @ u)),
            ("columns on the right", (Tensor(v) @ s.softmax(0), v @ p)),
            ("first of three", (cube.softmax(0), softmax(cube64, 0))),
            (
                "middle of three",
                (cube.softmax(1).transpose(1, 2) @ Tensor(u), np.swapaxes(softmax(cube64, 1), 1, 2) @ u),
            ),
        ]
    )


def test_decode():
    cases = []
    for lead, m in [((), 300), ((3, 4), 1000), ((1,), 65), ((2,), 1)]:
        q, k, v = draw(*lead, 1, 64), draw(*lead, m, 64, seed=1), draw(*lead, m, 64, seed=2)
        cases.append((f"{lead} {m}", (attention(q, k, v, scale=0.125), wanted(q, k, v, scale=0.125))))
    agree(cases)


def test_two_layers():
    """The first layer's result is what the second one's keys are made of; each is a cascade."""
    x, w = draw(40, 16), [draw(16, 16, seed=s) / 4 for s in range(6)]
    X, x64 = Tensor(x), exact(x)[0]
    for a in (0, 3):
        q, k, v = (X @ Tensor(w[a + b]) for b in range(3))
        X = attention(q, k, v) + X
        q64, k64, v64 = (x64 @ exact(w[a + b])[0] for b in range(3))
        x64 = wanted(q64, k64, v64) + x64
    assert sum(u.op is Ops.CASCADE for u in toposort(cascade(sink(X.uop)))) == 2
    agree([(X, x64)], rtol=2e-5)


# ---- the library function ----


def test_scaled_dot_product_attention():
    q, k, v = draw(2, 3, 40, 8), draw(2, 3, 40, 8, seed=1), draw(2, 3, 40, 8, seed=2)
    rng = np.random.default_rng(4)
    seen = rng.random((40, 40)) > 0.5
    seen[[3, 30]] = False
    added = np.where(seen, draw(40, 40, seed=5), -INF).astype(np.float32)
    dead = np.zeros((40, 1), bool)
    dead[[3, 30]] = True
    lower = np.tril(np.ones((40, 40), bool))
    sdpa = uopc.scaled_dot_product_attention
    agree(
        [
            ("plain", (sdpa(q, k, v), wanted(q, k, v, scale=8**-0.5))),
            ("scale", (sdpa(q, k, v, scale=2.0), wanted(q, k, v, scale=2.0))),
            ("causal", (sdpa(q, k, v, is_causal=True), wanted(q, k, v, lambda s: np.where(lower, s, -INF), 8**-0.5))),
            (
                "bool",
                (sdpa(q, k, v, seen), np.where(dead, 0, wanted(q, k, v, lambda s: np.where(seen, s, -INF), 8**-0.5))),
            ),
            (
                "float",
                (sdpa(q, k, v, added), np.where(dead, 0, wanted(q, k, v, lambda s: s + exact(added)[0], 8**-0.5))),
            ),
        ]
    )


# ---- dtypes ----


@pytest.mark.parametrize(
    "dtype, rtol", [("float16", 2e-3), ("bfloat16", 1.6e-2), ("float32", 4e-6), ("float64", 1e-13)]
)
def test_dtypes(dtype, rtol):
    q, k, v = draw(45, 16), draw(130, 16, seed=1), draw(130, 6, seed=2)
    lower = np.tril(np.ones((45, 130), bool))
    Q, K, V = (Tensor(x).cast(dtype) for x in (q, k, v))
    causal = Tensor.arange(130).reshape(1, 130) <= Tensor.arange(45).reshape(45, 1)
    plain = (Q @ K.T * 0.25).softmax(-1) @ V
    assert plain.dtype.name == dtype
    agree(
        [
            ("plain", (plain.cast("float64"), wanted(q, k, v))),
            (
                "causal",
                (
                    attention(Q, K, V, lambda s: causal.where(s, -INF)).cast("float64"),
                    wanted(q, k, v, lambda s: np.where(lower, s, -INF)),
                ),
            ),
            ("function", (uopc.scaled_dot_product_attention(Q, K, V, scale=0.25).cast("float64"), wanted(q, k, v))),
            (
                "logsumexp",
                ((Q @ K.T * 0.25).logsumexp(-1).cast("float64"), np.log(np.exp(row(q) @ row(k).T * 0.25).sum(-1))),
            ),
        ],
        rtol,
    )


def test_many_keys_in_halves():
    """A sum of 70,000 weights is more than a float16 holds, and less than one step of a bfloat16 above it."""
    q, k, v = np.zeros((2, 4), np.float32), draw(70_000, 4, seed=1), draw(70_000, 3, seed=2) + 1
    for dtype, rtol in (("float16", 2e-3), ("bfloat16", 1.6e-2)):
        Q, K, V = (Tensor(x).cast(dtype) for x in (q, k, v))
        agree([(((Q @ K.T).softmax(-1) @ V).cast("float32"), wanted(q, k, v))], rtol)


# ---- the same bits ----


def test_same_bits_for_any_number_of_threads():
    q, k, v = draw(3, 130, 32), draw(3, 257, 32, seed=1), draw(3, 257, 32, seed=2)
    results = []
    for n in (1, 2, 3):
        with num_threads(n):
            results.append([attention(q, k, v).numpy(), attention(q[:, :1], k, v).numpy()])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert np.array_equal(a.view(np.uint32), b.view(np.uint32))
