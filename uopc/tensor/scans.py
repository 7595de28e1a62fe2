"""Scans: for each element, all elements up to it combined.

In blocks, and blocks of blocks: what the blocks before it come to stands before a block.  The work and the memory are
linear in the length, rounding errors of a sum grow with its logarithm, lanes run across blocks, and threads share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uopc.dtype import DType
from uopc.ops import Level, Ops, identity
from uopc.tensor.core import as_dtype
from uopc.tensor.reduce import Reduce, reduce_, sum_dtype
from uopc.tensor.shapes import along, expand, one_axis, permute, reshape
from uopc.uop import UOp, widened

if TYPE_CHECKING:
    from typing_extensions import Self

# Elements that follow one another in a block: a square of vectors, read and written by rows.
SCAN_BLOCK = 16


class Scans(Reduce):
    """cumsum and cumprod."""

    __slots__ = ()

    def cumsum(self, axis: int | None = None) -> Self:
        """The sums of all elements up to and including each, along an axis; of the flattened Tensor for None.

        Types as for ``sum``.  A Tensor without axes gives one of shape (1,), as NumPy.
        """
        return self._scanned(Ops.ADD, axis)

    def cumprod(self, axis: int | None = None) -> Self:
        """The products of all elements up to and including each, as ``cumsum``."""
        return self._scanned(Ops.MUL, axis)

    def _scanned(self, op: Ops, axis: int | None) -> Self:
        dtype = sum_dtype(self.dtype)
        u = along(widened(as_dtype(self.uop, dtype)))
        if axis is None:
            u = reshape(u, (self.numel(),))
        at = one_axis(0 if axis is None else axis, len(u.shape))
        if u.shape[at] <= 1:
            return self._of(as_dtype(u, dtype))
        back = (*range(at), *range(at + 1, len(u.shape)), at)
        there = (*range(at), len(u.shape) - 1, *range(at, len(u.shape) - 1))
        return self._of(permute(scan(permute(u, back), op, dtype), there))


def scan(u: UOp, op: Ops, dtype: DType) -> UOp:
    """Everything up to each element along the last axis combined by ``op``, as ``dtype``."""
    return _first(_in_whole_blocks(u, op, dtype), u.shape[-1])


def _in_whole_blocks(u: UOp, op: Ops, dtype: DType) -> UOp:
    """The same, and something behind it that fills the last block."""
    *rest, n = u.shape
    if n <= SCAN_BLOCK:
        return _one_by_one(u, op, dtype, None)
    blocks = -(-n // SCAN_BLOCK)
    nothing = UOp.const(identity(op, u.dtype), u.dtype)
    parts = reshape(_with_edges(u, 0, blocks * SCAN_BLOCK - n, nothing), (*rest, blocks, SCAN_BLOCK))
    # written down: each is read by the next level and by the blocks of this one
    totals = UOp(Ops.STAGE, (reduce_(parts, op, (len(rest) + 1,)),), Level.KERNEL)
    ends = UOp(Ops.STAGE, (_in_whole_blocks(totals, op, u.dtype),), Level.KERNEL)
    before = reshape(_first(_with_edges(ends, 1, 0, nothing), blocks), (*rest, blocks, 1))
    return reshape(_one_by_one(parts, op, dtype, before), (*rest, blocks * SCAN_BLOCK))


def _one_by_one(u: UOp, op: Ops, dtype: DType, before: UOp | None) -> UOp:
    """A short last axis, each element after the one before; what stands in ``before`` comes first."""
    *rest, n = u.shape
    bounds = [(0, m) for m in rest]
    elements = [UOp(Ops.SHRINK, (u,), (*bounds, (j, j + 1))) for j in range(n)]
    for j in range(1, n):
        elements[j] = elements[j - 1].alu(op, elements[j])
    if before is not None:
        elements = [before.alu(op, x) for x in elements]
    return UOp(Ops.CAT, tuple([as_dtype(x, dtype) for x in elements]), len(rest))


def _with_edges(u: UOp, before: int, behind: int, nothing: UOp) -> UOp:
    """``u`` with elements around its last axis that change no result."""
    if not before and not behind:
        return u
    edges = ((0, 0),) * (len(u.shape) - 1) + ((before, behind),)
    padded = UOp(Ops.PAD, (u,), edges)
    if nothing.arg == 0:
        return padded
    return UOp(Ops.PAD, (expand(UOp.const(True), u.shape),), edges).where(padded, nothing)


def _first(u: UOp, n: int) -> UOp:
    """The first ``n`` elements of the last axis."""
    return u if u.shape[-1] == n else UOp(Ops.SHRINK, (u,), (*[(0, m) for m in u.shape[:-1]], (0, n)))
