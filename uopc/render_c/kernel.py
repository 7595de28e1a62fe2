"""The translation unit: statements from top to bottom, and the three functions of the kernel ABI around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

from uopc._hot.graph import of_ops
from uopc._hot.text import SHIFT, Code
from uopc._hot.uses import INLINE, UNUSED, Uses
from uopc.ops import ALU, AxisType, Ops
from uopc.rates import CHUNK_WORK
from uopc.render_c.memory import Memory, Place
from uopc.render_c.types import Declarations
from uopc.uop import UOp

# More chunks than this buy no balance and cost their launches.
MAX_CHUNKS = 256
# How deep an expression may nest before a part of it gets a name: C compilers promise 127 parentheses and recurse on
# them.
MAX_DEPTH = 24
# How long it may be: two of them and an operator fit on a line.
MAX_TEXT = 50

# Stores past the caches are seen by other threads in the order in which they were made only behind a fence.
STREAMED = ("#if __SSE__", '  __asm__ volatile("sfence" ::: "memory");', "#endif")

SILENT = (Ops.BUFFER, Ops.ALLOC, Ops.CONST, Ops.INDEX, Ops.SINK)
VALUES = ALU | {Ops.LOAD, Ops.HREDUCE, Ops.SHUFFLE}


def _fits(code: Code) -> bool:
    """Whether it may stand inside its user's text."""
    return code.depth < MAX_DEPTH and len(code.text) <= MAX_TEXT


