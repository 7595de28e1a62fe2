# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The one node type: immutable, hash-consed, gone when nobody holds it.

Two nodes with the same op, sources, argument and dtype are the same object, so that equality is identity and a memo
is a map of addresses.  What finds nodes holds borrowed pointers; a dying node removes itself.  Shape, open ranges and
integer bounds follow from the sources when the node is made, so that nothing has to recurse later, however deep the
graph.
"""
cimport cython
from cpython.object cimport PyObject, PyObject_Hash, PyTypeObject
from cpython.number cimport PyNumber_Index
from cpython.ref cimport Py_INCREF
from cpython.list cimport PyList_GET_ITEM
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint64_t, INT64_MAX, INT64_MIN
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from uopc._hot.int64 cimport floor_div, sat_add, sat_mul
from uopc._hot.ptrmap cimport PtrMap, ptrmap_free, ptrmap_get, ptrmap_init, ptrmap_set
from uopc._hot.stack cimport Stack, push, stack_free, stack_init

from uopc.dtype import DType, dtypes
from uopc.ops import TABLE, AxisType, DTypeRule, Flags, Kind, Ops, RangeArg

cdef extern from "Python.h":
    void PyType_Modified(PyTypeObject* t)
    void PyObject_GC_UnTrack(object)
    long PyLong_AsLong(object) except? -1
    ctypedef object (*newtuple_t)(PyTypeObject*, object, PyObject*)
    ctypedef struct tuple_type "PyTypeObject":
        newtuple_t tp_new
    tuple_type PyTuple_Type
    long long PyLong_AsLongLongAndOverflow(object, int*)

cdef int OVERFLOW = 0

ctypedef PyObject* (*newfunc_t)(PyTypeObject*, PyObject*, PyObject*) except NULL

cdef extern from *:
    """
    /* tp_vectorcall is what newer Cythons give a class for speed; it would win over tp_new */
    #define UOPC_SET_NEW(t, f) \\
        (((PyTypeObject *)(t))->tp_new = (newfunc)(f), ((PyTypeObject *)(t))->tp_vectorcall = NULL)
    """
    void UOPC_SET_NEW(object t, newfunc_t f)

# ---- the op table, as C arrays -------------------------------------------------------------------

cdef enum:
    MAX_OPS = 128

cdef int RULE[MAX_OPS]
cdef int ARITY_LEAST[MAX_OPS]
cdef int ARITY_MOST[MAX_OPS]       # -1: any number
cdef bint IS_ALU[MAX_OPS]
cdef bint IS_MOVEMENT[MAX_OPS]
cdef bint INT_ONLY[MAX_OPS]
cdef bint FLOAT_ONLY[MAX_OPS]
cdef list OPS = list(Ops)
cdef list ARGUMENT = [object] * MAX_OPS  # the types of an op's argument
cdef tuple EMPTY = ()
cdef object RANGE_ARG = RangeArg  # without a look into the module's names

cdef int _op
for _row_op, _row in TABLE.items():
    _op = _row_op
    RULE[_op] = _row.dtype
    ARITY_LEAST[_op] = _row.arity[0]
    ARITY_MOST[_op] = -1 if _row.arity[1] is None else _row.arity[1]
    IS_ALU[_op] = _row.kind is Kind.ALU
    IS_MOVEMENT[_op] = _row.kind is Kind.MOVEMENT
    INT_ONLY[_op] = bool(_row.flags & Flags.INT_ONLY)
    FLOAT_ONLY[_op] = bool(_row.flags & Flags.FLOAT_ONLY)
    ARGUMENT[_op] = type(None) if _row.arg is None else _row.arg

cdef int C_CONST = Ops.CONST, C_RANGE = Ops.RANGE, C_END = Ops.END, C_REDUCE = Ops.REDUCE, C_SINK = Ops.SINK
cdef int C_LINEAR = Ops.LINEAR
cdef int C_STATE = Ops.STATE, C_COMPONENT = Ops.COMPONENT
cdef int C_BUFFER = Ops.BUFFER, C_ALLOC = Ops.ALLOC, C_INDEX = Ops.INDEX, C_LOAD = Ops.LOAD
cdef int C_STORE = Ops.STORE, C_AFTER = Ops.AFTER
cdef int C_STAGE = Ops.STAGE, C_ALIAS = Ops.ALIAS
cdef int C_RESHAPE = Ops.RESHAPE, C_EXPAND = Ops.EXPAND, C_PERMUTE = Ops.PERMUTE
cdef int C_VIEW = Ops.VIEW, C_SHRINK = Ops.SHRINK
cdef int C_FLIP = Ops.FLIP, C_STRIDE = Ops.STRIDE, C_PAD = Ops.PAD, C_IOTA = Ops.IOTA, C_STACK = Ops.STACK
cdef int C_GATHER = Ops.GATHER, C_CAT = Ops.CAT
cdef int C_BITCAST = Ops.BITCAST, C_CAST = Ops.CAST, C_ADD = Ops.ADD, C_MUL = Ops.MUL, C_IDIV = Ops.IDIV
cdef int C_LOOKUP = Ops.LOOKUP
cdef int C_MOD = Ops.MOD, C_MAX = Ops.MAX, C_MIN = Ops.MIN
cdef int C_CMPLT = Ops.CMPLT, C_CMPLE = Ops.CMPLE, C_CMPEQ = Ops.CMPEQ, C_CMPNE = Ops.CMPNE, C_AND = Ops.AND
cdef int C_OR = Ops.OR
cdef int C_XOR = Ops.XOR, C_SHL = Ops.SHL, C_SHR = Ops.SHR, C_WHERE = Ops.WHERE, C_ABS = Ops.ABS

cdef int R_GIVEN = DTypeRule.GIVEN, R_VOID = DTypeRule.VOID, R_FIRST = DTypeRule.FIRST, R_ARG = DTypeRule.ARG
cdef int R_INDEX = DTypeRule.INDEX
cdef int R_SAME = DTypeRule.SAME, R_BOOL = DTypeRule.BOOL, R_SELECT = DTypeRule.SELECT, R_LOAD = DTypeRule.LOAD
cdef int R_WORD = DTypeRule.WORD, R_DOT = DTypeRule.DOT

include "infer.pxi"
include "bounds.pxi"
include "table.pxi"

# ---- making nodes --------------------------------------------------------------------------------

cdef UOp make(int code, tuple src, object arg, object dtype):
    """A node from unchecked parts: TypeError for a wrong arity, source or dtype, ValueError for shapes."""
    cdef Py_ssize_t n = PyTuple_GET_SIZE(src)
    for s in src:
        if type(s) is not UOp:
            raise TypeError(f"{OPS[code]!r} takes UOps as sources, not {s!r}")
    if n < ARITY_LEAST[code] or (ARITY_MOST[code] >= 0 and n > ARITY_MOST[code]):
        most = "any number" if ARITY_MOST[code] < 0 else ARITY_MOST[code]
        raise TypeError(f"{OPS[code]!r} takes {ARITY_LEAST[code]} to {most} sources, not {n}")
    return intern(code, infer(code, src, arg, dtype), src, arg)


cdef UOp rebuild(UOp u, tuple src):
    """``u`` over other sources.  The dtype is derived again where the op's rule says so: lanes may have come in."""
    cdef int rule = RULE[u.code]
    if rule != R_LOAD and same_types(u.src, src):  # what is loaded follows from what is below its INDEX too
        return intern(u.code, u.info, src, u.arg)
    if rule == R_GIVEN:
        casts = u.code == C_CAST or u.code == C_BITCAST or u.code == C_LOOKUP
        return intern(u.code, widen(u.info, <UOp>src[0]) if casts else u.info, src, u.arg)
    if rule == R_LOAD and (u.info.count > 1 or is_word(u)):
        return intern(u.code, u.info, src, u.arg)
    return intern(u.code, infer(u.code, src, u.arg, None), src, u.arg)


