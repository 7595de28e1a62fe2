"""target: everything that the compiler knows of a machine.

A ``Target`` is a value: frozen, hashable, part of every key of a kernel. Passes get it as an argument, so that any pass
runs for any Target. ``ROWS`` has one for each microarchitecture: a new one is one row. ``row_for`` picks it by vendor,
family, model and features; sizes of caches and cores are those of the machine at hand (``uopc.runtime.device`` asks
it). Nothing is measured: one machine has one plan.

Rates are of whole vectors of the row's width in a cycle, sustained, as uops.info, Agner Fog's tables and the vendors'
optimisation guides have them; bandwidths are what a loop of loads gets, about three quarters of what guides promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from uopc.ops import TABLE, Issue, Ops

LINE = 64  # bytes that caches and memory move at a time, on all machines below
PAGE = 4096  # bytes of the smallest page: prefetchers stop at its end
KB, MB = 1 << 10, 1 << 20
# Bytes of a thread's stack that a kernel may keep tiles in: half of what threads have where nobody says otherwise. The
# pool runs no kernel on a thread that has less left.
STACK = 4 * MB


class Feature(Enum):
    """An instruction that a generator may choose.  The value is what the operating system calls it."""

    BF16_DOT = "avx512_bf16"  # dot products of pairs of bfloat16 in float32: DOT2
    PERMUTE = "avx512f"  # any lanes of two registers by one instruction: SHUFFLE
    MASKED = "avx512vl"  # loads and stores of some lanes that take no longer than those of all
    FMA = "fma"  # products rounded with their sum


@dataclass(frozen=True)
class Cache:
    """A level of memory.  size: bytes that one core has of it.  ways: how many lines of one set it holds.  bandwidth:
    bytes a cycle that one core reads from it."""

    size: int
    ways: int
    bandwidth: float


@dataclass(frozen=True)
class Target:
    """A machine as the compiler sees it.

    cores: that share a kernel.  clock: cycles a second under load.  vector_bytes, vector_registers: what lanes and
    accumulators fill.
    fma, add, load, store, shuffle: instructions on whole vectors in a cycle; a shuffle takes two registers.
    division: cycles of a vector of float32 divisions or square roots.  scalar: cycles of a division of integers, its
    lane taken out and put back.
    fma_latency, load_latency: cycles until a result can be used, a load's from the first-level cache.
    l3: the size of all of it, which its cores share.  memory, memory_shared: bytes a second that one core, and all
    together, read.  jump: cycles until a line from beyond the second-level cache comes that no prefetcher foresees,
    others being under way.  tlb: bytes that the second-level TLB reaches.
    launch, launch_shared: seconds of starting a kernel, alone and where other threads join.  chunk: simple operations
    on elements, less than which is no part for a thread.
    stack: bytes that a kernel may keep on a thread's stack, at most ``STACK``.
    """

    name: str
    clock: float
    vector_bytes: int
    vector_registers: int
    fma: float
    add: float
    load: float
    store: float
    shuffle: float
    division: float
    scalar: float
    fma_latency: float
    load_latency: float
    l1: Cache
    l2: Cache
    l3: Cache
    memory: float
    memory_shared: float
    jump: float
    tlb: int
    features: frozenset[Feature] = field(repr=False)  # in no order that another process has
    cores: int = 1
    launch: float = 1e-7
    launch_shared: float = 6e-7
    chunk: int = 16384
    stack: int = STACK

    def has(self, feature: Feature) -> bool:
        """Whether a generator may choose it."""
        return feature in self.features

    def slots(self, issue: Issue, itemsize: int = 4) -> float:
        """What an operation on a vector of such elements takes, in simple operations."""
        lanes = self.vector_bytes / max(itemsize, 4)
        return issue.simple + self.fma * (issue.divisions * self.division + issue.scalar * self.scalar * lanes)

    @property
    def picked(self) -> float:
        """Accesses that a vector of every other element takes the time of: it is picked from two others."""
        return 2.0 + self.load / self.shuffle

    def transposed(self, lanes: int) -> float:
        """Accesses that a vector of a square takes the time of which is turned in registers: in log2(lanes) rounds,
        by a shuffle each (by two without one that takes any lanes of two registers), and the square waits for its
        last row."""
        each = 1.0 if self.has(Feature.PERMUTE) else 2.0
        return 2.0 + math.log2(lanes) * each * self.load / self.shuffle

    @property
    def maximum(self) -> float:
        """Simple operations of a maximum that passes NaN on."""
        return self.slots(TABLE[Ops.MAX].issue)

    @property
    def accumulators(self) -> int:
        """How many an innermost loop keeps in registers: a quarter of them is for operands."""
        return self.vector_registers - self.vector_registers // 4

    @property
    def caches(self) -> tuple[Cache, Cache, Cache]:
        """The nearest first."""
        return self.l1, self.l2, self.l3

    def describe(self) -> str:
        """Its vectors, rates and instructions in a line."""
        rates = (("FMAs", self.fma), ("additions", self.add), ("loads", self.load), ("stores", self.store))
        a_cycle = ", ".join(f"{rate:g} {name}" for name, rate in (*rates, ("shuffles", self.shuffle)))
        has = ", ".join(f.name.lower() for f in Feature if f in self.features) or "no features"
        return (
            f"vectors of {self.vector_bytes * 8} bits, {a_cycle} a cycle of {self.clock * 1e-9:g} GHz, latencies "
            f"{self.fma_latency:g} (FMA) and {self.load_latency:g} (load), TLB of {self.tlb >> 20} MiB; {has}"
        )

    @property
    def l3_of_core(self) -> int:
        """The bytes of the third-level cache that one core has where all cores work."""
        return self.l3.size // max(self.cores, 1)

    def with_caches(self, l1: int = 0, l2: int = 0, l3: int = 0) -> Target:
        """The same with caches of these sizes, in bytes; 0: as they are."""
        sized = {
            name: replace(getattr(self, name), size=size) for name, size in (("l1", l1), ("l2", l2), ("l3", l3)) if size
        }
        return replace(self, **sized)

    def narrowed(self, vector_bytes: int) -> Target:
        """The same with vectors of so many bytes, at the same rates, and the registers and instructions of those."""
        narrow = {f for f in self.features if f not in (Feature.BF16_DOT, Feature.PERMUTE, Feature.MASKED)}
        features = self.features if vector_bytes >= 64 else frozenset(narrow)
        registers = 16 if self.vector_bytes >= 64 > vector_bytes else self.vector_registers
        return replace(self, vector_bytes=vector_bytes, vector_registers=registers, features=features)


@dataclass(frozen=True)
class Row:
    """A Target, and which machines it is of: those of the vendor (None: of any) and, where these are not empty, of the
    families and models, which have all the features (as /proc/cpuinfo calls them)."""

    target: Target
    vendor: str | None
    needs: frozenset[str]
    families: frozenset[int] = frozenset()
    models: frozenset[int] = frozenset()

    def fits(self, vendor: str, family: int, model: int, features: frozenset[str]) -> bool:
        """Whether the row is of such a machine."""
        return (
            self.vendor in (None, vendor)
            and self.needs <= features
            and (not self.families or family in self.families)
            and (not self.models or model in self.models)
        )


INTEL, AMD, ARM = "GenuineIntel", "AuthenticAMD", "0x41"
_AVX2 = frozenset({Feature.FMA})
_AVX512 = frozenset({Feature.FMA, Feature.PERMUTE, Feature.MASKED})
_V3 = frozenset({"avx2", "fma", "f16c"})
_V4 = _V3 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}

# The newest first: the first row that fits is the machine's.  A hypervisor may give any model, so that features, which
# it cannot invent, come before models where both say something.
ROWS: tuple[Row, ...] = (
    Row(  # all 512 bits wide; the parts for laptops have half as wide units and run as Zen 4 does
        Target(
            name="znver5", clock=4.2e9, vector_bytes=64, vector_registers=32,
            fma=2, add=2, load=2, store=1, shuffle=2, division=5, scalar=5, fma_latency=4, load_latency=7,
            l1=Cache(48 * KB, 12, 120), l2=Cache(1 * MB, 16, 48), l3=Cache(32 * MB, 16, 14),
            memory=2.0e10, memory_shared=4.0e10, jump=22, tlb=4096 * PAGE, features=_AVX512 | {Feature.BF16_DOT},
        ),
        AMD, _V4 | {"avx512_bf16"}, frozenset({26}),
    ),
    Row(  # 512 bits in two halves of 256: an FMA or a load a cycle, a store every other
        Target(
            name="znver4", clock=4.0e9, vector_bytes=64, vector_registers=32,
            fma=1, add=1, load=1, store=0.5, shuffle=1, division=8, scalar=5, fma_latency=4, load_latency=8,
            l1=Cache(32 * KB, 8, 60), l2=Cache(1 * MB, 8, 25), l3=Cache(32 * MB, 16, 10),
            memory=1.5e10, memory_shared=3.0e10, jump=24, tlb=3072 * PAGE, features=_AVX512 | {Feature.BF16_DOT},
        ),
        AMD, _V4 | {"avx512_bf16"}, frozenset({25}),
    ),
    Row(
        Target(
            name="znver3", clock=3.6e9, vector_bytes=32, vector_registers=16,
            fma=2, add=2, load=2, store=1, shuffle=2, division=3.5, scalar=6, fma_latency=4, load_latency=7,
            l1=Cache(32 * KB, 8, 60), l2=Cache(512 * KB, 8, 25), l3=Cache(32 * MB, 16, 10),
            memory=1.5e10, memory_shared=3.0e10, jump=24, tlb=2048 * PAGE, features=_AVX2,
        ),
        AMD, _V3, frozenset({25, 26}),
    ),
    Row(  # also Zen 1, whose units are half as wide
        Target(
            name="znver2", clock=3.4e9, vector_bytes=32, vector_registers=16,
            fma=2, add=2, load=2, store=1, shuffle=2, division=3.5, scalar=10, fma_latency=5, load_latency=7,
            l1=Cache(32 * KB, 8, 60), l2=Cache(512 * KB, 8, 25), l3=Cache(16 * MB, 16, 9),
            memory=1.4e10, memory_shared=2.8e10, jump=26, tlb=2048 * PAGE, features=_AVX2,
        ),
        AMD, _V3, frozenset({23, 24}),
    ),
    Row(  # also Emerald and Granite Rapids
        Target(
            name="sapphirerapids", clock=3.0e9, vector_bytes=64, vector_registers=32,
            fma=2, add=2, load=2, store=1, shuffle=1, division=10, scalar=5, fma_latency=4, load_latency=7,
            l1=Cache(48 * KB, 12, 110), l2=Cache(2 * MB, 16, 40), l3=Cache(60 * MB, 15, 9),
            memory=1.4e10, memory_shared=2.6e10, jump=16, tlb=2048 * PAGE, features=_AVX512 | {Feature.BF16_DOT},
        ),
        INTEL, _V4 | {"avx512_fp16"},
    ),
    Row(  # Ice, Tiger and Rocket Lake: one of the two 512-bit multipliers is left out
        Target(
            name="icelake-client", clock=3.8e9, vector_bytes=64, vector_registers=32,
            fma=1, add=1, load=2, store=1, shuffle=1, division=10, scalar=6, fma_latency=4, load_latency=7,
            l1=Cache(48 * KB, 12, 110), l2=Cache(512 * KB, 8, 40), l3=Cache(8 * MB, 16, 12),
            memory=1.6e10, memory_shared=3.0e10, jump=24, tlb=2048 * PAGE, features=_AVX512,
        ),
        INTEL, _V4 | {"avx512_vbmi2"}, frozenset({6}), frozenset({125, 126, 140, 141, 167}),
    ),
    Row(
        Target(
            name="icelake-server", clock=2.9e9, vector_bytes=64, vector_registers=32,
            fma=2, add=2, load=2, store=1, shuffle=1, division=10, scalar=6, fma_latency=4, load_latency=7,
            l1=Cache(48 * KB, 12, 110), l2=Cache(1280 * KB, 20, 40), l3=Cache(48 * MB, 12, 9),
            memory=1.2e10, memory_shared=2.4e10, jump=18, tlb=2048 * PAGE, features=_AVX512,
        ),
        INTEL, _V4 | {"avx512_vbmi2"},
    ),
    Row(  # also Cascade and Cooper Lake
        Target(
            name="skylake-avx512", clock=2.6e9, vector_bytes=64, vector_registers=32,
            fma=2, add=2, load=2, store=1, shuffle=1, division=10, scalar=12, fma_latency=4, load_latency=7,
            l1=Cache(32 * KB, 8, 100), l2=Cache(1 * MB, 16, 36), l3=Cache(32 * MB, 11, 8),
            memory=1.1e10, memory_shared=2.2e10, jump=18, tlb=1536 * PAGE, features=_AVX512,
        ),
        INTEL, _V4,
    ),
    Row(  # also Raptor, Meteor and Arrow Lake; of their small cores nothing is known here
        Target(
            name="alderlake", clock=4.5e9, vector_bytes=32, vector_registers=16,
            fma=2, add=2, load=3, store=2, shuffle=2, division=5, scalar=5, fma_latency=4, load_latency=7,
            l1=Cache(48 * KB, 12, 80), l2=Cache(1280 * KB, 10, 36), l3=Cache(24 * MB, 12, 12),
            memory=2.2e10, memory_shared=4.4e10, jump=28, tlb=2048 * PAGE, features=_AVX2,
        ),
        INTEL, _V3 | {"avx_vnni"},
    ),
    Row(  # the client: also Kaby, Coffee and Comet Lake
        Target(
            name="skylake", clock=3.8e9, vector_bytes=32, vector_registers=16,
            fma=2, add=2, load=2, store=1, shuffle=1, division=5, scalar=12, fma_latency=4, load_latency=7,
            l1=Cache(32 * KB, 8, 56), l2=Cache(256 * KB, 4, 28), l3=Cache(8 * MB, 16, 12),
            memory=1.5e10, memory_shared=2.6e10, jump=24, tlb=1536 * PAGE, features=_AVX2,
        ),
        INTEL, _V3, frozenset({6}), frozenset({78, 94, 142, 158, 165, 166}),
    ),
    Row(
        Target(
            name="neoverse-v1", clock=2.6e9, vector_bytes=16, vector_registers=32,
            fma=4, add=4, load=2, store=2, shuffle=2, division=5, scalar=5, fma_latency=4, load_latency=6,
            l1=Cache(64 * KB, 4, 30), l2=Cache(1 * MB, 8, 24), l3=Cache(32 * MB, 16, 9),
            memory=1.5e10, memory_shared=3.0e10, jump=24, tlb=2048 * PAGE, features=_AVX2,
        ),
        ARM, frozenset({"asimd"}), frozenset({8}), frozenset({0xD40}),
    ),
    Row(  # what nobody named, by its vectors: the least that all such machines do
        Target(
            name="x86-64-v4", clock=3.0e9, vector_bytes=64, vector_registers=32,
            fma=1, add=1, load=1, store=0.5, shuffle=1, division=10, scalar=6, fma_latency=4, load_latency=8,
            l1=Cache(32 * KB, 8, 60), l2=Cache(1 * MB, 8, 25), l3=Cache(32 * MB, 16, 10),
            memory=1.2e10, memory_shared=2.4e10, jump=24, tlb=1536 * PAGE, features=_AVX512,
        ),
        None, _V4,
    ),
    Row(
        Target(
            name="x86-64-v3", clock=3.2e9, vector_bytes=32, vector_registers=16,
            fma=2, add=1, load=2, store=1, shuffle=1, division=7, scalar=12, fma_latency=5, load_latency=7,
            l1=Cache(32 * KB, 8, 56), l2=Cache(256 * KB, 8, 25), l3=Cache(8 * MB, 16, 10),
            memory=1.2e10, memory_shared=2.4e10, jump=24, tlb=1024 * PAGE, features=_AVX2,
        ),
        None, _V3,
    ),
    Row(
        Target(
            name="armv8-a", clock=2.5e9, vector_bytes=16, vector_registers=32,
            fma=2, add=2, load=2, store=1, shuffle=1, division=7, scalar=8, fma_latency=4, load_latency=6,
            l1=Cache(32 * KB, 4, 28), l2=Cache(512 * KB, 8, 16), l3=Cache(8 * MB, 16, 8),
            memory=1.0e10, memory_shared=2.0e10, jump=24, tlb=1024 * PAGE, features=_AVX2,
        ),
        None, frozenset({"asimd"}),
    ),
    Row(
        Target(
            name="x86-64", clock=3.0e9, vector_bytes=16, vector_registers=16,
            fma=1, add=1, load=1, store=1, shuffle=1, division=7, scalar=20, fma_latency=8, load_latency=6,
            l1=Cache(32 * KB, 8, 14), l2=Cache(256 * KB, 8, 12), l3=Cache(8 * MB, 16, 8),
            memory=1.0e10, memory_shared=1.6e10, jump=24, tlb=512 * PAGE, features=frozenset(),
        ),
        None, frozenset(),
    ),
)  # fmt: skip


def named(name: str) -> Target:
    """The Target of a row; LookupError names all rows for a name that is none."""
    for row in ROWS:
        if row.target.name == name:
            return row.target
    raise LookupError(f"no row of uopc.target is named {name!r}; accepted are {', '.join(r.target.name for r in ROWS)}")


def target_of(
    vendor: str, family: int, model: int, features: Iterable[str], cores: int, caches: Mapping[int, int]
) -> Target:
    """The Target of a machine: the first row that fits, with its own cores and caches, whose bytes ``caches`` has by
    level (those of the row where it says nothing)."""
    has = frozenset(features)
    row = next(r for r in ROWS if r.fits(vendor, family, model, has))
    sized = row.target.with_caches(*(caches.get(level, 0) for level in (1, 2, 3)))
    return replace(sized, cores=cores, features=row.target.features & _found(has))


def _found(features: frozenset[str]) -> frozenset[Feature]:
    """The instructions of a machine: on Arm, products that are rounded with their sum have no name of their own."""
    return frozenset(f for f in Feature if f.value in features or (f is Feature.FMA and "asimd" in features))
