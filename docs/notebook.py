"""Run the cells of a notebook in order, and keep what they give.

    python docs/notebook.py examples/attention_variants.ipynb            runs it, and writes the outputs into it
    python docs/notebook.py --check examples/attention_variants.ipynb    runs it, and says which outputs are others

Jupyter is not needed.  A cell gives what it prints, and the value of its last line: as HTML where it has that, a figure
of matplotlib as an image, else as text.  Cells tagged "measured" show times, and are run by --check but not compared.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, run one after the other."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_outputs(cell, k, names) for k, cell in enumerate(code_cells(notebook), 1)]


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def measured(cell: dict[str, Any]) -> bool:
    """Whether a cell shows what another run gives otherwise."""
    return "measured" in cell["metadata"].get("tags", ())


def _outputs(cell: dict[str, Any], number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    code = ast.parse("".join(cell["source"]), f"cell {number}")
    last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(code, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    out: list[dict[str, Any]] = []
    if printed.getvalue():
        out.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        out.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": _shown(value)})
    return out


def _shown(value: Any) -> dict[str, Any]:
    """A value in the forms that a notebook can show."""
    if hasattr(value, "savefig"):
        image = io.BytesIO()
        value.savefig(image, dpi=80, bbox_inches="tight")
        return {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": ["a figure"]}
    data: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def differences(notebook: dict[str, Any], outputs: list[list[dict[str, Any]]]) -> list[str]:
    """The cells of which something else is stored than they give, with both."""
    out = []
    for k, (cell, now) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
        if not measured(cell) and cell["outputs"] != now:
            out.append(f"cell {k} stores {_text(cell['outputs'])!r} and gives {_text(now)!r}")
    return out


def _text(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(o.get("text") or o["data"]["text/plain"]) for o in outputs)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    for name in (a for a in arguments if a != "--check"):
        path = Path(name)
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs = run(notebook)
        if check:
            found = differences(notebook, outputs)
            sys.stderr.write("".join(f"{name}: {text}\n" for text in found))
            if found:
                return 1
            continue
        for k, (cell, now) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
            cell["execution_count"], cell["outputs"] = k, now
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
