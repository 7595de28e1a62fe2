"""What a Python function reads besides its arguments, as Guards that can be checked at every later call.

The walk starts at the function's closure, defaults and the globals that its code names, and follows what it finds
there: other Python functions, containers, objects' attributes and their classes, modules of the user, and the
environment where code names it.  It does not follow what else belongs to the standard library, NumPy or uopc, nor what
no code can see: state inside C objects, files, the clock.  Generators of random numbers it lists, so that whether they
were drawn from can be told.
"""

from __future__ import annotations

import array
import dis
import os
import sys
import types
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from io import IOBase
from typing import Any

import numpy as np

from uopc._hot.call import Function, Guard

MAX_GUARDS = 4096
MAX_CONTENTS = 1 << 20  # bytes of an array whose contents are compared; larger ones are known by identity and shape
_FOREIGN = frozenset({"numpy", "uopc", "builtins", *sys.stdlib_module_names}) - {"__main__"}
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_BYTES = (bytearray, memoryview, array.array)
_NAMESPACES = (
    "types.SimpleNamespace",
    "argparse.Namespace",
    "collections.UserDict",
    "collections.UserList",
    "os._Environ",
)
# By these names code reads the environment, whatever it calls the module; it is watched as a whole, a dict that it is.
_READS_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)


class Unwatchable(Exception):
    """What is reachable cannot be watched for changes; the text says why."""


class Walk:
    """guards: what was found; generators: those of random numbers.

    tensor: the class of Tensors, whose graph is watched.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.guards: list[Guard] = []
        self.generators: list[Any] = []
        self.seen: dict[int, Any] = {}
        self.names: set[str] = set()

    def add(self, kind: str, owner: Any, key: Any, value: Any, where: str) -> None:
        """A guard, and what lies behind its value."""
        if len(self.guards) >= MAX_GUARDS:
            raise Unwatchable(f"more than {MAX_GUARDS} values besides its arguments, too many to watch for changes")
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
        elif isinstance(x, types.ModuleType):
            if not _foreign(x.__name__):
                self.mapping(vars(x), where, "{}.{}", [n for n in sorted(self.names) if n in vars(x)])
        elif isinstance(x, type):
            self.klass(x, where)
        elif isinstance(x, types.BuiltinMethodType):
            self.visit(x.__self__, where)
        elif _is_random(x):
            self.generators.append(x)
        else:
            self.contents(x, where)
            self.instance(x, where)

    def visit_direct(self, x: Any, where: str) -> None:
        """As visit, for what the function itself names: an iterator would be read when captured, and never again."""
        if _is_iterator(x):
            raise Unwatchable(f"{where}, an iterator, whose next item would be that of the first call at every call")
        self.visit(x, where)

    def contents(self, x: Any, where: str) -> None:
        """What a container holds."""
        if isinstance(x, dict):
            self.add("keys", x, None, tuple(x), where)
            self.mapping(x, where, "{}[{!r}]", list(x))
        elif isinstance(x, (list, tuple, set, frozenset, deque)):
            if not isinstance(x, (tuple, frozenset)):
                self.add("items", x, None, tuple(x), where)
            for i, item in enumerate(x):
                self.visit(item, f"{where}[{i}]")
        elif isinstance(x, _BYTES):
            self.add("bytes", x, None, memoryview(x).tobytes(), f"the contents of {where}")

    def mapping(self, x: dict[Any, Any], where: str, spelling: str, keys: list[Any]) -> None:
        """Values of a dict."""
        for key in keys:
            name = spelling.format(where, key)
            self.add("item", x, key, x[key], name)
            self.visit(x[key], name)

    def function(self, f: types.FunctionType, where: str) -> None:
        """What the code of a function, and of those defined inside it, can name."""
        names = _names(f.__code__)
        if names & _READS_ENVIRONMENT:
            self.visit(os.environ, "os.environ")
        if _foreign(f.__module__):
            return
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.add("cell", cell, None, value, name)
            self.visit_direct(value, name)
        self.add("attribute", f, "__code__", f.__code__, where)
        for attribute in ("__defaults__", "__kwdefaults__"):
            value = getattr(f, attribute)
            if value:
                self.add("attribute", f, attribute, value, f"{where}'s defaults")
                self.visit(value, f"{where}'s defaults")
        self.names |= names
        for name in sorted(names):
            if name in f.__globals__:
                value = f.__globals__[name]
                self.add("item", f.__globals__, name, value, name)
                if _is_iterator(value) and name not in _globals(f.__code__):
                    continue  # an attribute of the same name
                self.visit_direct(value, name)

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
        kind = type(x)
        self.visit(kind, kind.__name__)
        if kind.__module__ == "functools":
            for name in ("func", "args", "keywords", "__wrapped__"):  # partial, cached_property, lru_cache
                self.visit(getattr(x, name, None), where)
        elif not _foreign(kind.__module__) or f"{kind.__module__}.{kind.__name__}" in _NAMESPACES:
            if isinstance(getattr(x, "__dict__", None), dict):
                self.add("keys", vars(x), None, tuple(vars(x)), where)
                self.mapping(vars(x), where, "{}.{}", list(vars(x)))
            for name in _slots(kind):
                if hasattr(x, name):
                    self.add("attribute", x, name, getattr(x, name), f"{where}.{name}")
                    self.visit(getattr(x, name), f"{where}.{name}")


def _slots(kind: type) -> list[str]:
    """The names of the slots of a class, inherited ones included."""
    slots = [cls.__dict__.get("__slots__", ()) for cls in kind.__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in names if not name.startswith("__")]


def attributes(x: Any) -> list[str]:
    """The names of what an object itself holds, in its ``__dict__`` and its slots."""
    return [*getattr(x, "__dict__", ()), *(name for name in _slots(type(x)) if hasattr(x, name))]


def _foreign(module: str | None) -> bool:
    top = (module or "builtins").partition(".")[0]
    if top not in _FOREIGN:
        return False
    file = getattr(sys.modules.get(top), "__file__", None)  # a user's module may have a standard one's name
    return top in ("numpy", "uopc") or file is None or file.startswith(_STANDARD_LIBRARY)


def _is_iterator(x: Any) -> bool:
    """Whether reading x changes it, in a way that nothing shows; files are known not to be watched."""
    return isinstance(x, Iterator) and _foreign(type(x).__module__) and not isinstance(x, IOBase)


def _is_random(x: Any) -> bool:
    return type(x).__module__.startswith("numpy.random") or (
        "random" in sys.modules and isinstance(x, sys.modules["random"].Random)
    )


def _names(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in the code of a function and of those inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _globals(code: types.CodeType) -> set[str]:
    """The names of globals alone."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def foreign_random_state(generators: list[Any]) -> tuple[Any, ...]:
    """The state of Python's and NumPy's random numbers, which a captured function must not draw from: of the global
    ones, and of these generators.
    """
    state: list[Any] = []
    for x in generators:
        if hasattr(x, "getstate"):
            with suppress(NotImplementedError):  # SystemRandom
                state.append(x.getstate())
        else:
            state.append(repr(getattr(getattr(x, "bit_generator", getattr(x, "_bit_generator", x)), "state", None)))
    if "random" in sys.modules:
        state.append(sys.modules["random"].getstate())
    if "numpy.random" in sys.modules:
        state.append(repr(np.random.mtrand._rand.get_state(legacy=False)))
    return tuple(state)
