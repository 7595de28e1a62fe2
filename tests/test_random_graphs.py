"""Random expression graphs through the whole compiler agree with NumPy in float64, within bounds that are derived
from each graph (``bounds.py``).

Every day a few hundred; in CI 2,000, a third of them on machines so small that every pass that splits, blocks or
packs has its turn; ``fuzz_graphs.py`` runs more.
"""

from __future__ import annotations

import math
from unittest import mock

import fuzz_graphs
import numpy as np
import pytest
from bounds import claims, compare
from fuzz_graphs import Tally, answers, check, graph_of, judge, machine, reduced, run
from graphs import build
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from uopc.dtype import dtypes, from_numpy
from uopc.ops import TABLE, Kind, Ops, ReduceArg, Stage
from uopc.options import environment
from uopc.runtime import tune
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp, format_graph

EACH = 50


def memory(values, dtype=np.float32):
    array = np.asarray(values, dtype, order="C")
    return new_buffer(from_numpy(array.dtype), array.shape, array.reshape(-1))


def seeds_agree(first: int, count: int, name: str) -> None:
    with machine(name):
        reports = run(range(first, first + count // 2)) + run(range(first + count // 2, first + count))
    assert not reports, "\n\n".join(reports)


@pytest.mark.parametrize("first", [0, EACH])
def test_graphs_agree(first):
    seeds_agree(first, EACH, "own")


@pytest.mark.parametrize("name", ["small", "narrow"])
def test_graphs_agree_on_other_machines(name):
    seeds_agree(0, EACH // 2, name)


@pytest.mark.parametrize("name", ["own", "small"])
def test_graphs_agree_whatever_schedules_are_taken(name, monkeypatch):
    """As if tuning had found another one the fastest."""
    random, taken = np.random.default_rng(0), []

    def draw(root, candidates, settings, measure):
        trials = tuple(tune.Trial(tune._name(c.root), "", 1.0, 1.0) for c in candidates)
        taken.append(int(random.integers(len(trials))))
        return tune.Tuning(trials, taken[-1], len(trials))

    monkeypatch.setattr(tune, "_measure", draw)
    monkeypatch.setattr(tune, "_known", {})
    monkeypatch.setattr(tune, "disk_cache", lambda: None)
    monkeypatch.setenv("UOPC_TUNE", "1000")
    environment.cache_clear()
    try:
        with machine(name):
            failures = check([r for seed in range(20) for r in graph_of(seed)], threads=())
    finally:
        monkeypatch.undo()
        environment.cache_clear()
    assert not failures, failures
    assert sum(k > 0 for k in taken) > 20


@pytest.mark.slow
@pytest.mark.timeout(900)  # with fuse_reduce=True a graph may be one kernel that gcc works on for a minute
@pytest.mark.parametrize("first", range(2 * EACH, 1300, EACH))
def test_many_graphs_agree(first):
    seeds_agree(first, EACH, "own")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(2000, 2350, EACH))
@pytest.mark.parametrize("name", ["small", "narrow"])
def test_many_graphs_agree_on_other_machines(first, name):
    seeds_agree(first, EACH, name)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data(), st.booleans())
def test_small_graphs_agree(data, special):
    """Hypothesis draws each choice, so that it can shrink what fails."""
    roots = build(lambda n: data.draw(st.integers(0, n - 1)), special, most=4)
    note(format_graph(*roots))
    failures = check(roots, threads=()) if roots else []
    assert not failures, failures[0].text


def test_most_elements_are_claimed():
    """What is not claimed is not tested.  Over many graphs: one large graph can outweigh a batch."""
    tally = Tally()
    for seed in range(300):
        for claim in claims(graph_of(seed)):
            tally.add(claim)
    assert tally.known > 0.8 * tally.elements and tally.exact > 0.2 * tally.elements


# ---- the yardstick itself can fail ----------------------------------------------------------------------------------


def test_a_wrong_element_is_seen():
    graphs = [root for seed in range(40) for root in graph_of(seed) if math.prod(root.shape)]
    seen = 0
    for root, claim in zip(graphs, claims(graphs)):
        kind = np.dtype(np.float32) if root.dtype is dtypes.bfloat16 else root.dtype.numpy
        first = (0,) * claim.v.ndim
        with np.errstate(all="ignore"):
            wrong = claim.v.astype(kind)
        wrong[first] = wrong[first] * kind.type(1.5) + kind.type(1) if root.dtype.is_float else ~wrong[first]
        if claim.e[first] < 0.1 and math.isfinite(wrong[first]):
            assert compare(claim, wrong, root.dtype) is not None
            seen += 1
    assert seen > len(graphs) / 2


def test_bounds_are_tight_enough_to_see_a_dropped_element():
    x = memory(np.random.default_rng(0).standard_normal(1000))
    total = UOp(Ops.REDUCE, (x,), ReduceArg(Ops.ADD, (0,)))
    (claim,) = claims([total])
    (answer,) = answers([total], None)
    assert judge(total, claim, answer) is None
    assert 0 < claim.e < 0.1
    assert judge(total, claim, answer - np.float32(x.realized.array[-1])) is not None


@pytest.mark.parametrize(
    ("values", "make", "expected"),
    [
        ([1.0, 3.0], lambda x: x + 0.5, [0, 0]),  # exact sums of exact numbers
        ([0.1, 3.0], lambda x: (x * x).alu(Ops.CMPLT, 9.0), [0, 0]),  # decided, the second exactly
        ([0.1, 3.3], lambda x: (x * x).alu(Ops.CMPLT, (x * x) + 0.0), [math.inf, math.inf]),  # equal but for rounding
        (
            [2.5, 0.1],
            lambda x: (x * 10.0).alu(Ops.FLOOR).cast(dtypes.int32),
            [0, math.inf],
        ),  # 0.1 * 10 may be either side of 1
        ([-1.0, 0.0], lambda x: x.alu(Ops.LOG), [0, 0]),  # NaN and -inf, for certain
        ([math.inf, -math.inf], lambda x: x - x, [0, 0]),
        ([3e38, 1.0], lambda x: x * 3.0, [math.inf, 0]),  # too large for the type
    ],
)
def test_claims(values, make, expected):
    (claim,) = claims([make(memory(values))])
    assert claim.e.tolist() == expected


def test_failures_are_reduced():
    """A wrong answer is traced to the node that makes it, and what leads there becomes memory."""
    x = memory(np.arange(12.0).reshape(3, 4))
    inner = (x * 3.0).alu(Ops.SQRT)
    root = UOp(Ops.REDUCE, (inner + 1.0,), ReduceArg(Ops.ADD, (1,))) * 2.0
    right = fuzz_graphs.answers

    def broken(roots, fuse_reduce):
        return [
            a + 1 if any(u.op is Ops.REDUCE for u in r.toposort()) else a
            for a, r in zip(right(roots, fuse_reduce), roots)
        ]

    with mock.patch.object(fuzz_graphs, "answers", broken):
        (failure,) = check([root], [None], threads=())
        small = reduced(failure).root
    assert small.op is Ops.REDUCE and small.src[0].op is Ops.BUFFER


def test_builder_makes_every_operation():
    made = {u.op for seed in range(1500) for root in graph_of(seed) for u in root.toposort()}
    wanted = {op for op, row in TABLE.items() if row.stages & Stage.TENSOR and row.kind is not Kind.STRUCTURE}
    by_passes = {Ops.LDEXP, Ops.LOOKUP, Ops.PAIR, Ops.DOT2, Ops.FMA}  # no Tensor makes them
    assert wanted - by_passes <= made, wanted - by_passes - made
