"""accumulate: a REDUCE becomes an accumulator, its initialisation, a loop and a result.

In: a loop program whose REDUCEs name their RANGEs (after ``expand``).
Out: the same program without REDUCE: an ALLOC set to the op's identity inside exactly the loops that the result
depends on, updated in the loop over the REDUCE's RANGEs, and read after that loop's END.

Guarantees: REDUCEs over the same RANGEs (the copies that ``expand`` made) share one loop.  What a program adds to an
accumulator of its own (one written by hand, the running value of a cascade) is added as a REDUCE adds its terms: a
product is not rounded first.
"""

from __future__ import annotations

from uopc._hot.graph import of_ops, replace_groups
from uopc.ops import Ops, ParamArg, identity
from uopc.terms import combined, contracted
from uopc.uop import UOp, memory_of, sink, toposort


def _alloc_slots(order: list[UOp]) -> int:
    return 1 + max((u.arg.slot for u in of_ops(order, Ops.ALLOC)), default=-1)


def _one_loop(group: list[UOp], slot: int) -> list[UOp]:
    """The results of REDUCEs that share their RANGEs, in whose values no REDUCE is left."""
    loops = group[0].src[1:]
    outside = tuple(dict.fromkeys(r for u in group for r in u.ranges))
    cells, updates = [], []
    for k, u in enumerate(group):
        cell = UOp(Ops.ALLOC, (), ParamArg(slot + k, u.dtype, ()))
        first = cell.after(*outside) if outside else cell
        start = first.index(0).store(UOp.const(identity(u.arg.op, u.dtype), u.dtype.scalar()))
        place = cell.after(start, *loops).index(0)
        updates.append(place.store(combined(u.arg.op, place.load(), u.src[0])))
        cells.append(cell)
    done = (updates[0] if len(updates) == 1 else sink(*updates)).end(*loops)
    return [cell.after(done).index(0).load() for cell in cells]


def _contract_accumulators(root: UOp) -> UOp:
    """The program in which what is added to a thread's own memory takes products unrounded."""
    sums = [u for u in of_ops(toposort(root), Ops.STORE) if u.src[1].op is Ops.ADD and u.src[1].dtype.is_float]
    targets = [u for u in sums if memory_of(u.src[0]).op is Ops.ALLOC]
    return UOp.wrap([root], targets, _contracted_store)[0] if targets else root


def _contracted_store(store: UOp) -> UOp:
    """A STORE that adds to what stands at its place, with the products that it adds."""
    return store.replace(src=(store.src[0], _added(store.src[1], memory_of(store.src[0])), *store.src[2:]))


def _added(value: UOp, memory: UOp) -> UOp:
    """``value``, a sum with the old value of ``memory`` somewhere on its left or right."""
    if value.op is not Ops.ADD or not value.dtype.is_float:
        return value
    for old, term in (value.src, value.src[::-1]):
        if _is_old(old, memory) or (old.op is Ops.MUL and any(_is_old(s, memory) for s in old.src)):
            # the correction of a running value waits for it, and a product that is added does not
            return contracted(old, term) if old.op is Ops.MUL else combined(Ops.ADD, old, term)
        if old.op is Ops.ADD and (inner := _added(old, memory)) is not old:
            return combined(Ops.ADD, inner, term)
    return value


def _is_old(u: UOp, memory: UOp) -> bool:
    return u.op is Ops.LOAD and memory_of(u.src[0]) is memory


def _refuse(first: UOp, second: UOp) -> None:
    raise ValueError(
        f"{first!r} uses {second!r}, which runs over the same RANGEs {second.src[1:]!r}: a loop that needs the result "
        "of another comes after it, and has RANGEs of its own"
    )


def accumulate(root: UOp) -> UOp:
    """The program of ``root`` (a SINK) with accumulators in place of REDUCEs."""
    root = _contract_accumulators(root)
    order = toposort(root)
    groups: dict[tuple[UOp, ...], list[UOp]] = {}
    for u in of_ops(order, Ops.REDUCE):
        groups.setdefault(u.src[1:], []).append(u)
    if not groups:
        return root
    slot = _alloc_slots(order)

    def finish(group: tuple[UOp, ...], rebuilt: list[UOp]) -> list[UOp]:
        nonlocal slot
        slot += len(group)
        return _one_loop(rebuilt, slot - len(group))

    return replace_groups(root, list(groups.values()), finish, _refuse)
