"""One value, one rounding: a value that is used twice has the same bits at each use.

First the cases by name, each with its right value; then chains of arithmetic, which equal NumPy's to the bit; then the
identities of ``identities.py`` over random expressions: every day a few dozen, in CI hundreds; ``fuzz_identities.py``
asks about more.
"""

from __future__ import annotations

import math
from itertools import product
from unittest import mock

import fuzz_identities
import identities
import numpy as np
import pytest
from fuzz_graphs import machine
from fuzz_identities import BATCH, KINDS, check, expression_of, reduced, run
from tensors import FLOATS, bf16

import uopc
from uopc import Tensor
from uopc.ops import Ops
from uopc.uop import toposort

HALVES = ["float16", "bfloat16"]
KINDS_OF_FLOAT = [*HALVES, "float32", "float64"]
MODES = [None, False, True]
LOWEST = {d: float(np.finfo(d).min) for d in FLOATS} | {"bfloat16": -(2.0**128 - 2.0**120)}
# The relative error of one rounding, and of functions and sums, which are computed in float32 at least.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(values, dtype):
    return Tensor(np.asarray(values, np.float64 if dtype == "float64" else np.float32)).cast(dtype).realize()


def together(*tensors):
    """Results that are asked for at once."""
    tensors[0].realize(*tensors[1:])
    return [t.numpy() for t in tensors]


# ---- maxima and where they are ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", KINDS_OF_FLOAT)
def test_the_position_of_a_maximum_that_is_given_too(dtype):
    f = uopc.jit(lambda x: (lambda t: (t.max(-1), t.argmax(-1)))(x * 3))
    x = tensor([[0.3, 2.1, 0.4, 0.2]], dtype)
    top, place = f(x)
    assert place.tolist() == [1] and top.numpy() == (x * 3).numpy()[0, 1]


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize("name", ["exp", "gelu"])
def test_the_position_of_the_maximum_of_a_function(name, fuse_reduce):
    x = normal(131_072).astype(np.float16)
    with uopc.options(fuse_reduce=fuse_reduce):
        values = getattr(Tensor(x), name)().numpy()
        assert getattr(Tensor(x), name)().argmax().item() == values.argmax()
        assert getattr(Tensor(x), name)().argmin().item() == values.argmin()
        if name == "exp":
            assert values.argmax() == x.argmax() == np.exp(x).argmax()


EXPRESSIONS = {
    "x * 0.3 + y": lambda x, y: x * 0.3 + y,
    "x * y": lambda x, y: x * y,
    "exp(x) * 0.11": lambda x, y: x.exp() * 0.11,
    "(x - y).tanh() * 3": lambda x, y: (x - y).tanh() * 3,
    "x / (|y| + 0.5)": lambda x, y: x / (y.abs() + 0.5),
    "softmax(x)": lambda x, y: x.softmax(-1),
    "layer_norm(x) * y": lambda x, y: x.layer_norm() * y,
    "x - x.mean()": lambda x, y: x - x.mean(-1, keepdim=True),
}


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize("dtype", KINDS_OF_FLOAT)
def test_a_maximum_is_one_of_the_elements(dtype, fuse_reduce):
    x, y = (tensor(normal(512, 512, seed=s), dtype) for s in (1, 2))
    with uopc.options(fuse_reduce=fuse_reduce):
        asked = {}
        for name, make in EXPRESSIONS.items():
            t = make(x, y)
            asked[name] = (t == t.max()).sum(), (t == t.max(-1, keepdim=True)).any(-1).all(), (t > t.max()).sum()
        together(*[t for each in asked.values() for t in each])
    missed = {n for n, (one, rows, above) in asked.items() if not one.item() or not rows.item() or above.item()}
    assert not missed


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize(("dtype", "rows"), [("float16", 4), ("bfloat16", 8), ("float32", 4)])
def test_the_best_class_of_logits_that_nobody_asks_for(dtype, rows, fuse_reduce):
    x, w = tensor(normal(rows, 64), dtype), tensor(normal(64, 1000, seed=1), dtype)
    with uopc.options(fuse_reduce=fuse_reduce):
        t = x @ w
        weight, best, top = together(t.softmax(-1).max(-1), t.argmax(-1), t.max(-1))
        t = x @ w
        worst, bottom = together(t.argmin(-1), t.min(-1))
    exact = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64)
    near = 2 * (UNIT[dtype] + 64 * 2.0**-24) * np.abs(exact).max()
    lines = np.arange(rows)
    for place, value, expected in ((best, top, exact.max(-1)), (worst, bottom, exact.min(-1))):
        assert np.abs(value - expected).max() <= near and np.abs(exact[lines, place] - expected).max() <= near
    likely = np.exp(exact - exact.max(-1, keepdims=True))
    np.testing.assert_allclose(weight, (likely / likely.sum(-1, keepdims=True)).max(-1), rtol=3 * near)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fuse_reduce", MODES)
