"""The translation unit: statements from top to bottom, and the three functions of the kernel ABI around them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from uopc._hot.graph import of_ops
from uopc._hot.statements import Statements
from uopc._hot.text import SHIFT, Code
from uopc._hot.uses import Uses
from uopc.ops import ALU, AxisType, Ops
from uopc.render_c.memory import Memory, Place
from uopc.render_c.types import Declarations
from uopc.target import Target
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


class Kernel(Statements):
    """One kernel while it is printed."""

    def __init__(self, linear: UOp, name: str, parameters: list[UOp], target: Target) -> None:
        self.name, self.target = name, target
        self.statements = linear.src
        self.unit = Declarations()
        uses = Uses(self.statements)
        self.memory = Memory(self.unit, self.statements, uses, parameters)
        super().__init__(self.memory, uses, MAX_DEPTH, MAX_TEXT, VALUES, SILENT)
        self.thread = self._parallel_loop()
        self.inside, self.outside = uses.around(self.thread) if self.thread is not None else (self.statements, ())
        self._check_outside()
        self.loops = 0
        found = {slot: u for (op, slot), u in self.memory.memories.items() if op is Ops.BUFFER}
        # a slot that nothing uses is a parameter all the same: arrays are given by position
        self.buffers = [found.get(slot) for slot in range(max(found, default=-1) + 1)]

    def _parallel_loop(self) -> UOp | None:
        """The THREAD range, if there is one."""
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
        return thread

    def _check_outside(self) -> None:
        """What stands before the parallel loop runs once for each chunk, on memory of the thread's own; ValueError
        where that would write an argument.
        """
        for u in of_ops(self.outside, Ops.STORE):
            if self.memory.identity(u)[0] is Ops.BUFFER:
                raise ValueError(f"{self.name}: {u!r} stands outside {self.thread!r}; each chunk would write it")

    def _allocs(self) -> tuple[set[Place], set[Place]]:
        """The ALLOCs, and those of them that something outside the parallel loop uses."""
        allocs = {place for place in self.memory.memories if place[0] is Ops.ALLOC}
        return allocs, allocs & {self.memory.identity(u) for u in of_ops(self.outside, Ops.STORE, Ops.LOAD)}

    # -- statements

    def refuse(self, u: UOp) -> None:
        """A node that has no form in C."""
        raise ValueError(f"{self.name}: {u!r} has no form in C; the stages before this one remove it")

    def open_loop(self, u: UOp) -> None:
        """The head of a loop, and inside the parallel one what each thread has of its own."""
        name = f"i{self.loops}"
        self.loops += 1
        first, end = ("lo", "hi") if u is self.thread else ("0", self.memory.operand(u.src[0], False).at(SHIFT))
        self.memory.code[u] = Code(name)
        self.line(f"for (long {name} = {first}; {name} < {end}; {name}++) {{")
        self.margin += "  "
        if u is self.thread:
            allocs, shared = self._allocs()
            self.declare_allocs(allocs - shared)

    def close_loop(self, u: UOp) -> None:
        """The end of a loop."""
        self.margin = self.margin[2:]
        self.line("}")

    def declare_allocs(self, places: set[Place]) -> None:
        """These ALLOCs: variables of a kind on one line, arrays one by one."""
        variables: dict[str, list[str]] = {}
        for place in sorted(places):
            u = self.memory.memories[place]
            array, c_type = self.memory.facts(u), self.unit.type(self.memory.stored_type(u.dtype))
            if array.variable:
                variables.setdefault(c_type, []).append(array.name)
            else:
                size = max(math.prod(u.arg.shape), 1)
                self.line(f"{c_type} {array.name}[{size}] __attribute__((aligned(64)));")
        for c_type, names in variables.items():
            for k in range(0, len(names), 16):
                self.line(f"{c_type} {', '.join(names[k : k + 16])};")

    # -- the unit

    def print(self) -> str:
        """The whole unit."""
        allocs, shared = self._allocs()
        self.declare_allocs(allocs if self.thread is None else shared)
        self.body(self.statements)
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
        ends = [u.src[0] for u in of_ops(self.statements, Ops.RANGE) if self.thread in u.src[0].ranges]
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
        inside = set(of_ops(self.inside, Ops.RANGE))
        work = sum(n * times[r] for r, n in lanes.items() if r in inside)
        before = sum(n * times[r] for r, n in lanes.items() if r not in inside)
        # what each chunk does again must not take longer than the chunk
        chunk = max(1, -(-max(self.target.chunk, before) // max(work, 1)), -(-trips // MAX_CHUNKS))
        return trips, max(min(chunk, trips), 1)
