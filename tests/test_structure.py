"""Facts that no value test can see: how often loops run, and where state lives (DESIGN, section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixed import Recompute
from loop_ir import Ops, UOp

import uopc.rangeify.movement as reshape_rule
from uopc import Tensor, pipeline
from uopc.count import products, times
from uopc.pipeline import Plan, make_plan
from uopc.rangeify import Ctx


def arrays(n: int, d: int) -> list[Tensor]:
    """q, k and v."""
    random = np.random.default_rng(0)
    return [Tensor(random.standard_normal((n, d), dtype=np.float32)) for _ in range(3)]


def attention(n: int, d: int) -> Tensor:
    """softmax(q k^T) v."""
    q, k, v = arrays(n, d)
    return (q @ k.T * d**-0.5).softmax(-1) @ v


def flat_attention(n: int, d: int) -> Tensor:
    """The same with the weights computed in a flat array of N*N elements, square before and after."""
    q, k, v = arrays(n, d)
    scores = q @ k.T * d**-0.5
    largest = scores.max(1, keepdim=True).expand(n, n)
    weights = (scores.reshape(n * n) - largest.reshape(n * n)).exp()
    total = weights.reshape(n, n).sum(1, keepdim=True).expand(n, n)
    return (weights / total.reshape(n * n)).reshape(n, n) @ v


def plan_of(x: Tensor, **options: Any) -> Plan:
    """The plan of one value, from no cache."""
    return make_plan([x.uop], **options)


def loops_around(linear: UOp) -> Iterable[tuple[UOp, list[UOp]]]:
    """Each node with the loops around it, outermost first."""
    loops: list[UOp] = []
    for u in linear.src:
        if u.op is Ops.END:
            loops.pop()
            continue
        yield u, list(loops)
        if u.op is Ops.RANGE:
            loops.append(u)


@pytest.mark.parametrize(("upcast", "passes"), [(8, 10), (16, 6), (32, 4), (64, 3)])
def test_passes_over_the_scores(upcast: int, passes: int) -> None:
    """The maximum and the sum of a row take one pass each, the output one for each group of its columns."""
    n, d = 128, 64
    plan = plan_of(attention(n, d), fuse_reduce=True, opt=Recompute(upcast))
    (kernel,) = plan.kernels
    assert plan.temps == []
    assert products(kernel.linear, {1}) == products(kernel.linear, {2}) == passes * n * n * d


def test_unfused_attention_writes_down_what_it_claims() -> None:
    n, d = 1024, 64
    plan = plan_of(attention(n, d), fuse_reduce=False)
    assert len(plan.kernels) <= 6
    assert [size for _, size in plan.temps].count(n * n) == 2


def test_fused_attention_writes_down_no_square() -> None:
    plan = plan_of(attention(1024, 64), fuse_reduce=True)
    assert len(plan.kernels) <= 2
    assert all(size <= 1024 * 64 for _, size in plan.temps)


def test_reshapes_simplify_their_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """``((i*N + j)//N) % N`` is i.  Where the reshape rule leaves it as it is, it seems to mention j.

    The maximum of a row is then another value at each place of use, and takes a pass more.  Where addresses are not
    simplified either, nothing knows that it is the same for all keys: it is computed for each, and fused attention is
    cubic, with correct output.
    """
    options = {"fuse_reduce": True, "opt": Recompute(8)}

    def passes(n: int) -> float:
        """Over the scores."""
        monkeypatch.setattr(pipeline, "_kernels", {})
        (kernel,) = plan_of(flat_attention(n, 8), **options).kernels
        return products(kernel.linear, {2}) / (n * n * 8)

    assert passes(32) == passes(64) == 3  # maximum, sum, output
    monkeypatch.setattr(reshape_rule, "simplify_index", lambda expr, ctx: expr)
    assert passes(32) == passes(64) == 4
    monkeypatch.setattr(Ctx, "simplify", lambda self, expr: expr)
    later = [replace(s, run=lambda g, _: g) if s.name == "simplify" else s for s in pipeline.LOOP_STAGES]
    monkeypatch.setattr(pipeline, "LOOP_STAGES", tuple(later))
    assert passes(32) > 32
    assert passes(64) > 1.9 * passes(32)


def test_an_accumulator_lives_inside_exactly_the_loops_that_its_result_depends_on() -> None:
    """In the fused kernel: those of the maximum and the sum in the loop over rows, those of scores one further."""
    (kernel,) = plan_of(attention(32, 16), fuse_reduce=True, opt=Recompute(8)).kernels
    depth: dict[int, set[int]] = {}
    for u, loops in loops_around(kernel.linear):
        if u.op is Ops.STORE and u.src[0].src[0].op in (Ops.ALLOC, Ops.AFTER):
            memory = u.src[0].src[0]
            while memory.op is Ops.AFTER:
                memory = memory.src[0]
            if memory.op is Ops.ALLOC:
                depth.setdefault(memory.arg.slot, set()).add(len(loops))
    assert all(max(d) - min(d) == 1 for d in depth.values())  # one loop between initialisation and update
    assert {min(d) for d in depth.values()} == {1, 2, 3}


def test_what_a_thread_computes_is_declared_inside_the_parallel_loop() -> None:
    for options in ({"fuse_reduce": False}, {"fuse_reduce": True, "opt": Recompute(16)}):
        for kernel in plan_of(attention(96, 32), **options).kernels:
            lines = kernel.source.splitlines()
            head = next((k for k, line in enumerate(lines) if "= lo;" in line), None)
            if head is not None:
                before = "\n".join(lines[lines.index(next(x for x in lines if "_range(void" in x)) : head])
                assert " a0" not in before


def test_a_mask_runs_no_loop_of_its_own() -> None:
    n, d = 64, 16
    q, k, v = arrays(n, d)
    allowed = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
    masked = allowed.where(q @ k.T, -math.inf).softmax(-1) @ v
    plan = plan_of(masked, fuse_reduce=False)
    assert len(plan.kernels) <= 6
    assert not any(d.is_bool for d, _ in plan.temps)


def test_unrolled_copies_of_one_reduction_share_its_loop() -> None:
    """24 accumulators of a matrix product are updated in one loop."""
    q, k, _ = arrays(128, 128)
    (kernel,) = plan_of(q @ k).kernels[-1:]
    runs = times(kernel.linear)
    updates = [loops[-1] for u, loops in loops_around(kernel.linear) if u.op is Ops.STORE and loops and u in runs]
    innermost = max(set(updates), key=updates.count)
    assert updates.count(innermost) >= 4
