"""Sums of a cascade over weights in bfloat16, two steps at a time: each block's weights and what they weigh become
tiles of words.

The weights of a block stand in a tile of float32, where other sums read them as they are.  Where the graph rounds them
to bfloat16 before they are multiplied (in attention, softmax gives its result in the type of its argument), words of
two steps are made of that tile, rounded once: the sum is what the graph says, and no less exact than with single steps.
What is weighed is shared by all rows of a block: its words, of two steps of one column, are packed once a block.
"""

from __future__ import annotations

from uopc.blockize.dots import LEAST_STEPS, factors, pairs
from uopc.blockize.operands import View
from uopc.blockize.sizes import Sizes
from uopc.ops import Component, Ops, ParamArg, Tile
from uopc.rangeify import Opts
from uopc.rangeify.context import power_of_two_below
from uopc.rangeify.positions import Places, bodies_of
from uopc.uop import UOp, toposort

# Vectors of columns that are packed at once.
VECTORS = 4
# Steps of the weights at once.
STEPS = 2


class _Sum:
    """A reduction of a cascade whose body is a product: the axes of the body, and which of them each factor varies
    along."""

    def __init__(self, body: UOp, axis: int, where: Places, rows: int, own: set[int]) -> None:
        """``where``: the output axis that each axis of the result is.  ``rows``: the one that lanes run along.
        ``own``: those that only this result has."""
        places = (*where[:axis], None, *where[axis:])
        self.shape, self.axis = body.shape, axis
        self.row = places.index(rows)
        self.own = [a for a, place in enumerate(places) if place in own and body.shape[a] > 1]
        self.view = View(body.shape)

    def varies(self, factor: UOp) -> set[int]:
        """The axes that a factor (without tiles) varies along, running values and all."""
        running = [u for u in toposort(factor) if u.op in (Ops.STATE, Ops.COMPONENT)]
        slots = {u: UOp(Ops.BUFFER, (), ParamArg(-1 - k, u.dtype, u.shape)) for k, u in enumerate(running)}
        return self.view.axes(factor.substitute(slots))

    def words(self, factor: UOp, varies: set[int], extents: dict[int, int], order: list[int], opts: Opts) -> UOp:
        """A factor in pairs of steps, read from a tile of so many elements along each axis, in whose memory ``order``
        comes last."""
        axis, size, rank = self.axis, self.shape[self.axis], len(self.shape)
        once = tuple((0, n) if a in varies else (0, 1) for a, n in enumerate(self.shape))
        small = UOp(Ops.SHRINK, (factor,), once)
        if size % 2:
            small = UOp(Ops.PAD, (small,), tuple((0, int(a == axis)) for a in range(rank)))
        layout = (*[a for a in range(rank) if a not in order], *order)
        tile = Tile(tuple(extents.get(a, 1) for a in range(rank)), opts, layout=layout)
        staged = UOp(Ops.STAGE, (pairs(small, axis),), tile)
        return UOp(Ops.EXPAND, (staged,), tuple(-(-n // 2) if a == axis else n for a, n in enumerate(self.shape)))

    def weights(self, factor: UOp, varies: set[int], sizes: Sizes) -> UOp:
        """Words of what varies along the rows: lanes along the rows, as in the tile that they are made of."""
        opts = Opts({self.row: sizes.rows, self.axis: STEPS}, vector=self.row, lanes=sizes.lanes)
        return self.words(factor, varies, {self.row: sizes.rows, self.axis: -2}, [self.axis, self.row], opts)

    def weighed(self, factor: UOp, plain: UOp, varies: set[int], sizes: Sizes) -> UOp:
        """Words of what the rows share: the columns of two steps become neighbours."""
        columns = [a for a in self.own if a in varies]
        extents = {**{a: self.shape[a] for a in columns}, self.axis: -2}
        column = columns[-1] if columns else self.axis
        width = self.shape[column] if columns else sizes.lanes
        lanes = min(sizes.lanes, power_of_two_below(width))
        step = {a: self.view.step(plain, a) for a in (column, self.axis)}
        if columns and step[column] > plain.dtype.itemsize == step[self.axis]:
            # memory runs along the steps: squares are read by rows and turned
            opts = Opts({column: lanes, self.axis: lanes}, vector=column, lanes=lanes)
        else:
            opts = Opts({column: lanes * min(VECTORS, max(width // lanes, 1))}, vector=column, lanes=lanes)
        return self.words(factor, varies, extents, [*dict.fromkeys((self.axis, column))], opts)


def paired(node: UOp, made: UOp, k: int, where: Places, rows: int, own: set[int], sizes: Sizes) -> UOp | None:
    """The body of reduction ``k`` of the CASCADE ``made``, which is ``node`` with tiles, as a dot product of words of
    two steps; None where it is no sum of products of bfloat16, or not of weights of the rows and what they share."""
    c: Component = node.arg.components[k]
    plain, tiled = bodies_of(node)[k][0], bodies_of(made)[k][0]
    size = plain.shape[c.axis]
    if c.op is not Ops.ADD or size < LEAST_STEPS or rows not in where or (size % 2 and k == 0):
        return None
    before, after = factors(plain), factors(tiled)
    if before is None or after is None:
        return None
    form = _Sum(plain, c.axis, where, rows, own)
    both = [(f, t, form.varies(f)) for f, t in zip(before, after)]
    of_rows = [x for x in both if form.row in x[2]]
    shared = [x for x in both if form.row not in x[2]]
    if len(of_rows) != 1 or any(c.axis not in varies for *_, varies in both) or of_rows[0][2].intersection(form.own):
        return None
    (_, weights, along), (memory, values, columns) = of_rows[0], shared[0]
    words = form.weights(weights, along, sizes), form.weighed(values, memory, columns, sizes)
    return UOp(Ops.DOT2, (*words, UOp.const(0.0, plain.dtype)))