def test_the_best_class_of_logits_that_are_given(dtype, fuse_reduce):
    x, w = tensor(normal(8, 64), dtype), tensor(normal(64, 1000, seed=1), dtype)
    with uopc.options(fuse_reduce=fuse_reduce):
        t = x @ w
        logits, best, top, worst = together(t, t.argmax(-1), t.max(-1), t.argmin(-1))
    assert best.tolist() == logits.argmax(-1).tolist() and worst.tolist() == logits.argmin(-1).tolist()
    assert top.tolist() == logits.max(-1).tolist()


# Of arrays of n x m, and others that go with them.
SUMS = {
    "rows": lambda x, w, b: x.sum(-1),
    "columns": lambda x, w, b: x.sum(0),
    "product": lambda x, w, b: x @ w,
    "product with rows": lambda x, w, b: x @ x.T * 0.3,
    "with a vector": lambda x, w, b: x @ b,
    "variance": lambda x, w, b: x.var(-1),
    "centred": lambda x, w, b: x - x.mean(-1, keepdim=True),
    "layer_norm": lambda x, w, b: x.layer_norm(),
    "weights": lambda x, w, b: (x @ x.T * 0.3).softmax(-1),
    "attention": lambda x, w, b: (x @ x.T * 0.3).softmax(-1) @ x,
    "norm and product": lambda x, w, b: x.layer_norm() @ w,
}
USES = (identities.below, identities.position, identities.attained)
EVERY_DAY = (("float32", (5, 33), None), ("float32", (5, 33), True))


@pytest.mark.parametrize(
    ("dtype", "shape", "fuse_reduce"),
    [
        pytest.param(*case, marks=[] if case in EVERY_DAY else pytest.mark.slow)
        for case in product(KINDS_OF_FLOAT, ((5, 33), (17, 70), (1, 1000), (40, 130), (300, 65)), MODES)
        if case[2] is not True or case[1][0] < 20  # fused, scores are computed again for each use of each
    ],
)
def test_a_sum_that_is_used_twice(dtype, shape, fuse_reduce):
    """However often it is computed, in lanes or one by one: in one order."""
    x, w, b = (tensor(normal(*s, seed=3), dtype) for s in (shape, (shape[1], 20), shape[1:]))
    made = {name: make(x, w, b).uop for name, make in SUMS.items()}
    names = {u: name for name, u in made.items()}
    questions = [
        fuzz_identities.Question(identities.Expression(0, u.dtype, u), (use,), ((axis, 0.11),))
        for u in made.values()
        for use in USES
        for axis in range(len(u.shape))
    ]
    ledgers = {q.expression: fuzz_identities.Ledger(q.expression) for q in questions}
    failures = fuzz_identities.judge_each(questions, fuzz_identities.Mode(fuse_reduce), ledgers)
    assert not [f"{names[f.question.expression.root]}: {f.question}: {f.text}" for f in failures]


# ---- softmax of numbers at which an ulp is more than 88 --------------------------------------------------------------


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize("dtype", KINDS_OF_FLOAT)
def test_softmax_of_the_lowest_numbers(dtype, fuse_reduce):
    near, expected = max(4 * UNIT[dtype], 1e-6), []
    with uopc.options(fuse_reduce=fuse_reduce):
        for shape in ((1, 3), (5, 3), (40, 130)):
            for factor in (0.11, 1 / 3, 48**-0.5):
                x, y = (tensor(np.full(shape, LOWEST[dtype]), dtype) for _ in range(2))
                expected.append(((x * factor).softmax(-1), 1 / shape[1]))
                expected.append(((y * factor).log_softmax(-1), -math.log(shape[1])))
        together(*[t for t, _ in expected])
    for t, value in expected:
        np.testing.assert_allclose(t.numpy(), value, rtol=near)


