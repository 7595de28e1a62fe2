# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What passes ask of whole graphs, at the speed of a traversal: copies, parts, and nodes replaced together.

Nothing here knows what an op means; the passes in Python decide what is copied or replaced, and by what.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint64_t
from libc.string cimport memset

from uopc._hot.ptrmap cimport PtrMap, ptrmap_free, ptrmap_get, ptrmap_init, ptrmap_set
from uopc._hot.stack cimport Stack, push, stack_free, stack_init
from uopc._hot.uop cimport UOp, rebuild

cdef enum:
    MAX_OPS = 128
    KINDS = 4          # of dtypes: the K_ constants of uop.pxd
    MAX_RANGES = 30    # copied at once: a bit for each


# ---- parts of a graph ----------------------------------------------------------------------------

cdef inline bint meets(UOp u, tuple ranges) noexcept:
    """Whether one of ``ranges`` is open at a use of ``u``."""
    cdef Py_ssize_t i, k
    for k in range(PyTuple_GET_SIZE(ranges)):
        if <PyObject*>u == PyTuple_GET_ITEM(ranges, k):
            return True
        for i in range(PyTuple_GET_SIZE(u.ranges_)):
            if PyTuple_GET_ITEM(u.ranges_, i) == PyTuple_GET_ITEM(ranges, k):
                return True
    return False


cpdef list depending(UOp root, tuple ranges):
    """The nodes of ``root`` at which one of ``ranges`` is open, each once, sources before users.

    Only these are visited: below a node at which none is open, none is looked for.
    """
    cdef PtrMap seen
    cdef Stack st
    cdef list out = []
    cdef UOp u, s
    cdef PyObject* p
    cdef PyObject* state
    cdef PyObject* OPEN = <PyObject*>ranges
    cdef PyObject* DONE = <PyObject*>out
    cdef Py_ssize_t i
    if not meets(root, ranges):
        return out
    ptrmap_init(&seen, 64)
    stack_init(&st)
    try:
        push(&st, <PyObject*>root)
        while st.size > 0:
            p = st.items[st.size - 1]
            state = ptrmap_get(&seen, p)
            u = <UOp>p
            if state != NULL:
                st.size -= 1
                if state == OPEN:
                    ptrmap_set(&seen, p, DONE)
                    out.append(u)
                continue
            ptrmap_set(&seen, p, OPEN)
            for i in range(PyTuple_GET_SIZE(u.src) - 1, -1, -1):
                s = <UOp>PyTuple_GET_ITEM(u.src, i)
                if ptrmap_get(&seen, <PyObject*>s) == NULL and meets(s, ranges):
                    push(&st, <PyObject*>s)
    finally:
        stack_free(&st)
        ptrmap_free(&seen)
    return out


def cone(UOp root not None, bytes ends, Py_ssize_t most=1 << 60):
    """The nodes of ``root``, users before sources, none below one for whose op ``ends`` holds a 1; the first ``most``
    of them, and one if there are more."""
    cdef const unsigned char* end = ends
    cdef PtrMap seen
    cdef Stack st
    cdef list out = []
    cdef UOp u
    cdef PyObject* p
    cdef Py_ssize_t i
    ptrmap_init(&seen, 64)
    stack_init(&st)
    try:
        push(&st, <PyObject*>root)
        while st.size > 0 and len(out) <= most:
            st.size -= 1
            p = st.items[st.size]
            if ptrmap_get(&seen, p) == NULL:
                ptrmap_set(&seen, p, <PyObject*>out)
                u = <UOp>p
                out.append(u)
                if not end[u.code]:
                    for i in range(PyTuple_GET_SIZE(u.src)):
                        push(&st, PyTuple_GET_ITEM(u.src, i))
    finally:
        stack_free(&st)
        ptrmap_free(&seen)
    return out


