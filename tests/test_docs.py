"""The documentation holds: its code runs and prints what it shows, its links and names exist, the reference is current.

    pytest tests/test_docs.py --update-golden      writes the outputs that pages show, and docs/api.md

What changed is in the diff, for a reviewer to read.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
from pages import PAGES, ROOT

import uopc

WRITTEN = [page for page in PAGES if page.name not in ("api.md", "ARCHITECTURE.md")]  # the last: test_architecture.py


def name(page: Path) -> str:
    """As pytest shows it."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_blocks_print_what_the_page_shows(page: Path, request: pytest.FixtureRequest) -> None:
    check(page, request)


def check(page: Path, request: pytest.FixtureRequest) -> None:
    """Run a page and compare, or write what it prints."""
    text = page.read_text(encoding="utf-8")
    found = pages.blocks(text)
    if not found:
        return
    outputs = pages.run(page)
    if request.config.getoption("--update-golden"):
        page.write_text(pages.with_outputs(text, outputs), encoding="utf-8")
        return
    for block, output in zip(found, outputs, strict=True):
        assert block.output == output, f"{name(page)}:{block.line} shows another output than it prints"


def test_a_page_that_shows_something_else_fails() -> None:
    text = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nx = 2\n```\n"
    one, two = pages.blocks(text)
    assert (one.output, two.output, two.line) == ("1\n", "", 10)
    assert pages.with_outputs(text, ["1\n", ""]) == text
    assert pages.with_outputs(text, ["3\n", ""]) != text


# ---- links and names -----------------------------------------------------------------------------


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links that lie in the repository."""
    text = re.sub(r"`[^`]*`|^ {4}.*$", "", prose(page.read_text(encoding="utf-8")), flags=re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name(page)} links to {target}; there are {sorted(anchors(file))}"


def resolve(dotted: str) -> Any:
    """The module or object of a dotted name; AttributeError or ImportError where there is none."""
    module, rest = dotted.split("."), []
    while module:
        try:
            found = importlib.import_module(".".join(module))
        except ModuleNotFoundError:
            rest.insert(0, module.pop())
            continue
        for part in rest:
            found = getattr(found, part)
        return found
    raise ImportError(dotted)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_and_files_in_the_text_exist(page: Path) -> None:
    text = prose(page.read_text(encoding="utf-8"))
    for dotted in set(re.findall(r"`(uopc(?:\.\w+)+)(?:\(.*?\))?`", text)):
        resolve(dotted)
    folders = "uopc|src|runtime_c|tests|docs|examples|benchmarks"
    for path in set(re.findall(rf"`((?:{folders})/[\w./-]*)`", text)):
        assert (ROOT / path).exists(), f"{name(page)} names {path}"


def test_every_page_is_listed() -> None:
    listed = {(ROOT / "docs" / t.partition("#")[0]).resolve() for t in links(ROOT / "docs" / "README.md")}
    assert set((ROOT / "docs").glob("*.md")) <= {*listed, ROOT / "docs" / "README.md"}


def test_every_environment_variable_is_in_the_readme() -> None:
    source = (ROOT / "uopc" / "options.py").read_text(encoding="utf-8")
    read = set(re.findall(r'(?:environ\.get|_integer)\("(\w+)"', source))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"DEBUG", "UOPC_VERIFY"} <= read
    assert not {variable for variable in read if f"`{variable}" not in text}


def test_the_reference_has_every_public_name() -> None:
    """What `uopc` exports and what Tensor has, each with a text of its own; and the modules that pages send one to."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^###+ (uopc\.[\w.]+|Tensor\.\w+)\n(.*?)(?=^#|\Z)", text, re.M | re.S))
    methods = {name for name in dir(uopc.Tensor) if not name.startswith("_")}
    wanted = {f"uopc.{name}" for name in uopc.__all__} | {f"Tensor.{name}" for name in methods}
    assert wanted <= set(entries), wanted - set(entries)
    bare = [name for name, entry in entries.items() if len(re.sub(r"^`.*`$", "", entry, flags=re.M).strip()) < 3]
    assert not bare


def test_the_reference_is_current(request: pytest.FixtureRequest) -> None:
    flags = [] if request.config.getoption("--update-golden") else ["--check"]
    command = [sys.executable, str(ROOT / "docs" / "api.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
