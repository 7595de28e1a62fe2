"""streams: in which order a LINEAR program walks through memory.

Processors fetch ahead of a walk in small steps, within a page of memory.  A walk that jumps sooner, such as one down
the columns of a narrow block, waits for each cache line as if the lines came in no order at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from uopc.count import evaluate, memory_of
from uopc.uop import Ops, UOp, toposort

LINE = 64  # bytes that memory moves at a time
PAGE = 4096  # bytes: what is further on may lie anywhere, and lines that lie so far apart share their place in L1
STREAMS = 16  # walks that a processor keeps apart


def statements(linear: UOp) -> Iterator[tuple[UOp, UOp | None]]:
    """Each statement with the loop right around it."""
    loops: list[UOp] = []
    for u in linear.src:
        if u.op is Ops.RANGE:
            loops.append(u)
        elif u.op is Ops.END:
            loops.pop()
        else:
            yield u, loops[-1] if loops else None


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
    for u, loops in _accesses(linear):
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


def _accesses(linear: UOp) -> Iterator[tuple[UOp, list[UOp]]]:
    """Loads and stores, with the loops around them."""
    loops: list[UOp] = []
    for u in linear.src:
        if u.op is Ops.RANGE:
            loops.append(u)
        elif u.op is Ops.END:
            loops.pop()
        elif u.op in (Ops.LOAD, Ops.STORE) and u.src[0].op is Ops.INDEX:
            yield u, list(loops)


def _place(index: UOp, loops: list[UOp]) -> _Place | None:
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
