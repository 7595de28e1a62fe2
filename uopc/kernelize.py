"""kernelize: decide which values are written down.

In: a SINK of tensor expressions.  Out: the same graph with ``STAGE(x, Level.KERNEL)`` around every value that gets a
buffer: the roots, and each value for which writing it down is predicted to be cheaper than computing it again wherever
it is used.  The pipeline then makes a kernel of each, or of several that share a cascade.

The question is asked from the roots downwards.  An *instance* of a node is a use of it by a kernel at an index; the
index is known only by the loops that each of its axes depends on, which is enough to tell how often the node would be
computed there: once for every iteration of the loops around the innermost loop that it mentions.  Recompute factors
decide, not operator names.

These rules ask what a value costs, in one pass.  What the kernel costs that takes it in, only that kernel can tell:
then ``uopc/fusion.py`` compares prices, and moves the cuts where a product would lose its tile and its blocks.

Never moves a cut that the options ask for: ``fuse_reduce=False`` cuts at every REDUCE, True at none and at no
broadcast.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from uopc.blockize.sizes import most_width
from uopc.cost import CACHED, expensive, slots_of, weights
from uopc.dtype import dtypes
from uopc.fusion import Comparison, Price, fusion
from uopc.instances import Axes, KernelLoops, fresh_index, index_below, keeps_index
from uopc.isolate import reduction
from uopc.ops import ALU, MOVEMENT, Level, Ops, Order
from uopc.runtime.device import host
from uopc.target import Target
from uopc.uop import UOp, sink, toposort, unmoved

# What the broadcast rule asks for before it writes a value down: this factor, and this many element operations saved.
BROADCAST_FACTOR = 4
BROADCAST_WORK = 4096
# No register tile uses an element that it has computed more often than this, before it computes it again.
TILE_USES = 64
# A kernel longer than this is cut, so that the C compiler's time stays linear in the graph.
MAX_KERNEL_OPS = 400
# Simple operations that a value takes at most which one kernel uses at its own index alone: what takes longer, blockize
# keeps in a tile.
MOST_AGAIN = 20.0
# More uses than this at different indices are not followed.
MAX_INSTANCES = 24
# STACKs and CATs of more or dearer sources are written source by source; others are a choice made for each element.
MAX_INLINE_SOURCES = 4
# STACKs and CATs of more sources than this are written by several kernels, so that no kernel has thousands of
# arguments.
GROUP = 32

_WRITTEN = frozenset({Ops.REDUCE, Ops.STAGE, Ops.COMPONENT})
_CHOICE = frozenset({Ops.STACK, Ops.CAT})


class _Costs:
    """Seconds to compute one element of a node from what is in memory; a REDUCE below counts as a load."""

    def __init__(self, order: list[UOp], target: Target) -> None:
        self.weights = weights(target)
        operation = self.weights.operation
        self.time: dict[UOp, float] = {}
        for u in order:
            if u.op is Ops.REDUCE:
                count = math.prod(u.src[0].shape[a] for a in u.arg.axes)
                self.time[u] = count * (self.below(u.src[0]) + operation)
            elif u.op is Ops.CASCADE:
                self.time[u] = sum(math.prod(s.shape) * (self.below(s) + operation) for s in u.src)
            elif u.op is Ops.COMPONENT:
                self.time[u] = self.time[u.src[0]] / max(math.prod(u.shape), 1)
            elif u.op in (Ops.BUFFER, Ops.STAGE):
                self.time[u] = u.dtype.itemsize * self.weights.byte * CACHED
            else:
                slots = slots_of(u, target) if u.op in ALU else 0.0
                own = operation * slots * max(u.dtype.itemsize / 4, 1)
                self.time[u] = own + sum(self.below(s) for s in u.src)

    def below(self, u: UOp) -> float:
        return u.dtype.itemsize * self.weights.byte * CACHED if u.op in _WRITTEN else self.time[u]


def runs(sources: tuple[UOp, ...]) -> Iterator[tuple[int, int]]:
    """The sources of a STACK or CAT that one kernel writes: first and last (exclusive) of each run of one shape."""
    first = 0
    while first < len(sources):
        last = first
        while last < len(sources) and last - first < GROUP and sources[last].shape == sources[first].shape:
            last += 1
        yield first, last
        first = last


class Choice(NamedTuple):
    """Whether a value is written down, and what decided."""

    written: bool
    reason: str


def _by_cost(written: bool) -> Choice:
    return Choice(written, "computing again costs more" if written else "writing down costs more")


class _Cuts:
    """The traversal: every node after all its users."""

    def __init__(self, root: UOp, fuse_reduce: bool | None, target: Target) -> None:
        self.fuse_reduce, self.target = fuse_reduce, target
        self.order = toposort(root)
        self.costs = _Costs(self.order, target)
        self.weights = self.costs.weights
        self.choices: dict[UOp, Choice] = {}
        # each with whether its index is that of the kernel's output, axis by axis
        self.instances: dict[UOp, dict[tuple[KernelLoops, Axes], bool]] = {}
        self.consumers: dict[UOp, int] = {}
        for u in self.order:
            for s in u.src:
                self.consumers[s] = self.consumers.get(s, 0) + 1
        self.staged: set[UOp] = {s for s in root.src if s.op not in (Ops.STAGE, Ops.BUFFER)}
        self.together: set[UOp] = set()
        self.at_root: set[UOp] = set()  # STACKs and CATs below nothing but what reorders them
        self.under_stage = {u.src[0] for u in self.order if u.op is Ops.STAGE}
        self.place = {u: k for k, u in enumerate(self.order)}
        # products under sums of a fixed order, which round neither there nor, written down, before
        self.products = {
            u.src[0] for u in self.order if u.op is Ops.REDUCE and u.arg.order is not Order.ANY and u.arg.op is Ops.ADD
        }
        # what is computed element by element from the results of a cascade
        self.running: set[UOp] = set()
        for u in self.order:
            if u.op is Ops.COMPONENT or (u.op in ALU | MOVEMENT and any(s in self.running for s in u.src)):
                self.running.add(u)

    def run(self) -> set[UOp]:
        """The nodes to write down."""
        for u in reversed(self.order):
            if u.op in (Ops.SINK, Ops.CONST, Ops.BUFFER):
                continue
            if u.op is Ops.STAGE:
                continue
            if u.op is Ops.CASCADE:
                self.keep_together(u)
                first = next(iter(self.instances[u]), None)
                self.instances[u] = {} if first is None else {first: True}  # its kernels will be one
            written = u in self.staged or u in self.under_stage
            if u in self.together and u.op is Ops.REDUCE and not written:
                kernels = dict.fromkeys(kernel for kernel, _ in self.instances.get(u, ()))
                self.pass_down(u, {(kernel, fresh_index(u, kernel)): False for kernel in kernels})
            elif u in self.at_root:
                self.write_sources(u)
            elif written or (self.instances.get(u) and self.choose(u).written):
                self.staged.add(u)
                if u.op in _CHOICE:
                    self.write_sources(u)
                else:
                    self.write(u)
            else:
                self.pass_down(u, dict(self.instances.get(u, ())))
        return self.staged

    def write(self, u: UOp) -> None:
        """The first use by the kernel that writes ``u``: below what only reorders it, which moves to the place
        written."""
        value = u
        while value.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP):
            value = value.src[0]
        if value is u:
            self.pass_down(u, {self.start_kernel(u): True})
        elif value.op in _CHOICE and self.consumers[value] == 1:
            self.at_root.add(value)
        else:
            self.instances.setdefault(value, {})[self.start_kernel(value)] = True

    def write_sources(self, u: UOp) -> None:
        """The uses by the kernels that write a STACK or CAT source by source: one for each run of sources of one shape,
        which computes what they share once."""
        for first, last in runs(u.src):
            use = self.start_kernel(u.src[first])
            for s in u.src[first:last]:
                self.instances.setdefault(s, {})[use] = False  # sources share kernels, and a cascade shares none

    def start_kernel(self, u: UOp) -> tuple[KernelLoops, Axes]:
        """A kernel that writes ``u`` down, and the index at which it computes it."""
        kernel = KernelLoops(u)
        axes, enclosing = [], frozenset[int]()
        for n in u.shape:
            made = kernel.loop(n, enclosing) if n > 1 else frozenset[int]()
            enclosing = enclosing | made
            axes.append(made)
        kernel.shared.update([0] if enclosing else [])
        kernel.own = enclosing
        return kernel, tuple(axes)

    def pass_down(self, u: UOp, instances: dict[tuple[KernelLoops, Axes], bool]) -> None:
        keeps = keeps_index(u)
        for (kernel, axes), plain in instances.items():
            if u.op in ALU:
                kernel.ops += 1
            for s, below in zip(u.src, index_below(u, axes, kernel)):
                known = self.instances.setdefault(s, {})
                known[kernel, below] = known.get((kernel, below), True) and plain and keeps

    def choose(self, u: UOp) -> Choice:
        """Whether ``u`` is written down, all its uses being known."""
        return self.choices.setdefault(u, self._choice(u))

    def _choice(self, u: UOp) -> Choice:
        uses = list(self.instances[u])
        if u in self.together or u.op in (Ops.CASCADE, Ops.STATE):
            return Choice(False, "a block of a cascade computes it once")
        if u.op in _CHOICE and not self.cheap_choice(u):
            return Choice(True, "each source has a kernel of its own")
        if u.op is Ops.MUL and u in self.products:
            return Choice(False, "a sum of a fixed order does not round its products")
        if u.op in ALU and any(kernel.ops > MAX_KERNEL_OPS for kernel, _ in uses):
            return Choice(True, "its kernel would be too long")
        if u in self.running and self.joint(u):
            return Choice(False, "one kernel writes all that asks for its cascade")
        if u.op is Ops.COMPONENT:
            return Choice(True, "a cascade has its value at its kernel's output, and it is used elsewhere")
        if u.op is Ops.REDUCE:
            return self._of_reduce(u, uses)
        if (u.op not in ALU and u.op is not Ops.GATHER) or _widened_memory(u):
            return Choice(False, "it is memory, read at another index or as another type")
        if self.fuse_reduce is True:
            return Choice(False, "fuse_reduce=True")
        if len(uses) > MAX_INSTANCES:
            return Choice(True, "used at too many indices")
        shared = self.consumers[u] > 1 and len(uses) > 1 and self.recompute_loses(u)
        return _by_cost(shared or self.broadcast(u))

    def _of_reduce(self, u: UOp, uses: list[tuple[KernelLoops, Axes]]) -> Choice:
        if self.fuse_reduce is not None:
            return Choice(not self.fuse_reduce, f"fuse_reduce={self.fuse_reduce}")
        if len(uses) > MAX_INSTANCES:
            return Choice(True, "used at too many indices")
        return _by_cost(self.recompute_loses(u))

    def keep_together(self, u: UOp) -> None:
        """What the reductions of a cascade share, down to the first reductions below, is computed once a block: no cut
        there."""
        stack = list(u.src)
        while stack:
            v = stack.pop()
            if v not in self.together:
                self.together.add(v)
                if v.op not in (Ops.REDUCE, Ops.STAGE, Ops.BUFFER, Ops.COMPONENT):
                    stack += v.src

    def joint(self, u: UOp) -> bool:
        """Whether all uses of ``u`` are at their kernels' own index, by kernels that do not need one another and whose
        blocks can hold what goes with a row: if ``u`` is a cascade's, they will be one kernel."""
        if not all(self.instances[u].values()):
            return False
        roots = dict.fromkeys(kernel.root for kernel, _ in self.instances[u])
        if any(_reaches(a, b, self.place) for a in roots for b in roots if a is not b):
            return False
        rows = {kernel: kernel.rows_with(axes) for kernel, axes in self.instances[u]}
        if any(kernel.trips(kernel.own - common) > most_width(self.target) for kernel, common in rows.items()):
            return False
        for kernel, common in rows.items():
            kernel.rows = common
        return True

    def cheap_choice(self, u: UOp) -> bool:
        return len(u.src) <= MAX_INLINE_SOURCES and all(
            self.costs.below(s) <= 8 * self.weights.operation + s.dtype.itemsize * self.weights.byte for s in u.src
        )

    def evaluations(self, u: UOp) -> int:
        return sum(kernel.evaluations(axes) for kernel, axes in self.instances[u])

    def recompute_loses(self, u: UOp) -> bool:
        """Whether computing ``u`` again at each use takes longer than writing it once and reading it."""
        again, down = self.prices(u)
        return again > down

    def prices(self, u: UOp) -> tuple[float, float]:
        """Seconds of computing ``u`` again at each use, and of writing it once and reading it."""
        size, evaluations, each = math.prod(u.shape), self.evaluations(u), self.costs.time[u]
        here = len({kernel for kernel, _ in self.instances[u]}) == 1 and evaluations <= size * len(self.instances[u])
        if here and u.op in ALU:
            each = min(each, MOST_AGAIN * self.weights.operation)
        again = each * (evaluations - size)
        if size > 1 and not any(kernel.shared for kernel, _ in self.instances[u]):
            # a kernel with one result runs on one thread; in a kernel of its own the value is shared out
            again += self.costs.time[u] * size / 2
        return again, size * u.dtype.itemsize * self.weights.byte * (1 + len(self.instances[u])) + self.weights.kernel

    def stays(self, u: UOp) -> bool:
        """Whether a cut is none of those that its users' tiles might do without."""
        if u in self.under_stage or not self.instances.get(u):
            return True
        again, down = self.prices(u)
        return again > TILE_USES * down

    def broadcast(self, u: UOp) -> bool:
        """The broadcast rule: a computed value that loops repeat which it does not depend on."""
        size = math.prod(u.shape)
        evaluations = self.evaluations(u)
        if not size or evaluations < BROADCAST_FACTOR * size or not self.last_before_broadcast(u):
            return False
        work = (evaluations - size) * self.costs.time[u] / self.weights.operation
        return work >= BROADCAST_WORK and self.recompute_loses(u) and not _from_nothing(u, self.target)

    def last_before_broadcast(self, u: UOp) -> bool:
        """Whether a user repeats ``u``: the cut belongs at the end of a chain, not at each step of it."""
        return any(
            kernel.evaluations(axes) >= BROADCAST_FACTOR * math.prod(u.shape) for kernel, axes in self.instances[u]
        )


