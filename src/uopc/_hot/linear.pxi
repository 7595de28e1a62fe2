# Sums of products: an index expression as integer coefficients of atoms (whatever is neither a sum nor a multiple),
# plus a constant.  Included by simplify.pyx.  The atoms are borrowed: they are parts of the expression at hand.

cdef enum:
    # A longer sum is left as it is. No index that a program writes comes near (it has a few terms for each axis of a
    # tensor), and each ADD of a chain looks at the whole chain.
    MAX_TERMS = 32


cdef struct Sum:
    int n
    int64_t constant
    int64_t factor[MAX_TERMS]
    PyObject* atom[MAX_TERMS]


# ---- order ---------------------------------------------------------------------------------------
# Of ids, ops, arguments and sources only: the same in every process, unlike addresses.

cdef inline int64_t range_id(PyObject* r) noexcept:
    return <int64_t>PyLong_AsLong(<object>PyTuple_GET_ITEM((<UOp>r).arg, 0))


cdef int64_t innermost(UOp u) noexcept:
    """The greatest id among the open ranges of ``u``: terms of outer loops come first, to be hoisted."""
    cdef int64_t best = INT64_MIN
    cdef Py_ssize_t i
    if u.code == C_RANGE:
        best = range_id(<PyObject*>u)
    for i in range(PyTuple_GET_SIZE(u.ranges_)):
        best = max(best, range_id(PyTuple_GET_ITEM(u.ranges_, i)))
    return best


cdef int compare_args(object a, object b) except -2:
    if a is b:
        return 0
    if type(a) is int and type(b) is int:
        return -1 if a < b else 1 if a > b else 0
    a, b = repr(a), repr(b)  # rare: two loads from different buffers, say
    return -1 if a < b else 1 if a > b else 0


cdef int compare_nodes(UOp a, UOp b) except -2:
    """-1, 0 or 1: a total order of expressions.  Equal sources are one object, so this walks down one path."""
    cdef Py_ssize_t i, n
    cdef int64_t p = innermost(a), q = innermost(b)
    cdef int c
    if p != q:
        return -1 if p < q else 1
    while a is not b:
        if a.code != b.code:
            return -1 if a.code < b.code else 1
        n = PyTuple_GET_SIZE(a.src)
        if n != PyTuple_GET_SIZE(b.src):
            return -1 if n < PyTuple_GET_SIZE(b.src) else 1
        c = compare_args(a.arg, b.arg)
        if c == 0 and a.info is not b.info:
            c = compare_args(a.dtype, b.dtype)
        if c != 0:
            return c
        for i in range(n):
            if PyTuple_GET_ITEM(a.src, i) != PyTuple_GET_ITEM(b.src, i):
                break
        else:
            return 0  # arguments that print alike
        a, b = <UOp>PyTuple_GET_ITEM(a.src, i), <UOp>PyTuple_GET_ITEM(b.src, i)
    return 0


# ---- sums ----------------------------------------------------------------------------------------
# Functions return False where a coefficient overflows or there are too many terms: the caller then changes nothing.

cdef inline void sum_clear(Sum* s) noexcept nogil:
    s.n = 0
    s.constant = 0


cdef bint sum_add_atom(Sum* s, PyObject* atom, int64_t factor) except -1:
    cdef int i, k
    if factor == 0:
        return True
    for i in range(s.n):
        if s.atom[i] == atom:
            if uopc_add_overflows(s.factor[i], factor, &s.factor[i]):
                return False
            if s.factor[i] == 0:
                s.n -= 1
                for k in range(i, s.n):
                    s.atom[k] = s.atom[k + 1]
                    s.factor[k] = s.factor[k + 1]
            return True
    if s.n == MAX_TERMS:
        return False
    i = s.n
    while i > 0 and compare_nodes(<UOp>atom, <UOp>s.atom[i - 1]) < 0:
        s.atom[i] = s.atom[i - 1]
        s.factor[i] = s.factor[i - 1]
        i -= 1
    s.atom[i] = atom
    s.factor[i] = factor
    s.n += 1
    return True


cdef inline bint sum_add_constant(Sum* s, int64_t value, int64_t factor) noexcept nogil:
    return not uopc_mul_overflows(value, factor, &value) and not uopc_add_overflows(s.constant, value, &s.constant)


cdef bint sum_add(Sum* s, UOp u, int64_t factor, int depth = 0) except -1:
    """Add ``factor * u``, taken apart."""
    cdef PyObject* terms[MAX_TERMS + 1]
    cdef int n = 0
    cdef int64_t value
    while u.code == C_ADD and depth < 8:  # sums lean to the left; terms are added from left to right: they are in order
        if n == MAX_TERMS:
            return False
        terms[n] = PyTuple_GET_ITEM(u.src, 1)
        u = <UOp>PyTuple_GET_ITEM(u.src, 0)
        n += 1
    if n > 0:
        if not sum_add(s, u, factor, depth + 1):
            return False
        while n > 0:
            n -= 1
            if not sum_add(s, <UOp>terms[n], factor, depth + 1):
                return False
        return True
    if known(u, &value):
        return sum_add_constant(s, value, factor)
    if u.code == C_MUL and depth < 8 and known(<UOp>PyTuple_GET_ITEM(u.src, 1), &value):
        if uopc_mul_overflows(value, factor, &value):
            return False
        return sum_add(s, <UOp>PyTuple_GET_ITEM(u.src, 0), value, depth + 1)
    return sum_add_atom(s, <PyObject*>u, factor)