def test_softmax_of_nearly_the_lowest_numbers():
    three = Tensor(np.array([[-3.4028e38] * 3], np.float32)) * 0.11
    np.testing.assert_allclose(three.softmax(-1).numpy(), 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(three.log_softmax(-1).numpy(), -math.log(3), rtol=1e-6)


def softmax64(scores):
    with np.errstate(under="ignore"):
        weights = np.exp(scores.astype(np.float64) - scores.astype(np.float64).max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("way", ["masked_fill", "added"])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", n) for n in (48, 64, 80, 96, 128)]
    + [("float16", 80), ("bfloat16", 48)]
    + [pytest.param(d, n, marks=pytest.mark.slow) for d in HALVES for n in (64, 96, 128)],
)
def test_attention_weights_of_rows_that_are_masked_whole(dtype, size, way):
    q, k = tensor(normal(40, size), dtype), tensor(normal(70, size, seed=1), dtype)
    mask = np.random.default_rng(2).random((40, 70)) < 0.3
    mask[[0, 7, 39]] = True
    # the lowest float16 less 16 is -inf already; the other types do not notice
    fill = -3e4 if dtype == "float16" else LOWEST[dtype]
    for fuse_reduce in MODES:
        with uopc.options(fuse_reduce=fuse_reduce):
            if way == "added":
                scores = (q @ k.T + tensor(np.where(mask, fill, 0.0), dtype)) * size**-0.5
            else:
                scores = (q @ k.T).masked_fill(mask, LOWEST[dtype]) * size**-0.5
            weights = scores.softmax(-1).numpy()
        assert not np.isnan(weights).any()
        whole = mask.all(-1)
        if way == "masked_fill" or dtype != "float16":
            np.testing.assert_allclose(weights[whole], 1 / 70, rtol=max(4 * UNIT[dtype], 1e-6))
        exact = q.numpy().astype(np.float64) @ k.numpy().astype(np.float64).T * size**-0.5
        expected = softmax64(np.where(mask, -np.inf, exact)[~whole])
        np.testing.assert_allclose(weights[~whole], expected, atol=1e-6, rtol=64 * UNIT[dtype] + 1e-5)


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize("fill", [-1e9, -1e6, -1e4])
def test_scores_with_masks_that_are_not_infinite(fill, fuse_reduce):
    """What float32 scores come to, in float64, is what comes out, also where nobody asks for the scores."""
    q, k = Tensor(normal(33, 48)), Tensor(normal(70, 48, seed=1))
    mask = np.where(np.random.default_rng(2).random((33, 70)) < 0.5, np.float32(fill), np.float32(0))
    mask[[0, 32]] = fill

    def scores():
        return (q @ k.T + Tensor(mask)) * 0.11

    with uopc.options(fuse_reduce=fuse_reduce):
        s = scores()
        asked, weights, logs = together(s, s.softmax(-1), s.log_softmax(-1))
        unasked, logs_alone = scores().softmax(-1).numpy(), scores().log_softmax(-1).numpy()
    expected = softmax64(asked)
    wide = asked.astype(np.float64)
    top = wide.max(-1, keepdims=True)
    expected_logs = wide - top - np.log(np.exp(wide - top).sum(-1, keepdims=True))
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(logs, expected_logs, rtol=1e-6, atol=1e-5)
    # the sums may be taken in another order: rows that are masked whole keep an ulp of the mask, where there is one
    near = 3 * abs(fill) * 2.0**-24 + 1e-5
    assert (logs_alone <= 0).all() and not np.isnan(logs_alone).any()
    rows = slice(1, 32)
    np.testing.assert_allclose(logs_alone[rows], expected_logs[rows], rtol=1e-5, atol=near)
    np.testing.assert_allclose(unasked[rows], expected[rows], rtol=1e-4, atol=1e-6)
    if abs(fill) == 1e9:  # beside which a product of two rows is nothing
        np.testing.assert_allclose(logs_alone[[0, 32]], -math.log(70), rtol=1e-6)
        np.testing.assert_allclose(unasked[[0, 32]], 1 / 70, rtol=1e-6)


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize("factor", [0.3, 1 / 3, 0.11, 48**-0.5])
def test_scores_of_any_size(factor, fuse_reduce):
    x = normal(33, 200) * np.float32(1e10)
    with uopc.options(fuse_reduce=fuse_reduce):
        weights, logs = (Tensor(x) * factor).softmax(-1).numpy(), (Tensor(x) * factor).log_softmax(-1).numpy()
    scores = x * np.float32(factor)
    np.testing.assert_allclose(weights, softmax64(scores), atol=1e-6)
    assert (logs <= 0).all()
    exact = scores.astype(np.float64) - scores.max(-1, keepdims=True).astype(np.float64)
    np.testing.assert_allclose(logs, exact, rtol=1e-6, atol=1e-6)


def test_cross_entropy_of_large_logits():
    logits = Tensor(np.array([[1e10, 3e10, 2e10]], np.float32)) * np.float32(1 / 3)
    assert logits.cross_entropy(Tensor(np.array([1]))).item() == 0
    one = Tensor(np.array([1e10, 3e10, 2e10], np.float32)) * np.float32(1 / 3)
    assert one.cross_entropy(Tensor(np.array(1))).item() == 0


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse_reduce", MODES)
@pytest.mark.parametrize("dtype", KINDS_OF_FLOAT)
def test_differences_of_equal_products(dtype, fuse_reduce):
    a, b = tensor(normal(1000), dtype), tensor(normal(1000), dtype)
    with uopc.options(fuse_reduce=fuse_reduce):
        asked = together((a * a - b * b).sqrt(), a * 0.11 - b * 0.11, a * b - b * a, (a * 3 + 1) - (b * 3 + 1))
    for values in asked:
        assert not values.any()


def test_overflow_is_overflow():
    """Of each operation: a product that is too large is infinite, whatever is taken from it."""
    assert (Tensor(np.array([3e38], np.float32)) * 2 - 3e38).tolist() == [math.inf]
    assert (Tensor(np.array([6e4], np.float16)) * 2 - 6e4).tolist() == [math.inf]
    assert (Tensor(np.array([6e4], np.float16)) * 2 / 4).tolist() == [math.inf]
    assert (Tensor(np.array([3e38], np.float32)).bfloat16() * 2 - 3e38).tolist() == [math.inf]
    assert (Tensor(np.array([1e308])) * 10 - 1e308).tolist() == [math.inf]


class Bfloat16:
    """NumPy arithmetic on bfloat16: each step in float32, rounded to nearest even by its bits."""

    def __init__(self, values):
        bits = np.asarray(values, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        self.values = np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))

    def _with(self, other, fn):
        other = other if isinstance(other, Bfloat16) else Bfloat16(np.float32(other))
        return Bfloat16(fn(self.values, other.values))

    def __add__(self, other):
        return self._with(other, np.add)

    def __sub__(self, other):
        return self._with(other, np.subtract)

    def __mul__(self, other):
        return self._with(other, np.multiply)

    def __truediv__(self, other):
        return self._with(other, np.divide)

    def __neg__(self):
        return Bfloat16(-self.values)

    def __lt__(self, other):
        return self.values < other.values

    def sqrt(self):
        return Bfloat16(np.sqrt(self.values))

    def abs(self):
        return Bfloat16(np.abs(self.values))

    def maximum(self, other):
        return self._with(other, np.maximum)

    def minimum(self, other):
        return self._with(other, np.minimum)

    def where(self, condition, other):
        return Bfloat16(np.where(condition, self.values, other.values))


