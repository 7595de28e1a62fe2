"""stream: which stores pass by the caches, and that they write what others write."""

from __future__ import annotations

import numpy as np
import pytest
from fixed import MACHINE
from loop_ir import buffer, range_, run, vector

from uopc.dtype import ALL, dtypes
from uopc.ops import KernelInfo, Ops, ReduceArg
from uopc.opt.stream import stream
from uopc.options import Options
from uopc.pipeline import KERNEL_STAGES, LOOP_STAGES, Settings, run_stages
from uopc.runtime.device import host
from uopc.uop import UOp, sink, toposort

NO_CACHES = {"l2": 1, "l3": 1}


def linear(*stores, machine=MACHINE):
    """Kernels of tensor operations: (target, value)."""
    root = sink(*(UOp(Ops.STORE, pair) for pair in stores)).replace(arg=KernelInfo("kernel"))
    return run_stages(KERNEL_STAGES + LOOP_STAGES, root, Settings(Options(), machine))


def streamed(program) -> list[bool]:
    return [bool(u.arg) for u in program.src if u.op is Ops.STORE and u.src[0].src[0].op is Ops.BUFFER]


@pytest.mark.parametrize("n, streams", [(8 << 20, False), (8 << 20 | 16, True), (1 << 26, True)])
def test_results_larger_than_the_caches_stream(n, streams):
    """Read and written are 8 bytes an element; the last level holds 32 MB."""
    assert set(streamed(linear((buffer(0, n), buffer(1, n) * 2.0)))) == {streams}


def test_small_results_of_large_arrays_do_not_stream():
    x = buffer(1, 8192, 8192)
    assert not any(streamed(linear((buffer(0, 8192), UOp(Ops.REDUCE, (x,), ReduceArg(Ops.ADD, (1,)))))))


def test_memory_that_is_read_too_does_not_stream():
    x = buffer(0, 1 << 24)
    assert not any(streamed(linear((x, x + 1.0))))


@pytest.mark.parametrize("lanes, streams", [(2, False), (4, True), (8, True), (16, False)])
def test_vectors_that_are_half_a_line_or_a_register_stream(lanes, streams):
    """16 lanes of int64 are two registers: as many as a float32 beside them has."""
    n, i = 1 << 24, range_((1 << 24) // lanes, 0)
    read, written = (vector(buffer(slot, n, dtype=dtypes.int64), i * lanes, lanes) for slot in (1, 0))
    (store,) = [u for u in toposort(stream(sink(written.store(read.load()).end(i)), MACHINE)) if u.op is Ops.STORE]
    assert bool(store.arg) == streams


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("offset", [0, 1])
def test_streamed_results_are_those_of_ordinary_stores(dtype, offset):
    """Also where the memory of the result begins between two vectors."""
    n = 1000
    x = (np.arange(n + 1) % 101).astype(dtype.numpy)[offset : offset + n]
    op, ufunc = (Ops.XOR, np.logical_xor) if dtype.is_bool else (Ops.MAX, np.maximum)
    value = buffer(1, n, dtype=dtype).alu(op, UOp.const(dtype.convert(1), dtype))
    program = linear((buffer(0, n, dtype=dtype), value), machine=host().with_caches(**NO_CACHES))
    assert any(streamed(program))
    aligned = np.zeros(n * dtype.itemsize + 128, np.uint8)
    start = -aligned.ctypes.data % 64 + offset * dtype.itemsize
    out = aligned[start : start + n * dtype.itemsize].view(dtype.numpy)
    run(program, out, x)
    np.testing.assert_array_equal(out, ufunc(x, np.ones((), dtype.numpy)))
    assert not aligned[:start].any() and not aligned[start + n * dtype.itemsize :].any()
