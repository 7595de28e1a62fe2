"""Imports point one way.  Reads every Python import, Cython cimport and C #include, and fails on an arrow back.

    python .ci/check_layers.py [ROOT]

`LAYERS` is the whole rule: a module may import what stands in a lower layer; what it may import of its own layer is
that layer's `inner`.  An import counts wherever it stands: at the top of a module, in a function, under TYPE_CHECKING.
Public names whose home is a higher layer (`uopc.kernelize.realize`) are looked up by a module's `__getattr__` (PEP 562)
through importlib; only the modules of `LAZY` may do so, and only there.  Prints `file:line: from -> to: rule`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path


class Inner(Enum):
    """What a module may import of its own layer."""

    FREE = "its own layer is free"
    ORDERED = "within a layer, only what is listed earlier"
    ISOLATED = "modules of this layer do not import one another"


@dataclass(frozen=True)
class Layer:
    """Modules, as patterns, that stand at one height."""

    name: str
    modules: tuple[str, ...]
    inner: Inner


LAYERS = (
    Layer(
        "facts",
        (
            *(f"uopc.{name}" for name in ("memo", "limits", "dtype", "ops", "target", "options")),
            "uopc.runtime.device",
        ),
        Inner.ORDERED,
    ),
    Layer(
        "_hot",
        (
            "uopc._hot",
            *(
                f"uopc._hot.{name}"
                for name in (
                    "int64",
                    "ptrmap",
                    "stack",
                    "uop",
                    "rewrite",
                    "simplify",
                    "rangeify",
                    "graph",
                    "linearize",
                    "text",
                    "uses",
                    "statements",
                    "runtime",
                    "call",
                )
            ),
        ),
        Inner.ORDERED,
    ),
    Layer(
        "graph",
        (
            "uopc.notation",
            "uopc.uop",
            "uopc.terms",
            "uopc.spec.nodes",
            "uopc.spec.loops",
            "uopc.spec.tiles",
            "uopc.spec",
        ),
        Inner.ORDERED,
    ),
    Layer("simplify", ("uopc.simplify",), Inner.ISOLATED),
    # below the passes: schedule, layout and blockize range a kernel to see how its addresses move
    Layer(
        "rangeify",
        (
            *(
                f"uopc.rangeify.{name}"
                for name in ("context", "movement", "reduction", "axes", "unswitch", "tiles", "cascades", "values")
            ),
            "uopc.rangeify",
            "uopc.rangeify.nest",
            "uopc.rangeify.positions",
        ),
        Inner.ORDERED,
    ),
    Layer(
        "decompose",  # below the costs: an operation takes what it is made of
        (
            *(f"uopc.decompose.{name}" for name in ("floatbits", "casts", "halves", "integers", "narrow", "rounding")),
            *(f"uopc.decompose.{name}" for name in ("exponential", "logarithm", "error_function", "trigonometric")),
            "uopc.decompose.power",
            "uopc.decompose.normal",
            "uopc.decompose",
        ),
        Inner.ORDERED,
    ),
    Layer("cost", ("uopc.issue", "uopc.cost", "uopc.opt.sizes"), Inner.ORDERED),  # what schedule and blockize choose by
    Layer("instances", ("uopc.instances",), Inner.ISOLATED),  # a part of kernelize
    Layer("isolate", ("uopc.isolate",), Inner.ISOLATED),  # what kernelize and layout ask a price of
    Layer("fusion", ("uopc.fusion",), Inner.ISOLATED),  # a part of kernelize
    Layer(
        "blockize",  # its parts; the package's face is a pass
        (
            *(
                f"uopc.blockize.{name}"
                for name in ("conditions", "limits", "sizes", "operands", "dots", "cascade_dots")
            ),
            *(f"uopc.blockize.{name}" for name in ("cascade_cost", "overlaps", "panels", "rows", "sweeps", "cascades")),
        ),
        Inner.ORDERED,
    ),
    Layer(
        "cascade",  # its parts; the package's face is a pass
        (
            *(f"uopc.cascade.{name}" for name in ("lift", "survey", "frame", "chain", "factors")),
            *(f"uopc.cascade.{name}" for name in ("samples", "derivation", "trial", "known", "formulas", "parts")),
            *(f"uopc.cascade.{name}" for name in ("group", "written", "unrounded", "search")),
        ),
        Inner.ORDERED,
    ),
    Layer(
        "render_c",
        tuple(
            f"uopc.render_c.{name}"
            for name in ("code", "types", "functions", "expressions", "memory", "order", "kernel")
        ),
        Inner.ORDERED,
    ),
    Layer(
        "passes",
        (
            *(
                f"uopc.{name}"
                for name in ("widen", "summation", "cascade", "split", "kernelize", "agree", "joint", "blockize")
            ),
            *(f"uopc.{name}" for name in ("linearize", "count")),
            "uopc.render_c",
            "uopc.opt.*",
        ),
        Inner.ISOLATED,
    ),
    Layer("opt", ("uopc.opt",), Inner.ISOLATED),  # the package's face: names its passes
    Layer("price", ("uopc.outline", "uopc.price"), Inner.ORDERED),  # the kernels that cuts make, and their time
    Layer("pipeline", ("uopc.pipeline",), Inner.ISOLATED),
    Layer("runtime", ("uopc.runtime", "uopc.runtime.*"), Inner.FREE),
    # rules of gradients are made of what Tensors are made of: shapes, reductions, scans
    Layer("tensor", ("uopc.tensor", "uopc.tensor.*", "uopc.gradient", "uopc.gradient.*"), Inner.FREE),
    Layer("jit", ("uopc.jit", "uopc.transforms"), Inner.ORDERED),
    Layer("inspect", ("uopc.inspect", "uopc.inspect.*"), Inner.FREE),
    Layer("public", ("uopc", "uopc.__main__"), Inner.ORDERED),
)
LAZY = ("uopc.kernelize", "uopc.render_c")
LOOKUPS = ("import_module", "__import__")

# C: the runtime knows nothing of Python, and one binding knows the runtime, through its one public header.
PUBLIC_HEADER = "uopc_runtime.h"
BINDING = "uopc._hot.runtime"
PYTHON_HEADERS = ("Python.h", "numpy/*", "structmember.h")


@dataclass(frozen=True)
class Arrow:
    """One import: where it stands, and what it names."""

    file: Path
    line: int
    source: str
    target: str


@dataclass(frozen=True)
class Violation:
    """An arrow and the rule that it breaks."""

    arrow: Arrow
    rule: str

    def __str__(self) -> str:
        at = self.arrow
        return f"{at.file}:{at.line}: {at.source} -> {at.target}: {self.rule}"


# ---- the rule ----


def place(module: str) -> tuple[int, int] | None:
    """The height of a module's layer and its position in it, or None where no layer lists it."""
    for height, layer in enumerate(LAYERS):
        for position, pattern in enumerate(layer.modules):
            if fnmatchcase(module, pattern):
                return height, position
    return None


