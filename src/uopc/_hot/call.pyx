# cython: language_level=3, boundscheck=False, wraparound=False
"""Calls of captured functions: does a captured function serve these arguments, and if so, run it.

Nothing here builds graphs or compiles; `uopc.jit` does, when no captured function serves a call.  The arguments of a
call are seen as a flat list of leaves (`flatten`); a `Captured` holds what each leaf must be, and `Guard`s on the state
that was read while capturing.
"""

cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from numpy import may_share_memory as shares_memory

from uopc._hot.runtime cimport Memory, NativePlan
from uopc._hot.uop cimport UOp


cdef extern from "Python.h":
    int PyContextVar_Get(object var, object default, PyObject **value) except -1
    object PyCell_Get(object cell)


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(
        type subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims, const cnp.npy_intp *strides, void *data,
        int flags, object obj
    )
    int PyArray_SetBaseObject(cnp.ndarray array, object base) except -1


cnp.import_array()

cdef enum:
    FEW = 24  # buffers that need no allocation
    MAX_AXES = 32


cdef object MISSED = object()  # no captured function serves the call


# ------------------------------------------------------------------------------------------------ arguments, flat --


@cython.final
cdef class Mark:
    """Where a tuple, list or dict begins among the leaves: its type, its length, and a dict's keys."""

    cdef readonly object kind
    cdef readonly Py_ssize_t length
    cdef readonly object keys

    def __cinit__(self, kind, Py_ssize_t length, keys=None):
        self.kind = kind
        self.length = length
        self.keys = keys


@cython.final
cdef class View:
    """An array that was made of an argument: of a Tensor's memory, or a copy in native byte order.

    dtype: uopc's.  tensor: whether the argument was a Tensor.
    """

    cdef readonly cnp.ndarray array
    cdef readonly object dtype
    cdef readonly bint tensor

    def __cinit__(self, cnp.ndarray array, dtype, bint tensor):
        self.array = array
        self.dtype = dtype
        self.tensor = tensor


cdef bint is_container(object x):
    cdef type kind = type(x)
    return kind is tuple or kind is list or kind is dict or (isinstance(x, tuple) and hasattr(kind, "_fields"))


cdef int add_leaves(list leaves, object x) except -1:
    if not is_container(x):
        leaves.append(x)
    elif type(x) is dict:
        leaves.append(Mark(dict, len(x), tuple(x)))
        for item in (<dict>x).values():
            add_leaves(leaves, item)
    else:
        leaves.append(Mark(type(x), len(x)))
        for item in x:
            add_leaves(leaves, item)
    return 0


def flatten(tuple args, dict kwargs):
    """The leaves of the arguments: tuples, named tuples, lists and dicts are opened, anything else is a leaf."""
    cdef list leaves = []
    for x in args:
        add_leaves(leaves, x)
    if kwargs:
        add_leaves(leaves, kwargs)
    return leaves


# ------------------------------------------------------------------------------------------------ what is required --


cdef enum Kind:
    ARRAY = 0
    TENSOR = 1
    VALUE = 2
    MARK = 3


