"""uopc: NumPy-style tensor expressions, compiled to fused, multi-threaded, vectorised C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uopc.dtype import DType, dtypes
from uopc.options import Options, options
from uopc.tensor import Tensor, manual_seed, scaled_dot_product_attention

if TYPE_CHECKING:
    from uopc.runtime.compiler import CompileError, CompilerNotFound

__all__ = [
    "CompileError",
    "CompilerNotFound",
    "DType",
    "Options",
    "Tensor",
    "dtypes",
    "manual_seed",
    "options",
    "scaled_dot_product_attention",
]


def __getattr__(name: str) -> Any:
    """The exceptions of the compiler, which is loaded no sooner than they or it are needed."""
    if name in ("CompileError", "CompilerNotFound"):
        from uopc.runtime import compiler

        return getattr(compiler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
