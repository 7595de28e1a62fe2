"""The body of a reduction as a tree of elementwise operations of one shape, and cutting parts out of it."""

from __future__ import annotations

from collections.abc import Iterable

from uopc.ops import ALU, MOVEMENT, PLAIN, Ops
from uopc.uop import UOp, toposort

# What a body is read down to: values that other loops compute, and memory.
LEAVES = frozenset({Ops.REDUCE, Ops.STAGE, Ops.BUFFER, Ops.COMPONENT})
Moves = tuple[UOp, ...]


def lifted(x: UOp) -> tuple[UOp, dict[UOp, list[UOp]]]:
    """``x`` with its movement ops pushed below the elementwise ones, so that all of those have the shape of ``x``; and
    for each node of the result the nodes of ``x`` that it comes from."""
    memo: dict[tuple[UOp, Moves], UOp] = {}
    stack: list[tuple[UOp, Moves]] = [(x, ())]
    while stack:
        key = u, moves = stack[-1]
        below: list[tuple[UOp, Moves]] = []
        if u.op in PLAIN:
            below = [(u.src[0], (u, *moves))]
        elif u.op in ALU and u.shape:
            below = [(s, moves) for s in u.src if s.shape]
        missing = [b for b in below if b not in memo]
        if missing and key not in memo:
            stack += missing
            continue
        stack.pop()
        if key in memo:
            continue
        if u.op in PLAIN:
            memo[key] = memo[below[0]]
        elif u.op in ALU and u.shape:
            memo[key] = u.replace(src=tuple(memo[s, moves] if s.shape else s for s in u.src))
        else:
            memo[key] = _moved(u, moves)
    origin: dict[UOp, list[UOp]] = {}
    for (u, _), made in memo.items():
        if u.op not in PLAIN and u not in origin.setdefault(made, []):
            origin[made].append(u)
    return memo[x, ()], origin


def _moved(u: UOp, moves: Moves) -> UOp:
    for m in moves:
        u = m.replace(src=(u,))
    return u


def operations(x: UOp) -> list[UOp]:
    """The elementwise operations of ``x`` and what they are applied to, each once, sources before users."""
    done: dict[UOp, None] = {}
    stack = [x]
    while stack:
        u = stack[-1]
        missing = [s for s in u.src if s not in done] if u.op in ALU and u not in done else []
        if missing:
            stack += missing
            continue
        done[stack.pop()] = None
    return list(done)


def cone(x: UOp) -> list[UOp]:
    """The nodes of ``x`` down to the first reduction or memory on each path."""
    seen: dict[UOp, None] = {}
    stack = [x]
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        seen[u] = None
        if u.op not in LEAVES:
            stack += u.src
    return list(seen)


def base(u: UOp) -> UOp:
    """What a chain of movement ops moves."""
    while u.op in MOVEMENT:
        u = u.src[0]
    return u


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
    path, stack = {x}, [x]
    while stack:
        u = stack.pop()
        if u.op in through and u not in parts:
            new = [s for s in u.src if s not in path]
            path.update(new)
            stack += new
    memo: dict[UOp, UOp | None] = {}
    for u in toposort(x):
        if u not in path:
            continue
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
    memo: dict[UOp, UOp | None] = dict.fromkeys(terms)
    if not memo:
        return x
    for u in toposort(x):
        if u in memo:
            continue
        src = [memo[s] for s in u.src]
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
