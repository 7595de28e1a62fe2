from libc.stdint cimport uint64_t

from cpython.object cimport PyObject

from uopc._hot.ptrmap cimport PtrMap
from uopc._hot.uop cimport UOp

cdef enum:
    MAX_OPS = 128
    MAX_CAPTURES = 16


cdef struct Node:
    # a Pattern; its sources are the nodes from `first` on
    uint64_t ops[2]              # a bit for each op that matches
    int slot                     # where the match goes, or -1
    int first
    int count                    # sources; -1: not looked at
    bint more                    # more sources than these may follow
    bint test                    # arg is a function
    bint bare                    # nothing but an op and a name
    PyObject* arg                # NULL: not looked at
    PyObject* dtype              # a DtypeTest, or NULL


cdef struct Rule:
    int root                     # its node
    int captures
    int params                   # what its function takes: the captures in these slots, -1 for the context
    int slot[MAX_CAPTURES]
    PyObject* fn


cdef class PatternMatcher:
    cdef readonly tuple rules
    cdef list kept               # what the arrays borrow
    cdef Node* nodes
    cdef Rule* table             # a rule for each order of the sources
    cdef int* by_op              # for each op its rules, one after the other
    cdef int start[MAX_OPS + 1]

    cdef int compile(self, list variants) except -1
    cdef int fill(self, Node* node, object pattern, dict slots, int first) except -1
    cdef bint plausible(self, Node* node, UOp u) noexcept
    cdef int match(self, int k, UOp u, PyObject** captured) except -1
    cdef UOp apply(self, UOp u, object ctx, int* used)
    cdef object name_of(self, int k)


cdef struct Memo:
    uint64_t owner
    bint in_nodes
    PtrMap map


cdef class Rewriter:
    """A memoised rewrite of whole graphs; a subclass says what one step is."""
    cdef Memo memo               # node -> its final form, or (tagged) the replacement that it waits for
    cdef list keep               # what the memo borrows
    cdef bint busy

    cdef UOp step(self, UOp u)   # the replacement of a node whose sources are final, or None
    cdef object last_rules(self)  # for the message about an endless rewrite
    cdef UOp run(self, UOp root)
    cdef int reset(self) except -1
