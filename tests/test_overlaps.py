"""overlaps: what windows over a padded array read stands in a tile, once a block, and values are those of NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.count import products, times
from uopc.ops import Ops
from uopc.pipeline import Kernel, make_plan
from uopc.tensor.convolution import windows
from uopc.uop import UOp, dtypes, memory_of, toposort


def kernel_of(t: Tensor) -> Kernel:
    plan = make_plan([t.uop])
    (kernel,) = plan.kernels
    assert not plan.temps
    return kernel


def elements_read(kernel: Kernel, slot: int) -> int:
    runs = times(kernel.linear)
    loads = [u for u in runs if u.op is Ops.LOAD and memory_of(u.src[0]).op is Ops.BUFFER]
    return sum(runs[u] * u.dtype.count for u in loads if memory_of(u.src[0]).arg.slot == slot)


def arrays(*shapes: tuple[int, ...]) -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [Tensor(rng.standard_normal(s, dtype=np.float32)) for s in shapes]


def tiles(kernel: Kernel) -> int:
    return sum(u.op is Ops.ALLOC and math.prod(u.arg.shape) > 64 for u in toposort(kernel.linear))


def has_tile(kernel: Kernel) -> bool:
    return tiles(kernel) > 0


def scattered(kernel: Kernel) -> list[UOp]:
    """Loads at a vector of addresses."""
    loads = [u for u in kernel.linear.src if u.op is Ops.LOAD]
    return [u for u in loads if u.src[0].src[1].dtype is not dtypes.index]


@pytest.mark.parametrize("n, c, side", [(8, 64, 56), (1, 64, 56), (2, 256, 28), (1, 16, 300)])
def test_padded_windows_are_filled_once_a_block(n, c, side):
    """Each element is read by nine windows of every channel; from memory it comes little more than once."""
    x, w = arrays((n, c, side, side), (c, c, 3, 3))
    kernel = kernel_of(x.conv2d(w, padding=1))
    assert has_tile(kernel)
    size, useful = n * c * side**2, n * c * c * side**2 * 9
    assert size <= elements_read(kernel, 1) <= 2.5 * size
    assert useful <= products(kernel.linear, {2}) <= 1.2 * useful


def test_no_mask_is_asked_inside_the_sum():
    x, w = arrays((2, 32, 40, 48), (32, 32, 3, 3))
    order = list(kernel_of(x.conv2d(w, padding=1)).linear.src)
    begun = min(i for i, u in enumerate(order) if u.op is Ops.RANGE and u.arg.axis_type.name == "REDUCE")
    assert not any(u.op is Ops.LOAD and len(u.src) > 1 for u in order[begun:])


def test_every_other_window_is_picked_from_whole_vectors():
    x, w = arrays((2, 32, 56, 64), (32, 32, 3, 3))
    kernel = kernel_of(x.conv2d(w, padding=1, stride=2))
    assert has_tile(kernel) and not scattered(kernel)
    useful = 2 * 32 * 32 * 28 * 32 * 9
    assert useful <= products(kernel.linear, {2}) <= 1.2 * useful
    for pooled in (x.avg_pool2d(2), x.avg_pool2d(3, 2, 1), x.max_pool2d(2)):
        assert not scattered(kernel_of(pooled))


def test_bias_and_what_follows_it_join_the_kernel():
    x, w, b = arrays((2, 32, 40, 48), (32, 32, 3, 3), (32,))
    assert has_tile(kernel_of(x.conv2d(w, b, padding=1).relu()))


def test_means_over_windows_have_a_tile_too():
    (x,) = arrays((4, 8, 60, 64))
    kernel = kernel_of(x.avg_pool2d(5, stride=1, padding=2))
    assert has_tile(kernel)
    assert elements_read(kernel, 1) <= 3 * x.numel()


def test_what_is_read_in_place_or_seldom_has_none():
    x, w = arrays((2, 16, 40, 48), (16, 16, 3, 3))
    (line,) = arrays((4, 4096))
    assert not has_tile(kernel_of(x.conv2d(w)))
    assert not has_tile(kernel_of(x.max_pool2d(2)))
    around = Tensor(windows(line.pad(((0, 0), (1, 1))).uop, (2,), (1,), (1,)))
    assert not has_tile(kernel_of(around.sum(-1)))


SHAPES = [
    # x, w, padding, dilation, stride
    ((2, 64, 19, 23), (33, 64, 3, 3), 1, 1, 1),
    ((1, 13, 40, 61), (200, 13, 3, 3), 1, 1, 1),
    ((1, 6, 9, 301), (7, 6, 5, 3), (2, 1), 1, 1),
    ((3, 8, 33, 32), (16, 8, 3, 3), 2, 2, 1),
    ((1, 96, 20, 20), (8, 96, 5, 5), 4, 1, 1),
    ((1, 3, 300, 7), (5, 3, 3, 3), 1, 1, 1),
    ((2, 16, 57, 70), (24, 16, 3, 3), 1, 1, 2),
    ((1, 3, 65, 66), (16, 3, 7, 7), 3, 1, 2),
    ((1, 8, 40, 70), (8, 8, 3, 3), 1, 1, 3),
]


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_values(case):
    shape, weight, padding, dilation, stride = case
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(shape, np.float32), rng.standard_normal(weight, np.float32)
    got = Tensor(x).conv2d(w, None, stride, padding, dilation).numpy()
    p, q = padding if isinstance(padding, tuple) else (padding, padding)
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (p, p), (q, q)))
    reach = tuple(dilation * (k - 1) + 1 for k in weight[2:])
    seen = np.lib.stride_tricks.sliding_window_view(wide, reach, (2, 3))
    seen = seen[:, :, ::stride, ::stride, ::dilation, ::dilation]
    exact = np.einsum("nchwij,ocij->nohw", seen, w.astype(np.float64))
    np.testing.assert_allclose(got, exact, atol=2e-6 * np.abs(exact).max())
    lowest = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), constant_values=-np.inf)
    maxima = np.lib.stride_tricks.sliding_window_view(lowest, (5, 5), (2, 3)).max((-2, -1))
    np.testing.assert_array_equal(Tensor(x).max_pool2d(5, 1, 2).numpy(), maxima)


def test_infinities_and_nan_stay_in_their_windows():
    x, w = np.zeros((1, 8, 32, 32), np.float32), np.ones((8, 8, 3, 3), np.float32)
    x[0, 3, 0, 0], x[0, 3, 20, 31] = np.inf, np.nan
    got = Tensor(x).conv2d(w, padding=1).numpy()
    assert np.isinf(got[0, :, :2, :2]).all() and np.isinf(got).sum() == 8 * 4
    assert np.isnan(got[0, :, 19:22, 30:]).all() and np.isnan(got).sum() == 8 * 6


@pytest.mark.parametrize("channels", [8, 64, 130, 257])
def test_sums_of_a_fixed_order_stay_inside_their_tile(channels):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, channels, 12, 32), np.float32), rng.standard_normal((8, channels, 3, 3), np.float32)
    with uopc.options(batch_invariant=True):
        # a second one would begin behind the first, and end behind what there is
        assert tiles(kernel_of(Tensor(x).conv2d(w, padding=1))) <= 1
        got, mean = Tensor(x).conv2d(w, padding=1).numpy(), Tensor(x).avg_pool2d(4, 1, 2)
        usual = mean.numpy()
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = np.lib.stride_tricks.sliding_window_view(wide[:, :, 1:-1, 1:-1], (3, 3), (2, 3))
    exact = np.einsum("nchwij,ocij->nohw", seen, w.astype(np.float64))
    np.testing.assert_allclose(got, exact, atol=2e-6 * np.abs(exact).max())
    means = np.lib.stride_tricks.sliding_window_view(wide, (4, 4), (2, 3)).mean((-2, -1))
    np.testing.assert_allclose(usual, means, atol=1e-6)
