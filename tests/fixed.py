"""What kernels depend on, fixed: a machine and its rates, whatever machine runs the tests; sizes that recompute."""

from __future__ import annotations

from uopc.inspect.roofline import Rates, Roofline
from uopc.rangeify import Ctx, Opts, lower
from uopc.runtime.device import Device
from uopc.uop import UOp

# Vectors of 64 bytes, 32 KB of L1 and 1 MB of L2.
MACHINE = Device(
    cores=2,
    l1d=32 << 10,
    l2=1 << 20,
    l3=32 << 20,
    vector_bytes=64,
    has_bf16_dot=False,
    cpu_model="fixed",
    page_size=4096,
    cpu_features=frozenset(),
)

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
ROOF = Roofline(_rates(1), _rates(2), MACHINE.vector_bytes, MACHINE.l2, MACHINE.l3)


class Recompute:
    """Loop sizes for a kernel that writes down nothing: threads take rows, ``upcast`` columns are computed at a
    time."""

    def __init__(self, upcast: int) -> None:
        self.upcast = upcast

    def layout(self, roots: list[UOp]) -> list[UOp]:
        return roots

    def lower(self, body: UOp, out: UOp) -> UOp:
        return lower(body, out, Ctx(opts=Opts(upcast={1: self.upcast}, thread=0)))
