"""What a Python function reads besides its arguments, as Guards that can be checked at every later call.

The walk starts at the function's closure, defaults and the globals that its code names, and follows what it finds
there: other Python functions, lists and dicts, objects' attributes and their classes, modules of the user.  It does not
follow what belongs to the standard library, NumPy or uopc, nor what no code can see: state inside C objects, files, the
clock.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

from uopc._hot.call import Function, Guard

MAX_GUARDS = 4096
MAX_CONTENTS = 1 << 20  # bytes of an array whose contents are compared; larger ones are known by identity and shape
_FOREIGN = frozenset({"numpy", "uopc", "builtins", *sys.stdlib_module_names}) - {"__main__"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)


class TooMuchState(Exception):
    """More than MAX_GUARDS values are reachable."""


class Walk:
    """guards: what was found; `tensor` is the class of Tensors, whose graph is watched."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.guards: list[Guard] = []
        self.seen: dict[int, Any] = {}
        self.names: set[str] = set()

    def add(self, kind: str, owner: Any, key: Any, value: Any, where: str) -> None:
        """A guard, and what lies behind its value."""
        if len(self.guards) >= MAX_GUARDS:
            raise TooMuchState
        self.guards.append(Guard(kind, owner, key, value, where))

    def visit(self, x: Any, where: str) -> None:
        """Guards on what can change inside x."""
        if isinstance(x, _PLAIN) or id(x) in self.seen:
            return
        self.seen[id(x)] = x
        if isinstance(x, Function):
            self.visit(x.__wrapped__, where)
        elif isinstance(x, types.FunctionType):
            self.function(x, where)
        elif isinstance(x, types.MethodType):
            self.visit(x.__self__, f"{where}.__self__")
            self.visit(x.__func__, where)
        elif isinstance(x, self.tensor):
            self.add("attribute", x, "uop", x.uop, where)
        elif isinstance(x, np.ndarray):
            contents = x.tobytes() if x.nbytes <= MAX_CONTENTS and not x.dtype.hasobject else None
            self.add("array", x, (x.shape, x.strides), contents, f"the contents of {where}")
        elif isinstance(x, (list, tuple)):
            if isinstance(x, list):
                self.add("items", x, None, tuple(x), where)
            for i, item in enumerate(x):
                self.visit(item, f"{where}[{i}]")
        elif isinstance(x, dict):
            self.add("keys", x, None, tuple(x), where)
            self.mapping(x, where, "{}[{!r}]", list(x))
        elif isinstance(x, types.ModuleType):
            if not _foreign(x.__name__):
                self.mapping(vars(x), where, "{}.{}", [n for n in sorted(self.names) if n in vars(x)])
        elif isinstance(x, type):
            self.klass(x, where)
        else:
            self.instance(x, where)

    def mapping(self, x: dict[Any, Any], where: str, spelling: str, keys: list[Any]) -> None:
        """Values of a dict."""
        for key in keys:
            name = spelling.format(where, key)
            self.add("item", x, key, x[key], name)
            self.visit(x[key], name)

    def function(self, f: types.FunctionType, where: str) -> None:
        """What the code of a function, and of those defined inside it, can name."""
        if _foreign(f.__module__):
            return
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.add("cell", cell, None, value, name)
            self.visit(value, name)
        self.add("attribute", f, "__code__", f.__code__, where)
        for attribute in ("__defaults__", "__kwdefaults__"):
            value = getattr(f, attribute)
            if value:
                self.add("attribute", f, attribute, value, f"{where}'s defaults")
                self.visit(value, f"{where}'s defaults")
        names = _names(f.__code__)
        self.names |= names
        for name in sorted(names):
            if name in f.__globals__:
                self.add("item", f.__globals__, name, f.__globals__[name], name)
                self.visit(f.__globals__[name], name)

    def klass(self, x: type, where: str) -> None:
        """Attributes and methods of a class and of those it inherits from."""
        for cls in x.__mro__:
            if _foreign(cls.__module__) or (cls is not x and id(cls) in self.seen):
                continue
            self.seen[id(cls)] = cls
            for name, value in list(vars(cls).items()):
                if name.startswith("__") and name != "__call__":
                    continue
                self.add("item", cls.__dict__, name, value, f"{where}.{name}")
                inside = [value.fget] if isinstance(value, property) else [getattr(value, "__func__", value)]
                for part in inside:
                    self.visit(part, f"{where}.{name}")

    def instance(self, x: Any, where: str) -> None:
        """Attributes of an object."""
        self.visit(type(x), type(x).__name__)
        if type(x).__module__ == "functools" and hasattr(x, "func"):  # partial
            for part in (x.func, x.args, x.keywords):
                self.visit(part, where)
        elif not _foreign(type(x).__module__):
            if isinstance(getattr(x, "__dict__", None), dict):
                self.add("keys", vars(x), None, tuple(vars(x)), where)
                self.mapping(vars(x), where, "{}.{}", list(vars(x)))
            for cls in type(x).__mro__:
                slots = cls.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    if hasattr(x, name) and not name.startswith("__"):
                        self.add("attribute", x, name, getattr(x, name), f"{where}.{name}")
                        self.visit(getattr(x, name), f"{where}.{name}")


def _foreign(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _FOREIGN


def _names(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in the code of a function and of those inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def foreign_random_state() -> tuple[Any, ...]:
    """The state of Python's and NumPy's global random numbers, which a captured function must not draw from."""
    state: list[Any] = []
    if "random" in sys.modules:
        state.append(sys.modules["random"].getstate())
    if "numpy.random" in sys.modules:
        state.append(repr(np.random.mtrand._rand.get_state(legacy=False)))
    return tuple(state)
