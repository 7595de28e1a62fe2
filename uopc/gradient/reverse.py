"""Reverse mode: from the gradient of a result to those of what it was made of, as a graph like any other.

A gradient that is ``WHERE(c, v, 0)`` is known to be 0 where c does not hold, whatever the derivatives there are: c
goes along with v through elementwise operations and movement, and is applied behind them.  So nothing that is infinite
or NaN on the side of a ``where`` that is not taken gets out.  A reduction ends it: behind it the sum is what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from uopc.gradient import elementwise, structure
from uopc.gradient.elementwise import masked
from uopc.gradient.structure import MOVED, ONE_TO_ONE
from uopc.ops import Ops
from uopc.tensor.shapes import expand
from uopc.uop import UOp, toposort


def gradients(roots: Sequence[UOp], seeds: Sequence[UOp], targets: Sequence[UOp]) -> list[UOp | None]:
    """For each target (a node of float type) the sum of ``seed * d(root) / d(target)`` over all roots and elements, in
    the shape and dtype of the target.

    None for what is no part of the graph of any root; 0 for what is, but has no influence that can be differentiated.
    A target that is a BUFFER is also each node whose value it holds.  TypeError for operations without a rule.
    """
    nodes = toposort(list(roots))
    wanted = frozenset(targets)
    names = {u: u.realized if u.realized in wanted else u for u in nodes if u in wanted or u.realized in wanted}
    reached = _reached(nodes, names)
    parts: dict[UOp, list[UOp]] = {}
    for root, seed in zip(roots, seeds):
        parts.setdefault(root, []).append(seed)
    found: dict[UOp, list[UOp]] = {name: [] for name in names.values()}
    for u in reversed(nodes):
        if u not in reached or u not in parts:
            continue
        g = _total(parts.pop(u))
        if u in names:
            found[names[u]].append(g)
        for s, part in zip(u.src, _sources(u, g, reached)):
            if part is not None:
                parts.setdefault(s, []).append(part)
    return [_result(t, found.get(t)) for t in targets]


def _result(target: UOp, parts: list[UOp] | None) -> UOp | None:
    if parts is None:
        return None
    return _total(parts) if parts else expand(UOp.const(0, target.dtype), target.shape)


# ---- which nodes ----

_KNOWN = frozenset({*elementwise.RULES, *MOVED, *structure.RULES, Ops.ALIAS})


def _differentiated(u: UOp) -> tuple[UOp, ...]:
    """The sources that a gradient may flow to."""
    if u.op is Ops.ALIAS:
        return u.src if u.arg is not None else u.src[1:]
    return u.src[:1] if u.op is Ops.GATHER else u.src


def _reached(nodes: list[UOp], targets: dict[UOp, UOp]) -> set[UOp]:
    """The nodes of float type that are targets, or made of such ones.  TypeError where one has no rule."""
    reached: set[UOp] = set()
    for u in nodes:
        follows = any(s in reached for s in _differentiated(u))
        if follows and u.op not in _KNOWN:
            raise TypeError(
                f"a gradient through {u.op!r} is not defined; accepted are the operations of Tensors, not what is made "
                "of them later (cascades, loops)"
            )
        if u.dtype.is_float and (follows or u in targets):
            reached.add(u)
    return reached


# ---- one node ----


def _split(g: UOp) -> tuple[UOp, UOp | None]:
    """A gradient, and where it is anything but 0 if that is known."""
    if g.op is Ops.WHERE and g.src[2].op is Ops.CONST and g.src[2].arg == 0 and g.src[1].shape == g.shape:
        return g.src[1], expand(g.src[0], g.shape)
    return g, None


def _joined(mask: UOp | None, g: UOp) -> UOp:
    if mask is None:
        return g
    value, inner = _split(g)
    return masked(mask if inner is None else mask & inner, value)


def _sources(u: UOp, g: UOp, reached: set[UOp]) -> list[UOp | None]:
    """What the gradient ``g`` of ``u`` adds to those of its sources; None where that is nothing."""
    if not any(s in reached for s in u.src):
        return []
    if u.op is Ops.ALIAS:
        return [g if s in reached and s in _differentiated(u) else None for s in u.src]
    if u.op in elementwise.RULES:
        value, mask = _split(g)
        rules = elementwise.RULES[u.op]
        return [_joined(mask, rule(u, value)) if rule and s in reached else None for rule, s in zip(rules, u.src)]
    if u.op in MOVED:
        return [_moved(u, g)]
    return [part if s in reached else None for part, s in zip(structure.RULES[u.op](u, g), u.src)]


def _moved(u: UOp, g: UOp) -> UOp:
    """Through a movement op, with the mask where that can be moved too."""
    value, mask = _split(g)
    if mask is not None and u.op in ONE_TO_ONE:
        return masked(MOVED[u.op](u, mask), MOVED[u.op](u, value))
    if mask is not None and mask.op is Ops.EXPAND:
        old, copied = mask.src[0], [m != n for m, n in zip(u.src[0].shape, u.shape)]
        if all(n == 1 for n, many in zip(old.shape, copied) if many):  # one mask for all copies
            return masked(expand(old, u.src[0].shape), MOVED[u.op](u, value))
    return MOVED[u.op](u, g)


# ---- sums ----


def _total(parts: list[UOp]) -> UOp:
    """The sum of gradients from several uses."""
    if len(parts) == 1:
        return parts[0]
    parts = _laid_out(parts)
    masks = dict.fromkeys(mask for _, mask in map(_split, parts))
    if None in masks:
        return _added(parts)
    first, *others = [mask for mask in masks if mask is not None]
    if not others:
        return masked(first, _added([_split(g)[0] for g in parts]))
    for mask in others:
        first = first | mask
    return masked(first, _added(parts))


def _added(parts: list[UOp]) -> UOp:
    total = parts[0]
    for g in parts[1:]:
        total = total + g
    return total


def _laid_out(parts: list[UOp]) -> list[UOp]:
    """Gradients of slices that lie side by side along an axis as one that joins them, in place of a sum of paddings."""
    others: list[UOp] = []
    by_axis: dict[int, list[UOp]] = {}
    for g in parts:
        padded = [a for a, edges in enumerate(g.arg) if edges != (0, 0)] if g.op is Ops.PAD else []
        (by_axis.setdefault(padded[0], []) if len(padded) == 1 else others).append(g)
    for axis, slices in by_axis.items():
        line = _side_by_side(slices, axis) if len(slices) > 1 else None
        others += slices if line is None else [line]
    return others


def _side_by_side(slices: list[UOp], axis: int) -> UOp | None:
    """Paddings of slices along one axis as a CAT; None where slices overlap."""
    pieces: list[UOp] = []
    end = 0
    for g in sorted(slices, key=lambda g: g.arg[axis]):
        start = g.arg[axis][0]
        if start < end:
            return None
        pieces += [_zeros(g, axis, start - end)] if start > end else []
        pieces.append(g.src[0])
        end = start + g.src[0].shape[axis]
    size = slices[0].shape[axis]
    pieces += [_zeros(slices[0], axis, size - end)] if end < size else []
    return UOp(Ops.CAT, tuple(pieces), axis)


def _zeros(like: UOp, axis: int, size: int) -> UOp:
    return expand(UOp.const(0, like.dtype), tuple([size if a == axis else n for a, n in enumerate(like.shape)]))
