"""layout: copies where a reduction reads in strides again and again, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz_graphs import check

from uopc import Tensor
from uopc.ops import Ops
from uopc.opt.layout import layout_pass
from uopc.pipeline import make_plan
from uopc.uop import UOp, toposort


def array(*shape: int, dtype: type = np.float32) -> Tensor:
    return Tensor((np.arange(int(np.prod(shape))) % 7 - 3).astype(dtype).reshape(shape))


def copies(*tensors: Tensor) -> list[tuple[int, ...]]:
    """The shapes of what the pass writes down."""
    roots = layout_pass([t.uop for t in tensors])
    return [u.shape for u in toposort(roots) if u.op is Ops.STAGE]


def test_a_transposed_right_operand_is_copied():
    assert copies(array(512, 64) @ array(512, 64).T) == [(1, 64, 512)]


def test_a_left_operand_is_read_where_it_lies():
    assert copies(array(512, 64) @ array(64, 512)) == []
    assert copies(array(64, 512).T @ array(64, 512)) == []


@pytest.mark.parametrize("rows", [1, 4, 15])
def test_what_is_read_a_few_times_is_not_copied(rows):
    assert copies(array(rows, 64) @ array(512, 64).T) == []


def test_one_copy_serves_all_its_readers():
    q, k = array(64, 32), array(128, 32)
    assert copies(q @ k.T, (q * 2.0) @ k.T) == [(1, 32, 128)]


def test_only_what_varies_is_copied():
    """The heads of a grouped query read one key: it is copied once, not once a head."""
    q, k = array(8, 64, 32), array(1, 128, 32)
    shapes = copies(q @ k.transpose(1, 2))
    assert [int(np.prod(s)) for s in shapes] == [128 * 32]


def test_what_a_value_was_computed_from_is_not_copied_for_its_reader():
    """A product, written down, and one of it with the same operand summed over another axis: a copy that the second
    reads leaves the first what it is, or it would be computed twice."""
    weights = array(256, 10).T.unsqueeze(0).expand(128, 10, 256)
    first = (array(128, 256).unsqueeze(1) * weights).sum(2).contiguous()
    second = (first.unsqueeze(2) * weights).sum(1)
    assert copies(second) == [(128, 10), (1, 10, 256)]
    assert copies(first, second) == [(128, 10), (1, 10, 256)]


def test_elementwise_and_plain_sums_are_left_alone():
    x = array(256, 128)
    assert copies(x.T + 1.0, x.sum(0), x.sum(1), x.T.sum(0)) == []


def test_roots_without_copies_are_the_same_graphs():
    roots = [(array(4) + 1.0).uop, array(8, 8).sum(1).uop]
    assert layout_pass(roots) == roots


def test_a_copy_is_a_kernel_of_the_plan():
    p = make_plan([(array(256, 64) @ array(256, 64).T).uop])
    assert [k.name for k in p.kernels] == ["e_64_256", "r_256_256"] and [n for _, n in p.temps] == [64 * 256]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
def test_values_through_copies(dtype):
    a, b, c = array(33, 20, dtype=dtype), array(65, 20, dtype=dtype), array(2, 65, 20, dtype=dtype)
    made = [a @ b.T, (a @ b.T) @ (b @ a.T), a.reshape(1, 33, 20) @ c.transpose(1, 2)]
    roots: list[UOp] = [t.uop for t in made]
    assert not check(roots)