cdef inline bint same_types(tuple a, tuple b) noexcept:
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(a)
    if PyTuple_GET_SIZE(b) != n:
        return False
    for i in range(n):
        if (<UOp>PyTuple_GET_ITEM(a, i)).info is not (<UOp>PyTuple_GET_ITEM(b, i)).info:
            return False
    return True


cdef inline bint is_word(UOp u):
    """Whether an INDEX is of another type than its memory: several elements as one."""
    return u.code == C_INDEX and u.info.scalar is not (<UOp>u.src[0]).info.scalar


cdef DInfo widen(DInfo info, UOp source):
    """A cast is as wide as what it casts, a lookup as its index."""
    return info if info.count == source.info.count else widened(info, source.info.count)


cdef enum:
    LEAST_KEPT = -16
    MOST_KEPT = 512  # index constants up to here are most of all constants: they live for ever and are not looked up

cdef list KEPT = []


cdef UOp const_int(int64_t value, DInfo info):
    """A constant of an integer or index type that holds ``value``."""
    if info is INDEX_INFO and LEAST_KEPT <= value <= MOST_KEPT:
        return <UOp>PyList_GET_ITEM(KEPT, value - LEAST_KEPT)
    return intern(C_CONST, info, EMPTY, value)


cdef UOp const_index(object value):
    """An index constant of a Python int of any size."""
    cdef int overflow = 0
    cdef int64_t v = PyLong_AsLongLongAndOverflow(value, &overflow)
    return intern(C_CONST, INDEX_INFO, EMPTY, value) if overflow else const_int(v, INDEX_INFO)


