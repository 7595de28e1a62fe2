"""The plainest C for a graph of ALU ops, one statement a node: it tests decompose under a compiler, without a renderer.

Sources of values are LOADs: of the buffer with slot k at an index i they read ``x_k[i]``.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import tempfile

from uopc.dtype import DType, dtypes
from uopc.ops import ALU, Ops, ParamArg
from uopc.uop import UOp, range_, toposort

FLAGS = ("-O2", "-march=native", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
INFIX = {
    Ops.ADD: "+", Ops.MUL: "*", Ops.DIV: "/", Ops.IDIV: "/", Ops.MOD: "%", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^",
    Ops.SHL: "<<", Ops.SHR: ">>", Ops.CMPLT: "<", Ops.CMPLE: "<=", Ops.CMPEQ: "==", Ops.CMPNE: "!=",
}  # fmt: skip


def operand(slot: int, dtype: DType, lanes: int = 1) -> UOp:
    """The value that a function made by ``function`` takes as its argument number ``slot``."""
    index = UOp(Ops.BUFFER, (), ParamArg(slot, dtype, (1 << 20,))).index(range_(1 << 20, 0))
    return UOp(Ops.LOAD, (index,), None, dtype.vec(lanes))


def literal(value: float, dtype: DType) -> str:
    """A constant in C, exactly."""
    if not dtype.is_float:
        text = f"{value + 1}l - 1" if value == -(1 << 63) else f"{int(value)}{'ul' if dtype.kind == 'u' else 'l'}"
    elif math.isnan(value):
        text = '__builtin_nanf("")'
    else:
        text = f"{math.copysign(1, value)} / 0.0" if math.isinf(value) else float(value).hex()
    return f"({dtype.c_name})({text})"


def lane(u: UOp, names: dict[UOp, str]) -> str:
    """Lane l of a node."""
    return f"{names[u]}[l]" if u.dtype.count > 1 else names[u]


def expression(u: UOp, names: dict[UOp, str]) -> str:
    """One lane of a node over the names of its sources."""
    c_type = u.dtype.scalar().c_name
    if u.op is Ops.LOAD:
        slot = u.src[0].src[0].arg.slot
        return f"x_{slot}[i * {u.dtype.count} + l]" if u.dtype.count > 1 else f"x_{slot}[i]"
    a = [lane(s, names) for s in u.src]
    if u.op in INFIX:
        return f"({c_type})({a[0]} {INFIX[u.op]} {a[1]})"
    if u.op is Ops.WHERE:
        return f"{a[0]} ? {a[1]} : {a[2]}"
    if u.op in (Ops.MAX, Ops.MIN):
        return f"({a[0]} {'>' if u.op is Ops.MAX else '<'} {a[1]}) | ({a[0]} != {a[0]}) ? {a[0]} : {a[1]}"
    if u.op is Ops.CAST:
        return f"({c_type}){a[0]}"
    if u.op is Ops.BITCAST:
        return f"((union {{ {u.src[0].dtype.scalar().c_name} from; {c_type} to; }}){{.from = {a[0]}}}).to"
    if u.op is Ops.LDEXP:
        return f"__builtin_ldexpf({a[0]}, (int)__builtin_floorf({a[1]}))"
    if u.op is Ops.LOOKUP:
        return f"((const float[]){{{', '.join(literal(v, u.dtype.scalar()) for v in u.arg)}}})[{a[0]} & 15]"
    return f"__builtin_{u.op.name.lower()}{'f' if u.dtype.scalar() is dtypes.float32 else ''}({', '.join(a)})"


def statement(u: UOp, names: dict[UOp, str]) -> str:
    """The declaration of a node's value: a variable, or an array of its lanes."""
    c_type, count, text = u.dtype.scalar().c_name, u.dtype.count, expression(u, names)
    if count == 1:
        return f"    {c_type} {names[u]} = {text};"
    return f"    {c_type} {names[u]}[{count}]; for (int l = 0; l < {count}; l++) {names[u]}[l] = {text};"


def function(name: str, root: UOp) -> str:
    """``void NAME(OUT *y, const T0 *x_0, ..., long n)``: ``root`` for n indices, times the lanes of its type."""
    names: dict[UOp, str] = {}
    lines: list[str] = []
    buffers: dict[int, str] = {}
    for u in toposort(root):
        if u.op is Ops.CONST:
            names[u] = literal(u.arg, u.dtype)
        elif u.op is Ops.BUFFER:
            buffers[u.arg.slot] = u.dtype.c_name
        elif u.op in ALU or u.op is Ops.LOAD:
            names[u] = f"v{len(lines)}"
            lines.append(statement(u, names))
    count = root.dtype.count
    store = f"    for (int l = 0; l < {count}; l++) y[i * {count} + l] = {lane(root, names)};"
    inputs = "".join(f", const {t} *restrict x_{slot}" for slot, t in sorted(buffers.items()))
    head = f"void {name}({root.dtype.scalar().c_name} *restrict y{inputs}, long n) {{"
    return "\n".join([head, "  for (long i = 0; i < n; i++) {", *lines, store, "  }", "}", ""])


def load(source: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Compile and open a shared object; its file is gone when this returns."""
    with tempfile.TemporaryDirectory(prefix="uopc-straight-c-") as folder:
        path = os.path.join(folder, "unit.c")
        with open(path, "w") as f:
            f.write(source)
        made = os.path.join(folder, "unit.so")
        compiler = os.environ.get("CC", "gcc")
        subprocess.run([compiler, *FLAGS, *flags, "-shared", "-fPIC", path, "-o", made, "-lm"], check=True)
        return ctypes.CDLL(made)


def call(library: ctypes.CDLL, name: str, out, *inputs, lanes: int = 1) -> None:
    """Run a function that ``function`` made on NumPy arrays of one length, a multiple of ``lanes``."""
    assert all(a.flags.c_contiguous for a in (out, *inputs))
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *inputs)]
    library[name](*pointers, ctypes.c_long(len(out) // lanes))
