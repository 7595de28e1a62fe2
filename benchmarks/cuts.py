"""Plans beside all ways to cut them by hand: random expressions, each with ``.contiguous()`` at any of its values.

    python benchmarks/cuts.py [--count N] [--seed S] [--measure] [--places P] [--worst W] [--large]

An expression is a few steps: products, norms, activations, paddings, concatenations, shifts and reductions of matrices,
the later ones of what the earlier ones gave.  Wherever a product, a norm or a reduction ends, it may be cut; the plan
that uopc chooses for the expression without a cut is compared with those of all other ways.  By predicted times, and
with ``--measure`` by those of the fastest of many calls, taken in turns.  Prints how many plans are within 1.15 of the
best way, and the worst.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from uopc import Tensor
from uopc.inspect.explain import buffers_of, graph_of
from uopc.options import Options
from uopc.outline import outline
from uopc.pipeline import TENSOR_STAGES, Settings, plan_for, run_stages
from uopc.price import kernel_price
from uopc.runtime.device import host
from uopc.runtime.plan import compile_plan
from uopc.uop import UOp

SIZES = (48, 64, 96, 128, 200, 256, 384, 512, 768, 1000)
MOST_WORK = 6e8  # multiplications of an expression, so that a way takes milliseconds
NEAR = 1.15
SECONDS = 0.15  # for each way of an expression
LEAST_ROUNDS, HOPELESS = 5, 4.0

Cut = Callable[[Tensor], Tensor]


@dataclass
class Expression:
    """Steps that were drawn once, so that it can be built with other cuts: ``build(mask)`` cuts at the places whose bit
    is set."""

    seed: int
    large: bool
    text: list[str] = field(default_factory=list)
    places: int = 0

    def build(self, mask: int) -> Tensor:
        """The expression, cut at these places."""
        self.rng, self.text, self.places, self.mask, self.work = random.Random(self.seed), [], 0, mask, 0.0
        x = self.array(self.size(), self.size())
        for _ in range(self.rng.randint(2, 4)):
            x = self.step(x)
        last = self.rng.choice([self.same, self.reduced, self.reduced, self.moved])
        return last(x)

    def cut(self, x: Tensor) -> Tensor:
        """A place."""
        here = self.mask >> self.places & 1
        self.places += 1
        return x.contiguous() if here else x

    def size(self) -> int:
        return self.rng.choice(SIZES[4:] if self.large else SIZES)

    def array(self, *shape: int) -> Tensor:
        return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))

    def step(self, x: Tensor) -> Tensor:
        steps = [self.product, self.product, self.gate, self.two, self.norm, self.moved, self.activation, self.factor]
        return self.rng.choice(steps)(x)

    # -- steps

    def same(self, x: Tensor) -> Tensor:
        return x

    def times(self, x: Tensor, columns: int) -> Tensor:
        """A product with a new matrix, as rows or columns of it; the matrix itself where it would be too much work."""
        rows, inner = x.shape
        while rows * inner * columns + self.work > MOST_WORK and columns > SIZES[0]:
            columns //= 2
        self.work += rows * inner * columns
        turned = self.rng.random() < 0.3
        w = self.array(columns, inner).T if turned else self.array(inner, columns)
        self.text.append(f"@{'T' if turned else ''}{inner}x{columns}")
        return self.cut(x @ w * inner**-0.5)

    def product(self, x: Tensor) -> Tensor:
        return self.times(x, self.size())

    def gate(self, x: Tensor) -> Tensor:
        columns = self.size()
        a = self.times(x, columns)
        b = self.times(x, columns)
        self.text.append("gate")
        return a.silu()[:, : min(a.shape[1], b.shape[1])] * b[:, : min(a.shape[1], b.shape[1])]

    def two(self, x: Tensor) -> Tensor:
        columns = self.size()
        a = self.times(x, columns)
        b = self.times(self.array(x.shape[0], self.size()), a.shape[1])
        self.text.append("+")
        return a[:, : min(a.shape[1], b.shape[1])] + b[:, : min(a.shape[1], b.shape[1])]

    def norm(self, x: Tensor) -> Tensor:
        kind = self.rng.choice(["softmax", "layer", "rms", "logsoftmax"])
        self.text.append(kind)
        if kind == "rms":
            return self.cut(x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt())
        if kind == "layer":
            return self.cut(x.layer_norm(x.shape[-1]))
        return self.cut(x.softmax(-1) if kind == "softmax" else x.log_softmax(-1))

    def factor(self, x: Tensor) -> Tensor:
        other = self.array(x.shape[0], self.size())
        self.text.append(f"*rows{other.shape[1]}")
        return x * self.cut(((other * other).mean(-1, keepdim=True) + 1e-5).rsqrt())

    def activation(self, x: Tensor) -> Tensor:
        kind = self.rng.choice(["relu", "gelu", "tanh", "exp"])
        self.text.append(kind)
        return getattr(x, kind)()

    def moved(self, x: Tensor) -> Tensor:
        kind = self.rng.choice(["pad", "flip", "shift", "cat", "transpose", "roll"])
        self.text.append(kind)
        if kind == "pad":
            return self.cut(x.pad(((1, 1), (0, 2))))
        if kind == "flip":
            return x.flip(self.rng.randint(0, 1))
        if kind == "shift":
            return x[1:]
        if kind == "cat":
            return self.cut(Tensor.cat(x, self.array(x.shape[0], self.size()), axis=1))
        return x.T if kind == "transpose" else Tensor.cat(x[3:], x[:3], axis=0)

    def reduced(self, x: Tensor) -> Tensor:
        kind = self.rng.choice(["sum", "max", "logsumexp", "mean"])
        axis = self.rng.choice([0, 1, 1, None])
        self.text.append(f"{kind}({axis})")
        if kind == "logsumexp" and axis is None:
            return x.exp().sum()
        return getattr(x, kind)(axis)


@dataclass
class Way:
    """A way to cut: which places, its graph, and seconds."""

    mask: int
    graph: UOp
    storages: list[object]
    predicted: float
    measured: float = math.inf


def ways(expression: Expression, most: int) -> list[Way]:
    """All ways that give other kernels, the uncut one first."""
    settings = Settings(Options(), host())
    expression.build(0)
    places = expression.places
    masks = range(1 << places) if places <= most else (0, (1 << places) - 1, *(1 << k for k in range(places)))
    found: dict[tuple[object, ...], Way] = {}
    for mask in masks:
        graph, storages = graph_of(expression.build(mask), (), {})
        calls = outline(run_stages(TENSOR_STAGES, graph, settings)).calls
        way = Way(mask, graph, storages, sum(kernel_price(root, settings.target) for root, _ in calls))
        found.setdefault(tuple(calls), way)
    return list(found.values())


def measure(some: list[Way]) -> None:
    """Their fastest runs, in turns."""
    runs = []
    for way in some:
        plan = plan_for(way.graph, Options())
        made, buffers = compile_plan(plan), buffers_of(plan, [way.storages[k] for k in plan.input_numbers])
        runs.append(lambda made=made, buffers=buffers: sum(made.native.run_timed(buffers)))
        runs[-1]()
    start = time.perf_counter()
    for turn in itertools.count():
        if turn >= LEAST_ROUNDS and time.perf_counter() - start > SECONDS * len(runs):
            return
        least = min(way.measured for way in some)
        for way, run in zip(some, runs):
            if turn < LEAST_ROUNDS or way.measured < HOPELESS * least:
                way.measured = min(way.measured, run())


def ratio(some: list[Way], time_of: Callable[[Way], float]) -> float:
    """The first way's time over that of the best."""
    return time_of(some[0]) / min(map(time_of, some))


