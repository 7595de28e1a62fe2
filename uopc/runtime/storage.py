"""Storage: the memory behind a BUFFER node, and how it lives and dies.

A BUFFER node of a tensor graph stands for an array.  Its ``realized`` slot holds the ``Storage``, so the memory lives
for as long as some graph mentions the node, and no longer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from uopc._hot.call import address_of
from uopc.dtype import DType
from uopc.ops import Ops, ParamArg
from uopc.uop import UOp

# Slots of tensor graphs only tell arrays apart.  They keep clear of the small numbers that plans and kernels use: a
# BUFFER of a cached plan must never be the node of an array, or the plan would keep that array and all its results
# alive.
_slots = itertools.count(1 << 32)


@dataclass(frozen=True, eq=False)
class Storage:
    """A flat run of elements in memory.

    array: one-dimensional and contiguous, of ``dtype.numpy`` (bfloat16 as uint16); it keeps whatever owns the memory
    alive.
    address: of its first element.
    """

    dtype: DType
    array: np.ndarray[Any, Any]
    address: int


def new_buffer(dtype: DType, shape: tuple[int, ...], array: np.ndarray[Any, Any]) -> UOp:
    """A BUFFER node for ``array`` (flat, ``prod(shape)`` elements of ``dtype.numpy``) that exists nowhere else."""
    if array.ndim != 1 or array.dtype != dtype.numpy:
        raise TypeError(
            f"a buffer of {dtype!r} is flat and holds {dtype.numpy}, not {array.dtype} of shape {array.shape}"
        )
    buffer = placeholder(dtype, shape)
    buffer.realized = Storage(dtype, array, address_of(array))
    return buffer


def placeholder(dtype: DType, shape: tuple[int, ...]) -> UOp:
    """A BUFFER node without memory, for an argument of a function that is being captured."""
    return UOp(Ops.BUFFER, (), ParamArg(next(_slots), dtype, shape))