def _reaches(u: UOp, target: UOp, place: dict[UOp, int]) -> bool:
    """Whether ``target`` goes into ``u``; ``place``: of each node in an order of sources first."""
    seen, stack = {u}, [u]
    while stack:
        top = stack.pop()
        if top is target:
            return True
        for s in top.src:
            if s not in seen and place[s] >= place[target]:
                seen.add(s)
                stack.append(s)
    return False


def _widened_memory(u: UOp) -> bool:
    """bfloat16 in memory as float32: half the bytes, and a shift, or not even that where pairs are multiplied."""
    base = unmoved(u.src[0] if u.op is Ops.CAST and u.dtype is dtypes.float32 else u)
    return base is not u and base.op is Ops.BUFFER and base.dtype is dtypes.bfloat16


def _from_nothing(u: UOp, target: Target) -> bool:
    """Whether a value reads no memory and is cheap: a mask or a position, which is an index expression and never
    materialises."""
    seen, stack = {u}, [u]
    while stack:
        top = stack.pop()
        if top.op in (Ops.BUFFER, Ops.REDUCE, Ops.STAGE) or expensive(top, target):
            return False
        for s in top.src:
            if s not in seen:
                seen.add(s)
                stack.append(s)
        if len(seen) > 64:
            return False
    return True


