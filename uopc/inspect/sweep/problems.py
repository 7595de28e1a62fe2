"""problems: what a sweep computes, of which size, with which inputs, and what the exact result is."""

from __future__ import annotations

import math
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NAMES = ("attention", "matmul", "softmax", "layer_norm")
ROWS = 1024  # of a softmax or layer_norm
EPS = 1e-5
SAMPLED = 32  # rows of a result that are compared with float64
DEFAULT_IMPLS = {
    "attention": ("unfused", "recompute", "online", "derived", "torch", "jax", "onnxruntime", "numpy"),
    "matmul": ("derived", "torch", "jax", "onnxruntime", "numpy"),
    "softmax": ("derived", "unfused", "torch", "jax", "onnxruntime", "numpy"),
    "layer_norm": ("derived", "unfused", "torch", "jax", "onnxruntime", "numpy"),
}
USERS_IMPLS = ("derived", "unfused", "recompute")


@dataclass(frozen=True)
class Problem:
    """One point of a sweep.

    name: one of ``NAMES``, or ``module:function`` (or ``file.py:function``) for a user's own.  n: the size that is
    swept.  d, heads, causal: of attention and of a user's inputs.
    """

    name: str
    n: int
    d: int = 64
    heads: int = 1
    causal: bool = False

    @property
    def label(self) -> str:
        """What is computed, in words."""
        if self.name == "attention":
            causal = "causal " if self.causal else ""
            return f"{causal}attention, {self.heads} head{'s' if self.heads != 1 else ''} of {self.d}"
        return self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each input (of the first, where they differ)."""
        if self.name == "matmul":
            return (self.n, self.n)
        if self.name in ("softmax", "layer_norm"):
            return (ROWS, self.n)
        return (self.n, self.d) if self.heads == 1 else (self.heads, self.n, self.d)

    @property
    def flops(self) -> int:
        """Useful float operations; 0 where that is not known."""
        n = self.n
        if self.name == "attention":
            pairs = n * (n + 1) // 2 if self.causal else n * n
            return 4 * self.heads * pairs * self.d
        if self.name == "matmul":
            return 2 * n**3
        if self.name in ("softmax", "layer_norm"):
            return 8 * ROWS * n  # by convention: a few simple operations an element
        return 0

    def bytes_needed(self, impl: str) -> int:
        """A rough estimate of the memory that an implementation takes, inputs and result included."""
        each = 4 * math.prod(self.shape)
        if self.name != "attention":
            return each * (5 if self.name in NAMES else 8)
        square = 4 * self.heads * self.n * self.n
        squares = {"unfused": 2, "numpy": 4, "jax": 3, "onnxruntime": 3}.get(impl, 0)
        return 5 * each + squares * square

    def inputs(self) -> list[Array]:
        """float32, the same at each call."""
        random = np.random.default_rng(0)
        user = self.user()
        if user is not None:
            if user.inputs is not None:
                return [np.ascontiguousarray(x) for x in user.inputs(self.n)]
            return [random.standard_normal(self.shape, np.float32) for _ in range(user.arity)]
        if self.name == "layer_norm":
            return [random.standard_normal(s, np.float32) for s in (self.shape, (self.n,), (self.n,))]
        count = {"attention": 3, "matmul": 2, "softmax": 1}[self.name]
        return [random.standard_normal(self.shape, np.float32) for _ in range(count)]

    def exact(self, inputs: list[Array]) -> tuple[Array, Array]:
        """Some rows (numbers along the last but one axis) of the result, in float64."""
        rows = (
            np.unique(np.linspace(0, self.shape[-2] - 1, SAMPLED).astype(int)) if self.shape[-2:-1] else np.array([0])
        )
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
        if self.name == "attention":
            return rows, self._attention(rows, *wide)
        if self.name == "matmul":
            return rows, wide[0][rows] @ wide[1]
        if self.name == "softmax":
            e = np.exp(wide[0][rows] - wide[0][rows].max(-1, keepdims=True))
            return rows, e / e.sum(-1, keepdims=True)
        if self.name == "layer_norm":
            x = wide[0][rows]
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)
            return rows, x * wide[1] + wide[2]
        user = self.user()
        assert user is not None
        if user.reference is not None:
            return rows, np.asarray(user.reference(*wide))
        return rows, _by_uopc(user.function, wide)

    def _attention(self, rows: Array, q: Array, k: Array, v: Array) -> Array:
        scores = q[..., rows, :] @ np.swapaxes(k, -1, -2) / math.sqrt(self.d)
        if self.causal:
            scores = np.where(np.arange(self.n) <= rows[:, None], scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        out: Array = e @ v / e.sum(-1, keepdims=True)
        return out

    def error(self, result: Array, rows: Array, exact: Array) -> float:
        """The largest difference of a result from the exact rows."""
        mine = result if self.user() is not None else result[..., rows, :]
        if mine.shape != exact.shape:
            raise ValueError(f"the result has shape {mine.shape}, and not {exact.shape}")
        return float(np.max(np.abs(mine.astype(np.float64) - exact), initial=0.0))

    def user(self) -> User | None:
        """The user's own function; None for the problems that are known here."""
        return None if self.name in NAMES else find_user(self.name)


@dataclass(frozen=True)
class User:
    """A user's function of Tensors.  inputs: of n, gives arrays; without it each parameter is a standard normal array
    (n, d).  reference: the same function of float64 arrays in NumPy; without it uopc computes in float64."""

    function: Callable[..., Any]
    arity: int
    inputs: Callable[[int], list[Array]] | None = None
    reference: Callable[..., Any] | None = None
    module: Any = field(default=None, repr=False)


def find_user(name: str) -> User:
    """``module:function`` or ``file.py:function``, also in the working directory; beside it, ``inputs(n)`` and
    ``reference(*arrays)`` are used where they exist.  ValueError where there is no such function."""
    import inspect

    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise ValueError(f"{name!r} is neither {', '.join(NAMES)} nor module:function")
    try:
        with _working_directory_first():
            if place.endswith(".py"):
                names = runpy.run_path(place, run_name=place.removesuffix(".py"))
            else:
                names = vars(pkgutil.resolve_name(place))
        function = names[attribute]
    except (ImportError, OSError, KeyError, AttributeError) as error:
        raise ValueError(f"{name!r} is not found: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"{name!r} is a {type(function).__name__}, and not a function")
    parameters = inspect.signature(function).parameters.values()
    arity = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
    return User(function, arity, names.get("inputs"), names.get("reference"))


@contextmanager
def _working_directory_first() -> Iterator[None]:
    """Python looks for modules in the working directory first; and from then on last, where it hides nothing installed
    (what the function imports when it is called is found, and a worker finds the same uopc as its parent)."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _by_uopc(function: Callable[..., Any], wide: list[Array]) -> Array:
    from uopc.options import options
    from uopc.tensor import Tensor

    with options(fuse_reduce=False):
        out: Array = function(*(Tensor(x) for x in wide)).numpy()
    return out
