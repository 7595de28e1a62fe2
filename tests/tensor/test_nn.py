"""Normalisation, loss and attention against their definitions in float64, with the corners of PyTorch's behaviour."""

from __future__ import annotations

import numpy as np
import pytest
from tensors import FLOATS, bf16, same, sample

import uopc
from uopc import Tensor, dtypes
from uopc.ops import Ops

WIDE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-12}


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5, axes=(-1,)):
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps) * weight + bias


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(dtype):
    x, w, b = sample(dtype, (2, 3, 8)), sample(dtype, (8,), 1), sample(dtype, (8,), 2)
    t = Tensor(x)
    same(t.layer_norm(), layer_norm(x).astype(dtype), WIDE[dtype])
    same(t.layer_norm(8, w, b, 1e-3), layer_norm(x, w, b, 1e-3).astype(dtype), WIDE[dtype])
    same(
        t.layer_norm((3, 8), weight=Tensor(sample(dtype, (3, 8), 3))),
        layer_norm(x, sample(dtype, (3, 8), 3), axes=(1, 2)).astype(dtype),
        WIDE[dtype],
    )
    shifted = (sample("float32", (4, 64)) + 1e4).astype(np.float32)
    same(Tensor(shifted).layer_norm(), layer_norm(shifted).astype(np.float32), 1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype):
    x, w = sample(dtype, (2, 8)), sample(dtype, (8,), 1)
    wide = x.astype(np.float64)
    rms = np.sqrt((wide**2).mean(-1, keepdims=True) + np.finfo(dtype).eps)
    same(Tensor(x).rms_norm(weight=w), (wide / rms * w).astype(dtype), WIDE[dtype])
    same(
        Tensor(x).rms_norm((8,), eps=1e-3),
        (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)).astype(dtype),
        WIDE[dtype],
    )
    assert Tensor(x).bfloat16().rms_norm().dtype is dtypes.bfloat16


