"""Memory that comes in and goes out: NumPy arrays, buffers, DLPack, and values that need no kernel to be seen.

Arrays come in without a copy wherever their memory can be addressed in whole elements: contiguous ones as a BUFFER,
strided ones (negative and zero strides too) as a VIEW of the BUFFER that spans what they touch.  They are never
written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from uopc.dtype import DType, bfloat16_to_float32, dtypes, from_numpy
from uopc.ops import MOVEMENT, Ops, ViewArg
from uopc.runtime.storage import new_buffer
from uopc.tensor import dlpack
from uopc.uop import UOp

Array = np.ndarray[Any, Any]

_ACCEPTED = "NumPy arrays, numbers, (nested) lists of numbers, and objects with __array__, __dlpack__ or a buffer"


dtype_of = lru_cache(maxsize=256)(from_numpy)  # a NumPy dtype takes long to tell its name


# ---- in ----


def scalar_dtype(value: bool | int | float) -> DType:
    """The type that a Python number has on its own."""
    return (
        dtypes.bool_
        if isinstance(value, bool)
        else dtypes.default_int
        if isinstance(value, int)
        else dtypes.default_float
    )


def from_scalar(value: bool | int | float, asked: DType | None = None) -> UOp:
    """A constant of its own type or of the one ``asked`` for, to which it is converted once; OverflowError for an int
    beyond 64 bits that is to stay one.
    """
    if asked is not None and asked.is_float:
        return weak_constant(value, asked)
    if asked is not None and isinstance(value, float):
        return UOp.const(value, dtypes.float64).cast(asked)
    dtype = scalar_dtype(value)
    if dtype.is_int and not dtype.min <= value <= dtype.max:
        dtype = dtypes.uint64
        if not 0 <= value <= dtype.max:
            raise OverflowError(f"{value} does not fit in 64 bits")
    return UOp.const(value, dtype if asked is None else asked)


def weak_constant(value: bool | int | float, dtype: DType) -> UOp:
    """A Python number as ``dtype``; OverflowError, as NumPy, for an int that the type cannot hold."""
    if dtype.is_int and not dtype.min <= value <= dtype.max:
        raise OverflowError(f"Python integer {value} is out of bounds for {dtype.name}")
    try:
        return UOp.const(float(value) if dtype.is_float else value, dtype)
    except OverflowError:
        raise OverflowError(f"a Python integer of {int(value).bit_length()} bits is too large for a float") from None


def from_generic(value: np.generic) -> UOp:
    """A constant of a NumPy scalar's own type."""
    dtype = dtype_of(value.dtype)
    return UOp.const(float(value) if dtype.is_float else value.item(), dtype)


def from_array(array: Array, held: DType | None = None) -> UOp:
    """The memory of ``array``, read in place; copied only where elements are byte-swapped or not aligned.

    held: bfloat16, of an array of its bits.  TypeError for dtypes that uopc does not hold, and for masked arrays.
    """
    dtype = dtype_of(array.dtype) if held is None else held
    if type(array) is not np.ndarray:
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("a masked array is not accepted: its mask would be lost; use array.filled(value)")
        array = np.asarray(array)
    if not array.dtype.isnative or not array.flags.aligned:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is dtypes.bfloat16:
        array = array.view(np.uint16)
    if array.flags.c_contiguous:
        return new_buffer(dtype, array.shape, array.reshape(-1))
    return _from_strided(dtype, array)