cdef bint sum_of(Sum* s, UOp u) except -1:
    sum_clear(s)
    return sum_add(s, u, 1)


cdef bint sum_add_sum(Sum* s, Sum* other, int64_t factor) except -1:
    cdef int i
    cdef int64_t f
    for i in range(other.n):
        if uopc_mul_overflows(other.factor[i], factor, &f) or not sum_add_atom(s, other.atom[i], f):
            return False
    return sum_add_constant(s, other.constant, factor)


cdef UOp sum_build(Sum* s, DInfo info):
    """The canonical expression: terms in order, leaning to the left, the constant last."""
    cdef UOp out = None, term
    cdef int i
    for i in range(s.n):
        term = <UOp>s.atom[i]
        if s.factor[i] != 1:
            term = binary(C_MUL, term, const_int(s.factor[i], info))
        out = term if out is None else binary(C_ADD, out, term)
    if out is None:
        return const_int(s.constant, info)
    return binary(C_ADD, out, const_int(s.constant, info)) if s.constant != 0 else out


# ---- bounds of sums ------------------------------------------------------------------------------

cdef void sum_bounds(Sum* s, int64_t* lo, int64_t* hi) noexcept:
    """Bounds from those of each atom by itself."""
    cdef int i
    cdef int64_t f
    lo[0] = hi[0] = s.constant
    for i in range(s.n):
        f = s.factor[i]
        lo[0] = sat_add(lo[0], sat_mul((<UOp>s.atom[i]).lo if f > 0 else (<UOp>s.atom[i]).hi, f))
        hi[0] = sat_add(hi[0], sat_mul((<UOp>s.atom[i]).hi if f > 0 else (<UOp>s.atom[i]).lo, f))


cdef bint relax(Sum* out, Sum* s, int i, bint upper) except -1:
    """Replace atom ``i`` by an expression that makes the sum larger (``upper``) or smaller; False where none is known.

    A RANGE stays below its end, MIN below and MAX above both of its operands, and x//c*c is at most c-1 below x.
    """
    cdef UOp u = <UOp>s.atom[i]
    cdef int64_t f = s.factor[i], c
    cdef bint above = (f > 0) == upper  # the atom must be replaced by something that is not less
    out[0] = s[0]
    if not sum_add_atom(out, s.atom[i], -f):
        return False
    if u.code == C_RANGE and above:
        note(RELAX_RANGE)
        return (<UOp>PyTuple_GET_ITEM(u.src, 0)).code != C_CONST and sum_add(out, <UOp>PyTuple_GET_ITEM(u.src, 0), f) \
            and sum_add_constant(out, -1, f)
    if (u.code == C_MIN and above) or (u.code == C_MAX and not above):
        for k in range(2):  # the operand that cancels something
            if not known(<UOp>PyTuple_GET_ITEM(u.src, k), &c) and shares_atom(s, <UOp>PyTuple_GET_ITEM(u.src, k)):
                note(RELAX_MIN_MAX)
                return sum_add(out, <UOp>PyTuple_GET_ITEM(u.src, k), f)
        return False
    if u.code == C_IDIV and known(<UOp>PyTuple_GET_ITEM(u.src, 1), &c) and c > 0 and f % c == 0:
        if not shares_atom(s, <UOp>PyTuple_GET_ITEM(u.src, 0)):
            return False
        note(RELAX_DIV)
        return sum_add(out, <UOp>PyTuple_GET_ITEM(u.src, 0), f // c) and (above or sum_add_constant(out, 1 - c, f // c))
    return False


cdef bint shares_atom(Sum* s, UOp u) except -1:
    """Whether a term of ``u`` is a term of ``s`` too."""
    cdef Sum other
    cdef int i, k
    if not sum_of(&other, u):
        return False
    for i in range(other.n):
        for k in range(s.n):
            if s.atom[k] == other.atom[i]:
                return True
    return False


cdef int64_t sum_limit(Sum* s, bint upper) except? -7:
    """The upper (else the lower) bound of a sum, by bounds of atoms and by what stands in their place."""
    cdef Sum relaxed, best
    cdef int64_t lo, hi, limit, found
    cdef int i, rounds
    cdef bint better = True
    sum_bounds(s, &lo, &hi)
    limit = hi if upper else lo
    best = s[0]
    for rounds in range(4):
        if not better:
            break
        better = False
        for i in range(best.n):
            if not relax(&relaxed, &best, i, upper):
                continue
            sum_bounds(&relaxed, &lo, &hi)
            found = hi if upper else lo
            if (found < limit) if upper else (found > limit):
                limit = found
                best = relaxed
                better = True
                break
    return limit


cdef bint sum_relaxes(Sum* s) noexcept:
    """Whether ``sum_limit`` may say more than ``sum_bounds``."""
    cdef int i, code
    cdef UOp u
    for i in range(s.n):
        u = <UOp>s.atom[i]
        code = u.code
        if code == C_MIN or code == C_MAX or code == C_IDIV:
            if s.n > 1: return True
        elif code == C_RANGE and (<UOp>PyTuple_GET_ITEM(u.src, 0)).code != C_CONST:
            return True
    return False


cdef int sum_limits(Sum* s, int64_t* lo, int64_t* hi) except -1:
    """Both bounds, as tight as is known."""
    if sum_relaxes(s):
        lo[0] = sum_limit(s, False)
        hi[0] = sum_limit(s, True)
    else:
        sum_bounds(s, lo, hi)
    return 0
