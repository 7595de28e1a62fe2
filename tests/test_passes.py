"""Each pass of the pipeline on graphs that are texts: what goes in, what comes out.

    pytest tests/test_passes.py --update-golden      writes tests/golden/passes; what changed is in the diff

A file has the graph before and the graph after.  The test reads the first, runs the pass for one machine, whatever
machine runs the test, and compares.  When files are written, the passes up to layout begin with an expression, schedule
and blockize with its last kernel, and those from rangeify on with what stands in rangeify's file, if there is one: its
registers hold one vector, so that texts are short, and stays as it is, whatever sizes are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from fixed import MACHINE

from uopc import Tensor, pipeline
from uopc.ops import Component, Opts, Stage, Tile
from uopc.options import Options
from uopc.pipeline import STAGES, Settings
from uopc.runtime.plan import normal
from uopc.spec import verify
from uopc.target import Feature
from uopc.uop import Ops, UOp, format_graph, parse_graph, toposort

# Four lanes: a square to be transposed is four by four.
NARROW = MACHINE.narrowed(16)
STEPS = {step.name: step for step in STAGES}


def array(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(np.zeros(shape, np.float32)).cast(dtype).realize()


def attention(masked: bool) -> Tensor:
    q, k, v = array(8, 4), array(16, 4), array(16, 4)
    scores = q @ k.T * 0.5
    if masked:
        rows, keys = Tensor.arange(8).reshape(8, 1), Tensor.arange(16).reshape(1, 16)
        scores = (keys <= rows).where(scores, -math.inf)
    return scores.softmax(-1) @ v


def swiglu() -> Tensor:
    x, gate, up = array(16, 12), array(12, 8), array(12, 8)
    return (x @ gate).silu() * (x @ up)


def own_maximum() -> Tensor:
    sums = array(4096, 4).sum(-1)
    return sums - sums.max()


@dataclass(frozen=True)
class Case:
    """An expression, and the passes that do something to it."""

    expression: Callable[[], Tensor]
    passes: str
    dots: bool = False  # whether the machine has dot products of bfloat16
    small: bool = True  # whether registers hold one vector
    fuse_reduce: bool | None = None
    batch_invariant: bool = False

    @property
    def settings(self) -> Settings:
        options = Options(fuse_reduce=self.fuse_reduce, batch_invariant=self.batch_invariant)
        return Settings(
            options, replace(NARROW, features=NARROW.features | ({Feature.BF16_DOT} if self.dots else set()))
        )


LOOPS = "rangeify expand accumulate linearize"
CASES = {
    "attention": Case(partial(attention, False), f"cascade blockize {LOOPS} decompose"),
    "masked": Case(partial(attention, True), "cascade blockize rangeify accumulate"),
    "product": Case(lambda: array(256, 1024) @ array(1024, 512), f"schedule blockize {LOOPS}"),
    "convolution": Case(
        lambda: array(2, 32, 40, 48).conv2d(array(32, 32, 3, 3), padding=1), f"schedule blockize {LOOPS} simplify"
    ),
    "swiglu": Case(swiglu, f"schedule {LOOPS} decompose"),
    "halves": Case(lambda: (array(8, 4, dtype="float16") * 2.0).exp().sum(-1), "widen"),
    "invariant": Case(lambda: array(8, 4).sum(-1), "summation", batch_invariant=True),
    "large_sum": Case(lambda: array(1 << 18).sum(), "split"),
    "own_maximum": Case(own_maximum, "agree"),
    "registers": Case(lambda: (array(2, 8) @ array(8, 8)).relu(), "finish", small=False),
    "norm_product": Case(lambda: (array(64, 96) - array(64, 1)).exp() @ array(96, 128), "kernelize"),
    "unfused": Case(lambda: array(64, 32) @ array(192, 32).T, "layout", fuse_reduce=False),
    "transposed": Case(lambda: array(16, 16).T.contiguous(), "transpose", small=False),
    "bfloat16": Case(
        lambda: (array(32, 64, dtype="bfloat16") * array(64, dtype="bfloat16")).sum(-1), "blockize words", dots=True
    ),
    "streamed": Case(lambda: array(1 << 24) * 2.0, "stream"),
    "fetched": Case(lambda: array(4096, 4096).softmax(-1), "prefetch"),
}
PAIRS = [(name, case) for name in STEPS for case, c in CASES.items() if name in c.passes.split()]


def path_of(name: str, case: str) -> Path:
    return GOLDEN / "passes" / name / f"{case}.txt"


def halves(path: Path) -> list[str]:
    """The texts before and after."""
    return path.read_text().removeprefix("before\n").removesuffix("\n").split("\n\nafter\n")


def one_vector(root: UOp) -> UOp:
    """A kernel with the same blocks and tiles, of which registers hold one vector at a time."""

    def smaller(opts: Opts | None) -> Opts | None:
        if opts is None:
            return None
        return replace(opts, upcast={} if opts.vector is None else {opts.vector: opts.lanes}, unroll=1)

    def tile(t: Tile | None) -> Tile | None:
        return t and t._replace(opts=smaller(t.opts))

    def component(c: Component) -> Component:
        return c._replace(tile=tile(c.tile))

    def resized(u: UOp) -> UOp:
        if u.op is Ops.CASCADE:
            return u.replace(arg=u.arg._replace(components=tuple(component(c) for c in u.arg.components)))
        return u.replace(arg=tile(u.arg))

    tiled = [u for u in toposort(root) if u.op is Ops.CASCADE or isinstance(u.arg, Tile)]
    root = UOp.wrap([root], tiled, resized)[0]
    return root.replace(arg=root.arg._replace(opts=smaller(root.arg.opts)))


@cache
def befores(name: str) -> dict[str, UOp]:
    """For each pass the graph that it gets, where files are written."""
    case, out = CASES[name], {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "host", lambda: case.settings.target)
        patch.setattr(pipeline, "_kernels", {})
        graph, _ = normal([case.expression().uop])
        kernel = pipeline.plan_for(graph, case.settings.options).kernels[-1]
    for step in STAGES:
        if step.name == "schedule":
            graph = kernel.root
        if step.name == "rangeify" and case.small:
            known = path_of(step.name, name)
            graph = parse_graph(halves(known)[0]) if known.exists() else one_vector(graph)
        out[step.name] = graph
        graph = step.run(graph, case.settings)
    return out


def run(name: str, case: str, before: UOp) -> UOp:
    """What a pass makes of a legal graph is a legal graph."""
    step = STEPS[name]
    previous = list(STEPS.values())[: list(STEPS).index(name)]
    verify(before, previous[-1].gives if previous else Stage.TENSOR)
    after = step.run(before, CASES[case].settings)
    verify(after, step.gives)
    return after


@pytest.mark.parametrize(("name", "case"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_pass(name: str, case: str, request: pytest.FixtureRequest) -> None:
    path = path_of(name, case)
    if request.config.getoption("--update-golden"):
        before = befores(case)[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"before\n{format_graph(before)}\n\nafter\n{format_graph(run(name, case, before))}\n")
    assert path.exists(), f"{path} is missing; pytest --update-golden writes it, and a reviewer reads it"
    before, after = halves(path)
    assert before != after, "the case says nothing of the pass"
    assert format_graph(run(name, case, parse_graph(before))) == after, f"{path} has another graph after the pass"


def test_every_pass_has_a_case_and_every_file_is_one() -> None:
    assert {name for name, _ in PAIRS} == set(STEPS)
    assert set((GOLDEN / "passes").rglob("*.txt")) == {path_of(*pair) for pair in PAIRS}
