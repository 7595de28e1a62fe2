"""uopc: NumPy-style tensor expressions, compiled to fused, multi-threaded, vectorised C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uopc.dtype import DType, dtypes
from uopc.jit import ShapeDtype, jit, precompile
from uopc.options import Options, options
from uopc.runtime import memory_stats, num_threads, set_num_threads
from uopc.runtime.capture import CaptureError
from uopc.tensor import Tensor, conv2d, manual_seed, scaled_dot_product_attention
from uopc.transforms import grad, hessian, jvp, value_and_grad, vjp

if TYPE_CHECKING:
    from uopc.inspect.explain import explain
    from uopc.runtime.compiler import CompileError, CompilerNotFound

__all__ = [
    "CaptureError",
    "CompileError",
    "CompilerNotFound",
    "DType",
    "Options",
    "ShapeDtype",
    "Tensor",
    "conv2d",
    "dtypes",
    "explain",
    "grad",
    "hessian",
    "jit",
    "jvp",
    "manual_seed",
    "memory_stats",
    "num_threads",
    "options",
    "precompile",
    "scaled_dot_product_attention",
    "set_num_threads",
    "value_and_grad",
    "vjp",
]


def __getattr__(name: str) -> Any:
    """What is loaded no sooner than it is needed: the exceptions of the compiler, and what explains it."""
    if name in ("CompileError", "CompilerNotFound"):
        from uopc.runtime import compiler

        return getattr(compiler, name)
    if name == "explain":
        from uopc.inspect.explain import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
