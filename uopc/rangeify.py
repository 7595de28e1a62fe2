"""rangeify: tensor operations become loops and index expressions.

In: a kernel, ``SINK(STORE(target, body), ...)`` of tensor operations over BUFFERs.
Out: a loop program, ``SINK(END(STORE(INDEX, value), ranges...))``, in which movement ops are gone and each REDUCE names
its RANGEs.

Guarantees: every index is simplified before anything asks what it depends on (else an accumulator may land in a loop
that its index only seems to mention); memory under a PAD is read only where the pad does not apply; a value is built
once for each index at which it is used.
Never decides sizes: those come in ``Opts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from uopc._hot.rangeify import Engine
from uopc._hot.simplify import Simplifier
from uopc.ops import AxisType, Ops, ReduceArg, identity
from uopc.uop import UOp, dtypes, range_, sink

Idx = tuple[UOp, ...]
Request = tuple[UOp, Idx, "UOp | None"]
Combine = Callable[[list[UOp]], Any]


@dataclass(frozen=True)
class Opts:
    """Sizes of a kernel's loops.

    upcast: output axis -> how many of its elements one iteration computes in registers.
    unroll: how many steps of the innermost reduction one iteration takes.
    thread: the output axis whose loop the threads share, or several, which are merged.
    vector: the output axis along which vector lanes run, and ``lanes`` how many; its upcast counts elements, not
    vectors.
    reduce_lanes: vector lanes along the innermost reduced axis (1: none).
    reduce_block: how many iterations of a reduction are summed before they join the sum of blocks (0: all at once).
    order: the output axes in loop order, outermost first (None: as they come).
    """

    upcast: Any = ()
    unroll: int = 1
    thread: Any = None
    vector: int | None = None
    lanes: int = 1
    reduce_lanes: int = 1
    reduce_block: int = 0
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        pairs = self.upcast.items() if isinstance(self.upcast, Mapping) else self.upcast
        object.__setattr__(self, "upcast", tuple(sorted((int(a), int(n)) for a, n in pairs if n != 1)))
        if any(n < 1 for _, n in self.upcast) or self.unroll < 1:
            raise ValueError(f"upcast {dict(self.upcast)} and unroll {self.unroll} must be at least 1")

    def upcast_of(self, axis: int) -> int:
        """How many elements of ``axis`` one iteration computes."""
        return dict(self.upcast).get(axis, 1)

    @property
    def threads(self) -> tuple[int, ...]:
        """The merged thread axes, outermost first."""
        if self.thread is None:
            return ()
        return (self.thread,) if isinstance(self.thread, int) else tuple(self.thread)


@dataclass
class Ctx:
    """One kernel under way: its options, the ids of its ranges, and the answers so far."""

    opts: Opts = field(default_factory=Opts)
    next_id: int = 0
    engine: Any = None
    simplifier: Any = field(default_factory=Simplifier)

    def __post_init__(self) -> None:
        self.engine = Engine(MOVES, VALUES, self)

    def range(self, end: int | UOp, axis_type: AxisType) -> UOp:
        """A new RANGE of this kernel."""
        self.next_id += 1
        return range_(end, self.next_id - 1, axis_type)

    def simplify(self, expr: UOp) -> UOp:
        """An equal index expression in canonical form."""
        return self.simplifier.simplify(expr)


ZERO = UOp.const(0)
# Lanes of an upcast without further options: 64 bytes of float32.  A C compiler splits what the machine's registers do not hold.
MAX_LANES = 16


# -- movement: the index of the source, from the index of the result


def _reshape(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    """Flatten and unflatten, group by group: axes whose sizes multiply to the same on both sides keep to themselves."""
    old, new = u.src[0].shape, u.shape
    out: list[UOp] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        have, want = (old[i0] if i > i0 else 1), (new[j0] if j > j0 else 1)
        while have != want:
            if (have < want and i < len(old)) or j == len(new):
                have, i = have * old[i], i + 1
            else:
                want, j = want * new[j], j + 1
        out += _regroup(idx[j0:j], new[j0:j], old[i0:i], ctx)
    return tuple(out)


def _regroup(idx: Idx, new: tuple[int, ...], old: tuple[int, ...], ctx: Ctx) -> list[UOp]:
    """Indices over the sizes ``old`` of the element that ``idx`` names over the sizes ``new``; the products are
    equal."""
    wide_new = [k for k, n in enumerate(new) if n != 1]
    wide_old = [k for k, n in enumerate(old) if n != 1]
    if len(wide_new) == len(wide_old) == 1:
        return [idx[wide_new[0]] if n != 1 else ZERO for n in old]
    flat: UOp = ZERO
    for k in wide_new:
        flat = flat * new[k] + idx[k]
    flat = ctx.simplify(flat)
    out: list[UOp] = []
    for n in reversed(old):
        out.append(ZERO if n == 1 else simplify_index(flat % n, ctx))
        flat = flat if n == 1 else simplify_index(flat // n, ctx)
    return out[::-1]


def simplify_index(expr: UOp, ctx: Ctx) -> UOp:
    """What the reshape rule asks of an index before anything looks at what it depends on: ``((i*N + j)//N) % N`` is
    i."""
    return ctx.simplify(expr)


def _expand(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    return tuple(ZERO if was == 1 else i for i, was in zip(idx, u.src[0].shape))


def _permute(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    out = [ZERO] * len(idx)
    for i, axis in zip(idx, u.arg):
        out[axis] = i
    return tuple(out)


def _shrink(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    return tuple(ctx.simplify(i + lo) if lo else i for i, (lo, _) in zip(idx, u.arg))


def _flip(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    return tuple(ctx.simplify((n - 1) - i) if axis in u.arg else i for axis, (i, n) in enumerate(zip(idx, u.shape)))


def _stride(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    return tuple(ctx.simplify(i * step) if step != 1 else i for i, step in zip(idx, u.arg))


def _view(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    flat = UOp.const(u.arg.offset)
    for i, step in zip(idx, u.arg.strides):
        flat = flat + i * step
    return (ctx.simplify(flat),)


# -- values


def _buffer(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    flat: UOp = ZERO
    for i, n in zip(idx, u.shape):
        flat = flat * n + i
    return [], lambda _: u.index(ctx.simplify(flat)).load(gate)


def _const(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    return [], lambda _: u


def _iota(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    return [], lambda _: idx[0].cast(u.dtype)


def _stage(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    return [(u.src[0], idx, gate)], lambda answers: answers[0]


def _pad(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    inner, valid = [], UOp.const(True)
    for i, (lo, hi), n in zip(idx, u.arg, u.src[0].shape):
        inner.append(ctx.simplify(i - lo) if lo else i)
        valid = valid & (inner[-1] >= 0) if lo else valid
        valid = valid & (inner[-1] < n) if hi else valid
    valid = ctx.simplify(valid)
    nothing = UOp.const(0, u.dtype)
    if valid.vmax == 0:
        return [], lambda _: nothing
    if valid.vmin == 1:
        return [(u.src[0], tuple(inner), gate)], lambda answers: answers[0]
    inside = valid if gate is None else ctx.simplify(gate & valid)
    return [(u.src[0], tuple(inner), inside)], lambda answers: valid.where(answers[0], nothing)


def _stack(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    first = idx[0]
    low, high = max(first.vmin, 0), min(first.vmax, len(u.src) - 1)
    requests = [(s, idx[1:], gate) for s in u.src[low : high + 1]]
    return requests, lambda answers: _choose(answers, first, low)


def _choose(values: list[UOp], which: UOp, low: int) -> UOp:
    """``values[which - low]`` by halving, so that thousands of values nest a dozen deep."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return (which < low + half).where(_choose(values[:half], which, low), _choose(values[half:], which, low + half))


def _gather(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    source = u.src[0]

    def then(found: list[UOp]) -> tuple[list[Request], Combine]:
        inner = tuple(_within(i.cast(dtypes.index), n, ctx) for i, n in zip(found, source.shape))
        return [(source, inner, gate)], lambda answers: answers[0]

    return [(s, idx, gate) for s in u.src[1:]], then


def _within(i: UOp, n: int, ctx: Ctx) -> UOp:
    """Memory is never left: a user may change an index array after it was checked."""
    i = i if i.vmin >= 0 else i.maximum(0)
    return ctx.simplify(i if i.vmax < n else i.minimum(n - 1))


def _reduce(u: UOp, idx: Idx, gate: UOp | None, ctx: Ctx) -> tuple[list[Request], Combine]:
    """A reduction is the sum of its segments: whole blocks of whole steps, whole steps, and single elements."""
    x, (op, axes) = u.src[0], u.arg
    sizes = [x.shape[axis] for axis in axes]
    if 0 in sizes:
        return [], lambda _: UOp.const(identity(op, u.dtype), u.dtype)
    requests: list[Request] = []
    closing: list[tuple[list[UOp], list[UOp]]] = []
    for segment in _segments(sizes[-1], _without_lanes(ctx.opts) if _in_lanes(idx) else ctx.opts):
        steps = {axis: ctx.range(n, AxisType.REDUCE) if n > 1 else ZERO for axis, n in zip(axes[:-1], sizes)}
        around = [r for r in steps.values() if r is not ZERO]
        steps[axes[-1]], loops, blocks = _segment_index(segment, ctx)
        rest = iter(idx)
        inner = tuple(steps[axis] if axis in steps else next(rest) for axis in range(len(x.shape)))
        requests.append((x, inner, gate))
        closing.append((loops, around + blocks) if blocks else (around + loops, []))
    arg = ReduceArg(op, ())

    def combine(answers: list[UOp]) -> UOp:
        total: UOp | None = None
        for value, (loops, blocks) in zip(answers, closing):
            value = UOp(Ops.REDUCE, (value, *loops), arg) if loops else value
            value = UOp(Ops.REDUCE, (value, *blocks), arg) if blocks else value
            total = value if total is None else total.alu(op, value)
        assert total is not None
        return total

    return requests, combine


def _in_lanes(idx: Idx) -> bool:
    """Whether lanes run along the index already: a value has room for one VECTOR range."""
    return any(r.arg.axis_type is AxisType.VECTOR for i in idx for r in i.ranges)


def _without_lanes(opts: Opts) -> Opts:
    return replace(opts, reduce_lanes=1, unroll=1) if opts.reduce_lanes > 1 else opts


@dataclass(frozen=True)
class Segment:
    """A part of a reduced axis: from ``start``, ``blocks`` times ``trips`` iterations of ``unroll`` steps of ``lanes``
    elements."""

    start: int
    blocks: int
    trips: int
    unroll: int
    lanes: int


def _segments(size: int, opts: Opts) -> list[Segment]:
    """Cut an axis so that each part is a plain loop nest: what does not fill a block or a step gets a loop of its
    own."""
    lanes = min(opts.reduce_lanes, _power_of_two_below(size))
    unroll = max(1, min(opts.unroll, size // lanes))
    trips = size // (lanes * unroll)
    blocks = trips // opts.reduce_block if opts.reduce_block and trips >= 2 * opts.reduce_block else 0
    out: list[Segment] = []
    start = 0
    if blocks:
        out.append(Segment(0, blocks, opts.reduce_block, unroll, lanes))
        start = blocks * opts.reduce_block * unroll * lanes
        trips -= blocks * opts.reduce_block
    if trips:
        out.append(Segment(start, 1, trips, unroll, lanes))
        start += trips * unroll * lanes
    if size - start >= lanes > 1:
        out.append(Segment(start, 1, (size - start) // lanes, 1, lanes))
        start += (size - start) // lanes * lanes
    if start < size:
        out.append(Segment(start, 1, size - start, 1, 1))
    return out


def _segment_index(part: Segment, ctx: Ctx) -> tuple[UOp, list[UOp], list[UOp]]:
    """The index along a segment, the ranges of one block, and the range over blocks."""
    blocks = [ctx.range(part.blocks, AxisType.REDUCE)] if part.blocks > 1 else []
    loops: list[UOp] = []
    at = blocks[0] * part.trips if blocks else ZERO
    if part.trips > 1:
        loops.append(ctx.range(part.trips, AxisType.REDUCE))
        at = at + loops[-1]
    if part.unroll > 1:
        loops.append(ctx.range(part.unroll, AxisType.UNROLL))
        at = at * part.unroll + loops[-1]
    if part.lanes > 1:
        loops.append(ctx.range(part.lanes, AxisType.VECTOR))
        at = at * part.lanes + loops[-1]
    return ctx.simplify(at + part.start), loops, blocks


def _power_of_two_below(n: int) -> int:
    return 1 << (n.bit_length() - 1)


MOVES: dict[Ops, Callable[[UOp, Idx, Ctx], Idx]] = {
    Ops.RESHAPE: _reshape,
    Ops.EXPAND: _expand,
    Ops.PERMUTE: _permute,
    Ops.SHRINK: _shrink,
    Ops.FLIP: _flip,
    Ops.STRIDE: _stride,
    Ops.VIEW: _view,
}

VALUES: dict[Ops, Callable[[UOp, Idx, UOp | None, Ctx], tuple[list[Request], Combine]]] = {
    Ops.BUFFER: _buffer,
    Ops.CONST: _const,
    Ops.IOTA: _iota,
    Ops.STAGE: _stage,
    Ops.PAD: _pad,
    Ops.STACK: _stack,
    Ops.GATHER: _gather,
    Ops.REDUCE: _reduce,
}


# -- kernels


def rangeify(u: UOp, idx: Idx, ctx: Ctx) -> UOp:
    """The value of tensor node ``u`` at ``idx`` (an index expression an axis), as a loop-program expression."""
    return ctx.engine.run(u, tuple(idx))


def lower(body: UOp, out: UOp, ctx: Ctx) -> UOp:
    """A kernel that writes ``body`` to the buffer ``out`` (of as many elements), as a loop program with the sizes of
    ``ctx.opts``."""
    target = out if out.shape == body.shape else UOp(Ops.RESHAPE, (out,), body.shape)
    return lower_stores([(target, body)], ctx)


def lower_stores(stores: list[tuple[UOp, UOp]], ctx: Ctx) -> UOp:
    """The same for several (target, body) of one shape, in one loop nest; a target is a BUFFER under movement ops."""
    shape = stores[0][1].shape
    ctx.opts = _with_lanes(ctx.opts, shape)
    idx, loops, tiles = _output_axes(shape, ctx)
    written = []
    for target, body in stores:
        place = rangeify(target, idx, ctx).src[0]
        written.append(place.store(rangeify(body, idx, ctx)))
    whole = written[0] if len(written) == 1 else sink(*written)
    return sink(whole.end(*loops, *tiles))


def _output_axes(shape: tuple[int, ...], ctx: Ctx) -> tuple[Idx, list[UOp], list[UOp]]:
    """Index expressions of the output's axes, the loops (THREAD first) and the register ranges that they are made
    of."""
    opts = ctx.opts
    trips = {a: -(-n // _tile(a, n, opts)) for a, n in enumerate(shape)}
    loops: dict[int, UOp] = {}
    shared: list[UOp] = []
    merged = [a for a in opts.threads if trips[a] > 1]
    if merged:
        count = 1
        for a in merged:
            count *= trips[a]
        rest = ctx.range(count, AxisType.THREAD)
        shared = [rest]
        for a in reversed(merged):
            loops[a] = ctx.simplify(rest % trips[a]) if a != merged[0] else rest
            rest = ctx.simplify(rest // trips[a])
    for a in opts.order or range(len(shape)):
        if a not in loops and trips[a] > 1:
            loops[a] = ctx.range(trips[a], AxisType.LOOP)
            shared.append(loops[a])
    idx, tiles = [], []
    for a, n in enumerate(shape):
        at, made = _tile_index(a, n, loops.get(a, ZERO), ctx)
        idx.append(at)
        tiles += made
    return tuple(idx), shared, tiles


def _with_lanes(opts: Opts, shape: tuple[int, ...]) -> Opts:
    """Options that upcast the last axis but say nothing of lanes get lanes along it: its elements are neighbours."""
    last = len(shape) - 1
    together = opts.upcast_of(last) if shape else 1
    if opts.vector is not None or opts.reduce_lanes > 1 or together < 2:
        return opts
    return replace(opts, vector=last, lanes=min(MAX_LANES, together & -together))


def _lanes(axis: int, size: int, opts: Opts) -> int:
    return min(opts.lanes, _power_of_two_below(size)) if axis == opts.vector and size else 1


def _tile(axis: int, size: int, opts: Opts) -> int:
    """How many elements of an axis one iteration computes: whole vectors, and no more than there are."""
    lanes = _lanes(axis, size, opts)
    vectors = max(1, min(opts.upcast_of(axis), size) // lanes)
    return lanes * vectors


def _tile_index(axis: int, size: int, loop: UOp, ctx: Ctx) -> tuple[UOp, list[UOp]]:
    """The index along an axis, and its register ranges.

    Where the tile does not divide the axis, the last tile starts early and computes some elements again: the same
    values, so that no tail code is needed.
    """
    tile, lanes = _tile(axis, size, ctx.opts), _lanes(axis, size, ctx.opts)
    at = loop * tile
    if size % tile:
        at = at.minimum(size - tile)
    made = []
    if tile > lanes:
        made.append(ctx.range(tile // lanes, AxisType.UPCAST))
        at = at + made[-1] * lanes
    if lanes > 1:
        made.append(ctx.range(lanes, AxisType.VECTOR))
        at = at + made[-1]
    return ctx.simplify(at), made
