# Inference: what a node's dtype, shape and open ranges are, given those of its sources.
# Included by uop.pyx: each function is called once when a node is made, and reads nothing but its sources.

# ---- dtypes --------------------------------------------------------------------------------------

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
    info.scalar = dtype.scalar()
    info.lanes = {}
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


cdef DInfo widened(DInfo info, int count):
    """``count`` lanes of the same element type."""
    found = info.lanes.get(count)
    if found is None:
        found = info.lanes[count] = info_of(info.dtype.vec(count))
    return <DInfo>found


cdef DInfo VOID = info_of(dtypes.void), BOOL = info_of(dtypes.bool_), INDEX_INFO = info_of(dtypes.index)
cdef DInfo FLOAT = info_of(dtypes.default_float), WORD = info_of(dtypes.uint32)
cdef object BFLOAT16 = dtypes.bfloat16


cdef DInfo agree(int code, tuple src, int first):
    """The common dtype of the sources from ``first`` on; a scalar spreads over the lanes of a vector."""
    cdef UOp a = <UOp>src[first], b
    cdef DInfo best = a.info
    cdef Py_ssize_t i
    for i in range(first + 1, PyTuple_GET_SIZE(src)):
        b = <UOp>src[i]
        if b.info is best:
            continue
        if b.info.scalar is not best.scalar \
                or (b.info.count != best.count and b.info.count != 1 and best.count != 1):
            types = " and ".join([repr((<UOp>s).dtype) for s in src[first:]])
            raise TypeError(f"{OPS[code]!r} of {types}: the types must agree; cast first")
        if b.info.count > best.count:
            best = b.info
    return best


cdef DInfo dot(int code, tuple src):
    """The type of the sum that a dot product of words adds to, as wide as the widest of all three."""
    cdef DInfo words = agree(code, src[:2], 0), total = (<UOp>src[2]).info
    if words.scalar is not WORD.scalar or (total.scalar is not BFLOAT16 and total.scalar is not FLOAT.scalar):
        types = ", ".join([repr((<UOp>s).dtype) for s in src])
        raise TypeError(f"{OPS[code]!r} of {types}: it takes two uint32 and a bfloat16 or float32")
    if words.count != total.count and words.count != 1 and total.count != 1:
        raise TypeError(f"{OPS[code]!r} of {words.dtype!r} and {total.dtype!r}: they must be as wide")
    return total if total.count >= words.count else widened(total, words.count)


cdef object told(int code, object arg):
    """``arg``, whose parts are about to be read; TypeError where it is not of the type that the op table says."""
    if isinstance(arg, ARGUMENT[code]):
        return arg
    types = ARGUMENT[code] if isinstance(ARGUMENT[code], tuple) else (ARGUMENT[code],)
    raise TypeError(f"{OPS[code]!r} is told by {' or '.join([t.__name__ for t in types])}, not by {arg!r}")


cdef inline bint is_id(object value) except -1:
    return isinstance(value, int) and -(1 << 62) < value < 1 << 62


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
        if type(arg) is not RangeArg or not is_id(<object>PyTuple_GET_ITEM(arg, 0)):
            raise TypeError(f"{OPS[code]!r} is told by a RangeArg with an integer id, not by {arg!r}")
        return INDEX_INFO
    if rule == R_ARG:
        return info_of(told(code, arg).dtype)
    if rule == R_SELECT:
        if (<UOp>src[0]).info.kind != K_BOOL:
            raise TypeError(f"{OPS[code]!r} chooses by a bool, not by {(<UOp>src[0]).dtype!r}")
        info = agree(code, src, 1)
        if (<UOp>src[0]).info.count > info.count:
            info = widened(info, (<UOp>src[0]).info.count)
        return info
    if rule == R_LOAD:
        if dtype is not None:
            return info_of(dtype)
        info = (<UOp>src[0]).info
        if (<UOp>src[0]).code == C_INDEX and (<UOp>(<UOp>src[0]).src[1]).info.count > 1:
            return widened(info, (<UOp>(<UOp>src[0]).src[1]).info.count)
        return info
    if rule == R_WORD:
        info = agree(code, src, 0)
        if info.scalar is not BFLOAT16 and info.scalar is not FLOAT.scalar:
            raise TypeError(f"{OPS[code]!r} takes bfloat16 or float32, not {info.dtype!r}")
        return widened(WORD, info.count)
    if rule == R_DOT:
        return dot(code, src)
    if dtype is not None:
        return info_of(dtype)
    if code == C_CONST:
        return BOOL if isinstance(arg, bool) else INDEX_INFO if isinstance(arg, int) else FLOAT
    raise TypeError(f"{OPS[code]!r} needs a dtype")


