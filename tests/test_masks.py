"""Masks in memory: blocks in which they exclude everything are not computed, and that changes no bit of any result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fixed import MACHINE, targets

from uopc import Tensor, num_threads, pipeline
from uopc.blockize import blockize
from uopc.blockize.conditions import conditions
from uopc.count import reads_memory
from uopc.inspect.recompute import instrumented, marked_kernel
from uopc.ops import Ops
from uopc.options import Options
from uopc.pipeline import make_plan, settings_for
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.runtime.device import host
from uopc.uop import UOp, dtypes, toposort

Array = np.ndarray[Any, Any]
INF = np.inf
N, M, D = 96, 512, 16
BLOCK = 128  # of keys; a block of the kernel is as long or shorter


def draw(*shape: int, seed: int = 0) -> Array:
    """Multiples of 1/8: sums of products of them are exact."""
    return (np.random.default_rng([seed, *shape]).integers(-12, 13, shape) / 8).astype(np.float32)


def attention(change: Callable[[Tensor], Tensor], v: Array | None = None, k: Array | None = None) -> Tensor:
    k, v = draw(M, D, seed=1) if k is None else k, draw(M, 8, seed=2) if v is None else v
    return change(Tensor(draw(N, D)) @ Tensor(k).T * 0.25).softmax(-1) @ Tensor(v)


def wanted(change: Callable[[Array], Array]) -> Array:
    q, k, v = (x.astype(np.float64) for x in (draw(N, D), draw(M, D, seed=1), draw(M, 8, seed=2)))
    with np.errstate(all="ignore"):
        s = change(q @ k.T * 0.25)
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v


def masks() -> Iterator[tuple[str, Array]]:
    """Which of ``M`` keys each of ``N`` rows sees."""
    i, j = np.arange(N)[:, None], np.arange(M)[None]
    every = np.ones((N, M), bool)
    yield "everything", every
    yield "nothing", ~every
    yield "the first key", every & (j == 0)
    yield "the last key", every & (j == M - 1)
    yield "every other block", every & (j // BLOCK % 2 == 1)
    yield "documents", j // 100 == i // 19
    yield "rows without keys", every & (i // 8 % 3 != 1) & (j > 300)
    yield "one key a row", j == i * 5
    yield "keys of late rows", every & ((i > 80) | (j > 500))


def ways(seen: Array) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Callable[[Array], Array]]]:
    """A mask in memory, as a Tensor would be masked and as NumPy would."""
    bias = np.where(seen, draw(N, M, seed=5), -INF).astype(np.float32)
    mask = Tensor(seen)
    yield "where", lambda s: mask.where(s, -INF), lambda s: np.where(seen, s, -INF)
    yield "masked_fill", lambda s: s.masked_fill(Tensor(~seen), -INF), lambda s: np.where(seen, s, -INF)
    yield "added", lambda s: s + Tensor(bias), lambda s: s + bias
    yield "added in halves", lambda s: s + Tensor(bias).half().float(), lambda s: s + bias
    yield "added, scaled", lambda s: (s + Tensor(bias)) * 0.5, lambda s: (s + bias) * 0.5
    yield "logarithm", lambda s: s + mask.float().log(), lambda s: np.where(seen, s, -INF)
    yield "both", lambda s: mask.where(s + Tensor(bias), -INF), lambda s: s + bias
    keys = seen[:1].copy()
    yield "of keys alone", lambda s: Tensor(keys).where(s, -INF), lambda s: np.where(keys, s, -INF)


@pytest.mark.parametrize("name, seen", list(masks()), ids=[name for name, _ in masks()])
def test_values(name, seen):
    """NumPy's, NaN in rows that see nothing included."""
    cases = [(way, attention(change), wanted(exact)) for way, change, exact in ways(seen)]
    tensors = [t for _, t, _ in cases]
    tensors[0].realize(*tensors[1:])
    for way, t, want in cases:
        np.testing.assert_allclose(t.numpy(), want, rtol=2e-6, atol=2e-6, err_msg=f"{name}, {way}")


