"""Random numbers, generated inside the kernels that use them: element i of a call is a function of (seed, call, i)
alone.

The generator is Threefry2x32-20 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
A seed gives a 64-bit key; each call derives its own key from that and its number, and element i encrypts the counter
i.  So the numbers do not depend on threads, blocks or fusion.  The key reaches the kernel as a buffer of two words: one
kernel serves every call.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from uopc.dtype import DType, dtypes, to_dtype
from uopc.ops import Ops
from uopc.runtime.capture import CaptureError, is_recording, note_key
from uopc.runtime.storage import new_buffer
from uopc.tensor.core import as_dtype
from uopc.tensor.shapes import Shape, counter, expand, integer, reshape, sizes
from uopc.tensor.sorting import Sorting
from uopc.uop import UOp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

W = TypeVar("W", int, UOp)

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF


class _State:
    """The key of the seed, and the numbers of the calls to come (``next`` on a count is atomic)."""

    key: tuple[int, int] | None = None
    calls: Iterator[int] = itertools.count()


def manual_seed(seed: int) -> None:
    """Start the random numbers over: the same seed gives the same numbers, call by call.

    Without it the seed is random.  CaptureError inside a captured function, where it would be done once only.
    """
    if is_recording():
        raise CaptureError(
            "uopc.manual_seed was called by a function that is being captured, which would start its random numbers "
            "over at the first call only; call it before the captured function"
        )
    number = integer(seed, "a seed") & 0xFFFFFFFFFFFFFFFF
    _State.key, _State.calls = (number & _MASK, number >> 32), itertools.count()


def threefry(k0: W, k1: W, x0: W, x1: W) -> tuple[W, W]:
    """The two words that encrypt (x0, x1) under (k0, k1): of ints below 2**32, or of uint32 graphs, which wrap by
    themselves.
    """
    exact = isinstance(x0, int)
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            if exact:
                x0, x1 = x0 & _MASK, x1 & _MASK
            x1 = ((x1 << r) | (x1 >> (32 - r))) ^ x0
        x0, x1 = x0 + keys[(block + 1) % 3], x1 + keys[(block + 2) % 3] + (block + 1)
    return (x0 & _MASK, x1 & _MASK) if exact else (x0, x1)


def next_key() -> np.ndarray[Any, Any]:
    """The two words that the next call's numbers are derived from."""
    if _State.key is None:
        manual_seed(int.from_bytes(os.urandom(8), "little"))  # `secrets` is a fifth of the time that importing takes
    assert _State.key is not None
    call = next(_State.calls)
    return np.array(threefry(*_State.key, call & _MASK, call >> 32), np.uint32)


class Random(Sorting):
    """Uniform, normal and integer random numbers."""

    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int) -> None:
        """``uopc.manual_seed``."""
        manual_seed(seed)

    @classmethod
    def rand(cls, *shape: Any, dtype: Any = None) -> Self:
        """Uniform in [0, 1), float32 by default, with as many random bits as the float has.

        TypeError for other than floats.
        """
        kind, size = _float(dtype), sizes(shape)
        words = Words(math.prod(size))
        return cls._of(reshape(_uniform(words, kind), size))

    @classmethod
    def randn(cls, *shape: Any, dtype: Any = None) -> Self:
        """Standard normal (Box-Muller), float32 by default.  TypeError for other than floats."""
        kind, size = _float(dtype), sizes(shape)
        words = Words(math.prod(size))
        return cls._of(reshape(as_dtype(_normal(words, kind), kind), size))

    @classmethod
    def randint(cls, *shape: Any, low: int = 0, high: int = 10, dtype: Any = None) -> Self:
        """Integers from ``low`` to ``high`` (exclusive), int64 by default.

        Each has a probability within 2**-64 of the same.  ValueError for an empty range or one that the dtype cannot
        hold.
        """
        kind, size = dtypes.default_int if dtype is None else to_dtype(dtype), sizes(shape)
        first, last = integer(low, "a bound"), integer(high, "a bound") - 1
        if not kind.is_int:
            raise TypeError(f"randint makes integers, not {kind.name}")
        if first > last or first < kind.min or last > kind.max:
            raise ValueError(f"randint from {low} to {high}: a range of {kind.name} that is not empty is needed")
        words = Words(math.prod(size))
        return cls._of(reshape(_integers(words, first, last - first + 1, kind), size))

    def rand_like(self, dtype: Any = None) -> Self:
        """``rand`` in the shape and dtype of this Tensor."""
        return self.rand(self.shape, dtype=self.dtype if dtype is None else dtype)

    def randn_like(self, dtype: Any = None) -> Self:
        """``randn`` in the shape and dtype of this Tensor."""
        return self.randn(self.shape, dtype=self.dtype if dtype is None else dtype)


