# Inference: what a node's dtype, shape, open ranges and integer bounds are, given those of its sources.
# Included by uop.pyx: each function is called once when a node is made, and reads nothing but its sources.

# ---- dtypes -------------------------------------------------------------------------------------------------------------

cdef dict INFOS = {}


cdef class DInfo:
    pass


cdef DInfo info_of(object dtype):
    cdef DInfo info
    found = INFOS.get(dtype)
    if found is not None:
        return <DInfo>found
    if not isinstance(dtype, DType):
        raise TypeError(f"{dtype!r} is not a DType")
    info = DInfo()
    info.dtype = dtype
    info.count = dtype.count
    info.bool_dtype = dtypes.bool_.vec(dtype.count)
    info.lo = INT64_MIN
    info.hi = INT64_MAX
    info.kind = K_OTHER
    if dtype.scalar() is dtypes.index:
        info.kind = K_INDEX
    elif dtype.is_bool:
        info.kind = K_BOOL
        info.lo = 0
        info.hi = 1
    elif dtype.is_int:
        info.kind = K_INT
        info.lo = dtype.min
        info.hi = min(dtype.max, INT64_MAX)
    INFOS[dtype] = info
    return info


cdef DInfo VOID = info_of(dtypes.void), BOOL = info_of(dtypes.bool_), INDEX_INFO = info_of(dtypes.index)
cdef DInfo FLOAT = info_of(dtypes.default_float)


cdef DInfo agree(int code, tuple src, int first):
    """The common dtype of the sources from ``first`` on; a scalar spreads over the lanes of a vector."""
    cdef UOp a = <UOp>src[first], b
    cdef DInfo best = a.info
    cdef Py_ssize_t i
    for i in range(first + 1, PyTuple_GET_SIZE(src)):
        b = <UOp>src[i]
        if b.info is best:
            continue
        if b.dtype.scalar() is not best.dtype.scalar() or (b.info.count != best.count and b.info.count != 1 and best.count != 1):
            raise TypeError(f"{OPS[code]!r} of " + " and ".join(repr((<UOp>s).dtype) for s in src[first:]) + ": the types must agree; cast first")
        if b.info.count > best.count:
            best = b.info
    return best


cdef DInfo infer(int code, tuple src, object arg, object dtype):
    """The dtype of a new node, by the rule of its op."""
    cdef int rule = RULE[code]
    cdef DInfo info
    if rule == R_SAME:
        info = agree(code, src, 0)
        if INT_ONLY[code] and info.kind == K_OTHER:
            raise TypeError(f"{OPS[code]!r} takes integers or bool, not {info.dtype!r}")
        if FLOAT_ONLY[code] and info.kind != K_OTHER:
            raise TypeError(f"{OPS[code]!r} takes floats, not {info.dtype!r}; cast first")
        return info
    if rule == R_FIRST:
        return (<UOp>src[0]).info
    if rule == R_BOOL:
        return info_of(agree(code, src, 0).bool_dtype)
    if rule == R_VOID:
        return VOID
    if rule == R_INDEX:
        if type(arg) is not RangeArg or not -(1 << 62) < arg.id < 1 << 62:
            raise TypeError(f"{OPS[code]!r} is told by a RangeArg with an integer id, not by {arg!r}")
        return INDEX_INFO
    if rule == R_ARG:
        return info_of(arg.dtype)
    if rule == R_SELECT:
        if (<UOp>src[0]).info.kind != K_BOOL:
            raise TypeError(f"{OPS[code]!r} chooses by a bool, not by {(<UOp>src[0]).dtype!r}")
        info = agree(code, src, 1)
        if (<UOp>src[0]).info.count > info.count:
            info = info_of(info.dtype.vec((<UOp>src[0]).info.count))
        return info
    if rule == R_LOAD:
        if dtype is not None:
            return info_of(dtype)
        info = (<UOp>src[0]).info
        if (<UOp>src[0]).code == C_INDEX and (<UOp>(<UOp>src[0]).src[1]).info.count > 1:
            return info_of(info.dtype.vec((<UOp>(<UOp>src[0]).src[1]).info.count))
        return info
    if dtype is not None:
        return info_of(dtype)
    if code == C_CONST:
        return BOOL if isinstance(arg, bool) else INDEX_INFO if isinstance(arg, int) else FLOAT
    raise TypeError(f"{OPS[code]!r} needs a dtype")


# ---- shape --------------------------------------------------------------------------------------------------------------

cdef object product(object sizes):
    n = 1
    for s in sizes:
        n = n * s
    return n


