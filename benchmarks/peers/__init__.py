"""Libraries at work on the cases: a module for each, which no other imports and only its own worker process loads.

Each has ``VERSIONS`` (what is measured) and ``build(variant, case, arrays) -> Prepared``, which raises ``Skip`` where
the library cannot do the case.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


class Skip(Exception):
    """The library does not do this case; the text says why."""


@dataclass(frozen=True)
class Prepared:
    """run: does the work once and returns when it is done.  read: from what it returns to an array; a bfloat16 result
    as float32.  how: the way in which a user would call it.
    """

    run: Callable[[], Any]
    read: Callable[[Any], np.ndarray]
    how: str


MODULES = {
    "uopc": "with_uopc",
    "uopc cut": "with_uopc",
    "numpy": "with_numpy",
    "torch": "with_torch",
    "torch sdpa": "with_torch",
    "torch unfused": "with_torch",
    "torch.compile": "with_torch",
    "torch flex": "with_torch",
    "jax": "with_jax",
    "onnxruntime": "with_onnxruntime",
    "onnxruntime Attention": "with_onnxruntime",
    "onnxruntime MultiHeadAttention": "with_onnxruntime",
    "numexpr": "with_numexpr",
    "machine": "with_machine",
}
OF_SUITE: dict[str, tuple[str, ...]] = {
    "attention": (
        "uopc",
        "torch sdpa",
        "torch unfused",
        "torch.compile",
        "torch flex",
        "jax",
        "onnxruntime",
        "onnxruntime Attention",
        "onnxruntime MultiHeadAttention",
    ),
    "fusion": ("uopc", "uopc cut", "torch", "torch.compile"),
    "matmul": ("uopc", "numpy", "torch", "jax", "onnxruntime"),
    "memory": ("uopc", "numpy", "torch", "torch.compile", "jax", "onnxruntime", "numexpr"),
    "model": ("uopc", "torch", "torch.compile"),
}


def load(variant: str) -> Any:
    """The module of a variant; ImportError where the library is absent."""
    return importlib.import_module(f"peers.{MODULES[variant]}")