@cython.final
cdef class Leaf:
    """What one leaf must be.

    An array or Tensor: `dtype` (uopc's), `shape`, `strides` in bytes (None: C-contiguous), `descr` (NumPy's dtype).
    The kernel is given the address `offset` bytes from its first element.
    A Mark or any other value: `value`.
    """

    cdef Kind kind
    cdef readonly object value, dtype, descr
    cdef readonly tuple shape
    cdef readonly object strides
    cdef readonly Py_ssize_t offset
    cdef int nd
    cdef cnp.npy_intp dims[MAX_AXES]
    cdef cnp.npy_intp steps[MAX_AXES]
    cdef int slot  # of the plan's buffers; -1: not read

    def __cinit__(self, value=None, *, bint tensor=False, dtype=None, descr=None, tuple shape=None, strides=None,
                  Py_ssize_t offset=0):
        self.slot = -1
        self.value, self.dtype, self.descr, self.shape, self.strides, self.offset = (
            value, dtype, descr, shape, strides, offset
        )
        if shape is None:
            self.kind = MARK if type(value) is Mark else VALUE
            return
        self.kind = TENSOR if tensor else ARRAY
        self.nd = <int>len(shape)
        if self.nd > MAX_AXES:
            raise ValueError(f"an array of {self.nd} axes; at most {MAX_AXES} are accepted")
        for i in range(self.nd):
            self.dims[i] = shape[i]
            self.steps[i] = strides[i] if strides is not None else 0

    @property
    def is_memory(self):
        return self.shape is not None

    @property
    def is_tensor(self):
        return self.kind == TENSOR

    cdef bint fits_array(self, cnp.ndarray a):
        cdef int i
        if cnp.PyArray_NDIM(a) != self.nd:
            return False
        for i in range(self.nd):
            if cnp.PyArray_DIM(a, i) != self.dims[i]:
                return False
        if self.strides is None:
            return cnp.PyArray_IS_C_CONTIGUOUS(a)
        if cnp.PyArray_IS_C_CONTIGUOUS(a):
            return False
        for i in range(self.nd):
            if cnp.PyArray_STRIDE(a, i) != self.steps[i]:
                return False
        return True

    cdef int fits(self, object x, void **at, list held) except -1:
        """1 if x is what is required, and then where its memory begins; 0 if it is not."""
        cdef UOp u
        if self.kind == ARRAY and type(x) is cnp.ndarray:
            if <void *>cnp.PyArray_DESCR(<cnp.ndarray>x) != <void *>self.descr or not self.fits_array(<cnp.ndarray>x):
                return 0
            if not cnp.PyArray_ISALIGNED(<cnp.ndarray>x):
                return 0
            at[0] = cnp.PyArray_BYTES(<cnp.ndarray>x) + self.offset
            return 1
        if self.kind == VALUE:
            return same_value(self.value, x)
        if self.kind == MARK:
            return type(x) is Mark and same_mark(<Mark>self.value, <Mark>x)
        if type(x) is View:
            view = <View>x
            if view.dtype is not self.dtype or view.tensor != (self.kind == TENSOR):
                return 0
            if not self.fits_array(view.array):
                return 0
            at[0] = cnp.PyArray_BYTES(view.array) + self.offset
            return 1
        if self.kind == TENSOR and type(x) is tensor_type:
            if self.strides is not None:
                return 0
            u = x.uop
            storage = u.realized
            if type(storage) is UOp:
                storage = (<UOp>storage).realized
            if storage is None or u.info.dtype is not self.dtype or (
                u.shape_ is not self.shape and u.shape != self.shape
            ):
                return 0
            at[0] = <void *><uintptr_t>storage.address
            held.append(storage)
            return 1
        return 0


cdef object tensor_type = None


def set_tensor_type(kind):
    """The class of Tensors, which stands in a layer above."""
    global tensor_type
    tensor_type = kind


cdef bint same_mark(Mark a, Mark b) except -1:
    return a.kind is b.kind and a.length == b.length and a.keys == b.keys


cdef bint same_value(object a, object b) except -1:
    """The same object, or an equal hashable one of the same type."""
    if a is b or same_plain(a, b):
        return True
    if type(a) is not type(b) or isinstance(a, (float, tuple, cnp.ndarray, tensor_type)):
        return False
    try:
        hash(a)
        return bool(a == b)
    except (TypeError, ValueError):
        return False


cdef bint same_plain(object a, object b) except -1:
    """Equal numbers, strings or tuples of them, of the same type.  0.0 is not -0.0, and NaN is NaN."""
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        return same_bits(<double>a, <double>b)
    if kind is int or kind is str or kind is bool or kind is bytes:
        return a == b
    if kind is complex:
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    if kind is tuple:
        return len(a) == len(b) and all([x is y or same_plain(x, y) for x, y in zip(a, b)])
    return False


cdef bint same_bits(double a, double b):
    return memcmp(&a, &b, sizeof(double)) == 0


# ------------------------------------------------------------------------------------------------------- guards --


cdef enum Held:
    HOLDS = 0
    DIFFERS = 1  # and may come back: a flag, a number
    GONE = 2     # memory was replaced: what was captured keeps it alive for nothing


@cython.final
cdef class Guard:
    """Something that the captured function read besides its arguments, and what it was.

    kind: "cell" (of a closure), "item" (`owner[key]`: globals, attributes, dict items), "items" (a list's items), "keys"
    (a dict's keys), "attribute", "array" (its shape, strides and, where `value` holds them, contents).
    where: how a person would name it.
    """

    cdef readonly str kind
    cdef readonly object owner, key, value
    cdef readonly str where
    cdef int code

    def __init__(self, str kind, owner, key, value, str where):
        self.kind, self.owner, self.key, self.value, self.where = kind, owner, key, value, where
        self.code = ("cell", "item", "items", "keys", "attribute", "array").index(kind)

    def without_contents(self):
        """This guard on an array, whose contents are read anew by every run."""
        return Guard(self.kind, self.owner, self.key, None, self.where)

    def holds(self):
        return check(self) == HOLDS


