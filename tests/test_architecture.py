"""ARCHITECTURE.md is what the code is: its dumps are regenerated, its map and its stages are complete.

    pytest tests/test_architecture.py --update-golden      writes the dumps

What changed is in the diff, for a reviewer to read.
"""

from __future__ import annotations

import re

import pages
import pytest
from pages import ROOT

from uopc import pipeline

PAGE = ROOT / "ARCHITECTURE.md"


def section(title: str) -> str:
    """The text under a heading, down to the next one of its level."""
    level, text = len(title) - len(title.lstrip("#")), PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(title)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.M | re.S)
    assert found is not None, f"ARCHITECTURE.md has no heading {title!r}"
    return found[1]


def test_dumps(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    outputs = pages.run(PAGE)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(pages.with_outputs(text, outputs), encoding="utf-8")
        return
    for block, output in zip(pages.blocks(text), outputs, strict=True):
        assert block.output == output, f"ARCHITECTURE.md:{block.line} shows another dump than its code prints"


def test_every_stage_has_its_section_in_order() -> None:
    titles = re.findall(r"^### (\w+)$", section("## The life of one expression"), re.M)
    stages = [step.name for step in pipeline.STAGES]
    assert [t for t in titles if t in stages] == stages
    for stage in (*stages, "render_c"):
        assert "```text" in section(f"### {stage}"), f"{stage} shows nothing"


def test_the_map_names_every_module_and_folder() -> None:
    text = section("## The map")
    package = ROOT / "uopc"
    for file in sorted(package.glob("*.py")):
        name = "uopc" if file.stem == "__init__" else f"uopc.{file.stem}"
        assert f"`{name}`" in text, f"the map leaves out {name}"
    folders = [package / f.name for f in package.iterdir() if (f / "__init__.py").exists()]
    folders += [ROOT / name for name in ("runtime_c", "tests", "benchmarks", "examples", "docs")]
    for folder in folders:
        path = folder.relative_to(ROOT)
        assert f"`{path}/`" in text, f"the map leaves out {path}/"
