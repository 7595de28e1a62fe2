"""The body of a reduction as a tree of elementwise operations of one shape, and cutting parts out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from uopc._hot.graph import cone, of_ops
from uopc.ops import ALU, PLAIN, Ops
from uopc.uop import UOp

# What a body is read down to: values that other loops compute, and memory.
LEAVES = frozenset({Ops.REDUCE, Ops.STAGE, Ops.BUFFER, Ops.COMPONENT})
ENDS = bytes(op in LEAVES for op in Ops)
Moves = tuple[UOp, ...]


class Lifted(NamedTuple):
    """A value as operations of one shape.

    tree: what it is made of.  origin: for each node of it the nodes that it comes from.  order: its nodes, sources
    before users, down to those that are no operation on elements, or where ``lifted`` was told to end.  ends: what was
    said of the latter.
    """

    tree: UOp
    origin: dict[UOp, list[UOp]]
    order: list[UOp]
    ends: dict[UOp, bool]


def lifted(x: UOp, end: Callable[[UOp, Moves], bool | None] = lambda u, moves: None) -> Lifted:
    """``x`` with its movement ops pushed below the elementwise ones, so that all of those have the shape of ``x``.

    ``end(u, moves)`` says where not to go on: of a node and the movement ops above it, innermost first, something to be
    kept, or None.
    """
    memo: dict[tuple[UOp, Moves], UOp] = {}
    below: dict[tuple[UOp, Moves], list[tuple[UOp, Moves]]] = {}  # of those under way
    ends: dict[UOp, bool] = {}
    stack: list[tuple[UOp, Moves]] = [(x, ())]
    while stack:
        key = u, moves = stack[-1]
        if key in memo:
            stack.pop()
        elif key in below:
            # what a movement op moves has taken over the movement
            sources = [memo[b] for b in below[key]]
            memo[key] = sources[0] if u.op in PLAIN else u.replace(src=sources)
        elif (said := end(u, moves)) is None and (u.op in PLAIN or (u.op in ALU and u.shape)):
            down = (u, *moves) if u.op in PLAIN else moves
            below[key] = [(s, down if s.shape or u.op in PLAIN else ()) for s in u.src]
            stack += reversed(below[key])
        else:
            memo[key] = _moved(u, moves)
            if said is not None:
                ends[memo[key]] = said
    origin: dict[UOp, list[UOp]] = {}
    for (u, _), made in memo.items():
        if u.op not in PLAIN and u not in origin.setdefault(made, []):
            origin[made].append(u)
    return Lifted(memo[x, ()], origin, list(dict.fromkeys(memo.values())), ends)


def _moved(u: UOp, moves: Moves) -> UOp:
    for m in moves:
        u = m.replace(src=(u,))
    return u


def ordered(x: UOp, inside: Callable[[UOp], bool]) -> list[UOp]:
    """The nodes of ``x``, each once, sources before users, none below one that is not ``inside``."""
    done: dict[UOp, None] = {}
    stack = [x]
    while stack:
        u = stack[-1]
        missing = [s for s in u.src if s not in done] if u not in done and inside(u) else []
        if missing:
            stack += missing
            continue
        done[stack.pop()] = None
    return list(done)


def operations(x: UOp) -> list[UOp]:
    """The elementwise operations of ``x`` and what they are applied to, each once, sources before users."""
    return ordered(x, lambda u: u.op in ALU)


def reductions(x: UOp) -> list[UOp]:
    """The reductions that ``x`` is made of: the first on each path."""
    return of_ops(cone(x, ENDS), Ops.REDUCE)


def spread(u: UOp, shape: tuple[int, ...]) -> UOp:
    """A scalar repeated to a shape; other values as they are."""
    if u.shape or not shape:
        return u
    return UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (u,), (1,) * len(shape)),), shape)


def at_output(u: UOp, axis: int, shape: tuple[int, ...]) -> UOp:
    """A lifted part that does not vary along the reduced axis, at the ``shape`` of the reduction's result."""
    if not u.shape:
        return u
    first = tuple((0, 1) if a == axis else (0, n) for a, n in enumerate(u.shape))
    return UOp(Ops.RESHAPE, (UOp(Ops.SHRINK, (u,), first),), shape)


def without_factors(x: UOp, factors: Iterable[UOp]) -> UOp:
    """``x`` with some factors of its products left out; what is nowhere a factor stays."""
    return _stripped(x, set(factors), PLAIN | {Ops.MUL, Ops.DIV, Ops.RECIP, Ops.CAST}, 1)


def without_addends(x: UOp, addends: Iterable[UOp]) -> UOp:
    """``x`` with some terms of its sum left out."""
    return _stripped(x, set(addends), PLAIN | {Ops.ADD, Ops.CAST}, 0)


def _stripped(x: UOp, parts: set[UOp], through: frozenset[Ops], nothing: int) -> UOp:
    """``x`` with ``parts`` left out wherever a path of ``through`` leads to them; ``nothing`` where all of it goes."""
    if not parts:
        return x
    memo: dict[UOp, UOp | None] = {}
    for u in ordered(x, lambda u: u.op in through and u not in parts):
        src = [memo[s] for s in u.src] if u.op in through and u not in parts else list(u.src)
        if u in parts:
            memo[u] = None
        elif None not in src:
            memo[u] = u if src == list(u.src) else u.replace(src=src)  # type: ignore[arg-type]
        elif u.op is Ops.DIV and src[1] is not None:
            memo[u] = UOp(Ops.RECIP, (src[1],))
        elif len(u.src) == 2:
            memo[u] = src[0] if src[1] is None else src[1]
        else:
            memo[u] = None
    out = memo[x]
    return spread(UOp.const(nothing, x.dtype) if out is None else out, x.shape)


def without_terms(x: UOp, terms: Iterable[UOp]) -> UOp:
    """``x`` with ``terms`` left out of the sums, scaled or not, that they are part of."""
    parts = set(terms)
    if not parts:
        return x
    memo: dict[UOp, UOp | None] = dict.fromkeys(parts)
    for u in ordered(x, lambda u: u.op not in LEAVES and u not in parts):
        if u in parts:
            continue
        src = [memo[s] for s in u.src] if u.op not in LEAVES else list(u.src)
        if None not in src:
            memo[u] = u if tuple(src) == u.src else u.replace(src=src)  # type: ignore[arg-type]
        elif u.op is Ops.ADD:
            memo[u] = src[1] if src[0] is None else src[0]
        elif u.op in (Ops.EXP, Ops.EXP2):
            memo[u] = spread(UOp.const(1, u.dtype), u.shape)
        else:
            memo[u] = None
    out = memo[x]
    assert out is not None, "a sum of nothing"
    return out