cdef Held judge(object was, object now) except *:
    if was is now or same_plain(was, now):
        return HOLDS
    return GONE if isinstance(was, cnp.ndarray) or isinstance(was, UOp) or isinstance(was, tensor_type) else DIFFERS


cdef Held check(Guard g) except *:
    cdef PyObject *found
    cdef Held verdict
    if g.code == 1:
        if type(g.owner) is dict:
            found = PyDict_GetItem(g.owner, g.key)
            if found == NULL:
                return DIFFERS
            return HOLDS if <object>found is g.value else judge(g.value, <object>found)
        return judge(g.value, g.owner[g.key]) if g.key in g.owner else DIFFERS
    if g.code == 0:
        try:
            return judge(g.value, PyCell_Get(g.owner))
        except ValueError:
            return DIFFERS
    if g.code == 4:
        return judge(g.value, getattr(g.owner, g.key, None))
    if g.code == 3:
        return HOLDS if tuple(g.owner) == g.value else DIFFERS
    if g.code == 2:
        if len(g.owner) != len(g.value):
            return DIFFERS
        for was, now in zip(g.value, g.owner):
            verdict = judge(was, now)
            if verdict != HOLDS:
                return verdict
        return HOLDS
    a = g.owner
    if (a.shape, a.strides) != g.key or (g.value is not None and a.tobytes() != g.value):
        return DIFFERS
    return HOLDS


# -------------------------------------------------------------------------------------------------- what is run --


