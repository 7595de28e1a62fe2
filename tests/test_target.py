"""uopc.target: which row is whose, and that every pass runs for every row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fixed import MACHINE, OLD, SAPPHIRE_RAPIDS, ZEN3, ZEN4, targets

from uopc import Tensor
from uopc.ops import Issue
from uopc.opt.schedule import schedule
from uopc.options import Options
from uopc.pipeline import kernel_candidates, make_plan, settings_for
from uopc.target import ROWS, Feature, Target, named, target_of
from uopc.uop import toposort

V3 = {"sse2", "avx2", "fma", "f16c"}
V4 = V3 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
ICE = V4 | {"avx512_vbmi2"}
SAPPHIRE = ICE | {"avx512_bf16", "avx512_fp16", "amx_tile", "avx_vnni"}
INTEL, AMD = "GenuineIntel", "AuthenticAMD"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "features", "name"),
    [
        (AMD, 26, 0x44, ICE | {"avx512_bf16"}, "znver5"),
        (AMD, 25, 0x61, ICE | {"avx512_bf16"}, "znver4"),
        (AMD, 25, 0x61, V3, "znver3"),  # a hypervisor hides what is 512 bits wide
        (AMD, 25, 0x21, V3, "znver3"),
        (AMD, 23, 0x71, V3, "znver2"),
        (INTEL, 6, 143, SAPPHIRE, "sapphirerapids"),
        (INTEL, 6, 207, SAPPHIRE, "sapphirerapids"),
        (INTEL, 6, 167, SAPPHIRE, "sapphirerapids"),  # a hypervisor says Rocket Lake, which has no such features
        (INTEL, 6, 167, ICE, "icelake-client"),
        (INTEL, 6, 106, ICE, "icelake-server"),
        (INTEL, 6, 85, V4, "skylake-avx512"),
        (INTEL, 6, 151, V3 | {"avx_vnni"}, "alderlake"),
        (INTEL, 6, 158, V3, "skylake"),
        (INTEL, 6, 60, V3, "x86-64-v3"),
        ("another", 1, 1, V4, "x86-64-v4"),
        ("another", 1, 1, V3, "x86-64-v3"),
        (INTEL, 6, 23, {"sse2"}, "x86-64"),
        ("0x41", 8, 0xD40, {"asimd", "bf16"}, "neoverse-v1"),
        ("0x41", 8, 0xD08, {"asimd"}, "armv8-a"),
        ("", 0, 0, set(), "x86-64"),
    ],
)
def test_the_row_of_a_machine(vendor, family, model, features, name):
    found = target_of(vendor, family, model, features, 3, {1: 1 << 15, 2: 1 << 20})
    row = named(name)
    assert (found.name, found.cores, found.l1.size, found.l2.size) == (name, 3, 1 << 15, 1 << 20)
    assert found.l3 == row.l3 and found.l1.ways == row.l1.ways, "what the machine does not say is the row's"
    assert found.has(Feature.BF16_DOT) == ("avx512_bf16" in features)


def test_a_name_that_is_no_row_is_refused():
    with pytest.raises(LookupError, match=r"'znver9'; accepted are .*znver4"):
        named("znver9")


def test_rows_are_values_that_agree_with_themselves():
    everything = [row.target for row in ROWS]
    assert len({t.name for t in everything}) == len(everything) == len(set(everything))
    for t in everything:
        assert t.vector_registers == (32 if t.vector_bytes == 64 or t.name in ("neoverse-v1", "armv8-a") else 16)
        assert t.l1.size < t.l2.size < t.l3.size and t.l1.bandwidth > t.l2.bandwidth > t.l3.bandwidth
        assert t.memory <= t.memory_shared < t.l3.bandwidth * t.clock * 2
        assert all(cache.size % cache.ways == 0 for cache in t.caches[:2])
        assert t.fma > 0 and t.load > 0 and t.store > 0 and t.shuffle > 0 and t.division > 1
        assert t.load * t.vector_bytes >= t.l1.bandwidth > t.vector_bytes * t.load / 4
        assert t.name in named(t.name).name and str(t.vector_bytes * 8) in t.describe()


def test_a_division_takes_what_the_unit_does():
    """In slots of the ports that do FMAs, of which a machine with two of them misses twice as many."""
    division, scalar = Issue(divisions=1), Issue(scalar=1)
    assert ZEN4.slots(division) == ZEN4.division and SAPPHIRE_RAPIDS.slots(division) == 2 * SAPPHIRE_RAPIDS.division
    assert ZEN4.slots(scalar, 8) == ZEN4.slots(scalar, 4) / 2, "half as many lanes"


@pytest.mark.parametrize("width", [16, 32, 64])
def test_narrower_vectors_have_their_registers(width):
    narrow = SAPPHIRE_RAPIDS.narrowed(width)
    assert (narrow.vector_bytes, narrow.vector_registers) == (width, 32 if width == 64 else 16)
    assert narrow.has(Feature.BF16_DOT) == (width == 64) and narrow.has(Feature.FMA)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.target.name)
def test_every_pass_runs_for_every_row(row, compile_for):
    """Whatever machine this is: vectors that it has not are computed in pieces by the C compiler."""
    compile_for(row.target)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((65, 70)).astype(np.float32), rng.standard_normal((70, 33)).astype(np.float32)
    value = (Tensor(x) @ Tensor(w) / 8).softmax(-1) @ Tensor(w.T.copy())
    scores = x.astype(np.float64) @ w / 8
    e = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(value.numpy(), e / e.sum(-1, keepdims=True) @ w.T, rtol=2e-5, atol=2e-5)
    kernel = make_plan([(Tensor(x) @ Tensor(w)).uop]).kernels[0]
    lanes = max(u.dtype.itemsize for u in kernel.linear.src if u.dtype.count > 1)
    assert lanes == row.target.vector_bytes
    assert kernel_candidates(kernel.root, settings_for(Options()), 2)


@targets(ZEN4, SAPPHIRE_RAPIDS, ZEN3, OLD)
def test_accumulators_hide_latency_and_fit_registers(target: Target):
    x, w = (Tensor(np.zeros((256, 256), np.float32)) for _ in range(2))
    (kernel,) = make_plan([(x @ w).uop]).kernels
    opts = schedule(kernel.root, target).arg.opts
    sums = math.prod(n for _, n in opts.upcast) // opts.lanes
    assert target.fma * target.fma_latency <= sums <= target.accumulators


def test_kernels_for_two_machines_are_two(compile_for):
    """The Target is part of a kernel's key."""
    x, w = (Tensor(np.zeros((512, 768), np.float32)) for _ in range(2))
    graph = (x @ w.T).softmax(-1) @ w
    found = []
    for machine in (MACHINE, OLD):
        compile_for(machine)
        found.append(make_plan([graph.uop]).kernels)
    assert {u.dtype.itemsize for k in found[1] for u in toposort(k.linear)} & {64} == set()
    assert [k.source for k in found[0]] != [k.source for k in found[1]]
