"""schedule: sizes that follow from a kernel's loops.  What is asserted are the reasons, not the numbers that
measurements may move."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fixed import MACHINE

from uopc import Tensor
from uopc.ops import KernelInfo, Ops, ParamArg
from uopc.opt.schedule import schedule
from uopc.opt.sizes import LANES_SUM_BLOCK, SUM_BLOCK
from uopc.rangeify import Opts
from uopc.uop import UOp, sink

WIDTHS = [64, 32, 16]


def array(*shape: int, dtype: type = np.float32) -> Tensor:
    return Tensor(np.zeros(shape, dtype))


def scheduled(t: Tensor, vector_bytes: int = 64) -> tuple[Opts, tuple[int, ...]]:
    """The options of the kernel that computes all of ``t``, and the shape that it is written at."""
    machine = MACHINE.narrowed(vector_bytes)
    out = UOp(Ops.BUFFER, (), ParamArg(0, t.uop.dtype, t.uop.shape))
    root = sink(UOp(Ops.STORE, (out, t.uop))).replace(arg=KernelInfo("k"))
    made = schedule(root, machine)
    return made.arg.opts, made.src[0].src[1].shape


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(512, 256, 512), (50, 33, 90), (17, 65, 33), (6, 64, 64)])
def test_matmul_has_a_register_tile(shape, dtype, width):
    m, k, n = shape
    opts, written = scheduled(array(m, k, dtype=dtype) @ array(k, n, dtype=dtype), width)
    assert written == (m, n)
    assert opts.vector == 1 and opts.lanes == width // np.dtype(dtype).itemsize
    rows, vectors = opts.upcast_of(0), opts.upcast_of(1) // opts.lanes
    registers = 32 if width == 64 else 16
    assert rows * vectors + min(rows, vectors) + 1 <= registers, "accumulators and operands spill"
    # a multiplication for each load hides nothing; a tile of several rows reuses what it loads
    assert rows > 1 and rows * vectors / (rows + vectors) > 0.8
    assert set(opts.threads) == {0, 1} and opts.reduce_lanes == 1


def test_batches_are_shared_outermost():
    opts, _ = scheduled(array(8, 64, 32) @ array(8, 32, 64))
    assert opts.threads[0] == 0 and opts.vector == 2


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.float64])
def test_elementwise_is_one_loop(dtype, width):
    opts, written = scheduled(array(100, 20, 10, dtype=dtype) * 2, width)
    assert written == (20000,), "axes without strides between them are one"
    assert opts.vector == 0 and opts.threads == (0,)
    assert opts.lanes == width // max(np.dtype(dtype).itemsize, 4 if dtype == np.float16 else 1), (
        "halves compute in float32"
    )


def test_axes_that_a_broadcast_tells_apart_stay_two():
    opts, written = scheduled(array(100, 1).expand(100, 200) * array(100, 200))
    assert written == (100, 200) and opts.vector == 1


def test_a_transposed_copy_reads_and_writes_whole_lines():
    opts, written = scheduled(array(200, 100).T * 1.0)
    assert written == (100, 200)
    assert opts.vector == 1 and opts.upcast_of(0) > 1, "rows along which reading is consecutive are tiled"


def test_rows_and_columns_are_summed_along_memory():
    rows, _ = scheduled(array(100, 2000).sum(1))
    assert rows.vector is None and rows.reduce_lanes == 16 and rows.unroll > 1 and rows.threads == (0,)
    columns, _ = scheduled(array(2000, 100).sum(0))
    assert columns.vector == 0 and columns.lanes == 16 and columns.reduce_lanes == 1


def test_matvec_reads_rows():
    opts, _ = scheduled(array(512, 512) @ array(512, 1))
    assert opts.vector is None and opts.reduce_lanes == 16 and opts.upcast_of(0) > 1


@pytest.mark.parametrize("make", [lambda: array(5000) - array(5000).max(), lambda: array(64, 64) / array(64, 64).sum()])
def test_threads_do_not_share_loops_that_a_reduction_is_not_in(make):
    opts, _ = scheduled(make())
    assert not opts.threads


def test_threads_share_the_rows_of_a_softmax():
    opts, written = scheduled(array(100, 200).softmax(-1))
    assert written == (100, 200) and opts.threads == (0,)
    assert opts.lanes == opts.reduce_lanes == 16


def test_sums_of_floats_run_in_blocks():
    """Their rounding errors grow with the longest chain; a maximum and integers have none."""
    assert scheduled(array(10, 10000).sum(1))[0].reduce_block == LANES_SUM_BLOCK
    assert scheduled(array(10000, 100).sum(0))[0].reduce_block == SUM_BLOCK
    assert scheduled(array(10, 10000).max(1))[0].reduce_block == 0
    assert scheduled(array(10, 10000, dtype=np.int32).max(1))[0].reduce_block == 0


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (2, 3, 5), (1, 17)])
def test_small_shapes_have_options(shape):
    opts, written = scheduled(array(*shape) + 1.0)
    assert math.prod(written) == math.prod(shape)
    assert opts.vector is None or written[opts.vector] > 1 or math.prod(shape) == 1


def test_neighbouring_reduced_axes_are_one():
    """Two short axes fill neither lanes nor blocks: the sum of (50000, 2) once ran in two chains of 50000."""
    opts, _ = scheduled(array(3, 5000, 2).sum((1, 2)))
    assert opts.reduce_lanes == 16
    apart, _ = scheduled(array(4, 3, 5, 16).sum((1, 3)))
    assert apart.reduce_lanes == 16


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((100_000,), (0,)),
        ((50_000, 2), (0, 1)),
        ((2, 50_000), (0, 1)),
        ((300, 7, 300), (0, 2)),
        ((40, 50, 60), (0, 1, 2)),
    ],
)
def test_sums_are_about_as_accurate_as_numpys(shape, axes):
    """Of equal numbers, where every rounding goes the same way."""
    x = np.full(shape, 0.1, np.float32)
    exact = x.astype(np.float64).sum(axes)
    ours, numpys = (np.abs(s / exact - 1).max() for s in (Tensor(x).sum(axes).numpy(), x.sum(axes)))
    assert ours <= max(numpys, 16 * 2.0**-24)


def test_long_chains_of_several_axes_run_in_blocks():
    """Where no address allows one axis, the outer ones are cut."""
    x = np.full((20_000, 3, 4), 0.1, np.float32)
    ours = Tensor(x).transpose(1, 2)[:, ::2].sum((0, 1)).numpy()
    exact = x.transpose(0, 2, 1)[:, ::2].astype(np.float64).sum((0, 1))
    assert np.abs(ours / exact - 1).max() < 2e-5
