"""table: rows of text under heads, for terminals and files."""

from __future__ import annotations

from collections.abc import Sequence


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> str:
    """A plain table: the first column left, those of numbers right.  least: widths of the first columns, so that
    tables that follow one another agree."""
    widths = [max([len(h), *(len(r[k]) for r in rows), *least[k : k + 1]]) for k, h in enumerate(heads)]
    right = [bool(rows) and k > 0 and all(_is_number(r[k]) for r in rows) for k in range(len(heads))]
    lines = [title] if title else []
    for row in (heads, ["-" * w for w in widths], *rows):
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text == "-" or text[:1].isdigit() or text[:1] == "-" or not text
