"""stream: results that no cache will hold go past the caches.

In and out: a program after ``decompose``.  An ordinary store first reads the cache line that it changes, and so moves
each line twice.  Where a kernel moves twice what the last level of cache holds, what it writes will have left it before
anyone reads it: vectors of consecutive elements of a BUFFER are then stored directly (the STORE's argument is
True).

Never streams to memory that the kernel also reads, behind a gate, or lane by lane.
"""

from __future__ import annotations

import math

from uopc._hot.graph import of_ops
from uopc._hot.uses import place_of
from uopc.ops import Ops
from uopc.target import Target
from uopc.uop import UOp, toposort

# The least store that the processor puts together to a whole line on its way.
HALF_LINE = 32


def stream(root: UOp, target: Target) -> UOp:
    """The program with STOREs that pass by the caches."""
    order = toposort(root)
    sizes: dict[int, int] = {}  # by slot: several nodes may be one memory
    for u in of_ops(order, Ops.BUFFER):
        sizes[u.arg.slot] = max(sizes.get(u.arg.slot, 0), math.prod(u.arg.shape) * u.dtype.itemsize)
    if sum(sizes.values()) <= 2 * target.l3.size:
        return root
    least = min(target.vector_bytes, HALF_LINE)
    read = {place_of(u).arg.slot for u in of_ops(order, Ops.LOAD) if place_of(u).op is Ops.BUFFER}

    def streams(u: UOp) -> bool:
        index = u.src[0]
        memory = place_of(u)
        whole = len(u.src) == 2 and index.src[1].dtype.count == 1
        whole = (
            whole
            and least <= index.dtype.itemsize <= target.vector_bytes
            and index.dtype.scalar() is memory.dtype.scalar()
        )
        return (
            whole
            and memory.op is Ops.BUFFER
            and memory.arg.slot not in read
            and sizes[memory.arg.slot] > target.l2.size
        )

    targets = [u for u in of_ops(order, Ops.STORE) if streams(u)]
    return UOp.wrap([root], targets, lambda u: u.replace(arg=True))[0] if targets else root
