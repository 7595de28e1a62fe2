"""What a legal graph is, for each kind of graph that the pipeline moves between: ``verify(graph, stage)``.

The op table (``ops.TABLE``) says for each op how many sources and what argument it has and where it is legal: invariant
1.  The others say what no single row can, of nodes by themselves (``nodes``), of tiles and cascades (``tiles``), and of
loops and memory (``loops``).  Dtypes and shapes need no check: a node is refused when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uopc.ops import LOOPS, TABLE, Ops, Stage
from uopc.spec.loops import loop_faults
from uopc.spec.nodes import LOOP_CHECKS, ROUNDING_CHECKS, TENSOR_CHECKS, Check, Fault, accepted, by_table
from uopc.spec.tiles import cascade_faults, levelled, plain_cascade, tile_bytes, tile_faults, tiled, tiled_cascade
from uopc.uop import UOp, format_graph, toposort

__all__ = ["INVARIANTS", "SpecError", "tile_bytes", "verify"]

# Numbers stay: messages, tests and comments elsewhere name them.
INVARIANTS = {
    1: "an op is legal in the stage, and has the sources and the argument that its row in the op table says",
    2: "a CONST's argument is a value of its dtype, or one for each lane",
    3: "a REDUCE's op is associative and commutative by the op table",
    4: "a gate is a bool with one lane, or with as many as are accessed",
    5: "an INDEX points into a BUFFER or ALLOC (or one AFTER something) at an integer, and is of the memory's type or, "
    "of a BUFFER, of a word of several elements; LOAD and STORE access an INDEX",
    6: "a STORE's value and its INDEX have one element type, and as many lanes (or the value has one)",
    7: "END and a loop's REDUCE close RANGEs, and an END stands around a STORE, an END or a SINK of such",
    8: "no two RANGEs have the same id",
    9: "a RANGE is closed by exactly one END, or by REDUCEs over the same RANGEs",
    10: "nothing uses a loop's value outside the loop except through AFTER(..., END): no RANGE is open at the root",
    11: "the RANGEs open at a node are loops of which each stands inside the one before",
    12: "there is at most one THREAD RANGE, and it is the outermost loop",
    13: "what an ALLOC is AFTER, inside a loop, was written outside that loop: its initialisation dominates the loop",
    14: "an ALLOC that accumulates lives inside exactly the loops that its result depends on: between initialisation "
    "and update no loops begin but those that the update is said to be AFTER",
    15: "an ALLOC is written before it is read",
    16: "a LOAD has as many lanes as its INDEX accesses",
    17: "no UPCAST, UNROLL or VECTOR range is left, and no REDUCE",
    18: "a slot is one BUFFER's dtype, or one ALLOC",
    19: "in a LINEAR list a node stands behind its sources, inside exactly the loops that it depends on, and each loop "
    "is closed once, innermost first",
    20: "a STORE past the caches and a LOAD that fetches ahead are of consecutive elements of a BUFFER, without a gate",
    21: "a LOOKUP has 16 numbers, an int32 for an index and gives float32; LDEXP is of float32",
    22: "a SHUFFLE names a lane of its two sources for each of its own",
    23: "in a LINEAR list, what is accessed of an ALLOC lies inside it",
    24: "a STAGE names a level in a TENSOR graph, and is a tile in a TILED one; no cascade of a TENSOR graph has tiles",
    25: "a tile has one extent for each axis of its value, and its layout names each axis once",
    26: "an extent of a tile is positive; or, in the body of a cascade, once and -n: a block's elements of which one "
    "takes n steps",
    27: "a tile that accumulates is of a REDUCE, and adds up nothing else",
    28: "a CASCADE has for each component a body along its axis, a correction where the component says so, and a test "
    "if it has tests, each of the component's shape and dtype; all bodies take as many steps; no two CASCADEs have one "
    "id",
    29: "a COMPONENT is one of its CASCADE's, and a STATE one of the CASCADE that it stands under and names; each has "
    "the shape and dtype of that component's values, and a component uses none behind it",
    30: "a TILED graph is a kernel: a SINK, which has its name, of STOREs of values to a BUFFER or a part of one",
    31: "a tile covers what its users read of it in one block",
    32: "the tiles of a kernel fit the stack that they may take",
    33: "a kernel computes no half that is not rounded: it is a CAST of float32, wherever it is used",
}

_CHECKS: dict[Stage, dict[Ops, Check]] = {
    Stage.TENSOR: {**TENSOR_CHECKS, Ops.CASCADE: plain_cascade, Ops.STAGE: levelled},
    Stage.TILED: {**TENSOR_CHECKS, **ROUNDING_CHECKS, Ops.CASCADE: tiled_cascade, Ops.STAGE: tiled},
    Stage.LOOP: LOOP_CHECKS,
    Stage.REGISTER: LOOP_CHECKS,
    Stage.LINEAR: LOOP_CHECKS,
}
# For each stage, by the number of the op: fewest and most sources, types of argument (none: not legal), a check.
_ROWS = {
    stage: [
        (
            TABLE[op].arity[0],
            most if (most := TABLE[op].arity[1]) is not None else 1 << 62,
            frozenset(accepted(op)) if TABLE[op].stages & stage else frozenset(),
            checks.get(op),
        )
        for op in Ops
    ]
    for stage, checks in _CHECKS.items()
}

SHOWN = 14  # lines of the graph below a faulty node that a message prints,
WIDTH = 160  # and characters of each


class SpecError(Exception):
    """A graph breaks an invariant of its stage.  ``number`` is that of the invariant, ``node`` the node."""

    def __init__(self, stage: Stage, number: int, node: UOp, what: str) -> None:
        self.stage, self.number, self.node = stage, number, node
        below = [line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in format_graph(node).splitlines()]
        cut = [f"  ... {len(below) - SHOWN} lines"] if len(below) > SHOWN else []
        super().__init__(
            f"not a legal {stage.name} graph: {what}\n"
            f"invariant {number}: {INVARIANTS[number]}\nat {node!r}\n" + "\n".join(cut + below[-SHOWN:])
        )


def _faults(graph: UOp, order: list[UOp], stage: Stage, stack: int | None) -> Iterator[Fault]:
    rows = _ROWS[stage]
    for u in order:
        least, most, accepted, check = rows[u.code]
        if not least <= len(u.src) <= most or type(u.arg) not in accepted:
            fault = by_table(u, stage)
        elif check is not None:
            fault = check(u)
        else:
            continue
        if fault is not None:
            yield fault
    if stage & LOOPS:
        yield from loop_faults(graph, order, stage)
    else:
        yield from cascade_faults(order, (graph,))
    if stage is Stage.TILED:
        yield from tile_faults(graph, stack)


def verify(graph: UOp | Sequence[UOp], stage: Stage, stack: int | None = None) -> None:
    """Check that ``graph`` (a root, or several) is a legal graph of ``stage``, one of the members of ``Stage``.

    stack: how many bytes the tiles of a kernel may take (None: that is not checked).
    Raises SpecError for the first invariant that does not hold.  Time is linear in the graph.
    """
    for root in (graph,) if isinstance(graph, UOp) else graph:
        for number, node, what in _faults(root, toposort(root), stage, stack):
            raise SpecError(stage, number, node, what)
