"""accumulate: a REDUCE becomes an accumulator, its initialisation, a loop and a result.

In: a loop program whose REDUCEs name their RANGEs (after ``expand``).
Out: the same program without REDUCE: an ALLOC set to the op's identity inside exactly the loops that the result
depends on, updated in the loop over the REDUCE's RANGEs, and read after that loop's END.

Guarantees: REDUCEs over the same RANGEs (the copies that ``expand`` made) share one loop.
"""

from __future__ import annotations

from uopc.ops import Ops, ParamArg, identity
from uopc.uop import UOp, sink, toposort


def _alloc_slots(order: list[UOp]) -> int:
    return 1 + max((u.arg.slot for u in order if u.op is Ops.ALLOC), default=-1)


def _one_loop(group: list[UOp], values: list[UOp], slot: int) -> list[UOp]:
    """The results of REDUCEs that share their RANGEs, over ``values`` in which no REDUCE is left."""
    loops = group[0].src[1:]
    outside = tuple(dict.fromkeys(r for u in group for r in u.ranges))
    cells, updates = [], []
    for k, (u, value) in enumerate(zip(group, values)):
        cell = UOp(Ops.ALLOC, (), ParamArg(slot + k, u.dtype, ()))
        first = cell.after(*outside) if outside else cell
        start = first.index(0).store(UOp.const(identity(u.arg.op, u.dtype), u.dtype.scalar()))
        place = cell.after(start, *loops).index(0)
        updates.append(place.store(place.load().alu(u.arg.op, value)))
        cells.append(cell)
    done = (updates[0] if len(updates) == 1 else sink(*updates)).end(*loops)
    return [cell.after(done).index(0).load() for cell in cells]


def accumulate(root: UOp) -> UOp:
    """The program of ``root`` (a SINK) with accumulators in place of REDUCEs."""
    order = toposort(root)
    groups: dict[tuple[UOp, ...], list[UOp]] = {}
    for u in order:
        if u.op is Ops.REDUCE:
            groups.setdefault(u.src[1:], []).append(u)
    slot = _alloc_slots(order)
    memo: dict[UOp, UOp] = {}
    started: dict[tuple[UOp, ...], UOp] = {}  # the REDUCE of each group that asked for the others

    def rebuilt(u: UOp) -> UOp:
        """``u`` without REDUCE; iterative, sources first."""
        stack = [u]
        while stack:
            top = stack[-1]
            if top in memo:
                stack.pop()
                continue
            group = groups[top.src[1:]] if top.op is Ops.REDUCE else None
            if group and started.setdefault(top.src[1:], top) is not top:
                raise ValueError(
                    f"{started[top.src[1:]]!r} uses {top!r}, which runs over the same RANGEs {top.src[1:]!r}: a loop "
                    "that needs the result of another comes after it, and has RANGEs of its own"
                )
            needs = [r.src[0] for r in group] + list(top.src[1:]) if group else top.src
            missing = [s for s in needs if s not in memo]
            if missing:
                stack += missing
                continue
            if group:
                nonlocal slot
                closed = [r.replace(src=tuple(memo[s] for s in r.src)) for r in group]
                memo.update(zip(group, _one_loop(closed, [c.src[0] for c in closed], slot)))
                slot += len(group)
            else:
                src = tuple(memo[s] for s in top.src)
                memo[top] = top if src == top.src else top.replace(src=src)
        return memo[u]

    return rebuilt(root) if groups else root
