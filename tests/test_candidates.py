"""Candidate schedules: all of them compute the same values, none is there twice, and the usual one is the first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fixed import MACHINE

from uopc import Tensor
from uopc.cost import Candidate
from uopc.ops import Ops
from uopc.options import Options
from uopc.pipeline import Kernel, Settings, compile_kernel, kernel_candidates, make_plan
from uopc.runtime import NativePlan
from uopc.runtime.compiler import Kernels
from uopc.runtime.device import host
from uopc.runtime.schedules import describe
from uopc.runtime.units import Source
from uopc.uop import toposort

# Caches so small that small arrays are blocked, packed and swept.
SMALL = replace(MACHINE.with_caches(4 << 10, 16 << 10), cores=2)


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v):
    scores = q @ k.T
    return (softmax(scores) if isinstance(scores, np.ndarray) else scores.softmax(-1)) @ v


def product(a, b):
    return a @ b


def windows(x, w):
    if isinstance(x, Tensor):
        return x.conv2d(w, padding=1)
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", seen, w)


ROWS, DOUBLES = numbers(40, 300), numbers(40, 33, dtype="float64")
KEYS, VALUES = numbers(90, 16, seed=1), numbers(90, 24, seed=2)
# Arrays, what is built of them as Tensors, and the same with NumPy.
CASES: dict[str, tuple[list[np.ndarray], Callable, Callable]] = {
    "product": ([numbers(70, 50), numbers(50, 90)], product, product),
    "long product": ([numbers(100, 600), numbers(600, 70)], lambda a, b: (a @ b).abs(), lambda a, b: np.abs(a @ b)),
    "product of doubles": ([DOUBLES, DOUBLES.T.copy()], product, product),
    "batches": ([numbers(3, 20, 16), numbers(3, 16, 40)], product, product),
    "matrix times vector": ([ROWS, numbers(300)], product, product),
    "rows of a softmax": ([ROWS], lambda a: a.softmax(-1), softmax),
    "sum of rows": ([numbers(9, 700)], lambda a: a.sum(1), lambda a: a.sum(1)),
    "sum of columns": ([numbers(300, 530)], lambda a: a.sum(0), lambda a: a.sum(0)),
    "maximum": ([ROWS], lambda a: a.max(1), lambda a: a.max(1)),
    "elementwise": ([ROWS, numbers(300, seed=1)], lambda a, b: (a + b).exp(), lambda a, b: np.exp(a + b)),
    "halves": ([numbers(333, dtype="float16")], lambda a: a * 3 + 1, lambda a: a * 3 + 1),
    "transposed": ([ROWS], lambda a: a.T * 1.5, lambda a: a.T * 1.5),
    "windows": ([numbers(2, 8, 30, 37), numbers(12, 8, 3, 3)], windows, windows),
    "attention": ([numbers(70, 16), KEYS, VALUES], attention, attention),
    "decode": ([numbers(1, 16), KEYS, VALUES], attention, attention),
}


def choices(name: str, machine=SMALL) -> tuple[Kernel, list[Candidate], Settings]:
    """The last kernel of a case, and its candidates."""
    arrays, build, _ = CASES[name]
    kernel = make_plan([build(*map(Tensor, arrays)).uop]).kernels[-1]
    settings = Settings(Options(), machine)
    return kernel, kernel_candidates(kernel.root, settings, 2), settings


@pytest.mark.parametrize("name", CASES)
def test_the_usual_schedule_is_the_first_and_none_is_there_twice(name):
    kernel, found, settings = choices(name)
    usual = compile_kernel(kernel.root, settings)
    first = compile_kernel(kernel.root, settings, found[0].root)
    assert first.source == usual.source
    assert len({c.root for c in found}) == len(found)
    assert len({describe(c.root) for c in found}) == len(found), "each has a description of its own"


@pytest.mark.parametrize("name", CASES)
def test_the_others_come_by_predicted_time(name):
    _, found, settings = choices(name)
    times = [c.seconds(settings.target) for c in found]
    assert all(0 < t < math.inf for t in times)
    assert times[1:] == sorted(times[1:])


@pytest.mark.parametrize("width", [64, 32, 16])
@pytest.mark.parametrize("name", CASES)
def test_accumulators_fit_registers(name, width):
    """A quarter of the registers is for operands."""
    _, found, _ = choices(name, SMALL.narrowed(width))
    room = (32 if width == 64 else 16) * 3 // 4
    for c in found:
        opts = c.root.arg.opts
        if any(u.op is Ops.REDUCE for u in toposort(c.root)) and opts.vector is not None and len(opts.upcast) > 1:
            assert math.prod(n for _, n in opts.upcast) // opts.lanes <= max(room, opts.lanes), describe(c.root)


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_computes_the_same_values(name):
    arrays, build, reference = CASES[name]
    kernel, found, settings = choices(name, SMALL.narrowed(host().vector_bytes))
    kernels = [compile_kernel(kernel.root, settings, c.root) for c in found[:: max(len(found) // 24, 1)]]
    assert len(kernels) > 1
    plan = make_plan([build(*map(Tensor, arrays)).uop])
    expected = reference(*(a.astype(np.float64) for a in arrays))
    sources = [Source(k.name, k.source) for k in kernels]
    assert len(plan.calls) == 1, "what is compared below are kernels of inputs alone"
    numbers_of = [number for number, _ in plan.calls[0].buffers]
    for k, library, source in zip(kernels, Kernels().compile(sources), sources):
        out = np.full(expected.shape, np.nan, arrays[0].dtype)
        buffers = [arrays[n] if n < len(arrays) else out for n in numbers_of]
        NativePlan([(library, source.symbol, range(len(buffers)))], len(buffers)).run(buffers)
        tolerance = {"float16": 3e-3, "float32": 2e-5, "float64": 1e-12}[out.dtype.name]
        np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance, err_msg=describe(k.start))


def test_small_caches_give_blocks_of_several_sizes():
    _, found, _ = choices("long product")
    blocks = {c.root.arg.opts.block for c in found}
    assert () in blocks and len(blocks) > 3, "packed and not packed, with more and fewer rows"
    _, rows, _ = choices("attention")
    assert len({c.root.arg.opts.block for c in rows}) > 2
    steps = {u.arg.block for c in rows for u in toposort(c.root) if u.op is Ops.CASCADE}
    assert len(steps) > 2
