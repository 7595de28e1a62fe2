"""DLPack: memory that other libraries hold, or are given, in place.

NumPy makes and reads the capsules.  It has no bfloat16: such a capsule is read as one of uint16, and made of one, since
the two differ in a byte.  That byte is the code in ``DLTensor.dtype`` (dlpack.h), of a struct that the capsule owns and
that nobody else has seen yet.
"""

from __future__ import annotations

import ctypes
import inspect
from typing import Any

import numpy as np

from uopc.dtype import ALL, DType, dtypes, from_numpy

Array = np.ndarray[Any, Any]

CPU = (1, 3)  # device types whose memory the CPU can read: kDLCPU, kDLCUDAHost
UNSIGNED, BFLOAT = 1, 4  # kDLUInt, kDLBfloat
# Where the code stands: in a DLManagedTensor, and in a DLManagedTensorVersioned, whose DLTensor has 32 bytes before it.
_CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Carrier:
    """A capsule as an object with ``__dlpack__``, which is what NumPy reads."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **wishes: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def _type_of(capsule: Any) -> Any:
    """The code and the bits of the elements, where they stand."""
    name = _name(capsule)
    return (ctypes.c_uint8 * 2).from_address(_pointer(capsule, name) + _CODE_AT[name])


def read(data: Any) -> tuple[Array, DType]:
    """The memory behind an object with ``__dlpack__``, in place, and its type; bfloat16 as its bits, in uint16.

    TypeError for types that uopc does not hold, ValueError off the CPU.
    """
    device = data.__dlpack_device__() if hasattr(data, "__dlpack_device__") else (CPU[0], 0)
    if device[0] not in CPU:
        raise ValueError(f"the data is on DLPack device type {int(device[0])}; copy it to the CPU first")
    try:
        array = np.from_dlpack(data)
        return array, from_numpy(array.dtype)
    except (BufferError, RuntimeError) as error:
        try:
            capsule = data.__dlpack__()
        except (BufferError, RuntimeError):
            raise TypeError(f"{error}; DLPack shares no such data") from None
        kind = _type_of(capsule)
        if tuple(kind) != (BFLOAT, 16):
            raise TypeError(f"{error}; accepted are " + ", ".join(d.name for d in ALL)) from None
        kind[0] = UNSIGNED
        return np.from_dlpack(_Carrier(capsule, device)), dtypes.bfloat16


def write(array: Array, dtype: DType, wishes: dict[str, Any]) -> Any:
    """A capsule of ``array``, bfloat16 coming as its bits.  BufferError for what the installed NumPy cannot export."""
    wishes = {name: value for name, value in wishes.items() if value is not None}
    if wishes and not _numpy_knows_wishes():
        wishes = {}  # NumPy before 2.1 takes no max_version, dl_device and copy; consumers must cope with old producers
    capsule = array.__dlpack__(**wishes)
    if dtype is dtypes.bfloat16:
        _type_of(capsule)[0] = BFLOAT
    return capsule


def _numpy_knows_wishes() -> bool:
    try:
        return "max_version" in inspect.signature(np.ndarray.__dlpack__).parameters
    except ValueError:
        return tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)