cpdef list newer(UOp root, dict place, Py_ssize_t least):
    """The nodes of ``root``, each once, sources before users, none that stands before ``least``, and none below one.

    ``place``: numbers of nodes, a source's smaller than its users'.  What has no number is new.
    """
    cdef PtrMap seen
    cdef Stack st
    cdef list out = []
    cdef UOp u
    cdef PyObject* p
    cdef PyObject* state
    cdef PyObject* OPEN = <PyObject*>place
    cdef PyObject* DONE = <PyObject*>out
    cdef Py_ssize_t i
    ptrmap_init(&seen, 64)
    stack_init(&st)
    try:
        push(&st, <PyObject*>root)
        while st.size > 0:
            p = st.items[st.size - 1]
            state = ptrmap_get(&seen, p)
            u = <UOp>p
            if state != NULL:
                st.size -= 1
                if state == OPEN:
                    ptrmap_set(&seen, p, DONE)
                    out.append(u)
                continue
            number = place.get(u)
            if number is not None and <Py_ssize_t>number < least:
                st.size -= 1
                ptrmap_set(&seen, p, DONE)
                continue
            ptrmap_set(&seen, p, OPEN)
            for i in range(PyTuple_GET_SIZE(u.src) - 1, -1, -1):
                if ptrmap_get(&seen, PyTuple_GET_ITEM(u.src, i)) == NULL:
                    push(&st, PyTuple_GET_ITEM(u.src, i))
    finally:
        stack_free(&st)
        ptrmap_free(&seen)
    return out


def chosen(list nodes, bytes table):
    """Those of ``nodes`` for which ``table`` holds a 1, at 4 * op + the kind of the last source's dtype.

    The kinds are 0 for floats and void, 1 for index, 2 for other integers, 3 for bool; a node without sources is of
    kind 0.
    """
    cdef const unsigned char* wanted = table
    cdef UOp u
    cdef Py_ssize_t n
    cdef int kind
    cdef list out = []
    for u in nodes:
        n = PyTuple_GET_SIZE(u.src)
        kind = (<UOp>PyTuple_GET_ITEM(u.src, n - 1)).info.kind if n > 0 else 0
        if wanted[KINDS * u.code + kind]:
            out.append(u)
    return out


def of_ops(nodes, *ops):
    """Those of ``nodes`` whose op is one of ``ops``."""
    cdef bint wanted[MAX_OPS]
    cdef UOp u
    cdef list out = []
    memset(wanted, 0, sizeof(wanted))
    for op in ops:
        wanted[<int>op] = True
    for u in nodes:
        if wanted[u.code]:
            out.append(u)
    return out


def dtypes_of(list nodes):
    """The dtypes that ``nodes`` have."""
    cdef set out = set()
    cdef UOp u
    cdef PyObject* last = NULL
    for u in nodes:
        if <PyObject*>u.info != last:
            last = <PyObject*>u.info
            out.add(u.info.dtype)
    return out


# ---- copies --------------------------------------------------------------------------------------

cdef class Copier:
    """The copies of a graph at every combination of values of some ranges.

    A node that depends on some of the ranges is copied for the combinations of these alone.  ``masks`` holds the bits
    of these ranges for each node, ``made`` the node's copies, the last range running fastest.
    """
    cdef PtrMap place            # node -> 1 + its place in `masks` and `made`
    cdef list masks, made, sizes
    cdef dict steps              # (mask, part of it) -> the place among the copies of the part, for each of the whole

    def __cinit__(self):
        ptrmap_init(&self.place, 64)
        self.masks = []
        self.made = []
        self.steps = {}

    def __dealloc__(self):
        ptrmap_free(&self.place)

    cdef int enter(self, UOp u, int mask, list made) except -1:
        self.masks.append(mask)
        self.made.append(made)
        ptrmap_set(&self.place, <PyObject*>u, <PyObject*><uint64_t>len(self.masks))
        return 0

    cdef inline Py_ssize_t find(self, PyObject* u) noexcept:
        """The place of a node, or -1 for one that is its only copy."""
        return <Py_ssize_t><uint64_t>ptrmap_get(&self.place, u) - 1

    cdef list projected(self, int mask, int part):
        """For each combination of the ranges of ``mask`` the place of what it says of those of ``part``."""
        cdef Py_ssize_t k, n = len(self.sizes)
        found = self.steps.get((mask, part))
        if found is None:
            found = [0]
            for k in range(n):
                if mask >> k & 1:
                    size = self.sizes[k]
                    kept = part >> k & 1
                    found = [at * size + i if kept else at for at in found for i in range(size)]
            self.steps[mask, part] = found
        return found

    cdef list copy(self, UOp u):
        """The copies of ``u``, whose sources are entered, after entering them."""
        cdef Py_ssize_t i, j, at, n = PyTuple_GET_SIZE(u.src)
        cdef int mask = 0, part
        cdef list sources = [None] * n, places = [None] * n, made = [], variants
        cdef tuple src
        cdef object s
        for i in range(n):
            at = self.find(PyTuple_GET_ITEM(u.src, i))
            if at >= 0:
                mask |= <int>self.masks[at]
        for i in range(n):
            at = self.find(PyTuple_GET_ITEM(u.src, i))
            if at >= 0:
                part = self.masks[at]
                sources[i] = self.made[at]
                places[i] = self.projected(mask, part)
        for j in range(len(self.projected(mask, mask))):
            src = PyTuple_New(n)
            for i in range(n):
                if sources[i] is None:
                    s = <object>PyTuple_GET_ITEM(u.src, i)
                else:
                    variants = <list>sources[i]
                    s = variants[<Py_ssize_t>(<list>places[i])[j]]
                Py_INCREF(s)
                PyTuple_SET_ITEM(src, i, s)
            made.append(rebuild(u, src))
        self.enter(u, mask, made)
        return made


