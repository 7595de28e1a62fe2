"""What is used where in a LINEAR list: which values get a name, and what stands in which loop."""

from typing import Any, final

from uopc._hot.uop import UOp

def place_of(u: UOp) -> UOp:
    """The BUFFER or ALLOC that a LOAD, a STORE, an INDEX or an AFTER is about; ValueError where there is none."""

def spread(at: UOp) -> tuple[UOp, tuple[Any, ...]] | None:
    """A vector of addresses as a base and constant steps, or None: then no vector is made of it."""

@final
class Uses:
    """Uses of the nodes of a LINEAR list."""

    def __init__(self, statements: tuple[UOp, ...]) -> None: ...
    def loop_of(self, u: UOp) -> UOp | None:
        """The RANGE of the innermost loop that ``u`` stands in, or None."""
    def lanes(self, nodes: list[UOp]) -> dict[UOp | None, int]:
        """How many lanes ``nodes`` have, by the RANGE of the loop that they stand in, or None."""
    def around(self, r: UOp) -> tuple[tuple[UOp, ...], tuple[UOp, ...]]:
        """What stands in the loop of the RANGE ``r`` at any depth, itself included, and what stands outside it."""
    def accessed(self) -> tuple[set[UOp], set[UOp]]:
        """The memories that are stored to, and those of which more is accessed than the one element that they have."""