def broken_rule(source: str, target: str) -> str | None:
    """The rule that the arrow `source -> target` breaks, or None.  Both are modules of uopc."""
    if source == target:
        return None
    at, to = place(source), place(target)
    if at is None or to is None:
        return f"{source if at is None else target} stands in no layer; add it to LAYERS"
    if to[0] > at[0]:
        return f"layer {LAYERS[to[0]].name} is above layer {LAYERS[at[0]].name}; imports point down"
    inner = LAYERS[at[0]].inner
    inside = to[0] == at[0] and (inner is Inner.ISOLATED or (inner is Inner.ORDERED and to[1] >= at[1]))
    return f"layer {LAYERS[at[0]].name}: {inner.value}" if inside else None


# ---- Python ----


def module_name(file: Path, top: Path) -> str:
    """The module that a file under `top` defines: `uopc/opt/__init__.py` is `uopc.opt`."""
    parts = file.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def absolute(name: str, dots: int, source: str, is_package: bool) -> str:
    """A module named with leading dots inside `source`, in full."""
    if dots == 0:
        return name
    parts = source.split(".")
    base = parts[: len(parts) - dots + is_package]
    return ".".join([*base, name] if name else base)


def named(module: str, names: Iterable[str], known: set[str]) -> Iterator[str]:
    """What `from module import names` imports: submodules where there are such, else the module itself."""
    for name in names:
        yield f"{module}.{name}" if f"{module}.{name}" in known else module


