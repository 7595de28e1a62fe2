"""Arithmetic on 64-bit integers that never wraps: bounds saturate, coefficients report."""
from libc.stdint cimport int64_t, INT64_MAX, INT64_MIN

cdef extern from *:
    """
    static inline int uopc_add_overflows(int64_t a, int64_t b, int64_t *r) { return __builtin_add_overflow(a, b, r); }
    static inline int uopc_mul_overflows(int64_t a, int64_t b, int64_t *r) { return __builtin_mul_overflow(a, b, r); }
    """
    bint uopc_add_overflows(int64_t a, int64_t b, int64_t* r) nogil
    bint uopc_mul_overflows(int64_t a, int64_t b, int64_t* r) nogil


# A bound of INT64_MIN or INT64_MAX means "unknown": uint64 reaches past it, and an index may in theory.

cdef inline int64_t sat_add(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t r = 0
    if a == INT64_MIN or b == INT64_MIN: return INT64_MIN
    if a == INT64_MAX or b == INT64_MAX: return INT64_MAX
    if uopc_add_overflows(a, b, &r): return INT64_MAX if a > 0 else INT64_MIN
    return r


cdef inline int64_t sat_mul(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t r = 0
    if a == 0 or b == 0: return 0
    if a == INT64_MIN or a == INT64_MAX or b == INT64_MIN or b == INT64_MAX or uopc_mul_overflows(a, b, &r):
        return INT64_MAX if (a > 0) == (b > 0) else INT64_MIN
    return r


cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    """a // b for b > 0; unknown stays unknown."""
    if a == INT64_MIN or a == INT64_MAX: return a
    return a // b - (1 if a % b < 0 else 0)


cdef inline int64_t floor_mod(int64_t a, int64_t b) noexcept nogil:
    """a % b for b > 0: from 0 to b - 1."""
    cdef int64_t r = a % b
    return r + b if r < 0 else r


cdef inline int64_t gcd(int64_t a, int64_t b) noexcept nogil:
    """The greatest common divisor; gcd(0, b) is |b|.  Neither is INT64_MIN."""
    cdef int64_t t
    a = -a if a < 0 else a
    b = -b if b < 0 else b
    while b != 0:
        t = a % b
        a = b
        b = t
    return a