def stage_broadcast_compute(
    roots: list[UOp], factor: int = BROADCAST_FACTOR, target: Target | None = None
) -> list[UOp]:
    """``roots`` with a STAGE under each EXPAND that repeats a computed value at least ``factor`` times, and saves
    enough work by it."""
    target = target or host()
    costs = _Costs(toposort(roots), target)
    targets: dict[UOp, None] = {}
    for u in toposort(roots):
        if u.op is not Ops.EXPAND:
            continue
        source = u.src[0]
        while source.op in MOVEMENT and source.op is not Ops.EXPAND:
            source = source.src[0]
        repeats = math.prod(u.shape) // max(math.prod(u.src[0].shape), 1)
        work = (repeats - 1) * math.prod(u.src[0].shape) * costs.time[source] / costs.weights.operation
        if source.op in ALU and repeats >= factor and work >= BROADCAST_WORK and not _from_nothing(source, target):
            targets[source] = None
    return UOp.wrap(roots, list(targets), lambda u: UOp(Ops.STAGE, (u,), Level.KERNEL)) if targets else list(roots)


@dataclass(frozen=True)
class _Chosen:
    """What is written down of a graph: the rules' choices, by the graph's nodes; then, by those without STAGEs (which
    ``plain`` gives of the nodes that have any), the results, the cuts, and what prices were compared."""

    rules: _Cuts
    plain: dict[UOp, UOp]
    results: list[UOp]
    cuts: set[UOp]
    compared: list[Comparison]


