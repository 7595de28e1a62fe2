"""blockize: what a blocked kernel does, counted from its loops, and what it keeps in memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from fixed import MACHINE

import uopc
from uopc import Tensor
from uopc.blockize import blockize
from uopc.count import products
from uopc.count import times as runs
from uopc.ops import Ops
from uopc.opt.schedule import schedule
from uopc.pipeline import Plan, make_plan
from uopc.uop import memory_of, toposort

D = 64


def arrays(n: int, m: int, d: int = D, lead: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(0)
    return tuple(Tensor(rng.standard_normal((*lead, x, d), dtype=np.float32)) for x in (n, m, m))  # type: ignore[return-value]


def plain(n: int, m: int | None = None) -> Tensor:
    q, k, v = arrays(n, m or n)
    return (q @ k.T * 0.125).softmax(-1) @ v


def causal(n: int) -> Tensor:
    q, k, v = arrays(n, n)
    seen = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
    return seen.where(q @ k.T * 0.125, -np.inf).softmax(-1) @ v


def softcapped(n: int) -> Tensor:
    q, k, v = arrays(n, n)
    return ((q @ k.T * 0.125).tanh() * 5.0).softmax(-1) @ v


def of_columns(n: int) -> Tensor:
    q, k, v = arrays(n, n)
    return (q @ k.T * 0.125).softmax(0).T @ v


def differential(n: int) -> Tensor:
    q, k, v = arrays(n, n)
    other, keys, _ = arrays(n, n)
    return ((q @ k.T).softmax(-1) - 0.5 * (other * 0.5 @ (keys * 2.0).T * 0.25).softmax(-1)) @ v


def sink_row(n: int) -> Tensor:
    q, k, v = arrays(n, n)
    s = q @ k.T * 0.125
    top = s.max(-1, keepdim=True).maximum(0.0)
    e = (s - top).exp()
    return e @ v / (e.sum(-1, keepdim=True) + (-top).exp())


def flat(n: int) -> Tensor:
    """The weights are computed in a flat array of n * n elements, square before and after."""
    q, k, v = arrays(n, n)
    s = q @ k.T * 0.125
    e = (s.reshape(n * n) - s.max(1, keepdim=True).expand(n, n).reshape(n * n)).exp()
    return (e / e.reshape(n, n).sum(1, keepdim=True).expand(n, n).reshape(n * n)).reshape(n, n) @ v


DERIVED = {f.__name__: f for f in (plain, causal, softcapped, of_columns, differential, sink_row, flat)}


def plan(t: Tensor) -> Plan:
    return make_plan([t.uop])


def tiles(p: Plan) -> int:
    """Elements of thread-private memory, of all kernels together."""
    linears = [k.linear for k in p.kernels]
    allocs = {(i, u.arg) for i, linear in enumerate(linears) for u in toposort(linear) if u.op is Ops.ALLOC}
    return sum(math.prod(arg.shape) for _, arg in allocs)


def test_one_line_is_one_kernel_that_writes_its_result_alone():
    p = plan(plain(1024))
    assert len(p.kernels) == 1 and not p.temps and p.kernels[0].name == f"r_1024_{D}"


@pytest.mark.parametrize("n, m", [(512, 512), (192, 1152), (1024, 384)])
def test_each_key_meets_each_query_once(n, m):
    """Blocks that do not divide an axis may compute a few rows again, never a second pass over the scores."""
    (kernel,) = plan(plain(n, m)).kernels
    for slot in (1, 2, 3):
        assert n * m * D <= products(kernel.linear, {slot}) <= 1.1 * n * m * D


def test_halves_of_the_work_of_a_causal_mask_are_not_done():
    n = 1024
    full, half = (products(plan(f(n)).kernels[0].linear, {3}) for f in (plain, causal))
    assert half <= 0.75 * full


@pytest.mark.parametrize("name", DERIVED)
def test_no_memory_grows_with_the_scores(name):
    """Between 512 and 1024 rows and keys, temporaries grow by no more than an operand does, and tiles not at all."""
    small, large = (plan(DERIVED[name](n)) for n in (512, 1024))
    assert all(size <= 1024 * D for _, size in large.temps)
    assert len(large.kernels) == len(small.kernels)
    assert tiles(large) <= 1.25 * tiles(small) and tiles(large) < 1024 * 1024 // 8


def test_groups_of_heads_copy_no_keys():
    q, k, v = (Tensor(np.zeros((1, h, 256, D), np.float32)) for h in (8, 2, 2))
    p = plan(uopc.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert len(p.kernels) == 1 and not p.temps


def test_heads_beside_one_another_are_read_in_place():
    x = [Tensor(np.zeros((2, 256, 4, D), np.float32)).transpose(1, 2) for _ in range(3)]
    p = plan((x[0] @ x[1].mT * 0.125).softmax(-1) @ x[2])
    assert len(p.kernels) == 1 and not p.temps


def test_one_query_needs_no_copy_of_the_keys():
    q, k, v = arrays(1, 4096, lead=(4,))
    p = plan((q @ k.mT * 0.125).softmax(-1) @ v)
    assert all(size <= 4096 * 4 for _, size in p.temps)


@pytest.mark.parametrize("k", [500, 1000, 1100])
def test_a_product_reads_the_operand_that_rows_share_once_a_block_of_rows(k):
    """Also where the reduction runs in parts, and where a few products are left over."""
    rows, n = 1000, 1024
    x, w = (Tensor(np.ones(shape, np.float32)) for shape in ((rows, k), (k, n)))
    (kernel,) = plan(x @ w).kernels
    loads = sum(
        times * u.dtype.count
        for u, times in runs(kernel.linear).items()
        if u.op is Ops.LOAD and memory_of(u.src[0]).op is Ops.BUFFER and memory_of(u.src[0]).arg.slot == 2
    )
    blocks = -(-rows // 192)
    # tiles at the edges overlap, and what is left over of k is read by each row
    assert loads <= 1.1 * (blocks * k * n + rows * (k % 3) * n)


def rows_and_steps(t: Tensor, cores: int) -> tuple[int, int]:
    """Rows of a block, and elements of the reduced axis, on a machine with so many cores."""
    (kernel,) = make_plan([t.uop]).kernels
    root = blockize(kernel.root, replace(MACHINE, cores=cores))
    (cascade,) = (u for u in toposort(root) if u.op is Ops.CASCADE)
    return root.arg.opts.block_of(0), cascade.arg.block


def test_blocks_of_rows_leave_no_core_idle():
    """Five blocks of 32 rows take two cores the time of six."""
    assert rows_and_steps(plain(512), 2)[0] == 32
    few, _ = rows_and_steps(plain(160), 2)
    assert -(-160 // few) % 2 == 0
    assert rows_and_steps(plain(64), 4)[0] == 16, "four blocks for four cores"
    assert rows_and_steps(plain(48), 1)[0] in (16, 48), "48 rows are not computed as 64"


@pytest.mark.parametrize("n", [33, 48, 64, 96, 160, 1000])
def test_how_keys_are_cut_depends_on_neither_rows_nor_cores(n):
    """In which order a row is summed is the same on any machine of its kind, beside 32 other rows or more."""
    usual = rows_and_steps(plain(64, 500), 2)[1]
    assert {rows_and_steps(plain(n, 500), cores)[1] for cores in (1, 2, 4, 64)} == {usual}


def blocked(m: int, k: int, n: int, cores: int = 2) -> dict[int, int]:
    """The blocks of a product's output; none where it is not packed."""
    (kernel,) = make_plan([(Tensor(np.ones((m, k), "f")) @ Tensor(np.ones((k, n), "f"))).uop]).kernels
    machine = replace(MACHINE, cores=cores)
    return dict(blockize(schedule(kernel.root, machine), machine).arg.opts.block)


@pytest.mark.parametrize("n", [512, 1024, 2048])
def test_rows_of_a_panel_fill_the_second_level_cache(n):
    """Each packed element is paid back by all of them."""
    rows = blocked(n, n, n)[0]
    assert rows * 512 * 4 <= 0.75 * MACHINE.l2.size and (rows == n // 2 or rows * 512 * 4 > 0.6 * MACHINE.l2.size)


def test_operands_that_caches_hold_well_are_read_in_place():
    assert blocked(1000, 1000, 1000) == blocked(256, 256, 256) == {}
    assert blocked(2048, 64, 2048) == {}, "64 rows of a panel are found again in L2 at any stride"


def test_threads_have_blocks_to_share():
    few, many = (blocked(512, 512, 512, cores)[0] for cores in (2, 64))
    assert many < few


@pytest.mark.parametrize("shape", [(512, 512, 512), (1000, 1000, 1000), (700, 800, 768), (300, 2048, 256)])
def test_whether_an_operand_is_packed_does_not_depend_on_cores(shape):
    """It cuts the sum."""
    assert len({bool(blocked(*shape, cores=n)) for n in (1, 2, 8, 64)}) == 1
