"""What holds of cascades and tiles: shapes that belong together, running values where they have one, and tiles that are
large enough for those who read them and small enough for a stack.

How much of a tile is read follows from the block at hand: each value's users read so many elements of it along each of
its axes, at least (a *window*), from the results down.  Where a reshape cuts or joins axes, or an index is computed,
one element is all that is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from uopc._hot.graph import of_ops
from uopc.ops import ALU, MOVEMENT, TABLE, CascadeArg, Flags, KernelInfo, Level, Ops, Tile
from uopc.spec.nodes import Fault
from uopc.uop import UOp, toposort, unmoved

Window = tuple[int, ...]
_CASCADES = frozenset((int(Ops.CASCADE), int(Ops.STATE), int(Ops.COMPONENT)))


# ---- single nodes --------------------------------------------------------------------------------


def levelled(u: UOp) -> Fault | None:
    """A STAGE before there are tiles."""
    return None if isinstance(u.arg, Level) else (24, u, "there are no tiles yet")


def tiled(u: UOp) -> Fault | None:
    """A STAGE of a kernel."""
    tile = u.arg
    if not isinstance(tile, Tile):
        return 24, u, "a kernel writes down nothing but tiles"
    if tile.accumulate and u.src[0].op is not Ops.REDUCE:
        return 27, u, f"it accumulates {u.src[0]!r}"
    return _tile(u, tile, u.shape)


def _tile(u: UOp, tile: Tile, shape: Window) -> Fault | None:
    """The fault of a tile of values of a shape, at the node that has it."""
    axes = list(range(len(shape)))
    if len(tile.extents) != len(shape):
        return 25, u, f"extents {tile.extents} of a value of shape {shape}"
    if tile.layout is not None and sorted(tile.layout) != axes:
        return 25, u, f"layout {tile.layout} of a value of shape {shape}"
    open_ended = [n for n in tile.extents if n < 0]
    if 0 in tile.extents or len(open_ended) > 1 or (open_ended and u.op is Ops.CASCADE):
        return 26, u, f"extents {tile.extents} of a value of shape {shape}"
    return None


def plain_cascade(u: UOp) -> Fault | None:
    """A CASCADE before there are blocks."""
    if u.arg.block or any(c.tile is not None for c in u.arg.components):
        return 24, u, "a cascade has no blocks or tiles yet"
    return tiled_cascade(u)


def tiled_cascade(u: UOp) -> Fault | None:
    """A CASCADE: its sources are those of its components."""
    arg: CascadeArg = u.arg
    count, corrected = len(arg.components), sum(c.corrected for c in arg.components)
    wanted = count + corrected + (count if arg.test_lanes else 0)
    if not count or len(u.src) != wanted:
        what = f"{count} components, {corrected} of them corrected{', with tests' if arg.test_lanes else ''}"
        return 28, u, f"{len(u.src)} sources for {what}: {wanted} are wanted"
    first = arg.components[0]
    length = u.src[0].shape[first.axis] * first.steps if 0 <= first.axis < len(u.src[0].shape) else 0
    for k in range(count):
        fault = _component(u, k, length)
        if fault is not None:
            return fault
    return None


def _component(u: UOp, k: int, length: int) -> Fault | None:
    """The fault of one component of a CASCADE whose axis is ``length`` long."""
    c, (body, correction, test) = u.arg.components[k], _parts(u)[k]
    if not (TABLE[c.op].flags & Flags.ASSOCIATIVE and TABLE[c.op].flags & Flags.COMMUTATIVE):
        return 3, u, f"{c.op!r} is not associative and commutative"
    if not 0 <= c.axis < len(body.shape) or c.steps < 1:
        return 28, u, f"component {k} runs along axis {c.axis} of shape {body.shape}, {c.steps} steps at once"
    if body.shape[c.axis] != -(-length // c.steps):
        return 28, u, f"component {k} has {body.shape[c.axis]} times {c.steps} steps, and the first one {length}"
    shape = _without(body.shape, c.axis)
    if correction is not None and (correction.shape not in (shape, ()) or correction.dtype is not body.dtype):
        return 28, u, f"the correction of component {k}, {shape} of {body.dtype!r}, is {correction!r}"
    if test is not None and (_without(test.shape, c.axis) != shape or not (test.dtype.is_int or test.dtype.is_bool)):
        return 28, u, f"the test of component {k}, of shape {body.shape}, is {test!r}"
    return None if c.tile is None else _tile(u, c.tile, shape)


def _without(shape: Window, axis: int) -> Window:
    return (*shape[:axis], *shape[axis + 1 :])


def _parts(u: UOp) -> list[tuple[UOp, UOp | None, UOp | None]]:
    """For each component of a CASCADE its body, its correction and its test."""
    components = u.arg.components
    tests = u.src[len(u.src) - len(components) :] if u.arg.test_lanes else (None,) * len(components)
    rest = iter(u.src)
    return [(next(rest), next(rest) if c.corrected else None, test) for c, test in zip(components, tests)]


# ---- cascades in a graph -------------------------------------------------------------------------


def cascade_faults(order: list[UOp], roots: Sequence[UOp]) -> Iterator[Fault]:
    """What is wrong with the running and final values of a graph, of which ``order`` holds the nodes, sources first."""
    if not any(u.code in _CASCADES for u in order):
        return
    ids: dict[int, UOp] = {}
    below: dict[UOp, frozenset[UOp]] = {}  # STATEs that no CASCADE above them is that of
    for u in order:
        open_states = frozenset((u,)) if u.op is Ops.STATE else frozenset().union(*(below.get(s, ()) for s in u.src))
        if u.op is Ops.COMPONENT:
            yield from _final(u)
        if u.op is Ops.CASCADE:
            if ids.setdefault(u.arg.id, u) is not u:
                yield 28, u, f"{ids[u.arg.id]!r} has the number {u.arg.id} too"
            for k, part in enumerate(_parts(u)):
                own = [s for v in part if v is not None for s in below.get(v, ()) if s.arg.cascade == u.arg.id]
                yield from _running(u, k, own)
            open_states = frozenset(s for s in open_states if s.arg.cascade != u.arg.id)
        if open_states:
            below[u] = open_states
    for root in roots:
        for s in below.get(root, ()):
            yield 29, s, f"it stands under no CASCADE with the number {s.arg.cascade}"


def _final(u: UOp) -> Iterator[Fault]:
    """What is wrong with a COMPONENT."""
    node = u.src[0]
    if node.op is not Ops.CASCADE:
        yield 29, u, f"its source is {node!r}"
    else:
        yield from _is_component(u, node)


def _running(node: UOp, k: int, states: list[UOp]) -> Iterator[Fault]:
    """What is wrong with the STATEs of a CASCADE that its component ``k`` uses."""
    for s in states:
        yield from _is_component(s, node)
        if s.arg.component >= k:
            yield 29, s, f"component {k} of {node!r} uses the running value of component {s.arg.component}"


def _is_component(u: UOp, node: UOp) -> Iterator[Fault]:
    """Whether a STATE or COMPONENT has number, shape and dtype of a component of a CASCADE."""
    k, components = u.arg.component, node.arg.components
    if not 0 <= k < len(components):
        yield 29, u, f"component {k} of {len(components)}"
        return
    body = _parts(node)[k][0]
    shape = _without(body.shape, components[k].axis)
    if u.shape != shape or u.dtype is not body.dtype:
        yield 29, u, f"component {k} of {node!r} is {shape} of {body.dtype!r}"


# ---- tiles in a kernel ---------------------------------------------------------------------------


class _Reads:
    """What one block of a kernel reads of each value, from the results down."""

    def __init__(self, root: UOp) -> None:
        self.windows: dict[UOp, Window] = {}
        self.block: dict[UOp, int] = {}  # elements that a block of the cascade around a value holds
        self.order = toposort(root)
        self.cascades = {u.arg.id: u for u in self.order if u.op is Ops.CASCADE}
        self.asked = self.asked_for()
        shape = tuple(max(sizes) for sizes in zip(*(s.src[0].shape for s in root.src)))
        held = tuple(_held(a, n, root.arg.opts) for a, n in enumerate(shape))
        for store in root.src:
            self.ask(store.src[1], tuple(min(n, m) for n, m in zip(held, store.src[0].shape)), 0)
        for u in reversed(self.order):
            if u.op is Ops.CASCADE:
                self.enter(u)
            elif u in self.windows:
                self.follow(u, self.windows[u], self.block[u])

    def asked_for(self) -> set[tuple[UOp, int]]:
        """The components of each CASCADE that a COMPONENT, or a running value in what is asked for, asks for."""
        todo = [(u.src[0], u.arg.component) for u in self.order if u.op is Ops.COMPONENT]
        asked: set[tuple[UOp, int]] = set()
        while todo:
            node, k = todo.pop()
            if (node, k) not in asked:
                asked.add((node, k))
                states = [s for s in toposort([p for p in _parts(node)[k] if p is not None]) if s.op is Ops.STATE]
                todo += [(self.cascades[s.arg.cascade], s.arg.component) for s in states]
        return asked

    def held(self, u: UOp) -> Window | None:
        """The extents of the tile that ``u`` is read from; None where it is from none."""
        if u.op is Ops.STAGE:
            return _sizes(u.arg, self.block[u])
        if u.op is Ops.COMPONENT or u.op is Ops.STATE:
            node = u.src[0] if u.op is Ops.COMPONENT else self.cascades[u.arg.cascade]
            tile = node.arg.components[u.arg.component].tile
            return None if tile is None else tile.extents
        return None

    def bytes(self) -> int:
        """What the tiles take."""
        total = 0
        for u in self.order:
            if u.op is Ops.STAGE and u in self.windows:
                total += math.prod(_sizes(u.arg, self.block[u])) * u.dtype.itemsize
            elif u.op is Ops.CASCADE:
                for k, (c, (body, *_)) in enumerate(zip(u.arg.components, _parts(u))):
                    if (u, k) in self.asked and c.tile is not None:
                        total += math.prod(c.tile.extents) * body.dtype.itemsize
        return total

    def ask(self, u: UOp, window: Window, block: int) -> None:
        """A user reads ``window`` of ``u``, in a block of so many elements of a cascade."""
        if u.shape == ():
            window = ()
        known = self.windows.get(u, window)
        self.windows[u] = tuple(max(pair) for pair in zip(known, window))
        self.block[u] = max(self.block.get(u, 0), block)

    def enter(self, node: UOp) -> None:
        """The bodies of a CASCADE that is in blocks: as much as their running values' tiles hold, along a block."""
        block = _block(node)
        for k, (c, parts) in enumerate(zip(node.arg.components, _parts(node))):
            if (node, k) in self.asked and c.tile is not None:
                body, correction, _ = parts
                steps = -(-block // c.steps)
                self.ask(body, (*c.tile.extents[: c.axis], steps, *c.tile.extents[c.axis :]), block)
                if correction is not None:
                    self.ask(correction, c.tile.extents, block)

    def follow(self, u: UOp, window: Window, block: int) -> None:
        """What ``u`` reads of its sources, where ``window`` is read of it."""
        if u.op in ALU:
            for s in u.src:
                self.ask(s, window, block)
        elif u.op in MOVEMENT and u.op is not Ops.VIEW:
            self.ask(u.src[0], _moved(u, window), block)
        elif u.op is Ops.REDUCE:
            self.ask(u.src[0], _widened(u, window, 0), block)
        elif u.op is Ops.STAGE:
            extents = _sizes(u.arg, block)
            if u.arg.accumulate:
                self.ask(u.src[0].src[0], _widened(u.src[0], extents, 1), block)
            else:
                self.ask(u.src[0], extents, block)
        elif u.op is Ops.STACK:
            for s in u.src:
                self.ask(s, window[1:], block)
        elif u.op is Ops.CAT:
            for s in u.src:
                beyond = u.shape[u.arg] - s.shape[u.arg]
                self.ask(s, tuple(max(n - beyond, 1) if a == u.arg else n for a, n in enumerate(window)), block)
        elif u.op is Ops.GATHER:
            self.ask(u.src[0], (1,) * len(u.src[0].shape), block)
            for s in u.src[1:]:
                self.ask(s, window, block)


def _held(axis: int, size: int, opts: Any) -> int:
    """How much of an output axis one block holds, at least."""
    if opts.block_of(axis) or not opts.block or axis not in opts.threads:
        return min(opts.block_of(axis) or size, size)
    return 1 if axis == opts.vector else min(opts.upcast_of(axis), size)  # threads share it register tile by tile


def _block(node: UOp) -> int:
    """How many elements of its axis a block of a CASCADE holds."""
    first = node.arg.components[0]
    length = node.src[0].shape[first.axis] * first.steps
    return min(node.arg.block or length, length)


def _sizes(tile: Tile, block: int) -> Window:
    """The extents of a tile in a block of so many elements of a cascade."""
    return tuple(n if n > 0 else -(-block // -n) for n in tile.extents)


def _widened(u: UOp, window: Window, steps: int) -> Window:
    """What a REDUCE reads: ``steps`` elements (0: all) of what it reduces."""
    rest = iter(window)
    return tuple(steps or n if a in u.arg.axes else next(rest) for a, n in enumerate(u.src[0].shape))


def _moved(u: UOp, window: Window) -> Window:
    """What a movement op reads of its source."""
    shape = u.src[0].shape
    if u.op is Ops.RESHAPE:
        return _reshaped(shape, u.shape, window)
    if u.op is Ops.EXPAND:
        return tuple(min(n, size) for n, size in zip(window, shape))
    if u.op is Ops.PERMUTE:
        return tuple(window[u.arg.index(a)] for a in range(len(shape)))
    if u.op is Ops.STRIDE:
        return tuple((n - 1) * step + 1 for n, step in zip(window, u.arg))
    if u.op is Ops.PAD:
        return tuple(max(n - before - after, 1) for n, (before, after) in zip(window, u.arg))
    return window  # SHRINK, FLIP


def _reshaped(old: Window, new: Window, window: Window) -> Window:
    """Axes that a reshape leaves as they are; of those between that it cuts or joins one element, or all where all is
    read."""
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        rest = iter([w for n, w in zip(new, window) if n != 1])
        return tuple(1 if n == 1 else next(rest) for n in old)
    first = next(a for a, pair in enumerate(zip_longest(old, new)) if pair[0] != pair[1])
    behind = zip_longest(old[:first:-1], new[:first:-1])
    last = next((a for a, pair in enumerate(behind) if pair[0] != pair[1]), 0)
    between = slice(first, len(new) - last)
    cut = old[first : len(old) - last]
    whole = window[between] == new[between]
    return (*window[:first], *(cut if whole else (1,) * len(cut)), *window[len(new) - last :])


def _kernel(root: UOp) -> Fault | None:
    """Invariant 30."""
    if root.op is not Ops.SINK or not isinstance(root.arg, KernelInfo):
        return 30, root, "it is no SINK with a name"
    for store in root.src:
        if store.op is not Ops.STORE:
            return 30, store, "it is no STORE"
        target, value = store.src[:2]
        if (
            unmoved(target).op is not Ops.BUFFER
            or target.dtype is not value.dtype
            or value.shape not in (target.shape, ())
        ):
            return 30, store, f"{value!r} is stored to {target!r}"
    return None


def tile_bytes(root: UOp, stack: int) -> int:
    """How many bytes the tiles of a kernel take: one that is filled in several places is counted once.  Where they fit
    ``stack`` bytes by a look at each, that bound."""
    nodes = of_ops(toposort(root), Ops.STAGE, Ops.CASCADE)
    block = max((_block(u) for u in nodes if u.op is Ops.CASCADE), default=0)
    most = 0
    for u in nodes:
        if u.op is Ops.STAGE:
            most += math.prod(_sizes(u.arg, block)) * u.dtype.itemsize
        else:
            tiles = [(c.tile, body) for c, (body, *_) in zip(u.arg.components, _parts(u)) if c.tile is not None]
            most += sum(math.prod(tile.extents) * body.dtype.itemsize for tile, body in tiles)
    return most if most <= stack or root.arg.opts is None else _Reads(root).bytes()


def tile_faults(root: UOp, stack: int | None) -> Iterator[Fault]:
    """What is wrong with a TILED graph as a whole; ``stack``: bytes that its tiles may take (None: any)."""
    fault = _kernel(root)
    if fault is not None:
        yield fault
        return
    if root.arg.opts is None:  # the user's own object ranges it
        return
    reads = _Reads(root)
    for u, window in reads.windows.items():
        if u.op is Ops.STAGE and min(u.arg.extents, default=1) < 0 and not reads.block[u]:
            yield 26, u, f"extents {u.arg.extents} in no block of a cascade"
        held = reads.held(u)
        if held is not None and any(n > m for n, m in zip(window, held)):
            yield 31, u, f"a block reads {window}, and the tile holds {held}"
    kept = reads.bytes()
    if stack is not None and kept > stack:
        yield 32, root, f"its tiles take {kept} bytes of {stack}"
