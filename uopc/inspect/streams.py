"""streams: in which order a LINEAR program walks through memory.

Processors fetch ahead of a walk in small steps, within a page of memory.  A walk that jumps sooner, such as one down
the columns of a narrow block, waits for each cache line as if the lines came in no order at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from uopc.count import evaluate
from uopc.rangeify.nest import statements
from uopc.target import PAGE
from uopc.uop import Ops, UOp, memory_of, toposort

STREAMS = 16  # walks that a processor keeps apart


def unforeseen_in(linear: UOp) -> set[UOp]:
    """Values that depend on what was loaded."""
    out: set[UOp] = set()
    for u in linear.src:
        if u.op is Ops.LOAD or (u.op not in (Ops.INDEX, Ops.AFTER, Ops.STORE) and not out.isdisjoint(u.src)):
            out.add(u)
    return out


def jumping(linear: UOp) -> set[UOp]:
    """The BUFFERs that are walked through in runs shorter than a page, and that are larger than one."""
    groups: dict[tuple[UOp, tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
    for u, loops in statements(linear):
        if u.op not in (Ops.LOAD, Ops.STORE) or u.src[0].op is not Ops.INDEX:
            continue
        memory, index = memory_of(u.src[0]), u.src[0].src[1]
        if memory.op is not Ops.BUFFER or memory.dtype.itemsize * math.prod(memory.arg.shape) <= PAGE:
            continue
        place = _place(index, loops)
        if place is None:
            continue
        size, value = memory.dtype.itemsize, u if u.op is Ops.LOAD else u.src[1]
        width = size * (1 if index.dtype.count > 1 else value.dtype.count)
        steps = tuple(size * s for s in reversed(place.steps))
        parts = groups.setdefault((memory, steps, tuple(r.vmax + 1 for r in reversed(loops))), [])
        parts += [(size * (place.start + lane * place.lane), width) for lane in range(index.dtype.count)]
    return {key[0] for key, parts in groups.items() if run(parts, key[1], key[2]) < PAGE}


def conflicting(index: UOp, itemsize: int) -> bool:
    """Whether lanes lie so far apart that the lines they touch push each other out of L1."""
    place = _place(index, [])
    return place is not None and place.lane != 0 and place.lane * itemsize % PAGE == 0


@dataclass(frozen=True)
class _Place:
    """Where an index begins, by how much it grows with each loop, and from lane to lane; in elements."""

    start: int
    steps: list[int]
    lane: int


def _place(index: UOp, loops: Sequence[UOp]) -> _Place | None:
    """None where memory is asked."""
    order = toposort(index)
    if any(u.op is Ops.LOAD for u in order):
        return None
    at = {u: 0 for u in order if u.op is Ops.RANGE}

    def lanes(at: dict[UOp, Any]) -> list[int]:
        return [int(x) for x in np.ravel(evaluate(index, at))[:2]]

    start = lanes(at)
    steps = [lanes({**at, r: 1})[0] - start[0] if r in at else 0 for r in loops]
    return _Place(start[0], steps, start[-1] - start[0])


def run(parts: list[tuple[int, int]], steps: tuple[int, ...], trips: tuple[int, ...]) -> int:
    """How many bytes accesses that differ in where they begin (start, width) walk through before they jump; steps,
    trips: of the loops around them, innermost first.  Up to ``STREAMS`` places are walked from at once."""
    starts = sorted(set(parts))
    length, streams = starts[0][1], []
    for (before, _), (start, width) in pairwise(starts):
        if start - before <= length:
            length = max(length, start - starts[0][0] + width)
        else:
            streams.append((start - starts[0][0], round((starts[-1][0] - starts[0][0]) / (start - starts[0][0])) + 1))
            break
    for step, n in [(abs(s), n) for s, n in zip(steps, trips) if s and n > 1]:
        if step <= length:
            length = max(length, step * (n - 1) + length)
        else:
            streams.append((step, n))
        for gap, count in list(streams):
            if gap <= length:  # the runs from one place reach the next
                length += gap * (count - 1)
                streams.remove((gap, count))
        if math.prod(count for _, count in streams) > STREAMS:
            return length
    return max(length, PAGE)  # it never jumps
