"""Parts: few rows share a long axis out among threads, and the states of the parts are merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from uopc import Tensor, num_threads
from uopc.cascade import cascade, known
from uopc.cascade.derivation import Anchor
from uopc.cascade.parts import parts_of
from uopc.ops import Ops
from uopc.pipeline import make_plan
from uopc.uop import sink, toposort

Array = np.ndarray[Any, Any]
INF = np.inf


def draw(*shape: int, seed: int = 0) -> Array:
    """Multiples of 1/8: sums of products of them are exact."""
    return (np.random.default_rng([seed, *shape]).integers(-12, 13, shape) / 8).astype(np.float32)


def exact(*arrays: Array) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


def softmax(s: Array) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def operands(m: int, *lead: int, n: int = 1, d: int = 16, e: int = 8) -> list[Array]:
    return [draw(*lead, n, d), draw(*lead, m, d, seed=1), draw(*lead, m, e, seed=2)]


def parts(t: Tensor) -> list[int]:
    """How many elements of its axis each cascade of a graph runs over."""
    nodes = [u for u in toposort(cascade(sink(t.uop))) if u.op is Ops.CASCADE]
    return [u.src[0].shape[u.arg.components[0].axis] for u in nodes]


def test_how_many_parts():
    """Enough for many threads, long enough to be worth a merge, and a divisor of the length if one is near."""
    assert parts_of((1,), 65536) == 64 and parts_of((1,), 8192) == 8
    assert parts_of((1,), 2047) == 1 and parts_of((1,), 2048) == 2
    assert parts_of((12, 1), 65536) == 4 and parts_of((15, 1), 65536) == 4 and parts_of((16, 1), 65536) == 1
    assert parts_of((64,), 65536) == 32 and parts_of((512,), 65536) == 1  # 2 blocks of rows, 16
    assert parts_of((1,), 60000) == 50 and parts_of((1,), 5003) == 4
    assert parts_of((0,), 65536) == 1 and parts_of((), 4096) == 4


def test_two_kernels_and_no_temporary_of_the_axis():
    q, k, v = map(Tensor, operands(8192))
    plan = make_plan([((q @ k.T).softmax(-1) @ v).uop])
    assert len(plan.kernels) == 2 and sum(n for _, n in plan.temps) == 8 * (1 + 1 + 8)
    q, k, v = map(Tensor, operands(8192, n=512))
    assert len(make_plan([((q @ k.T).softmax(-1) @ v).uop]).kernels) == 1


def test_what_parts_do_not_divide_is_a_part_by_itself():
    for m, lengths in ((8192, [1024]), (5003, [3, 1250]), (1000, [1000])):
        q, k, v = map(Tensor, operands(m))
        assert sorted(parts((q @ k.T).softmax(-1) @ v)) == lengths


def cases() -> Iterator[tuple[str, list[tuple[Tensor, Array]]]]:
    """Expressions of few rows over long axes, each with its float64 value."""
    for m in (4096, 5003, 8192):
        for lead, n in (((), 1), ((2,), 1), ((2, 3), 1), ((), 3), ((), 9), ((2,), 40)):
            q, k, v = operands(m, *lead, n=n)
            S, s = Tensor(q) @ Tensor(k).mT * 0.25, np.matmul(*exact(q, np.swapaxes(k, -1, -2))) * 0.25
            yield f"{m} {lead} {n}", [(S.softmax(-1) @ Tensor(v), softmax(s) @ exact(v)[0])]
    q, k, v = operands(4096)
    S, s = Tensor(q) @ Tensor(k).T * 0.25, np.matmul(*exact(q, k.T)) * 0.25
    V, v64 = Tensor(v), exact(v)[0]
    top = s.max(-1)
    lse = np.log(np.exp(s - top[:, None]).sum(-1)) + top
    yield "with its log-sum-exp", [(S.softmax(-1) @ V, softmax(s) @ v64), (S.logsumexp(-1), lse)]
    yield "log-sum-exp alone", [(S.logsumexp(-1), lse)]
    yield "several values", [(S.softmax(-1) @ Tensor(w), softmax(s) @ exact(w)[0]) for w in (v, draw(4096, 3))]
    yield "normed", [((S / S.abs().sum(-1, keepdim=True)) @ V, s / np.abs(s).sum() @ v64)]
    yield (
        "two",
        [((S.softmax(-1) - 0.5 * (S * 0.5).softmax(-1)) @ V, (softmax(s) - 0.5 * softmax(s * 0.5)) @ v64)],
    )
    sink_ = S.max(-1, keepdim=True).maximum(0.0)
    e, top0 = (S - sink_).exp(), np.maximum(s.max(-1, keepdims=True), 0)
    e64 = np.exp(s - top0)
    yield (
        "sink",
        [
            (
                e @ V / (e.sum(-1, keepdim=True) + (-sink_).exp()),
                e64 @ v64 / (e64.sum(-1, keepdims=True) + np.exp(-top0)),
            )
        ],
    )
    for name, seen in (
        ("first keys", np.arange(4096) < 700),
        ("last key", np.arange(4096) == 4095),
        ("nothing", np.zeros(4096, bool)),
        ("every third", np.arange(4096) % 3 == 0),
    ):
        masked = np.where(seen, s, -INF)
        yield f"boolean mask, {name}", [(Tensor(seen).where(S, -INF).softmax(-1) @ V, softmax(masked) @ v64)]
        bias = np.where(seen, 0, -INF).astype(np.float32)
        yield f"added mask, {name}", [((S + Tensor(bias)).softmax(-1) @ V, softmax(masked) @ v64)]
        yield (
            f"by position, {name}",
            [
                (
                    (Tensor.arange(4096) < 700).where(S, -INF).softmax(-1) @ V,
                    softmax(np.where(np.arange(4096) < 700, s, -INF)) @ v64,
                )
            ],
        )
    early = np.where(np.arange(4096) < 700, s, -INF)
    yield "by position", [((Tensor.arange(4096) < 700).where(S, -INF).softmax(-1) @ V, softmax(early) @ v64)]
    for bad in (np.nan, INF, -INF):
        for place in (0, 2000, 4095):
            k2 = k.copy()
            k2[place, 0] = bad
            with np.errstate(all="ignore"):
                s2 = np.matmul(*exact(q, k2.T)) * 0.25
                yield f"{bad} in key {place}", [((Tensor(q) @ Tensor(k2).T * 0.25).softmax(-1) @ V, softmax(s2) @ v64)]
    heads = [np.ascontiguousarray(np.swapaxes(x, 0, 1)) for x in operands(4096, 3)]
    Q, K, W = (Tensor(x).transpose(0, 1) for x in heads)
    q3, k3, v3 = exact(*operands(4096, 3))
    yield "views", [((Q @ K.mT * 0.25).softmax(-1) @ W, softmax(q3 @ np.swapaxes(k3, -1, -2) * 0.25) @ v3)]
    nothing = [Tensor(x) for x in operands(4096, d=0)]
    yield (
        "no dimension",
        [((nothing[0] @ nothing[1].T).softmax(-1) @ nothing[2], exact(operands(4096)[2])[0].mean(0)[None])],
    )
    group = Tensor(draw(2, 4, 1, 16)), Tensor(draw(2, 1, 4096, 16, seed=1)), Tensor(draw(2, 1, 4096, 8, seed=2))
    g = [x.numpy().astype(np.float64) for x in group]
    yield (
        "groups of heads",
        [((group[0] @ group[1].mT).softmax(-1) @ group[2], softmax(g[0] @ np.swapaxes(g[1], -1, -2)) @ g[2])],
    )


def test_values():
    named = [(name, t, want) for name, pairs in cases() for t, want in pairs]
    named[0][1].realize(*(t for _, t, _ in named[1:]))
    for name, t, want in named:
        np.testing.assert_allclose(t.numpy(), want, rtol=4e-6, atol=4e-6, err_msg=name)


@pytest.mark.parametrize("dtype, near", [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-13)])
def test_dtypes(dtype, near):
    q, k, v = operands(4099)
    Q, K, V = (Tensor(x).cast(dtype) for x in (q, k, v))
    want = softmax(np.matmul(*exact(q, k.T)) * 0.25) @ exact(v)[0]
    got = ((Q @ K.T * 0.25).softmax(-1) @ V).cast("float64").numpy()
    np.testing.assert_allclose(got, want, rtol=near, atol=near)


@pytest.mark.parametrize("m", [4096, 5003])
def test_threads_change_no_bit(m):
    q, k, v = (np.random.default_rng(m).standard_normal((m, 16)).astype(np.float32) for _ in range(3))
    outs = []
    for threads in (1, 2, 3):
        with num_threads(threads):
            outs.append(((Tensor(q[:1]) @ Tensor(k).T).softmax(-1) @ Tensor(v)).numpy())
    assert outs[0].tobytes() == outs[1].tobytes() == outs[2].tobytes()


def test_an_axis_that_is_merged_with_another_has_no_blocks():
    """Scores of keys in two axes that a reshape makes one of: a tile has no such index, and they are written down."""
    q, k, v = Tensor(draw(1, 16)), Tensor(draw(64, 64, 16, seed=1)), Tensor(draw(4096, 8, seed=2))
    s = (k * q.reshape(1, 1, 16)).sum(-1).reshape(1, 4096)
    t = s.softmax(-1) @ v
    assert parts(t) == []
    q64, k64, v64 = exact(draw(1, 16), draw(64, 64, 16, seed=1), draw(4096, 8, seed=2))
    np.testing.assert_allclose(t.numpy(), softmax(q64 @ k64.reshape(4096, 16).T) @ v64, rtol=4e-6, atol=4e-6)


def test_a_merge_without_corrections_is_caught(monkeypatch):
    """Parts of one block each: what is wrong is wrong in the merge alone."""
    monkeypatch.setattr(known, "holds", lambda frame, pieces: True)
    true = Anchor.correction
    monkeypatch.setattr(Anchor, "correction", lambda self, old, new: true(self, old, new) * 0.0 + 1.0)
    q, k, v = operands(2050)
    s = np.matmul(*exact(q, k.T))
    t = (Tensor(q) @ Tensor(k).T).softmax(-1) @ Tensor(v)
    assert not np.allclose(t.numpy(), softmax(s) @ exact(v)[0], rtol=1e-3)


def test_layers_in_parts_do_not_repeat_the_layers_before():
    """What a query is computed from is the same for all parts: it is spread over them, not computed in each."""

    def nodes(layers: int) -> int:
        x = Tensor(draw(1, 16))
        for k in range(layers):
            x = (x @ Tensor(draw(16, 16, seed=k)) @ Tensor(draw(4096, 16, seed=k)).T).softmax(-1)
            x = x @ Tensor(draw(4096, 16, seed=k + 9))
        return len(toposort(cascade(sink(x.uop))))

    assert nodes(6) - nodes(4) == nodes(4) - nodes(2) > 0
