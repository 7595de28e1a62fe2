"""Write docs/api.md: the public names, their signatures and docstrings.

    python docs/api.py              writes the page
    python docs/api.py --check      says whether it is current (exit code 1 if not)

Run it after any change of a public name or docstring.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uopc
from uopc import Tensor

PAGE = Path(__file__).with_name("api.md")
HEAD = """# Reference

Written by `docs/api.py` from the docstrings; a test keeps it current. What a name means for a user of NumPy, PyTorch or
tinygrad is in [the table of correspondences](correspondence.md).
"""
# What has no docstring of its own.
ATTRIBUTES = {
    "uop": "The graph of the Tensor, a `UOp`; once it was computed, the BUFFER of its value.",
    "fuse_reduce": "Of the class: the default of the option `fuse_reduce` for the whole process (None).",
    "opt": "Of the class: the default of the option `opt` for the whole process (None).",
}
# Whole modules whose public functions and classes are listed after the names of `uopc` itself.
MODULES = {
    "uopc.pipeline": ("make_plan", "plan_for", "watch", "to_linear", "Plan", "Kernel", "Call"),
    "uopc.uop": ("format_graph", "parse_graph"),
    "uopc.rangeify": ("Opts", "Ctx", "lower", "lower_stores", "rangeify"),
    "uopc.render_c": ("render_c",),
    "uopc.cascade": ("derivations",),
    "uopc.gradient": ("gradients",),
    "uopc.inspect.report": ("Report", "KernelReport", "DecisionReport", "CascadeReport"),
    "uopc.inspect.recompute": ("Reduction", "reductions", "reductions_of_loops"),
    "uopc.inspect.work": ("work", "Work", "Argument", "Body"),
    "uopc.inspect.predict": ("predict", "Prediction"),
    "uopc.inspect.roofline": ("roofline", "Roofline", "Rates"),
    "uopc.inspect.page": ("page",),
    "uopc.inspect.fixture": ("UopcBenchmark",),
    "uopc.inspect.bench": ("compare_files", "compare", "Comparison"),
    "uopc.inspect.sweep.run": ("Sweep",),
    "uopc.inspect.sweep.problems": ("Problem", "find_user"),
    "uopc.inspect.sweep.results": ("Point", "Log"),
    "uopc.count": ("count", "products", "times", "Work"),
    "uopc.spec": ("verify", "SpecError"),
    "uopc.runtime": ("Program",),
    "uopc.runtime.device": ("device", "host", "Device"),
    "uopc.target": ("Target", "Cache", "Feature", "named"),
}


def signature(thing: Any) -> str:
    """``(a, b=1)``; empty where Python knows none, and for what uopc makes and users do not."""
    if thing is uopc.DType or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return ""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    # annotations are strings, which some versions of Python quote
    return re.sub(r"((?:: |-> ))'([^']*)'", r"\1\2", str(given))


def text(thing: Any) -> str:
    """A docstring as Markdown: its code spans have one backquote."""
    return (inspect.getdoc(thing) or "").replace("``", "`")


def entry(title: str, thing: Any, level: int) -> str:
    """A heading, the signature and the text."""
    shown = f"`{title}{signature(thing)}`" if callable(thing) else f"`{title}`"
    return f"{'#' * level} {title}\n\n{shown}\n\n{text(thing)}\n{members(thing)}"


def members(thing: Any) -> str:
    """The methods and properties of a class, a line each; those of Tensor have headings of their own."""
    if not inspect.isclass(thing) or thing is Tensor or issubclass(thing, Exception):
        return ""
    lines = []
    for name, member in vars(thing).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        given = re.sub(r"^\(self(, )?", "(", signature(function))
        shown = name if isinstance(member, property) else f"{name}{given}"
        first = " ".join(text(function).split("\n\n")[0].split())
        lines.append(f"- `{shown}`: {first}\n")
    return "\n" + "".join(lines) if lines else ""


def methods() -> Iterator[tuple[str, list[str]]]:
    """The methods of Tensor, by the file that defines them, in the order of the classes."""
    for cls in reversed(Tensor.__mro__):
        names = [n for n, f in vars(cls).items() if not n.startswith("_") and (callable(f) or _described(f))]
        if names and cls is not object:
            yield cls.__module__.rsplit(".", 1)[-1], names


def _described(member: Any) -> bool:
    return isinstance(member, (property, classmethod, staticmethod))


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## uopc\n"]
    parts += [entry(f"uopc.{name}", getattr(uopc, name), 3) for name in uopc.__all__ if name != "dtypes"]
    scalars = ", ".join(f"`{n}`" for n in vars(uopc.dtypes) if not n.startswith("_") and _is_dtype(n))
    parts.append(f"### uopc.dtypes\n\n{text(uopc.dtypes)} {scalars}.\n")
    parts.append("## Attributes of Tensor\n")
    parts += [f"#### Tensor.{name}\n\n{what}\n" for name, what in ATTRIBUTES.items()]
    parts.append("## Methods of Tensor\n")
    for subject, names in methods():
        parts.append(f"### {subject}\n")
        for name in names:
            parts.append(entry(f"Tensor.{name}", getattr(Tensor, name), 4))
    for module, names in MODULES.items():
        found = sys.modules.get(module) or __import__(module, fromlist=["*"])
        parts.append(f"## {module}\n")
        parts += [entry(f"{module}.{name}", getattr(found, name), 3) for name in names]
    return "\n".join(parts)


def _is_dtype(name: str) -> bool:
    return isinstance(getattr(uopc.dtypes, name), uopc.DType)


def main() -> int:
    """Write the page, or check it."""
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write("docs/api.md is not what the docstrings say: run python docs/api.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
