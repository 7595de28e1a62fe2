"""What kernels depend on, fixed: machines and rates, whatever machine runs the tests; sizes that recompute.

A test of structure says of which machine it holds: by ``targets`` (in conftest, the fixture ``target`` takes them one
after the other), or by the fixture ``compile_for``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from uopc.inspect.roofline import Rates, Roofline
from uopc.rangeify import Ctx, Opts, lower
from uopc.target import Feature, Target, named
from uopc.uop import UOp


def two_cores(name: str) -> Target:
    """A row's machine with two cores."""
    return replace(named(name), cores=2)


# 64-byte vectors: one FMA a cycle, 32 KB of L1 and 1 MB of L2; and two FMAs, 48 KB and 2 MB.
ZEN4, SAPPHIRE_RAPIDS = two_cores("znver4"), two_cores("sapphirerapids")
# 32-byte and 16-byte ones.
ZEN3, OLD = two_cores("znver3"), two_cores("x86-64")
# The first without an instruction for dot products, for which plans are shown and most structure is asserted.
MACHINE = replace(ZEN4, features=ZEN4.features - {Feature.BF16_DOT})

# The fixture ``compile_for``: from the call on, kernels are made for a Target.
CompileFor = Callable[[Target], None]


def targets(*which: Target) -> pytest.MarkDecorator:
    """Run a test for each of these machines: kernels are made for it, and the fixture ``target`` is it."""
    return pytest.mark.parametrize("target", which, ids=[t.name for t in which], indirect=True)


_BYTES = {"L1": 4e11, "L2": 1e11, "L3": 5e10, "memory": 2e10}
_LINES = {"L2": 1e9, "L3": 5e8, "memory": 1e8}


def _rates(threads: int) -> Rates:
    """Of so many threads: twice the work in the time, and no more bytes."""
    return Rates(
        threads=threads,
        flops=threads * 1e11,
        mixed=threads * 6e9,
        latency=1e-9,
        read=_BYTES,
        copy=_BYTES,
        lines=_LINES,
        launch=1e-7,
    )


# What that machine can do, which nobody measured.
ROOF = Roofline(_rates(1), _rates(2), MACHINE.vector_bytes, MACHINE.l2.size, MACHINE.l3.size)


class Recompute:
    """Loop sizes for a kernel that writes down nothing: threads take rows, ``upcast`` columns are computed at a
    time."""

    def __init__(self, upcast: int) -> None:
        self.upcast = upcast

    def layout(self, roots: list[UOp]) -> list[UOp]:
        return roots

    def lower(self, body: UOp, out: UOp) -> UOp:
        return lower(body, out, Ctx(opts=Opts(upcast={1: self.upcast}, thread=0)))