def python_imports(tree: ast.Module, source: str, is_package: bool, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a parsed file, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node.module or "", node.level, source, is_package)
            yield from ((node.lineno, name) for name in named(module, (alias.name for alias in node.names), known))


def lazy_lookups(tree: ast.Module) -> Iterator[tuple[int, bool]]:
    """(line, whether it stands where it may) of every use of import_module and __import__.

    In a module of `LAZY` a use may stand in the top-level `__getattr__`, and the import of import_module anywhere.
    """
    homes = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    inside = {id(node) for home in homes for node in ast.walk(home)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name in LOOKUPS for alias in node.names):
            yield node.lineno, True
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in LOOKUPS:
                yield node.lineno, id(node) in inside


def check_python(root: Path, known: set[str]) -> Iterator[Violation]:
    """Violations of the package's .py and .pyi files."""
    for file in sorted((root / "uopc").rglob("*.py*")):
        if file.suffix not in (".py", ".pyi"):
            continue
        source, shown = module_name(file, root), file.relative_to(root)
        tree = ast.parse(file.read_text(encoding="utf-8"), str(shown))
        for line, target in python_imports(tree, source, file.stem == "__init__", known):
            yield from judge(Arrow(shown, line, source, target))
        for line, allowed in lazy_lookups(tree):
            arrow = Arrow(shown, line, source, "importlib")
            if source not in LAZY:
                yield Violation(arrow, f"only {' and '.join(LAZY)} may look a module up by name")
            elif not allowed:
                yield Violation(arrow, "a lazy lookup stands in __getattr__ (PEP 562)")


# ---- Cython ----

# Strings are matched with comments so that a mark inside the one does not open the other; short ones hold header names.
_TEXT = re.compile(
    r"(?P<doc>\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?''')|(?P<string>\"[^\"\n]*\"|'[^'\n]*')|(?P<comment>#[^\n]*)"
)
_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+c?import[ \t]*(\([^)]*\)|[^\n]*)", re.MULTILINE)
_PLAIN = re.compile(r"^[ \t]*c?import[ \t]+([^\n]+)", re.MULTILINE)
_INCLUDE_PXI = re.compile(r"^[ \t]*include[ \t]+[\"']([^\"'\n]+)[\"']", re.MULTILINE)
_EXTERN = re.compile(r"^[ \t]*cdef[ \t]+extern[ \t]+from[ \t]+[\"']([^\"'\n]+)[\"']", re.MULTILINE)


def without_text(code: str) -> str:
    """Cython code with comments and triple-quoted strings blanked, line numbers kept."""

    def blank(match: re.Match[str]) -> str:
        return match.group() if match.group("string") else "\n" * match.group().count("\n")

    return _TEXT.sub(blank, code)


def first_words(names: str) -> list[str]:
    """The names of an import list, without their `as` parts."""
    return [part.split()[0] for part in names.strip("() \t").replace("\\\n", " ").split(",") if part.split()]


