"""Blocks of a cascade: a block of rows against blocks of the reduced axis, with every value of a block in a tile.

Lanes run along an output axis that all reductions have (the rows), so that whatever is done for each row (the maximum,
the sum, the correction) is one vector operation, and what does not depend on the row is a broadcast scalar.  Inside a
block the program is the ordinary one on small shapes; what several reductions share, and what an axis repeats that only
some of them have, is written to tiles.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from uopc.blockize.cascade_cost import Shape, cascade_cost
from uopc.blockize.cascade_dots import paired
from uopc.blockize.dots import dotted
from uopc.blockize.limits import Body, bounded
from uopc.blockize.operands import View, packed_rows
from uopc.blockize.sizes import Sizes, block_sizes, other_sizes, rows_of
from uopc.cost import ALIKE, Candidate
from uopc.ops import ALU, PLAIN, KernelInfo, Ops, Order, Tile
from uopc.rangeify import Opts
from uopc.rangeify.axes import space
from uopc.rangeify.context import ZERO, Idx
from uopc.rangeify.positions import Probe, bodies_of, body_at, places, result_places
from uopc.target import Feature, Target
from uopc.uop import UOp, toposort, unmoved

# So many blocks for each core leave none idle for long.
MANY_BLOCKS = 16
# Without lanes along rows: steps of the reduced axis whose lanes are summed at once, and vectors of each sum.
NARROW_STEPS = 4
NARROW_UNROLL = 4
# Fewer rows than this are no axis for lanes if another one has more.
LEAST_ROWS = 8
# Steps that a running maximum or sum of each row takes at once.
STEPS_AT_ONCE = 4
# Steps at once of a value that is computed from other tiles alone: enough to overlap, few enough to compile fast.
PLAIN_STEPS = 2
# A body is what stands on these.
BENEATH = frozenset({Ops.REDUCE, Ops.STAGE, Ops.BUFFER, Ops.STATE})


@dataclass(frozen=True)
class _Layout:
    """How a cascade lies in its kernel: for each reduction the output axis that each of its axes is (None: always
    0)."""

    node: UOp
    axes: list[tuple[int | None, ...] | None]  # None: nobody asks for it
    everywhere: set[int]  # the output axes that all reductions have
    outputs: Idx  # a range for each output axis, in terms of which the bodies below are
    ranged: list[tuple[Ops, UOp]]  # each reduction's op and ranged body
    step: UOp  # the range along the reduced axis
    shared: list[UOp]  # values that get a tile
    rows: int | None = None  # the one that lanes run along
    together: frozenset[int] = frozenset()  # those that a block holds whole without lanes along them

    def extent(self, axis: int, size: int) -> int:
        """How much of an output axis a block holds, rows aside."""
        return size if axis not in self.everywhere or axis in self.together else 1

    def held(self, shape: tuple[int, ...]) -> int:
        """How many rows a block holds without lanes along them."""
        return math.prod(shape[a] for a in self.together)

    def reuses(self, axis: int) -> bool:
        """Whether memory that the reduced axis runs over is the same for all of an output axis."""
        r = self.outputs[axis]
        loads = [u for _, v in self.ranged for u in toposort(v) if u.op is Ops.LOAD and self.step in u.ranges]
        return any(r not in u.ranges for u in loads)


def _lay_out(results: list[UOp], node: UOp) -> tuple[_Layout, list[dict[UOp, Idx]]]:
    """Where each reduction's axes are, following who asks for it: the results, or another reduction's body."""
    probe = Probe()
    idx = probe.index(space(results))
    found = result_places(results, node, idx, probe)
    known = {r: a for a, r in enumerate(idx)}
    bodies = bodies_of(node)
    inside: list[dict[UOp, Idx]] = [{} for _ in bodies]
    ranged: list[tuple[Ops, UOp]] = []
    for k in reversed(range(len(bodies))):
        if k not in found:
            continue
        value, along, mine = body_at(node, k, found[k], idx)
        ranged.append((node.arg.components[k].op, value))
        for u in toposort(bodies[k][0]):
            asked = mine.asked(u)
            if u.op is Ops.STATE and u.arg.cascade == node.arg.id and asked:
                found.setdefault(u.arg.component, places(asked[0], known))
            if len(asked) == 1:
                inside[k][u] = tuple(UOp.const(-1) if i is along else i for i in asked[0])
    axes = [found.get(k) for k in range(len(bodies))]
    everywhere = set.intersection(*({a for a in where if a is not None} for where in found.values()))
    shared = _shared(node)
    for u in shared:
        everywhere &= {known[i] for body in inside for i in body.get(u, ()) if i in known} or everywhere
    return _Layout(node, axes, everywhere, idx, ranged, along, shared), inside


def _shared(node: UOp) -> list[UOp]:
    """Values of a block that get a tile: what several bodies use and hold a reduction, and what one body repeats."""
    bodies = [b for b, _ in bodies_of(node)]
    cones = [_cone(b) for b in bodies]
    uses = Counter(u for cone in cones for u in cone)
    holding = _holding_reduces(bodies)
    common = {u for u, n in uses.items() if n > 1 and u.shape and u in holding}
    used = {s for u in uses if u not in common for s in u.src}
    out = dict.fromkeys(u for u in common if u in bodies or u in used)
    for u in uses:
        if u.op is Ops.EXPAND:
            source = unmoved(u.src[0])
            if source in holding:
                out[source] = None
    return list(out)


def _holding_reduces(bodies: list[UOp]) -> set[UOp]:
    """The reductions of bodies, and the operations that stand on them."""
    reaching: set[UOp] = set()
    for u in toposort(bodies):
        if u.op is Ops.REDUCE or (u.op not in BENEATH and not reaching.isdisjoint(u.src)):
            reaching.add(u)
    return {u for u in reaching if u.op in ALU or u.op is Ops.REDUCE}


def _cone(x: UOp, stop: set[UOp] | None = None) -> list[UOp]:
    """The nodes of a body down to its first reductions, memory and running values, and not beyond those of ``stop``."""
    seen: dict[UOp, None] = {}
    stack = [x]
    while stack:
        u = stack.pop()
        if u not in seen and not (stop and u in stop):
            seen[u] = None
            if u.op not in BENEATH:
                stack += u.src
    return list(seen)


def _tile_of(at: Idx, known: dict[UOp, int], layout: _Layout, u: UOp, sizes: Sizes, reduced: bool) -> Tile | None:
    """The tile of a value that is asked for at ``at``: rows last, the reduced axis (-1) as long as a block."""
    extents: list[int] = []
    rows = steps = None
    shape = u.shape
    for a, (i, n) in enumerate(zip(at, shape)):
        if i.op is Ops.CONST:
            steps = a if i.arg == -1 else steps
            extents.append(-1 if i.arg == -1 else 1)
        elif layout.rows is not None and known.get(i) == layout.rows:
            rows = a
            extents.append(sizes.rows)
        elif i in known:
            extents.append(layout.extent(known[i], n))
        else:
            return None
    if rows is None:
        if steps is None:
            return None
        if reduced:
            return Tile(tuple(extents), Opts({steps: NARROW_STEPS}))
        return Tile(tuple(extents), Opts({steps: PLAIN_STEPS * sizes.lanes}, vector=steps, lanes=sizes.lanes))
    upcast = {rows: sizes.rows}
    if steps is not None:
        upcast[steps] = sizes.tile_steps if reduced else PLAIN_STEPS
    return _rows_last(tuple(extents), rows, upcast, sizes)


def _rows_last(extents: tuple[int, ...], rows: int, upcast: dict[int, int], sizes: Sizes, unroll: int = 1) -> Tile:
    """A tile in whose memory the rows are neighbours."""
    order = (*[a for a in range(len(extents)) if a != rows], rows)
    return Tile(extents, Opts(upcast, unroll, vector=rows, lanes=sizes.lanes), layout=order)


def _running(k: int, layout: _Layout, shape: tuple[int, ...], sizes: Sizes) -> Tile:
    """The tile of a running value: its rows last, all of the axes that only it has."""
    axes = layout.axes[k]
    assert axes is not None
    extents = tuple(
        1 if a is None else sizes.rows if a == layout.rows else layout.extent(a, n) for a, n in zip(axes, shape)
    )
    own = [x for x, a in enumerate(axes) if a is not None and a not in layout.everywhere and extents[x] > 1]
    if layout.rows is None:
        return Tile(extents, _columns(extents, own, sizes))
    rows = axes.index(layout.rows)
    upcast = {rows: sizes.rows}
    if own:
        upcast[own[-1]] = sizes.tile_columns(extents[own[-1]])
    # a value for each row alone fills few registers: its steps do not wait for each other then
    return _rows_last(extents, rows, upcast, sizes, unroll=1 if own else STEPS_AT_ONCE)


def _columns(extents: tuple[int, ...], own: list[int], sizes: Sizes) -> Opts:
    """Without lanes along rows: lanes along the columns that only this result has, as many vectors as divide them."""
    if not own:
        return Opts()
    size = extents[own[-1]]
    lanes = min(sizes.lanes, size & -size)
    vectors = next(n for n in (4, 3, 2, 1) if size // lanes % n == 0)
    return Opts({own[-1]: lanes * vectors}, vector=own[-1], lanes=lanes)


@dataclass(frozen=True)
class _Found:
    """The cascades of a kernel, the space that its results lie in, the axis of it that lanes run along, and the usual
    sizes of a block."""

    layouts: list[tuple[_Layout, list[dict[UOp, Idx]]]]
    everywhere: set[int]
    shape: tuple[int, ...]
    rows: int | None
    length: int
    sizes: Sizes
    ordered: bool  # blocks have one length, however many rows there are


def _find(root: UOp, target: Target) -> _Found:
    """The results lie in one space: an axis of one is the same axis of all others, or has size 1 there."""
    results = [s.src[1] for s in root.src]
    shape = space(results)
    nodes = [u for u in toposort(results) if u.op is Ops.CASCADE]
    found = [_lay_out(results, node) for node in nodes]
    everywhere = set.intersection(*(layout.everywhere for layout, _ in found))
    shared = {a for a in everywhere if any(layout.reuses(a) for layout, _ in found)}
    rows = max((a for a in shared if shape[a] >= LEAST_ROWS), default=None)
    together = frozenset(a for a in shared if rows is None and shape[a] > 1)
    layouts = [(replace(x, everywhere=everywhere, rows=rows, together=together), inside) for x, inside in found]
    itemsize = max(max(b.dtype.itemsize, 4) for layout, _ in layouts for b, _ in bodies_of(layout.node))
    tiles = max(len(layout.shared) for layout, _ in layouts)
    length = max(bodies_of(x.node)[0][0].shape[x.node.arg.components[0].axis] for x, _ in layouts)
    size = 0 if rows is None else shape[rows]
    ordered = any(c.order is not Order.ANY for x, _ in layouts for c in x.node.arg.components)
    sizes = block_sizes(size, layouts[0][0].held(shape), length, itemsize, tiles, target, ordered)
    return _Found(layouts, everywhere, shape, rows, length, sizes, ordered)


def cascade_blocks(root: UOp, target: Target) -> UOp:
    """The kernel ``root`` (a SINK with CASCADEs) in blocks."""
    found = _find(root, target)
    return _in_blocks(root, found, _chosen(found, target), target)


def _chosen(found: _Found, target: Target) -> Sizes:
    """The usual sizes, or other rows where few blocks leave cores idle or the last one repeats much.

    Never other steps: in which order a row is summed must not depend on how many rows or cores there are.
    """
    usual = found.sizes
    if found.rows is None:
        return usual
    size = found.shape[found.rows]
    blocks = -(-size // usual.rows)
    tasks = blocks * math.prod(found.shape[a] for a in found.everywhere if a != found.rows)
    if tasks >= MANY_BLOCKS * target.cores and blocks * usual.rows <= ALIKE * size:
        return usual
    shape = _shape(found)
    choices = [replace(usual, rows=n) for n in rows_of(usual, size)]
    times = [cascade_cost(shape, sizes, target).seconds(target) for sizes in choices]
    return next(sizes for sizes, t in zip(choices, times) if t <= ALIKE * min(times))


def cascade_candidates(plain: Candidate, target: Target) -> list[Candidate]:
    """A kernel with CASCADEs in blocks of the sizes that are worth a measurement, the usual ones first."""
    found = _find(plain.root, target)
    size, shape = 0 if found.rows is None else found.shape[found.rows], _shape(found)
    return [
        Candidate(_in_blocks(plain.root, found, sizes, target), cascade_cost(shape, sizes, target))
        for sizes in other_sizes(found.sizes, size, found.length)
        if sizes.steps == found.sizes.steps or not found.ordered
    ]


def _in_blocks(root: UOp, found: _Found, sizes: Sizes, target: Target) -> UOp:
    """The kernel in blocks of these sizes."""
    results, shape = [s.src[1] for s in root.src], found.shape
    rows, everywhere = found.rows, found.everywhere
    made = {layout.node: _blocked(layout, inside, sizes, target) for layout, inside in found.layouts}
    layout = found.layouts[0][0]
    block = {a: sizes.rows if a == rows else layout.extent(a, n) for a, n in enumerate(shape)}
    threads = tuple(a for a in range(len(shape)) if a in everywhere) or None
    if rows is not None:
        # the last axis is consecutive in memory: a square of rows and columns at a time is transposed and written by
        # rows
        last = {max((a for a, n in enumerate(x.shape) if n > 1), default=0) for x in results}
        square = {a: sizes.lanes for a in last if a not in everywhere and shape[a] >= sizes.lanes}
        opts = Opts({rows: sizes.lanes, **square}, thread=threads, vector=rows, lanes=sizes.lanes, block=block)
    else:
        own = [a for a, n in enumerate(shape) if a not in everywhere and n > 1]
        across = _columns(shape, own, sizes)
        opts = replace(across, unroll=NARROW_UNROLL, reduce_lanes=sizes.lanes, thread=threads, block=block)
    stores = tuple(s.replace(src=(s.src[0], s.src[1].substitute(made))) for s in root.src)
    return root.replace(src=stores, arg=KernelInfo(root.arg.name, opts))


def _blocked(layout: _Layout, inside: list[dict[UOp, Idx]], sizes: Sizes, target: Target) -> UOp:
    """One CASCADE with its tiles."""
    node, bodies, shared = layout.node, bodies_of(layout.node), layout.shared
    known = {r: a for a, r in enumerate(layout.outputs)}
    staged: dict[UOp, Tile] = {}
    for body in inside:
        for u in shared:
            if u in body and u not in staged:
                reduced = any(v.op is Ops.REDUCE for v in _cone(u, set(shared) - {u}))
                tile = _tile_of(body[u], known, layout, u, sizes, reduced)
                if tile is not None:
                    staged[u] = tile
        if layout.rows is not None:
            staged.update(_turned(body, known, layout, sizes))
    made = _with_stages(node, staged, layout, inside, sizes, known, target)
    components = []
    for k, (c, (b, _)) in enumerate(zip(node.arg.components, bodies)):
        shape = tuple(n for a, n in enumerate(b.shape) if a != c.axis)
        components.append(c._replace(tile=_running(k, layout, shape, sizes)) if layout.axes[k] is not None else c)
    length = bodies[0][0].shape[node.arg.components[0].axis]
    arg = node.arg._replace(components=tuple(components), block=min(sizes.steps, length))
    made = made.replace(arg=arg)
    return _bounded(_with_pairs(made, layout, sizes) if target.has(Feature.BF16_DOT) else made, layout, target)


def _with_pairs(made: UOp, layout: _Layout, sizes: Sizes) -> UOp:
    """The CASCADE in blocks, its sums of products of bfloat16 two steps at a time; blocks then begin at even steps."""
    if layout.rows is None or any(c.order is not Order.ANY for c in made.arg.components):
        return made
    own = set(range(len(layout.outputs))) - layout.everywhere
    components, src, new = list(made.arg.components), list(made.src), {}
    for k, where in enumerate(layout.axes):
        body = None if where is None else paired(layout.node, made, k, where, layout.rows, own, sizes)
        if body is not None:
            new[k], components[k] = body, components[k]._replace(steps=2)
    if not new:
        return made
    at = 0
    for k, c in enumerate(components):
        src[at] = new.get(k, src[at])
        at += 1 + c.corrected
    length = made.src[0].shape[components[0].axis]
    block = made.arg.block if made.arg.block == length else made.arg.block // 2 * 2
    return made.replace(src=tuple(src), arg=made.arg._replace(components=tuple(components), block=block))


def _bounded(made: UOp, layout: _Layout, target: Target) -> UOp:
    """The CASCADE in blocks, those left out in which nothing changes."""
    node, bodies = layout.node, []
    for c, axes, (value, _) in zip(node.arg.components, layout.axes, bodies_of(node)):
        if axes is not None:
            at = [ZERO if a is None else layout.outputs[a] for a in axes]
            bodies.append(Body(c.op, value, (*at[: c.axis], layout.step, *at[c.axis :])))
    row = None if layout.rows is None else layout.outputs[layout.rows]
    # where no block computes more than its elements, a look is as much work
    look = bool(layout.shared) and len(bodies) == len(layout.axes)
    return bounded(made, bodies, row, layout.step, target.vector_bytes if look else 0)


def _turned(body: dict[UOp, Idx], known: dict[UOp, int], layout: _Layout, sizes: Sizes) -> dict[UOp, Tile]:
    """Memory that runs along the reduced axis, not along the rows as the lanes do: it is read by rows, and turned in
    registers."""
    out: dict[UOp, Tile] = {}
    for u in dict.fromkeys(s for p in body if p.op in ALU for s in p.src if s in body):
        source = u
        while source.op in PLAIN:
            source = source.src[0]
        if source.op not in (Ops.BUFFER, Ops.VIEW):
            continue
        at, view = body[u], View(u.shape)
        rows = [a for a, i in enumerate(at) if known.get(i) == layout.rows]
        steps = [a for a, i in enumerate(at) if i.op is Ops.CONST and i.arg == -1]
        if rows and steps and view.step(u, rows[0]) > u.dtype.itemsize == view.step(u, steps[0]):
            tile = _tile_of(at, known, layout, u, sizes, False)
            if tile is not None:
                square = {rows[0]: sizes.lanes, steps[0]: sizes.lanes}
                out[u] = tile._replace(opts=Opts(square, vector=rows[0], lanes=sizes.lanes))
    return out


def _with_stages(
    node: UOp,
    staged: dict[UOp, Tile],
    layout: _Layout,
    inside: list[dict[UOp, Idx]],
    sizes: Sizes,
    known: dict[UOp, int],
    target: Target,
) -> UOp:
    """The CASCADE with its shared values in tiles, and the rows' operands of their producers packed."""
    packs: dict[UOp, UOp] = {}
    for body in inside:
        for u, at in body.items():
            if u.op is Ops.REDUCE and u not in packs:
                rows = [a for a, i in enumerate(at) if layout.rows is not None and known.get(i) == layout.rows]
                # the axis of the operand's shape that the rows are
                kept = [a for a in range(len(u.src[0].shape)) if a not in u.arg.axes]
                pairs = dotted(u) if target.has(Feature.BF16_DOT) else u
                packs[u] = pairs if pairs.op is Ops.REDUCE else u
                if rows:
                    fixed = [kept[a] for a, i in enumerate(at) if known.get(i) in layout.everywhere and a != rows[0]]
                    packs[u] = packed_rows(packs[u], kept[rows[0]], fixed, sizes)
    memo: dict[UOp, UOp] = {}
    for u in toposort(node):
        src = tuple(memo[s] for s in u.src)
        new = u if src == u.src else u.replace(src=src)
        if u in packs and src == u.src:
            new = packs[u]
        memo[u] = UOp(Ops.STAGE, (new,), staged[u]) if u in staged else new
    return memo[node]


def _shape(found: _Found) -> Shape:
    """The cascades of a kernel, to be priced."""
    layouts, shape = [x for x, _ in found.layouts], found.shape
    first = layouts[0]
    shared = [shape[a] for a in found.everywhere]
    itemsize = max(max(b.dtype.itemsize, 4) for b, _ in bodies_of(first.node))
    row = None if found.rows is None else first.outputs[found.rows]
    size = shape[found.rows] if found.rows is not None else first.held(shape)
    reductions = [pair for x in layouts for pair in x.ranged]
    return Shape(reductions, first.step, row, shared, size, len(first.shared), itemsize)
