"""prefetch: while what was read before comes from a cache, memory brings what is read next.

In and out: a LINEAR list.  A row that several loops read comes from memory in the first of them, which waits for it,
and from a cache in the others.  If one of those computes so much that memory stands idle, its loads say where the row
of the next turn of the loop around them lies (the LOAD's argument: so many elements further on), and the processor
fetches it meanwhile.

Never changes what is computed or read; an address past the end of memory is fetched in vain.
"""

from __future__ import annotations

import math
from itertools import pairwise

from uopc._hot.graph import of_ops
from uopc._hot.uses import place_of
from uopc.ops import ALU, Ops
from uopc.rangeify.nest import statements
from uopc.simplify import linear_in
from uopc.target import Target
from uopc.uop import UOp, dtypes

# Bytes of a row that are worth it, and of the second-level cache that they may take.
LEAST_BYTES = 1024
CACHE_SHARE = 0.125

# Operations for each vector read, below which a loop keeps memory busy enough by itself.
LEAST_WORK = 10

# LOADs by the loop inside another one that they stand in, in the order of the list.
Readers = dict[UOp, list[UOp]]


def _large(linear: UOp, target: Target) -> set[int]:
    """The slots of the BUFFERs that are only read, and that the second-level cache does not hold."""
    buffers = of_ops(linear.src, Ops.BUFFER)
    large = {u.arg.slot for u in buffers if math.prod(u.arg.shape) * u.dtype.itemsize > target.l2.size}
    return large and large - {
        place_of(u).arg.slot for u in of_ops(linear.src, Ops.STORE) if place_of(u).op is Ops.BUFFER
    }


def _readers(linear: UOp, large: set[int]) -> dict[tuple[int, UOp], Readers]:
    """For each of these memories and each loop: its LOADs of whole vectors in the loops inside."""
    found: dict[tuple[int, UOp], Readers] = {}
    for u, loops in statements(linear, Ops.LOAD):
        if len(u.src) == 1 and u.dtype.count > 1 and u.src[0].src[1].dtype.count == 1:
            memory = place_of(u)
            if memory.op is Ops.BUFFER and memory.arg.slot in large:
                for around, inside in pairwise(loops):
                    found.setdefault((memory.arg.slot, around), {}).setdefault(inside, []).append(u)
    return found


def _step(loads: list[UOp], around: UOp, target: Target) -> int:
    """How many elements the next turn of a loop lies further on, the same for all loads; 0 where there is no such
    number, or it is no row that a cache has room for."""
    steps = {None if (found := linear_in(u.src[0].src[1], around)) is None else found[1] for u in loads}
    step = steps.pop()
    if steps or step is None:
        return 0
    nbytes = step * place_of(loads[0]).dtype.itemsize
    return step if LEAST_BYTES <= nbytes <= target.l2.size * CACHE_SHARE else 0


def _busiest(readers: Readers, linear: UOp) -> list[UOp]:
    """The LOADs of the loop behind the first that computes most for each of them, if that is enough."""

    def computes(u: UOp) -> bool:
        return u.op in ALU and u.dtype is not dtypes.index

    def work(inside: UOp) -> float:
        return sum(computes(u) and inside in u.ranges for u in linear.src) / len(readers[inside])

    most = max(list(readers)[1:], key=work)
    return readers[most] if work(most) >= LEAST_WORK else []


def prefetch(linear: UOp, target: Target) -> UOp:
    """The list with LOADs that fetch ahead."""
    large = _large(linear, target)
    if not large:
        return linear
    ahead: dict[UOp, int] = {}
    seen: set[int] = set()
    # the innermost loop around two that read the same comes last in the list
    for (slot, around), readers in reversed(_readers(linear, large).items()):
        if len(readers) > 1 and slot not in seen:
            step = _step([u for loads in readers.values() for u in loads], around, target)
            if step:
                seen.add(slot)
                ahead |= dict.fromkeys(_busiest(readers, linear), step)
    return UOp.wrap([linear], list(ahead), lambda u: u.replace(arg=ahead[u]))[0] if ahead else linear
