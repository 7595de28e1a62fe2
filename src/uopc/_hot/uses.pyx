# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""What is used where in a LINEAR list: which values get a name, and what stands in which loop.

A value gets a name if it is used twice, used inside another loop than it is computed in, or read before it is
overwritten.  All of it is found in passes over the list, whose nodes are numbers: the places where they stand.
"""
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from uopc._hot.ptrmap cimport ptrmap_free, ptrmap_get, ptrmap_init, ptrmap_set
from uopc._hot.uop cimport UOp

from uopc.ops import Ops

cdef int C_BUFFER = Ops.BUFFER, C_ALLOC = Ops.ALLOC, C_CONST = Ops.CONST, C_ADD = Ops.ADD, C_AFTER = Ops.AFTER
cdef int C_INDEX = Ops.INDEX, C_LOAD = Ops.LOAD, C_STORE = Ops.STORE, C_RANGE = Ops.RANGE, C_END = Ops.END


cpdef UOp place_of(UOp u):
    """The BUFFER or ALLOC that a LOAD, a STORE, an INDEX or an AFTER is about."""
    while u.code != C_BUFFER and u.code != C_ALLOC:
        if PyTuple_GET_SIZE(u.src) == 0:
            raise ValueError(f"{u!r} is no memory: an INDEX is of a BUFFER or ALLOC, or of one AFTER something")
        u = <UOp>PyTuple_GET_ITEM(u.src, 0)
    return u


cpdef tuple spread(UOp at):
    """A vector of addresses as a base and constant steps, or None: then no vector is made of it."""
    cdef UOp base, steps
    cdef int side
    if at.code == C_ADD and at.info.count > 1:
        for side in range(2):
            base, steps = <UOp>PyTuple_GET_ITEM(at.src, side), <UOp>PyTuple_GET_ITEM(at.src, 1 - side)
            if base.info.count == 1 and steps.code == C_CONST:
                return base, steps.arg if type(steps.arg) is tuple else (steps.arg,) * steps.info.count
    return None


cdef int* zeros(Py_ssize_t n) except NULL:
    cdef int* p = <int*>PyMem_Calloc(n + 1, sizeof(int))
    if p == NULL:
        raise MemoryError()
    return p


cdef class Uses:
    """Uses of the nodes of a LINEAR list."""
    def __cinit__(self, tuple statements):
        cdef int k
        self.statements = statements
        self.n = len(statements)
        ptrmap_init(&self.place, self.n)
        self.loop = zeros(self.n)
        self.uses = zeros(self.n)
        self.user = zeros(self.n)
        self.overwritten = zeros(self.n)
        self.printed = zeros(self.n)
        self.ends = zeros(self.n)
        for k in range(self.n):
            ptrmap_set(&self.place, PyTuple_GET_ITEM(statements, k), <PyObject*><uint64_t>(k + 1))
            self.user[k] = -1
        self.find_loops()
        self.count()
        self.find_overwritten()
        self.find_printed()

    def __dealloc__(self):
        ptrmap_free(&self.place)
        PyMem_Free(self.loop)
        PyMem_Free(self.uses)
        PyMem_Free(self.user)
        PyMem_Free(self.overwritten)
        PyMem_Free(self.printed)
        PyMem_Free(self.ends)

    cdef inline UOp at(self, int k):
        return <UOp>PyTuple_GET_ITEM(self.statements, k)

    cdef inline int number(self, object u) noexcept:
        """The place of a node, -1 for what stands nowhere: constants."""
        return <int><uint64_t>ptrmap_get(&self.place, <PyObject*>u) - 1

    cdef int find_loops(self) except -1:
        cdef list open_ = []
        cdef int k, inside = -1
        cdef UOp u
        for k in range(self.n):
            u = self.at(k)
            self.loop[self.number(u)] = inside
            if u.code == C_RANGE:
                open_.append(inside)
                inside = k
            elif u.code == C_END:
                for r in u.src[1:]:
                    self.ends[self.number(r)] = k
                inside = open_.pop()
        return 0

    # -- uses

    cdef int count(self) except -1:
        cdef int i, k, gate, times
        cdef Py_ssize_t n
        cdef bint by_lane
        cdef UOp u, s
        for i in range(self.n - 1, -1, -1):
            u = self.at(i)
            k = self.number(u)
            if u.code == C_AFTER:
                self.use(u.src[0], self.user_or_self(k), max(self.uses[k], 1))
                continue
            if u.code == C_INDEX:
                self.count_address(u, k)
                continue
            n = PyTuple_GET_SIZE(u.src)
            gate = 1 if u.code == C_LOAD else 2 if u.code == C_STORE else n
            by_lane = False  # each lane prints its gate and its address
            for times in range(gate, n):
                by_lane |= (<UOp>PyTuple_GET_ITEM(u.src, times)).info.count > 1
            for times in range(n):
                s = <UOp>PyTuple_GET_ITEM(u.src, times)
                twice = by_lane and (times >= gate or s.code == C_INDEX or s in u.src[gate:])
                self.use(s, k, 2 if twice else 1)
        return 0

    cdef int count_address(self, UOp index, int k) except -1:
        """Each user of an INDEX prints its address, and each lane that is accessed by itself its own."""
        cdef int users = max(self.uses[k], 1)
        cdef UOp at = <UOp>index.src[1]
        steps = spread(at)
        if steps is not None:
            return self.use(<UOp>(<tuple>steps)[0], self.user_or_self(k), 2 * users)
        return self.use(at, self.user_or_self(k), users if at.info.count == 1 else 2 * users)

    cdef inline int user_or_self(self, int k) noexcept:
        return self.user[k] if self.user[k] >= 0 else k

    cdef int use(self, UOp s, int user, int times) except -1:
        cdef int k = self.number(s)
        if k >= 0:
            self.uses[k] += times
            self.user[k] = user
        return 0

    # -- where texts are evaluated

    cdef int find_overwritten(self) except -1:
        cdef dict stored = {}, names = {}  # by (op, slot): two nodes with one slot are one memory
        cdef int k
        cdef UOp u, memory
        for k in range(self.n - 1, -1, -1):
            u = self.at(k)
            if u.code != C_LOAD and u.code != C_STORE:
                continue
            memory = place_of(u)
            name = names.get(memory)
            if name is None:
                name = names[memory] = (memory.code, memory.arg.slot)
            if u.code == C_STORE:
                stored[name] = k
            else:
                self.overwritten[self.number(u)] = stored.get(name, self.n)
        return 0

    cdef int find_printed(self) except -1:
        """The end of a loop is evaluated at each of its turns."""
        cdef int i, k, user
        cdef UOp u
        for k in range(self.n):
            self.printed[k] = -1
        for i in range(self.n - 1, -1, -1):
            k = self.number(self.at(i))
            user = self.user[k]
            if user < 0:
                self.printed[k] = 0
                continue
            u = self.at(user)
            if u.code == C_RANGE:
                self.printed[k] = self.ends[user]
            elif self.uses[k] == 1 and u.code != C_STORE and self.printed[user] >= 0:
                self.printed[k] = self.printed[user]
            else:
                self.printed[k] = user
        return 0

    # -- answers

    cdef int fate(self, UOp u) except -1:
        """What becomes of the text of a value: F_UNUSED, F_INLINE where it may stand in its user's (it is used once, in
        its loop, and read in time), or else F_NAMED."""
        cdef int k = self.number(u)
        if self.uses[k] == 0:
            return F_UNUSED
        if self.uses[k] != 1 or self.loop[k] != self.loop[self.user[k]]:
            return F_NAMED
        return F_INLINE if u.code != C_LOAD or self.printed[k] <= self.overwritten[k] else F_NAMED

    def loop_of(self, u):
        """The RANGE of the innermost loop that ``u`` stands in, or None."""
        cdef int k = self.loop[self.number(u)]
        return self.at(k) if k >= 0 else None

    def lanes(self, list nodes):
        """How many lanes ``nodes`` have, by the loop that they stand in: {RANGE or None: lanes}."""
        cdef int* count = zeros(self.n)
        cdef int k
        cdef int outside = 0
        cdef UOp u
        cdef dict out = {}
        for u in nodes:
            k = self.loop[self.number(u)]
            if k >= 0:
                count[k] += max(u.info.count, 1)
            else:
                outside += max(u.info.count, 1)
        for k in range(self.n):
            if count[k]:
                out[self.at(k)] = count[k]
        PyMem_Free(count)
        if outside:
            out[None] = outside
        return out

    def around(self, r):
        """What stands in the loop of the RANGE ``r`` at any depth, itself included, and what stands outside it."""
        cdef int k = self.number(r)
        cdef int end = self.ends[k]
        return self.statements[k:end], self.statements[:k] + self.statements[end:]

    def accessed(self):
        """The memories that are stored to, and those of which more is accessed than the one element that they have."""
        cdef set written = set(), arrays = set()
        cdef UOp u, memory
        for u in self.statements:
            if u.code == C_STORE:
                written.add(place_of(u))
            elif u.code == C_INDEX:
                memory = place_of(u)
                if u.info is not memory.info or (<UOp>PyTuple_GET_ITEM(u.src, 1)).info.count > 1 \
                        or any([n != 1 for n in memory.shape_]):
                    arrays.add(memory)
        return written, arrays
