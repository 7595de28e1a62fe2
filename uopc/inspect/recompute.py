"""recompute: how many times each value of a reduction's body is computed, predicted and counted.

A *mark* is a scalar parameter of its own that is added to the body of one reduction.  Passes carry it along like any
other operand, so that wherever the body is computed, in whatever form, an addition of that parameter stands beside it.

- *predicted*: from the loop graph, by dependence alone: a value is computed once for each iteration of the loops around
  the innermost loop that it mentions, and once for each register range that it mentions.
- *counted*: from the LINEAR program, statement by statement: how often the marked additions run, times their lanes.

``instrumented`` goes one step further: the program counts while it runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from uopc.count import iterations, times
from uopc.ops import AxisType, Ops, ParamArg, Tile
from uopc.pipeline import KERNEL_STAGES, LOOP_STAGES, Kernel, Settings
from uopc.simplify import simplify
from uopc.uop import UOp, dtypes, memory_of, toposort

_REGISTER = frozenset({AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR})
# A body that is computed so many times as often as it has values may mention loops in vain.
DOUBTFUL = 4
_WORDS = {Ops.ADD: "sum", Ops.MUL: "product", Ops.MAX: "max", Ops.MIN: "min", Ops.AND: "all", Ops.OR: "any"}


@dataclass(frozen=True)
class Reduction:
    """One reduction of a kernel.

    op: sum, max, ...  over: how many elements each result combines.  shape: of the results.  values: how many values
    its body has; predicted, counted: how many the program computes.  part: "" for a reduction of its own, else what it
    is part of.  repeats: the loops around it that its body does not depend on, as text.
    """

    op: str
    over: int
    shape: tuple[int, ...]
    values: int
    predicted: int
    counted: int
    part: str = ""
    repeats: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        """How many times each value is computed, as counted; below 1 where masks skip some."""
        return self.counted / self.values if self.values else 0.0

    @property
    def predicted_factor(self) -> float:
        """The same as predicted."""
        return self.predicted / self.values if self.values else 0.0

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.op} over {self.over} -> {shape}{f' ({self.part})' if self.part else ''}"


# ---------------------------------------------------------------------------------------------------------- marks --


@dataclass(frozen=True)
class Marked:
    """A program with marks, and for each mark (by slot) what it stands for: op, over, shape, values, part."""

    root: UOp
    marks: dict[int, tuple[str, int, tuple[int, ...], int, str]]


def _mark(x: UOp, slot: int) -> UOp:
    """``x`` and a parameter that is nothing (0, False), together."""
    parameter = UOp(Ops.BUFFER, (), ParamArg(slot, x.dtype, ()))
    if not x.shape and x.ranges:  # a loop program: memory is loaded
        parameter = parameter.index(0).load()
    return x.alu(Ops.XOR if x.dtype.is_bool else Ops.ADD, parameter)


def _first_slot(root: UOp) -> int:
    return 1 + max((u.arg.slot for u in toposort(root) if u.op is Ops.BUFFER), default=-1)


def mark_tensors(root: UOp) -> Marked:
    """A kernel of tensor operations with a mark in the body of each REDUCE and of each part of a CASCADE."""
    first = _first_slot(root)
    marks: dict[int, tuple[str, int, tuple[int, ...], int, str]] = {}
    memo: dict[UOp, UOp] = {}
    for u in toposort(root):
        src = [memo[s] for s in u.src]
        if u.op is Ops.REDUCE and u.arg.axes:
            over = math.prod(u.src[0].shape[a] for a in u.arg.axes)
            slot = first + len(marks)
            part = "of blocks" if any(s.op is Ops.STAGE and isinstance(s.arg, Tile) for s in u.src) else ""
            marks[slot] = (_WORDS[u.arg.op], over, u.shape, math.prod(u.src[0].shape), part)
            src[0] = _mark(src[0], slot)
        elif u.op is Ops.CASCADE:
            at = 0
            for c in u.arg.components:
                shape = u.src[at].shape
                slot = first + len(marks)
                rest = tuple(n for a, n in enumerate(shape) if a != c.axis)
                marks[slot] = (_WORDS[c.op], shape[c.axis], rest, math.prod(shape), f"cascade {u.arg.id}")
                src[at] = _mark(src[at], slot)
                at += 2 if c.corrected else 1
        memo[u] = u if tuple(src) == u.src else u.replace(src=tuple(src))
    return Marked(memo[root], marks)


def mark_loops(root: UOp) -> Marked:
    """A loop program with a mark in the body of each REDUCE."""
    first = _first_slot(root)
    marks: dict[int, tuple[str, int, tuple[int, ...], int, str]] = {}
    memo: dict[UOp, UOp] = {}
    for u in toposort(root):
        src = [memo[s] for s in u.src]
        if u.op is Ops.REDUCE:
            slot = first + len(marks)
            over = math.prod(r.vmax + 1 for r in u.src[1:])
            shape = tuple(r.vmax + 1 for r in u.ranges)
            marks[slot] = (_WORDS[u.arg.op], over, shape, _mentioned(u.src[0]), "")
            src[0] = _mark(src[0], slot)
        memo[u] = u if tuple(src) == u.src else u.replace(src=tuple(src))
    return Marked(memo[root], marks)


def _mentioned(x: UOp) -> int:
    """How many values ``x`` has: one for each value of the ranges that it mentions."""
    loops, registers = _split(x.ranges)
    return iterations(_outermost_first(loops, {})) * registers


def _split(ranges: Iterable[UOp]) -> tuple[set[UOp], int]:
    """Loops, and how many copies and lanes the register ranges make."""
    loops = {r for r in ranges if r.arg.axis_type not in _REGISTER}
    return loops, math.prod(r.vmax + 1 for r in ranges if r.arg.axis_type in _REGISTER)


# ----------------------------------------------------------------------------------------------------- prediction --


def _enclosing(order: list[UOp]) -> dict[UOp, set[UOp]]:
    """For each loop of a loop graph, the loops around it: those that what it closes depends on, those closed with it
    further out, and whatever is around those."""
    direct: dict[UOp, set[UOp]] = {}
    for u in order:
        if u.op not in (Ops.REDUCE, Ops.END):
            continue
        around, _ = _split(u.ranges)
        for r in u.src[1:]:
            if r.op is Ops.RANGE and r.arg.axis_type not in _REGISTER:
                direct.setdefault(r, set()).update(around | _split(r.src[0].ranges)[0])
                around = around | {r}
    for r, around in direct.items():
        around.discard(r)
    changed = True
    while changed:
        changed = False
        for r, around in direct.items():
            wider = around.union(*(direct.get(a, set()) for a in around)) - {r}
            if wider != around:
                direct[r], changed = wider, True
    return direct


def _outermost_first(loops: set[UOp], around: dict[UOp, set[UOp]]) -> tuple[UOp, ...]:
    return tuple(sorted(loops, key=lambda r: (len(around.get(r, ())), len(r.src[0].ranges), r.arg.id)))


def _additions(order: Iterable[UOp], slots: Iterable[int]) -> dict[int, list[UOp]]:
    """The marked additions of a program: those of a mark to something else."""
    pure: dict[UOp, int] = {}  # values made of one mark alone
    found: dict[int, list[UOp]] = {slot: [] for slot in slots}
    for u in order:
        if u.op is Ops.LOAD:
            memory = memory_of(u.src[0])
            if memory.op is Ops.BUFFER and memory.arg.slot in found:
                pure[u] = memory.arg.slot
            continue
        mine = {pure[s] for s in u.src if s in pure}
        if not mine or u.op in (Ops.INDEX, Ops.STORE, Ops.AFTER, Ops.END):
            continue
        if all(s in pure or s.op is Ops.CONST for s in u.src) and len(mine) == 1:
            pure[u] = mine.pop()
        elif u.op in (Ops.ADD, Ops.XOR):
            for slot in mine:
                found[slot].append(u)
    return found


def _vain(u: UOp) -> tuple[UOp, ...]:
    """The loops that a value mentions no more once its indices are simplified, as they should have been."""
    needed = {r.arg.id for r in simplify(u).ranges}
    return _outermost_first({r for r in _split(u.ranges)[0] if r.arg.id not in needed}, {})


def predicted(
    root: UOp, slots: Iterable[int], doubtful: Collection[int] = ()
) -> dict[int, tuple[int, tuple[str, ...]]]:
    """For each mark of a loop graph, how often its body is computed, and what repeats it.  doubtful: marks of which it
    is asked whether they depend on all loops that they mention."""
    order = toposort(root)
    around = _enclosing(order)
    out: dict[int, tuple[int, tuple[str, ...]]] = {}
    for slot, additions in _additions(order, slots).items():
        total = 0
        repeats: dict[str, None] = {}
        for u in additions:
            mentioned, registers = _split(u.ranges)
            loops = mentioned.union(*(around.get(r, set()) for r in mentioned))
            total += iterations(_outermost_first(loops, around)) * registers
            repeated = _outermost_first(loops - mentioned, around)
            repeats.update((f"a loop of {r.vmax + 1}", None) for r in repeated)
            if slot in doubtful:
                repeats.update((f"a loop of {r.vmax + 1} that it only seems to depend on", None) for r in _vain(u))
        if len(additions) > 1:
            repeats[f"{len(additions)} uses"] = None
        out[slot] = total, tuple(repeats)
    return out


# ----------------------------------------------------------------------------------------------------------- both --


def counted(linear: UOp, slots: Iterable[int]) -> dict[int, int]:
    """For each mark of a LINEAR program, how often its body is computed."""
    runs = times(linear)
    return {slot: sum(runs[u] * u.dtype.count for u in us) for slot, us in _additions(linear.src, slots).items()}


def _report(marked: Marked, loops: UOp, linear: UOp) -> list[Reduction]:
    seen = counted(linear, marked.marks)
    doubtful = {slot for slot, (_, _, _, values, _) in marked.marks.items() if seen[slot] > DOUBTFUL * values}
    expected = predicted(loops, marked.marks, doubtful)
    return [
        Reduction(op, over, shape, values, expected[slot][0], seen[slot], part, expected[slot][1])
        for slot, (op, over, shape, values, part) in marked.marks.items()
    ]


def marked_kernel(root: UOp, settings: Settings) -> tuple[Marked, UOp, UOp]:
    """A kernel of tensor operations with marks, its loop graph and its LINEAR program, made with the sizes that it has
    without marks."""
    graph, marked, loops = root, Marked(root, {}), root
    for step in (*KERNEL_STAGES, *LOOP_STAGES):
        graph = step.run(graph, settings)
        if step.name == "blockize":
            marked = mark_tensors(graph)
            graph = marked.root
        elif step.name == "rangeify":
            loops = graph
    return marked, loops, graph


def reductions(kernel: Kernel, settings: Settings) -> list[Reduction]:
    """The reductions of a kernel of tensor operations."""
    if not any(u.op in (Ops.REDUCE, Ops.CASCADE) for u in toposort(kernel.root)):
        return []
    return _report(*marked_kernel(kernel.start, settings))


def marked_loops(root: UOp, settings: Settings) -> tuple[Marked, UOp, UOp]:
    """The same of a loop program, as written by hand."""
    marked = mark_loops(root)
    graph = marked.root
    for step in LOOP_STAGES:
        graph = step.run(graph, settings)
    return marked, marked.root, graph


def reductions_of_loops(root: UOp, settings: Settings) -> list[Reduction]:
    """The reductions of a loop program (a SINK, before ``expand``)."""
    return _report(*marked_loops(root, settings))


def instrumented(linear: UOp, slots: Iterable[int], slot: int) -> UOp:
    """A marked LINEAR program that counts in BUFFER ``slot`` (int64, one element a mark): each marked addition is
    followed by an addition to its counter.  Threads share counters: run it with one."""
    slots = list(slots)
    counters = UOp(Ops.BUFFER, (), ParamArg(slot, dtypes.int64, (len(slots),)))
    at = {u: k for k, s in enumerate(slots) for u in _additions(linear.src, slots)[s]}
    out: list[UOp] = [counters]
    loops: list[UOp] = []
    for n, u in enumerate(linear.src):
        out.append(u)
        if u.op is Ops.RANGE:
            loops.append(u)
        elif u.op is Ops.END:
            loops.pop()
        elif u in at:
            # a place of its own in the list, so that equal additions to one counter are not one
            place = counters.after(*loops, *out[n : n + 1]).index(at[u])
            old = place.load()
            new = old + UOp.const(u.dtype.count, dtypes.int64)
            out += [place, old, new, place.store(new)]
    return linear.replace(src=tuple(out))
