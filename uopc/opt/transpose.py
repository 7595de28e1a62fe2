"""transpose: scattered accesses become consecutive ones and shuffles.

In and out: a program after ``expand``.  Where as many vectors as a vector has lanes are read in equal steps from
neighbouring addresses, their rows are read whole and transposed in registers, and likewise for what is written: 16 x 16
elements take 16 accesses and 64 shuffles where they took 256 accesses.  A vector of every other element is picked from
the two that it lies in, and one that runs backwards, read or written, is turned.

Reads no address outside those that were read, and writes none that was not written.
"""

from __future__ import annotations

from typing import NamedTuple

from uopc._hot.graph import of_ops, replace_groups
from uopc._hot.simplify import Simplifier
from uopc.ops import Ops
from uopc.uop import UOp, dtypes, toposort

# Fewer lanes than this are not worth it.
LEAST_LANES = 4


class Place(NamedTuple):
    """An access by what its neighbours share with it: the memory, the address without its constant, the step, the
    lanes, and how many elements of the memory one lane is."""

    memory: UOp
    base: UOp
    step: int
    lanes: int
    unit: int


def _scattered(order: list[UOp], op: Ops) -> list[UOp]:
    """The LOADs or STOREs at vectors of addresses."""
    return [u for u in of_ops(order, op) if u.src[0].src[1].dtype is not dtypes.index]


def _place(access: UOp, simplifier: Simplifier) -> tuple[Place, int] | None:
    """Where a scattered access of a vector goes, and the constant of its first address."""
    index, gates = access.src[0], access.src[1 if access.op is Ops.LOAD else 2 :]
    lanes = index.src[1].dtype.count
    if gates or lanes < LEAST_LANES or lanes & (lanes - 1) or index.dtype.count > 1:
        return None
    address = simplifier.simplify(index.src[1])
    base, steps = (address.src[0], address.src[1]) if address.op is Ops.ADD else (UOp.const(0), address)
    ahead = 0  # a constant beside those of the lanes
    if base.op is Ops.ADD and base.src[1].op is Ops.CONST:
        base, ahead = base.src[0], base.src[1].arg
    elif base.op is Ops.CONST:
        base, ahead = UOp.const(0), base.arg
    if steps.op is not Ops.CONST or not isinstance(steps.arg, tuple) or base.dtype.count > 1:
        return None
    first, step = steps.arg[0], steps.arg[1] - steps.arg[0]
    unit = index.dtype.itemsize // index.src[0].dtype.scalar().itemsize
    if steps.arg != tuple(first + step * i for i in range(lanes)):
        return None
    return Place(index.src[0], base, step, lanes, unit), ahead + first


def _squares(accesses: list[UOp], simplifier: Simplifier) -> list[tuple[Place, int, list[UOp]]]:
    """Accesses at neighbouring addresses, as many as they have lanes: the place, the first address, and the
    accesses."""
    rows: dict[Place, dict[int, UOp]] = {}
    for u in accesses:
        found = _place(u, simplifier)
        if found is not None and found[0].step >= found[0].lanes * found[0].unit:
            rows.setdefault(found[0], {})[found[1]] = u
    out = []
    for place, at in rows.items():
        todo = sorted(at)
        while todo:
            first = todo[0]
            square = range(first, first + place.lanes * place.unit, place.unit)
            if all(k in at for k in square) and set(square) <= set(todo):
                out.append((place, first, [at[k] for k in square]))
                todo = [k for k in todo if k not in square]
            else:
                todo = todo[1:]
    return out


def _row(place: Place, first: int, k: int, element: UOp) -> UOp:
    """The INDEX of row ``k`` of a square: consecutive elements."""
    return UOp(Ops.INDEX, (place.memory, place.base + (first + k * place.step)), None, element.dtype.vec(place.lanes))


