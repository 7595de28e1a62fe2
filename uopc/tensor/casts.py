"""Casts, also by the names that PyTorch and tinygrad give them.

They stand in a class of their own because methods called ``float`` and ``int`` would hide the types from its
annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uopc.dtype import dtypes, to_dtype
from uopc.tensor.core import Core, as_dtype

if TYPE_CHECKING:
    from typing_extensions import Self


class Casts(Core):
    """Other types of the same values, and of the same bits."""

    __slots__ = ()

    def cast(self, dtype: Any) -> Self:
        """The values as another dtype (a DType, its name, or what NumPy takes for one), as NumPy's astype."""
        return self._of(as_dtype(self.uop, to_dtype(dtype)))

    def bitcast(self, dtype: Any) -> Self:
        """The same bits as another dtype of the same size; TypeError where the sizes differ.

        A bool is the byte 0 or 1.  As in NumPy's views, every other byte is True as a bool, and is 1 from then on.
        """
        return self._of(self.uop.bitcast(to_dtype(dtype)))

    def half(self) -> Self:
        """As float16."""
        return self._of(as_dtype(self.uop, dtypes.float16))

    def bfloat16(self) -> Self:
        """As bfloat16."""
        return self._of(as_dtype(self.uop, dtypes.bfloat16))

    def float(self) -> Self:
        """As float32."""
        return self._of(as_dtype(self.uop, dtypes.float32))

    def double(self) -> Self:
        """As float64."""
        return self._of(as_dtype(self.uop, dtypes.float64))

    def int(self) -> Self:
        """As int32."""
        return self._of(as_dtype(self.uop, dtypes.int32))

    def long(self) -> Self:
        """As int64."""
        return self._of(as_dtype(self.uop, dtypes.int64))

    def bool(self) -> Self:
        """As bool: what is not 0 is True."""
        return self._of(as_dtype(self.uop, dtypes.bool_))