cdef object whole(object value, str what):
    """``value`` as an int; TypeError, naming ``what`` it was meant for, where it is not one."""
    try:
        return PyNumber_Index(value)
    except TypeError:
        raise TypeError(f"{what} is an int or a UOp, not {value!r}") from None


cdef UOp const_of(object value, DInfo info):
    """A constant of any scalar or vector type; the value is converted to it."""
    cdef double d
    if type(value) is int:
        if info is INDEX_INFO:
            return const_index(value)
    elif type(value) is float and info is FLOAT:
        d = value
        return intern(C_CONST, info, EMPTY, value if d == <double><float>d else <double><float>d)
    return intern(C_CONST, info, EMPTY, info.dtype.convert(value))


cdef UOp binary(int code, UOp a, UOp b):
    cdef tuple src = (a, b)
    if a.info is b.info and RULE[code] == R_SAME:
        if not (INT_ONLY[code] and a.info.kind == K_OTHER) and not (FLOAT_ONLY[code] and a.info.kind != K_OTHER):
            return intern(code, a.info, src, None)
    return intern(code, infer(code, src, None, None), src, None)


cdef UOp operand(object value, UOp like):
    """``value`` as a UOp: itself, or a constant of the type of ``like``."""
    if type(value) is UOp:
        return <UOp>value
    if like.info.kind == K_INDEX and type(value) is int:
        return const_index(value)
    if type(value) is float and like.info.scalar is FLOAT.dtype:
        return const_of(value, FLOAT)
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{value!r} is not a UOp, bool, int or float")
    if isinstance(value, float) and not like.info.scalar.is_float:
        raise TypeError(f"the float {value!r} does not go with {like.dtype!r}; cast first")
    return const_of(value, widened(like.info, 1))


cdef UOp arithmetic(int code, object a, object b):
    cdef UOp x, y
    if type(a) is UOp:
        x = <UOp>a
        y = operand(b, x)
    else:
        y = <UOp>b
        x = operand(a, y)
    return binary(code, x, y)


cdef UOp negate(UOp a):
    return binary(C_MUL, a, operand(-1, a))


# ---- the class -----------------------------------------------------------------------------------

