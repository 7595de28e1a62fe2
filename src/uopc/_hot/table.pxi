# How a node is found again, and ``intern``, through which every node is made.  Included by uop.pyx.
#
# A node is listed by its first source, as one of that source's users: these are few, and lie where memory was read a
# moment ago.  Nodes without sources, and the users of a source that has many (a hub: a constant, a buffer), are in a
# table for all: open addressing over borrowed pointers.  In large graphs each look into it waits for memory.

cdef enum:
    MOST_LISTED = 6                # users, then their source is a hub as long as it lives
    HUB = 255

cdef enum:                         # UOp.place
    NOWHERE = 0
    LISTED = 1
    IN_TABLE = 2

cdef struct Entry:
    # the hash stands beside the node, so that a probe that fails does not touch the node
    uint64_t h
    PyObject* node                 # borrowed; NULL: free

cdef Entry* table = NULL
cdef uint64_t table_mask = 0, table_used = 0
cdef uint64_t living = 0           # nodes, in the table and out of it
cdef uint64_t version = 0          # changes with every node that comes or goes


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
    if type(arg) is RANGE_ARG:
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
    cdef Entry* fresh
    cdef uint64_t i
    fresh = <Entry*>calloc(cap, sizeof(Entry))
    if fresh == NULL:
        raise MemoryError()
    table = fresh
    table_mask = cap - 1
    for i in range(old_cap):
        if old[i].node != NULL:
            table_set(old[i].h, old[i].node)
    free(old)
    return 0


cdef inline void table_set(uint64_t h, PyObject* node) noexcept:
    cdef uint64_t i = h & table_mask
    while table[i].node != NULL:
        i = (i + 1) & table_mask
    table[i].h = h
    table[i].node = node


cdef inline PyObject* table_get(uint64_t h, uint64_t* i) noexcept:
    """The next node of this hash from entry ``i`` on, which then is where it stands; or NULL."""
    while table[i[0]].node != NULL and table[i[0]].h != h:
        i[0] = (i[0] + 1) & table_mask
    return table[i[0]].node


cdef void table_remove(uint64_t h, PyObject* node) noexcept:
    """Take a node out, shifting later entries of its probe run back so that no tombstone is needed."""
    global table_used
    cdef uint64_t i = h & table_mask, j, home
    while table[i].node != node:
        i = (i + 1) & table_mask
    table_used -= 1
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


cdef inline bint is_listed(tuple src) noexcept:
    """Whether a node over ``src`` is looked for among the users of its first source."""
    return PyTuple_GET_SIZE(src) > 0 and (<UOp>PyTuple_GET_ITEM(src, 0)).users_listed != HUB


cdef UOp find(uint64_t h, int code, DInfo info, tuple src, object arg):
    """The living node with these parts, or None."""
    cdef bint listed = is_listed(src)
    cdef uint64_t i = h & table_mask, before
    cdef PyObject* p = (<UOp>PyTuple_GET_ITEM(src, 0)).users if listed else table_get(h, &i)
    cdef UOp u
    cdef list rejected = None
    while p != NULL:
        if (<UOp>p).h == h and (<UOp>p).code == code and (<UOp>p).info is info and same_sources((<UOp>p).src, src):
            u = <UOp>p
            if u.arg is arg:
                return u
            if rejected is None or u not in rejected:
                before = version
                if same_arg(u.arg, arg):
                    return u
                if before != version:  # the comparison ran Python code: start again, without this one
                    rejected = [u] if rejected is None else rejected + [u]
                    listed = is_listed(src)
                    i = h & table_mask
                    p = (<UOp>PyTuple_GET_ITEM(src, 0)).users if listed else table_get(h, &i)
                    continue
        if listed:
            p = (<UOp>p).next_user
        else:
            i = (i + 1) & table_mask
            p = table_get(h, &i)
    return None


cdef int enter(UOp u) except -1:
    """Make ``u``, which is new, the node that is found."""
    global living, version
    cdef UOp first = None
    if (table_used + MOST_LISTED + 1) * 2 > table_mask:  # as many may be moved there
        grow()
    if PyTuple_GET_SIZE(u.src) > 0:
        first = <UOp>PyTuple_GET_ITEM(u.src, 0)
        if first.users_listed == MOST_LISTED:
            first.users_listed = HUB
            while first.users != NULL:
                move_to_table(<UOp>first.users)
                first.users = (<UOp>first.users).next_user
    if first is None or first.users_listed == HUB:
        move_to_table(u)
    else:
        u.place = LISTED
        u.next_user = first.users
        first.users = <PyObject*>u
        first.users_listed += 1
    living += 1
    version += 1
    return 0


cdef inline void move_to_table(UOp u) noexcept:
    global table_used
    u.place = IN_TABLE
    table_set(u.h, <PyObject*>u)
    table_used += 1


cdef void leave(UOp u) noexcept:
    """``u`` dies; its sources live as long as it does."""
    global living, version
    cdef UOp first
    cdef PyObject** p
    if u.place == IN_TABLE:
        table_remove(u.h, <PyObject*>u)
    else:
        first = <UOp>PyTuple_GET_ITEM(u.src, 0)
        p = &first.users
        while p[0] != <PyObject*>u:
            p = &(<UOp>p[0]).next_user
        p[0] = u.next_user
        first.users_listed -= 1
    living -= 1
    version += 1


cdef UOp intern(int code, DInfo info, tuple src, object arg):
    """The living node with these parts, or else a new one.  ValueError where the shapes do not fit."""
    cdef uint64_t h = mix(<uint64_t>code, <uint64_t><PyObject*>info), before
    cdef Py_ssize_t k
    cdef UOp u, twin
    for k in range(PyTuple_GET_SIZE(src)):
        h = mix(h, <uint64_t>PyTuple_GET_ITEM(src, k))
    if arg is not None:
        h = mix(h, hash_arg(arg))
    u = find(h, code, info, src, arg)
    if u is not None:
        return u
    before = version
    u = <UOp>UOp.__new__(UOp)
    u.code = code
    u.info = info
    u.src = src
    u.arg = arg
    u.shape_ = infer_shape(code, src, arg)
    u.ranges_ = infer_ranges(code, src)
    infer_bounds(u)
    if before != version:  # inference may run Python code, in which another thread may have made the same node
        twin = find(h, code, info, src, arg)
        if twin is not None:
            return twin
    # tuples of nodes are in no cycle: the garbage collector need not walk them, however large the graph
    PyObject_GC_UnTrack(src)
    PyObject_GC_UnTrack(u.ranges_)
    if type(arg) is RANGE_ARG:
        PyObject_GC_UnTrack(arg)
    u.h = h
    enter(u)
    return u


grow()