@cython.final
cdef class Captured:
    """A function captured for one signature.

    leaves: a Leaf for each leaf of the arguments.  ambient: what `Function.ambient` gave.  guards: Guards.
    plan: the native plan; inputs: for each of its input slots, the number of a leaf (int), an address with what keeps it
    alive ((address, owner)), or None for a key that `draw()` makes at each run.
    n_draws: how many keys a run draws; draws: for each key that is read, (its number, its slot).
    outs: (NumPy dtype, shape, bytes) of each result slot.  copies: input slots that are results as they stand; their
    copies follow the results of the plan, and have entries in `outs`.  results: for each leaf of the result, its result slot.
    loud: runs the plan on the list of all addresses in place of the native plan, or None.
    verify: called with the arrays of all result slots after each run, to raise, or None.
    finish: makes of the list of the results' arrays what the function returns, or None for one array as it is.
    """

    cdef list leaves, guards
    cdef readonly NativePlan plan
    cdef readonly object ambient, finish, draw, loud, verify
    cdef readonly tuple outs, results, keep
    cdef tuple copies
    cdef int n_plan_outs
    cdef tuple draws
    cdef int n_inputs, n_draws
    cdef bint distinct
    cdef void **template

    def __init__(self, list leaves, list guards, ambient, NativePlan plan, inputs, draws, int n_draws, draw, outs, copies,
                 results, finish, loud=None, verify=None):
        cdef int slot
        self.leaves, self.guards, self.ambient, self.plan = leaves, guards, ambient, plan
        self.draws, self.n_draws, self.draw = tuple(draws), n_draws, draw
        self.outs, self.results, self.finish = tuple(outs), tuple(results), finish
        self.loud, self.verify = loud, verify
        self.copies = tuple(copies)
        self.n_plan_outs = <int>(len(self.outs) - len(self.copies))
        self.distinct = self.results == tuple(range(len(self.results)))
        self.n_inputs = <int>len(inputs)
        self.template = <void **>malloc((plan.n_buffers + 1) * sizeof(void *))
        if self.template == NULL:
            raise MemoryError
        keep = []
        for slot in range(plan.n_buffers):
            self.template[slot] = NULL
        for slot, given in enumerate(inputs):
            if isinstance(given, int):
                (<Leaf>leaves[given]).slot = slot
            elif given is not None:
                self.template[slot] = <void *><uintptr_t>given[0]
                keep.append(given[1])
        self.keep = tuple(keep)

    def __dealloc__(self):
        free(self.template)

    def set_guards(self, list guards):
        self.guards = guards

    def addresses(self):
        """The first byte of each array that the function reads besides its arguments."""
        return {<uintptr_t>self.template[slot] for slot in range(self.n_inputs) if self.template[slot] != NULL}

    cdef Held verdict(self) except *:
        cdef Held verdict
        cdef Py_ssize_t i
        for i in range(len(self.guards)):
            verdict = check(<Guard>self.guards[i])
            if verdict != HOLDS:
                return verdict
        return HOLDS

    cdef int place(self, object leaves, void **pointers, list held) except -1:
        """Whether the arguments fit; the addresses of those that the plan reads."""
        cdef Py_ssize_t i
        cdef Leaf leaf
        cdef void *at = NULL
        if len(leaves) != len(self.leaves):
            return 0
        for i in range(len(self.leaves)):
            leaf = <Leaf>self.leaves[i]
            if not leaf.fits(leaves[i], &at, held):
                return 0
            if leaf.slot >= 0:
                pointers[leaf.slot] = at
        return 1

    cdef object run(self, void **pointers, list outs):
        """Launch on inputs that are in place.  outs: arrays to write to (see `Function.destinations`), or None."""
        cdef list arrays = [], keys
        cdef cnp.ndarray array
        cdef Memory memory
        cdef int k
        cdef int first = self.n_inputs
        for k in range(len(self.outs)):
            descr, shape, size = <tuple>self.outs[k]
            if outs is not None and outs[k] is not None:
                array = <cnp.ndarray>outs[k]
            else:
                memory = Memory(size)
                array = new_array(descr, shape, memory)
            if k < self.n_plan_outs:
                pointers[first + k] = cnp.PyArray_BYTES(array)
            else:
                memcpy(cnp.PyArray_BYTES(array), pointers[<int>self.copies[k - self.n_plan_outs]], <size_t>size)
            arrays.append(array)
        if self.n_draws:
            keys = [self.draw() for k in range(self.n_draws)]
            for number, slot in self.draws:
                pointers[<int>slot] = cnp.PyArray_BYTES(<cnp.ndarray>keys[number])
        if self.loud is not None:
            self.loud([<uintptr_t>pointers[k] for k in range(self.plan.n_buffers)])
        else:
            self.plan.run_at(pointers)
        if self.verify is not None:
            self.verify(arrays)
        return arrays

    cdef list destinations(self, list outs, void **pointers):
        """For each result slot the array of `outs` that the kernels may write to directly, or None.

        outs: an array for each leaf of the result.  ValueError and TypeError for arrays that cannot hold the result.
        """
        cdef list places = [None] * len(self.outs)
        cdef cnp.ndarray a
        cdef Py_ssize_t k
        if len(outs) != len(self.results):
            raise ValueError(f"out has {len(outs)} arrays; the function returns {len(self.results)}")
        for k in range(len(outs)):
            slot = self.results[k]
            descr, shape, size = <tuple>self.outs[slot]
            x = outs[k]
            if not isinstance(x, cnp.ndarray):
                raise TypeError(f"out is a {type(x).__name__}; NumPy arrays are written to, and Tensors never change")
            a = <cnp.ndarray>x
            if <void *>cnp.PyArray_DESCR(a) != <void *>descr and a.dtype != descr:
                raise TypeError(f"out has dtype {a.dtype}; the result has {descr}")
            if not has_shape(a, shape):
                raise ValueError(f"out has shape {(<object>a).shape}; the result has {shape}")
            if not cnp.PyArray_ISWRITEABLE(a):
                raise ValueError("out is read-only")
            if places[slot] is None and cnp.PyArray_ISCARRAY(a) and not self.overlaps(a, size, pointers, places):
                places[slot] = a
        return places

    cdef bint overlaps(self, cnp.ndarray a, size_t size, void **pointers, list places):
        """Whether the memory is also that of something read, or of another result."""
        cdef char *at = cnp.PyArray_BYTES(a)
        cdef char *other
        cdef int slot
        for slot in range(self.n_inputs):
            other = <char *>pointers[slot]
            if other < at + size and at < other + self.plan.sizes[slot]:
                return True
        for place in places:
            if place is not None and shares_memory(place, a):
                return True
        return False

    cdef int fill(self, list outs, list arrays) except -1:
        """Copy what could not be written in place."""
        for k, slot in enumerate(self.results):
            if arrays[slot] is not outs[k]:
                outs[k][...] = arrays[slot]
        return 0

    cdef object deliver(self, list arrays):
        if not self.distinct:
            seen = set()
            picked = []
            for slot in self.results:
                picked.append(arrays[slot].copy() if slot in seen else arrays[slot])
                seen.add(slot)
            arrays = picked
        if self.finish is None:
            return arrays[0]
        return self.finish(arrays)


def address_of(cnp.ndarray array not None):
    """Of the first element; `array.ctypes.data` without the 2 us that it takes."""
    return <uintptr_t>cnp.PyArray_BYTES(array)


cdef bint has_shape(cnp.ndarray a, tuple shape):
    cdef int i
    if cnp.PyArray_NDIM(a) != len(shape):
        return False
    for i in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, i) != <cnp.npy_intp>shape[i]:
            return False
    return True


