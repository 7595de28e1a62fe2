# Integer bounds of a new node, from those of its sources.  Included by uop.pyx.
#
# INT64_MIN as a lower and INT64_MAX as an upper bound mean "unknown" (uint64 reaches beyond, and an index may in
# theory), so that no bound is ever the other extreme.  A function returns False where it knows nothing.

ctypedef bint (*bounds_t)(UOp, UOp, UOp) noexcept

cdef bounds_t BOUNDS[MAX_OPS]  # of operations, by op, given two operands (twice the one where there is one)


cdef inline bint saturated(UOp u) noexcept:
    """Whether a 64-bit integer may have wrapped: it does so at the same values at which bounds saturate."""
    return u.info.kind == K_INT and (
        (u.lo == INT64_MIN and u.info.lo == INT64_MIN) or (u.hi == INT64_MAX and u.info.hi == INT64_MAX)
    )


cdef bint bounds_add(UOp u, UOp a, UOp b) noexcept:
    u.lo = sat_add(a.lo, b.lo)
    u.hi = sat_add(a.hi, b.hi)
    return not saturated(u)


cdef bint bounds_mul(UOp u, UOp a, UOp b) noexcept:
    cdef int64_t p = 0, q = 0, s = 0, t = 0
    if a.lo >= 0 and b.lo >= 0:
        u.lo = sat_mul(a.lo, b.lo)
        u.hi = sat_mul(a.hi, b.hi)
    else:
        p = sat_mul(a.lo, b.lo)
        q = sat_mul(a.lo, b.hi)
        s = sat_mul(a.hi, b.lo)
        t = sat_mul(a.hi, b.hi)
        u.lo = min(min(p, q), min(s, t))
        u.hi = max(max(p, q), max(s, t))
    return not saturated(u)


cdef bint bounds_idiv(UOp u, UOp a, UOp b) noexcept:
    if b.lo <= 0:
        return False
    u.lo = floor_div(a.lo, b.lo if a.lo < 0 else b.hi)
    u.hi = floor_div(a.hi, b.hi if a.hi < 0 else b.lo)
    return True


cdef bint bounds_mod(UOp u, UOp a, UOp b) noexcept:
    if b.lo <= 0 or b.hi == INT64_MAX:
        return False
    u.lo = 0
    u.hi = min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1
    return True


cdef bint bounds_max(UOp u, UOp a, UOp b) noexcept:
    u.lo = max(a.lo, b.lo)
    u.hi = max(a.hi, b.hi)
    return True


cdef bint bounds_min(UOp u, UOp a, UOp b) noexcept:
    u.lo = min(a.lo, b.lo)
    u.hi = min(a.hi, b.hi)
    return True


cdef bint bounds_and(UOp u, UOp a, UOp b) noexcept:
    if u.info.kind == K_BOOL:
        return bounds_min(u, a, b)
    if a.lo < 0 and b.lo < 0:
        return False
    u.lo = 0
    u.hi = min(a.hi, b.hi) if a.lo >= 0 and b.lo >= 0 else b.hi if b.lo >= 0 else a.hi
    return True


cdef bint bounds_or(UOp u, UOp a, UOp b) noexcept:
    return u.info.kind == K_BOOL and bounds_max(u, a, b)


cdef bint bounds_shr(UOp u, UOp a, UOp b) noexcept:
    if b.lo != b.hi or b.lo < 0 or b.lo >= 63:
        return False
    u.lo = floor_div(a.lo, (<int64_t>1) << b.lo)
    u.hi = floor_div(a.hi, (<int64_t>1) << b.lo)
    return True


cdef bint bounds_abs(UOp u, UOp a, UOp b) noexcept:
    if a.lo == INT64_MIN:
        return False
    u.lo = 0 if a.lo <= 0 <= a.hi else min(abs(a.lo), abs(a.hi))
    u.hi = INT64_MAX if a.hi == INT64_MAX else max(abs(a.lo), abs(a.hi))
    return True


cdef bint bounds_cast(UOp u, UOp a, UOp b) noexcept:
    if a.info.kind == K_OTHER or (a.hi == INT64_MAX and a.info.lo == 0):  # a large uint64 may become negative
        return False
    if u.info.kind == K_BOOL:
        u.lo = 1 if a.lo > 0 or a.hi < 0 else 0
        u.hi = 0 if a.lo == 0 and a.hi == 0 else 1
    else:
        u.lo = a.lo
        u.hi = a.hi
    return True


