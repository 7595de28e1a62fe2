"""The state of a Tensor: a lazy graph, its computation, and what Python expects of an array (len, pickling ...)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from uopc.dtype import DType, to_dtype
from uopc.ops import Level, Ops
from uopc.options import Options, current
from uopc.runtime.storage import new_buffer
from uopc.tensor import dlpack, interop
from uopc.tensor.interop import Array
from uopc.tensor.variables import holds_variable
from uopc.uop import UOp

if TYPE_CHECKING:
    from typing_extensions import Self


def compute(roots: list[UOp], options: Options) -> list[UOp]:
    """The BUFFERs that hold the values of ``roots``; the compiler is loaded when the first value is asked for."""
    from uopc.runtime.plan import realize

    return realize(roots, options)


class Core:
    """An array whose value is computed when it is asked for.

    ``uop`` is the graph that says how.  A Tensor's value never changes, and memory that it shares with the caller's
    arrays is never written; whoever writes to such an array between making a Tensor of it and computing with it changes
    what is computed.
    """

    __slots__ = ("__weakref__", "_grad", "uop")

    uop: UOp
    _grad: Core | None

    fuse_reduce: ClassVar[bool | None] = None
    """Process-wide default of ``Options.fuse_reduce``; ``uopc.options(...)`` overrides it for a thread."""

    opt: ClassVar[Any] = None
    """Process-wide default of ``Options.opt``."""

    # ndarray + Tensor is left to Tensor.__radd__, while np.exp(tensor) still finds __array__.
    __array_priority__ = 1000

    def __init__(self, data: Any, dtype: Any = None) -> None:
        """A Tensor of an array, number, nested list, buffer, DLPack object, Tensor or UOp.

        Arrays are read in place and keep their dtype.  Python floats become float32, ints int64, bools bool, alone and
        in lists.  ``dtype`` casts, and is what Python numbers are converted to from the start.  TypeError for what is
        not numeric (objects, strings, complex).
        """
        asked = None if dtype is None else to_dtype(dtype)
        self.uop = data if type(data) is UOp else data.uop if isinstance(data, Core) else interop.from_data(data, asked)
        if asked is not None:
            self.uop = as_dtype(self.uop, asked)

    @classmethod
    def _of(cls, uop: UOp) -> Self:
        """A Tensor over a graph: how every method makes its result."""
        made = object.__new__(cls)
        made.uop = uop
        return made

    @classmethod
    def from_dlpack(cls, data: Any) -> Self:
        """A Tensor over the memory of an object with ``__dlpack__``, in place.

        TypeError for dtypes that uopc does not hold, ValueError for data that is not on the CPU.
        """
        return cls._of(interop.from_dlpack(data))

    # ---- what it is ----

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.uop.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.uop.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.uop.shape)

    def numel(self) -> int:
        """The number of elements."""
        return prod(self.uop.shape)

    def __len__(self) -> int:
        """The size of the first axis; TypeError for a Tensor without axes."""
        if not self.uop.shape:
            raise TypeError("len() of a 0-d Tensor")
        return self.uop.shape[0]

    def __repr__(self) -> str:
        """The values where they stand in memory, else what the last step is: printing computes nothing."""
        array = interop.standing_array(self.uop)
        if array is None:
            return f"Tensor(lazy {self.uop.op.name}, shape={self.shape}, dtype={self.dtype.name})"
        shown = np.array2string(interop.readable(array, self.dtype), prefix="Tensor(", separator=", ")
        shape = f", shape={self.shape}" if 0 in self.shape else ""
        return f"Tensor({shown}{shape}, dtype={self.dtype.name})"

    # ---- values ----

    def realize(self, *others: Core) -> Self:
        """Compute this Tensor, and ``others`` in the same plan; returns this one.

        Whatever lies in memory already, also seen through slices, transposes and the like, is left as it is.
        """
        tensors: tuple[Core, ...] = (self, *others)
        for t in others:
            if not isinstance(t, Core):
                raise TypeError(f"realize takes Tensors, not {type(t).__name__}")
        # what each is now: another thread may realize the same Tensor meanwhile
        left = {t: t.uop for t in tensors if interop.standing_array(t.uop) is None}
        if left:
            cls = type(self)
            roots = list(dict.fromkeys(left.values()))
            buffers = dict(zip(roots, compute(roots, current(Options(cls.fuse_reduce, cls.opt)))))
            for t, root in left.items():
                t.uop = root if holds_variable(root) else buffers[root]
        return self

    def contiguous(self) -> Self:
        """This Tensor written down in memory of its own, row-major, when it is computed."""
        u = self.uop
        while u.op is Ops.ALIAS:
            u = u.src[0]
        return self if u.op in (Ops.BUFFER, Ops.STAGE) else self._of(UOp(Ops.STAGE, (self.uop,), Level.KERNEL))

    def detach(self) -> Self:
        """A Tensor of the same value that no gradient flows through.  It costs no kernel and no memory."""
        return self._of(detached(self.uop))

    @property
    def grad(self) -> Any:
        """The gradients that ``backward`` added up, a Tensor; None before.  Set it to None to begin anew."""
        return getattr(self, "_grad", None)

    @grad.setter
    def grad(self, value: Core | None) -> None:
        if value is not None and (not isinstance(value, Core) or value.shape != self.shape):
            found = f"a Tensor of shape {value.shape}" if isinstance(value, Core) else f"a {type(value).__name__}"
            raise ValueError(f"grad is None or a Tensor of shape {self.shape}, not {found}")
        self._grad = value

    def numpy(self) -> Array:
        """The values as a NumPy array of the same dtype (bfloat16 as float32, exactly).

        The array is a view of the Tensor's memory, which may be the caller's, and cannot be written: ``.copy()`` can.
        """
        return interop.readable(self._array(), self.dtype)

    def item(self) -> bool | int | float:
        """The value of a Tensor of one element, as a Python number; ValueError for more or fewer."""
        if self.numel() != 1:
            raise ValueError(f"item() needs one element, and shape {self.shape} has {self.numel()}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; a number for a Tensor without axes."""
        return self.numpy().tolist()

    def data(self) -> memoryview:
        """The values as a read-only memoryview."""
        return memoryview(self.numpy())  # type: ignore[arg-type] # a Buffer to the stubs from Python 3.12 on

    def _array(self) -> Array:
        """The values, computed, as ``interop.standing_array`` gives them."""
        array = interop.standing_array(self.uop)
        if array is None:
            array = interop.standing_array(self.realize().uop)
            assert array is not None
        return array

    # ---- protocols ----

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """What ``np.asarray`` calls.  With ``copy=False`` ValueError where a copy is needed."""
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to see {array.dtype} as {np.dtype(dtype)}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __buffer__(self, flags: int) -> memoryview:
        """What ``memoryview(tensor)`` calls, from Python 3.12 on."""
        return self.data()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule that shares the Tensor's memory.  BufferError for read-only memory of the caller's."""
        wishes = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return dlpack.write(self._array(), self.dtype, wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return (1, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by value: computed, then bytes."""
        return (_unpickle, (type(self), np.asarray(self._array(), order="C"), self.dtype))

    def __copy__(self) -> Self:
        return self._of(self.uop)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._of(self.uop)

    def __format__(self, spec: str) -> str:
        """One element as its number is formatted (``f"{loss:.3f}"``); without a format, ``str``."""
        return format(self.item(), spec) if spec and self.numel() == 1 else object.__format__(self, spec)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        """The truth of one element; ValueError where there are more or fewer."""
        if self.numel() != 1:
            raise ValueError(f"the truth value of a Tensor of shape {self.shape} is ambiguous; use any() or all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self._only())

    def __float__(self) -> float:
        return float(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def __index__(self) -> int:
        """An integer Tensor without axes as an index; TypeError for any other."""
        if self.shape or not self.dtype.is_int:
            raise TypeError(f"only a 0-d integer Tensor is an index, not {self.dtype.name} of shape {self.shape}")
        return int(self.item())

    def _only(self) -> bool | int | float:
        if self.numel() != 1:
            raise TypeError(f"only a Tensor of one element becomes a number, not one of shape {self.shape}")
        return self.item()


def detached(u: UOp) -> UOp:
    """The value of ``u``, which no gradient sees behind."""
    return u if u.op is Ops.ALIAS and u.arg is None and len(u.src) == 1 else UOp(Ops.ALIAS, (u,))


def as_dtype(u: UOp, dtype: DType) -> UOp:
    """``u`` cast; a constant stays a constant."""
    if u.dtype is dtype:
        return u
    if u.op is Ops.CONST and not (u.dtype.is_float and not dtype.is_float):  # NaN and inf have no integer
        return UOp.const(u.arg, dtype)
    return u.cast(dtype)


def _unpickle(cls: type[Core], array: Array, dtype: DType) -> Core:
    return cls._of(new_buffer(dtype, array.shape, array.reshape(-1)))
