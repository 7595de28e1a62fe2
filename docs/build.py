"""Make a web site of the pages: HTML that needs no network, no script and no server.

    python docs/build.py OUT         writes OUT/index.html and a file for each page

Nothing that a reader would stumble over is let through: a link, anchor or image that leads nowhere, a fence that is not
closed, a table whose rows have other cells than its head, two headings of one name.  Each is said, and the exit code
is 1.
Needs markdown-it-py, which comes with rich.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]
STYLE = """
:root { --ink: #1d2330; --soft: #5d6778; --line: #d5dae3; --paper: #fff; --wash: #f4f6fa; --mark: #2457c5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8f0; --soft: #9aa5b8; --line: #343c4c; --paper: #151922; --wash: #1d2330; --mark: #7aa5ff; }
}
body { margin: 0 auto; padding: 1em 1.2em 4em; max-width: 52em; font: 16px/1.55 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
a { color: var(--mark); } nav { color: var(--soft); border-bottom: 1px solid var(--line); padding-bottom: .4em; }
pre, code { font: 13px/1.45 ui-monospace, monospace; background: var(--wash); border-radius: 4px; }
code { padding: .1em .25em; } pre { padding: .7em .9em; overflow-x: auto; } pre code { padding: 0; }
.table { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .25em .8em .25em 0; border-bottom: 1px solid var(--line); }
img { max-width: 100%; background: #fff; }
"""


def place(page: Path) -> str:
    """Where the HTML of a page lies in the site."""
    if page.parent == ROOT:
        return "index.html" if page.name == "README.md" else f"{page.stem}.html"
    return f"{page.relative_to(ROOT).with_suffix('.html')}"


def anchor(title: str) -> str:
    """Of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


class Site:
    """The pages as they are read, and what is wrong with them."""

    def __init__(self) -> None:
        self.markdown = MarkdownIt("commonmark").enable("table")
        self.tokens = {page: self.markdown.parse(page.read_text(encoding="utf-8")) for page in PAGES}
        self.anchors = {page: [anchor(t) for t in _headings(tokens)] for page, tokens in self.tokens.items()}
        self.files: set[Path] = set()  # images and other files that pages lead to
        self.wrong: list[str] = []

    def say(self, page: Path, token: Token, text: str) -> None:
        line = f":{token.map[0] + 1}" if token.map else ""
        self.wrong.append(f"{page.relative_to(ROOT)}{line}: {text}")

    def render(self, page: Path) -> str:
        """The HTML of a page."""
        self.check_tables(page)
        seen: set[str] = set()
        tokens = self.tokens[page]
        for k, token in enumerate(tokens):
            if token.type == "heading_open":
                name = anchor(tokens[k + 1].content)
                if name in seen and page.name != "api.md":
                    self.say(page, token, f"there is another heading {tokens[k + 1].content!r}")
                seen.add(name)
                token.attrSet("id", name)
            elif token.type == "fence" and not _closed(page, token):
                self.say(page, token, "a fence that is not closed")
            for child in token.children or ():
                for key in ("href", "src"):
                    target = child.attrGet(key)
                    if isinstance(target, str) and not re.match(r"[a-z]+:", target):
                        child.attrSet(key, self.lead(page, token, target))
        body = self.markdown.renderer.render(tokens, self.markdown.options, {})
        body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
        up = "../" * place(page).count("/")
        title = html.escape(next(iter(_headings(tokens)), page.stem))
        nav = f'<nav><a href="{up}index.html">uopc</a> / <a href="{up}docs/README.html">documentation</a></nav>'
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n'
            f"<body>{nav}\n{body}</body></html>\n"
        )

    def lead(self, page: Path, token: Token, target: str) -> str:
        """Where a link of a page leads in the site."""
        path, _, name = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            self.say(page, token, f"leads to {target}, which does not exist")
            return target
        if file in self.anchors:
            if name and name not in self.anchors[file]:
                self.say(page, token, f"leads to {target}; there is no such heading")
            there = place(file)
        else:
            self.files.add(file)
            there = str(file.relative_to(ROOT))
        return "../" * place(page).count("/") + there + (f"#{name}" if name else "")

    def check_tables(self, page: Path) -> None:
        """Rows whose cells are too few or too many are filled up or cut off by every reader, and said by none."""
        lines = page.read_text(encoding="utf-8").splitlines()
        for token in self.tokens[page]:
            if token.type == "table_open" and token.map:
                counts = {_cells(line) for line in lines[token.map[0] : token.map[1]] if line.strip()}
                if len(counts) > 1:
                    self.say(page, token, f"a table whose rows have {' and '.join(map(str, sorted(counts)))} cells")


def _headings(tokens: list[Token]) -> list[str]:
    return [tokens[k + 1].content for k, t in enumerate(tokens) if t.type == "heading_open"]


def _cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row.strip()))) - 1


def _closed(page: Path, token: Token) -> bool:
    """Whether a fence ends with its own mark: one that does not takes the rest of the page."""
    assert token.map is not None
    last = page.read_text(encoding="utf-8").splitlines()[token.map[1] - 1]
    return last.strip() == token.markup and token.map[1] - token.map[0] > 1


def build(out: Path) -> list[str]:
    """Write the site; what is wrong with the pages, a line each."""
    site = Site()
    for page in PAGES:
        file = out / place(page)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(site.render(page), encoding="utf-8")
    for file in site.files:
        if file.is_file():
            copy = out / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return site.wrong


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write(__doc__ or "")
        return 2
    wrong = build(Path(arguments[0]))
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