cdef bint bounds_where(UOp u, UOp a, UOp b) noexcept:
    return bounds_hull(u, b, <UOp>PyTuple_GET_ITEM(u.src, 2))


cdef bint bounds_hull(UOp u, UOp a, UOp b) noexcept:
    u.lo = min(a.lo, b.lo)
    u.hi = max(a.hi, b.hi)
    return True


cdef bint bounds_compare(UOp u, UOp a, UOp b) noexcept:
    """A comparison of integers may be decided by their bounds."""
    cdef bint below, above, not_above, not_below
    u.lo = 0
    u.hi = 1
    if a.info.kind == K_OTHER or b.info.kind == K_OTHER:
        return True
    not_above = a.hi != INT64_MAX and b.lo != INT64_MIN and a.hi <= b.lo
    not_below = a.lo != INT64_MIN and b.hi != INT64_MAX and a.lo >= b.hi
    below = not_above and a.hi < b.lo
    above = not_below and a.lo > b.hi
    if u.code == C_CMPLT:
        if below: u.lo = 1
        elif not_below: u.hi = 0
    elif u.code == C_CMPLE:
        if not_above: u.lo = 1
        elif above: u.hi = 0
    elif below or above or a is b or (not_above and not_below):
        if (u.code == C_CMPEQ) == (below or above): u.hi = 0
        else: u.lo = 1
    return True


BOUNDS[C_ADD] = bounds_add
BOUNDS[C_MUL] = bounds_mul
BOUNDS[C_IDIV] = bounds_idiv
BOUNDS[C_MOD] = bounds_mod
BOUNDS[C_MAX] = bounds_max
BOUNDS[C_MIN] = bounds_min
BOUNDS[C_AND] = bounds_and
BOUNDS[C_OR] = bounds_or
BOUNDS[C_SHR] = bounds_shr
BOUNDS[C_ABS] = bounds_abs
BOUNDS[C_CAST] = bounds_cast
BOUNDS[C_WHERE] = bounds_where
BOUNDS[C_CMPLT] = BOUNDS[C_CMPLE] = BOUNDS[C_CMPEQ] = BOUNDS[C_CMPNE] = bounds_compare


cdef bint constant_bounds(UOp u) except -1:
    if type(u.arg) is int and u.info.lo == INT64_MIN:  # the common case: an index
        u.lo = u.hi = PyLong_AsLongLongAndOverflow(u.arg, &OVERFLOW)
        return OVERFLOW == 0
    values = u.arg if type(u.arg) is tuple else (u.arg,)
    if min(values) <= INT64_MIN or max(values) >= INT64_MAX:
        return False
    u.lo = min(values)
    u.hi = max(values)
    return True


cdef bint structure_bounds(UOp u) except -1:
    """Bounds of a node that is no operation."""
    cdef int code = u.code
    cdef UOp a
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(u.src)
    if code == C_CONST:
        return constant_bounds(u)
    if code == C_IOTA:
        u.lo = 0
        u.hi = max(u.arg - 1, 0)
        return True
    if n == 0:
        return False
    a = <UOp>PyTuple_GET_ITEM(u.src, 0)
    if code == C_RANGE:
        u.lo = 0
        u.hi = max(sat_add(a.hi, -1), 0)
        return True
    if a.info.kind == K_OTHER:
        return False
    if code == C_STACK or code == C_CAT:
        bounds_hull(u, a, a)
        for i in range(1, n):
            bounds_hull(u, u, <UOp>PyTuple_GET_ITEM(u.src, i))
        return True
    if not (IS_MOVEMENT[code] or code == C_GATHER or code == C_STAGE or code == C_ALIAS or code == C_AFTER):
        return False
    u.lo = min(a.lo, 0) if code == C_PAD else a.lo
    u.hi = max(a.hi, 0) if code == C_PAD else a.hi
    return True


cdef int infer_bounds(UOp u) except -1:
    cdef DInfo info = u.info
    cdef bint known = False
    cdef UOp a
    if info.kind != K_OTHER:
        if not IS_ALU[u.code]:
            known = structure_bounds(u)
        elif BOUNDS[u.code] != NULL:
            a = <UOp>PyTuple_GET_ITEM(u.src, 0)
            known = BOUNDS[u.code](u, a, <UOp>PyTuple_GET_ITEM(u.src, 1) if PyTuple_GET_SIZE(u.src) > 1 else a)
    # what leaves the type wraps: then it may be anything
    if not known or u.lo == INT64_MAX or u.hi == INT64_MIN or u.lo < info.lo or u.hi > info.hi:
        u.lo = info.lo
        u.hi = info.hi
    return 0
