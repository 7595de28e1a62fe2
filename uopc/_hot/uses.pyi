"""What is used where in a LINEAR list: which values get a name, and what stands in which loop."""

from typing import Any, final

from uopc._hot.uop import UOp

UNUSED: int
INLINE: int
NAMED: int

def place_of(u: UOp) -> UOp:
    """The BUFFER or ALLOC that a LOAD, a STORE, an INDEX or an AFTER is about; ValueError where there is none."""

def spread(at: UOp) -> tuple[UOp, tuple[Any, ...]] | None:
    """A vector of addresses as a base and constant steps, or None: then no vector is made of it."""

@final
class Uses:
    """Uses of the nodes of a LINEAR list."""

    def __init__(self, statements: tuple[UOp, ...]) -> None: ...
    def fate(self, u: UOp) -> int:
        """What becomes of the text of a value: UNUSED, INLINE where it may stand in its user's (it is used once, in its
        loop, and read in time), or else NAMED."""
    def loop_of(self, u: UOp) -> UOp | None:
        """The RANGE of the innermost loop that ``u`` stands in, or None."""
    def lanes(self, nodes: list[UOp]) -> dict[UOp | None, int]:
        """How many lanes ``nodes`` have, by the RANGE of the loop that they stand in, or None."""
    def body(self, r: UOp) -> tuple[UOp, ...]:
        """The RANGE ``r`` and all that stands in its loop, at any depth."""