class Words:
    """The random words of one call: two of 32 bits for each element and ``draw``."""

    def __init__(self, n: int) -> None:
        self.shape: Shape = (n,)
        # each run of a captured function draws its own
        key = np.zeros(2, np.uint32) if is_recording() else next_key()
        self._key = note_key(new_buffer(dtypes.uint32, (2,), key))

    def draw(self, number: int = 0) -> tuple[UOp, UOp]:
        """Two uint32 graphs of n elements.

        Counters are (i, draw); n is below 2**32 or the rest of i shares the second word.
        """
        k0, k1 = (self._word(i) for i in (0, 1))
        place = counter(self.shape, 0, dtypes.uint32 if self.shape[0] <= 1 << 32 else dtypes.uint64)
        high = UOp.const(number << 24, dtypes.uint32)
        if place.dtype is dtypes.uint64:
            high = (place >> 32).cast(dtypes.uint32) + high
        return threefry(k0, k1, as_dtype(place, dtypes.uint32), expand(high, self.shape))

    def _word(self, i: int) -> UOp:
        return expand(UOp(Ops.SHRINK, (self._key,), ((i, i + 1),)), self.shape)


def _float(dtype: Any) -> DType:
    kind = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not kind.is_float:
        raise TypeError(
            f"random floats of {kind.name} are not defined; accepted are float16, bfloat16, float32 and float64"
        )
    return kind


def _uniform(words: Words, dtype: DType) -> UOp:
    """In [0, 1): so many of the highest bits as the float holds exactly, so that nothing rounds up to 1."""
    w0, w1 = words.draw()
    if dtype is dtypes.float64:
        bits = (w0 >> 5).cast(dtypes.float64) * 2.0**26 + (w1 >> 6).cast(dtypes.float64)
        return bits * 2.0**-53
    digits = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24}[dtype]
    return as_dtype((w0 >> (32 - digits)).cast(dtypes.float32) * 2.0**-digits, dtype)


def _normal(words: Words, dtype: DType) -> UOp:
    """Box and Muller: sqrt(-2 log u) cos(2 pi v) with u in (0, 1] and v in [0, 1)."""
    w0, w1 = words.draw()
    if dtype is dtypes.float64:
        u = ((w0.cast(dtype) * 2.0**32 + w1.cast(dtype)) + 1.0) * 2.0**-64
        w0, w1 = words.draw(1)
        v = (w0.cast(dtype) * 2.0**32 + w1.cast(dtype)) * 2.0**-64
    else:
        u = (w0.cast(dtypes.float32) + 1.0) * 2.0**-32
        v = w1.cast(dtypes.float32) * 2.0**-32
    return (u.alu(Ops.LOG) * -2.0).alu(Ops.SQRT) * (v * (2.0 * math.pi)).alu(Ops.COS)


def _integers(words: Words, first: int, count: int, dtype: DType) -> UOp:
    """first + floor(r * count / 2**64) for 64 random bits r; ranges above 2**32 take the remainder."""
    w0, w1 = (w.cast(dtypes.uint64) for w in words.draw())
    if count <= 1 << 32:
        # the high word of a 96-bit product, in two steps that cannot overflow
        offset = (w0 * count + ((w1 * count) >> 32)) >> 32
    else:
        offset = (w0 << 32) | w1
        offset = offset if count == 1 << 64 else offset % count
    return as_dtype(offset, dtype) + first
