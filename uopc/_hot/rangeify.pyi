"""The memoised recursion of rangeify, without the recursion."""

from collections.abc import Callable
from typing import Any, final

from uopc._hot.uop import UOp
from uopc.ops import Ops

@final
class Engine:
    """Answers requests ``(node, idx, gate)``, each once, for as long as it lives (one kernel)."""

    def __init__(
        self, moves: dict[Ops, Callable[..., Any]], values: dict[Ops, Callable[..., Any]], ctx: Any
    ) -> None: ...
    def run(self, node: UOp, idx: tuple[UOp, ...], gate: UOp | None = None) -> UOp:
        """The loop-program value of ``node`` at ``idx``, one index expression an axis of its shape."""
    def asked(self, node: UOp) -> list[tuple[UOp, ...]]:
        """The indices at which ``node`` was asked for so far."""

# A request under way: for this module alone.
class Frame: ...
