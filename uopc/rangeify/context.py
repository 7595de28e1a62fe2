"""What one kernel's lowering knows: the sizes that were chosen for its loops, its ranges, and its tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uopc._hot.simplify import Simplifier
from uopc.ops import AxisType, Opts
from uopc.uop import UOp, range_

__all__ = ["ZERO", "Combine", "Ctx", "Idx", "Opts", "Request", "power_of_two_below"]

Idx = tuple[UOp, ...]
# A node, an index for each of its axes, and the bool that must hold for memory to be read.
Request = tuple[UOp, Idx, "UOp | None"]
Combine = Callable[[list[UOp]], Any]
ZERO = UOp.const(0)


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
