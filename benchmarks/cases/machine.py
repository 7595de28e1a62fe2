"""What the machine can do, as cases: the rates that all others are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import Array, Case, Shape, empty

SIZE = 16 << 20  # float32 elements of the bandwidth probes: 64 MB, more than caches hold
TASKS = 64  # parts of the FMA probes, handed out one by one so that a preempted thread does not hold up the other
STEPS = 4096  # iterations in each
ACCUMULATORS = 24  # as many as the best matmul tiles use


@dataclass(frozen=True, kw_only=True)
class Probe(Case):
    """fma: operations from registers.  copy: a plain loop.  stream copy: stores around the caches.  read: a sum."""

    lanes: int = 0  # operations of one instruction for each byte of a vector, for FMA probes

    @property
    def limit(self) -> str:
        return self.name

    @property
    def flops(self) -> int:
        from uopc.runtime.device import host

        return TASKS * STEPS * ACCUMULATORS * host().vector_bytes // 4 * self.lanes

    @property
    def moved(self) -> int:
        return 0 if self.lanes else 4 * SIZE * (1 if self.name == "read" else 2)

    @property
    def out_shape(self) -> Shape:
        return (SIZE,)

    def arrays(self) -> dict[str, Array]:
        names = ("out",) if self.lanes else ("out", "source")
        made = {name: empty((SIZE,)) for name in names}
        for x in made.values():
            x[:] = 0
        return made


CASES = (
    Probe(name="fma", lanes=2),
    Probe(name="fma bfloat16", lanes=4),
    Probe(name="copy"),
    Probe(name="stream copy"),
    Probe(name="read"),
)
