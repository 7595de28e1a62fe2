"""The HTML report: one file, nothing from a network, and no error in a browser whatever is clicked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import browsers
import numpy as np
import pytest

from uopc import Tensor, options
from uopc.inspect.page import page
from uopc.pipeline import KERNEL_STAGES, LOOP_STAGES, TENSOR_STAGES

# Counts errors from the first script on; then opens every tab, kernel, stage, loop and line of C.
WATCH = """<script>
window.errors = [];
window.addEventListener("error", e => window.errors.push(e.message));
console.error = (...x) => window.errors.push(x.join(" "));
</script>"""
CLICK = """<script>
let clicks = 0;
const click = x => { x.dispatchEvent(new MouseEvent("click", {bubbles: true})); clicks++; };
const began = performance.now();
for (const tab of document.querySelectorAll("nav button")) {
  click(tab);
  const section = document.querySelector(`section[data-tab="${tab.textContent}"]`);
  for (const select of section.querySelectorAll("select"))
    for (const option of select.options) {
      select.value = option.value;
      select.onchange();
      clicks++;
      for (const line of section.querySelectorAll("[data-loop]")) click(line);
      for (const button of section.querySelectorAll(".pick button")) click(button);
    }
  for (const box of section.querySelectorAll(".box")) click(box);
}
const svgs = [...document.querySelectorAll("svg")];
document.body.setAttribute("data-found", JSON.stringify({
  errors: window.errors, clicks, seconds: (performance.now() - began) / 1000,
  tabs: [...document.querySelectorAll("nav button")].map(b => b.textContent),
  drawn: svgs.map(s => s.getAttribute("aria-label")), boxes: document.querySelectorAll(".box").length,
  dots: document.querySelectorAll("circle.dot").length,
  bars: document.querySelectorAll("svg[aria-label=timeline] rect").length,
  lit: document.querySelectorAll(".lit").length,
  odd: svgs.flatMap(s => [...s.querySelectorAll("*")]).filter(e => [...e.attributes].some(a => /NaN|undefined/.test(a.value))).length,
}));
</script>"""  # noqa: E501


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


def data_of(text: str) -> dict[str, Any]:
    """What a page shows."""
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_it_holds_every_stage_and_kernel(text: str) -> None:
    data = data_of(text)
    assert len(data["calls"]) == len(data["report"]["kernels"]) == len(data["timeline"]) > 3
    assert [s["name"] for s in data["tensor_stages"]] == ["before", *(step.name for step in TENSOR_STAGES)]
    for kernel in data["kernels"]:
        names = [s["name"] for s in kernel["stages"]]
        assert names == ["before", *(step.name for step in (*KERNEL_STAGES, *LOOP_STAGES))]
        assert f"void {kernel['name']}(" in kernel["source"] and kernel["graph"]
    assert any(spans for spans in data["timeline"])


def test_loops_lead_to_their_lines_of_c(text: str) -> None:
    """Each loop has the lines from its ``for`` to the brace that closes it, inside those of the loop around it."""
    for kernel in data_of(text)["kernels"]:
        lines = kernel["source"].splitlines()
        around: list[tuple[int, int]] = []
        for depth, _, trips, _, first, last in kernel["loops"]:
            assert lines[first].lstrip().startswith("for (")
            assert lines[last].strip() == "}" or first == last
            del around[depth:]
            assert all(a < first and last < b for a, b in around)
            around.append((first, last))
            assert f"< {trips};" in lines[first] or "hi" in lines[first]
    assert sum(len(k["loops"]) for k in data_of(text)["kernels"]) > 8


def test_values_are_of_the_buffers_of_the_plan(text: str) -> None:
    """A formula names what a kernel reads as the graph does: inputs, and temporaries that kernels before it wrote."""
    data = data_of(text)
    written: set[str] = set()
    for call in data["calls"]:
        named = set(re.findall(r"\b(?:in|temp|out)\d+\b", call["value"]))
        assert named and named <= set(call["reads"])
        assert {b for b in call["reads"] if b.startswith("temp")} <= written
        written.update(call["writes"])
    assert set(data["buffers"]) >= written


BROWSERS = [
    pytest.param(name, marks=pytest.mark.skipif(browsers.installed(name) is None, reason=f"no {name}"))
    for name in ("chromium", "firefox")
]


def opened(browser: str, text: str, folder: Path) -> dict[str, Any]:
    """What a browser found when everything on a page was clicked."""
    path = folder / "page.html"
    path.write_text(text.replace("<head>", "<head>" + WATCH).replace("</body>", CLICK + "</body>"), encoding="utf-8")
    return browsers.found_in(browser, path, folder)


@pytest.mark.parametrize("browser", BROWSERS)
def test_a_browser_has_no_complaint(browser: str, text: str, tmp_path: Path) -> None:
    found, data = opened(browser, text, tmp_path), data_of(text)
    assert found["errors"] == [] and found["odd"] == 0
    assert found["tabs"] == ["Plan", "Graph", "Stages", "Loops and C", "Roofline", "Threads"]
    assert {"kernels", "roofline", "timeline"} <= set(found["drawn"])
    assert found["boxes"] == len(data["calls"]) and found["bars"] >= len(data["calls"])
    assert found["dots"] == sum(k["work"]["flops"] > 0 for k in data["report"]["kernels"])
    assert found["clicks"] > 100 and found["lit"] > 1


class Gpt:
    """Twelve layers, as GPT-2 has them, of few numbers."""

    def __init__(self, width: int = 32, heads: int = 2, layers: int = 12) -> None:
        self.heads, self.random = heads, np.random.default_rng(0)
        shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        self.layers = [[self.weight(*shape) for shape in shapes] for _ in range(layers)]

    def weight(self, *shape: int) -> Tensor:
        return Tensor(self.random.standard_normal(shape, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        n, width = x.shape
        for qkv, project, up, down in self.layers:
            parts = (x.layer_norm(width) @ qkv).reshape(n, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
            mixed = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=True)
            x = x + mixed.permute(1, 0, 2).reshape(n, width) @ project
            x = x + (x.layer_norm(width) @ up).gelu() @ down
        return x


@pytest.mark.slow
@pytest.mark.parametrize("browser", BROWSERS)
def test_a_network_of_twelve_layers_stays_usable(browser: str, tmp_path: Path) -> None:
    """All of it can be clicked through in seconds, and the file can be sent to someone."""
    gpt = Gpt()
    text = page(gpt(gpt.weight(24, 32)), title="gpt")
    data = data_of(text)
    assert len(data["calls"]) > 80 and len(text) < 20e6
    found = opened(browser, text, tmp_path)
    assert found["errors"] == [] and found["odd"] == 0 and found["boxes"] == len(data["calls"])
    assert found["seconds"] < 30  # of thousands of clicks, on a busy machine
