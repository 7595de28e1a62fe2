"""The operands of a block: which parts of a value vary along which axes, and how such a part gets a tile."""

from __future__ import annotations

from collections.abc import Callable, Collection

from uopc._hot.graph import of_ops
from uopc.blockize.sizes import Sizes
from uopc.ops import ALU, AxisType, Ops, Tile
from uopc.rangeify import Ctx, Opts, rangeify
from uopc.simplify import linear_in
from uopc.uop import UOp, toposort


class View:
    """Which axes of a tensor node its value depends on: the node ranged with one plain loop an axis."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.ctx = Ctx()
        self.idx = tuple(self.ctx.range(n, AxisType.LOOP) for n in shape)

    def axes(self, u: UOp) -> set[int]:
        """The axes that the value of ``u`` varies along."""
        ranges = rangeify(u, self.idx, self.ctx).ranges
        return {a for a, r in enumerate(self.idx) if r in ranges}

    def step(self, u: UOp, axis: int) -> int:
        """The longest step, in bytes, of an address in ``u`` along ``axis``."""
        out = 0
        for load in of_ops(toposort(rangeify(u, self.idx, self.ctx)), Ops.LOAD):
            far = self._step_of(load.src[0].src[1], axis)
            out = max(out, abs(far) * load.dtype.itemsize)
        return out

    def _step_of(self, at: UOp, axis: int) -> int:
        """How far an address moves from the first element to the next; 0 where that is no number."""
        found = linear_in(at, self.idx[axis])
        if found is not None:
            return found[1]
        zero = {r: UOp.const(0) for r in self.idx}
        far = self.ctx.simplify(at.substitute({**zero, self.idx[axis]: UOp.const(1)}) - at.substitute(zero))
        return int(far.arg) if far.op is Ops.CONST else 0


def shared_parts(x: UOp, rows: int, view: View) -> list[UOp]:
    """The largest parts of a reduced value that do not vary along the rows: computed or read once for all of them."""
    out: dict[UOp, None] = {}
    stack = [x]
    while stack:
        u = stack.pop()
        if u.shape != x.shape:
            continue
        if rows not in view.axes(u):
            out[u] = None
        elif u.op in ALU:
            stack += u.src
    return list(out)


def beneath(x: UOp, move: Callable[[UOp], UOp]) -> UOp:
    """``move(x)`` with the movement beneath the elementwise operations, where ``shared_parts`` finds operands."""
    made: dict[UOp, UOp] = {}
    for u in toposort(x):
        if u.shape == x.shape and u.op in ALU:
            made[u] = u.replace(src=tuple(made[s] for s in u.src))
        else:
            made[u] = move(u) if u.shape == x.shape else u
    return made[x]


def packed(u: UOp, lanes: int, width: int, opts: Opts, view: View) -> UOp:
    """``u`` (at the shape of a reduced value) read from a tile in which the axis of the lanes is consecutive."""
    shape = u.shape
    varies = view.axes(u)
    once = tuple((0, n) if a in varies else (0, 1) for a, n in enumerate(shape))
    order = (*[a for a in range(len(shape)) if a != lanes], lanes)
    back = tuple(order.index(a) for a in range(len(shape)))
    last = len(shape) - 1
    extents = tuple(width if a == lanes else shape[a] if a == last and a in varies else 1 for a in order)
    # where memory runs along the axis before, a square is read by rows and transposed
    square = min(opts.lanes, extents[-2]) if view.step(u, lanes) > u.dtype.itemsize == view.step(u, order[-2]) else 1
    # a square at a time, which is code enough; plain copies take the whole width
    fill = Opts({last: width if square == 1 else opts.lanes, last - 1: square}, vector=last, lanes=opts.lanes)
    small = UOp(Ops.PERMUTE, (UOp(Ops.SHRINK, (u,), once),), order)
    return UOp(Ops.EXPAND, (UOp(Ops.PERMUTE, (UOp(Ops.STAGE, (small,), Tile(extents, fill)),), back),), shape)


def packed_rows(u: UOp, rows: int, fixed: Collection[int], sizes: Sizes) -> UOp:
    """A REDUCE whose operands that the rows and its own last axis vary are packed, once for a block of rows.

    fixed: the axes of which a block has one element.  An operand that varies along any other is left as it is: its tile
    would hold one element of what the block runs over.
    """
    x = u.src[0]
    view = View(x.shape)
    last = len(x.shape) - 1
    held = {rows, *fixed, *({last} & set(u.arg.axes))}
    out: dict[UOp, UOp] = {}
    others = [a for a in range(len(x.shape)) if a != rows and a not in u.arg.axes and x.shape[a] > 1]
    for axis in others:
        for p in shared_parts(x, axis, view):
            if rows in view.axes(p) and held.issuperset(view.axes(p)) and p not in out:
                out[p] = packed(p, rows, sizes.rows, Opts(vector=rows, lanes=sizes.lanes), view)
    return u.replace(src=(x.substitute(out),)) if out else u


def reduction_of(body: UOp) -> UOp | None:
    """The one REDUCE of a kernel that stands at the shape of the output, under elementwise operations only."""
    found = [u for u in toposort(body) if u.op is Ops.REDUCE]
    if len(found) != 1 or found[0].shape != body.shape:
        return None
    stack, seen = [body], {body}
    while stack:
        u = stack.pop()
        if u is found[0]:
            continue
        if u.op not in ALU and any(s is found[0] or found[0] in toposort(s) for s in u.src):
            return None
        for s in u.src:
            if s not in seen:
                seen.add(s)
                stack.append(s)
    return found[0]


def stretch(x: UOp, axis: int, first: int, last: int) -> UOp:
    """A stretch of one axis."""
    if first == 0 and last == x.shape[axis]:
        return x
    return UOp(Ops.SHRINK, (x,), tuple((first, last) if a == axis else (0, n) for a, n in enumerate(x.shape)))
