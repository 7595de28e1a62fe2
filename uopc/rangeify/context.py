"""What one kernel's lowering knows: the sizes that were chosen for its loops, its ranges, and its tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uopc._hot.simplify import Simplifier
from uopc.ops import AxisType
from uopc.uop import UOp, range_

Idx = tuple[UOp, ...]
# A node, an index for each of its axes, and the bool that must hold for memory to be read.
Request = tuple[UOp, Idx, "UOp | None"]
Combine = Callable[[list[UOp]], Any]
ZERO = UOp.const(0)


@dataclass(frozen=True)
class Opts:
    """Sizes of a kernel's loops.

    upcast: output axis -> how many of its elements one iteration computes in registers.
    unroll: how many steps of the innermost reduction one iteration takes.
    thread: the output axis whose loop the threads share, or several, which are merged.
    vector: the output axis along which vector lanes run, and ``lanes`` how many; its upcast counts elements, not
    vectors.
    reduce_lanes: vector lanes along the innermost reduced axis (1: none).
    reduce_block: how many iterations of a reduction are summed before they join the sum of blocks (0: all at once).
    order: the output axes in loop order, outermost first (None: as they come).
    block: output axis -> how many of its elements one block holds; threads then share blocks, and STAGEs at block level
    are tiles of one block.
    """

    upcast: Any = ()
    unroll: int = 1
    thread: Any = None
    vector: int | None = None
    lanes: int = 1
    reduce_lanes: int = 1
    reduce_block: int = 0
    order: tuple[int, ...] | None = None
    block: Any = ()

    def __post_init__(self) -> None:
        for name in ("upcast", "block"):
            given = getattr(self, name)
            pairs = [(int(a), int(n)) for a, n in dict(given).items() if n != 1 or name == "block"] if given else ()
            object.__setattr__(self, name, tuple(sorted(pairs)))
        if self.unroll < 1 or (self.upcast and min(n for _, n in self.upcast) < 1):
            raise ValueError(f"upcast {dict(self.upcast)} and unroll {self.unroll} must be at least 1")

    def upcast_of(self, axis: int) -> int:
        """How many elements of ``axis`` one iteration computes."""
        return dict(self.upcast).get(axis, 1)

    def block_of(self, axis: int) -> int:
        """How many elements of ``axis`` a block holds; 0: the axis is not cut into blocks."""
        return dict(self.block).get(axis, 0)

    @property
    def threads(self) -> tuple[int, ...]:
        """The merged thread axes, outermost first."""
        if self.thread is None:
            return ()
        return (self.thread,) if isinstance(self.thread, int) else tuple(self.thread)


@dataclass
class Ctx:
    """One kernel under way.

    blocks: the ranges over blocks, outside every tile.  inside: for a range over blocks the one, of one iteration or
    none, that all of a block stands in.  tiles: what is known of each STAGE at block level, by its origin.
    engine: answers requests, each once.  sums: the sizes by which each sum of floats adds up.  unlike: those that were
    asked for at places where they would add up by different ones.
    """

    opts: Opts = field(default_factory=Opts)
    next_id: int = 0
    next_slot: int = 0
    engine: Any = None
    blocks: set[UOp] = field(default_factory=set)
    inside: dict[UOp, UOp] = field(default_factory=dict)
    tiles: dict[tuple[UOp, Idx], Any] = field(default_factory=dict)
    cascades: dict[int, Any] = field(default_factory=dict)
    sums: dict[UOp, Opts] = field(default_factory=dict)
    unlike: set[UOp] = field(default_factory=set)
    marks: int = 0
    simplifier: Any = field(default_factory=Simplifier)

    def range(self, end: int | UOp, axis_type: AxisType) -> UOp:
        """A new RANGE of this kernel."""
        self.next_id += 1
        return range_(end, self.next_id - 1, axis_type)

    def simplify(self, expr: UOp) -> UOp:
        """An equal index expression in canonical form."""
        return self.simplifier.simplify(expr)


def power_of_two_below(n: int) -> int:
    """The largest power of two that is at most ``n`` (``n`` >= 1)."""
    return 1 << (n.bit_length() - 1)