class Kernel:
    """One kernel while it is printed."""

    def __init__(self, linear: UOp, name: str, parameters: list[UOp]) -> None:
        self.name = name
        self.statements = linear.src
        self.unit = Declarations()
        self.memory = Memory(self.unit, self.statements, parameters)
        self.uses = Uses(self.statements)
        self.inside: frozenset[UOp | None] = frozenset()  # the parallel loop
        self.thread = self._parallel_loop()
        self.lines: list[str] = []
        self.margin = "  "
        self.loops = self.values = 0
        found = {slot: u for (op, slot), u in self.memory.memories.items() if op is Ops.BUFFER}
        # a slot that nothing uses is a parameter all the same: arrays are given by position
        self.buffers = [found.get(slot) for slot in range(max(found, default=-1) + 1)]

    def _parallel_loop(self) -> UOp | None:
        """The THREAD range, if there is one.  What stands before it runs once for each chunk, on memory of the thread's
        own; ValueError where that would write an argument.
        """
        threads = [u for u in of_ops(self.statements, Ops.RANGE) if u.arg.axis_type is AxisType.THREAD]
        if not threads:
            return None
        thread = threads[0]
        if len(threads) > 1:
            raise ValueError(f"{self.name}: {threads[1]!r} is the second THREAD range; a kernel has one")
        if self.uses.loop_of(thread) is not None:
            raise ValueError(f"{self.name}: {thread!r} stands inside another loop; the THREAD range is the outermost")
        if thread.src[0].op is not Ops.CONST:
            raise ValueError(
                f"{self.name}: the end of {thread!r} is {thread.src[0]!r}; that of a THREAD range is a number"
            )
        self.inside = frozenset(self.uses.body(thread))
        for u in of_ops(self.statements, Ops.STORE):
            if u not in self.inside and self.memory.identity(u)[0] is Ops.BUFFER:
                raise ValueError(f"{self.name}: {u!r} stands outside {thread!r}; each chunk would write it")
        return thread

    @cached_property
    def _private(self) -> set[Place]:
        """The ALLOCs that nothing outside the parallel loop uses."""
        locals_ = {place for place in self.memory.memories if place[0] is Ops.ALLOC}
        if self.thread is None:
            return locals_
        outside = (u for u in of_ops(self.statements, Ops.STORE, Ops.LOAD) if u not in self.inside)
        return locals_ - {self.memory.identity(u) for u in outside}

    # -- statements

    def line(self, text: str) -> None:
        """One line of the body."""
        self.lines.append(self.margin + text)

    def body(self) -> None:
        """Print the nodes from top to bottom, or note their texts."""
        for u in self.statements:
            rule = PRINTED.get(u.op)
            if rule is not None:
                rule(self, u)
            elif u.op not in SILENT:
                raise ValueError(f"{self.name}: {u!r} has no form in C; the stages before this one remove it")

    def close_loop(self, u: UOp) -> None:
        """The end of a loop."""
        self.margin = self.margin[2:]
        self.line("}")

    def store(self, u: UOp) -> None:
        """A STORE."""
        self.lines += [self.margin + text for text in self.memory.store(u)]

    def after(self, u: UOp) -> None:
        """An AFTER of a value is printed as the value; that of a memory has no text."""
        if u.src[0].op not in (Ops.BUFFER, Ops.ALLOC, Ops.AFTER) or u.src[0] in self.memory.code:
            self.memory.code[u] = self.memory.expression(u)

    def open_loop(self, u: UOp) -> None:
        """The head of a loop, and inside the parallel one what each thread has of its own."""
        name = f"i{self.loops}"
        self.loops += 1
        first, end = ("lo", "hi") if u is self.thread else ("0", self.memory.operand(u.src[0], False).at(SHIFT))
        self.memory.code[u] = Code(name)
        self.line(f"for (long {name} = {first}; {name} < {end}; {name}++) {{")
        self.margin += "  "
        if u is self.thread:
            self.declare_allocs(self._private)

    def declare_allocs(self, places: set[Place]) -> None:
        """These ALLOCs: variables of a kind on one line, arrays one by one."""
        variables: dict[str, list[str]] = {}
        for _, u in sorted((place, self.memory.memories[place]) for place in places):
            c_type = self.unit.type(self.memory.stored_type(u.dtype))
            if self.memory.is_variable(u):
                variables.setdefault(c_type, []).append(self.memory.name(u))
            else:
                size = max(math.prod(u.arg.shape), 1)
                self.line(f"{c_type} {self.memory.name(u)}[{size}] __attribute__((aligned(64)));")
        for c_type, names in variables.items():
            for k in range(0, len(names), 16):
                self.line(f"{c_type} {', '.join(names[k : k + 16])};")

    def value(self, u: UOp) -> None:
        """A value: inside its user's text where that is its only place, else a constant of C."""
        fate = self.uses.fate(u)
        if fate == UNUSED:
            return
        memory = self.memory
        if u.op is Ops.LOAD and u.arg:
            self.line(f"{memory.fetch(u).text};")
        code = memory.expression(u)
        if fate == INLINE and u.op is Ops.MUL and u.dtype.is_float and not _fits(code):
            # A product goes where it is added, or gcc makes one fused operation of some copies of an unrolled sum and
            # two of others, between which it has put a branch: the same element in other bits.
            for s in u.src:
                if s in memory.code and memory.code[s].depth:
                    self.hold(s, memory.code[s])
            code = memory.expression(u)
        if fate == INLINE and _fits(code):
            memory.code[u] = code
        else:
            self.hold(u, code)

    def hold(self, u: UOp, code: Code) -> None:
        """A value as a constant of C."""
        dtype = u.dtype
        if dtype.is_bool and dtype.count > 1:
            c_type = self.unit.mask(self.memory.masks[u], dtype.count)
        else:
            c_type = self.unit.type(dtype)
        name = f"v{self.values}"
        self.values += 1
        self.lines.append(f"{self.margin}{c_type} {name} = {code.text};")
        self.memory.code[u] = Code(name)

    # -- the unit

    def print(self) -> str:
        """The whole unit."""
        if self.thread is None:
            self.declare_allocs(self._private)
        else:
            self.declare_allocs({p for p in self.memory.memories if p[0] is Ops.ALLOC} - self._private)
        self.body()
        params = [f"{self._c_type(u)} *restrict d{slot}" for slot, u in enumerate(self.buffers)]
        unpacked = [f"  {param} = args[{slot}];" for slot, param in enumerate(params) if self.buffers[slot] is not None]
        return "\n".join(
            [
                *self._title(),
                *self.unit.lines.values(),
                "",
                f"void {self.name}_range(void *const *args, long lo, long hi) {{",
                *unpacked,
                *self.lines,
                *(STREAMED if any(u.arg for u in of_ops(self.statements, Ops.STORE)) else ()),
                "}",
                "",
                *self._launch(params),
                "",
            ]
        )

    def _c_type(self, u: UOp | None) -> str:
        if u is None:
            return "const void"
        return ("" if (u.op, u.arg.slot) in self.memory.written else "const ") + self.unit.type(u.dtype.scalar())

    def _title(self) -> Iterator[str]:
        """One comment: what the kernel writes and reads.  It breaks where a line would grow too long."""
        parts = []
        for slot, u in enumerate(self.buffers):
            if u is None:
                continue
            verb = "writes" if (u.op, slot) in self.memory.written else "reads"
            parts.append(f"{verb} d{slot} {u.dtype.name.rstrip('_')}{list(u.arg.shape)}")
        line = f"/* {self.name}:"
        for k, part in enumerate(parts):
            if len(line) + len(part) > 112:
                yield line
                line = "  "
            line += f" {part}{',' if k < len(parts) - 1 else ''}"
        yield line + " */"

    def _launch(self, params: list[str]) -> Iterator[str]:
        """The whole kernel as OpenMP C, for a reader and any compiler; the runtime calls the range function itself."""
        trips, chunk = self._chunks()
        dynamic = (2 if self._grows() else 1) if chunk < trips else 0
        args = [f"(void *)d{slot}" for slot in range(len(self.buffers))] or ["0"]
        yield f"const long {self.name}_launch[3] = {{{trips}, {chunk}, {dynamic}}};"
        yield f"void {self.name}({', '.join(params) or 'void'}) {{"
        yield f"  void *args[] = {{{', '.join(args)}}};"
        if trips == 1:
            yield f"  {self.name}_range(args, 0, 1);"
        else:
            yield f"  #pragma omp parallel for schedule({'dynamic, 1' if dynamic else 'static'})"
            yield f"  for (long lo = 0; lo < {trips}; lo += {chunk})"
            last = f"lo + {chunk} < {trips} ? lo + {chunk} : {trips}" if trips % chunk else f"lo + {chunk}"
            yield f"    {self.name}_range(args, lo, {last});"
        yield "}"

    def _grows(self) -> bool:
        """Whether later iterations of the parallel loop run longer inner loops: they then go first."""
        if self.thread is None:
            return False
        first, last = UOp.const(0), UOp.const(max(self.thread.src[0].arg - 1, 0))
        ends = [u.src[0] for u in self.statements if u.op is Ops.RANGE and self.thread in u.src[0].ranges]
        return any(e.substitute({self.thread: first}).vmax < e.substitute({self.thread: last}).vmin for e in ends)

    def _chunks(self) -> tuple[int, int]:
        """Iterations of the parallel loop, and how many make a chunk: a matter of the code alone, never of the number
        of threads.
        """
        if self.thread is None:
            return 1, 1
        trips = max(self.thread.src[0].arg, 0)
        times: dict[UOp | None, int] = {None: 1}
        for r in of_ops(self.statements, Ops.RANGE):
            times[r] = times[self.uses.loop_of(r)] * (1 if r is self.thread else max(r.vmax + 1, 1))
        lanes = self.uses.lanes(of_ops(self.statements, Ops.STORE, *VALUES))
        work = sum(n * times[r] for r, n in lanes.items() if r in self.inside)
        before = sum(n * times[r] for r, n in lanes.items() if r not in self.inside)
        # what each chunk does again must not take longer than the chunk
        chunk = max(1, -(-max(CHUNK_WORK, before) // max(work, 1)), -(-trips // MAX_CHUNKS))
        return trips, max(min(chunk, trips), 1)


# What prints a node; those that are named nowhere here and are not SILENT have no form in C.
PRINTED: dict[Ops, Callable[[Kernel, UOp], None]] = {
    Ops.RANGE: Kernel.open_loop,
    Ops.END: Kernel.close_loop,
    Ops.STORE: Kernel.store,
    Ops.AFTER: Kernel.after,
    **dict.fromkeys(VALUES, Kernel.value),
}