def test_normalisation_refusals():
    t = Tensor.zeros(2, 8)
    for attempt, message in (
        (lambda: t.layer_norm(7), r"over \(7,\): the last sizes of shape \(2, 8\) differ"),
        (lambda: t.layer_norm(()), "differ"),
        (lambda: t.layer_norm(weight=Tensor.zeros(7)), r"weight has shape \(7,\), and \(8,\) is normalised"),
        (lambda: t.rms_norm((4, 2, 8)), "differ"),
        (lambda: Tensor(1.0).layer_norm(), "0-d"),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()


# ---- cross entropy ----


def log_softmax(x, axis):
    x = x.astype(np.float64)
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy(dtype):
    x = sample(dtype, (5, 7))
    y = np.array([0, 6, -100, 3, 2])
    logp = log_softmax(x, 1)
    each = np.where(y < 0, 0, -logp[np.arange(5), np.maximum(y, 0)])
    t, wide = Tensor(x), WIDE[dtype]
    same(t.cross_entropy(Tensor(y)), np.asarray(each.sum() / 4).astype(dtype), wide)
    same(t.cross_entropy(y, reduction="sum"), np.asarray(each.sum()).astype(dtype), wide)
    same(t.cross_entropy(y, reduction="none"), each.astype(dtype), wide)
    smooth = np.where(y < 0, 0, 0.9 * each - 0.1 * logp.mean(1))
    same(t.cross_entropy(y, label_smoothing=0.1), np.asarray(smooth.sum() / 4).astype(dtype), wide)
    same(t[0].cross_entropy(np.array(3)), np.asarray(-logp[0, 3]).astype(dtype), wide)
    ignored = np.where(y == 6, 3, y)
    expected = np.where(ignored == 3, 0, -logp[np.arange(5), np.where(ignored == -100, 0, ignored)])
    expected[2] = -logp[2, 1]
    ignored[2] = 1
    same(t.cross_entropy(ignored, ignore_index=3), np.asarray(expected.sum() / 3).astype(dtype), wide)


def test_cross_entropy_of_more_axes_and_of_probabilities():
    x = sample("float32", (2, 4, 3))
    y = np.array([[0, 3, 1], [2, 2, 0]])
    logp = log_softmax(x, 1)
    each = -np.take_along_axis(logp, y[:, None], 1)[:, 0]
    same(Tensor(x).cross_entropy(Tensor(y) + 0, reduction="none"), each.astype(np.float32), 1e-5)
    p = np.exp(log_softmax(sample("float32", (2, 4, 3), 1), 1)).astype(np.float32)
    full = -(logp * p).sum(1)
    same(Tensor(x).cross_entropy(p), np.asarray(full.mean()).astype(np.float32), 1e-5)
    smooth = -(logp * (0.8 * p + 0.2 / 4)).sum(1)
    same(
        Tensor(x).cross_entropy(Tensor(p), label_smoothing=0.2, reduction="sum"),
        np.asarray(smooth.sum()).astype(np.float32),
        1e-5,
    )


def test_cross_entropy_where_everything_is_ignored():
    assert np.isnan(Tensor(sample("float32", (2, 3))).cross_entropy(np.array([-100, -100])).item())


def test_cross_entropy_refusals():
    t = Tensor.zeros(2, 3)
    for attempt, error, message in (
        (lambda: t.cross_entropy([0, 3]), IndexError, "class 3 does not exist.* 3 classes"),
        (lambda: t.cross_entropy([0, -1]), IndexError, "class -1"),
        (
            lambda: t.cross_entropy([0, 1, 2]),
            ValueError,
            r"classes of shape \(3,\) for logits of shape \(2, 3\): \(2,\) is needed",
        ),
        (lambda: t.cross_entropy(Tensor.zeros(2)), ValueError, "probabilities of shape"),
        (lambda: t.cross_entropy([True, False]), TypeError, "integer classes"),
        (lambda: t.cross_entropy([0, 1], reduction="median"), ValueError, "'median'"),
        (lambda: Tensor(1.0).cross_entropy([0]), ValueError, "0-d"),
        (lambda: t.cross_entropy("a"), TypeError, "integer classes"),
    ):
        with pytest.raises(error, match=message):
            attempt()


# ---- attention ----


def attention(q, k, v, mask=None, causal=False, scale=None):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = np.tril(np.ones(s.shape[-2:], bool))
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(m), 0, m))
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1, total) @ v


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(dtype):
    q, k, v = sample(dtype, (2, 3, 5, 4)), sample(dtype, (2, 3, 7, 4), 1), sample(dtype, (2, 3, 7, 6), 2)
    t, wide = [Tensor(x) for x in (q, k, v)], 5 * WIDE[dtype]
    same(t[0].scaled_dot_product_attention(t[1], t[2]), attention(q, k, v).astype(dtype), wide)
    same(
        t[0].scaled_dot_product_attention(t[1], t[2], is_causal=True),
        attention(q, k, v, causal=True).astype(dtype),
        wide,
    )
    same(uopc.scaled_dot_product_attention(*t, scale=0.3), attention(q, k, v, scale=0.3).astype(dtype), wide)
    same(
        uopc.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
        attention(q[0, 0], k[0, 0], v[0, 0]).astype(dtype),
        wide,
    )
    added = sample(dtype, (5, 7), 3)
    same(uopc.scaled_dot_product_attention(*t, attn_mask=added), attention(q, k, v, added).astype(dtype), wide)
    same(uopc.scaled_dot_product_attention(t[0], t[1][0, :1], t[2]), attention(q, k[0, :1], v).astype(dtype), wide)


def test_attention_of_rows_in_which_nothing_takes_part():
    q, k, v = sample("float32", (1, 2, 3, 4)), sample("float32", (1, 2, 5, 4), 1), sample("float32", (1, 2, 5, 4), 2)
    mask = np.random.default_rng(0).integers(0, 2, (2, 3, 5)).astype(bool)
    mask[0, 1], mask[1, 2] = False, False
    expected = attention(q, k, v, mask).astype(np.float32)
    same(uopc.scaled_dot_product_attention(q, k, v, mask), expected, 1e-5)
    assert (expected[0, 0, 1] == 0).all()
    same(uopc.scaled_dot_product_attention(q, k, v, np.where(mask, np.float32(0), np.float32(-np.inf))), expected, 1e-5)
    same(uopc.scaled_dot_product_attention(q, k, v, np.zeros((1, 5), bool)), np.zeros_like(q))
    assert np.isnan(uopc.scaled_dot_product_attention(q * np.nan, k, v, mask).numpy()[0, 0, 0]).all()
    nobody = uopc.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0])
    same(nobody, np.zeros((1, 2, 3, 4), np.float32))