class Native(Bfloat16):
    """NumPy's own arithmetic by the same names."""

    def __init__(self, values):
        self.values = values

    def _with(self, other, fn):
        return Native(fn(self.values, other.values if isinstance(other, Native) else self.values.dtype.type(other)))

    def __neg__(self):
        return Native(-self.values)

    def sqrt(self):
        return Native(np.sqrt(self.values))

    def abs(self):
        return Native(np.abs(self.values))

    def where(self, condition, other):
        return Native(np.where(condition, self.values, other.values))


class Compiled(Tensor):
    """A Tensor whose ``where`` reads as the others' do."""

    __slots__ = ()

    def where(self, condition, other):
        return Tensor.where(condition, self, other)


# Of three operands.
CHAINS = {
    "a product and a sum": lambda x, y, z: x * y + z,
    "a product and a difference": lambda x, y, z: x * y - z,
    "two products": lambda x, y, z: x * y - y * z,
    "a constant": lambda x, y, z: x * 0.11 - y * 0.7,
    "a quotient": lambda x, y, z: (x + z) / (y.abs() + 0.5) * 3,
    "a root": lambda x, y, z: (x * x + y * y).sqrt() - z,
    "a chain of sums": lambda x, y, z: ((x + y) + z + x) * 0.3 + y,
    "a polynomial": lambda x, y, z: ((x * y + z) * y + x) * y - z,
    "a norm": lambda x, y, z: x / (x * x + y * y + z * z).sqrt(),
    "a choice": lambda x, y, z: (x * 0.3 + y).where(x * 0.3 < z - y, z * y - x),
    "extremes": lambda x, y, z: (x * 1.7).maximum(y - z).minimum(x * y + 0.1),
    "signs": lambda x, y, z: -(x * y) + (-z).abs() * 0.1 - y,
    "beyond the largest": lambda x, y, z: (x * 3e4 * 3e4 - y) * 1e-4 + z * 3e-5 * 1e-3,
}
LAYOUTS = {
    "whole": lambda a: a,
    "transposed": lambda a: a.T,
    "strided": lambda a: a[::2, 1::3],
    "flipped": lambda a: a[::-1, ::-1],
    "odd": lambda a: a[1:, 2:],
    "a row": lambda a: a[3],
}


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("dtype", KINDS_OF_FLOAT)
def test_chains_of_arithmetic_are_those_of_numpy(dtype, invariant):
    """Each operation rounds where it ends: to the bit."""
    arrays = [normal(37, 41, seed=s) for s in range(3)]
    arrays = [bf16(a) if dtype == "bfloat16" else a.astype(dtype) for a in arrays]
    pairs = {}
    with uopc.options(batch_invariant=invariant), np.errstate(all="ignore"):
        for layout, view in LAYOUTS.items():
            parts = [view(a) for a in arrays]
            tensors = [Compiled(Tensor(p).bfloat16().realize() if dtype == "bfloat16" else p) for p in parts]
            operands = [Bfloat16(p) if dtype == "bfloat16" else Native(p) for p in parts]
            for name, chain in CHAINS.items():
                pairs[name, layout] = chain(*tensors), chain(*operands).values
        together(*[t for t, _ in pairs.values()])
    wrong = {key: int((t.numpy() != v).sum()) for key, (t, v) in pairs.items()}
    assert not {key: n for key, n in wrong.items() if n}


