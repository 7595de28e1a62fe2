"""Movement operations: the index of the source, from the index of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from uopc.memo import SHAPES
from uopc.ops import Ops
from uopc.rangeify.context import ZERO, Ctx, Idx
from uopc.uop import UOp


def reshape_groups(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Axes of two shapes of as many elements (more than none) in the smallest groups whose sizes multiply to the
    same."""
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
        yield slice(i0, i), slice(j0, j)


def _reshape(u: UOp, idx: Idx, ctx: Ctx) -> Idx:
    """Flatten and unflatten, group by group: axes whose sizes multiply to the same on both sides keep to themselves."""
    old, new = u.src[0].shape, u.shape
    if 0 in old:  # there is no such element
        return (ZERO,) * len(old)
    axes = _same_axes(old, new)
    if axes is not None:
        return tuple([ZERO if a is None else idx[a] for a in axes])
    return tuple(i for a, b in reshape_groups(old, new) for i in _regroup(idx[b], new[b], old[a], ctx))


@lru_cache(maxsize=SHAPES)
def _same_axes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Where a reshape only adds and drops axes of size 1: for each old axis the new one that it is (None: its size is
    1).  None where it cuts or joins axes."""
    wide = [k for k, n in enumerate(new) if n != 1]
    if [n for n in old if n != 1] != [new[k] for k in wide]:
        return None
    rest = iter(wide)
    return tuple(None if n == 1 else next(rest) for n in old)


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
    return tuple([ZERO if was == 1 else i for i, was in zip(idx, u.src[0].shape)])


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


MOVES: dict[Ops, Callable[[UOp, Idx, Ctx], Idx]] = {
    Ops.RESHAPE: _reshape,
    Ops.EXPAND: _expand,
    Ops.PERMUTE: _permute,
    Ops.SHRINK: _shrink,
    Ops.FLIP: _flip,
    Ops.STRIDE: _stride,
    Ops.VIEW: _view,
}