def copies(UOp root not None, list ranges, list values):
    """``root`` at every combination of ``values`` (a list of UOps for each of ``ranges``), the last running fastest.

    As many ``substitute``s in one traversal: what depends on none of the ranges is shared, and what depends on some of
    them is made once for each combination of those.  None of the ranges may be closed inside ``root``.
    """
    cdef Copier copier = Copier()
    cdef Py_ssize_t k, at
    cdef UOp u
    cdef tuple wanted = tuple(ranges)
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"{len(ranges)} ranges are more than {MAX_RANGES}")
    copier.sizes = [len(v) for v in values]
    for k in range(len(wanted)):
        copier.enter(<UOp>wanted[k], 1 << k, values[k])
    for u in depending(root, wanted):
        if copier.find(<PyObject*>u) < 0:
            copier.copy(u)
    whole = (1 << len(wanted)) - 1
    at = copier.find(<PyObject*>root)
    if at < 0:
        return [root] * len(copier.projected(whole, whole))
    return [copier.made[at][place] for place in copier.projected(whole, copier.masks[at])]


def replace_depending(UOp root not None, tuple ranges, dict mapping):
    """``root.substitute(mapping)`` for nodes at which one of ``ranges`` is open: no others are visited."""
    return replace_in(root, depending(root, ranges), mapping)


def replace_newer(UOp root not None, dict place, dict mapping):
    """``root.substitute(mapping)``, where nothing is visited that stands before all that is replaced: see ``newer``."""
    cdef Py_ssize_t least = len(place)
    for u in mapping:
        least = min(least, <Py_ssize_t>place.get(u, 0))
    return replace_in(root, newer(root, place, least), mapping) if mapping else root


cdef UOp replace_in(UOp root, list order, dict mapping):
    """``root`` with the keys of ``mapping`` replaced where they are among ``order``: its nodes, or the last of them."""
    cdef PtrMap memo
    cdef list keep = []
    cdef UOp u, v
    if not order:
        return root
    ptrmap_init(&memo, len(order))
    try:
        for u in order:
            to = mapping.get(u)
            if type(to) is UOp:
                v = <UOp>to
            else:
                v = over(u, &memo)
                if to is not None:
                    v = <UOp?>to(v)
            keep.append(v)
            ptrmap_set(&memo, <PyObject*>u, <PyObject*>v)
        return v
    finally:
        ptrmap_free(&memo)


