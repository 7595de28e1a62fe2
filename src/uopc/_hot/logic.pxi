# Comparisons, MIN and MAX, boolean logic, WHERE.  Included by simplify.pyx.

# ---- comparisons of indices ----------------------------------------------------------------------

cdef UOp truth(bint value, UOp u):
    return intern(C_CONST, u.info, EMPTY, True if value else False)


cdef bint shrink_below_zero(Sum* s) except -1:
    """A simpler sum that is negative exactly where s is; False where there is none."""
    cdef Sum whole, rest
    cdef int64_t g, q, k
    cdef int i
    cdef UOp u
    for i in range(s.n):
        g = s.factor[i] if s.factor[i] > 0 else -s.factor[i]
        # v < 0 just where v//g < 0
        if g > 1 and split(s, g, &whole, &rest) and decided(&rest, g, &q):
            s[0] = whole
            note(QUOTIENT_SIGN)
            return sum_add_constant(s, q, 1)
    if s.n != 1 or not nested_divisor(<UOp>s.atom[0], C_IDIV, &g) or not -1 <= s.factor[0] <= 1:
        return False
    u = <UOp>PyTuple_GET_ITEM((<UOp>s.atom[0]).src, 0)
    sum_clear(&whole)
    if s.factor[0] == 1:
        note(DIV_SIGN)
        if not sum_add(&whole, u, 1) or not sum_add_constant(&whole, s.constant, g): return False
    else:
        note(MINUS_DIV_SIGN)
        if uopc_add_overflows(s.constant, 1, &k) or not sum_add(&whole, u, -1) \
            or not sum_add_constant(&whole, k, g) or not sum_add_constant(&whole, -1, 1): return False
    s[0] = whole
    return True


cdef UOp build_comparison(int code, Sum* s, DInfo info):
    """s < 0, s == 0 or s != 0: positive terms on the left, negative ones and the constant on the right."""
    cdef Sum left, right
    cdef int i
    sum_clear(&left)
    sum_clear(&right)
    for i in range(s.n):
        if s.factor[i] > 0: sum_add_atom(&left, s.atom[i], s.factor[i])
        else: sum_add_atom(&right, s.atom[i], -s.factor[i])
    if left.n > 0: right.constant = -s.constant
    else: left.constant = s.constant
    return by(COMPARE_SIDES, binary(code, sum_build(&left, info), sum_build(&right, info)))


cdef UOp compare_index(UOp u):
    """A comparison of indices as CMPLT, CMPEQ or CMPNE of sums without common factor, or what bounds decide."""
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef Sum s
    cdef int64_t lo, hi, g
    cdef int i, code = u.code
    if not sum_of(&s, a) or not sum_add(&s, b, -1):
        return None
    if code == C_CMPLE:
        note(LESS_OR_EQUAL)
        code = C_CMPLT
        if not sum_add_constant(&s, -1, 1):
            return None
    while True:
        sum_limits(&s, &lo, &hi)
        if code == C_CMPLT:
            if hi < 0: return by(COMPARE_BOUNDS, truth(True, u))
            if lo >= 0: return by(COMPARE_BOUNDS, truth(False, u))
            if not shrink_below_zero(&s): break
        else:
            if lo > 0 or hi < 0: return by(COMPARE_BOUNDS, truth(code == C_CMPNE, u))
            if lo == 0 and hi == 0: return by(COMPARE_BOUNDS, truth(code == C_CMPEQ, u))
            break
    if s.constant == INT64_MIN:
        return None
    if code != C_CMPLT:
        g = 0
        for i in range(s.n):
            g = gcd(g, s.factor[i])
        if s.constant % g != 0: return by(COMMON_FACTOR, truth(code == C_CMPNE, u))
        if s.factor[0] < 0: g = -g
        for i in range(s.n):
            s.factor[i] //= g
        s.constant //= g
    return build_comparison(code, &s, a.info)