@cython.final
@cython.no_gc  # sources are older than the node and arguments are plain values: no cycle can form
@cython.freelist(4096)
cdef class UOp:
    """A node: ``UOp(op, src=(), arg=None, dtype=None)``.

    ``dtype`` may be left out where it follows from op, sources and argument.  Raises TypeError for a wrong number or
    kind of sources or for types that do not agree, ValueError for shapes that do not fit.
    """

    # realized: where the value stands once it was computed.  For a BUFFER its Storage, for any other node the BUFFER
    # that holds its value.  A memo, no part of the node's identity; a BUFFER has no sources, so no cycle can form.

    def __dealloc__(self):
        if self.place != NOWHERE:
            leave(self)

    def __hash__(self):
        return <Py_hash_t>(self.h >> 1)

    def __reduce__(self):
        """The whole graph as one flat list, sources first: pickling would recurse into sources.  Ops go by name."""
        cdef dict place = {}
        cdef UOp u
        rows = []
        for u in toposort(self):
            rows.append((OPS[u.code].name, [place[s] for s in u.src], u.arg, u.info.dtype))
            place[u] = len(place)
        return (from_rows, (rows,))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    @property
    def op(self):
        return <object>PyList_GET_ITEM(OPS, self.code)

    @property
    def dtype(self):
        return self.info.dtype

    @property
    def shape(self):
        """The shape: () for scalars and everything in loop programs; TypeError for what has none (SINK, STORE, END)."""
        if self.shape_ is None:
            raise TypeError(f"{self.op!r} has no shape")
        return self.shape_

    @property
    def ranges(self):
        """The RANGEs that this value depends on and that are not closed below it, outermost first."""
        return open_ranges(self)

    @property
    def vmin(self):
        """The least value that a bool or integer node can take (for floats -inf).  INT64_MIN: not known."""
        return self.lo if self.info.kind != K_OTHER else self.dtype.min

    @property
    def vmax(self):
        """The greatest value that a bool or integer node can take (for floats inf).  INT64_MAX: not known."""
        return self.hi if self.info.kind != K_OTHER else self.dtype.max

    @staticmethod
    def const(value, dtype=None):
        """A constant; bool, index or float32 by the Python type of ``value`` unless ``dtype`` says otherwise."""
        if dtype is None:
            return make(C_CONST, EMPTY, value, None)
        return const_of(value, info_of(dtype))

    @staticmethod
    def wrap(roots, targets, fn):
        """``roots`` with each node t of ``targets`` replaced by ``fn(t')``: t' is t over its replaced sources.

        Returns a list, one root for each given.
        """
        return replace_nodes(list(roots), {t: fn for t in targets})

    def substitute(self, mapping):
        """This graph with the nodes that are keys of ``mapping`` replaced by its values (not searched again)."""
        return replace_nodes([self], mapping)[0]

    def replace(self, src=None, arg=None, dtype=None):
        """The same node with other sources, argument or dtype."""
        if src is not None and arg is None and dtype is None:
            for s in src:
                if type(s) is not UOp:
                    raise TypeError(f"{self.op!r} takes UOps as sources, not {s!r}")
            return rebuild(self, tuple(src))
        cdef int rule = RULE[self.code]
        given = dtype if dtype is not None else self.dtype if rule == R_GIVEN or rule == R_LOAD else None
        return make(self.code, self.src if src is None else tuple(src), self.arg if arg is None else arg, given)

    def toposort(self):
        """All nodes of this graph, each once, sources before users, this one last."""
        return toposort(self)

    # -- loop programs

    def after(self, *deps):
        """This value or buffer after ``deps``: "inside the loop" for a RANGE, "once done" for a STORE or END."""
        return make(C_AFTER, (self, *deps), None, None)

    def index(self, *idx):
        """The element at ``idx`` of a BUFFER or ALLOC: a flat index, or one for each axis (row-major)."""
        cdef object flat = None, n
        if len(idx) == 1:
            flat = idx[0]
        elif len(idx) == 0 and product(self.shape) == 1:
            flat = 0
        elif len(idx) != len(self.shape):
            raise ValueError(f"{len(idx)} indices for shape {self.shape}: give one flat index or one for each axis")
        else:
            for i, n in zip(idx, self.shape):
                flat = i if flat is None else flat * n + i
        if type(flat) is not UOp:
            flat = const_index(whole(flat, "an index"))
        return make(C_INDEX, (self, flat), None, None)

    def load(self, gate=None):
        """The value at this INDEX; with ``gate``, 0 where it does not hold (and memory is not read)."""
        return make(C_LOAD, (self,) if gate is None else (self, gate), None, None)

    def store(self, value, gate=None):
        """Write ``value`` at this INDEX; with ``gate``, only where it holds."""
        v = operand(value, self)
        return make(C_STORE, (self, v) if gate is None else (self, v, gate), None, None)

    def end(self, *ranges):
        """Close ``ranges`` (outermost first) around this STORE or SINK.  With none, nothing changes."""
        return make(C_END, (self, *ranges), None, None) if ranges else self

    # -- arithmetic

    def cast(self, dtype):
        """This value as another type, as wide as it is."""
        cdef DInfo info = widen(info_of(dtype), self)
        return self if info is self.info else intern(C_CAST, info, (self,), None)

    def bitcast(self, dtype):
        """The same bits as another type of the same size."""
        cdef DInfo info = widen(info_of(dtype), self)
        if info.dtype.itemsize != self.dtype.itemsize:
            raise TypeError(f"cannot bitcast {self.dtype!r} to {dtype!r}: the sizes differ")
        return self if info is self.info else intern(C_BITCAST, info, (self,), None)

    def alu(self, op, *others):
        """``op`` of this and ``others``; Python numbers among them become constants of this type."""
        if type(op) is not Ops:
            raise TypeError(f"{op!r} is not one of Ops")
        return make(op, (self, *[operand(o, self) for o in others]), None, None)

    def recip(self):
        return make(Ops.RECIP, (self,), None, None)

    def maximum(self, x):
        return arithmetic(C_MAX, self, x)

    def minimum(self, x):
        return arithmetic(C_MIN, self, x)

    def where(self, a, b):
        """``a`` where this bool holds, else ``b``; at least one of the two is a UOp."""
        if type(a) is not UOp and type(b) is not UOp:
            raise TypeError("where() needs a UOp among its values, or it has no type")
        a = operand(a, b if type(a) is not UOp else a)
        return make(C_WHERE, (self, a, operand(b, a)), None, None)

    def eq(self, x):
        return arithmetic(C_CMPEQ, self, x)

    def ne(self, x):
        return arithmetic(C_CMPNE, self, x)

    def logical_not(self):
        return arithmetic(C_XOR, self, True)

    def __add__(self, x): return arithmetic(C_ADD, self, x)
    def __radd__(self, x): return arithmetic(C_ADD, x, self)
    def __sub__(self, x): return binary(C_ADD, self, negate(operand(x, self)))
    def __rsub__(self, x): return binary(C_ADD, operand(x, self), negate(self))
    def __mul__(self, x): return arithmetic(C_MUL, self, x)
    def __rmul__(self, x): return arithmetic(C_MUL, x, self)
    def __truediv__(self, x): return arithmetic(Ops.DIV, self, x)
    def __rtruediv__(self, x): return arithmetic(Ops.DIV, x, self)
    def __floordiv__(self, x): return arithmetic(C_IDIV, self, x)
    def __rfloordiv__(self, x): return arithmetic(C_IDIV, x, self)
    def __mod__(self, x): return arithmetic(C_MOD, self, x)
    def __rmod__(self, x): return arithmetic(C_MOD, x, self)
    def __and__(self, x): return arithmetic(C_AND, self, x)
    def __rand__(self, x): return arithmetic(C_AND, x, self)
    def __or__(self, x): return arithmetic(C_OR, self, x)
    def __ror__(self, x): return arithmetic(C_OR, x, self)
    def __xor__(self, x): return arithmetic(C_XOR, self, x)
    def __rxor__(self, x): return arithmetic(C_XOR, x, self)
    def __lshift__(self, x): return arithmetic(C_SHL, self, x)
    def __rlshift__(self, x): return arithmetic(C_SHL, x, self)
    def __rshift__(self, x): return arithmetic(C_SHR, self, x)
    def __rrshift__(self, x): return arithmetic(C_SHR, x, self)
    def __neg__(self): return negate(self)
    def __lt__(self, x): return arithmetic(C_CMPLT, self, x)
    def __le__(self, x): return arithmetic(C_CMPLE, self, x)
    def __gt__(self, x): return binary(C_CMPLT, operand(x, self), self)
    def __ge__(self, x): return binary(C_CMPLE, operand(x, self), self)

    def __repr__(self):
        shape = "" if self.shape_ is None or self.shape_ == EMPTY else f", shape={self.shape_}"
        arg = "" if self.arg is None else f", arg={self.arg!r}"
        return f"UOp({self.op!r}, {self.dtype!r}, {len(self.src)} sources{shape}{arg})"


