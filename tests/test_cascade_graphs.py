"""Cascades in larger graphs: what random graphs found, each with the number of its seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fuzz_graphs import check, machine
from graphs import keep, product, triangle

from uopc.dtype import dtypes, from_numpy
from uopc.ops import Ops, ReduceArg
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp


def memory(*shape, dtype=np.float32):
    array = (np.arange(math.prod(shape)) % 11 / 4 - 1.25).astype(dtype)
    return new_buffer(from_numpy(array.dtype), shape, array)


def agree(*roots):
    failures = check(list(roots))
    assert not failures, failures[0].text


def attention(n=17, m=19, d=5, e=8, lead=(), mask=None, dtype=np.float32):
    scores = product(memory(*lead, n, d, dtype=dtype), memory(*lead, m, d, dtype=dtype))
    if mask is not None:
        mask = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (mask,), (*(1 for _ in lead), n, m)),), scores.shape)
        scores = mask.where(scores, UOp.const(-math.inf, scores.dtype))
    weights = (scores - keep(scores, Ops.MAX)).alu(Ops.EXP)
    return product(weights / keep(weights, Ops.ADD), memory(*lead, e, m, dtype=dtype))


def reduce(x, op, *axes):
    return UOp(Ops.REDUCE, (x,), ReduceArg(op, axes))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_values_of_a_cascade_are_had_at_the_output_alone(lead):
    """Where they are asked for inside another loop, or at a moved index, they are written down: graphs 0, 109 and
    144."""
    x = attention(lead=lead)
    last = len(x.shape) - 1
    agree(
        reduce(x, Ops.MIN, 0),
        reduce(x, Ops.ADD, last),
        UOp(Ops.FLIP, (x,), (0, last)),
        UOp(Ops.STRIDE, (x,), (*(1 for _ in lead), 2, 3)),
        UOp(Ops.PAD, (x,), ((1, 2),) * len(x.shape)),
        UOp(Ops.RESHAPE, (x,), (math.prod(x.shape),)) * 2.0,
    )


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (1, 19, 5, 8), (17, 1, 5, 8), (17, 19, 1, 8), (17, 19, 5, 1), (65, 130, 3, 33)]
)
@pytest.mark.parametrize("name", ["own", "small"])
def test_attention_of_any_size(sizes, name):
    with machine(name):
        agree(attention(*sizes), attention(*sizes, lead=(2, 3)) * 0.5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_masked_attention(dtype):
    nothing = new_buffer(dtypes.bool_, (17, 19), (np.arange(17 * 19) // 19 % 3 > 0) & (np.arange(17 * 19) % 2 > 0))
    agree(attention(mask=triangle(17, 19), dtype=dtype), attention(mask=nothing, dtype=dtype))


def test_attention_beside_others_in_a_stack():
    """Sources of a STACK share a kernel, of which a cascade once wrote the first store alone: graph 60215."""
    others = [memory(17, 8) * float(k) for k in range(3)]
    agree(UOp(Ops.STACK, (attention(), *others)), UOp(Ops.CAT, (others[0], attention() * 2.0, attention()), 1))


@pytest.mark.parametrize("n", [1, 17])
def test_cascades_over_cascades(n):
    """Two cascades in one kernel are asked apart: graph 60521."""
    scores = product(memory(n, 3), memory(40, 3))
    values = product((scores - keep(scores, Ops.MAX)).alu(Ops.EXP), memory(33, 40))
    again = (values * 0.125 - keep(values * 0.125, Ops.MAX)).alu(Ops.EXP)
    agree(again / keep(again, Ops.ADD), attention(n) * attention(n, 23))


def test_attention_of_nothing():
    """Graph 60081."""
    agree(attention(0, 19), attention(17, 0), attention(17, 19, 0), attention(17, 19, 5, 0))
    empty = UOp(Ops.CAT, (memory(3, 0, 17),), 1)
    centred = empty - keep(empty, Ops.ADD)
    agree(reduce(centred * centred, Ops.ADD, 2), UOp(Ops.PAD, (empty,), ((0, 0), (1, 0), (0, 0))))


def test_reduced_axis_of_size_one():
    """Graph 193."""
    x = reduce(memory(17, 1, 4), Ops.ADD, 2)
    centred = x - keep(x, Ops.ADD)
    agree(reduce(centred * centred, Ops.ADD, 1))
