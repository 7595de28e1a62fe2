# Floor division and modulo of sums by a positive constant, and what puts the two together again.  Included by
# simplify.pyx.
# All rules here are exact for floors, so that negative values need no care.

cdef bint decided(Sum* s, int64_t c, int64_t* q) except -1:
    """Whether s // c is one number, by bounds."""
    cdef int64_t lo, hi
    sum_limits(s, &lo, &hi)
    if lo == INT64_MIN or hi == INT64_MAX:
        return False
    q[0] = floor_div(lo, c)
    return q[0] == floor_div(hi, c)


cdef bint split(Sum* s, int64_t c, Sum* whole, Sum* rest) except -1:
    """s = whole*c + rest: the terms that c divides, and the others with a constant from 0 to c-1."""
    cdef int i
    sum_clear(whole)
    sum_clear(rest)
    for i in range(s.n):
        if s.factor[i] % c == 0:
            if not sum_add_atom(whole, s.atom[i], s.factor[i] // c): return False
        elif not sum_add_atom(rest, s.atom[i], s.factor[i]): return False
    whole.constant = floor_div(s.constant, c)
    rest.constant = floor_mod(s.constant, c)
    return True


cdef bint split_residues(Sum* s, int64_t c, bint symmetric, Sum* whole, Sum* rest) except -1:
    """s = whole*c + rest, each coefficient of rest from 0 to c-1, or nearest to 0."""
    cdef int i
    cdef int64_t r
    sum_clear(whole)
    sum_clear(rest)
    for i in range(s.n):
        r = floor_mod(s.factor[i], c)
        if symmetric and r > c - r:
            r -= c
        if not sum_add_atom(whole, s.atom[i], (s.factor[i] - r) // c) or not sum_add_atom(rest, s.atom[i], r):
            return False
    whole.constant = floor_div(s.constant, c)
    rest.constant = floor_mod(s.constant, c)
    return True


cdef bint split_decided(Sum* s, int64_t c, Sum* whole, Sum* rest) except -1:
    """Whether s = whole*c + rest with 0 <= rest < c can be had: then whole is s//c and rest is s%c."""
    cdef int64_t q
    cdef bint symmetric
    if not split(s, c, whole, rest):
        return False
    if decided(rest, c, &q):
        return sum_add_constant(whole, q, 1) and sum_add_constant(rest, -q, c)
    for symmetric in range(2):
        if split_residues(s, c, symmetric, whole, rest) and decided(rest, c, &q):
            return sum_add_constant(whole, q, 1) and sum_add_constant(rest, -q, c)
    return False


cdef bint split_factor(Sum* s, int64_t c, int64_t* factor, Sum* whole, Sum* rest) except -1:
    """Whether s = whole*g + rest with 0 <= rest < g for some g > 1 that divides c (and leaves something in whole)."""
    cdef int i
    cdef int64_t g = c, q
    for i in range(s.n):
        g = gcd(g, s.factor[i])
    i = 0
    while True:
        if 1 < g < c:
            if split(s, g, whole, rest) and whole.n > 0 and decided(rest, g, &q):
                factor[0] = g
                return sum_add_constant(whole, q, 1) and sum_add_constant(rest, -q, g)
        if i == s.n:
            return False
        g = gcd(c, s.factor[i])
        i += 1


cdef bint lift(Sum* s, int64_t c, int64_t* k) except -1:
    """s plus the fewest k*c that keep it from being negative, where bounds know: C's / and % are then right, and one
    form is kept.
    """
    cdef int64_t lo, hi
    sum_limits(s, &lo, &hi)
    k[0] = -floor_div(lo, c) if lo != INT64_MIN and lo < 0 else 0
    return sum_add_constant(s, k[0], c)


cdef UOp idiv_by(UOp x, int64_t c, DInfo info):
    """x // c for c > 0 in canonical form, or None where that is not known to be better."""
    cdef Sum s, out, whole, rest
    cdef int64_t g, a
    cdef UOp inner
    sum_clear(&out)
    if not sum_of(&s, x):
        return None
    while True:
        if split_decided(&s, c, &whole, &rest):
            return by(DECIDED, sum_build(&out, info)) if sum_add_sum(&out, &whole, 1) else None
        if not split(&s, c, &whole, &rest) or not sum_add_sum(&out, &whole, 1):
            return None
        s = rest
        note(SPLIT)
        if split_factor(&s, c, &g, &whole, &rest):
            note(FACTOR)
            s = whole
            c //= g
        elif s.n == 1 and s.factor[0] == 1 and nested_divisor(<UOp>s.atom[0], C_IDIV, &a):
            # x//a//c = x//(a*c)
            inner = <UOp>PyTuple_GET_ITEM((<UOp>s.atom[0]).src, 0)
            if not scale_into(&s, inner, a, &c):
                break
            note(NESTED_DIV)
        else:
            break
    if s.n == 1 and s.factor[0] == 1 and s.constant == 0 and nested_divisor(<UOp>s.atom[0], C_MOD, &a) and a % c == 0:
        # x%(a*c)//c = x//c%a
        inner = canonical(C_IDIV, <UOp>PyTuple_GET_ITEM((<UOp>s.atom[0]).src, 0), c, info)
        inner = canonical(C_MOD, inner, a // c, info)
        note(MOD_THEN_DIV)
    else:
        if not lift(&s, c, &a) or not sum_add_constant(&out, -a, 1):
            return None
        inner = binary(C_IDIV, sum_build(&s, info), const_int(c, info))
        if a != 0: note(LIFT)
    return sum_build(&out, info) if sum_add(&out, inner, 1) else None


cdef bint scale_into(Sum* s, UOp inner, int64_t a, int64_t* c) except -1:
    """s = inner//a + r becomes inner + r*a, the divisor c becomes c*a; on overflow False, and nothing changed."""
    cdef Sum made
    cdef int64_t ac
    if uopc_mul_overflows(c[0], a, &ac) or not sum_of(&made, inner) or not sum_add_constant(&made, s.constant, a):
        return False
    s[0] = made
    c[0] = ac
    return True


cdef inline bint nested_divisor(UOp u, int code, int64_t* c) noexcept:
    return u.code == code and known(<UOp>PyTuple_GET_ITEM(u.src, 1), c) and c[0] > 0


cdef UOp mod_by(UOp x, int64_t c, DInfo info):
    """x % c for c > 0 in canonical form, or None."""
    cdef Sum s, out, whole, rest
    cdef int64_t g, scale = 1, a, f
    cdef int i
    cdef UOp inner
    sum_clear(&out)
    if not sum_of(&s, x):
        return None
    while True:
        if split_decided(&s, c, &whole, &rest):
            return by(DECIDED, sum_build(&out, info)) if sum_add_sum(&out, &rest, scale) else None
        if not split(&s, c, &whole, &rest):
            return None
        s = rest
        note(SPLIT)
        for i in range(s.n):
            # (x%a*f) % c = (x*f) % c where c divides a*f
            if nested_divisor(<UOp>s.atom[i], C_MOD, &a) and not uopc_mul_overflows(a, s.factor[i], &f) and f % c == 0:
                f = s.factor[i]
                inner = <UOp>PyTuple_GET_ITEM((<UOp>s.atom[i]).src, 0)
                if not sum_add_atom(&s, s.atom[i], -f) or not sum_add(&s, inner, f):
                    return None
                note(NESTED_MOD)
                break
        else:
            if not split_factor(&s, c, &g, &whole, &rest):
                break
            # the divisor loses g, what remains of the sum is added outside
            if not sum_add_sum(&out, &rest, scale) or uopc_mul_overflows(scale, g, &scale):
                return None
            note(FACTOR)
            s = whole
            c //= g
    if not lift(&s, c, &a):
        return None
    if a != 0: note(LIFT)
    inner = binary(C_MOD, sum_build(&s, info), const_int(c, info))
    return sum_build(&out, info) if sum_add(&out, inner, scale) else None


cdef UOp canonical(int code, UOp x, int64_t c, DInfo info):
    """x // c or x % c, simplified."""
    cdef UOp out = idiv_by(x, c, info) if code == C_IDIV else mod_by(x, c, info)
    return out if out is not None else binary(code, x, const_int(c, info))


cdef UOp divide(UOp u):
    """IDIV and MOD of an index."""
    cdef UOp x = <UOp>PyTuple_GET_ITEM(u.src, 0), y = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef int64_t c
    cdef Sum s
    if not known(y, &c):
        if x.lo >= 0 and x.hi < y.lo:
            return by(DIV_SMALL, const_int(0, u.info) if u.code == C_IDIV else x)
        return None
    if c == 0:
        return by(DIV_ZERO, const_int(0, u.info))
    if c > 0:
        return canonical(u.code, x, c, u.info)
    # x // -c = -x // c and x % -c = -(-x % c)
    sum_clear(&s)
    if c == INT64_MIN or not sum_add(&s, x, -1):
        return None
    x = canonical(u.code, sum_build(&s, u.info), -c, u.info)
    return by(DIV_NEGATIVE, x if u.code == C_IDIV else binary(C_MUL, x, const_int(-1, u.info)))


# ---- sums that hold a quotient and its remainder -------------------------------------------------

cdef int quotients(Sum* s) noexcept:
    """How many atoms are a division or a modulo."""
    cdef int i, count = 0
    for i in range(s.n):
        if (<UOp>s.atom[i]).code == C_IDIV or (<UOp>s.atom[i]).code == C_MOD:
            count += 1
    return count


cdef bint recombine(Sum* s, int i, DInfo info, list alive) except -1:
    """Atom ``i`` is y%c with factor f: with f*c*(y//c) in the sum it is f*y, with f*c*(y//c%b) f*(y%(b*c))."""
    cdef Sum out, q
    cdef UOp u = <UOp>s.atom[i], y = <UOp>PyTuple_GET_ITEM(u.src, 0), v
    cdef int64_t c = (<UOp>PyTuple_GET_ITEM(u.src, 1)).lo, b, fc, f = s.factor[i]
    cdef int k, n
    if uopc_mul_overflows(f, c, &fc):
        return False
    v = canonical(C_IDIV, y, c, info)
    out = s[0]
    n = s.n
    if sum_of(&q, v) and sum_add_sum(&out, &q, -fc) and sum_add_atom(&out, s.atom[i], -f) and out.n < n \
            and sum_add(&out, y, f) and (out.n < n or quotients(&out) < quotients(s)):
        alive.append(v)
        s[0] = out
        note(QUOTIENT_AND_REMAINDER)
        return True
    for k in range(s.n):
        u = <UOp>s.atom[k]
        if s.factor[k] == fc and nested_divisor(u, C_MOD, &b) and PyTuple_GET_ITEM(u.src, 0) == <PyObject*>v:
            out = s[0]
            if uopc_mul_overflows(b, c, &b):
                return False
            u = canonical(C_MOD, y, b, info)
            alive.append(u)
            if sum_add_atom(&out, s.atom[k], -fc) and sum_add_atom(&out, s.atom[i], -f) \
                    and sum_add(&out, u, f) and out.n < n:
                s[0] = out
                note(DIGITS)
                return True
            return False
    return False


cdef inline UOp atom_of(UOp term):
    """The atom of ``atom`` or ``atom * constant``."""
    if term.code == C_MUL and (<UOp>PyTuple_GET_ITEM(term.src, 1)).code == C_CONST:
        return <UOp>PyTuple_GET_ITEM(term.src, 0)
    return term


cdef bint in_order(UOp u) except -1:
    """Whether ``u``, an ADD or a MUL by a constant, is canonical as it stands, its sources being so.  Most are."""
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1), last
    if u.code == C_MUL:
        return a.code != C_ADD and a.code != C_MUL and a.lo != a.hi and b.code == C_CONST and b.lo != 0 and b.lo != 1
    last = <UOp>PyTuple_GET_ITEM(a.src, 1) if a.code == C_ADD else a
    if last.lo == last.hi or b.code == C_ADD:
        return False
    if b.lo == b.hi:
        return b.code == C_CONST and b.lo != 0
    b = atom_of(b)
    # what divides may join with what is there already
    return b.code != C_IDIV and b.code != C_MOD and b.code != C_ADD and compare_nodes(atom_of(last), b) < 0


cdef UOp add_index(UOp u):
    """ADD, and MUL by a constant: the canonical sum."""
    cdef Sum s
    cdef int i
    cdef list alive
    cdef int64_t c
    cdef bint again
    if in_order(u) or not sum_of(&s, u):
        return None
    note(SUM)
    if quotients(&s) > 1:
        alive = []  # atoms that come from new expressions
        again = True
        while again:
            again = False
            for i in range(s.n):
                if nested_divisor(<UOp>s.atom[i], C_MOD, &c) and recombine(&s, i, u.info, alive):
                    again = True
                    break
    return sum_build(&s, u.info)
