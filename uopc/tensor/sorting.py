"""Sorting: a network of minima and maxima over views, of integers that are ordered as the elements are.

A bitonic merge (Batcher 1968) compares elements at fixed distances, so that each step is elementwise: in lanes, in all
threads, and the same whatever the values are.  As many steps as registers hold elements for are one kernel.  The work
is n log(n)^2, in about log2(n)^2 / 7 kernels: long axes take a while to compile at first.

Where positions are asked for, an integer carries its own in its low half, which also keeps equal elements in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from uopc.dtype import dtypes
from uopc.ops import Level, Ops
from uopc.tensor.convolution import Convolution
from uopc.tensor.core import as_dtype
from uopc.tensor.keys import keys_of, nan_last, values_of
from uopc.tensor.shapes import counter, expand, integer, one_axis, permute, reshape
from uopc.uop import UOp

if TYPE_CHECKING:
    from typing_extensions import Self

# Elements that an iteration of a kernel compares, half of the registers: 2 to the power of the steps of a merge.
AT_ONCE, STEPS_AT_ONCE = 16, 4
LONGEST = 1 << 31

# Two places to be compared, of which the first gets the lesser.
Pairs = list[tuple[int, int]]


class Sorting(Convolution):
    """sort, argsort and topk."""

    __slots__ = ()

    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """The elements along an axis in order.  A NaN is greater than all else, as in NumPy and PyTorch; -0.0 comes
        before 0.0.
        """
        at = one_axis(axis, self.ndim)
        if self.shape[at] < 2 or 0 in self.shape:
            return self._of(self.uop)
        u = _moved_last(self.uop, at)
        keys = in_order(_turned(nan_last(keys_of(u), u), descending))
        u = _moved_back(values_of(_turned(keys, descending), self.dtype), at)
        if self.dtype.is_float:  # keys are bits: a gradient goes back by way of positions
            u = UOp(Ops.ALIAS, (u, self._at(self.argsort(at, descending), at)))
        return self._of(u)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """The int64 positions of the elements along an axis, in their order.  Equal elements stay as they were."""
        at = one_axis(axis, self.ndim)
        u = _moved_last(self.uop, at)
        if self.shape[at] < 2 or 0 in self.shape:
            return self._of(expand(UOp.const(0, dtypes.int64), self.shape))
        if u.dtype.is_float:
            u = u.eq(0.0).where(UOp.const(0.0, u.dtype), u)  # -0.0 is no less than 0.0
        return self._of(_moved_back(positions(_turned(nan_last(keys_of(u), u), descending)), at))

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """The ``k`` largest (or smallest) elements along an axis, in order, and their int64 positions, as PyTorch.

        Of equal elements the first ones; a NaN is the largest.  ValueError where there are fewer than ``k``.
        """
        at, count = one_axis(axis, self.ndim), integer(k, "k")
        if not 0 <= count <= self.shape[at]:
            raise ValueError(f"topk of k={count} along axis {at} of shape {self.shape}: accepted is 0 to the size")
        first: list[Any] = [slice(None)] * self.ndim
        first[at] = slice(count)
        places = self.argsort(at, largest)[tuple(first)].contiguous()
        return self._of(self._at(places, at)), places

    def _at(self, places: Self, at: int) -> UOp:
        """The elements at known positions along one axis."""
        index = [
            as_dtype(places.uop, dtypes.index) if a == at else counter(places.shape, a, dtypes.index)
            for a in range(self.ndim)
        ]
        return UOp(Ops.GATHER, (self.uop, *index))


def _moved_last(u: UOp, axis: int) -> UOp:
    return permute(u, (*[a for a in range(len(u.shape)) if a != axis], axis))


def _moved_back(u: UOp, axis: int) -> UOp:
    last = len(u.shape) - 1
    return permute(u, (*range(axis), last, *range(axis, last)))


def _turned(keys: UOp, descending: bool) -> UOp:
    """Integers whose order is the contrary; once more, and they are what they were."""
    return keys ^ -1 if descending else keys


def positions(keys: UOp) -> UOp:
    """Where along the last axis the least is, the next, and so on, in int64."""
    if keys.dtype is dtypes.int64:  # by the low halves, and then, equal ones in that order, by the high halves
        low = as_dtype((keys & 0xFFFFFFFF) + dtypes.int32.min, dtypes.int32)
        first = positions(low)
        second = positions(as_dtype(_picked(keys, first) >> 32, dtypes.int32))
        return _picked(first, second)
    own = counter(keys.shape, len(keys.shape) - 1, dtypes.int64)
    return in_order((as_dtype(keys, dtypes.int64) << 32) | own) & 0xFFFFFFFF


def _picked(u: UOp, places: UOp) -> UOp:
    """Elements at places along the last axis, written down."""
    last = len(u.shape) - 1
    index = [counter(u.shape, a, dtypes.index) for a in range(last)]
    return UOp(Ops.STAGE, (UOp(Ops.GATHER, (u, *index, as_dtype(places, dtypes.index))),), Level.KERNEL)


# ---- the network ----


def in_order(u: UOp) -> UOp:
    """Integers in order along the last axis, of at least two elements."""
    *batch, n = u.shape
    if n > LONGEST:
        raise ValueError(f"sorting {n} elements of shape {u.shape}: accepted are at most {LONGEST}")
    size = 1 << (n - 1).bit_length()
    if size > n:
        edges = ((0, 0),) * len(batch) + ((0, size - n),)
        inside = UOp(Ops.PAD, (expand(UOp.const(True), u.shape),), edges)
        u = inside.where(UOp(Ops.PAD, (u,), edges), UOp.const(u.dtype.max, u.dtype))
    sorted_to = min(size, AT_ONCE)
    whole = (*batch, size)
    u = _steps(u, size, sorted_to, sorted_to, _odd_even(sorted_to))
    while sorted_to < size:
        sorted_to *= 2
        left = sorted_to.bit_length() - 1
        while left:
            count = (left - 1) % STEPS_AT_ONCE + 1
            u = _steps(u, size, sorted_to, 1 << left, _merge(1 << count))
            left -= count
    u = reshape(u, whole)
    return UOp(Ops.SHRINK, (u,), (*[(0, m) for m in batch], (0, n))) if size > n else u


def _steps(u: UOp, size: int, run: int, span: int, pairs: Pairs) -> UOp:
    """Some steps towards runs of ``run`` elements in order, of ``size`` in all: places are parts of each ``span``
    elements, and pairs of them are compared in turn.

    Every other run is in descending order, as bitonic merges need, but for the last.
    """
    parts = 1 + max(b for _, b in pairs)
    turns = 1 if run == size else 2
    # (pairs of runs, run of the pair, span of the run, part of the span, element of the part)
    shape = (prod(u.shape) // (turns * run), turns, run // span, parts, span // parts)
    v = reshape(u, shape)
    place = (*shape[:3], 1, shape[4])
    descending = counter(place, 1, v.dtype) * -1
    held = [UOp(Ops.SHRINK, (v,), (*[(0, m) for m in shape[:3]], (j, j + 1), (0, shape[4]))) for j in range(parts)]
    if turns > 1:
        held = [x ^ descending for x in held]
    for a, b in pairs:
        held[a], held[b] = held[a].alu(Ops.MIN, held[b]), held[a].alu(Ops.MAX, held[b])
    if turns > 1:
        held = [x ^ descending for x in held]
    return UOp(Ops.STAGE, (UOp(Ops.CAT, tuple(held), 3),), Level.KERNEL)


def _merge(n: int) -> Pairs:
    """A bitonic merge of ``n`` places: halves, quarters, and so on."""
    distances = [n >> k for k in range(1, n.bit_length())]
    return [(i, i + d) for d in distances for i in range(n) if not i & d]


def _odd_even(n: int) -> Pairs:
    """Batcher's odd-even merge sort of ``n`` places, a power of two: fewer comparisons than by bitonic merges."""
    return list(_odd_even_pairs(n))


def _odd_even_pairs(n: int) -> Iterator[tuple[int, int]]:
    run = 1
    while run < n:
        distance = run
        while distance:
            for start in range(distance % run, n - distance, 2 * distance):
                for i in range(start, min(start + distance, n - distance)):
                    if i // (2 * run) == (i + distance) // (2 * run):
                        yield i, i + distance
            distance //= 2
        run *= 2
