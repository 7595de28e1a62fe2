"""Convolution and pooling: sums, maxima and means over windows.

Windows are a view: the axis repeats, and is read in rows of which each begins one step further on; no element is
copied.  A convolution is then a product that is summed, and the compiler is told nothing else of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uopc.dtype import DType, dtypes, promote
from uopc.ops import Ops
from uopc.tensor.arithmetic import graph_of
from uopc.tensor.contraction import sum_of_products
from uopc.tensor.core import as_dtype
from uopc.tensor.nn import NN
from uopc.tensor.reduce import mean_of, reduce_
from uopc.tensor.shapes import Shape, expand, integer, integers, permute, reshape
from uopc.uop import UOp, widened

if TYPE_CHECKING:
    from typing_extensions import Self

Sizes = int | Sequence[int]
# How many elements before and behind each axis.
Edges = tuple[tuple[int, int], ...]


def windows(u: UOp, kernel: Shape, stride: Shape, dilation: Shape) -> UOp:
    """The windows over the last axes of ``u``: (..., places along each, elements of a window along each).

    A place is ``stride`` from the next, an element ``dilation``.  ValueError where an axis is shorter than a window.
    """
    first, n = len(u.shape) - len(kernel), len(kernel)
    sizes = u.shape[first:]
    if any(gap * (k - 1) >= size for size, k, gap in zip(sizes, kernel, dilation)):
        raise ValueError(f"a window of {kernel}, dilated by {dilation}, does not fit into {sizes}")
    for axis, (k, step, gap) in enumerate(zip(kernel, stride, dilation)):
        u = _as_rows(u, first + 2 * axis, k, step, gap)
    elements, places = (tuple([first + 2 * i + at for i in range(n)]) for at in (0, 1))
    return permute(u, (*range(first), *places, *elements))


def _as_rows(u: UOp, axis: int, k: int, step: int, gap: int) -> UOp:
    """One axis as (element of the window, place): rows ``gap`` longer than the axis, over repetitions of the axis."""
    before, n, after = u.shape[:axis], u.shape[axis], u.shape[axis + 1 :]
    row = n + gap
    times = -(-k * row // n)
    repeated = expand(reshape(u, (*before, 1, n, *after)), (*before, times, n, *after))
    rows = reshape(_first(reshape(repeated, (*before, times * n, *after)), axis, k * row), (*before, k, row, *after))
    rows = _first(rows, axis + 1, n - gap * (k - 1))
    return UOp(Ops.STRIDE, (rows,), (*[1] * (axis + 1), step, *[1] * len(after))) if step > 1 else rows


def _first(u: UOp, axis: int, size: int) -> UOp:
    """The first ``size`` elements along ``axis``."""
    return UOp(Ops.SHRINK, (u,), tuple([(0, size if i == axis else n) for i, n in enumerate(u.shape)]))


class Convolution(NN):
    """conv1d, conv2d, max_pool2d and avg_pool2d."""

    __slots__ = ()

    # ---- convolution ----

    def conv1d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Self:
        """As ``conv2d``, along one axis: (N, C, L) and (O, C / groups, k) give (N, O, L')."""
        return self._convolved(weight, bias, stride, padding, dilation, groups, 1)

    def conv2d(
        self,
        weight: Any,
        bias: Any = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Self:
        """The products of ``weight`` with every window of this Tensor, summed, as PyTorch: nothing is flipped.

        self: (N, C, H, W) or (C, H, W).  weight: (O, C / groups, kH, kW).  bias: (O,) or None.  stride, padding,
        dilation: one number or one for each axis.  padding: zeros on both sides; "valid" is none, and "same" as many
        as keep H and W, the odd one behind, for a stride of 1.  groups: output channels in as many groups, each of
        which sees its share of the input channels.  The dtypes promote, and integers wrap, as for ``@``.
        ValueError for sizes that do not fit.
        """
        return self._convolved(weight, bias, stride, padding, dilation, groups, 2)

    def _convolved(
        self, weight: Any, bias: Any, stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int, n: int
    ) -> Self:
        x, w, added = self.uop, graph_of(weight), None if bias is None else graph_of(bias)
        if w is None or (added is None) is not (bias is None):
            raise TypeError(f"conv{n}d takes Tensors or arrays for weight and bias")
        groups = integer(groups, "a number of groups")
        _check_channels(x.shape, w.shape, None if added is None else added.shape, groups, n)
        dtype = promote(x.dtype, w.dtype)
        dtype = dtype if added is None else promote(dtype, added.dtype)
        kernel, steps, gaps = w.shape[2:], _each(stride, n, "stride"), _each(dilation, n, "dilation")
        x = _padded(as_dtype(x, dtype), _edges(padding, kernel, steps, gaps))
        batch, (channels, seen) = x.shape[: -n - 1], w.shape[:2]
        x = windows(x, kernel, steps, gaps)
        places = x.shape[len(batch) + 1 : len(batch) + 1 + n]
        # (batch, group if there are several, channel of the result, places, channel of the group, elements)
        split = (groups,) if groups > 1 else ()
        lead = len(batch) + len(split)
        x = reshape(x, (*batch, *split, seen, *places, *kernel))
        x = permute(x, (*range(lead), *range(lead + 1, lead + 1 + n), lead, *range(lead + 1 + n, lead + 1 + 2 * n)))
        whole = (*batch, *split, channels // groups, *places, seen, *kernel)
        x = expand(reshape(x, (*batch, *split, 1, *places, seen, *kernel)), whole)
        w = reshape(as_dtype(w, dtype), (*split, channels // groups, *[1] * n, seen, *kernel))
        summed = tuple(range(lead + 1 + n, len(whole)))
        out = reshape(sum_of_products(x, expand(w, whole), summed), (*batch, channels, *places))
        if added is not None:
            out = out + expand(reshape(as_dtype(added, dtype), (channels, *[1] * n)), out.shape)
        return self._of(out)

    # ---- pooling ----

    def max_pool2d(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1
    ) -> Self:
        """The maximum of every window over the last two axes, as PyTorch; NaN where a window holds one.

        stride: the size of the window by default.  padding: elements on both sides that are less than all others; at
        most half a window.  ValueError for sizes that do not fit.
        """
        kernel, steps, edges = self._pool(kernel_size, stride, padding, dilation)
        padded = self.pad(((0, 0),) * (self.ndim - 2) + edges, value=_least(self.dtype)).uop
        over = windows(padded, kernel, steps, _each(dilation, 2, "dilation"))
        return self._of(reduce_(over, Ops.MAX, (self.ndim, self.ndim + 1)))

    def avg_pool2d(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, count_include_pad: bool = True
    ) -> Self:
        """The mean of every window over the last two axes, as PyTorch; integers and bools give float64.

        stride: the size of the window by default.  padding: zeros on both sides, at most half a window; they count as
        elements unless ``count_include_pad`` is False.  ValueError for sizes that do not fit.
        """
        kernel, steps, edges = self._pool(kernel_size, stride, padding, 1)
        dtype = self.dtype if self.dtype.is_float else dtypes.float64
        axes = (self.ndim, self.ndim + 1)
        x = widened(as_dtype(self.uop, dtype))
        over = windows(_padded(x, edges), kernel, steps, (1, 1))
        if count_include_pad or edges == ((0, 0), (0, 0)):
            return self._of(as_dtype(mean_of(over, axes, keepdim=False), dtype))
        inside = windows(_padded(expand(UOp.const(1.0, x.dtype), x.shape), edges), kernel, steps, (1, 1))
        return self._of(as_dtype(reduce_(over, Ops.ADD, axes) / reduce_(inside, Ops.ADD, axes), dtype))

    def _pool(
        self, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes
    ) -> tuple[Shape, Shape, Edges]:
        """The sizes of a window, its steps, and what is put around the last two axes."""
        if self.ndim < 2:
            raise ValueError(f"pooling over the last two axes of shape {self.shape}: there are not as many")
        kernel = _each(kernel_size, 2, "kernel_size")
        steps = kernel if stride is None else _each(stride, 2, "stride")
        gaps = _each(dilation, 2, "dilation")
        edges = _edges(padding, kernel, steps, gaps)
        if any(2 * before > gap * (k - 1) + 1 for (before, _), k, gap in zip(edges, kernel, gaps)):
            raise ValueError(f"padding={padding!r} is more than half of a window of {kernel}, dilated by {gaps}")
        return kernel, steps, edges


def _each(value: Sizes, n: int, name: str, least: int = 1) -> Shape:
    """A number for each of ``n`` axes."""
    given = integers((value,), name) if isinstance(value, (tuple, list)) else integers((value,) * n, name)
    if len(given) != n or min(given) < least:
        raise ValueError(f"{name}={value!r}: accepted are one or {n} numbers of at least {least}")
    return given


def _edges(padding: Sizes | str, kernel: Shape, stride: Shape, dilation: Shape) -> Edges:
    """What is put before and behind each axis."""
    if not isinstance(padding, str):
        return tuple([(p, p) for p in _each(padding, len(kernel), "padding", least=0)])
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding != "same":
        raise ValueError(f'padding={padding!r}; accepted are numbers, "same" and "valid"')
    if max(stride) > 1:
        raise ValueError(f'padding="same" keeps sizes, and stride={stride} does not')
    missing = [gap * (k - 1) for k, gap in zip(kernel, dilation)]
    return tuple([(m // 2, m - m // 2) for m in missing])


def _padded(u: UOp, edges: Edges) -> UOp:
    """Zeros around the last axes."""
    if not any(before or behind for before, behind in edges):
        return u
    return UOp(Ops.PAD, (u,), ((0, 0),) * (len(u.shape) - len(edges)) + edges)


def _least(dtype: DType) -> bool | int | float:
    """What no element is less than."""
    if dtype.is_float:
        return -float("inf")
    return -(1 << (8 * dtype.itemsize - 1)) if dtype.kind == "i" else 0


def _check_channels(x: Shape, w: Shape, bias: Shape | None, groups: int, n: int) -> None:
    """ValueError where shapes do not belong together."""
    axes = "L" if n == 1 else "H, W"
    if len(x) not in (n + 1, n + 2) or len(w) != n + 2 or 0 in w[2:]:
        raise ValueError(
            f"conv{n}d of shape {x} with weight {w}: needed are (N, C, {axes}) or (C, {axes}), and (O, C / groups, "
            f"{'k' if n == 1 else 'kH, kW'}) with windows of at least one element"
        )
    channels = x[-n - 1]
    if groups < 1 or channels != w[1] * groups or w[0] % groups:
        raise ValueError(
            f"conv{n}d of shape {x} with weight {w} in {groups} groups: {channels} channels are needed to be "
            f"{w[1]} a group, and groups to divide {w[0]}"
        )
    if bias is not None and bias != w[:1]:
        raise ValueError(f"conv{n}d with weight {w}: the bias has shape {bias}, and {w[:1]} is needed")


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """``Tensor.conv2d`` as a function: x is a Tensor or an array."""
    if not isinstance(x, Convolution):
        from uopc.tensor import Tensor

        x = Tensor(x)
    return x.conv2d(weight, bias, stride, padding, dilation, groups)
