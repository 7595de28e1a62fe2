"""Rows: what a row's reductions and its results both compute is computed once, and kept in a tile as long as the row.

A softmax takes the exponential of each element for the row's sum and again for the result; with the row in a tile it
reads its memory and computes its exponentials once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from uopc.cost import Candidate, expensive, slots_of
from uopc.ops import ALU, KernelInfo, Ops, Tile
from uopc.rangeify import Opts
from uopc.target import Target
from uopc.uop import UOp, toposort

# The tiles' share of the second-level cache.
TILE_SHARE = 0.5


def _kept(body: UOp, target: Target) -> list[UOp]:
    """Values of a whole row that are used more than once, none inside another, and expensive: that take longer than a
    store to the first- or second-level cache and a load from there, as elementary functions do."""
    order = toposort(body)
    users: dict[UOp, int] = {}
    moved: set[UOp] = set()
    for u in order:
        for s in dict.fromkeys(u.src):
            users[s] = users.get(s, 0) + 1
            if u.op not in ALU and u.op is not Ops.REDUCE:
                moved.add(s)  # asked for at another index than that of the row
    for u in reversed(order):
        if u in moved and u.op in ALU:
            moved.update(u.src)
    long: set[UOp] = set()
    out: list[UOp] = []
    for u in order:
        if u.op not in ALU or u.shape != body.shape or u in moved:
            continue
        if expensive(u, target) or any(s in long for s in u.src):
            long.add(u)
        if u in long and users.get(u, 0) > 1:
            out.append(u)
            long.discard(u)  # what is computed from a tile is not expensive for that
    return out


def rows(root: UOp, target: Target) -> UOp | None:
    """The kernel ``root`` (a SINK) with expensive values of a row in tiles; None where it has none."""
    opts = root.arg.opts
    if len(root.src) != 1 or opts is None:
        return None
    out, body = root.src[0].src
    last = len(body.shape) - 1
    reduces = [u for u in toposort(body) if u.op is Ops.REDUCE]
    if (
        not reduces
        or opts.vector != last
        or any(u.src[0].shape != body.shape or u.arg.axes != (last,) for u in reduces)
    ):
        return None
    kept = _kept(body, target)
    size = sum(u.dtype.itemsize for u in kept) * body.shape[last]
    if not kept or size > target.l2.size * TILE_SHARE:
        return None
    extents = (*(1 for _ in body.shape[:-1]), body.shape[last])
    fill = Opts({last: opts.upcast_of(last)}, vector=last, lanes=opts.lanes)
    made = UOp.wrap([body], kept, lambda u: UOp(Ops.STAGE, (u,), Tile(extents, fill)))[0]
    threads = tuple(a for a in range(last) if body.shape[a] > 1)
    blocked = replace(opts, block=dict(enumerate(extents)), thread=threads or None)
    store = root.src[0].replace(src=(out, made))
    return root.replace(src=(store,), arg=KernelInfo(root.arg.name, blocked))


def row_candidates(plain: Candidate, target: Target) -> list[Candidate]:
    """The scheduled kernel with its rows in tiles, if it has such."""
    root = rows(plain.root, target)
    if root is None:
        return []
    assert plain.cost is not None
    body, lanes = plain.root.src[0].src[1], plain.root.arg.opts.lanes
    kept = _kept(body, target)
    again = sum(slots_of(v, target) for u in kept for v in toposort(u) if v.op in ALU and v.shape == body.shape)
    vectors = math.prod(body.shape) / lanes
    # a store and two loads in place of a second computation and its load
    cost = replace(
        plain.cost,
        operations=max(plain.cost.operations - again * vectors, 0.0),
        accesses=plain.cost.accesses + 2 * len(kept) * vectors,
    )
    return [Candidate(root, cost)]
