"""What a node must be by itself: its row of the op table, and a check of the few ops of which that says too little."""

from __future__ import annotations

from collections.abc import Callable

from uopc.ops import ALU, TABLE, Flags, Ops, Stage
from uopc.terms import rounds_half
from uopc.uop import DType, UOp, dtypes, memory_of

STATEMENTS = (Ops.STORE, Ops.END, Ops.SINK)
# The number of an invariant, the node that breaks it, and how.
Fault = tuple[int, UOp, str]
Check = Callable[[UOp], "Fault | None"]


def by_table(u: UOp, stage: Stage) -> Fault | None:
    """What breaks invariant 1, once it is known that something does."""
    row = TABLE[u.op]
    if not row.stages & stage:
        return 1, u, f"{u.op!r} is not legal here"
    least, most = row.arity
    if len(u.src) < least or (most is not None and len(u.src) > most):
        return 1, u, f"{u.op!r} has {len(u.src)} sources"
    return 1, u, f"the argument of {u.op!r} is {u.arg!r}"


def accepted(op: Ops) -> tuple[type, ...]:
    """The types of argument that ``op`` takes."""
    arg = TABLE[op].arg
    return arg if isinstance(arg, tuple) else (type(None) if arg is None else arg,)


def _value_of(value: object, dtype: DType) -> bool:
    kind = bool if dtype.is_bool else float if dtype.is_float else int
    if type(value) is not kind:
        return False
    if dtype.is_float:
        return value != value or dtype.convert(value) == value
    return bool(dtype.min <= value <= dtype.max)


def _const(u: UOp) -> Fault | None:
    values = u.arg if isinstance(u.arg, tuple) else (u.arg,)
    if isinstance(u.arg, tuple) and len(values) != u.dtype.count:
        return 2, u, f"{len(values)} values for {u.dtype!r}"
    if not all(_value_of(v, u.dtype.scalar()) for v in values):
        return 2, u, f"{u.arg!r} is not a value of {u.dtype!r}"
    return None


def _reduce(u: UOp) -> Fault | None:
    if not (TABLE[u.arg.op].flags & Flags.ASSOCIATIVE and TABLE[u.arg.op].flags & Flags.COMMUTATIVE):
        return 3, u, f"{u.arg.op!r} is not associative and commutative"
    return None


def _loop_reduce(u: UOp) -> Fault | None:
    if u.arg.axes or len(u.src) < 2 or any(r.op is not Ops.RANGE for r in u.src[1:]):
        return 7, u, "a loop's REDUCE has RANGEs as sources and no axes"
    return _reduce(u)


def _end(u: UOp) -> Fault | None:
    if len(u.src) < 2 or any(r.op is not Ops.RANGE for r in u.src[1:]):
        return 7, u, "what an END closes are RANGEs"
    body = u.src[0]
    if body.op not in STATEMENTS or (body.op is Ops.SINK and any(s.op not in STATEMENTS for s in body.src)):
        return 7, u, "the body of an END is not a statement"
    return None


def _index(u: UOp) -> Fault | None:
    if memory_of(u).op not in (Ops.BUFFER, Ops.ALLOC) or not u.src[1].dtype.is_int:
        return 5, u, f"an INDEX of {memory_of(u)!r} at {u.src[1].dtype!r}"
    element, stored = u.dtype.scalar(), u.src[0].dtype.scalar()
    if element is not stored and (memory_of(u).op is not Ops.BUFFER or element.itemsize % stored.itemsize):
        return 5, u, f"an INDEX of {element!r} in {memory_of(u)!r}"
    return None


def _lanes(index: UOp) -> int:
    return max(index.dtype.count, index.src[1].dtype.count)


def _access(u: UOp) -> Fault | None:
    index = u.src[0]
    if index.op is not Ops.INDEX:
        return 5, u, f"{u.op!r} of {index!r}"
    gates = u.src[1:] if u.op is Ops.LOAD else u.src[2:]
    for g in gates:
        if not g.dtype.is_bool or g.dtype.count not in (1, _lanes(index)):
            return 4, u, f"the gate is {g.dtype!r} for {_lanes(index)} lanes"
    if u.arg and (gates or index.src[1].dtype.count > 1 or memory_of(index).op is not Ops.BUFFER):
        return 20, u, f"{len(gates)} gates, {index.src[1].dtype.count} addresses in {memory_of(index)!r}"
    if u.op is Ops.LOAD:
        if u.dtype.scalar() is not index.dtype.scalar() or u.dtype.count != _lanes(index):
            return 16, u, f"a LOAD of {u.dtype!r} from {_lanes(index)} lanes of {index.dtype.scalar()!r}"
        return None
    value = u.src[1].dtype
    if value.scalar() is not index.dtype.scalar() or value.count not in (1, _lanes(index)):
        return 6, u, f"{value!r} is stored to {_lanes(index)} lanes of {index.dtype.scalar()!r}"
    return None


def _lookup(u: UOp) -> Fault | None:
    numbers = len(u.arg) == 16 and all(isinstance(v, float) for v in u.arg)
    index, dtype = u.src[0].dtype, u.dtype
    typed = index.scalar() is dtypes.int32 and dtype.scalar() is dtypes.float32 and index.count == dtype.count
    return None if numbers and typed else (21, u, f"{len(u.arg)} values, {index!r} to {dtype!r}")


def _ldexp(u: UOp) -> Fault | None:
    return None if u.dtype.scalar() is dtypes.float32 else (21, u, f"it is {u.dtype!r}")


def _shuffle(u: UOp) -> Fault | None:
    lanes = u.dtype.count
    named = len(u.arg) == lanes and all(0 <= i < 2 * lanes for i in u.arg)
    return None if named else (22, u, f"{u.arg!r} of twice {lanes} lanes")


def _rounding(u: UOp) -> Fault | None:
    return (33, u, f"{u.op.name} gives {u.dtype!r} by itself") if rounds_half(u) else None


ROUNDING_CHECKS: dict[Ops, Check] = {**dict.fromkeys(ALU, _rounding), Ops.REDUCE: lambda u: _reduce(u) or _rounding(u)}
TENSOR_CHECKS: dict[Ops, Check] = {Ops.CONST: _const, Ops.REDUCE: _reduce}
LOOP_CHECKS: dict[Ops, Check] = {
    Ops.CONST: _const,
    Ops.REDUCE: _loop_reduce,
    Ops.END: _end,
    Ops.INDEX: _index,
    Ops.LOAD: _access,
    Ops.STORE: _access,
    Ops.LOOKUP: _lookup,
    Ops.LDEXP: _ldexp,
    Ops.SHUFFLE: _shuffle,
}
