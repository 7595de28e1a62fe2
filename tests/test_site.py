"""The site of the pages: it is built without complaint, and what a reader would stumble over is complained of."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT

pytest.importorskip("markdown_it")


@pytest.fixture
def tool() -> ModuleType:
    """docs/build.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_is_built_without_a_warning(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.build(tmp_path) == []
    pages = {file.relative_to(tmp_path).as_posix(): file.read_text() for file in tmp_path.rglob("*.html")}
    assert {"index.html", "ARCHITECTURE.html", "docs/tutorial.html", "docs/api.html"} <= set(pages)
    for name, text in pages.items():
        assert "<h1" in text and text.count("<pre>") == text.count("</pre>")
        for target in re.findall(r'(?:href|src)="([^"#]+)', text):
            if not target.startswith("http"):
                assert (tmp_path / name).parent.joinpath(target).exists(), f"{name} leads to {target}"


WRONG = {
    "leads to nowhere.md": "# A\n\n[text](nowhere.md)\n",
    "there is no such heading": "# A\n\n[text](#b)\n",
    "leads to figure.png": "# A\n\n![text](figure.png)\n",
    "a fence that is not closed": "# A\n\n```python\nx = 1\n",
    "rows have 2 and 3 cells": "# A\n\n| a | b |\n|---|---|\n| 1 | 2 | 3 |\n",
    "another heading 'B'": "# A\n\n## B\n\n## B\n",
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_said_with_its_line(
    said: str, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(WRONG[said])
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PAGES", [page])
    (found,) = tool.build(tmp_path / "out")
    assert said in found and re.match(r"page\.md:\d+: ", found)
    page.write_text("# A\n\n[text](#a)\n\n| a | `b | c` |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n")
    assert tool.build(tmp_path / "out") == []