cdef object movement_shape(int code, tuple old, object arg):
    """The shape after a movement op; ValueError where the argument does not fit the shape ``old``."""
    cdef Py_ssize_t i
    if code == C_RESHAPE:
        if product(old) != product(arg):
            raise ValueError(f"cannot reshape {old} ({product(old)} elements) to {arg} ({product(arg)} elements)")
        return arg
    if code == C_FLIP:
        if any(not 0 <= a < len(old) for a in arg) or len(set(arg)) != len(arg):
            raise ValueError(f"cannot flip axes {arg} of shape {old}")
        return old
    if code == C_VIEW:
        reach = [arg.offset + sum([min(0, step * (n - 1)) for n, step in zip(arg.shape, arg.strides)]),
                 arg.offset + sum([max(0, step * (n - 1)) for n, step in zip(arg.shape, arg.strides)])]
        if len(old) != 1 or (product(arg.shape) and (reach[0] < 0 or reach[1] >= old[0])):
            raise ValueError(f"a view {arg} reaches from {reach[0]} to {reach[1]}, outside shape {old}")
        return arg.shape
    if len(arg) != len(old):
        raise ValueError(f"{OPS[code]!r} {arg} does not fit the {len(old)} axes of shape {old}")
    if code == C_EXPAND:
        for i in range(len(old)):
            if arg[i] != old[i] and old[i] != 1:
                raise ValueError(f"cannot expand {old} to {arg}: axis {i} has size {old[i]}, and only size 1 expands")
        return arg
    if code == C_PERMUTE:
        if sorted(arg) != list(range(len(old))):
            raise ValueError(f"{arg} is not a permutation of the axes of shape {old}")
        return tuple([old[i] for i in arg])
    if code == C_SHRINK:
        for (lo, hi), n in zip(arg, old):
            if not 0 <= lo <= hi <= n:
                raise ValueError(f"cannot shrink {old} to {arg}: bounds must satisfy 0 <= first <= last <= size")
        return tuple([hi - lo for lo, hi in arg])
    if code == C_STRIDE:
        if any(step < 1 for step in arg):
            raise ValueError(f"steps {arg} must be positive")
        return tuple([-(-n // step) for step, n in zip(arg, old)])
    if any(lo < 0 or hi < 0 for lo, hi in arg):  # PAD
        raise ValueError(f"cannot pad {old} by {arg}: negative padding")
    return tuple([lo + n + hi for (lo, hi), n in zip(arg, old)])


cdef object infer_shape(int code, tuple src, object arg):
    cdef UOp s
    cdef Py_ssize_t i
    cdef object best
    if code == C_RANGE or code == C_INDEX or code == C_LOAD:
        return EMPTY
    if IS_ALU[code]:
        best = EMPTY
        for i in range(PyTuple_GET_SIZE(src)):
            s = <UOp>src[i]
            if s.shape_ is best or s.shape_ == EMPTY:
                continue
            if best == EMPTY:
                best = s.shape_
            elif s.shape_ != best:
                shapes = " and ".join(str((<UOp>x).shape_) for x in src)
                raise ValueError(f"{OPS[code]!r} of shapes {shapes}: they must agree (or be empty)")
        return best
    if IS_MOVEMENT[code]:
        s = <UOp>src[0]
        if type(s.shape_) is not tuple or not isinstance(arg, tuple):
            raise TypeError(f"{OPS[code]!r} moves a tensor by a tuple, not {s!r} by {arg!r}")
        return movement_shape(code, s.shape_, arg)
    if code == C_BUFFER or code == C_ALLOC:
        return arg.shape
    if code == C_CONST:
        return EMPTY
    if code == C_REDUCE:
        s = <UOp>src[0]
        if not arg.axes:
            return s.shape_
        if any(not 0 <= a < len(s.shape_) for a in arg.axes) or len(set(arg.axes)) != len(arg.axes):
            raise ValueError(f"cannot reduce axes {arg.axes} of shape {s.shape_}")
        return tuple([n for i, n in enumerate(s.shape_) if i not in arg.axes])
    if code == C_IOTA:
        return (arg,)
    if code == C_STACK:
        s = <UOp>src[0]
        for x in src:
            if (<UOp>x).shape_ != s.shape_:
                raise ValueError(f"cannot stack shapes {s.shape_} and {(<UOp>x).shape_}: they must agree")
        return (len(src), *s.shape_)
    if code == C_CAT:
        s = <UOp>src[0]
        i = arg
        if not 0 <= i < len(s.shape_):
            raise ValueError(f"no axis {i} in shape {s.shape_} to join along")
        n = 0
        for x in src:
            best = (<UOp>x).shape_
            if best[:i] != s.shape_[:i] or best[i + 1:] != s.shape_[i + 1:]:
                raise ValueError(f"cannot join shapes {s.shape_} and {best} along axis {i}: the other axes must agree")
            n = n + best[i]
        return (*s.shape_[:i], n, *s.shape_[i + 1:])
    if code == C_GATHER:
        s = <UOp>src[1]
        if len(src) - 1 != len((<UOp>src[0]).shape_):
            raise ValueError(f"a gather from shape {(<UOp>src[0]).shape_} needs an index for each axis, not {len(src) - 1}")
        for x in src[2:]:
            if (<UOp>x).shape_ != s.shape_:
                raise ValueError(f"cannot gather by indices of shapes {s.shape_} and {(<UOp>x).shape_}: they must agree")
        return s.shape_
    if code == C_STAGE or code == C_AFTER:
        return (<UOp>src[0]).shape_
    return None


# ---- open ranges --------------------------------------------------------------------------------------------------------

cdef inline tuple open_ranges(UOp u):
    """The ranges open at a use of ``u``.  A RANGE does not hold itself (a cycle would keep it alive), hence the function."""
    return u.ranges_ + (u,) if u.code == C_RANGE else u.ranges_


cdef inline bint holds(tuple ranges, object r) noexcept:
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(ranges)):
        if PyTuple_GET_ITEM(ranges, i) == <PyObject*>r:
            return True
    return False


cdef tuple infer_ranges(int code, tuple src):
    """The union of the sources' open ranges, less those that END and REDUCE close."""
    cdef Py_ssize_t i, k, n = PyTuple_GET_SIZE(src)
    cdef tuple best = EMPTY, other
    cdef dict union = None  # kept once there are many: a SINK may have thousands of sources
    for i in range(n):
        other = open_ranges(<UOp>PyTuple_GET_ITEM(src, i))
        if other is best or PyTuple_GET_SIZE(other) == 0:
            continue
        if union is not None:
            union.update(dict.fromkeys(other))
            continue
        if PyTuple_GET_SIZE(best) == 0:
            best = other
            continue
        for k in range(PyTuple_GET_SIZE(other)):
            if not holds(best, <object>PyTuple_GET_ITEM(other, k)):
                best = best + (<object>PyTuple_GET_ITEM(other, k),)
        if PyTuple_GET_SIZE(best) > 16:
            union = dict.fromkeys(best)
    if union is not None:
        best = tuple(union)
    if (code == C_END or code == C_REDUCE) and n > 1 and PyTuple_GET_SIZE(best) > 0:
        best = tuple([r for r in best if r not in src[1:]])
    return best


# ---- integer bounds -----------------------------------------------------------------------------------------------------
# INT64_MIN as a lower and INT64_MAX as an upper bound mean "unknown".

cdef void mul_bounds(UOp u, UOp a, UOp b) noexcept:
    cdef int64_t p = sat_mul(a.lo, b.lo), q = sat_mul(a.lo, b.hi), r = sat_mul(a.hi, b.lo), s = sat_mul(a.hi, b.hi)
    u.lo = min(min(p, q), min(r, s))
    u.hi = max(max(p, q), max(r, s))


cdef void compare_bounds(UOp u, UOp a, UOp b) noexcept:
    """Decide a comparison of integers whose bounds decide it."""
    cdef bint known = a.info.kind != K_OTHER and b.info.kind != K_OTHER
    cdef bint below, above, not_above, not_below
    u.lo = 0
    u.hi = 1
    if not known:
        return
    below = a.hi != INT64_MAX and b.lo != INT64_MIN and a.hi < b.lo
    not_above = a.hi != INT64_MAX and b.lo != INT64_MIN and a.hi <= b.lo
    above = a.lo != INT64_MIN and b.hi != INT64_MAX and a.lo > b.hi
    not_below = a.lo != INT64_MIN and b.hi != INT64_MAX and a.lo >= b.hi
    if u.code == C_CMPLT:
        if below: u.lo = 1
        elif not_below: u.hi = 0
    elif u.code == C_CMPLE:
        if not_above: u.lo = 1
        elif above: u.hi = 0
    elif below or above or a is b or (a.lo == a.hi and b.lo == b.hi and a.lo == b.lo and a.lo != INT64_MAX and a.lo != INT64_MIN):
        if (u.code == C_CMPEQ) == (below or above): u.hi = 0
        else: u.lo = 1


cdef bint alu_bounds(UOp u) noexcept:
    """Bounds of an ALU node from those of its sources; False where nothing is known."""
    cdef int code = u.code
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b
    if u.info.kind == K_OTHER:
        return False
    if code == C_CAST:
        if a.info.kind == K_OTHER or (a.hi == INT64_MAX and a.info.lo == 0): return False  # a uint64 may turn negative
        if u.info.kind == K_BOOL:
            u.lo = 1 if a.lo > 0 or a.hi < 0 else 0
            u.hi = 0 if a.lo == 0 and a.hi == 0 else 1
        else:
            u.lo = a.lo
            u.hi = a.hi
        return True
    if code == C_ABS and a.lo > INT64_MIN:
        u.lo = 0 if a.lo <= 0 <= a.hi else min(abs(a.lo), abs(a.hi))
        u.hi = INT64_MAX if a.hi == INT64_MAX else max(abs(a.lo), abs(a.hi))
        return True
    if PyTuple_GET_SIZE(u.src) < 2:
        return False
    b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    if code == C_CMPLT or code == C_CMPLE or code == C_CMPEQ or code == C_CMPNE:
        compare_bounds(u, a, b)
    elif code == C_ADD:
        u.lo = sat_add(a.lo, b.lo)
        u.hi = sat_add(a.hi, b.hi)
    elif code == C_MUL:
        mul_bounds(u, a, b)
    elif code == C_IDIV and b.lo > 0:
        u.lo = floor_div(a.lo, b.lo if a.lo < 0 else b.hi)
        u.hi = floor_div(a.hi, b.hi if a.hi < 0 else b.lo)
    elif code == C_MOD and b.lo > 0 and b.hi != INT64_MAX:
        u.lo = 0
        u.hi = min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1
    elif code == C_MAX:
        u.lo = max(a.lo, b.lo)
        u.hi = max(a.hi, b.hi)
    elif code == C_MIN:
        u.lo = min(a.lo, b.lo)
        u.hi = min(a.hi, b.hi)
    elif code == C_AND and u.info.kind == K_BOOL:
        u.lo = min(a.lo, b.lo)
        u.hi = min(a.hi, b.hi)
    elif code == C_OR and u.info.kind == K_BOOL:
        u.lo = max(a.lo, b.lo)
        u.hi = max(a.hi, b.hi)
    elif code == C_AND and (a.lo >= 0 or b.lo >= 0):
        u.lo = 0
        u.hi = min(a.hi, b.hi) if a.lo >= 0 and b.lo >= 0 else (b.hi if b.lo >= 0 else a.hi)
    elif code == C_SHR and b.lo == b.hi and 0 <= b.lo < 63:
        u.lo = floor_div(a.lo, (<int64_t>1) << b.lo)
        u.hi = floor_div(a.hi, (<int64_t>1) << b.lo)
    elif code == C_WHERE:
        a = b
        b = <UOp>PyTuple_GET_ITEM(u.src, 2)
        u.lo = min(a.lo, b.lo)
        u.hi = max(a.hi, b.hi)
    else:
        return False
    return True


cdef bint structure_bounds(UOp u) except -1:
    """Bounds of a node that is not ALU; False where nothing is known."""
    cdef int code = u.code
    cdef UOp a
    cdef Py_ssize_t i
    if code == C_CONST:
        if u.info.kind == K_OTHER: return False
        values = u.arg if type(u.arg) is tuple else (u.arg,)
        if min(values) <= INT64_MIN or max(values) >= INT64_MAX:
            return False
        u.lo = min(values)
        u.hi = max(values)
        return True
    if code == C_IOTA:
        u.lo = 0
        u.hi = max(u.arg - 1, 0)
        return True
    if PyTuple_GET_SIZE(u.src) == 0:
        return False
    a = <UOp>PyTuple_GET_ITEM(u.src, 0)
    if code == C_RANGE:
        u.lo = 0
        u.hi = max(sat_add(a.hi, -1), 0)
        return True
    if u.info.kind == K_OTHER or a.info.kind == K_OTHER:
        return False
    if code == C_STACK or code == C_CAT or IS_MOVEMENT[code] or code == C_GATHER or code == C_STAGE or code == C_AFTER:
        u.lo = a.lo
        u.hi = a.hi
        if code == C_STACK or code == C_CAT:
            for i in range(1, PyTuple_GET_SIZE(u.src)):
                a = <UOp>PyTuple_GET_ITEM(u.src, i)
                u.lo = min(u.lo, a.lo)
                u.hi = max(u.hi, a.hi)
        elif code == C_PAD:
            u.lo = min(u.lo, 0)
            u.hi = max(u.hi, 0)
        return True
    return False


cdef int infer_bounds(UOp u) except -1:
    cdef DInfo info = u.info
    cdef bint known = alu_bounds(u) if IS_ALU[u.code] else structure_bounds(u)
    if known and info.kind == K_INT:  # what may leave the type wraps: then it may be anything
        known = u.lo >= info.lo and u.hi <= info.hi
        if known and (u.code == C_ADD or u.code == C_MUL):
            known = (u.lo > INT64_MIN or info.lo > INT64_MIN) and (u.hi < INT64_MAX or info.hi < INT64_MAX)
    elif known and info.kind == K_BOOL:
        known = u.lo >= 0 and u.hi <= 1
    if not known or u.lo == INT64_MAX or u.hi == INT64_MIN:
        u.lo = info.lo
        u.hi = info.hi
    return 0
