# The table of nodes: open addressing over borrowed pointers, and ``intern``, through which every node is made.
# Included by uop.pyx.

cdef struct Entry:
    # the hash stands beside the node, so that a probe that fails does not touch the node
    uint64_t h
    PyObject* node                 # borrowed; NULL: free

cdef Entry* table = NULL
cdef uint64_t table_mask = 0, table_used = 0
cdef uint64_t table_version = 0    # changes with every node that comes or goes


cdef inline uint64_t mix(uint64_t h, uint64_t v) noexcept nogil:
    h = (h ^ v) * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 29)


cdef uint64_t hash_arg(object arg) except? 0:
    """Equal for arguments that are the same by ``same_arg``."""
    cdef double d
    cdef uint64_t bits
    if type(arg) is float:  # by bits: 0.0 and -0.0 are different constants, and a NaN equals itself
        d = arg
        memcpy(&bits, &d, sizeof(double))
        return bits
    if type(arg) is RangeArg:
        return mix(PyLong_AsLong(<object>PyTuple_GET_ITEM(arg, 0)), PyLong_AsLong(<object>PyTuple_GET_ITEM(arg, 1)))
    if type(arg) is tuple and len(arg) > 0 and type((<tuple>arg)[0]) is float:
        bits = 0
        for value in <tuple>arg:
            bits = mix(bits, hash_arg(value))
        return bits
    return <uint64_t>PyObject_Hash(arg)


cdef bint same_arg(object a, object b) except -1:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return hash_arg(a) == hash_arg(b)
    if type(a) is tuple and len(a) > 0 and type((<tuple>a)[0]) is float:
        return len(a) == len(b) and all([same_arg(x, y) for x, y in zip(<tuple>a, <tuple>b)])
    return a == b


cdef int grow() except -1:
    global table, table_mask
    cdef uint64_t old_cap = table_mask + 1 if table != NULL else 0
    cdef uint64_t cap = old_cap * 2 if old_cap else 4096
    cdef Entry* old = table
    cdef Entry* fresh = <Entry*>calloc(cap, sizeof(Entry))
    cdef uint64_t i, j
    if fresh == NULL:
        raise MemoryError()
    for i in range(old_cap):
        if old[i].node != NULL:
            j = old[i].h & (cap - 1)
            while fresh[j].node != NULL:
                j = (j + 1) & (cap - 1)
            fresh[j] = old[i]
    table = fresh
    table_mask = cap - 1
    free(old)
    return 0


cdef void table_remove(PyObject* node, uint64_t h) noexcept:
    """Take a dying node out, shifting later entries of its probe run back so that no tombstone is needed."""
    global table_used, table_version
    cdef uint64_t i = h & table_mask, j, home
    while table[i].node != node:
        i = (i + 1) & table_mask
    table_used -= 1
    table_version += 1
    j = i
    while True:
        table[i].node = NULL
        while True:
            j = (j + 1) & table_mask
            if table[j].node == NULL:
                return
            home = table[j].h & table_mask
            if ((j - home) & table_mask) >= ((j - i) & table_mask):
                break
        table[i] = table[j]
        i = j


cdef inline bint same_sources(tuple a, tuple b) noexcept:
    cdef Py_ssize_t n = PyTuple_GET_SIZE(a), k
    if PyTuple_GET_SIZE(b) != n:
        return False
    for k in range(n):
        if PyTuple_GET_ITEM(a, k) != PyTuple_GET_ITEM(b, k):
            return False
    return True


cdef UOp find(uint64_t h, int code, DInfo info, tuple src, object arg, uint64_t* free_slot):
    """The living node with these parts, or None: then ``free_slot`` is where it belongs, until the table changes."""
    cdef uint64_t i = h & table_mask, version
    cdef UOp u
    cdef list rejected = None
    while table[i].node != NULL:
        if table[i].h == h:
            u = <UOp>table[i].node
            if u.code == code and u.info is info and same_sources(u.src, src) \
                    and (rejected is None or u not in rejected):
                if u.arg is arg:
                    return u
                version = table_version
                if same_arg(u.arg, arg):
                    return u
                if version != table_version:  # the comparison ran Python code: start again, without this one
                    rejected = [u] if rejected is None else rejected + [u]
                    i = h & table_mask
                    continue
        i = (i + 1) & table_mask
    free_slot[0] = i
    return None


cdef UOp intern(int code, DInfo info, tuple src, object arg):
    """The living node with these parts, or else a new one.  ValueError where the shapes do not fit."""
    global table_used, table_version
    cdef uint64_t h = mix(<uint64_t>code, <uint64_t><PyObject*>info), slot = 0, version
    cdef Py_ssize_t k
    cdef UOp u, twin
    for k in range(PyTuple_GET_SIZE(src)):
        h = mix(h, <uint64_t>PyTuple_GET_ITEM(src, k))
    if arg is not None:
        h = mix(h, hash_arg(arg))
    if table == NULL or table_used * 2 > table_mask:
        grow()
    u = find(h, code, info, src, arg, &slot)
    if u is not None:
        return u
    version = table_version
    u = <UOp>UOp.__new__(UOp)
    u.code = code
    u.info = info
    u.src = src
    u.arg = arg
    u.shape_ = infer_shape(code, src, arg)
    u.ranges_ = infer_ranges(code, src)
    infer_bounds(u)
    if version != table_version:
        # inference may run Python code, in which another thread may have made the same node or grown the table
        twin = find(h, code, info, src, arg, &slot)
        if twin is not None:
            return twin
    # tuples of nodes are in no cycle: the garbage collector need not walk them, however large the graph
    PyObject_GC_UnTrack(src)
    PyObject_GC_UnTrack(u.ranges_)
    u.h = h
    u.entered = True
    table[slot].h = h
    table[slot].node = <PyObject*>u
    table_used += 1
    table_version += 1
    return u
