"""A schedule in words: the sizes of a kernel's loops, blocks and tiles in one line."""

from __future__ import annotations

import math

from uopc.ops import Ops
from uopc.rangeify import Opts
from uopc.uop import UOp, toposort


def describe(root: UOp) -> str:
    """What ``schedule`` and ``blockize`` decided for a kernel (a SINK with ``Opts``)."""
    opts: Opts = root.arg.opts
    parts = [f"tile {_sizes(opts.upcast)}"] if opts.upcast else []
    if opts.unroll > 1:
        parts.append(f"{opts.unroll} steps at once")
    if opts.threads:
        parts.append(f"threads {' '.join(map(str, opts.threads))}")
    if opts.block:
        parts.append(f"blocks {_sizes(opts.block)}")
    order = toposort(root)
    parts += [f"steps {u.arg.block}" for u in order if u.op is Ops.CASCADE]
    tiles = [u for u in order if u.op is Ops.STAGE]
    if tiles:
        parts.append("tiles " + ", ".join(_tile(u) for u in tiles))
    return "; ".join(parts) or "one element at a time"


def _sizes(pairs: tuple[tuple[int, int], ...]) -> str:
    return "x".join(str(n) for _, n in pairs)


def _tile(u: UOp) -> str:
    """A tile's extents (a block of the reduced axis is ``*``), how much of it is filled at once, and how many elements
    are summed before they join it."""
    text = "x".join("*" if n < 0 else str(n) for n in u.arg.extents)
    fill = u.arg.opts
    if fill is not None and fill.upcast:
        text += f" by {_sizes(fill.upcast)}"
    if u.arg.accumulate:
        part = u.src[0].src[0]
        text += f" in sums of {math.prod(part.src[0].shape[a] for a in part.arg.axes)}"
    return text