cdef PyObject* uop_new(PyTypeObject* t, PyObject* args, PyObject* kwargs) except NULL:
    """What ``UOp(...)`` calls: the node may be an old one, which no __init__ could return."""
    cdef object u = new_from_call(*<tuple>args, **(<dict>kwargs if kwargs != NULL else {}))
    Py_INCREF(u)
    return <PyObject*>u


def new_from_call(op, src=(), arg=None, dtype=None):
    if type(op) is not Ops:
        raise TypeError(f"{op!r} is not one of Ops")
    if type(src) is not tuple and not hasattr(src, "__iter__"):
        raise TypeError(f"the sources of {op!r} are UOps in a tuple or list, not {src!r}")
    return make(op, tuple(src), arg, dtype)


def from_rows(rows):
    """What a pickled UOp becomes again: the last of ``rows`` (op name, places of the sources, argument, dtype)."""
    cdef list made = []
    for name, places, arg, dtype in rows:
        made.append(make(Ops[name], tuple([made[i] for i in places]), arg, dtype))
    return made[len(made) - 1]


UOPC_SET_NEW(UOp, uop_new)
PyType_Modified(<PyTypeObject*>UOp)
KEPT.extend([intern(C_CONST, INDEX_INFO, EMPTY, value) for value in range(LEAST_KEPT, MOST_KEPT + 1)])


