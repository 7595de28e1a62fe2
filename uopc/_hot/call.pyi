from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from uopc._hot.runtime import NativePlan

_Array = np.ndarray[Any, Any]

class Mark:
    """Where a container begins among the leaves of the arguments."""

    kind: type
    length: int
    keys: tuple[Any, ...] | None
    def __init__(self, kind: type, length: int, keys: tuple[Any, ...] | None = None) -> None: ...

class View:
    """An array made of an argument."""

    array: _Array
    dtype: Any
    tensor: Any
    def __init__(self, array: _Array, dtype: Any, tensor: Any) -> None: ...

class Leaf:
    """What one leaf of the arguments must be."""

    dtype: Any
    shape: tuple[int, ...] | None
    is_memory: bool
    tensor: Any
    def __init__(
        self,
        value: Any = None,
        *,
        tensor: Any = None,
        dtype: Any = None,
        descr: Any = None,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None: ...

class Guard:
    """Something that a captured function read besides its arguments, and what it was."""

    kind: str
    owner: Any
    key: Any
    value: Any
    where: str
    def __init__(self, kind: str, owner: Any, key: Any, value: Any, where: str) -> None: ...
    def without_contents(self) -> Guard: ...
    def holds(self) -> bool: ...

class Captured:
    """A function captured for one signature."""

    plan: NativePlan
    results: tuple[int, ...]
    def __init__(
        self,
        leaves: list[Leaf],
        guards: list[Guard],
        ambient: Any,
        plan: NativePlan,
        inputs: Sequence[Any],
        draws: Sequence[tuple[int, int]],
        n_draws: int,
        draw: Callable[[], _Array],
        outs: Sequence[tuple[Any, tuple[int, ...], int]],
        copies: Sequence[int],
        results: Sequence[int],
        finish: Callable[[list[Any]], Any] | None,
        unpack: Callable[[Any], list[Any]],
        loud: Callable[[list[int]], None] | None = None,
        verify: Callable[[list[Any]], None] | None = None,
    ) -> None: ...
    def set_guards(self, guards: list[Guard]) -> None: ...
    def addresses(self) -> set[int]: ...

class Function:
    """The called side of a captured function."""

    captured: list[Captured]
    limit: int
    __wrapped__: Callable[..., Any]
    def __init__(self, scoped: Any, owners: Sequence[tuple[Any, str]], limit: int) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def ambient(self) -> tuple[Any, ...]: ...
    def try_leaves(self, leaves: Sequence[Any], out: Any) -> tuple[Any] | None: ...
    def add(self, entry: Captured) -> None: ...

def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]: ...
def set_tensor_type(kind: type) -> None: ...
def count_captures(change: int) -> int: ...
def address_of(array: _Array) -> int: ...
