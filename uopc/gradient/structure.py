"""Derivatives of what moves, joins, picks and reduces elements: each gives the gradients of all sources at once.

``MOVED[op](u, g)`` is the gradient of the source of a movement op: every element goes back to where it came from.
Those of ``ONE_TO_ONE`` move an element to one place at most, so that a mask moves as a value does.

``RULES[op](u, g)`` has an entry for each source, None where there is no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from uopc.dtype import dtypes
from uopc.gradient.elementwise import masked
from uopc.ops import Ops, ReduceArg
from uopc.tensor.reduce import kept, reduce_
from uopc.tensor.scans import scan
from uopc.tensor.shapes import Shape, counter, expand, permute, reshape
from uopc.uop import UOp, widened

# ---- movement ----


def shrink(u: UOp, axis: int, first: int, last: int) -> UOp:
    """A part of one axis."""
    bounds = tuple([(first, last) if a == axis else (0, n) for a, n in enumerate(u.shape)])
    return u if (first, last) == (0, u.shape[axis]) else UOp(Ops.SHRINK, (u,), bounds)


def pad(u: UOp, axis: int, before: int, behind: int) -> UOp:
    """Zeros around one axis."""
    edges = tuple([(before, behind) if a == axis else (0, 0) for a in range(len(u.shape))])
    return u if before == behind == 0 else UOp(Ops.PAD, (u,), edges)


def _expanded(u: UOp, g: UOp) -> UOp:
    """The sum over the copies."""
    old = u.src[0].shape
    return reduce_(g, Ops.ADD, tuple([a for a, (m, n) in enumerate(zip(old, u.shape)) if m != n]), keepdim=True)


def _permuted(u: UOp, g: UOp) -> UOp:
    return permute(g, tuple([u.arg.index(a) for a in range(len(u.arg))]))


def _shrunk(u: UOp, g: UOp) -> UOp:
    return UOp(Ops.PAD, (g,), tuple([(lo, n - hi) for (lo, hi), n in zip(u.arg, u.src[0].shape)]))


def _padded(u: UOp, g: UOp) -> UOp:
    return UOp(Ops.SHRINK, (g,), tuple([(lo, lo + n) for (lo, _), n in zip(u.arg, u.src[0].shape)]))


def _strided(u: UOp, g: UOp) -> UOp:
    """Zeros between the elements: each begins a row of its own."""
    for axis, (step, n) in enumerate(zip(u.arg, u.src[0].shape)):
        if step > 1:
            m, shape = g.shape[axis], g.shape
            rows = pad(reshape(g, (*shape[: axis + 1], 1, *shape[axis + 1 :])), axis + 1, 0, step - 1)
            line = reshape(rows, (*shape[:axis], m * step, *shape[axis + 1 :]))
            g = shrink(line, axis, 0, n) if m * step >= n else pad(line, axis, 0, n - m * step)
    return g


MOVED: dict[Ops, Callable[[UOp, UOp], UOp]] = {
    Ops.RESHAPE: lambda u, g: reshape(g, u.src[0].shape),
    Ops.EXPAND: _expanded,
    Ops.PERMUTE: _permuted,
    Ops.SHRINK: _shrunk,
    Ops.FLIP: lambda u, g: UOp(Ops.FLIP, (g,), u.arg),
    Ops.STRIDE: _strided,
    Ops.PAD: _padded,
}
ONE_TO_ONE = frozenset(MOVED) - {Ops.EXPAND}


# ---- joining and picking ----


def _stacked(u: UOp, g: UOp) -> list[UOp | None]:
    return [reshape(shrink(g, 0, i, i + 1), s.shape) for i, s in enumerate(u.src)]


def _joined(u: UOp, g: UOp) -> list[UOp | None]:
    parts: list[UOp | None] = []
    start = 0
    for s in u.src:
        parts.append(shrink(g, u.arg, start, start + s.shape[u.arg]))
        start += s.shape[u.arg]
    return parts


def _counted_axis(position: UOp) -> int | None:
    """The axis of the picked elements along which a position counts 0, 1, ...; None where it is anything else."""
    u = position
    while u.op in (Ops.EXPAND, Ops.RESHAPE):
        u = u.src[0]
    axes = [a for a, n in enumerate(position.shape) if n > 1]
    return next((a for a in axes if u.op is Ops.IOTA and position is counter(position.shape, a, u.dtype)), None)


def _staying(positions: list[UOp]) -> dict[int, int]:
    """The axes along which nothing was chosen, and which axis of the picks each is."""
    stay: dict[int, int] = {}
    for a, p in enumerate(positions):
        at = _counted_axis(p)
        if at is not None and at not in stay.values():
            stay[a] = at
    return stay


def _picked(u: UOp, g: UOp) -> list[UOp | None]:
    """The sum over all elements that were picked from each place.

    Axes along which nothing was chosen stay where they are.  Along the others, each place looks at every pick: the work
    is the product of the number of picks and of the sizes of those axes, as for a product with a one-hot matrix, of
    which nothing is written down.
    """
    x, *positions = u.src
    stay = _staying(positions)
    rest = tuple([a for a in range(len(u.shape)) if a not in stay.values()])
    # (axes of x, of which those that stay are as long as the picks; axes of the picks to sum over)
    order = (*stay.values(), *rest)
    summed = tuple([u.shape[r] for r in rest])
    ones = (*[u.shape[stay[a]] if a in stay else 1 for a in range(len(x.shape))], *summed)
    whole = (*[u.shape[stay[a]] if a in stay else n for a, n in enumerate(x.shape)], *summed)

    def spread(v: UOp) -> UOp:
        return expand(reshape(permute(v, order), ones), whole)

    value = spread(g)
    for a, p in enumerate(positions):
        if a not in stay:
            value = masked(counter(whole, a, p.dtype).eq(spread(p)), value)
    value = reduce_(value, Ops.ADD, tuple(range(len(x.shape), len(whole))))
    for a, n in enumerate(x.shape):
        value = pad(value, a, 0, n - value.shape[a])
    return [value, *[None] * len(positions)]


# ---- reductions ----


def _back(u: UOp, g: UOp) -> UOp:
    """A value of each row at all its elements."""
    return expand(reshape(g, kept(u.src[0].shape, u.arg.axes)), u.src[0].shape)


def _extreme(u: UOp, g: UOp) -> UOp:
    """To the elements that are extreme (NaN where that is), in equal parts."""
    x = u.src[0]
    hit = x.eq(_back(u, u)) | x.ne(x)
    count = reduce_(hit.cast(dtypes.float32), Ops.ADD, u.arg.axes)
    return masked(hit, _back(u, g / count.cast(g.dtype)))


def _others(u: UOp, g: UOp) -> UOp:
    """The product of all other elements: of those before, and of those behind."""
    x, axes = u.src[0], u.arg.axes
    rest = tuple([a for a in range(len(x.shape)) if a not in axes])
    moved = permute(x, (*rest, *axes))
    n = prod([x.shape[a] for a in axes])
    rows = widened(reshape(moved, (*[x.shape[a] for a in rest], n)))
    if n < 2:
        return _back(u, g)
    last = len(rest)
    others = _before(rows, last) * _flipped(_before(_flipped(rows, last), last), last)
    others = permute(reshape(others.cast(x.dtype), moved.shape), _inverse((*rest, *axes)))
    return _back(u, g) * others


def _flipped(u: UOp, axis: int) -> UOp:
    return UOp(Ops.FLIP, (u,), (axis,))


def _before(rows: UOp, last: int) -> UOp:
    """The product of all elements before each, along the last axis."""
    scanned = scan(shrink(rows, last, 0, rows.shape[last] - 1), Ops.MUL, rows.dtype)
    return UOp(Ops.CAT, (expand(UOp.const(1.0, rows.dtype), (*rows.shape[:last], 1)), scanned), last)


def _inverse(order: Shape) -> Shape:
    return tuple([order.index(a) for a in range(len(order))])


REDUCED: dict[Ops, Callable[[UOp, UOp], UOp]] = {
    Ops.ADD: _back,
    Ops.MUL: _others,
    Ops.MAX: _extreme,
    Ops.MIN: _extreme,
}


def _reduced(u: UOp, g: UOp) -> list[UOp | None]:
    assert isinstance(u.arg, ReduceArg)
    return [REDUCED[u.arg.op](u, g) if u.arg.axes else g]


RULES: dict[Ops, Callable[[UOp, UOp], list[UOp | None]]] = {
    Ops.STACK: _stacked,
    Ops.CAT: _joined,
    Ops.GATHER: _picked,
    Ops.REDUCE: _reduced,
    Ops.STAGE: lambda u, g: [g],
}