# ---- traversal -----------------------------------------------------------------------------------

cpdef list toposort(object roots):
    """All nodes below ``roots`` (a UOp or a sequence), each once, sources before users, in a stable order."""
    return walk([roots] if type(roots) is UOp else list(roots), None)


cdef list walk(list start, dict replaced):
    """All nodes below ``start``, sources before users; what is below a node that is a key of ``replaced`` with a UOp as
    its value is left out.
    """
    cdef PtrMap seen
    cdef Stack st
    cdef list out = []
    cdef UOp u
    cdef PyObject* p
    cdef PyObject* state
    cdef Py_ssize_t i
    cdef PyObject* OPEN = <PyObject*>EMPTY
    cdef PyObject* DONE = <PyObject*>OPS
    ptrmap_init(&seen, 256)
    stack_init(&st)
    try:
        for i in range(len(start) - 1, -1, -1):
            u = <UOp?>start[i]
            push(&st, <PyObject*>u)
        while st.size > 0:
            p = st.items[st.size - 1]
            state = ptrmap_get(&seen, p)
            if state == DONE:
                st.size -= 1
                continue
            u = <UOp>p
            if state == OPEN:
                st.size -= 1
                ptrmap_set(&seen, p, DONE)
                out.append(u)
                continue
            ptrmap_set(&seen, p, OPEN)
            if replaced is not None and type(replaced.get(u)) is UOp:
                continue
            for i in range(PyTuple_GET_SIZE(u.src) - 1, -1, -1):
                if ptrmap_get(&seen, <PyObject*>PyTuple_GET_ITEM(u.src, i)) == NULL:
                    push(&st, <PyObject*>PyTuple_GET_ITEM(u.src, i))
    finally:
        stack_free(&st)
        ptrmap_free(&seen)
    return out


cdef list replace_nodes(list roots, dict mapping):
    """Roots with mapped nodes replaced: by the value, or by what it gives for the rebuilt node if it is a function."""
    cdef PtrMap memo
    cdef list keep = []  # new nodes and the order: the memo borrows
    cdef list order
    cdef UOp u, v
    cdef tuple src
    cdef Py_ssize_t i, n
    cdef bint changed
    cdef PyObject* r
    if not mapping:
        return roots
    order = walk(roots, mapping)
    ptrmap_init(&memo, len(order))
    try:
        for u in order:
            to = mapping.get(u)
            if to is not None and type(to) is UOp:
                ptrmap_set(&memo, <PyObject*>u, <PyObject*>to)
                continue
            v = u
            n = PyTuple_GET_SIZE(u.src)
            changed = False
            for i in range(n):
                if ptrmap_get(&memo, <PyObject*>PyTuple_GET_ITEM(u.src, i)) != <PyObject*>PyTuple_GET_ITEM(u.src, i):
                    changed = True
                    break
            if changed:
                src = PyTuple_New(n)
                for i in range(n):
                    r = ptrmap_get(&memo, <PyObject*>PyTuple_GET_ITEM(u.src, i))
                    Py_INCREF(<object>r)
                    PyTuple_SET_ITEM(src, i, <object>r)
                v = rebuild(u, src)
                keep.append(v)
            if to is not None:
                v = <UOp?>to(v)
                keep.append(v)
            ptrmap_set(&memo, <PyObject*>u, <PyObject*>v)
        return [<object>ptrmap_get(&memo, <PyObject*>u) for u in roots]
    finally:
        ptrmap_free(&memo)


def live_nodes():
    """How many nodes are alive."""
    return living


def range_(end, id, axis_type=AxisType.LOOP):
    """A loop counter from 0 to ``end`` (an int, or an index of outer ranges); ``id`` tells it from others."""
    cdef UOp e = <UOp>end if type(end) is UOp else const_index(whole(end, "the end of a range"))
    cdef tuple src = (e,)
    arg = PyTuple_Type.tp_new(<PyTypeObject*>RangeArg, ((id, axis_type),), NULL)
    return intern(C_RANGE, infer(C_RANGE, src, arg, None), src, arg)


def sink(*stores):
    """The end of a program, or of a loop body with several stores."""
    return make(C_SINK, stores, None, None)


def ranges_in(*uops):
    """All RANGEs in the graphs of ``uops``, open or closed, sources first."""
    return [u for u in toposort(uops) if (<UOp>u).code == C_RANGE]
