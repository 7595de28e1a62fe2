"""Loads and stores: what an INDEX is in C, whole vectors where addresses follow one another, lanes one by one where
they do not.
"""

from __future__ import annotations

import math

from uopc._hot.graph import of_ops
from uopc._hot.statements import Array
from uopc._hot.text import ATOM, SUM, Code, call, cast, choice, elements, infix, narrowed, offset, prefix
from uopc._hot.uses import Uses, place_of, spread
from uopc.ops import Ops
from uopc.render_c import functions
from uopc.render_c.expressions import Expressions, constants
from uopc.render_c.functions import mask_dtype
from uopc.render_c.types import UNSIGNED, Declarations
from uopc.uop import DType, UOp

# What memory is: a parameter or a local, and its slot.
Place = tuple[Ops, int]


class Memory(Expressions):
    """Expressions that read memory, and the statements that write it."""

    def __init__(self, unit: Declarations, statements: tuple[UOp, ...], uses: Uses, parameters: list[UOp]) -> None:
        super().__init__(unit)
        self.memories: dict[Place, UOp] = {}
        for u in (*parameters, *of_ops(statements, Ops.BUFFER, Ops.ALLOC)):
            self._declare(u)
        self.written, self.arrays = ({self.identity(u) for u in found} for found in uses.accessed())

    def identity(self, u: UOp) -> Place:
        """What a LOAD, a STORE or an INDEX is about, as a key: two nodes with one slot are one memory."""
        memory = place_of(u)
        return memory.op, memory.arg.slot

    def _declare(self, u: UOp) -> None:
        place = u.op, u.arg.slot
        first = self.memories.setdefault(place, u)
        if first is u:
            return
        if first.dtype is not u.dtype:
            raise ValueError(f"slot {u.arg.slot} is {first!r} and {u!r}: one slot has one dtype")
        if math.prod(u.arg.shape) > math.prod(first.arg.shape):
            self.memories[place] = u

    def array(self, memory: UOp) -> Array:
        """What a memory is in C: ``d0`` for the BUFFER of slot 0, ``a0`` for the ALLOC; an ALLOC of one element is a
        variable, if that is what is read and written."""
        op, slot = place = self.identity(memory)
        if op is Ops.ALLOC:
            return Array(f"a{slot}", place not in self.arrays, "")
        return Array(f"d{slot}", False, "" if place in self.written else "const ")

    def pointer(self, index: UOp, memory: UOp) -> str:
        """What is put before an address to read it as an INDEX says."""
        return f"*({self.facts(memory).const}{self.unit.in_memory(index.dtype, memory.dtype)} *)"

    def stored_type(self, dtype: DType) -> DType:
        """The type of an ALLOC's elements: a vector of bool is a mask of bytes."""
        return mask_dtype(1, dtype.count) if dtype.is_bool and dtype.count > 1 else dtype

    # -- places

    def address(self, index: UOp, lane: int = 0) -> Code:
        """The position of the first element, or of a lane."""
        at = index.src[1]
        if at.dtype.count == 1:
            return offset(self.operand(at, False), lane)
        if at.op is Ops.CONST:
            return Code(str(constants(at)[lane]))
        steps = spread(at)
        if steps is not None:
            return offset(self.operand(steps[0], False), steps[1][lane])
        return Code(f"{self.operand(at).at(ATOM)}[{lane}]")

    def lanes(self, index: UOp) -> list[str]:
        """What each lane of an INDEX is."""
        memory = place_of(index)
        array, at = self.facts(memory), index.src[1]
        count = max(index.dtype.count, at.dtype.count)
        if index.dtype.scalar().itemsize != memory.dtype.scalar().itemsize:  # words
            pointer = f"({array.const}{self.unit.in_memory(index.dtype.scalar(), memory.dtype)} *)"
            return [f"*{pointer}({array.name} + {self.address(index, i).at(SUM)})" for i in range(count)]
        if at.dtype.count == 1:
            return elements(array.name, self.operand(at, False), range(count))
        steps = spread(at)
        if steps is not None:
            return elements(array.name, self.operand(steps[0], False), steps[1])
        return [f"{array.name}[{self.address(index, i).text}]" for i in range(count)]

    # -- reading

    def load(self, u: UOp) -> Code:
        """What a LOAD reads that is not plain: 0 where a gate does not hold, and then memory is not touched."""
        src, dtype = u.src, u.dtype
        index, gate = src[0], src[1] if len(src) > 1 else None
        masks = dtype.is_bool and dtype.count > 1
        if masks:
            self.masks[u] = 1
        if gate is not None and gate.dtype.count > 1 and index.src[1].dtype.count == 1 and not dtype.is_bool:
            pointer = infix("+", Code(self.facts(place_of(index)).name), self.address(index))
            mask = self.mask(gate, dtype.scalar().itemsize, dtype.count)
            return call(self.unit.once(functions.load_where, dtype), mask, pointer)
        if index.src[1].dtype.count > 1 or (gate is not None and gate.dtype.count > 1):
            return self._gather(u, gate)
        read = self.place(index)
        if masks and not self._holds_masks(index):
            read = infix("!=", read, Code("0"))
            self.unit.mask(1, dtype.count)
        if gate is None:
            return read
        nothing = Code("0") if dtype.count == 1 else Code(f"({self.unit.type(self.stored_type(dtype))}){{}}")
        if dtype.count > 1:  # in memory, vectors are of another type
            read = cast(self.unit.type(self.stored_type(dtype)), read)
        return narrowed(choice(self.operand(gate), read, nothing), u)

    def fetch(self, u: UOp) -> str:
        """The memory that a LOAD says is read soon, brought to the second-level cache."""
        index = u.src[0]
        pointer = infix("+", Code(self.facts(place_of(index)).name), self.address(index, u.arg))
        return f"__builtin_prefetch({pointer.text}, 0, 2);"

    def _gather(self, u: UOp, gate: UOp | None) -> Code:
        read = self.lanes(u.src[0])
        if gate is not None:
            read = [choice(self.lane(gate, i), Code(x), Code("0")).text for i, x in enumerate(read)]
        if u.dtype.is_bool:
            read = [f"-{x}" if gate is None else f"-({x})" for x in read]
        return Code(f"({self.unit.type(self.stored_type(u.dtype))}){{{', '.join(read)}}}", ATOM, 2)

    def _holds_masks(self, index: UOp) -> bool:
        memory = place_of(index)
        return memory.op is Ops.ALLOC and memory.dtype.count > 1

    # -- writing

    def store(self, u: UOp) -> list[str]:
        """The lines of a STORE that is not plain."""
        src = u.src
        index, value, gate = src[0], src[1], src[2] if len(src) > 2 else None
        dtype, addresses = index.dtype, index.src[1].dtype.count
        count = max(dtype.count, addresses)
        if value.dtype.count > count:
            raise ValueError(f"{u!r} stores {value.dtype!r} to {count} lanes")
        stored = self._stored(index, value, count)
        if u.arg:
            kind = UNSIGNED[1].vec(count) if dtype.is_bool else dtype
            pointer = infix("+", Code(self.facts(place_of(index)).name), self.address(index))
            written = cast(self.unit.type(kind), stored)  # in memory, vectors are of another type
            return [call(self.unit.once(functions.stream, kind), pointer, written).text + ";"]
        if addresses == 1 and (gate is None or gate.dtype.count == 1):
            return [self._guard(gate) + self.assigned(u, self.place(index), stored)]
        t = self.unit.type(UNSIGNED[1].vec(count) if dtype.is_bool else dtype.scalar().vec(count))
        places = self.lanes(index)
        if gate is None:
            lines = [f"  {place} = t[{i}];" for i, place in enumerate(places)]
        else:
            lines = [f"  {self._guard(gate, i)}{place} = t[{i}];" for i, place in enumerate(places)]
        return [f"{{ {t} t = {stored.text};", *lines, "}"]

    def _stored(self, index: UOp, value: UOp, count: int) -> Code:
        if count == 1:
            return self.operand(value, False)
        if not index.dtype.is_bool:
            return self.vector(value, count)
        mask = self.mask(value, 1, count)
        return mask if self._holds_masks(index) else cast(self.unit.type(UNSIGNED[1].vec(count)), prefix("-", mask))

    def _guard(self, gate: UOp | None, lane: int = 0) -> str:
        return "" if gate is None else f"if ({self.lane(gate, lane).text}) "
