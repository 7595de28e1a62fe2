"""matmul and einsum against NumPy: every combination of ranks, broadcasting, dtypes; formulas in every form."""

from __future__ import annotations

import numpy as np
import pytest
from tensors import ALL, bf16, same, sample

from uopc import Tensor, dtypes
from uopc.ops import Ops
from uopc.tensor.einsum import Formula

SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((4, 3), (3,)),
    ((4, 3), (3, 2)),
    ((2, 4, 3), (3, 5)),
    ((4, 3), (2, 3, 5)),
    ((2, 4, 3), (2, 3, 5)),
    ((2, 1, 4, 3), (5, 3, 2)),
    ((3,), (2, 3, 5)),
    ((2, 4, 3), (3,)),
    ((0, 3), (3, 2)),
    ((4, 0), (0, 2)),
    ((0,), (0,)),
    ((1, 1), (1, 1)),
    ((2, 0, 3), (1, 3, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes):
    a, b = sample("int64", shapes[0]), sample("int64", shapes[1], seed=1)
    same(Tensor(a) @ Tensor(b), a @ b)
    same(Tensor(a).matmul(b), a @ b)
    same(a @ Tensor(b), a @ b)
    f = a.astype(np.float32)
    same(Tensor(f) @ Tensor(b.astype(np.float32)), f @ b.astype(np.float32))


@pytest.mark.parametrize("dtype", ALL)
def test_dtypes(dtype):
    a, b = sample(dtype, (3, 4)), sample(dtype, (4, 2), seed=1)
    wide = 5e-3 if dtype == "float16" else 1e-5
    same(Tensor(a) @ Tensor(b), a @ b, wide)
    same(Tensor(a) @ sample("float32", (4, 2)), a @ sample("float32", (4, 2)), 1e-5)


def test_small_integers_wrap():
    a = np.full((2, 9), 100, np.int8)
    same(Tensor(a) @ Tensor(a.T), a @ a.T)


def test_bfloat16():
    a, b = bf16(sample("float32", (5, 7))), bf16(sample("float32", (7, 3), seed=1))
    made = Tensor(a).bfloat16() @ Tensor(b).bfloat16()
    assert made.dtype is dtypes.bfloat16
    np.testing.assert_array_equal(made.numpy(), bf16(a @ b))


def test_the_graph_is_the_textbook():
    u = (Tensor.empty(2, 3, 4) @ Tensor.empty(4, 5)).uop
    assert u.op is Ops.REDUCE
    assert u.arg.axes == (3,)
    assert u.src[0].op is Ops.MUL
    assert u.src[0].shape == (2, 3, 5, 4)


def test_refusals():
    t = Tensor.zeros(2, 3)
    for a, b, message in (
        (t, t, r"\(2, 3\) and \(2, 3\): the inner sizes 3 and 2 differ"),
        (t, Tensor(1.0), r"\(2, 3\) and \(\)"),
        (Tensor.zeros(2, 2, 3), Tensor.zeros(3, 3, 2), r"\(2,\) and \(3,\)"),
        (Tensor.zeros(3), Tensor.zeros(4), "inner sizes 3 and 4"),
    ):
        with pytest.raises(ValueError, match=message):
            a @ b
    for wrong in (2.0, "a", None):
        with pytest.raises(TypeError):
            t @ wrong
        with pytest.raises(TypeError, match="matmul takes"):
            t.matmul(wrong)


FORMULAS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("ij->ji", (2, 3)),
    ("ba", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("i,i", (4,), (4,)),
    ("i,j->ij", (2,), (3,)),
    ("i,j->ji", (2,), (3,)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk", (1, 5, 2, 3), (6, 1, 3, 4)),
    ("...", (2, 3)),
    ("...->...", (2, 3)),
    ("i...->...", (2, 3, 4)),
    ("...i->i...", (2, 3, 4)),
    ("bhld,bhsd->bhls", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("ij,ij,ij->j", (2, 3), (2, 3), (2, 3)),
    ("iij,jkk->ik", (2, 2, 3), (3, 4, 4)),
    ("iii->i", (3, 3, 3)),
    ("ijij->ji", (2, 3, 2, 3)),
    ("i,->i", (3,), ()),
    (",", (), ()),
    ("->", ()),
    ("ij,k->i", (2, 3), (4,)),
    ("ij,ij->ij", (1, 3), (2, 3)),
    ("i j , j k -> i k", (2, 3), (3, 2)),
    ("aB,Bc->ac", (2, 3), (3, 2)),
    ("ij,j->", (0, 3), (3,)),
    ("ij,jk->ik", (2, 0), (0, 3)),
    ("...i,...i->...", (2, 3), (3,)),
    ("ij,i,j->ij", (2, 3), (2,), (3,)),
    ("ijk,jil->kl", (3, 4, 5), (4, 3, 2)),
]


@pytest.mark.parametrize("case", FORMULAS, ids=str)
def test_einsum(case):
    formula, *shapes = case
    arrays = [sample("int64", s, seed=i) for i, s in enumerate(shapes)]
    for optimize in (False, True):
        same(Tensor.einsum(formula, *[Tensor(a) for a in arrays], optimize=optimize), np.einsum(formula, *arrays))
    floats = [a.astype(np.float32) for a in arrays]
    same(Tensor.einsum(formula, *floats), np.einsum(formula, *floats), 1e-4)


def test_einsum_multiplies_in_the_order_asked_for():
    shapes = {"ij": (50, 2), "jk": (2, 50), "kl": (50, 2), "lm": (2, 50), "mn": (50, 3)}
    formula = Formula.parse(",".join(shapes) + "->in", list(shapes.values()))

    def cost(order):
        sets = {k: 1 << k for k in range(len(shapes))}
        total = 0
        for step, (i, j) in enumerate(order):
            a, b = sets.pop(i), sets.pop(j)
            total += formula.multiplications(a, b)
            sets[len(shapes) + step] = a | b
        assert list(sets.values()) == [(1 << len(shapes)) - 1]
        return total

    assert cost(formula.left_to_right()) == 50 * 2 * 50 + 50 * 50 * 2 + 50 * 2 * 50 + 50 * 50 * 3
    # products of two columns first, which are small
    assert cost(formula.cheapest_order()) == 2 * 50 * 2 + 2 * 50 * 3 + 2 * 2 * 3 + 50 * 2 * 3
    arrays = [sample("float64", s, seed=i) for i, s in enumerate(shapes.values())]
    same(Tensor.einsum("ij,jk,kl,lm,mn->in", *arrays, optimize=True), np.linalg.multi_dot(arrays), 1e-12)


def test_einsum_of_many_operands():
    letters = "abcdefghijk"
    arrays = [sample("int64", (2 + k % 3, 2 + (k + 1) % 3), seed=k) for k in range(10)]
    formula = ",".join(letters[k : k + 2] for k in range(10)) + "->ak"
    for optimize in (False, True):
        same(Tensor.einsum(formula, *arrays, optimize=optimize), np.linalg.multi_dot(arrays))


def test_einsum_promotes():
    a, b = sample("int8", (2, 3)), sample("float32", (3,))
    same(Tensor.einsum("ij,j->i", Tensor(a), b), np.einsum("ij,j->i", a, b))
    c = sample("bool", (2, 2))
    same(Tensor.einsum("ij,jk->ik", Tensor(c), Tensor(c)), c @ c)
    same(Tensor.einsum("ij->i", [Tensor(a)]), np.einsum("ij->i", a))


@pytest.mark.parametrize(
    ("formula", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "names 2 operands, and 1 were given"),
        ("ij->i", [(2,)], r"'ij' does not fit the 1 axes of shape \(2,\)"),
        ("i->i", [(2, 3)], "does not fit the 2 axes"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "'j' has sizes 3 and 4"),
        ("ij->ik", [(2, 3)], "each letter of the result"),
        ("ij->ii", [(2, 3)], "each letter of the result"),
        ("i?->i", [(2, 3)], "other than letters"),
        ("ii->i", [(2, 3)], "no diagonal 'i'"),
        ("...i->i", [(2, 3)], "needs an ellipsis"),
        ("......i->i", [(2, 3)], "one ellipsis"),
    ],
)
def test_einsum_refusals(formula, shapes, message):
    with pytest.raises(ValueError, match=message):
        Tensor.einsum(formula, *[Tensor.zeros(s) for s in shapes])


def test_einsum_without_operands():
    with pytest.raises(TypeError, match="at least one Tensor"):
        Tensor.einsum("ij")
    with pytest.raises(TypeError, match="at least one Tensor"):
        Tensor.einsum("i", "a")
