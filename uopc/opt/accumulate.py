"""accumulate: a REDUCE becomes an accumulator, its initialisation, a loop and a result.

In: a loop program whose REDUCEs name their RANGEs (after ``expand``).
Out: the same program without REDUCE: an ALLOC set to the op's identity inside exactly the loops that the result
depends on, updated in the loop over the REDUCE's RANGEs, and read after that loop's END.

Guarantees: REDUCEs over the same RANGEs (the copies that ``expand`` made) share one loop.
"""

from __future__ import annotations

from uopc._hot.graph import of_ops, replace_groups
from uopc.ops import Ops, Order, ParamArg, identity
from uopc.uop import UOp, sink, toposort


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
        updates.append(place.store(_combined(u, place.load())))
        cells.append(cell)
    done = (updates[0] if len(updates) == 1 else sink(*updates)).end(*loops)
    return [cell.after(done).index(0).load() for cell in cells]


def _combined(u: UOp, total: UOp) -> UOp:
    """``total`` and a further term of a REDUCE.

    A dot product that begins at 0 begins at the total instead, which is one addition less.  A sum whose order is fixed
    says where its products are not rounded; of others, the C compiler decides it.
    """
    op, value = u.arg.op, u.src[0]
    if u.arg.order is not Order.ANY and op is Ops.ADD and value.op is Ops.MUL and value.dtype.is_float:
        return UOp(Ops.FMA, (*value.src, total))
    if op is Ops.ADD and value.op is Ops.DOT2 and value.src[2].op is Ops.CONST and value.src[2].arg == 0:
        return value.replace(src=(*value.src[:2], total))
    return total.alu(op, value)


def _refuse(first: UOp, second: UOp) -> None:
    raise ValueError(
        f"{first!r} uses {second!r}, which runs over the same RANGEs {second.src[1:]!r}: a loop that needs the result "
        "of another comes after it, and has RANGEs of its own"
    )


def accumulate(root: UOp) -> UOp:
    """The program of ``root`` (a SINK) with accumulators in place of REDUCEs."""
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