def test_grouped_queries_copy_nothing():
    q, k, v = sample("float32", (2, 6, 3, 4)), sample("float32", (2, 2, 5, 4), 1), sample("float32", (2, 2, 5, 4), 2)
    kk, vv = (np.repeat(x, 3, 1) for x in (k, v))
    mask = np.random.default_rng(0).integers(0, 2, (2, 6, 3, 5)).astype(bool)
    same(uopc.scaled_dot_product_attention(q, k, v, enable_gqa=True), attention(q, kk, vv).astype(np.float32), 1e-5)
    same(
        uopc.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        attention(q, kk, vv, causal=True).astype(np.float32),
        1e-5,
    )
    for m in (mask, mask[0, 0], mask[:, :1], mask[0]):
        same(
            uopc.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
            attention(q, kk, vv, m).astype(np.float32),
            1e-5,
        )
    graph = uopc.scaled_dot_product_attention(q, k, v, enable_gqa=True).uop.toposort()
    assert not [u for u in graph if u.op in (Ops.STAGE, Ops.CAT, Ops.STACK, Ops.GATHER)]


def test_causal_masks_are_index_expressions():
    u = uopc.scaled_dot_product_attention(
        Tensor.empty(8, 4), Tensor.empty(8, 4), Tensor.empty(8, 4), is_causal=True
    ).uop
    assert sum(x.op is Ops.BUFFER for x in u.toposort()) == 3
    assert sum(x.op is Ops.REDUCE for x in u.toposort()) == 4


def test_attention_in_bfloat16():
    q, k, v = (bf16(sample("float32", (2, 5, 8), i)) for i in range(3))
    made = uopc.scaled_dot_product_attention(*[Tensor(x).bfloat16() for x in (q, k, v)])
    assert made.dtype is dtypes.bfloat16
    np.testing.assert_allclose(made.numpy(), attention(q, k, v), rtol=2e-2, atol=2e-2)


def test_attention_refusals():
    q, k = Tensor.zeros(2, 4, 8), Tensor.zeros(2, 5, 8)
    sdpa = uopc.scaled_dot_product_attention
    for attempt, error, message in (
        (lambda: sdpa(q, Tensor.zeros(2, 5, 7), k), ValueError, r"\(2, 4, 8\), \(2, 5, 7\) and \(2, 5, 8\)"),
        (lambda: sdpa(q, k, Tensor.zeros(2, 6, 8)), ValueError, r"\(\.\.\., S, V\)"),
        (lambda: sdpa(Tensor.zeros(8), k, k), ValueError, r"\(8,\)"),
        (lambda: sdpa(q, k, k, dropout_p=0.1), ValueError, "dropout_p=0.1"),
        (lambda: sdpa(q, k, k, Tensor.ones(4, 5, dtype="bool"), is_causal=True), ValueError, "beside is_causal"),
        (lambda: sdpa(q, k, k, Tensor.ones(4, 5, dtype="int8")), TypeError, "attn_mask is bool or float, not int8"),
        (lambda: sdpa(q, k, k, Tensor.zeros(4, 4)), ValueError, "broadcast"),
        (lambda: sdpa(q, k, k, Tensor.zeros(3, 2, 4, 5)), ValueError, "does not broadcast to scores"),
        (lambda: sdpa(q.long(), k.long(), k.long()), TypeError, "int64"),
        (lambda: sdpa(q, None, k), TypeError, "query, key and value"),
        (lambda: sdpa(q[:, None], k[:, None], k[:, None].expand(2, 3, 5, 8), enable_gqa=True), ValueError, "multiple"),
        (
            lambda: sdpa(Tensor.zeros(3, 4, 8), Tensor.zeros(2, 5, 8), Tensor.zeros(2, 5, 8), enable_gqa=True),
            ValueError,
            "multiple",
        ),
    ):
        with pytest.raises(error, match=message):
            attempt()
    with pytest.raises(TypeError, match="attn_mask is a bool or float Tensor or array, not bool"):
        sdpa(q, k, k, True)
