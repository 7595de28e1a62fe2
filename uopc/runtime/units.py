"""Several kernels in one translation unit, because most of a compiler run is the run and not the kernel.

A kernel's source is complete in itself: declarations, and then its functions.  Joined, each declaration stands once,
and a kernel's functions get names that no other kernel has, by macros around its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from uopc.runtime.cache import digest

# Patterns are compiled where they are first used: that takes longer than loading a kernel.
_ATTRIBUTE = r"(?s)__attribute__\s*\(\(.*?\)\)(?!\))"
_DECLARED = (
    r"#define\s+(\w+)",
    r"(?s)typedef\b.*?(\w+)\s*;",
    r"(?s)[^(=]*?(\w+)\s*(?:\(|\[[^=]*\]\s*=|=)",
)


class Source(NamedTuple):
    """A kernel: its name, and C that defines NAME_range, NAME_launch and NAME."""

    name: str
    text: str

    @property
    def symbol(self) -> str:
        """Its name in a unit: equal for equal sources alone."""
        return f"{self.name}_{digest(self.text)[:12]}"


class Unit:
    """Kernels that are compiled together.  `declared`: the text of each declaration by its name."""

    def __init__(self) -> None:
        self.kernels: list[Source] = []
        self.declared: dict[str, str] = {}
        self.length = 0

    def accepts(self, declarations: dict[str, str]) -> bool:
        """Whether no name means something else here."""
        return all(self.declared.get(name, text) == text for name, text in declarations.items())

    def add(self, kernel: Source, declarations: dict[str, str]) -> None:
        """Take a kernel in."""
        self.kernels.append(kernel)
        self.declared |= declarations
        self.length += len(kernel.text)

    @property
    def text(self) -> str:
        """The C of the unit."""
        parts = list(self.declared.values())
        for kernel in self.kernels:
            body = "\n".join(chunk for chunk in chunks(kernel.text) if declared_name(chunk, kernel) is None)
            names = [(kernel.name + end, kernel.symbol + end) for end in ("_range", "_launch", "")]
            defines = [f"#define {old} {new}" for old, new in names]
            parts += [*defines, body, *(f"#undef {old}" for old, _ in names)]
        return "\n".join(parts) + "\n"


def chunks(text: str) -> list[str]:
    """The declarations and definitions at the top level of C that render_c wrote, with preprocessor lines apart."""
    found: list[str] = []
    open_lines: list[str] = []
    depth = 0
    for line in text.splitlines():
        if not open_lines and (not line.strip() or line.startswith("#")):
            if line.strip():
                found.append(line)
            continue
        open_lines.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.rstrip().endswith((";", "}")):
            found.append("\n".join(open_lines))
            open_lines = []
    if open_lines:
        found.append("\n".join(open_lines))
    return found


def declared_name(chunk: str, kernel: Source) -> str | None:
    """The name that a declaration above a kernel's functions gives a meaning to; None for the functions themselves."""
    head = re.sub(_ATTRIBUTE, "", chunk.split("{", 1)[0] if not chunk.startswith("typedef") else chunk)
    for pattern in _DECLARED:
        match = re.match(pattern, head)
        if match:
            name = match.group(1)
            return None if name in (f"{kernel.name}_range", f"{kernel.name}_launch", kernel.name) else name
    return chunk


def units_of(kernels: Sequence[Source], most: int) -> list[Unit]:
    """The kernels in at most `most` units of about equal length; more only where declarations contradict each other."""
    units = [Unit() for _ in range(max(1, min(most, len(kernels))))]
    for kernel in sorted(kernels, key=lambda k: -len(k.text)):
        declarations = {}
        for chunk in chunks(kernel.text):
            name = declared_name(chunk, kernel)
            if name is not None:
                declarations[name] = chunk
        fitting = [unit for unit in units if unit.accepts(declarations)]
        if not fitting:
            units.append(Unit())
            fitting = units[-1:]
        min(fitting, key=lambda unit: unit.length).add(kernel, declarations)
    return [unit for unit in units if unit.kernels]
