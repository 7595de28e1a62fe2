"""Cascades over bfloat16 in dot products of pairs: what a block computes, and how close attention comes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fixed import CompileFor
from test_dots import ROUNDED, brain, draw, machine, ops_of, plan

import uopc
from uopc import Tensor
from uopc.count import products, times
from uopc.dtype import bfloat16_to_float32, float32_to_bfloat16
from uopc.ops import Ops
from uopc.pipeline import Plan
from uopc.runtime import Program, num_threads

assert machine  # a fixture


def dot_products(made: Plan) -> int:
    """Multiplications of bfloat16 in pairs, of one run."""
    return sum(2 * n * u.dtype.count for k in made.kernels for u, n in times(k.linear).items() if u.op is Ops.DOT2)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    return mask(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    s = q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    s = s if seen is None else np.where(seen, s, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.asarray(p / p.sum(-1, keepdims=True) @ v)


def close(got: Tensor, wanted: np.ndarray, v: np.ndarray) -> None:
    """Weights and the result are rounded to bfloat16, each once."""
    np.testing.assert_allclose(got.numpy(), wanted, rtol=ROUNDED, atol=ROUNDED * float(np.nanmax(np.abs(v))))


# ---- structure -------------------------------------------------------------------------------------------------------


def test_scores_and_values_are_multiplied_in_pairs_each_once(compile_for: CompileFor) -> None:
    n, d = 256, 64
    (q, _), (k, _), (v, _) = (draw(n, d, seed=s) for s in range(3))
    made = plan(attention(q, k, v), compile_for)
    assert len(made.kernels) == 1 and not made.temps
    assert dot_products(made) == 2 * n * n * d
    assert products(made.kernels[0].linear, (1, 2, 3)) == 0, "nothing is multiplied one by one"


def test_without_the_instruction_there_are_no_pairs(compile_for: CompileFor) -> None:
    (q, _), (k, _), (v, _) = (draw(256, 64, seed=s) for s in range(3))
    assert not {Ops.DOT2, Ops.PAIR} & ops_of(plan(attention(q, k, v), compile_for, dots=False))


def test_keys_that_a_mask_excludes_are_not_visited(compile_for: CompileFor) -> None:
    n, d = 512, 64
    (q, _), (k, _), (v, _) = (draw(n, d, seed=s) for s in range(3))
    seen = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
    made = plan(attention(q, k, v, lambda s: seen.where(s, -np.inf)), compile_for)
    assert dot_products(made) <= 0.65 * 2 * n * n * d


def test_weights_that_nothing_rounds_are_multiplied_as_they_are(compile_for: CompileFor) -> None:
    """A softmax in float32 of scores in bfloat16: only the scores are dot products."""
    n, d = 256, 64
    (q, _), (k, _), (v, _) = (draw(n, d, seed=s) for s in range(3))
    scores = (q @ k.T).cast("float32")
    assert dot_products(plan(scores.softmax(-1) @ v.cast("float32"), compile_for)) == n * n * d


# ---- values ----------------------------------------------------------------------------------------------------------

SHAPES = [
    ((64,), 64, 64, 64), ((1000,), 1023, 64, 64), ((100,), 63, 32, 48), ((2, 3, 70), 130, 64, 64),
    ((33,), 1025, 128, 96), ((1,), 300, 64, 64), ((50,), 200, 63, 17), ((40,), 16, 16, 1), ((40,), 2047, 64, 64),
    ((40,), 15, 15, 15), ((3, 200), 66, 80, 5), ((64,), 1, 64, 64), ((8,), 640, 33, 257),
]  # fmt: skip


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("rows, keys, d, width", SHAPES)
def test_attention(rows: tuple[int, ...], keys: int, d: int, width: int) -> None:
    lead = rows[:-1]
    (q, Q), (k, K), (v, V) = draw(*rows, d), draw(*lead, keys, d, seed=1), draw(*lead, keys, width, seed=2)
    close(attention(q, k, v), exact(Q, K, V), V)
    lower = np.tril(np.ones((rows[-1], keys), bool))
    causal = Tensor.arange(keys).reshape(1, keys) <= Tensor.arange(rows[-1]).reshape(rows[-1], 1)
    close(attention(q, k, v, lambda s: causal.where(s, -np.inf)), exact(Q, K, V, lower), V)


@pytest.mark.usefixtures("machine")
def test_operands_that_lie_the_other_way_round() -> None:
    (q, Q), (k, K), (v, V) = (draw(200, 64, seed=s) for s in range(3))
    wanted = exact(Q, K, V)
    for a, b, c in [(brain(Q.T).T, k, v), (q, brain(K.T).T, v), (q, k, brain(V.T).T)]:
        close(attention(a, b, c), wanted, V)


@pytest.mark.usefixtures("machine")
def test_heads_that_share_keys_and_arrays_with_heads_inside() -> None:
    (q, Q), (k, K), (v, V) = draw(8, 96, 64), draw(2, 130, 64, seed=1), draw(2, 130, 64, seed=2)
    shared = [x.reshape(2, 1, 130, 64).expand(2, 4, 130, 64).reshape(8, 130, 64) for x in (k, v)]
    close(attention(q, *shared), exact(Q, np.repeat(K, 4, 0), np.repeat(V, 4, 0)), V)
    (x, X), (y, Y), (z, Z) = (draw(2, 70, 3, 64, seed=s) for s in range(3))
    inside = [t.permute(0, 2, 1, 3) for t in (x, y, z)]
    close(attention(*inside), exact(*(A.transpose(0, 2, 1, 3) for A in (X, Y, Z))), Z)


@pytest.mark.usefixtures("machine")
def test_masks_and_rows_without_keys() -> None:
    (q, Q), (k, K), (v, V) = (draw(100, 64, seed=s) for s in range(3))
    seen = np.random.default_rng(5).random((100, 100)) < 0.7
    seen[17] = False
    wanted = exact(Q, K, V, seen)
    got = attention(q, k, v, lambda s: Tensor(seen).where(s, -np.inf))
    assert np.isnan(got.numpy()[17]).all()
    close(got, wanted, V)
    zeros = uopc.scaled_dot_product_attention(q, k, v, Tensor(seen))
    close(zeros, np.where(np.isnan(wanted), 0, wanted), V)


@pytest.mark.usefixtures("machine")
def test_nan_and_infinities_stay_where_they_are() -> None:
    Q, K, V = (draw(80, 64, seed=s)[1] for s in range(3))
    Q[3, 5], V[9, 7], V[11, 8] = np.nan, np.nan, np.inf
    wanted = exact(Q, K, V)
    got = attention(brain(Q), brain(K), brain(V)).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))


@pytest.mark.usefixtures("machine")
def test_large_scores_and_a_maximum_that_moves_late() -> None:
    (q, Q), (_, K), (v, V) = (draw(64, 64, seed=s) for s in range(3))
    K *= np.linspace(1, 60, 64)[:, None]
    k = brain(K)
    close(attention(q, k, v), exact(Q, k.numpy().astype(np.float64), V), V)


def test_pairs_are_no_less_exact_than_single_steps(compile_for: CompileFor) -> None:
    """The weights are rounded to bfloat16 either way: the graph says so."""
    n, d = 512, 64
    (q, Q), (k, K), (v, V) = (draw(n, d, seed=s) for s in range(3))
    wanted, errors = exact(Q, K, V), []
    bits = [float32_to_bfloat16(x.astype(np.float32)) for x in (Q, K, V)]
    for dots in (False, True):
        (kernel,) = plan(attention(q, k, v), compile_for, dots).kernels
        out = np.zeros((n, d), np.uint16)
        Program(kernel.source, kernel.name)(out, *bits)
        errors.append(float(np.sqrt(np.mean((bfloat16_to_float32(out) - wanted) ** 2))))
    assert errors[0] != errors[1] and errors[1] <= 1.05 * errors[0]


@pytest.mark.usefixtures("machine")
def test_any_number_of_threads_gives_the_same_bits() -> None:
    (q, _), (k, _), (v, _) = (draw(3, 130, 64, seed=s) for s in range(3))
    seen = []
    for threads in (1, 2, 3):
        with num_threads(threads):
            seen.append(attention(q, k, v).numpy().tobytes())
    assert len(set(seen)) == 1