def _from_strided(dtype: DType, array: Array) -> UOp:
    """A VIEW of the run of memory from the first to the last element that ``array`` touches."""
    itemsize = array.itemsize
    if any(step % itemsize for step in array.strides):  # a field of a record
        return from_array(np.ascontiguousarray(array), dtype)
    strides = tuple([step // itemsize if n > 1 else 0 for step, n in zip(array.strides, array.shape)])
    reach = [step * (n - 1) for step, n in zip(strides, array.shape)]
    offset = -sum([r for r in reach if r < 0])
    span = offset + sum([r for r in reach if r > 0]) + 1
    lowest = array[tuple([slice(-1, None) if r < 0 else slice(0, 1) for r in reach])]
    flat = as_strided(lowest, (span,), (itemsize,), writeable=False)
    return UOp(Ops.VIEW, (new_buffer(dtype, (span,), flat),), ViewArg(array.shape, strides, offset))


def memory_of(data: Any) -> tuple[Array, DType]:
    """The memory of an object with ``__array__`` or ``__dlpack__``, and its type; bfloat16 as its bits, unless NumPy
    was given that type.
    """
    if hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        try:
            array = np.asarray(data)
            return array, dtype_of(array.dtype)
        except TypeError:  # of types that NumPy lacks; DLPack may have them
            if not hasattr(data, "__dlpack__"):
                raise
    return dlpack.read(data)


def from_data(data: Any, asked: DType | None = None) -> UOp:
    """What ``Tensor(data)`` holds.  Python numbers, alone or in lists, are converted to the type ``asked`` for, once;
    what has a type keeps it.  TypeError for data that is neither numbers nor memory.
    """
    if isinstance(data, np.ndarray):
        return from_array(data)
    if isinstance(data, np.generic):  # before float: np.float64 is one
        return from_generic(data)
    if isinstance(data, (bool, int, float)):
        return from_scalar(data, asked)
    if isinstance(data, (list, tuple, range)):
        return _from_list(data, asked)
    if hasattr(data, "__array__") or hasattr(data, "__array_interface__") or hasattr(data, "__dlpack__"):
        return from_array(*memory_of(data))
    if isinstance(data, (str, complex)):
        raise TypeError(f"{data!r} cannot be held by a Tensor; accepted are {_ACCEPTED}")
    try:
        return from_array(np.asarray(memoryview(data)))
    except (TypeError, NotImplementedError):
        raise TypeError(f"a {type(data).__name__} cannot be held by a Tensor; accepted are {_ACCEPTED}") from None


def array_of_list(data: Any) -> Array:
    """A list as an array; ValueError where its parts do not have one shape."""
    try:
        return np.asarray(data)
    except ValueError as error:
        raise ValueError(f"lists that make an array hold lists of one length, which {data!r:.80} does not") from error


def _from_list(data: Any, asked: DType | None) -> UOp:
    """Numbers in lists.

    Python floats are of the type ``asked`` for, else float32, ints int64; what NumPy scalars or arrays lie in the list
    keep their type.
    """
    leaf = data
    while isinstance(leaf, (list, tuple)) and leaf:
        leaf = leaf[0]
    array = array_of_list(data)
    kind = dtypes.default_float if asked is None else asked
    if (
        array.dtype == object
        and asked is not None
        and asked.is_float
        and all(type(x) in (bool, int, float) for x in array.flat)
    ):
        array = array.astype(np.float64)  # of ints beyond 64 bits
    if array.dtype == np.float64 and (type(leaf) in (bool, int, float) or not array.size):
        if kind is dtypes.bfloat16 or not kind.is_float:
            return from_array(array).cast(kind)
        with np.errstate(over="ignore"):  # inf, as of one number
            array = array.astype(kind.numpy)
    return from_array(array)


def from_dlpack(data: Any) -> UOp:
    """The memory behind an object with ``__dlpack__``, in place.

    TypeError for dtypes that uopc does not hold, ValueError off the CPU.
    """
    if not (hasattr(data, "__dlpack__") or hasattr(data, "__dlpack_device__")):
        raise TypeError(f"a {type(data).__name__} has no __dlpack__; Tensor(data) takes {_ACCEPTED}")
    return from_array(*dlpack.read(data))


# ---- out ----


def standing_array(u: UOp) -> Array | None:
    """The value of ``u`` as a view of memory that holds it, or None where something is left to compute.

    A constant or a BUFFER seen through movement ops needs no kernel.  bfloat16 comes as its bits.
    """
    chain: list[UOp] = []
    while u.realized is None:
        if u.op is Ops.CONST:
            bits = np.float32(u.arg).view(np.uint32) >> 16 if u.dtype is dtypes.bfloat16 else u.arg
            return _replay(np.array(bits, u.dtype.numpy), chain)
        if u.op is not Ops.ALIAS:
            if u.op not in MOVEMENT or u.op is Ops.PAD:
                return None
            chain.append(u)
        u = u.src[0]
    buffer = u if u.op is Ops.BUFFER else u.realized
    return _replay(buffer.realized.array.reshape(buffer.arg.shape), chain)


def _replay(array: Array, chain: list[UOp]) -> Array:
    """The movement ops of ``chain`` (outermost first) done by NumPy, on views."""
    for u in reversed(chain):
        arg = u.arg
        if u.op is Ops.RESHAPE:
            array = array.reshape(arg)
        elif u.op is Ops.EXPAND:
            array = np.broadcast_to(array, arg)
        elif u.op is Ops.PERMUTE:
            array = array.transpose(arg)
        elif u.op is Ops.SHRINK:
            array = array[tuple([slice(lo, hi) for lo, hi in arg])]
        elif u.op is Ops.FLIP:
            array = np.flip(array, arg)
        elif u.op is Ops.STRIDE:
            array = array[tuple([slice(None, None, step) for step in arg])]
        else:
            strides = [step * array.itemsize for step in arg.strides]
            array = as_strided(array[arg.offset :], arg.shape, strides, writeable=False)
    return array


def readable(array: Array, dtype: DType) -> Array:
    """What ``numpy()`` makes of a standing array: a view that cannot be written; bfloat16 as float32."""
    if dtype is dtypes.bfloat16:
        array = np.asarray(bfloat16_to_float32(array))
    else:
        array = array.view()
    array.flags.writeable = False
    return array