def test_powers_of_weights_under_the_smallest_float():
    """A row in which nothing else counts: the smallest float has no multiple for an exponent."""
    i, j = np.arange(N)[:, None], np.arange(M)[None]
    least = float(np.finfo(np.float32).min)
    s = np.where(j <= 3 * i, -INF, least)
    s[1, 0] = 1.5
    zeros = Tensor(draw(N, D)) @ Tensor(np.zeros((M, D), np.float32)).T
    p = (zeros + Tensor(s.astype(np.float32))).softmax(-1)
    e = np.exp(s - s.max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose((p * p).sum(-1).numpy(), (want**2).sum(-1), rtol=4e-6)
    np.testing.assert_allclose((p * p * p).sum(-1).numpy(), (want**3).sum(-1), rtol=4e-6)


def test_only_what_rows_and_keys_index_is_turned():
    """An operand of the scores lies along the keys, as a mask may, but its other axis is that of the dot products."""
    q, k, u = draw(33, 3), draw(33, 63, seed=1), draw(3, 3, seed=2)
    s = q.T.astype(np.float64) @ k
    e = np.exp(s - s.max(0))
    for dtype, near in (("float32", 2e-6), ("float64", 1e-12)):
        Q, K, U = (Tensor(x).cast(dtype) for x in (q, k, u))
        got = (U @ (Q.T @ K).softmax(0)).numpy()
        np.testing.assert_allclose(got, u @ (e / e.sum(0)), rtol=near, atol=near)


# ---- what is looked at ----


def looks(t: Tensor) -> int:
    """How many loops of a plan run as often as memory says."""
    linears = [kernel.linear for kernel in make_plan([t.uop]).kernels]
    return sum(u.op is Ops.RANGE and reads_memory(u.src[0]) for linear in linears for u in linear.src)


def test_masks_in_memory_are_looked_at():
    seen = np.ones((N, M), bool)
    for way, change, _ in ways(seen):
        assert looks(attention(change)) == 1, way
    documents = Tensor(np.zeros((N, 1), np.int64)), Tensor(np.zeros((1, M), np.int64))
    assert looks(attention(lambda s: (documents[0] == documents[1]).where(s, -INF))) == 1
    length = Tensor(np.int64([[100]]))
    assert looks(attention(lambda s: (Tensor.arange(M) < length).where(s, -INF))) == 1


def test_keys_of_one_query_are_looked_at_in_parts():
    """Where one block could hold them all."""
    seen = np.arange(1000) < 100
    k, v = draw(1000, D, seed=1), draw(1000, 8, seed=2)
    v[300:] = np.nan
    t = Tensor(seen).where(Tensor(draw(1, D)) @ Tensor(k).T, -INF).softmax(-1) @ Tensor(v)
    assert looks(t) == 1 and not np.isnan(t.numpy()).any()
    cache = Tensor(np.zeros((2, 1, D), np.float32)), Tensor(np.zeros((2, 4096, D), np.float32))
    length = Tensor(np.int64([[100], [3000]])).reshape(2, 1, 1)
    s = (Tensor.arange(4096).reshape(1, 1, 4096) < length).where(cache[0] @ cache[1].mT, -INF)
    assert looks(s.softmax(-1) @ cache[1]) == 1


def test_what_excludes_nothing_or_bounds_the_loop_is_not_looked_at():
    i, j = Tensor.arange(N).reshape(N, 1), Tensor.arange(M).reshape(1, M)
    seen = Tensor(np.ones((N, M), bool))
    least = float(np.finfo(np.float32).min)
    assert looks(attention(lambda s: s)) == 0
    assert looks(attention(lambda s: (j <= i).where(s, -INF))) == 0
    assert looks(attention(lambda s: s + (j <= i).where(0.0, -INF))) == 0
    assert looks(attention(lambda s: seen.where(s, least))) == 0  # counts where a row has nothing else
    assert looks(attention(lambda s: seen.where(s, 0.0))) == 0
    assert looks(attention(lambda s: s * Tensor(draw(N, M)))) == 0
    # a division for each pair is dearer than what it saves
    assert looks(attention(lambda s: ((i - j) % 3 == 0).where(s, -INF))) == 0


def test_a_mask_by_positions_that_is_no_bound_is_looked_at():
    """The first keys are seen by all rows: no single comparison."""
    i, j = Tensor.arange(N).reshape(N, 1), Tensor.arange(M).reshape(1, M)
    t = attention(lambda s: ((j < 20) | (j <= i)).where(s, -INF))
    (kernel,) = make_plan([t.uop]).kernels
    assert sum(u.op is Ops.RANGE and u.vmax == 0 for u in kernel.linear.src) >= 1
    rows, keys = np.arange(N)[:, None], np.arange(M)
    want = wanted(lambda s: np.where((keys < 20) | (keys <= rows), s, -INF))
    np.testing.assert_allclose(t.numpy(), want, rtol=2e-6, atol=2e-6)


@targets(MACHINE)
def test_an_added_mask_by_positions_bounds_the_loop(target):
    """As one that chooses does: the same blocks are left out.  It holds for blocks of keys that are shorter than the
    rows see, as 32 KB of L1 make them: a longer one is the only one, and its loop has a constant end."""
    i, j = Tensor.arange(N).reshape(N, 1), Tensor.arange(M).reshape(1, M)
    chosen = make_plan([attention(lambda s: (j <= i).where(s, -INF)).uop])
    added = make_plan([attention(lambda s: s + (j <= i).where(0.0, -INF)).uop])
    ends = [
        {u.src[0] for k in p.kernels for u in k.linear.src if u.op is Ops.RANGE and u.src[0].op is not Ops.CONST}
        for p in (chosen, added)
    ]
    assert ends[0] and ends[0] <= ends[1]


# ---- what is not computed ----


def run(source: str, name: str, seen: Array, *more: Array) -> Array:
    """The output of a kernel of attention with a boolean mask in memory; ``more``: arrays behind its own, written
    too."""
    out = np.zeros((N, 8), np.float32)
    Program(source, name, outputs=(0, *range(5, 5 + len(more))))(
        out, seen, draw(N, D), draw(M, D, seed=1), draw(M, 8, seed=2), *more
    )
    return out


def masked(seen: Array) -> pipeline.Kernel:
    (kernel,) = make_plan([attention(lambda s: Tensor(seen).where(s, -INF)).uop]).kernels
    return kernel


def scores_computed(seen: Array) -> int:
    """How many scores attention with a boolean mask in memory computes, counted while it runs."""
    kernel = masked(seen)
    marked, _, linear = marked_kernel(kernel.root, settings_for(Options()))
    slots = list(marked.marks)
    (maximum,) = [k for k, slot in enumerate(slots) if marked.marks[slot][0] == "max"]
    source = render_c(instrumented(linear, slots, max(slots) + 1), kernel.name)
    counters = np.zeros(len(slots), np.int64)
    with num_threads(1):
        run(source, kernel.name, seen, *(np.zeros(1, np.float32) for _ in slots), counters)
    return int(counters[maximum])


def scores_of_blocks(seen: Array) -> int:
    """How many scores those blocks have in which a row sees a key."""
    (node,) = [u for u in toposort(blockize(masked(seen).root, host())) if u.op is Ops.CASCADE]
    (rows,), keys = node.arg.components[0].tile.extents, node.arg.block
    assert N % rows == M % keys == 0
    return rows * keys * int(seen.reshape(N // rows, rows, M // keys, keys).any((1, 3)).sum())


@pytest.mark.parametrize("name, seen", list(masks()), ids=[name for name, _ in masks()])
def test_blocks_that_a_mask_excludes_are_not_computed(name, seen):
    assert scores_computed(seen) == scores_of_blocks(seen)


def test_blocks_left_out_change_no_bit(monkeypatch):
    """The kernel with tests and the one without give the same bits."""
    for name, seen in masks():
        outs = []
        for tested in (True, False):
            monkeypatch.setattr(pipeline, "_kernels", {})
            if not tested:
                monkeypatch.setattr(sys.modules["uopc.blockize.limits"], "_tests", lambda shared, step: ())
            kernel = masked(seen)
            outs.append(run(kernel.source, kernel.name, seen))
            monkeypatch.undo()
        assert outs[0].tobytes() == outs[1].tobytes(), name


def test_threads_and_rows_beside_change_no_bit():
    rng = np.random.default_rng(8)
    blocks = rng.random((3, 4, N // 8, M // 64)) > 0.7
    bias = np.where(np.repeat(np.repeat(blocks, 8, 2), 64, 3), 0.0, -INF).astype(np.float32)
    q, k, v = (draw(3, 4, n, D, seed=n) for n in (N, M, M + 1))
    v = v[:, :, 1:]

    def result(rows: slice = slice(None)) -> Array:
        s = Tensor(q[rows]) @ Tensor(k[rows]).mT * 0.25 + Tensor(bias[rows])
        return (s.softmax(-1) @ Tensor(np.ascontiguousarray(v[rows]))).numpy()

    outs = []
    for threads in (1, 2, 3):
        with num_threads(threads):
            outs.append(result())
    assert outs[0].tobytes() == outs[1].tobytes() == outs[2].tobytes()
    assert outs[0][1:2].tobytes() == result(slice(1, 2)).tobytes()


def test_nothing_is_read_of_what_is_left_out():
    """A whole block of keys and values that no row sees may hold anything."""
    seen = np.ones((N, M), bool)
    seen[:, BLOCK : 2 * BLOCK] = False
    k, v = draw(M, D, seed=1), draw(M, 8, seed=2)
    k[BLOCK : 2 * BLOCK], v[BLOCK : 2 * BLOCK] = np.nan, INF
    for way, change, exact in ways(seen):
        np.testing.assert_allclose(attention(change, v, k).numpy(), wanted(exact), rtol=2e-6, atol=2e-6, err_msg=way)


@pytest.mark.parametrize("bad", [np.nan, INF])
def test_nan_or_infinity_among_excluded_keys_is_seen(bad):
    bias = np.full((N, M), -INF, np.float32)
    bias[:, :BLOCK] = 0
    bias[17, 3 * BLOCK + 5] = bad
    got = attention(lambda s: s + Tensor(bias)).numpy()
    assert np.isnan(got[17]).all() and not np.isnan(np.delete(got, 17, 0)).any()


def test_looking_the_wrong_way_is_caught(monkeypatch):
    """Were blocks left out that a mask lets through, values would tell."""
    rangeify = sys.modules["uopc.rangeify.cascades"]
    true = rangeify.once_if
    monkeypatch.setattr(pipeline, "_kernels", {})
    monkeypatch.setattr(rangeify, "once_if", lambda condition, then, ctx: true(condition, not then, ctx))
    seen = dict(masks())["documents"]
    got = run(masked(seen).source, masked(seen).name, seen)
    assert not np.allclose(got, wanted(lambda s: np.where(seen, s, -INF)), equal_nan=True)


# ---- conditions ----


def of(t: Tensor, nothing: float) -> set[UOp]:
    return set(conditions(t.uop, nothing))


def test_conditions():
    a, b = Tensor(np.ones((3, 4), bool)), Tensor(np.zeros((1, 4), bool))
    x, y = Tensor(draw(3, 4)), Tensor(draw(3, 4, seed=1))
    wide = b.expand(3, 4)
    plus = x.uop.ne(-INF), y.uop.ne(-INF)
    assert of(a.where(x * y, -INF), -INF) == {a.uop}
    assert of(a.where(-INF, x * y), -INF) == {(~a).uop}
    assert of(a.where(x * y, 1.0), -INF) == set()
    assert of((a & wide).where(x * y, -INF), -INF) == {a.uop, wide.uop}
    assert of(x + y, -INF) == set(plus)
    assert of((x + y) * 2.0, -INF) == set(plus) and of((x + y) * -2.0, -INF) == set()
    z = Tensor(draw(3, 4, seed=2))
    assert of((x + y).exp(), 0.0) == set(plus) and of((x + y).exp() * (a.where(z, 0.0)), 0.0) == {*plus, a.uop}
    assert of(x + a.float().log(), -INF) == {plus[0], a.uop}
    assert of(x * y, 0.0) == set()
    assert of((~(a | wide)).where(x * y, -INF), -INF) == {(~a).uop, (~b).expand(3, 4).uop}
    moved = a.where(x + y, -INF).T.reshape(2, 6)
    assert of(moved, -INF) == {u.cast(dtypes.bool_) for u in of(moved, -INF)} and len(of(moved, -INF)) == 3
    assert all(u.shape == (2, 6) for u in of(moved, -INF))


def test_an_infinity_for_the_same_reason_is_no_zero():
    """0 * -inf is NaN, whichever mask makes both."""
    a, b = Tensor(np.ones((3, 4), bool)), Tensor(np.zeros((3, 4), bool))
    x, y = Tensor(draw(3, 4)).tanh(), Tensor(draw(3, 4, seed=1)).tanh()
    s = a.where(x, -INF)
    assert of(s.exp() * s, 0.0) == of(s.exp() * -s, 0.0) == of(s.exp() * s.abs(), 0.0) == set()
    assert of(s.exp() * (s + y), 0.0) == set() and of(s.exp() / s.exp(), 0.0) == set()
    p = s.exp()
    assert of(p * p.rsqrt(), 0.0) == of(p * p.abs().log(), 0.0) == of(p * p**-1.0, 0.0) == set()
    assert of(s.exp() * s.exp().log(), 0.0) == set() and of(s.exp() * np.inf, 0.0) == set()
    assert of(s.exp() * a.where(x, np.nan), 0.0) == set() and of(s - s, -INF) == set()
    assert of(s.exp() * s.tanh(), 0.0) == of(s.exp() * s.exp(), 0.0) == {a.uop}
    assert of(s.exp() * a.where(s, 0.0), 0.0) == {a.uop}
    assert of(s.exp() * b.where(s, 0.0), 0.0) == {b.uop}


def test_entropy_of_masked_rows_is_nan_as_it_is_in_numpy():
    """Of a row that a block leaves out too: p * log(p) is NaN where p is 0."""
    seen = np.ones((N, M), bool)
    seen[:, BLOCK:] = False
    s = (Tensor(draw(N, D)) @ Tensor(draw(M, D, seed=1)).T * 0.25).masked_fill(Tensor(~seen), -INF)
    entropy = -(s.softmax(-1) * s.log_softmax(-1)).sum(-1)
    assert np.isnan(entropy.numpy()).all()
    i, j = Tensor.arange(N).reshape(N, 1), Tensor.arange(M).reshape(1, M)
    s = (j <= i).where(Tensor(draw(N, D)) @ Tensor(draw(M, D, seed=1)).T * 0.25, -INF)
    assert np.isnan((s.softmax(-1) * s.log_softmax(-1)).sum(-1).numpy()).all()


def test_conditions_of_a_graph_that_shares_take_linear_time():
    x = Tensor(draw(3, 4)) + 1.0
    for _ in range(200):
        x = x * x
    assert of(x, 0.0) == set()
