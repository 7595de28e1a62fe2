"""The HTML report: one file, nothing from a network, and no error in a browser whatever is clicked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from uopc import Tensor, options
from uopc.inspect.page import page

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)

# Counts errors from the first script on; then opens every tab, box, stage and kernel.
WATCH = """<script>
window.errors = [];
window.addEventListener("error", e => window.errors.push(e.message));
console.error = (...x) => window.errors.push(x.join(" "));
</script>"""
CLICK = """<script>
let clicks = 0;
for (const tab of document.querySelectorAll("nav button")) {
  tab.click(); clicks++;
  const section = document.querySelector(`section[data-tab="${tab.textContent}"]`);
  for (const select of section.querySelectorAll("select"))
    for (const option of select.options) { select.value = option.value; select.onchange(); clicks++; }
  for (const button of section.querySelectorAll(".pick button")) { button.click(); clicks++; }
  for (const box of section.querySelectorAll("details")) { box.open = true; clicks++; }
}
setTimeout(() => {
  document.body.setAttribute("data-clicks", clicks);
  document.body.setAttribute("data-drawn", document.querySelectorAll("svg").length);
  document.body.setAttribute("data-errors", JSON.stringify(window.errors));
}, 300);
</script>"""


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T).softmax(-1) @ v


@pytest.fixture(scope="module")
def text() -> str:
    arrays = np.random.default_rng(0).standard_normal((3, 48, 16), np.float32)
    with options(fuse_reduce=False):
        return page(attention, *arrays, title="a <b> & </script>")


def test_it_stands_alone(text: str) -> None:
    without_names = text.replace("http://www.w3.org/2000/svg", "")  # a namespace, which nobody fetches
    assert not re.search(r"https?://|<link|src=\"|@import|url\(", without_names.split('id="data"')[0])
    assert not re.search(r"https?://|fetch\(|import\(", without_names.split("</script>")[-2])
    assert "a &lt;b&gt; &amp; &lt;/script&gt;" in text


def test_it_holds_every_stage_and_kernel(text: str) -> None:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert len(data["calls"]) == len(data["report"]["kernels"]) == len(data["timeline"]) > 3
    assert [s["name"] for s in data["tensor_stages"]] == ["before", "cascade", "kernelize", "layout"]
    for kernel in data["kernels"]:
        names = [s["name"] for s in kernel["stages"]]
        assert names[0] == "before" and names[-1] == "linearize" and "rangeify" in names
        assert f"void {kernel['name']}(" in kernel["source"] and kernel["graph"]
    assert any(spans for spans in data["timeline"])


@pytest.mark.skipif(BROWSER is None, reason="no chromium")
def test_a_browser_has_no_complaint(text: str, tmp_path: Path) -> None:
    watched = text.replace("<head>", "<head>" + WATCH).replace("</body>", CLICK + "</body>")
    path = tmp_path / "page.html"
    path.write_text(watched, encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    errors = re.search(r'data-errors="(.*?)"', done.stdout)
    assert errors is not None, done.stderr[-2000:]
    assert errors[1] == "[]"
    clicks, drawn = (int(re.search(rf'data-{what}="(\d+)"', done.stdout)[1]) for what in ("clicks", "drawn"))  # type: ignore[index]
    assert clicks > 25 and drawn >= 7
