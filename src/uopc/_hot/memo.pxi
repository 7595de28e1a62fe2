# The memo of a traversal: node -> final form.  Included by rewrite.pyx.
#
# It lives on the nodes.  A node has room for one entry, which belongs to a memo for as long as that memo is open: an
# older owner that is still open (an outer rewrite whose rule rewrites, a Simplifier that is kept, another thread)
# keeps the room, and the younger memo puts the entry into a map of its own.  So memos nest and interleave, and the
# common case costs nothing.
#
# Memo.owner is unique and never used again; Memo.in_nodes says whether nodes name it; Memo.map has the other entries.

cdef enum:
    OPEN_MEMOS = 255               # more memos that are open at once than this use their maps alone

cdef uint64_t OPEN[OPEN_MEMOS + 1]  # by the low byte of an owner: the one that is open there
cdef uint64_t last_owner = 0


cdef int memo_open(Memo* m) except -1:
    global last_owner
    cdef int slot
    ptrmap_init(&m.map, 1)
    last_owner += 1
    for slot in range(OPEN_MEMOS):
        if OPEN[slot] == 0:
            m.owner = last_owner << 8 | slot
            OPEN[slot] = m.owner
            m.in_nodes = True
            return 0
    m.owner = last_owner << 8 | OPEN_MEMOS
    m.in_nodes = False
    return 0


cdef void memo_close(Memo* m) noexcept:
    if m.in_nodes:
        OPEN[m.owner & 255] = 0
        m.in_nodes = False
    ptrmap_free(&m.map)


cdef inline PyObject* memo_get(Memo* m, PyObject* node) noexcept:
    """The entry of ``node``, or NULL."""
    if (<UOp>node).memo_owner == m.owner:
        return (<UOp>node).memo
    return ptrmap_get(&m.map, node) if m.map.used > 0 else NULL


cdef inline int memo_set(Memo* m, PyObject* node, PyObject* value) except -1:
    """Enter ``value`` (borrowed) for ``node`` (borrowed)."""
    cdef uint64_t owner = (<UOp>node).memo_owner
    if owner != m.owner:
        if not m.in_nodes or (owner != 0 and OPEN[owner & 255] == owner):
            return ptrmap_set(&m.map, node, value)
        (<UOp>node).memo_owner = m.owner
    (<UOp>node).memo = value
    return 0