def _chosen(root: UOp, fuse_reduce: bool | None, target: Target | None, price: Price | None) -> _Chosen:
    """Cuts by rules, in one pass from the results down, and then by prices."""
    rules = _Cuts(root, fuse_reduce, target or host())
    staged = rules.run()
    # what a STAGE writes down is written down for every user of it: the old STAGEs go, and one comes for each cut
    plain: dict[UOp, UOp] = {}
    for u in rules.order:
        if u.op is Ops.STAGE:
            plain[u] = plain.get(u.src[0], u.src[0])
        elif not plain.keys().isdisjoint(u.src):
            plain[u] = u.replace(src=tuple(plain.get(s, s) for s in u.src))
    results = [plain.get(s, s) for s in root.src]
    cuts, compared = {plain.get(u, u) for u in staged}, list[Comparison]()
    if price is not None:
        fixed = {*results, *(plain.get(u, u) for u in staged if rules.stays(u))}
        cuts, compared = fusion(sink(*results), cuts, fixed, price)
    return _Chosen(rules, plain, results, cuts, compared)


def kernelize(
    root: UOp, fuse_reduce: bool | None = None, target: Target | None = None, price: Price | None = None
) -> UOp:
    """The graph of ``root`` (a SINK) with a STAGE around each value that is written down, for a machine: this one where
    nobody says.

    price: seconds of writing a value down by itself, its buffers numbered in the order in which they stand; without it
    the rules alone decide.
    """
    chosen = _chosen(root, fuse_reduce, target, price)
    rebuilt: dict[UOp, UOp] = {}

    def written(u: UOp, new: UOp) -> UOp:
        return UOp(Ops.STAGE, (new,), Level.KERNEL) if u in chosen.cuts else new

    for u in toposort(chosen.results):
        changed = not rebuilt.keys().isdisjoint(u.src)
        new = u.replace(src=tuple(rebuilt.get(s, s) for s in u.src)) if changed else u
        new = written(u, reduction(u, new, written))
        if new is not u:
            rebuilt[u] = new
    results = [rebuilt.get(s, s) for s in chosen.results]
    # a constant is written down where it is a result, and for no other user of it
    return sink(*(UOp(Ops.STAGE, (r,), Level.KERNEL) if r.op is Ops.CONST else r for r in results))


