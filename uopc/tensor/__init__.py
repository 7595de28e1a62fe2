"""The Tensor: a lazy array.

Each file adds one subject to the class of the file before; a new method is one function in one file.

core (state, values) -> casts -> movement -> arithmetic -> functions -> reduce -> scans -> indexing -> creation ->
contraction -> nn -> convolution -> sorting -> random -> differentiation
"""

from __future__ import annotations

from uopc.tensor.convolution import conv2d
from uopc.tensor.differentiation import Differentiation
from uopc.tensor.nn import scaled_dot_product_attention
from uopc.tensor.random import manual_seed

__all__ = ["Tensor", "conv2d", "manual_seed", "scaled_dot_product_attention"]


class Tensor(Differentiation):
    """An n-dimensional array whose value is computed, in as few passes over memory as the compiler finds, when it is
    asked for.

    ``uop`` is its graph.  ``numpy()``, ``item()``, ``tolist()``, ``realize()`` and what Python's protocols need of
    values compute; everything else builds graphs.  Names and behaviour follow tinygrad's and PyTorch's methods (axes
    are called ``axis``), promotion and values NumPy. ``fuse_reduce`` and ``opt`` are process-wide defaults of the
    options of the same names.
    """

    __slots__ = ()
