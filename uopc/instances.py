"""instances: uses of a value by a kernel at an index, which is known by the loops that each of its axes depends on.

That is enough to tell how often the value would be computed there: once for every iteration of the loops around the
innermost loop that its index mentions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from uopc.ops import ALU, Ops
from uopc.rangeify.movement import reshape_groups
from uopc.uop import UOp

# A value that no parallel loop encloses is computed again in every chunk of the loop.
CHUNKS = 64
# Below these, an index is the same one or in another order; below others it may be anything.
_KEEPS_INDEX = ALU | {Ops.EXPAND, Ops.PERMUTE, Ops.STAGE}

Axes = tuple[frozenset[int], ...]


@dataclass(eq=False)
class KernelLoops:
    """A kernel under construction: its loops, by number; ``around[l]`` is loop ``l`` with all loops that enclose it.

    shared: the loops that threads share.  own: those over its results.  rows: those of ``own`` that all values of
    cascades have which it computes.
    """

    root: UOp
    extents: list[int] = field(default_factory=list)
    around: list[frozenset[int]] = field(default_factory=list)
    ops: int = 0
    shared: set[int] = field(default_factory=set)
    own: frozenset[int] = frozenset()
    rows: frozenset[int] | None = None

    def loop(self, extent: int, enclosing: frozenset[int]) -> frozenset[int]:
        """A new loop inside ``enclosing``, as the set of itself."""
        self.extents.append(extent)
        self.around.append(enclosing | {len(self.around)})
        return frozenset({len(self.extents) - 1})

    def enclosing(self, mentioned: frozenset[int]) -> frozenset[int]:
        """All loops around the innermost of those mentioned."""
        return frozenset().union(*(self.around[l] for l in mentioned))

    def trips(self, loops: frozenset[int]) -> int:
        """How many iterations loops have, one in another."""
        return math.prod(self.extents[l] for l in loops)

    def evaluations(self, axes: Axes) -> int:
        """How often a value at this index is computed."""
        loops = self.enclosing(frozenset().union(*axes))
        again = 1 if not self.shared or self.shared & loops else CHUNKS
        return again * self.trips(loops)

    def rows_with(self, axes: Axes) -> frozenset[int]:
        """``rows``, if the value of a cascade at this index is computed here too."""
        return (self.own if self.rows is None else self.rows) & frozenset().union(*axes)


def index_below(u: UOp, axes: Axes, kernel: KernelLoops) -> list[Axes]:
    """The index of each source of ``u``, when ``u`` is used at ``axes``."""
    if u.op is Ops.RESHAPE:
        return [_regroup(u.src[0].shape, u.shape, axes)]
    if u.op is Ops.EXPAND:
        return [tuple(frozenset() if was == 1 else a for a, was in zip(axes, u.src[0].shape))]
    if u.op is Ops.PERMUTE:
        out = [frozenset[int]()] * len(axes)
        for a, axis in zip(axes, u.arg):
            out[axis] = a
        return [tuple(out)]
    if u.op is Ops.VIEW:
        return [(frozenset().union(*axes),)]
    if u.op is Ops.REDUCE:
        enclosing = kernel.enclosing(frozenset().union(*axes))
        rest, inner = iter(axes), []
        for axis, n in enumerate(u.src[0].shape):
            if axis not in u.arg.axes:
                inner.append(next(rest))
                continue
            made = kernel.loop(n, enclosing) if n > 1 else frozenset[int]()
            enclosing = enclosing | made
            inner.append(made)
        return [tuple(inner)]
    if u.op is Ops.COMPONENT:
        return [()]
    if u.op is Ops.CASCADE:
        return [fresh_index(s, kernel) for s in u.src]
    if u.op is Ops.STACK:
        return [axes[1:]] * len(u.src)
    if u.op is Ops.GATHER:
        return [tuple(frozenset().union(*axes) for _ in u.src[0].shape), *([axes] * (len(u.src) - 1))]
    return [axes if s.shape else () for s in u.src]


def keeps_index(u: UOp) -> bool:
    if u.op is Ops.RESHAPE:
        return _wide(u.shape) == _wide(u.src[0].shape)
    return u.op in _KEEPS_INDEX or (u.op is Ops.SHRINK and all(first == 0 for first, _ in u.arg))


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def fresh_index(u: UOp, kernel: KernelLoops) -> Axes:
    """An index of loops of its own: a reduction of a cascade runs over as much as its value is large."""
    enclosing, out = frozenset[int](), []
    for n in u.shape:
        made = kernel.loop(n, enclosing) if n > 1 else frozenset[int]()
        kernel.shared.update(made if not enclosing else ())
        enclosing = enclosing | made
        out.append(made)
    return tuple(out)


def _regroup(old: tuple[int, ...], new: tuple[int, ...], axes: Axes) -> Axes:
    """Through a RESHAPE, the axes of a group depend on all loops of the group."""
    if 0 in old:
        return (frozenset(),) * len(old)
    out: list[frozenset[int]] = []
    for a, b in reshape_groups(old, new):
        together = frozenset[int]().union(*axes[b])
        out += [together if n > 1 else frozenset() for n in old[a]]
    return tuple(out)