# ---- shape ---------------------------------------------------------------------------------------

cdef object product(object sizes):
    n = 1
    for s in sizes:
        n = n * s
    return n


cdef enum:
    MOST_ELEMENTS_LOG2 = 60  # so many that no size in bytes is beyond 64 bits

cdef int64_t MOST_ELEMENTS = <int64_t>1 << MOST_ELEMENTS_LOG2


cdef object addressable(object shape):
    """``shape``; ValueError where its elements could not be counted in bytes.  Sizes of 0 do not excuse others."""
    cdef int64_t n = 1
    cdef object s
    for s in shape:
        if s:
            n = sat_mul(n, s) if -MOST_ELEMENTS <= s <= MOST_ELEMENTS else INT64_MAX
        if n > MOST_ELEMENTS:
            raise ValueError(f"shape {shape} has more than 2**{MOST_ELEMENTS_LOG2} elements, which no memory holds")
    return shape


cdef object movement_shape(int code, tuple old, object arg):
    """The shape after a movement op; ValueError where the argument does not fit the shape ``old``."""
    cdef Py_ssize_t i
    if code == C_RESHAPE:
        if product(old) != product(arg):
            raise ValueError(f"cannot reshape {old} ({product(old)} elements) to {arg} ({product(arg)} elements)")
        return addressable(arg)
    if code == C_FLIP:
        if any([not 0 <= a < len(old) for a in arg]) or len(set(arg)) != len(arg):
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
        return addressable(arg)
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
        if any([step < 1 for step in arg]):
            raise ValueError(f"steps {arg} must be positive")
        return tuple([-(-n // step) for step, n in zip(arg, old)])
    if any([lo < 0 or hi < 0 for lo, hi in arg]):  # PAD
        raise ValueError(f"cannot pad {old} by {arg}: negative padding")
    return addressable(tuple([lo + n + hi for (lo, hi), n in zip(arg, old)]))


cdef object infer_shape(int code, tuple src, object arg):
    """The shape of a new node; None for what has none.  ValueError where those of its sources do not go together."""
    cdef UOp s
    cdef Py_ssize_t i
    cdef object best
    if IS_ALU[code]:
        best = EMPTY
        for i in range(PyTuple_GET_SIZE(src)):
            if (<UOp>PyTuple_GET_ITEM(src, i)).shape_ is best:
                continue
            s = <UOp>PyTuple_GET_ITEM(src, i)
            if s.shape_ is EMPTY or s.shape_ == EMPTY:
                continue
            if best is EMPTY:
                best = s.shape_
            elif s.shape_ != best:
                shapes = " and ".join([str((<UOp>x).shape_) for x in src])
                raise ValueError(f"{OPS[code]!r} of shapes {shapes}: they must agree (or be empty)")
        return best
    if code == C_RANGE or code == C_INDEX or code == C_LOAD or code == C_CONST:
        return EMPTY
    return structure_shape(code, src, arg)


cdef inline bint same_kind(UOp a, UOp b):
    return a.info is b.info and a.shape_ == b.shape_


cdef object structure_shape(int code, tuple src, object arg):
    cdef UOp s
    cdef object best
    if IS_MOVEMENT[code]:
        s = <UOp>src[0]
        if type(s.shape_) is not tuple or not isinstance(arg, tuple):
            raise TypeError(f"{OPS[code]!r} moves a tensor by a tuple, not {s!r} by {arg!r}")
        return movement_shape(code, s.shape_, told(code, arg))
    if code == C_BUFFER or code == C_ALLOC:
        return addressable(arg.shape)
    if code == C_STATE or code == C_COMPONENT:
        return arg.shape
    if code == C_REDUCE:
        s = <UOp>src[0]
        if not told(code, arg).axes:
            return s.shape_
        if any([not 0 <= a < len(s.shape_) for a in arg.axes]) or len(set(arg.axes)) != len(arg.axes):
            raise ValueError(f"cannot reduce axes {arg.axes} of shape {s.shape_}")
        return tuple([n for i, n in enumerate(s.shape_) if i not in arg.axes])
    if code == C_IOTA:
        return addressable((told(code, arg),))
    if code == C_STACK:
        s = <UOp>src[0]
        for x in src:
            if (<UOp>x).shape_ != s.shape_:
                raise ValueError(f"cannot stack shapes {s.shape_} and {(<UOp>x).shape_}: they must agree")
        return addressable((len(src), *s.shape_))
    if code == C_CAT:
        s = <UOp>src[0]
        i = told(code, arg)
        if not 0 <= i < len(s.shape_):
            raise ValueError(f"no axis {i} in shape {s.shape_} to join along")
        n = 0
        for x in src:
            best = (<UOp>x).shape_
            if best[:i] != s.shape_[:i] or best[i + 1:] != s.shape_[i + 1:]:
                raise ValueError(f"cannot join shapes {s.shape_} and {best} along axis {i}: the other axes must agree")
            n = n + best[i]
        return addressable((*s.shape_[:i], n, *s.shape_[i + 1:]))
    if code == C_GATHER:
        s = <UOp>src[1]
        if len(src) - 1 != len((<UOp>src[0]).shape_):
            shape = (<UOp>src[0]).shape_
            raise ValueError(f"a gather from shape {shape} needs an index for each axis, not {len(src) - 1}")
        for x in src[2:]:
            if (<UOp>x).shape_ != s.shape_:
                shapes = f"{s.shape_} and {(<UOp>x).shape_}"
                raise ValueError(f"cannot gather by indices of shapes {shapes}: they must agree")
        return s.shape_
    if code == C_ALIAS and len(src) == 2 and not same_kind(<UOp>src[0], <UOp>src[1]):
        kinds = " and ".join([f"{(<UOp>x).dtype!r} of shape {(<UOp>x).shape_}" for x in src])
        raise ValueError(f"{OPS[code]!r} of {kinds}: they must agree")
    if code == C_STAGE or code == C_ALIAS or code == C_AFTER:
        return (<UOp>src[0]).shape_
    return None


# ---- open ranges ---------------------------------------------------------------------------------

cdef enum:
    MANY = 8  # sources: more may have so many ranges between them that looking through a tuple takes quadratic time


cdef inline tuple open_ranges(UOp u):
    """The ranges open at a use of ``u``.  A RANGE does not hold itself: that cycle would keep it alive."""
    return u.ranges_ + (u,) if u.code == C_RANGE else u.ranges_


cdef inline bint holds(tuple ranges, object r) noexcept:
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(ranges)):
        if PyTuple_GET_ITEM(ranges, i) == <PyObject*>r:
            return True
    return False


cdef tuple infer_ranges(int code, tuple src):
    """The union of the sources' open ranges, less those that END and REDUCE close."""
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(src)
    cdef tuple best = EMPTY
    cdef UOp s
    if n > MANY:
        best = union_of_many(src)
    else:
        for i in range(n):
            s = <UOp>PyTuple_GET_ITEM(src, i)
            if s.code == C_RANGE:
                best = with_range(union_of(best, s.ranges_), s)
            elif s.ranges_ is not best:
                best = union_of(best, s.ranges_)
    if (code == C_END or code == C_REDUCE) and n > 1 and PyTuple_GET_SIZE(best) > 0:
        best = tuple([r for r in best if r not in src[1:]])
    return best


cdef inline tuple with_range(tuple ranges, UOp r):
    return ranges if holds(ranges, r) else ranges + (r,)


cdef tuple union_of(tuple a, tuple b):
    """The ranges of ``a``, then those that only ``b`` has.  The one that holds the other is returned itself."""
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(b)
    if n == 0:
        return a
    if PyTuple_GET_SIZE(a) == 0:
        return b
    for i in range(n):
        if not holds(a, <object>PyTuple_GET_ITEM(b, i)):
            a = a + (<object>PyTuple_GET_ITEM(b, i),)
    return a


cdef tuple union_of_many(tuple src):
    """The same through a map: a SINK may have thousands of sources with a range each."""
    cdef PtrMap seen
    cdef list union = []
    cdef tuple ranges, last = EMPTY
    cdef Py_ssize_t i
    ptrmap_init(&seen, PyTuple_GET_SIZE(src))
    try:
        for s in src:
            ranges = open_ranges(<UOp>s)
            if ranges is last:
                continue
            last = ranges
            for i in range(PyTuple_GET_SIZE(ranges)):
                if ptrmap_get(&seen, PyTuple_GET_ITEM(ranges, i)) == NULL:
                    ptrmap_set(&seen, PyTuple_GET_ITEM(ranges, i), <PyObject*>EMPTY)
                    union.append(<object>PyTuple_GET_ITEM(ranges, i))
    finally:
        ptrmap_free(&seen)
    return tuple(union)
