from uopc._hot.ptrmap cimport PtrMap
from uopc._hot.uop cimport UOp

cdef enum:
    F_UNUSED, F_INLINE, F_NAMED


cdef class Uses:
    cdef tuple statements
    cdef int n
    cdef PtrMap place            # node -> 1 + the last place where it stands
    cdef int* loop               # the place of the RANGE whose loop body a node stands in, -1: of the function
    cdef int* uses               # how often its text is printed
    cdef int* user               # the last one, -1: none
    cdef int* overwritten        # for a LOAD, where its memory is stored to next
    cdef int* printed            # the last place at which its text is evaluated, if nothing on the way gets a name
    cdef int* ends               # of the loop of a RANGE

    cdef inline UOp at(self, int k)
    cdef inline int number(self, object u) noexcept
    cdef int find_loops(self) except -1
    cdef int count(self) except -1
    cdef int count_address(self, UOp index, int k) except -1
    cdef inline int user_or_self(self, int k) noexcept
    cdef int use(self, UOp s, int user, int times) except -1
    cdef int find_overwritten(self) except -1
    cdef int find_printed(self) except -1
    cdef int fate(self, UOp u) except -1


cpdef UOp place_of(UOp u)
cpdef tuple spread(UOp at)