def cython_imports(code: str, source: str, is_package: bool, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import and cimport in code that `without_text` returned."""
    for match in _FROM.finditer(code):
        module = absolute(match[2], len(match[1]), source, is_package)
        yield from ((line_of(code, match), name) for name in named(module, first_words(match[3]), known))
    for match in _PLAIN.finditer(code):
        yield from ((line_of(code, match), name) for name in first_words(match[1]))


def line_of(code: str, match: re.Match[str]) -> int:
    return code.count("\n", 0, match.start()) + 1


def defining_module(file: Path, top: Path) -> str:
    """The module that a Cython file is part of; a `.pxi` is part of the module that includes it."""
    if file.suffix == ".pxi":
        for user in sorted(file.parent.glob("*.p[yx][xd]")):
            if any(match[1] == file.name for match in _INCLUDE_PXI.finditer(without_text(user.read_text("utf-8")))):
                return module_name(user, top)
    return module_name(file, top)


def check_cython(root: Path, known: set[str]) -> Iterator[Violation]:
    """Violations of the Cython files, in what they import and in what C they bind."""
    for file in sorted((root / "src").rglob("*.p[yx][xdi]")):
        source, shown = defining_module(file, root / "src"), file.relative_to(root)
        code = without_text(file.read_text(encoding="utf-8"))
        for line, target in cython_imports(code, source, file.stem == "__init__", known):
            if target.split(".")[0] == "importlib":
                yield Violation(Arrow(shown, line, source, target), "Cython looks no module up by name")
            yield from judge(Arrow(shown, line, source, target))
        for match in _EXTERN.finditer(code):
            if Path(match[1]).name == PUBLIC_HEADER and source != BINDING:
                arrow = Arrow(shown, line_of(code, match), source, match[1])
                yield Violation(arrow, f"only {BINDING} binds runtime_c")
            elif is_private_header(root, match[1]):
                arrow = Arrow(shown, line_of(code, match), source, match[1])
                yield Violation(arrow, f"the only public header of runtime_c is {PUBLIC_HEADER}")


# ---- C ----

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)


def is_private_header(root: Path, header: str) -> bool:
    """Whether an include names a header of runtime_c other than the public one."""
    name = Path(header).name
    return name != PUBLIC_HEADER and any((root / "runtime_c").rglob(name))


def check_c(root: Path) -> Iterator[Violation]:
    """runtime_c includes system headers and its own; its public header no private one; nothing includes its tests."""
    base = root / "runtime_c"
    for file in sorted(base.rglob("*.[ch]")):
        shown, code = file.relative_to(root), file.read_text(encoding="utf-8")
        for match in _INCLUDE.finditer(code):
            arrow = Arrow(shown, line_of(code, match), shown.as_posix(), match[1])
            if any(fnmatchcase(match[1], pattern) for pattern in PYTHON_HEADERS):
                yield Violation(arrow, "runtime_c is plain C and knows nothing of Python")
            elif file.name == PUBLIC_HEADER and is_private_header(root, match[1]):
                yield Violation(arrow, "the public header includes system headers only")
            elif "test" not in shown.parts and any((base / "test").rglob(Path(match[1]).name)):
                yield Violation(arrow, "nothing includes a test")


# ---- all of it ----


def judge(arrow: Arrow) -> Iterator[Violation]:
    """The violation of one import, if it is one.  Only modules of uopc have layers."""
    rule = broken_rule(arrow.source, arrow.target) if arrow.target.split(".")[0] == "uopc" else None
    if rule:
        yield Violation(arrow, rule)


def modules(root: Path) -> set[str]:
    """Every module of uopc that the tree defines, compiled ones included."""
    python = {module_name(file, root) for file in (root / "uopc").rglob("*.py")}
    return python | {module_name(file, root / "src") for file in (root / "src").rglob("*.p[yx][xd]")}


def check(root: Path) -> list[Violation]:
    """Every violation in the tree at `root`."""
    known = modules(root)
    homeless = [module for module in sorted(known) if place(module) is None]
    found = [Violation(Arrow(Path("uopc"), 1, name, name), "stands in no layer; add it to LAYERS") for name in homeless]
    found += [*check_python(root, known), *check_cython(root, known), *check_c(root)]
    return list(dict.fromkeys(found))  # one import of three names is one arrow


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    violations = check(root)
    for violation in violations:
        print(violation)
    if violations:
        return 1
    print(f"layers: {len(modules(root))} modules, every import points down")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
