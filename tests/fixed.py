"""What kernels depend on, fixed: a machine, whatever machine runs the tests, and loop sizes that recompute."""

from __future__ import annotations

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


class Recompute:
    """Loop sizes for a kernel that writes down nothing: threads take rows, ``upcast`` columns are computed at a
    time."""

    def __init__(self, upcast: int) -> None:
        self.upcast = upcast

    def layout(self, roots: list[UOp]) -> list[UOp]:
        return roots

    def lower(self, body: UOp, out: UOp) -> UOp:
        return lower(body, out, Ctx(opts=Opts(upcast={1: self.upcast}, thread=0)))
