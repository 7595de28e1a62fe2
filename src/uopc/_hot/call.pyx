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


include "leaves.pxi"
include "guards.pxi"


# -------------------------------------------------------------------------------------------------- what is run --


@cython.final
cdef class Captured:
    """A function captured for one signature.

    leaves: a Leaf for each leaf of the arguments.  ambient: what `Function.ambient` gave.  guards: Guards.
    plan: the native plan.  inputs: for each of its input slots the number of a leaf (int), an address with what keeps
    it alive ((address, owner)), or None for a key that `draw()` makes at each run.
    n_draws: how many keys a run draws.  draws: for each key that is read, (its number, its slot).
    outs: (NumPy dtype, shape, bytes) of each result slot.  copies: input slots that are results as they stand; their
    copies follow the results of the plan, and have entries in `outs`.
    results: for each leaf of the result, its result slot.
    finish: makes of the list of the results' arrays what the function returns, or None for one array as it is.
    unpack: the arrays of an `out` that is no array itself, in the order of `results`.
    loud: runs the plan on the list of all addresses in place of the native plan, or None.
    verify: called with the arrays of all result slots after each run, to raise, or None.
    """

    cdef list leaves, guards
    cdef readonly NativePlan plan
    cdef readonly tuple results
    cdef object ambient, finish, unpack, draw, loud, verify
    cdef tuple outs, keep, copies, draws
    cdef int n_inputs, n_draws, n_plan_outs
    cdef bint distinct
    cdef void **template

    def __init__(
        self, list leaves, list guards, ambient, NativePlan plan, inputs, draws, int n_draws, draw, outs, copies,
        results, finish, unpack, loud=None, verify=None
    ):
        cdef int slot
        self.leaves, self.guards, self.ambient, self.plan = leaves, guards, ambient, plan
        self.draws, self.n_draws, self.draw = tuple(draws), n_draws, draw
        self.outs, self.results, self.finish = tuple(outs), tuple(results), finish
        self.unpack, self.loud, self.verify = unpack, loud, verify
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
            keys = [self.draw() for _ in range(self.n_draws)]
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
            served = self.serve(leaves, out)
            if served is not MISSED:
                return served if out is None else out
        return self.missed(args, kwargs, out)

    def try_leaves(self, leaves, out):
        """Run whichever captured function fits, and return (its result,); None if none does."""
        served = self.serve(leaves, out)
        return None if served is MISSED else (served,)

    cdef object serve(self, leaves, out):
        """MISSED if no captured function fits."""
        cdef void *few[FEW]
        cdef void **pointers
        cdef Captured entry
        cdef Py_ssize_t i
        cdef list held = []
        cdef list entries = self.captured
        cdef list outs, places
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
                if out is None:
                    return entry.deliver(entry.run(pointers, None))
                outs = [out] if isinstance(out, cnp.ndarray) else entry.unpack(out)
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


cdef bint is_flat(tuple args):
    for x in args:
        if type(x) is not cnp.ndarray and is_container(x):
            return False
    return True