cdef cnp.ndarray new_array(cnp.dtype descr, tuple shape, Memory memory):
    cdef cnp.npy_intp dims[64]
    cdef int i, nd = <int>len(shape)
    for i in range(nd):
        dims[i] = shape[i]
    Py_INCREF(descr)  # NewFromDescr takes a reference
    array = PyArray_NewFromDescr(<type>cnp.ndarray, descr, nd, dims, NULL, memory.data, cnp.NPY_ARRAY_CARRAY, None)
    Py_INCREF(memory)  # as SetBaseObject does
    PyArray_SetBaseObject(<cnp.ndarray>array, memory)
    return <cnp.ndarray>array


# ------------------------------------------------------------------------------------------------------ the call --

cdef int capturing = 0


def count_captures(int change):
    """Functions being captured now, by any thread: while there are, every call takes the careful way."""
    global capturing
    capturing += change
    return capturing


cdef class Function:
    """The called side of a captured function; `uopc.jit.Jit` is the side that captures.

    scoped: the context variable of the options in force.  owners: (object, attribute) pairs whose values change code.
    """

    cdef public list captured  # Captured, the one used last first
    cdef object scoped
    cdef tuple owners
    cdef public object limit

    def __init__(self, scoped, owners, limit):
        self.captured = []
        self.scoped = scoped
        self.owners = tuple(owners)
        self.limit = limit

    def ambient(self):
        """What code depends on besides arguments: the scoped options, and process-wide defaults."""
        return (scoped_value(self.scoped), *[getattr(owner, name) for owner, name in self.owners])

    cdef bint same_ambient(self, tuple was) except -1:
        cdef Py_ssize_t i
        scoped = scoped_value(self.scoped)
        if scoped is not was[0] and scoped != was[0]:
            return False
        for i in range(len(self.owners)):
            owner, name = <tuple>self.owners[i]
            now = getattr(owner, name)
            if now is not was[i + 1] and now != was[i + 1]:
                return False
        return True

    def __call__(self, *args, **kwargs):
        out = kwargs.pop("out", None) if kwargs else None
        if capturing == 0:
            leaves = args if not kwargs and is_flat(args) else flatten(args, kwargs)
            served = self.serve(leaves, None if out is None else [out] if is_array(out) else result_leaves(out))
            if served is not MISSED:
                return served if out is None else out
        return self.missed(args, kwargs, out)

    def try_leaves(self, leaves, outs):
        """Run whichever captured function fits, and return (its result,); None if none does."""
        served = self.serve(leaves, outs)
        return None if served is MISSED else (served,)

    cdef object serve(self, leaves, list outs):
        """MISSED if no captured function fits."""
        cdef void *few[FEW]
        cdef void **pointers
        cdef Captured entry
        cdef Py_ssize_t i
        cdef list held = []
        cdef list entries = self.captured
        cdef list places = None
        cdef Held verdict
        for i in range(len(entries)):
            entry = <Captured>entries[i]
            pointers = few
            if entry.plan.n_buffers > FEW:
                pointers = <void **>malloc(entry.plan.n_buffers * sizeof(void *))
                if pointers == NULL:
                    raise MemoryError
            try:
                memcpy(pointers, entry.template, entry.plan.n_buffers * sizeof(void *))
                if not entry.place(leaves, pointers, held) or not self.same_ambient(entry.ambient):
                    continue
                verdict = entry.verdict()
                if verdict != HOLDS:
                    if verdict == GONE:
                        self.captured = [c for c in self.captured if c is not entry]
                    continue
                if i:
                    self.captured = [entry, *[c for c in self.captured if c is not entry]]
                if outs is None:
                    return entry.deliver(entry.run(pointers, None))
                places = entry.destinations(outs, pointers)
                entry.fill(outs, entry.run(pointers, places))
                return None
            finally:
                if pointers != few:
                    free(pointers)
        return MISSED

    def add(self, Captured entry):
        """Keep a captured function; of too many, the one used longest ago goes."""
        self.captured = [entry, *self.captured][: self.limit]


cdef object scoped_value(object variable):
    cdef PyObject *value = NULL
    PyContextVar_Get(variable, None, &value)
    scoped = <object>value
    Py_DECREF(scoped)  # the reference that the call gave; the variable holds its own
    return scoped


cdef bint is_array(object x):
    return type(x) is cnp.ndarray


cdef bint is_flat(tuple args):
    for x in args:
        if type(x) is not cnp.ndarray and is_container(x):
            return False
    return True


def result_leaves(x):
    """The leaves of a result or of `out`: tuples, lists and dicts opened, without Marks."""
    cdef list leaves = []
    add_leaves(leaves, x)
    return [leaf for leaf in leaves if type(leaf) is not Mark]
