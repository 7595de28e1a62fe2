"""Putting the nodes of a program in order: which loop each stands in, what must come before what, and the sort."""

from collections.abc import Callable, Mapping

from uopc._hot.uop import UOp
from uopc.ops import Ops

def accesses(order: list[UOp]) -> dict[tuple[Ops, int], tuple[list[UOp], list[UOp]]]:
    """The LOADs and the STOREs of each memory: {(op, slot): (loads, stores)}, each in the order given."""

def overwrites(order: list[UOp], shared: list[tuple[list[UOp], list[UOp]]]) -> list[tuple[UOp, UOp]]:
    """Each LOAD with each STORE that may write to the same place and that the LOAD does not come after.

    order: a graph, sources before users.  shared: (loads, stores) of each memory that has both.
    """

def statements(uops: tuple[UOp, ...]) -> list[UOp]:
    """``uops`` with the sources of SINKs, which are no statements themselves, in their places."""

def arrange(
    order: list[UOp],
    ends: Mapping[UOp, UOp],
    parents: Mapping[UOp, UOp | None],
    depths: Mapping[UOp | None, int],
    inside: Mapping[UOp, UOp],
    first: list[UOp],
    last: list[UOp],
    pairs: list[tuple[UOp, UOp]],
    refuse: Callable[[dict[UOp, list[UOp]]], None],
) -> list[UOp]:
    """The nodes of a program as a list: each but CONSTs and SINKs behind its sources, in the innermost loop that it
    depends on or whose body it is.

    order: the graph, sources before users.  ends: the END of each RANGE.  parents, depths: of each RANGE, that of the
    loop around it (None: none) and how many there are.  inside: the RANGE whose body a statement is.
    first, last: what goes first and last where nothing else decides.  pairs: (a, b), a comes before b.
    ValueError for what stands inside loops that are not inside one another or is used outside its loop;
    ``refuse(items)`` raises what is to be said of nodes that wait for one another, given as {node: those after it}.
    """

# For this module alone: a program as arrays, and a place in memory.
class Program: ...
class Span: ...