@dataclass(frozen=True)
class Decision:
    """A value that may be written down or computed where it is used, and which of both was chosen.

    fused, cut: the predicted seconds that were compared.  By prices, of all kernels in question; by rules, of computing
    the value again (beyond the first time) and of writing and reading it.  evaluations: how often it would be computed,
    of ``size`` elements, by loops of one element an iteration.  reason: what decided.  model: what costs alone would
    have chosen; where it is not ``written``, the options overrode it.
    """

    value: UOp
    written: bool
    fused: float
    cut: float
    evaluations: int
    size: int
    reason: str
    model: bool


def decisions(
    root: UOp, fuse_reduce: bool | None = None, target: Target | None = None, price: Price | None = None
) -> list[Decision]:
    """What ``kernelize`` decides about ``root``: one entry for each value that could be either written down or computed
    more than once."""
    chosen = _chosen(root, fuse_reduce, target, price)
    model = chosen.rules if fuse_reduce is None else _chosen(root, None, target, None).rules
    compared = {c.value: c for c in chosen.compared}
    results = set(chosen.results)
    out = []
    for u in chosen.rules.order:
        value = chosen.plain.get(u, u)
        if u.op in (Ops.STAGE, Ops.CASCADE, Ops.STATE) or value in results or not chosen.rules.instances.get(u):
            continue
        entry = _decision(u, chosen.rules, value in chosen.cuts, compared.get(value), u in model.staged)
        if entry is not None:
            out.append(entry)
    return out


def _decision(u: UOp, rules: _Cuts, written: bool, compared: Comparison | None, model: bool) -> Decision | None:
    """The entry of a value; None for one that there was nothing to decide about."""
    size, evaluations = math.prod(u.shape), rules.evaluations(u)
    if compared is not None:
        reason = "predicted times of the kernels"
        return Decision(u, written, compared.fused, compared.cut, evaluations, size, reason, written)
    again = u.op in ALU and evaluations > size > 1 and not _from_nothing(u, rules.target)
    if not written and u.op is not Ops.REDUCE and not again:
        return None
    fused, cut = rules.prices(u)
    if u in rules.together and not written:
        fused, evaluations = 0.0, size
    steps = Choice(True, "part of a reduction in steps, which threads share")
    return Decision(u, written, fused, cut, evaluations, size, rules.choices.get(u, steps).reason, model)


# Public names whose home is further up: scripts look for them here.
_HOMES = {"make_plan": "uopc.pipeline", "Plan": "uopc.pipeline", "realize": "uopc.runtime.plan"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
