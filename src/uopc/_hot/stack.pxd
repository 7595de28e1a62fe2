"""A growing stack of borrowed pointers: what a traversal uses where the C stack would overflow."""
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject


cdef struct Stack:
    PyObject** items
    Py_ssize_t size
    Py_ssize_t cap


cdef inline int stack_init(Stack* s) except -1:
    s.cap = 256
    s.size = 0
    s.items = <PyObject**>PyMem_Malloc(s.cap * sizeof(PyObject*))
    if s.items == NULL:
        raise MemoryError()
    return 0


cdef inline void stack_free(Stack* s) noexcept:
    PyMem_Free(s.items)
    s.items = NULL


cdef inline int push(Stack* s, PyObject* item) except -1:
    cdef PyObject** bigger
    if s.size == s.cap:
        bigger = <PyObject**>PyMem_Realloc(s.items, 2 * s.cap * sizeof(PyObject*))
        if bigger == NULL:
            raise MemoryError()
        s.items = bigger
        s.cap *= 2
    s.items[s.size] = item
    s.size += 1
    return 0