# ---- random expressions ----------------------------------------------------------------------------------------------


def hold(first, count, name="own"):
    with machine(name):
        reports, broken = run(range(first, first + count))
    assert not broken, "\n\n".join(reports)


def test_identities_hold():
    hold(0, BATCH)


def test_identities_hold_on_a_small_machine():
    hold(BATCH, BATCH // 3, "small")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 100 + 20 * BATCH, BATCH))
def test_identities_hold_of_many(first):
    hold(first, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + 4 * BATCH, BATCH))
@pytest.mark.parametrize("name", ["small", "narrow"])
def test_identities_hold_of_many_on_other_machines(first, name):
    hold(first, BATCH, name)


# ---- the yardstick itself can fail -----------------------------------------------------------------------------------


def test_expressions_are_of_every_kind():
    made = [expression_of(seed) for seed in range(400)]
    assert {e.dtype for e in made} == set(KINDS)
    assert min(sum(e.known for e in made), sum(not e.exact for e in made)) > 100
    assert sum(e.exact and not e.known for e in made) > 40
    ops = {u.op for e in made for u in toposort(e.root)}
    assert {Ops.EXP, Ops.WHERE, Ops.CAT, Ops.STACK, Ops.PAD, Ops.FLIP, Ops.STRIDE, Ops.VIEW, Ops.PERMUTE} <= ops


def test_a_wrong_rounding_is_seen(monkeypatch):
    """As if each x had been rounded otherwise where it is given than where it is used."""
    right = fuzz_identities.ask

    def off(array):
        wrong = array.copy()
        step = np.float32(2.0**-7) if array.dtype == np.float32 else np.finfo(array.dtype).eps
        wrong.flat[array.argmax()] += (np.abs(array.max()) + 1) * step
        return wrong

    def broken(questions, mode):
        return [
            [
                (v, {n: off(a) if n == "x" and len(answers) > 1 else a for n, a in answers.items()})
                for v, answers in each
            ]
            for each in right(questions, mode)
        ]

    monkeypatch.setattr(fuzz_identities, "ask", broken)
    monkeypatch.setattr(fuzz_identities, "EACH", 0)
    monkeypatch.setattr(fuzz_identities, "identities", lambda dtype: (identities.alone, identities.positions) * 4)
    seeds = [s for s in range(16) if expression_of(s).dtype.is_float and np.isfinite(value_of(s)).all()]
    found = {f.question.expression.seed for f in check([expression_of(s) for s in seeds])}
    assert len(seeds) > 5 and found == set(seeds)


def value_of(seed):
    return identities.stepwise(expression_of(seed).root)


def test_failures_are_reduced_to_the_part_that_fails():
    seed = next(s for s in range(100) if sum(u.op is Ops.MUL for u in toposort(expression_of(s, None).root)) > 2)
    e = expression_of(seed)
    q = fuzz_identities.question(e, [identities.alone])
    right = fuzz_identities.judge

    def broken(questions, mode, ledgers):
        (asked,) = questions
        hit = any(u.op is Ops.MUL for u in toposort(asked.expression.root))
        return [fuzz_identities.Failure(asked, mode, "wrong")] if hit else right(questions, mode, ledgers)

    with mock.patch.object(fuzz_identities, "judge", broken):
        small = reduced(fuzz_identities.Failure(q, fuzz_identities.Mode(), "wrong")).question.expression.root
    assert sum(u.op is Ops.MUL for u in toposort(small)) == 1
