"""Rows: what a row's reductions and its results both compute is computed once, and kept in a tile as long as the row.

A softmax takes the exponential of each element for the row's sum and again for the result; with the row in a tile it
reads its memory and computes its exponentials once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from uopc.cost import WEIGHTS, Candidate
from uopc.ops import ALU, ELEMENTARY, KernelInfo, Ops, Tile
from uopc.rangeify import Opts
from uopc.runtime.device import Device
from uopc.uop import UOp, toposort

# The tiles' share of the second-level cache.
TILE_SHARE = 0.5


def _kept(body: UOp) -> list[UOp]:
    """Values of a whole row that are used more than once, none inside another, and dear: that take longer than a store
    to the first- or second-level cache and a load from there, as elementary functions do."""
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
    dear: set[UOp] = set()
    out: list[UOp] = []
    for u in order:
        if u.op not in ALU or u.shape != body.shape or u in moved:
            continue
        if u.op in ELEMENTARY or any(s in dear for s in u.src):
            dear.add(u)
        if u in dear and users.get(u, 0) > 1:
            out.append(u)
            dear.discard(u)  # what is computed from a tile is not dear for that
    return out


def rows(root: UOp, machine: Device) -> UOp | None:
    """The kernel ``root`` (a SINK) with dear values of a row in tiles; None where it has none."""
    opts = root.arg.opts
    if len(root.src) != 1 or opts is None:
        return None
    target, body = root.src[0].src
    last = len(body.shape) - 1
    reduces = [u for u in toposort(body) if u.op is Ops.REDUCE]
    if (
        not reduces
        or opts.vector != last
        or any(u.src[0].shape != body.shape or u.arg.axes != (last,) for u in reduces)
    ):
        return None
    kept = _kept(body)
    size = sum(u.dtype.itemsize for u in kept) * body.shape[last]
    if not kept or size > machine.l2 * TILE_SHARE:
        return None
    extents = (*(1 for _ in body.shape[:-1]), body.shape[last])
    fill = Opts({last: opts.upcast_of(last)}, vector=last, lanes=opts.lanes)
    made = UOp.wrap([body], kept, lambda u: UOp(Ops.STAGE, (u,), Tile(extents, fill)))[0]
    threads = tuple(a for a in range(last) if body.shape[a] > 1)
    blocked = replace(opts, block=dict(enumerate(extents)), thread=threads or None)
    store = root.src[0].replace(src=(target, made))
    return root.replace(src=(store,), arg=KernelInfo(root.arg.name, blocked))


def row_candidates(plain: Candidate, machine: Device) -> list[Candidate]:
    """The scheduled kernel with its rows in tiles, if it has such."""
    root = rows(plain.root, machine)
    if root is None:
        return []
    assert plain.cost is not None
    body, lanes = plain.root.src[0].src[1], plain.root.arg.opts.lanes
    kept = _kept(body)
    dear = sum(WEIGHTS.get(v.op, 1.0) for u in kept for v in toposort(u) if v.op in ALU and v.shape == body.shape)
    vectors = math.prod(body.shape) / lanes
    # a store and two loads in place of a second computation and its load
    cost = replace(
        plain.cost,
        operations=max(plain.cost.operations - dear * vectors, 0.0),
        accesses=plain.cost.accesses + 2 * len(kept) * vectors,
    )
    return [Candidate(root, cost)]
