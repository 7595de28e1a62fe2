"""predict: the time that a kernel's work takes on a machine whose rates were measured.

A roofline for the body of each loop: it takes as long as its operations, its accesses or its longest chain, whichever
takes longest, and bodies add up.  Memory works beside all of them: bytes, or lines in no order, from the level that
holds the kernel's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from uopc.inspect.roofline import Rates, Roofline
from uopc.inspect.work import Body, Work
from uopc.pipeline import Kernel
from uopc.target import LINE, Target


@dataclass(frozen=True)
class Prediction:
    """seconds: of one run.  bound: what takes them: operations, accesses, latency, or a level of memory or lines of
    it.  threads: how many share it.  moved: bytes (read, written) at each level: L1 serves
    every load and store, the others what of the arguments they hold."""

    seconds: float
    bound: str
    threads: int
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)


def launch_of(kernel: Kernel) -> tuple[int, int]:
    """Iterations of the parallel loop of a kernel, and how many make a chunk."""
    found = re.search(rf"\b{re.escape(kernel.name)}_launch\[3\] = {{(\d+), (\d+),", kernel.source)
    return (int(found[1]), int(found[2])) if found else (1, 1)


def predict(
    done: Work, kernel: Kernel, roof: Roofline, target: Target, since: Mapping[int, int] | None = None
) -> Prediction:
    """The time of a kernel.  since: bytes that were moved since each argument was last used, by slot; as many as the
    kernel itself moves, where nothing is said: it runs again and again."""
    trips, chunk = launch_of(kernel)
    chunks = -(-trips // max(chunk, 1))
    threads = max(1, min(roof.all.threads, chunks))
    rates = roof.rates(threads)
    # the last round of chunks may not fill all threads
    uneven = -(-chunks // threads) * threads / chunks
    computing: dict[str, float] = {"operations": 0.0}
    for body in done.bodies:
        costs = _costs(body, rates, roof.vector_bytes)
        bound = max(costs, key=costs.__getitem__)
        computing[bound] = computing.get(bound, 0.0) + costs[bound] * uneven
    levels = {a.slot: roof.level((since or {}).get(a.slot, done.read + done.written), threads) for a in done.arguments}
    slower = max(computing, _moving(done, rates, levels), key=lambda taken: sum(taken.values()))
    seconds = max(rates.launch, target.launch_shared if threads > 1 else target.launch) + sum(slower.values())
    moved = {"L1": (done.loaded + done.tiles_loaded, done.stored + done.tiles_stored)}
    for a in done.arguments:
        read, written = moved.get(levels[a.slot], (0, 0))
        moved[levels[a.slot]] = read + a.read, written + a.written
    return Prediction(seconds, max(slower, key=slower.__getitem__), threads, moved)


def _moving(done: Work, rates: Rates, levels: Mapping[int, str]) -> dict[str, float]:
    """Seconds of what comes from and goes to memory, by what takes them; levels: that hold the arguments."""
    bandwidth = rates.copy if done.written * 4 > done.read else rates.read
    taken: dict[str, float] = {}
    for a in done.arguments:
        level, walked = levels[a.slot], max(a.read + a.written - LINE * a.lines, 0)
        for name, seconds in ((level, walked / bandwidth[level]), (f"lines of {level}", a.lines / rates.lines[level])):
            taken[name] = taken.get(name, 0.0) + seconds
    return taken


def _costs(body: Body, rates: Rates, vector_bytes: int) -> dict[str, float]:
    """Seconds of a body by what might bound it."""
    # an FMA of float32 is two operations a lane
    multipliers = rates.flops / (2 * vector_bytes / 4)
    # loads and stores have ports of their own, and a copied byte counts twice
    loads, stores = rates.read["L1"] / vector_bytes, rates.copy["L1"] / (2 * vector_bytes)
    return {
        "operations": max(body.multiplies / multipliers, body.operations / rates.mixed),
        "accesses": max(body.loads / loads, body.stores / stores),
        "latency": body.chain * rates.latency / rates.threads,
    }
