"""forms: the problems as uopc computes them: one expression under several options, and one loop program by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from uopc.inspect.explain import explain
from uopc.inspect.sweep.online import LANES, online
from uopc.inspect.sweep.problems import EPS, Array, Problem
from uopc.jit import jit
from uopc.options import options
from uopc.pipeline import to_linear
from uopc.rangeify import Ctx, Opts, lower
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.tensor import Tensor
from uopc.uop import UOp

NAMES = ("unfused", "recompute", "online", "derived")
UPCAST = 16  # columns of the result that ``recompute`` computes at a time


class Skip(Exception):
    """The implementation does not do this problem; the text says why."""


@dataclass(frozen=True)
class Prepared:
    """run: does the work once.  read: from what ``run`` returns to an array.  facts: of the plan, if there is one."""

    run: Callable[[], Any]
    read: Callable[[Any], Array]
    facts: dict[str, Any]


class Recompute:
    """Loop sizes of fused attention with recompute: threads take rows, ``UPCAST`` columns of the result at a time."""

    def layout(self, roots: list[UOp]) -> list[UOp]:
        """Nothing is copied."""
        return roots

    def lower(self, body: UOp, out: UOp) -> UOp:
        """The loops of a kernel that writes ``body`` to ``out``."""
        last = len(body.shape) - 1
        threads = tuple(range(last)) or None
        sizes = Opts({last: UPCAST}, vector=last, lanes=LANES, reduce_lanes=LANES, thread=threads)
        return lower(body, out, Ctx(opts=sizes))


_RECOMPUTE = Recompute()
OPTIONS: dict[str, dict[str, Any]] = {
    "unfused": {"fuse_reduce": False},
    "recompute": {"fuse_reduce": True, "opt": _RECOMPUTE},
    "derived": {},
}


def expression(problem: Problem) -> Callable[..., Tensor]:
    """The problem as a function of Tensors."""
    user = problem.user()
    if user is not None:
        return user.function
    if problem.name == "attention":
        n, scale, causal = problem.n, problem.d**-0.5, problem.causal

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = q @ k.transpose(-1, -2) * scale
            if causal:
                scores = (Tensor.arange(n).reshape(n, 1) >= Tensor.arange(n)).where(scores, float("-inf"))
            return scores.softmax(-1) @ v

        return attention
    if problem.name == "matmul":
        return lambda a, b: a @ b
    if problem.name == "softmax":
        return lambda x: x.softmax(-1)
    return lambda x, weight, bias: x.layer_norm(x.shape[-1], weight, bias, EPS)


def build(impl: str, problem: Problem, inputs: list[Array]) -> Prepared:
    """Prepare one form; Skip where there is none of this name."""
    if impl == "online":
        return _online(problem, inputs)
    fields = OPTIONS[impl]
    fn = jit(expression(problem))

    def run() -> Any:
        with options(**fields):
            return fn(*inputs)

    with options(**fields):
        facts = explain(fn, *inputs).facts()
        fn.precompile(*inputs)
    return Prepared(run, np.asarray, facts)


def _online(problem: Problem, inputs: list[Array]) -> Prepared:
    if problem.name != "attention":
        raise Skip("written by hand for attention alone")
    linear = to_linear(online(problem.n, problem.d, problem.heads, problem.causal))
    program = Program(render_c(linear, "online"), "online")

    def run() -> Array:
        out = np.empty(problem.shape, np.float32)
        program(out, *inputs)
        return out

    return Prepared(run, np.asarray, {})
