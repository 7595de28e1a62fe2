"""The notebooks hold: their cells run, and what they store is what they give."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pages import FOLDERS, ROOT, SECONDS

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST = 200_000  # bytes: a page that is looked at, not a store of data
# On the machine of the tests, as the pages.
CHECK = """
import sys
sys.path += sys.argv[2:]
import pages, notebook
pages.fix_machine()
sys.exit(notebook.main(["--check", sys.argv[1]]))
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """docs/notebook.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "docs" / "notebook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def test_there_is_one() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_outputs_are_stored(path: Path, tool: ModuleType) -> None:
    """All cells were run, in order; each that prints or ends with a value has its output."""
    notebook = read(path)
    cells = tool.code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells if any("print(" in line for line in cell["source"]))
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell["outputs"])
    assert path.stat().st_size < LARGEST
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_cells_give_what_is_stored(path: Path) -> None:
    command = [sys.executable, "-c", CHECK, str(path), str(ROOT / "docs"), *map(str, FOLDERS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_cell_gives(tool: ModuleType) -> None:
    """What it prints, and the value of its last line: as HTML too where it has that."""

    def given(source: str) -> list[dict[str, Any]]:
        cell = {"cell_type": "code", "metadata": {}, "source": source.splitlines(keepends=True), "outputs": []}
        (outputs,) = tool.run({"cells": [cell]})
        return list(outputs)

    assert given("x = 1\n") == [] and given("None") == []
    printed, value = given("print(1)\nprint(2)\n'text'")
    assert printed["text"] == ["1\n", "2\n"] and value["data"] == {"text/plain": ["'text'"]}
    (table,) = given("class T:\n    def _repr_html_(self):\n        return '<p>'\nT()")
    assert table["data"]["text/html"] == ["<p>"]


def test_another_output_is_seen(tool: ModuleType) -> None:
    cell = {"cell_type": "code", "metadata": {}, "source": ["print(1)\n"], "outputs": []}
    notebook = {"cells": [cell, {"cell_type": "markdown", "source": ["text"]}]}
    outputs = tool.run(notebook)
    assert "cell 1" in tool.differences(notebook, outputs)[0]
    cell["outputs"] = copy.deepcopy(outputs[0])
    assert not tool.differences(notebook, outputs)
    cell["outputs"], cell["metadata"] = [], {"tags": ["measured"]}
    assert not tool.differences(notebook, outputs)
