from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t


cdef class DInfo:
    """What a node needs of its dtype, without a Python attribute look-up."""
    cdef object dtype
    cdef object bool_dtype       # the bool type as wide as this one
    cdef object scalar           # dtype.scalar()
    cdef dict lanes              # {count: DInfo} of the vectors asked for
    cdef int count
    cdef int kind                # one of the K_ constants
    cdef int64_t lo, hi          # the values that the type holds


cdef enum:
    K_OTHER = 0                  # no integer bounds: floats, void
    K_INDEX = 1                  # never wraps
    K_INT = 2                    # wraps: a bound outside the type means any value
    K_BOOL = 3


cdef class UOp:
    cdef readonly int code       # the op as a plain integer, for dispatch in Cython
    cdef unsigned char place     # where it is found: see table.pxi
    cdef unsigned char users_listed  # how many, or HUB
    cdef PyObject* users         # borrowed: a node with this as its first source, where they are listed
    cdef PyObject* next_user     # borrowed: the next with the same first source
    cdef readonly tuple src
    cdef uint64_t memo_owner     # of the entry below: see memo.pxi
    cdef PyObject* memo          # borrowed
    cdef readonly object arg
    cdef tuple ranges_           # open RANGEs, outermost first; a RANGE leaves itself out
    cdef object shape_           # None: the op has no shape
    cdef public object realized  # where the value stands, once it was computed
    cdef DInfo info
    cdef int64_t lo, hi
    cdef uint64_t h


cdef UOp intern(int code, DInfo info, tuple src, object arg)
cdef UOp make(int code, tuple src, object arg, object dtype)
cdef UOp binary(int code, UOp a, UOp b)
cdef UOp const_int(int64_t value, DInfo info)
cdef DInfo info_of(object dtype)
cdef UOp rebuild(UOp u, tuple src)
cpdef list toposort(object roots)
cdef bint same_arg(object a, object b) except -1
