"""Pages of the documentation: what they show as code is run, and what they show as its output is compared.

A fenced block marked ``python`` is run; the blocks of a page share their names and one process.  A block marked
``text`` right behind one is what it prints.  Kernels are made for one machine, whatever machine runs the page.

    python tests/pages.py PAGE        runs a page; prints the outputs of its blocks as a JSON list
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
# What pages import besides uopc: loop skeletons, and the example.
FOLDERS = [ROOT / "tests", ROOT / "examples"]
SECONDS = 240

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<output>.*?)^```\n)?", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A python block: its code, the line of the page that it begins on, and the output that the page shows."""

    code: str
    line: int
    output: str
    start: int
    stop: int


def blocks(text: str) -> list[Block]:
    """The python blocks of a page."""
    found = []
    for m in _BLOCK.finditer(text):
        line = text.count("\n", 0, m.start("code")) + 1
        found.append(Block(m["code"], line, m["output"] or "", m.start(), m.end()))
    return found


def with_outputs(text: str, outputs: list[str]) -> str:
    """The page with these outputs behind its blocks."""
    parts, at = [], 0
    for block, output in zip(blocks(text), outputs, strict=True):
        shown = f"\n```text\n{output}```\n" if output else ""
        parts += [text[at : block.start], f"```python\n{block.code}```\n{shown}"]
        at = block.stop
    return "".join([*parts, text[at:]])


def run(page: Path) -> list[str]:
    """What the blocks of a page print, run one after the other in a process of their own; AssertionError with its
    traceback if one fails."""
    environment = {**os.environ, "DEBUG": "0", "UOPC_DUMP": ""}
    command = [sys.executable, str(Path(__file__).resolve()), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{page.relative_to(ROOT)}:\n{done.stderr}"
    return list(json.loads(done.stdout))


def fix_machine() -> None:
    """Kernels for the machine of the tests."""
    from fixed import MACHINE

    from uopc import pipeline

    pipeline.host = lambda: MACHINE  # type: ignore[assignment]


def _run_here(page: Path) -> list[str]:
    sys.path += map(str, FOLDERS)
    fix_machine()
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for block in blocks(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with redirect_stdout(printed):
            # empty lines in front: a traceback then has the page's line numbers
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
        outputs.append(printed.getvalue())
    return outputs


if __name__ == "__main__":
    json.dump(_run_here(Path(sys.argv[1])), sys.stdout)