def _transposed(rows: list[UOp]) -> list[UOp]:
    """The columns of a square of vectors: each of log2(lanes) rounds interleaves the first half with the second."""
    half = len(rows) // 2
    low = tuple(lane + side for lane in range(half) for side in (0, len(rows)))
    high = tuple(lane + half for lane in low)
    for _ in range(len(rows).bit_length() - 1):
        pairs = list(zip(rows[:half], rows[half:]))
        rows = [UOp(Ops.SHUFFLE, pair, order) for pair in pairs for order in (low, high)]
    return rows


def _picked(load: UOp, simplifier: Simplifier) -> UOp | None:
    """A vector of every other element, or of elements backwards, from those that are read whole; None for others."""
    found = _place(load, simplifier)
    if found is None or found[0].unit != 1 or found[0].step not in (2, -1):
        return None
    place, first = found
    last = place.lanes - 1
    # the second ends where the last element is: what lies behind it may not exist
    starts, order = (first - last, first - last), tuple(range(last, -1, -1))
    if place.step == 2:
        starts = (first, first + last)
        order = tuple(2 * i if 2 * i <= last else place.lanes + 2 * i - last for i in range(place.lanes))
    sources = tuple(_row(place, start, 0, load.src[0]).load() for start in starts)
    return UOp(Ops.SHUFFLE, sources, order)


def _turned(store: UOp, simplifier: Simplifier) -> UOp | None:
    """The STORE of a vector that runs backwards, whole and turned; None for others."""
    found = _place(store, simplifier)
    if found is None or found[0].unit != 1 or found[0].step != -1 or store.src[1].dtype.count != found[0].lanes:
        return None
    place, first = found
    last, value = place.lanes - 1, store.src[1]
    turned = UOp(Ops.SHUFFLE, (value, value), tuple(range(last, -1, -1)))
    return _row(place, first - last, 0, store.src[0]).store(turned)


def _whole(group: list[UOp], simplifier: Simplifier) -> list[UOp]:
    """What becomes of the accesses of a square, or of the one that is picked or turned."""
    if len(group) == 1:
        alone = (_turned if group[0].op is Ops.STORE else _picked)(group[0], simplifier)
        assert alone is not None, "an access that was scattered is not"
        return [alone]
    if group[0].op is Ops.STORE:
        return _written(group, simplifier)
    place, first, element = _corner(group, simplifier)
    return _transposed([_row(place, first, k, element).load() for k in range(len(group))])


def _written(group: list[UOp], simplifier: Simplifier) -> list[UOp]:
    """The STOREs of a square, row by row."""
    place, first, element = _corner(group, simplifier)
    columns = _transposed([s.src[1] for s in group])
    return [_row(place, first, k, element).store(column) for k, column in enumerate(columns)]


def _corner(group: list[UOp], simplifier: Simplifier) -> tuple[Place, int, UOp]:
    """Where a square lies, its first address, and the INDEX of its first access."""
    found = _place(group[0], simplifier)
    assert found is not None, "an access that was scattered is not"
    return *found, group[0].src[0]


def _refuse(first: UOp, second: UOp) -> None:
    raise ValueError(f"{first!r} and {second!r} are accesses of one square, and one needs the other")


def transpose(root: UOp) -> UOp:
    """The program of ``root`` (a SINK) with its squares transposed in registers, and small steps taken there."""
    order, simplifier = toposort(root), Simplifier()
    loads, stores = _scattered(order, Ops.LOAD), _scattered(order, Ops.STORE)
    groups = [square for _, _, square in _squares(loads, simplifier)]
    squared = {u for square in groups for u in square}
    groups += [[u] for u in loads if u not in squared and _picked(u, simplifier) is not None]
    for place, _, square in _squares(stores, simplifier):
        if all(s.src[1].dtype.count == place.lanes for s in square):
            groups.append(square)
            squared.update(square)
    groups += [[u] for u in stores if u not in squared and _turned(u, simplifier) is not None]
    # what an access comes after may have other such accesses in it: each is made over what becomes of those
    return replace_groups(root, groups, lambda _, group: _whole(group, simplifier), _refuse) if groups else root
