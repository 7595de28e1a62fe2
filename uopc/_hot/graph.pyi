"""What passes ask of whole graphs, at the speed of a traversal: copies, parts, and nodes replaced together."""

from collections.abc import Callable, Mapping, Sequence

from uopc._hot.uop import UOp
from uopc.dtype import DType
from uopc.ops import Ops

def depending(root: UOp, ranges: tuple[UOp, ...]) -> list[UOp]:
    """The nodes of ``root`` at which one of ``ranges`` is open, each once, sources before users."""

def cone(root: UOp, ends: bytes, most: int = ...) -> list[UOp]:
    """The nodes of ``root``, users before sources, none below one for whose op ``ends`` holds a 1; the first ``most``
    of them, and one if there are more."""

def newer(root: UOp, place: Mapping[UOp, int], least: int) -> list[UOp]:
    """The nodes of ``root``, sources before users, none that stands before ``least``, and none below one.  ``place``:
    numbers of nodes, a source's smaller than its users'.  What has no number is new."""

def chosen(nodes: list[UOp], table: bytes) -> list[UOp]:
    """Those of ``nodes`` for which ``table`` holds a 1, at 4 * op + the kind of the last source's dtype: 0 for floats
    and void, 1 for index, 2 for other integers, 3 for bool."""

def of_ops(nodes: Sequence[UOp], *ops: Ops) -> list[UOp]:
    """Those of ``nodes`` whose op is one of ``ops``."""

def dtypes_of(nodes: list[UOp]) -> set[DType]:
    """The dtypes that ``nodes`` have."""

def copies(root: UOp, ranges: list[UOp], values: list[list[UOp]]) -> list[UOp]:
    """``root`` at every combination of ``values`` (a list for each of ``ranges``), the last running fastest.
    ValueError for more than 30 ranges."""

def replace_depending(root: UOp, ranges: tuple[UOp, ...], mapping: Mapping[UOp, UOp | Callable[[UOp], UOp]]) -> UOp:
    """``root.substitute(mapping)`` for nodes at which one of ``ranges`` is open: no others are visited."""

def replace_newer(root: UOp, place: Mapping[UOp, int], mapping: Mapping[UOp, UOp]) -> UOp:
    """``root.substitute(mapping)``, where nothing is visited that stands before all that is replaced: see ``newer``."""

def replace_all(root: UOp, mapping: Mapping[UOp, UOp]) -> UOp:
    """``root`` with the keys of ``mapping`` replaced by its values, and in these again.  No value may need its key."""

def replace_groups(
    root: UOp,
    groups: Sequence[Sequence[UOp]],
    finish: Callable[[tuple[UOp, ...], list[UOp]], Sequence[UOp]],
    refuse: Callable[[UOp, UOp], None],
) -> UOp:
    """``root`` with the nodes of each of ``groups`` replaced together: ``finish(group, rebuilt)`` gives the
    replacements, ``refuse(first, second)`` raises what is to be said of a group of which one node uses another."""

# For this module alone: copies under way, and nodes that wait for one another.
class Copier: ...
class Group: ...
