"""Graphs as text, both ways: ``format_graph`` prints one, ``parse_graph`` reads it, and what is read is the same node.

A line is a node, sources before users, the root last:

    %3 = REDUCE ADD axes=[1] %2 : float32 [64]

its number, its op, its argument, its sources, its dtype (none for void) and its shape (none for scalars).  Constants
stand where they are used.  ``True``, ``3`` and ``0.5`` are of bool, index and float32; others name their type, as
``3:int32`` and ``(0, 1):indexx2`` do.  Of an argument with names the fields are written that are not as by default.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from dataclasses import fields, is_dataclass
from typing import Any

from uopc._hot.uop import UOp, toposort
from uopc.dtype import DType, by_name, dtypes
from uopc.ops import (
    TABLE,
    AxisType,
    CascadeArg,
    Component,
    ComponentArg,
    DTypeRule,
    KernelInfo,
    Level,
    Limit,
    Ops,
    Opts,
    Order,
    ParamArg,
    RangeArg,
    ReduceArg,
    StateArg,
    Tile,
    ViewArg,
)

# What stands in an argument, by the name that it is printed with.
_CLASSES: dict[str, Any] = {c.__name__: c for c in (Component, Limit, Opts, Tile)}
_MEMBERS: dict[str, Any] = {c.__name__: c for c in (AxisType, Level, Ops, Order, dtypes)}
# Arguments that are a line's words, with their fields by name; a line's dtype and shape are fields of some.
_WORDS = (CascadeArg, ComponentArg, KernelInfo, ParamArg, ReduceArg, StateArg, Tile, ViewArg)
_LINE_SAYS = ("dtype", "shape")
_TYPES = {bool: dtypes.bool_, int: dtypes.index, float: dtypes.float32}
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_NAN = struct.pack("<d", math.nan)


# ---- printing ------------------------------------------------------------------------------------


def format_graph(*roots: UOp) -> str:
    """One line a node, numbered, sources before users; constants stand where they are used."""
    lines: list[str] = []
    names: dict[UOp, str] = {}
    for u in toposort(roots):
        if u.op is Ops.CONST and u not in roots:
            names[u] = _constant(u)
            continue
        names[u] = f"%{len(lines)}"
        words = [u.op.name, *_argument(u), *(names[s] for s in u.src)]
        dtype = "" if u.dtype is dtypes.void else f" : {u.dtype.name}"
        lines.append(f"{names[u]:>5} = {' '.join(words)}{dtype}{_shape(u)}")
    return "\n".join(lines)


def _shape(u: UOp) -> str:
    try:
        return f" {list(u.shape)}" if u.shape else ""
    except TypeError:
        return ""


def _constant(u: UOp) -> str:
    plain = _TYPES.get(type(u.arg)) is u.dtype
    return _value(u.arg) if plain else f"{_value(u.arg)}:{u.dtype.name}"


def _argument(u: UOp) -> list[str]:
    """The words that an argument is."""
    arg = u.arg
    if arg is None:
        return []
    if isinstance(arg, RangeArg):
        return [f"r{arg.id}", arg.axis_type.name]
    if not isinstance(arg, _WORDS):
        return [_value(arg)]
    said = _fields(arg)
    if hasattr(arg, "dtype"):
        said = {name: text for name, text in said.items() if name not in _LINE_SAYS}
    first: list[str] = []
    if isinstance(arg, ReduceArg):
        del said["op"]
        first = [arg.op.name]
        said.update(axes=_value(list(arg.axes)))
        said = {name: text for name, text in said.items() if text != "[]"}
    elif isinstance(arg, KernelInfo):
        del said["name"]
        first = [arg.name if _is_name(arg.name) else repr(arg.name)]
    return [*first, *(f"{name}={text}" for name, text in said.items())]


def _is_name(text: str) -> bool:
    """Whether the name of a kernel needs no quotes."""
    return text.isidentifier() and text not in ("nan", "inf", "True", "False")


def _fields(x: Any) -> dict[str, str]:
    """The fields of a named tuple or dataclass that are not as by default."""
    if is_dataclass(x):
        given = {f.name: (getattr(x, f.name), f.default) for f in fields(x)}
        return {name: _value(value) for name, (value, default) in given.items() if value != default}
    defaults = x._field_defaults
    return {
        name: _value(value)
        for name, value in zip(x._fields, x)
        if name not in defaults or type(value) is not type(defaults[name]) or value != defaults[name]
    }


def _value(x: Any) -> str:
    """An argument, or a part of one, as Python writes it."""
    if isinstance(x, float):
        return _float(x)
    if type(x).__name__ in _CLASSES:
        return f"{type(x).__name__}({', '.join(f'{name}={text}' for name, text in _fields(x).items())})"
    if type(x) is tuple:
        return f"({', '.join(_value(v) for v in x)}{',' if len(x) == 1 else ''})"
    return repr(x)


def _float(x: float) -> str:
    if x == x:
        return repr(x)
    bits = struct.pack("<d", x)
    if bits == _NAN:
        return "nan"
    return "-nan" if bits == struct.pack("<d", -math.nan) else f"nan(0x{int.from_bytes(bits, 'little'):x})"


# ---- reading -------------------------------------------------------------------------------------


def parse_graph(text: str) -> UOp:
    """The node of the last line of ``text``, as ``format_graph`` prints it.  Empty lines are passed over.

    ValueError, with the number and the text of the line, for what is no such line, and for a node that cannot be, or is
    not of the dtype or shape that the line says.
    """
    nodes: dict[str, UOp] = {}
    node: UOp | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            name, node = _read(line, nodes)
        except (ValueError, TypeError, KeyError, AttributeError, SyntaxError) as error:
            raise ValueError(f"line {number}: {error}: {line.strip()}") from error
        if name in nodes:
            raise ValueError(f"line {number}: {name} stands above too: {line.strip()}")
        nodes[name] = node
    if node is None:
        raise ValueError("no line: the text of a graph has one for each node")
    return node


def _read(line: str, nodes: dict[str, UOp]) -> tuple[str, UOp]:
    """The number and the node of a line."""
    name, equals, *words = _words(line)
    if equals != "=" or not re.fullmatch(r"%\d+", name) or not words:
        raise ValueError("a line begins with a number and an op, as in '%3 = ADD'")
    op, words = _member(Ops, words[0]), words[1:]
    dtype, shape = dtypes.void, ()
    if ":" in words:
        at = words.index(":")
        words, (typed, *rest) = words[:at], words[at + 1 :]
        dtype, shape = _dtype(typed), tuple(_evaluated(rest[0])) if rest else ()
    arg = _read_argument(op, words, dtype, shape)
    sources = tuple(_source(word, nodes) for word in words)
    given = TABLE[op].dtype in (DTypeRule.GIVEN, DTypeRule.LOAD)
    node = UOp(op, sources, arg, dtype if given else None)
    if node.dtype is not dtype or _shape(node) != (f" {list(shape)}" if shape else ""):
        raise ValueError(f"the node is {node.dtype.name}{_shape(node)}")
    return name, node


def _words(line: str) -> list[str]:
    """What stands between blanks, brackets and quotes aside."""
    words, depth, begun, at = [], 0, None, 0
    while at < len(line):
        c = line[at]
        if c.isspace() and not depth:
            if begun is not None:
                words.append(line[begun:at])
            begun = None
        elif begun is None:
            begun = at
        depth += (c in "([{") - (c in ")]}")
        if c in "'\"":
            end = _QUOTED.match(line, at)
            if end is None:
                raise ValueError("a quote does not end")
            at = end.end() - 1
        at += 1
    if depth:
        raise ValueError("a bracket does not end")
    return words if begun is None else [*words, line[begun:]]


def _dtype(name: str) -> DType:
    """The type of a name such as float32, index or float32x16."""
    found = re.fullmatch(r"(\w+?)(?:x(\d+))?", name)
    try:
        assert found is not None
        return by_name(found[1], int(found[2] or 1))
    except (AssertionError, KeyError):
        raise ValueError(f"there is no dtype {name}") from None


def _source(word: str, nodes: dict[str, UOp]) -> UOp:
    """A source by its number, or a constant."""
    if word.startswith("%"):
        if word not in nodes:
            raise ValueError(f"no line above is {word}")
        return nodes[word]
    text, _, typed = word.partition(":")
    value = _evaluated(text)
    if not typed and type(value) not in _TYPES:
        raise ValueError(f"{word} has no type")
    return UOp(Ops.CONST, (), value, _dtype(typed) if typed else _TYPES[type(value)])


def _read_argument(op: Ops, words: list[str], dtype: DType, shape: tuple[int, ...]) -> Any:
    """The argument of a line, whose words are taken from ``words``."""
    accepted = TABLE[op].arg
    classes = accepted if isinstance(accepted, tuple) else (accepted,)
    if classes == (None,) or (type(None) in classes and not _begins_argument(op, words)):
        return None
    if op is Ops.RANGE:
        return RangeArg(int(_next(op, words).removeprefix("r")), _member(AxisType, _next(op, words)))
    kind: Any = next((c for c in classes if c in _WORDS), None)
    if kind is None or (kind is Tile and words and words[0].startswith("Level.")):
        return _evaluated(_next(op, words))
    said: dict[str, Any] = {name: value for name, value in zip(_LINE_SAYS, (dtype, shape)) if name in kind._fields}
    if kind is ReduceArg:
        said.update(op=_member(Ops, _next(op, words)), axes=[])
    elif kind is KernelInfo:
        name = _next(op, words)
        said.update(name=name if name.isidentifier() else _evaluated(name))
    while words and re.match(r"[a-z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        said[name] = _evaluated(value)
    if kind is ReduceArg:
        said["axes"] = tuple(said["axes"])
    return kind(**said)


def _next(op: Ops, words: list[str]) -> str:
    """The first of ``words``, which is taken."""
    if not words:
        raise ValueError(f"{op.name} has an argument")
    return words.pop(0)


def _member(kind: Any, name: str) -> Any:
    """The member of an enum that is called so."""
    if name not in kind.__members__:
        raise ValueError(f"there is no {kind.__name__}.{name}")
    return kind[name]


def _begins_argument(op: Ops, words: list[str]) -> bool:
    """Whether an argument that may be missing stands there: a name, or a value in front of a source that is no
    constant."""
    if not words or words[0].startswith("%"):
        return False
    return words[0][0] in "'\"" or _is_name(words[0]) if op in (Ops.SINK, Ops.LINEAR) else True


def _evaluated(text: str) -> Any:
    """A value as ``_value`` writes it."""
    return _of(ast.parse(text, mode="eval").body)


def _of(x: ast.expr) -> Any:
    """The value of a parsed expression: numbers, tuples and lists of values, members of enums, and named arguments."""
    if isinstance(x, ast.Constant):
        return x.value
    if isinstance(x, (ast.Tuple, ast.List)):
        values = [_of(v) for v in x.elts]
        return tuple(values) if isinstance(x, ast.Tuple) else values
    if isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub):
        return -_of(x.operand)
    if isinstance(x, ast.Name) and x.id in ("nan", "inf"):
        return math.nan if x.id == "nan" else math.inf
    if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id in _MEMBERS:
        return getattr(_MEMBERS[x.value.id], x.attr)
    if isinstance(x, ast.Call) and isinstance(x.func, ast.Name):
        if x.func.id == "nan":
            return struct.unpack("<d", _of(x.args[0]).to_bytes(8, "little"))[0]
        if x.func.id in _CLASSES:
            return _CLASSES[x.func.id](**{k.arg: _of(k.value) for k in x.keywords if k.arg is not None})
    raise ValueError(f"{ast.unparse(x)} is no number, type or argument")
