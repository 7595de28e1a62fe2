"""render_c: a list of statements becomes C.

In: ``LINEAR`` (what ``linearize`` returns), or a SINK written by hand, which is taken through the stages before this one.
Out: one self-contained translation unit without headers: ``NAME_range(args, lo, hi)`` for the pool, ``NAME_launch`` = {trips, chunk, schedule},
and ``NAME(buffers...)``, a complete OpenMP kernel that calls it.

Values with one use stand inside the expression that uses them; the rest become constants of C.  Vectors are GCC vector types, understood by clang
too.  A vector of bool is an integer mask (-1 or 0) as wide as the values whose comparison made it, and is widened where it meets others.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

from uopc.ops import COMPARE, AxisType, Ops
from uopc.uop import DType, UOp, dtypes

# Work below which an iteration is not worth a chunk of its own: about what a launch costs, in simple element operations.
CHUNK_WORK = 16384
# More chunks than this buy no balance and cost their launches.
MAX_CHUNKS = 256
# How deep an expression may nest before a part of it gets a name: C compilers promise 127 parentheses and recurse on them.
MAX_DEPTH = 24

_INFIX = {
    Ops.ADD: "+", Ops.MUL: "*", Ops.DIV: "/", Ops.IDIV: "/", Ops.MOD: "%", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^",
    Ops.SHL: "<<", Ops.SHR: ">>", Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!=",
}  # fmt: skip
_LIBM = {
    Ops.EXP: "exp", Ops.EXP2: "exp2", Ops.EXPM1: "expm1", Ops.LOG: "log", Ops.LOG2: "log2", Ops.LOG1P: "log1p", Ops.SIN: "sin",
    Ops.COS: "cos", Ops.TAN: "tan", Ops.TANH: "tanh", Ops.ERF: "erf", Ops.POW: "pow", Ops.FMOD: "fmod", Ops.SQRT: "sqrt",
    Ops.FLOOR: "floor", Ops.CEIL: "ceil", Ops.ROUND: "rint", Ops.TRUNC: "trunc", Ops.ABS: "fabs",
}  # fmt: skip
_SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "b", "index": "i"}


def type_name(dtype: DType) -> str:
    """The C name of a scalar or vector type: float, f32x16, ..."""
    if dtype.count == 1:
        return dtype.c_name
    scalar = dtype.scalar()
    kind = {"f": "f", "i": "i", "u": "u", "b": "u"}[scalar.kind]
    return f"{kind}{8 * scalar.itemsize}x{dtype.count}" if scalar is not dtypes.bfloat16 else f"u16x{dtype.count}"


_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
_SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class _Function:
    """The text of one kernel while it is printed."""

    def __init__(self, linear: UOp, name: str) -> None:
        self.name = name
        self.linear = linear
        self.types: dict[str, str] = {}  # typedefs and inline helpers in the order of first use
        self.text: dict[UOp, str] = {}
        self.depth: dict[UOp, int] = {}
        self.mask: dict[UOp, int] = {}  # bytes of a lane of a vector of bool
        self.uses: dict[UOp, int] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.loops: list[UOp | None] = [None]
        self.scope: dict[UOp, UOp | None] = {}
        self.user_scope: dict[UOp, UOp | None] = {}
        self.user: dict[UOp, UOp] = {}
        self.position: dict[UOp, int] = {}
        self.next_store: dict[UOp, int] = {}
        self.buffers: dict[int, UOp] = {}
        self.written: set[int] = set()
        self.allocs: dict[int, UOp] = {}

    # -- types

    def type(self, dtype: DType) -> str:
        """The C type, declared if it is a vector."""
        name = type_name(dtype)
        if dtype.count > 1 and name not in self.types:
            element = "unsigned char" if dtype.is_bool else dtype.c_name
            self.types[name] = f"typedef {element} {name} __attribute__((vector_size({dtype.itemsize})));"
        return name

    def unaligned(self, dtype: DType) -> str:
        """The same vector type for memory that is aligned to its elements only."""
        name = self.type(dtype) + "u"
        if name not in self.types:
            element = "unsigned char" if dtype.is_bool else dtype.c_name
            align = dtype.scalar().itemsize
            self.types[name] = f"typedef {element} {name} __attribute__((vector_size({dtype.itemsize}), aligned({align}), may_alias));"
        return name

    def helper(self, name: str, text: str) -> str:
        """Declare an inline function once."""
        self.types.setdefault(name, f"static inline __attribute__((always_inline)) {text}")
        return name

    # -- operands

    def ref(self, u: UOp) -> str:
        return _const(u) if u.op is Ops.CONST and u.dtype.count == 1 else self.text[u] if u in self.text else self.constant(u)

    def constant(self, u: UOp) -> str:
        values = ", ".join(_literal(v, u.dtype.scalar()) for v in u.arg)
        return f"({self.type(u.dtype)}){{{values}}}"

    def vector(self, u: UOp, count: int) -> str:
        """``u`` with ``count`` lanes: itself, or a scalar spread.  ``x - {0}`` keeps -0.0, which ``{0} + x`` would not."""
        if u.dtype.count == count:
            return self.ref(u)
        if u.op is Ops.CONST and u.arg == 0 and not (u.dtype.is_float and math.copysign(1.0, u.arg) < 0):
            return f"({self.type(u.dtype.vec(count))}){{}}"
        return f"({self.ref(u)} - ({self.type(u.dtype.vec(count))}){{}})"

    def mask_of(self, u: UOp, size: int, count: int) -> str:
        """A bool as a mask of ``count`` lanes of ``size`` bytes."""
        to = self.type(_SIGNED[size].vec(count))
        if u.dtype.count == 1:
            return f"(({to}){{}} - (({_SIGNED[size].c_name}){self.ref(u)}))"
        if u.op is Ops.CONST:
            return f"({to}){{{', '.join('-1' if v else '0' for v in u.arg)}}}"
        return self.ref(u) if self.mask[u] == size else f"__builtin_convertvector({self.ref(u)}, {to})"

    # -- expressions

    def expression(self, u: UOp) -> str:
        """The C expression of a node over the names or texts of its sources."""
        if u.dtype.count > 1:
            return self.vector_expression(u)
        a = self.ref(u.src[0])
        if u.op in (Ops.CAST, Ops.BITCAST):
            return self.scalar_cast(u, a)
        if u.op is Ops.RECIP:
            return f"(1 / {a})"
        if u.op in _LIBM and len(u.src) == 1:
            return f"__builtin_{_LIBM[u.op]}{'f' if u.dtype is dtypes.float32 else ''}({a})"
        if u.op is Ops.WHERE:
            return f"({a} ? {self.ref(u.src[1])} : {self.ref(u.src[2])})"
        b = self.ref(u.src[1])
        if u.op in (Ops.POW, Ops.FMOD):
            return f"__builtin_{_LIBM[u.op]}{'f' if u.dtype is dtypes.float32 else ''}({a}, {b})"
        if u.op in (Ops.MAX, Ops.MIN):
            return f"{self.extremum(u)}({a}, {b})"
        text = f"({a} {_INFIX[u.op]} {b})"
        # C computes in int what is narrower, and bools as numbers
        if u.op not in COMPARE and (u.dtype.is_bool or (u.dtype.is_int and u.dtype.itemsize < 4)):
            return f"({u.dtype.c_name}){text}"
        return text

    def scalar_cast(self, u: UOp, a: str) -> str:
        if u.op is Ops.CAST:
            return f"({u.dtype.c_name}){a}" if u.src[0].op is not Ops.CONST else f"({u.dtype.c_name})({a})"
        source, to = u.src[0].dtype, u.dtype
        text = f"{source.c_name} f; {to.c_name} t;"
        made = self.helper(f"as_{to.name}_{source.name}", f"{to.c_name} as_{to.name}_{source.name}({source.c_name} x) {{ union {{ {text} }} u; u.f = x; return u.t; }}")
        return f"{made}({a})"

    def extremum(self, u: UOp) -> str:
        """max and min: a NaN on either side is the result, as NumPy's."""
        compare = ">" if u.op is Ops.MAX else "<"
        t, name = self.type(u.dtype), f"{u.op.name.lower()}_{type_name(u.dtype).replace(' ', '_')}"
        nan = "| (a != a)" if u.dtype.is_float else ""
        if u.dtype.count == 1:
            return self.helper(name, f"{t} {name}({t} a, {t} b) {{ return (a {compare} b) {nan} ? a : b; }}")
        choose = self.select(u.dtype)
        return self.helper(name, f"{t} {name}({t} a, {t} b) {{ return {choose}((a {compare} b) {nan}, a, b); }}")

    def select(self, dtype: DType) -> str:
        """Choose lanes by a mask."""
        t, name = self.type(dtype), f"select_{type_name(dtype)}"
        m = self.type(_SIGNED[dtype.scalar().itemsize].vec(dtype.count))
        return self.helper(name, f"{t} {name}({m} m, {t} a, {t} b) {{ return ({t})((m & ({m})a) | (~m & ({m})b)); }}")

    def vector_expression(self, u: UOp) -> str:
        count, scalar = u.dtype.count, u.dtype.scalar()
        if u.op in COMPARE:
            return self.vector_compare(u)
        if u.dtype.is_bool:
            return self.mask_expression(u)
        if u.op is Ops.STACK:
            return f"({self.type(u.dtype)}){{{', '.join(self.ref(s) for s in u.src)}}}"
        if u.op is Ops.CAST:
            return self.vector_cast(u)
        if u.op is Ops.BITCAST:
            return f"(({self.type(u.dtype)}){self.vector(u.src[0], count)})"
        if u.op is Ops.WHERE:
            a, b = self.vector(u.src[1], count), self.vector(u.src[2], count)
            if u.src[0].dtype.count == 1:
                return f"({self.ref(u.src[0])} ? {a} : {b})"
            return f"{self.select(u.dtype)}({self.mask_of(u.src[0], scalar.itemsize, count)}, {a}, {b})"
        if u.op in (Ops.MAX, Ops.MIN):
            return f"{self.extremum(u)}({self.vector(u.src[0], count)}, {self.vector(u.src[1], count)})"
        if u.op is Ops.RECIP:
            return f"(1 / {self.ref(u.src[0])})"
        if u.op in _LIBM:
            return self.lane_calls(u)
        wide = [self.ref(s) if s.dtype.count > 1 or u.op not in (Ops.SHL, Ops.SHR) else self.vector(s, count) for s in u.src]
        return f"({wide[0]} {_INFIX[u.op]} {wide[1]})"

    def vector_compare(self, u: UOp) -> str:
        a, b = u.src
        if a.dtype.is_bool:
            size = max((self.mask.get(s, 1) for s in u.src), default=1)
            self.mask[u] = size
            return f"({self.mask_of(a, size, u.dtype.count)} {_INFIX[u.op]} {self.mask_of(b, size, u.dtype.count)})"
        self.mask[u] = a.dtype.scalar().itemsize
        self.type(_SIGNED[self.mask[u]].vec(u.dtype.count))
        return f"({self.vector(a, u.dtype.count)} {_INFIX[u.op]} {self.vector(b, u.dtype.count)})"

    def mask_expression(self, u: UOp) -> str:
        """Logic on vectors of bool, in the width of the widest mask among the sources."""
        count = u.dtype.count
        size = max((self.mask.get(s, 1) for s in u.src), default=1)
        self.mask[u] = size
        if u.op is Ops.CAST:  # from a bool: decompose leaves no other
            return self.mask_of(u.src[0], size, count)
        parts = [self.mask_of(s, size, count) for s in u.src]
        if u.op is Ops.WHERE:
            return f"(({parts[0]} & {parts[1]}) | (~{parts[0]} & {parts[2]}))"
        if u.op is Ops.STACK:
            return f"({self.type(_SIGNED[1].vec(count))}){{{', '.join(f'-({self.ref(s)})' for s in u.src)}}}"
        infix = {Ops.MAX: "|", Ops.MIN: "&", Ops.ADD: "|", Ops.MUL: "&"}.get(u.op) or _INFIX[u.op]
        return f"({parts[0]} {infix} {parts[1]})"

    def vector_cast(self, u: UOp) -> str:
        source, to, count = u.src[0], self.type(u.dtype), u.dtype.count
        if source.dtype.is_bool:
            size = self.mask.get(source, 1)
            return f"__builtin_convertvector(-{self.mask_of(source, size, count)}, {to})"
        return f"__builtin_convertvector({self.ref(source)}, {to})"

    def lane_calls(self, u: UOp) -> str:
        """A function of C's library, lane by lane."""
        count, scalar = u.dtype.count, u.dtype.scalar()
        t = self.type(u.dtype)
        call = f"__builtin_{_LIBM[u.op]}{'f' if scalar is dtypes.float32 else ''}"
        name = f"{_LIBM[u.op]}_{type_name(u.dtype)}"
        params = ", ".join(f"{t} {p}" for p in "ab"[: len(u.src)])
        args = ", ".join(f"{p}[i]" for p in "ab"[: len(u.src)])
        self.helper(name, f"{t} {name}({params}) {{ {t} r; for (int i = 0; i < {count}; i++) r[i] = {call}({args}); return r; }}")
        return f"{name}({', '.join(self.vector(s, count) for s in u.src)})"

    def horizontal(self, u: UOp) -> str:
        """The lanes of a vector combined in halves: a fixed order, and short chains."""
        source, op = u.src[0], u.arg
        size = self.mask[source] if source.dtype.is_bool else 0
        dtype = _SIGNED[size].vec(source.dtype.count) if size else source.dtype
        element, scalar = dtype.scalar().c_name, dtype.scalar()
        name = f"{op.name.lower()}_lanes_{type_name(dtype)}"
        combine: Callable[[str, str], str]
        if op in (Ops.MAX, Ops.MIN) and not size:
            pair = self.extremum(UOp(op, (UOp.const(0, scalar), UOp.const(0, scalar))))
            combine = lambda a, b: f"{pair}({a}, {b})"  # noqa: E731
        else:
            infix = {Ops.MAX: "|", Ops.MIN: "&", Ops.ADD: "|", Ops.MUL: "&"}.get(op, "") if size else ""
            infix = infix or _INFIX[op]
            combine = lambda a, b: f"({a} {infix} {b})"  # noqa: E731
        step = combine("s[i]", "s[i + w]")
        body = f"{element} s[{dtype.count}]; *({self.type(dtype)} *)s = x; for (int w = {dtype.count // 2}; w; w /= 2) for (int i = 0; i < w; i++) s[i] = {step}; return s[0];"
        body = body.replace(f"{element} s[", f"__attribute__((aligned(64))) {element} s[", 1)
        self.helper(name, f"{element} {name}({self.type(dtype)} x) {{ {body} }}")
        return f"({u.dtype.c_name})({name}({self.ref(source)}){' != 0' if size else ''})"

    # -- memory

    def memory(self, u: UOp) -> tuple[str, UOp]:
        while u.op is Ops.AFTER:
            u = u.src[0]
        if u.op is Ops.BUFFER:
            self.buffers.setdefault(u.arg.slot, u)
            return f"d{u.arg.slot}", u
        self.allocs.setdefault(u.arg.slot, u)
        return f"a{u.arg.slot}", u

    def is_variable(self, u: UOp) -> bool:
        """An ALLOC of one element is a plain variable."""
        return u.op is Ops.ALLOC and math.prod(u.arg.shape) == 1

    def place(self, index: UOp) -> str:
        """The lvalue of an INDEX whose address is one."""
        name, buffer = self.memory(index.src[0])
        if self.is_variable(buffer):
            return name
        if index.dtype.count > buffer.dtype.count:
            const = "" if buffer.op is Ops.ALLOC or buffer.arg.slot in self.written else "const "
            return f"*({const}{self.unaligned(index.dtype)} *)({name} + {self.ref(index.src[1])})"
        return f"{name}[{self.ref(index.src[1])}]"

    def lanes_of(self, index: UOp) -> list[str]:
        """The lvalue of each lane of an INDEX."""
        name, _ = self.memory(index.src[0])
        at = index.src[1]
        if index.dtype.count > 1 and at.dtype.count == 1:
            return [f"{name}[{self.ref(at)} + {i}]" for i in range(index.dtype.count)]
        if at.op is Ops.CONST:
            return [f"{name}[{v}]" for v in at.arg]
        if at.op is Ops.ADD and at.src[1].op is Ops.CONST and at.src[1].dtype.count > 1 and at.src[0].dtype.count == 1:
            return [f"{name}[{self.ref(at.src[0])} + {v}]" for v in at.src[1].arg]
        return [f"{name}[{self.ref(at)}[{i}]]" for i in range(at.dtype.count)]

    def load(self, u: UOp) -> str:
        index, gate = u.src[0], u.src[1] if len(u.src) > 1 else None
        if u.dtype.count == 1 or (gate is None and index.src[1].dtype.count == 1):
            text = self.place(index)
            if u.dtype.is_bool and u.dtype.count > 1 and not self.is_variable(self.memory(index.src[0])[1]):
                text = f"(({self.type(_SIGNED[1].vec(u.dtype.count))})({text} != 0))"
            if gate is not None:
                text = f"({self.ref(gate)} ? {text} : 0)"
        else:
            lanes = self.lanes_of(index)
            if gate is not None:
                holds = [self.ref(gate) if gate.dtype.count == 1 else f"{self.mask_text(gate)}[{i}]" for i in range(u.dtype.count)]
                lanes = [f"{g} ? {x} : 0" for g, x in zip(holds, lanes)]
            if u.dtype.is_bool:
                text = f"({self.type(_SIGNED[1].vec(u.dtype.count))}){{{', '.join(f'-({x})' for x in lanes)}}}"
            else:
                text = f"({self.type(u.dtype)}){{{', '.join(lanes)}}}"
        if u.dtype.is_bool and u.dtype.count > 1:
            self.mask[u] = 1
        return text

    def mask_text(self, u: UOp) -> str:
        return self.ref(u) if u.op is not Ops.CONST else self.mask_of(u, 1, u.dtype.count)

    def store(self, u: UOp) -> None:
        index, value, gate = u.src[0], u.src[1], u.src[2] if len(u.src) > 2 else None
        count = max(index.dtype.count, index.src[1].dtype.count, value.dtype.count)
        buffer = self.memory(index.src[0])[1]
        if buffer.op is Ops.BUFFER:
            self.written.add(buffer.arg.slot)
        if index.dtype.is_bool and count > 1:
            stored = f"({self.type(_UNSIGNED[1].vec(count))})(-{self.mask_of(value, 1, count)})"
            if self.is_variable(buffer):
                stored = self.mask_of(value, 1, count)
        else:
            stored = self.vector(value, count) if count > 1 else self.ref(value)
        if count == 1 or (gate is None and index.src[1].dtype.count == 1):
            self.line(f"{f'if ({self.ref(gate)}) ' if gate is not None else ''}{self.place(index)} = {stored};")
            return
        self.line(f"{{ {self.type(_UNSIGNED[1].vec(count) if index.dtype.is_bool else index.dtype.scalar().vec(count))} t = {stored};")
        for i, place in enumerate(self.lanes_of(index)):
            holds = "" if gate is None else f"if ({self.ref(gate) if gate.dtype.count == 1 else f'{self.mask_text(gate)}[{i}]'}) "
            self.line(f"  {holds}{place} = t[{i}];")
        self.line("}")

    # -- statements

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    def declare(self, u: UOp, text: str) -> None:
        """Give a value a name."""
        if u.dtype.is_bool and u.dtype.count > 1:
            c_type = self.type(_SIGNED[self.mask[u]].vec(u.dtype.count))
        else:
            c_type = self.type(u.dtype)
        name = f"v{len(self.text)}"
        self.line(f"{c_type} {name} = {text};")
        self.text[u], self.depth[u] = name, 0

    def value(self, u: UOp) -> None:
        """A value: inside its user where it has just one in the same loop body, else a variable."""
        text = self.load(u) if u.op is Ops.LOAD else self.horizontal(u) if u.op is Ops.HREDUCE else self.expression(u)
        depth = 1 + max((self.depth.get(s, 0) for s in u.src), default=0)
        changing = u.op is Ops.LOAD and self.may_change(u)
        twice = u.dtype.is_bool and u.dtype.count > 1 and u.op is Ops.WHERE  # its text holds a source twice
        inline = self.uses[u] == 1 and self.scope[u] is self.user_scope[u] and depth < MAX_DEPTH and not changing and not twice
        if inline and len(text) < 2000:
            self.text[u], self.depth[u] = text, depth
        else:
            self.declare(u, text)

    def may_change(self, load: UOp) -> bool:
        """Whether memory that a load reads may be written before the statement that holds its only use: then it needs a name."""
        memory = self.memory(load.src[0].src[0])[1]
        if memory.op is Ops.BUFFER and memory.arg.slot not in self.written:
            return False
        if not self.is_variable(memory):
            return True
        end = load
        while self.uses.get(end) == 1 and end.op is not Ops.STORE:
            end = self.user[end]
        return self.position[end] > self.next_store.get(load, len(self.linear.src))

    def plan_order(self) -> None:
        """Where each node stands, and for each load where its ALLOC is stored to next."""
        self.position = {u: k for k, u in enumerate(self.linear.src)}
        stored: dict[UOp, int] = {}
        for k in range(len(self.linear.src) - 1, -1, -1):
            u = self.linear.src[k]
            if u.op in (Ops.LOAD, Ops.STORE):
                memory = self.memory(u.src[0].src[0])[1]
                if u.op is Ops.STORE:
                    stored[memory] = k
                elif memory in stored:
                    self.next_store[u] = stored[memory]

    def plan_uses(self) -> None:
        """Count uses, and note the loop body in which each node and its last user stand."""
        loops: list[UOp | None] = [None]
        for u in self.linear.src:
            self.scope[u] = loops[-1]
            for s in u.src:
                if u.op is not Ops.AFTER:
                    self.uses[s] = self.uses.get(s, 0) + (2 if u.op is Ops.INDEX and u.src[1].dtype.count > 1 else 1)
                    self.user_scope[s] = loops[-1]
                    self.user[s] = u
            if u.op is Ops.RANGE:
                loops.append(u)
            elif u.op is Ops.END:
                loops.pop()
        for u in self.linear.src:  # an INDEX is never named: what it uses must outlive it
            if u.op is Ops.INDEX and self.uses.get(u, 0) > 1:
                self.uses[u.src[1]] = self.uses.get(u.src[1], 0) + 1
            if u.op is Ops.INDEX and self.user_scope.get(u) is not self.scope[u]:
                self.user_scope[u.src[1]] = self.user_scope.get(u)
            if u.op in (Ops.LOAD, Ops.STORE) and len(u.src) > (1 if u.op is Ops.LOAD else 2) and u.src[-1].dtype.count > 1:
                self.uses[u.src[-1]] += 1  # each lane asks its gate

    def statement(self, u: UOp) -> None:
        if u.op is Ops.RANGE:
            name = f"r{u.arg.id}" if u.arg.id >= 0 else f"r_{-u.arg.id}"
            self.text[u] = name
            first, end = ("lo", "hi") if u.arg.axis_type is AxisType.THREAD else ("0", self.ref(u.src[0]))
            self.line(f"for (long {name} = {first}; {name} < {end}; {name}++) {{")
            self.indent += 1
        elif u.op is Ops.END:
            self.indent -= 1
            self.line("}")
        elif u.op is Ops.STORE:
            self.store(u)
        elif u.op not in (Ops.BUFFER, Ops.ALLOC, Ops.CONST, Ops.INDEX, Ops.AFTER, Ops.SINK):
            self.value(u)

    # -- the unit

    def print(self) -> str:
        self.plan_uses()
        self.plan_order()
        for u in self.linear.src:
            if u.op in (Ops.BUFFER, Ops.ALLOC):
                self.memory(u)
            elif u.op is Ops.STORE and self.memory(u.src[0].src[0])[1].op is Ops.BUFFER:
                self.written.add(self.memory(u.src[0].src[0])[1].arg.slot)
        for u in self.linear.src:
            self.statement(u)
        slots = sorted(self.buffers)
        const = {s: "" if s in self.written else "const " for s in slots}
        c_type = {s: self.buffers[s].dtype.c_name for s in slots}
        unpack = [f"  {const[s]}{c_type[s]} *restrict d{s} = args[{s}];" for s in slots]
        body = self.declarations()
        params = ", ".join(f"{const[s]}{c_type[s]} *restrict d{s}" for s in slots) or "void"
        trips, chunk = self.launch()
        dynamic = int(chunk < trips)
        args = [f"(void *)d{s}" if s in self.buffers else "0" for s in range(max(slots, default=-1) + 1)] or ["0"]
        return "\n".join(
            [
                *self.types.values(),
                f"void {self.name}_range(void *const *args, long lo, long hi) {{",
                *unpack,
                *body,
                "}",
                f"const long {self.name}_launch[3] = {{{trips}, {chunk}, {dynamic}}};",
                f"void {self.name}({params}) {{",
                f"  void *args[] = {{{', '.join(args)}}};",
                f"  #pragma omp parallel for schedule({'dynamic, 1' if dynamic else 'static'})",
                f"  for (long lo = 0; lo < {trips}; lo += {chunk})",
                f"    {self.name}_range(args, lo, lo + {chunk} < {trips} ? lo + {chunk} : {trips});",
                "}",
                "",
            ]
        )

    def declarations(self) -> list[str]:
        """The body with the ALLOCs declared where each thread has its own: inside the parallel loop."""
        declared = []
        for slot, u in sorted(self.allocs.items()):
            size = math.prod(u.arg.shape)
            dtype = u.dtype
            if dtype.is_bool and dtype.count > 1:
                dtype = _SIGNED[1].vec(dtype.count)
            array = f"[{max(size, 1)}] __attribute__((aligned(64)))" if size != 1 else ""
            declared.append(f"{self.type(dtype)} a{slot}{array};")
        threads = [k for k, u in enumerate(self.linear.src) if u.op is Ops.RANGE and u.arg.axis_type is AxisType.THREAD]
        at = next((k + 1 for k, line in enumerate(self.lines) if line.startswith("  for (long") and "= lo;" in line), 0) if threads else 0
        pad = "    " if at else "  "
        return self.lines[:at] + [pad + d for d in declared] + self.lines[at:]

    def launch(self) -> tuple[int, int]:
        """Iterations of the parallel loop, and how many make a chunk.  A matter of the code alone: never of the number of threads."""
        thread = next((u for u in self.linear.src if u.op is Ops.RANGE and u.arg.axis_type is AxisType.THREAD), None)
        if thread is None:
            return 1, 1
        trips = thread.src[0].arg
        work, times, stack = 0, 1, []
        for u in self.linear.src:
            if u.op is Ops.RANGE:
                stack.append(times)
                times *= 1 if u is thread else max(u.vmax + 1, 1)
            elif u.op is Ops.END:
                times = stack.pop()
            elif u.op in (Ops.LOAD, Ops.STORE, Ops.HREDUCE) or u.op > Ops.CAST:
                work += times * u.dtype.count
        chunk = max(1, -(-CHUNK_WORK // max(work, 1)), -(-trips // MAX_CHUNKS))
        return trips, min(chunk, trips)


def _literal(value: bool | int | float, dtype: DType) -> str:
    if dtype.is_bool:
        return str(int(value))
    if dtype.is_float:
        if math.isnan(value):
            return '__builtin_nanf("")' if dtype is dtypes.float32 else '__builtin_nan("")'
        if math.isinf(value):
            text = "__builtin_inff()" if dtype is dtypes.float32 else "__builtin_inf()"
            return text if value > 0 else f"(-{text})"
        text = repr(float(value)) + ("f" if dtype is dtypes.float32 else "")
        return f"({text})" if math.copysign(1.0, value) < 0 else text
    if dtype.kind == "u":
        return f"{value}u" if dtype.itemsize <= 4 else f"{value}ul"
    if value == -(1 << 63):
        return "(-9223372036854775807l - 1)"
    text = f"{value}l" if dtype.itemsize == 8 and abs(value) > 0x7FFFFFFF else str(value)
    return f"({text})" if value < 0 else text


def _const(u: UOp) -> str:
    return _literal(u.arg, u.dtype)


def render_c(root: UOp, name: str) -> str:
    """The C of a program: ``root`` is LINEAR, or a SINK of loop IR, which first goes through the stages that make it LINEAR."""
    if root.op is Ops.SINK:
        # the pipeline knows the stages and stands above this file
        root = importlib.import_module("uopc.pipeline").to_linear(root)
    return _Function(root, name).print()