def shown(name: str, found: list[tuple[float, str, list[Way]]], time_of: Callable[[Way], float], worst: int) -> None:
    near = sum(r <= NEAR for r, _, _ in found)
    print(
        f"{name}: {near} of {len(found)} plans ({near / len(found):.1%}) within {NEAR} of the best way to cut by hand"
    )
    for r, text, some in sorted(found, key=lambda x: -x[0])[:worst]:
        best = min(some, key=time_of)
        print(
            f"  {r:6.2f}  {time_of(some[0]) * 1e3:8.3f} ms, cut {time_of(best) * 1e3:8.3f} ms at {best.mask:b}: {text}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--places", type=int, default=5, help="up to so many, every way to cut is looked at")
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--large", action="store_true", help="no axis below 200")
    args = parser.parse_args()
    predicted, measured = [], []
    for seed in range(args.seed, args.seed + args.count):
        expression = Expression(seed, args.large)
        some = ways(expression, args.places)
        text = f"{seed}: {' '.join(expression.text)}"
        predicted.append((ratio(some, lambda w: w.predicted), text, some))
        if args.measure:
            measure(some)
            measured.append((ratio(some, lambda w: w.measured), text, some))
    shown("predicted", predicted, lambda w: w.predicted, args.worst)
    if measured:
        shown("measured", measured, lambda w: w.measured, args.worst)


if __name__ == "__main__":
    main()