def replace_all(UOp root not None, dict mapping):
    """``root`` with the keys of ``mapping`` replaced by its values, and in these again.  No value may need its key."""
    cdef PtrMap memo
    cdef Stack st
    cdef list keep = []
    cdef UOp u, v
    cdef PyObject* p
    cdef Py_ssize_t before
    ptrmap_init(&memo, 256)
    stack_init(&st)
    try:
        push(&st, <PyObject*>root)
        while st.size > 0:
            p = st.items[st.size - 1]
            before = st.size
            if ptrmap_get(&memo, p) == NULL:
                u = <UOp>p
                to = mapping.get(u)
                if to is None:
                    push_missing(&st, &memo, u)
                    if st.size == before:
                        v = over(u, &memo)
                        keep.append(v)
                        ptrmap_set(&memo, p, <PyObject*>v)
                elif ptrmap_get(&memo, <PyObject*><UOp?>to) == NULL:
                    push(&st, <PyObject*>to)
                else:
                    ptrmap_set(&memo, p, ptrmap_get(&memo, <PyObject*>to))
            if st.size == before:
                st.size -= 1
        return <object>ptrmap_get(&memo, <PyObject*>root)
    finally:
        stack_free(&st)
        ptrmap_free(&memo)


# ---- nodes replaced together ---------------------------------------------------------------------

cdef class Group:
    """Nodes that are replaced together, once the sources of all of them are done."""
    cdef tuple nodes
    cdef UOp asked               # the node for which this was begun


def replace_groups(UOp root not None, list groups, finish, refuse):
    """``root`` with the nodes of each of ``groups`` (disjoint, not empty) replaced together.

    ``finish(group, rebuilt)`` is told a group and its nodes over their replaced sources, and gives a replacement for
    each.  ``refuse(first, second)`` raises what is to be said of a group of which one node uses another.
    """
    cdef PtrMap memo, member
    cdef Stack st
    cdef list keep = [], rebuilt
    cdef Group group
    cdef UOp u, v
    cdef PyObject* p
    cdef Py_ssize_t before
    ptrmap_init(&memo, 256)
    ptrmap_init(&member, 64)
    stack_init(&st)
    try:
        for nodes in groups:
            group = Group()
            group.nodes = tuple(nodes)
            keep.append(group)
            for u in group.nodes:
                ptrmap_set(&member, <PyObject*>u, <PyObject*>group)
        push(&st, <PyObject*>root)
        while st.size > 0:
            p = st.items[st.size - 1]
            if ptrmap_get(&memo, p) != NULL:
                st.size -= 1
                continue
            u = <UOp>p
            before = st.size
            p = ptrmap_get(&member, <PyObject*>u)
            if p == NULL:
                push_missing(&st, &memo, u)
                if st.size == before:
                    v = over(u, &memo)
                    keep.append(v)
                    ptrmap_set(&memo, <PyObject*>u, <PyObject*>v)
                continue
            group = <Group>p
            if group.asked is None:
                group.asked = u
            elif group.asked is not u:
                refuse(group.asked, u)
            for v in group.nodes:
                push_missing(&st, &memo, v)
            if st.size == before:
                rebuilt = [over(<UOp>x, &memo) for x in group.nodes]
                for u, v in zip(group.nodes, finish(group.nodes, rebuilt)):
                    keep.append(v)
                    ptrmap_set(&memo, <PyObject*>u, <PyObject*>v)
        return <object>ptrmap_get(&memo, <PyObject*>root)
    finally:
        stack_free(&st)
        ptrmap_free(&member)
        ptrmap_free(&memo)


cdef inline int push_missing(Stack* st, PtrMap* memo, UOp u) except -1:
    """Put the sources of ``u`` that the memo does not know on the stack."""
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(u.src)):
        if ptrmap_get(memo, PyTuple_GET_ITEM(u.src, i)) == NULL:
            push(st, PyTuple_GET_ITEM(u.src, i))
    return 0


cdef UOp over(UOp u, PtrMap* memo):
    """``u`` over its sources' replacements; what the memo does not know stands for itself."""
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(u.src)
    cdef PyObject* r
    cdef tuple src
    cdef bint changed = False
    for i in range(n):
        r = ptrmap_get(memo, PyTuple_GET_ITEM(u.src, i))
        if r != NULL and r != PyTuple_GET_ITEM(u.src, i):
            changed = True
            break
    if not changed:
        return u
    src = PyTuple_New(n)
    for i in range(n):
        r = ptrmap_get(memo, PyTuple_GET_ITEM(u.src, i))
        if r == NULL:
            r = PyTuple_GET_ITEM(u.src, i)
        Py_INCREF(<object>r)
        PyTuple_SET_ITEM(src, i, <object>r)
    return rebuild(u, src)