cdef UOp rule_compare(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef int64_t v
    if a.info.kind == K_INDEX and u.info.count == 1:
        return compare_index(u)
    if a.info.kind == K_OTHER:
        return None
    if a is b:
        return by(COMPARE_SELF, truth(u.code == C_CMPLE or u.code == C_CMPEQ, u)) if u.info.count == 1 else None
    if a.info.kind == K_BOOL and (u.code == C_CMPEQ or u.code == C_CMPNE):
        if known(b, &v): return by(COMPARE_BOOL, a if (v == 1) == (u.code == C_CMPEQ) else negation(a))
    return None


# ---- MIN and MAX ---------------------------------------------------------------------------------

cdef bint never_below(UOp a, UOp b) except -1:
    """Whether a >= b is known of two integers."""
    cdef Sum s
    if a.lo != INT64_MIN and b.hi != INT64_MAX and a.lo >= b.hi:
        return True
    if a.info.kind != K_INDEX or a.info.count > 1 or b.info.count > 1:
        return False
    return sum_of(&s, a) and sum_add(&s, b, -1) and sum_limit(&s, False) >= 0


cdef UOp rule_min_max(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1), c
    cdef int64_t v, w
    if a is b:
        return by(MIN_MAX_SELF, a)
    if u.info.kind == K_OTHER:
        return None
    if never_below(a, b):
        return by(MIN_MAX_ORDERED, a if u.code == C_MAX else b)
    if never_below(b, a):
        return by(MIN_MAX_ORDERED, b if u.code == C_MAX else a)
    if u.info.count > 1:
        return None
    if u.info.kind == K_INDEX and b.code != C_CONST and compare_nodes(a, b) > 0:
        return by(COMMUTE, binary(u.code, b, a))
    if a.code == u.code and known(b, &v):
        c = <UOp>PyTuple_GET_ITEM(a.src, 1)
        if known(c, &w):
            c = c if (w > v) == (u.code == C_MAX) else b
            return by(MIN_MAX_CONSTANTS, binary(u.code, <UOp>PyTuple_GET_ITEM(a.src, 0), c))
    return None


# ---- boolean logic -------------------------------------------------------------------------------

cdef enum:
    # Conditions joined by AND (or OR) that are compared with each other; a longer chain is only simplified pairwise.
    MAX_CONDITIONS = 16


cdef inline bint is_not(UOp u) noexcept:
    return u.code == C_XOR and u.info.kind == K_BOOL and (<UOp>PyTuple_GET_ITEM(u.src, 1)).lo == 1


cdef UOp negation(UOp u):
    """Not ``u``, without a NOT where a comparison can say it."""
    cdef UOp a, b
    if is_not(u):
        return by(NOT_NOT, <UOp>PyTuple_GET_ITEM(u.src, 0))
    if u.code == C_CMPEQ or u.code == C_CMPNE:  # of floats too: NaN != NaN
        a = <UOp>PyTuple_GET_ITEM(u.src, 0)
        note(NOT_EQUAL)
        return binary(C_CMPNE if u.code == C_CMPEQ else C_CMPEQ, a, <UOp>PyTuple_GET_ITEM(u.src, 1))
    if u.code == C_CMPLT or u.code == C_CMPLE:
        a = <UOp>PyTuple_GET_ITEM(u.src, 0)
        b = <UOp>PyTuple_GET_ITEM(u.src, 1)
        if a.info.kind != K_OTHER:
            a = binary(C_CMPLE if u.code == C_CMPLT else C_CMPLT, b, a)
            b = rule_compare(a)
            return by(NOT_LESS, a if b is None else b)
    return binary(C_XOR, u, intern(C_CONST, u.info, EMPTY, True))


cdef bint collect(int code, UOp u, list out, int depth = 0) except -1:
    """The operands of a chain of ``code`` that leans to the left, in order; False where there are too many."""
    cdef UOp right
    while u.code == code:
        right = <UOp>PyTuple_GET_ITEM(u.src, 1)
        if right.code == code:  # not in canonical form yet
            if depth == MAX_CONDITIONS or not collect(code, right, out, depth + 1): return False
        elif right not in out:
            out.append(right)
        if len(out) > MAX_CONDITIONS:
            return False
        u = <UOp>PyTuple_GET_ITEM(u.src, 0)
    if u not in out:
        out.append(u)
    return True


cdef UOp one_sided(UOp u, int64_t* c, bint* upper):
    """x where ``u`` is x < c (then ``upper``) or c < x; else None."""
    cdef UOp a, b
    if u.code != C_CMPLT:
        return None
    a = <UOp>PyTuple_GET_ITEM(u.src, 0)
    b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    upper[0] = known(b, c)
    if upper[0]:
        return a
    return b if known(a, c) else None


cdef UOp join_limits(int code, UOp p, UOp q):
    """The one condition that p AND q (or p OR q) comes down to, if both are limits of the same value."""
    cdef UOp x
    cdef int64_t a = 0, b = 0, low, high
    cdef bint p_upper = False, q_upper = False
    x = one_sided(p, &a, &p_upper)
    if x is None or one_sided(q, &b, &q_upper) is not x:
        return None
    if p_upper == q_upper:
        return by(LIMITS_ONE_SIDE, p if (a < b) == (p_upper == (code == C_AND)) else q)
    if x.info.kind != K_INDEX and x.info.kind != K_INT:
        return None
    high = a if p_upper else b
    low = b if p_upper else a
    if code == C_AND:
        if high <= low or high - low == 1: return by(LIMITS_EMPTY, truth(False, p))
        if high - low == 2: return by(LIMITS_POINT, binary(C_CMPEQ, x, const_int(low + 1, x.info)))
    else:
        if low < high: return by(LIMITS_ALL, truth(True, p))
        if low == high: return by(LIMITS_HOLE, binary(C_CMPNE, x, const_int(low, x.info)))
    return None


cdef UOp joined(int code, UOp p, UOp q):
    """What p AND q (or p OR q) comes down to, or None."""
    cdef UOp inner
    cdef list operands = []
    inner = negation(p) if q.code != C_XOR else None
    if inner is q or (is_not(q) and PyTuple_GET_ITEM(q.src, 0) == <PyObject*>p):
        return by(COMPLEMENT, truth(code == C_OR, p))
    if q.code == (C_OR if code == C_AND else C_AND):
        if collect(q.code, q, operands) and p in operands: return by(ABSORB, p)
    if p.code == (C_OR if code == C_AND else C_AND):
        operands = []
        if collect(p.code, p, operands) and q in operands: return by(ABSORB, q)
    return join_limits(code, p, q)


cdef UOp join_all(UOp u):
    """A chain of AND or OR: each operand once, pairs joined where they can be, in order."""
    cdef list operands = []
    cdef UOp p, made
    cdef Py_ssize_t i, k
    cdef int64_t v
    cdef bint again = True
    if not collect(u.code, u, operands):
        return None
    operands.reverse()
    note(JUNCTION)
    while again:
        again = False
        for i in range(len(operands)):
            p = <UOp>operands[i]
            if known(p, &v):
                if (v == 0) == (u.code == C_AND): return by(DOMINANT, p)
                note(NEUTRAL)
                del operands[i]
                again = True
                break
            for k in range(i + 1, len(operands)):
                made = joined(u.code, p, <UOp>operands[k])
                if made is not None:
                    del operands[k]
                    operands[i] = made
                    again = True
                    break
            if again:
                break
    if not operands:
        return truth(u.code == C_AND, u)
    for i in range(1, len(operands)):
        p = <UOp>operands[i]
        k = i
        while k > 0 and compare_nodes(p, <UOp>operands[k - 1]) < 0:
            operands[k] = operands[k - 1]
            k -= 1
        operands[k] = p
    made = <UOp>operands[0]
    for i in range(1, len(operands)):
        made = binary(u.code, made, <UOp>operands[i])
    return made


cdef UOp rule_and_or(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef int64_t neutral = 0
    if a is b:
        return by(SELF, a)
    if u.code == C_AND:
        neutral = 1 if u.info.kind == K_BOOL else -1
    if is_value(a, neutral):
        return by(NEUTRAL, b)
    if is_value(b, neutral):
        return by(NEUTRAL, a)
    if u.info.kind == K_BOOL:
        if is_value(a, 1 - neutral): return by(DOMINANT, a)
        if is_value(b, 1 - neutral): return by(DOMINANT, b)
        if u.info.count == 1: return join_all(u)
    return None


cdef UOp rule_xor(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1), made
    if a is b:
        return by(XOR_SELF, zero_of(u))
    if is_value(b, 0):
        return by(XOR_ZERO, a)
    if u.info.kind == K_BOOL and is_value(b, 1):
        made = negation(a)
        return made if made.info is u.info else None
    return None


cdef UOp rule_where(UOp u):
    cdef UOp c = <UOp>PyTuple_GET_ITEM(u.src, 0)
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 1), b = <UOp>PyTuple_GET_ITEM(u.src, 2)
    if a is b:
        return by(WHERE_SAME, a)
    if is_value(c, 1) or is_value(c, 0):
        return by(WHERE_DECIDED, a if c.lo == 1 else b)
    if is_not(c):
        return by(WHERE_NOT, where(<UOp>PyTuple_GET_ITEM(c.src, 0), b, a, u))
    if a.code == C_WHERE and a.info is u.info:
        if PyTuple_GET_ITEM(a.src, 0) == <PyObject*>c:
            return by(WHERE_TWICE, where(c, <UOp>PyTuple_GET_ITEM(a.src, 1), b, u))
        if PyTuple_GET_ITEM(a.src, 2) == <PyObject*>b and (<UOp>PyTuple_GET_ITEM(a.src, 0)).info is c.info:
            c = binary(C_AND, c, <UOp>PyTuple_GET_ITEM(a.src, 0))
            return by(WHERE_AND, where(c, <UOp>PyTuple_GET_ITEM(a.src, 1), b, u))
    if b.code == C_WHERE and b.info is u.info and PyTuple_GET_ITEM(b.src, 0) == <PyObject*>c:
        return by(WHERE_TWICE, where(c, a, <UOp>PyTuple_GET_ITEM(b.src, 2), u))
    if u.info.kind == K_BOOL and u.info.count == 1:
        if is_value(a, 1): return by(WHERE_BOOL, binary(C_OR, c, b))
        if is_value(b, 0): return by(WHERE_BOOL, binary(C_AND, c, a))
        if is_value(a, 0): return by(WHERE_BOOL, binary(C_AND, negation(c), b))
        if is_value(b, 1): return by(WHERE_BOOL, binary(C_OR, negation(c), a))
    if u.info.kind == K_INDEX and c.code == C_CMPLT and u.info.count == 1:
        if c.src == (a, b): return by(WHERE_MIN_MAX, binary(C_MIN, a, b))
        if c.src == (b, a): return by(WHERE_MIN_MAX, binary(C_MAX, a, b))
    return None


cdef UOp where(UOp c, UOp a, UOp b, UOp like):
    return intern(C_WHERE, like.info, (c, a, b), None)
