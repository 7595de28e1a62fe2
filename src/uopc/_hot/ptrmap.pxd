"""A map from object addresses to object addresses: what one traversal knows of the nodes that it has seen.

Keys and values are borrowed: the caller keeps them alive for as long as the map lives.  Every traversal owns its map,
so traversals may nest and Python threads may interleave.
"""
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free


cdef struct Pair:
    PyObject* key                  # NULL: free
    PyObject* value


cdef struct PtrMap:
    Pair* pairs
    uint64_t mask
    uint64_t used


cdef inline uint64_t ptr_hash(PyObject* key) noexcept nogil:
    cdef uint64_t h = (<uint64_t>key >> 4) * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 32)


cdef inline int ptrmap_init(PtrMap* m, uint64_t expected) except -1:
    cdef uint64_t cap = 64
    while cap < expected * 2:
        cap *= 2
    m.pairs = <Pair*>calloc(cap, sizeof(Pair))
    m.mask = cap - 1
    m.used = 0
    if m.pairs == NULL:
        raise MemoryError()
    return 0


cdef inline void ptrmap_free(PtrMap* m) noexcept nogil:
    free(m.pairs)
    m.pairs = NULL


cdef inline PyObject* ptrmap_get(PtrMap* m, PyObject* key) noexcept nogil:
    """The value of ``key``, or NULL."""
    cdef uint64_t i = ptr_hash(key) & m.mask
    while m.pairs[i].key != NULL:
        if m.pairs[i].key == key:
            return m.pairs[i].value
        i = (i + 1) & m.mask
    return NULL


cdef inline int ptrmap_set(PtrMap* m, PyObject* key, PyObject* value) except -1:
    cdef uint64_t i
    cdef PtrMap bigger
    if m.used * 2 > m.mask:
        ptrmap_init(&bigger, m.mask + 1)
        for i in range(m.mask + 1):
            if m.pairs[i].key != NULL:
                ptrmap_set(&bigger, m.pairs[i].key, m.pairs[i].value)
        ptrmap_free(m)
        m[0] = bigger
    i = ptr_hash(key) & m.mask
    while m.pairs[i].key != NULL:
        if m.pairs[i].key == key:
            m.pairs[i].value = value
            return 0
        i = (i + 1) & m.mask
    m.pairs[i].key = key
    m.pairs[i].value = value
    m.used += 1
    return 0
