# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Putting the nodes of a program in order: which loop each stands in, what must come before what, and the sort.

Nodes and loops are numbers here, and what is known of them stands in arrays.  Loop 0 is the body of the function.
Which loop encloses which, what goes first where nothing decides, and what to say of programs that have no order, is
given by ``uopc.linearize``.
"""
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from uopc._hot.ptrmap cimport PtrMap, ptrmap_free, ptrmap_get, ptrmap_init, ptrmap_set
from uopc._hot.uop cimport UOp

from uopc.ops import Ops

cdef int C_CONST = Ops.CONST, C_SINK = Ops.SINK, C_RANGE = Ops.RANGE, C_END = Ops.END, C_LOAD = Ops.LOAD
cdef int C_STORE = Ops.STORE, C_BUFFER = Ops.BUFFER, C_ALLOC = Ops.ALLOC, C_AFTER = Ops.AFTER, C_ADD = Ops.ADD


# ---- memory --------------------------------------------------------------------------------------

def accesses(list order):
    """The LOADs and the STOREs of each memory: {(op, slot): (loads, stores)}, each in the order given."""
    cdef dict out = {}, known = {}
    cdef UOp u, memory
    for u in order:
        if u.code != C_LOAD and u.code != C_STORE:
            continue
        memory = <UOp>PyTuple_GET_ITEM(u.src, 0)
        while memory.code != C_BUFFER and memory.code != C_ALLOC:
            memory = <UOp>memory.src[0]
        pair = known.get(memory)
        if pair is None:
            pair = known[memory] = out.setdefault((memory.op, memory.arg.slot), ([], []))
        (<list>(<tuple>pair)[u.code == C_STORE]).append(u)
    return out


cdef class Span:
    """The address of an INDEX as a base (None: 0) and a constant, and how many elements follow; 0 if not known."""
    cdef object base
    cdef int64_t first, size


cdef Span span(UOp index):
    cdef UOp at = <UOp>index.src[1], memory = <UOp>index.src[0]
    cdef Span out = Span()
    while memory.code == C_AFTER:
        memory = <UOp>memory.src[0]
    out.base = at
    out.size = index.info.count // memory.info.count if at.info.count == 1 else 0
    if at.code == C_CONST and out.size:
        out.base = None
        out.first = at.arg
    elif at.code == C_ADD and (<UOp>at.src[1]).code == C_CONST and out.size:
        out.base = at.src[0]
        out.first = (<UOp>at.src[1]).arg
    return out


cdef inline bint apart(Span a, Span b) noexcept:
    """Whether two places are sure to be different: a constant distance apart, and none reaches the other."""
    return a.base is b.base and a.size > 0 and b.size > 0 and (
        a.first + a.size <= b.first or b.first + b.size <= a.first
    )


def overwrites(list order, list shared):
    """Each LOAD with each STORE that may write to the same place and that the LOAD does not come after.

    order: a graph, sources before users.  shared: (loads, stores) of each memory that has both.
    """
    cdef PtrMap behind           # node -> the STOREs that it comes after, a bit for each
    cdef dict bits = {}
    cdef list out = [], keep = [], spans
    cdef UOp u
    cdef PyObject* found
    cdef object seen
    cdef Span at
    cdef Py_ssize_t i
    for _, stores in shared:
        for u in stores:
            bits[u] = 1 << len(bits)
    ptrmap_init(&behind, len(order))
    try:
        for u in order:
            seen = bits.get(u) if u.code == C_STORE else None
            for i in range(PyTuple_GET_SIZE(u.src)):
                found = ptrmap_get(&behind, PyTuple_GET_ITEM(u.src, i))
                if found != NULL and found != <PyObject*>seen:
                    seen = <object>found if seen is None else seen | <object>found
            if seen is not None:
                keep.append(seen)
                ptrmap_set(&behind, <PyObject*>u, <PyObject*>seen)
        for loads, stores in shared:
            spans = [span(<UOp>(<UOp>u).src[0]) for u in stores]
            every = 0
            for u in stores:
                every |= bits[u]
            for u in loads:
                found = ptrmap_get(&behind, <PyObject*>u)
                missing = every if found == NULL else every & ~<object>found
                if not missing:
                    continue
                at = span(<UOp>u.src[0])
                for i in range(len(spans)):
                    if not apart(at, <Span>spans[i]) and missing & bits[stores[i]]:
                        out.append((u, stores[i]))
    finally:
        ptrmap_free(&behind)
    return out


# ---- order ---------------------------------------------------------------------------------------

cdef struct Edge:
    int before, after


cdef class Program:
    """The nodes of a program, the loops that they stand in, and what comes before what."""
    cdef list order
    cdef int nodes, loops
    cdef PtrMap place            # node -> 1 + its number
    cdef PtrMap loop_of          # RANGE -> the number of its loop
    cdef PtrMap deepest          # tuple of RANGEs -> 1 + the innermost of their loops
    cdef int* home               # node -> loop, -1: not in the list
    cdef int* around             # node -> the loop whose body it is, -1: none
    cdef int64_t* key            # node -> smaller goes first
    cdef int* waiting            # node -> how many that must come before it are to come
    cdef int* first_edge         # node -> its first in `users`; as many numbers as nodes and one more
    cdef int* users              # nodes that come after it
    cdef int* first_item         # loop -> its first in `items`; as many numbers as loops and one more
    cdef int* items              # nodes by the loop that they stand in
    cdef int* parent             # loop -> the loop around it
    cdef int* depth
    cdef int* range_of           # loop -> the number of its RANGE
    cdef int* mark
    cdef Edge* edges
    cdef Py_ssize_t edge_count, edge_room

    def __cinit__(self, list order, dict parents, dict depths):
        cdef int k
        cdef UOp u
        self.order = order
        self.nodes = len(order)
        self.loops = 1 + len(parents)
        ptrmap_init(&self.place, self.nodes)
        ptrmap_init(&self.loop_of, self.loops)
        ptrmap_init(&self.deepest, 64)
        self.home = self.numbers(self.nodes)
        self.around = self.numbers(self.nodes)
        self.waiting = self.numbers(self.nodes)
        self.first_edge = self.numbers(self.nodes + 1)
        self.items = self.numbers(self.nodes)
        self.first_item = self.numbers(self.loops + 1)
        self.parent = self.numbers(self.loops)
        self.depth = self.numbers(self.loops)
        self.range_of = self.numbers(self.loops)
        self.mark = self.numbers(self.loops)
        self.key = <int64_t*>PyMem_Malloc((self.nodes + 1) * sizeof(int64_t))
        if self.key == NULL:
            raise MemoryError()
        for k in range(self.nodes):
            self.around[k] = -1
            ptrmap_set(&self.place, <PyObject*>order[k], <PyObject*><uint64_t>(k + 1))
        for k, u in enumerate(parents, 1):
            ptrmap_set(&self.loop_of, <PyObject*>u, <PyObject*><uint64_t>k)
            self.range_of[k] = self.number(u)
            self.depth[k] = depths[u]
        for k, (u, outer) in enumerate(parents.items(), 1):
            self.parent[k] = self.loop(outer)

    def __dealloc__(self):
        ptrmap_free(&self.place)
        ptrmap_free(&self.loop_of)
        ptrmap_free(&self.deepest)
        PyMem_Free(self.home)
        PyMem_Free(self.around)
        PyMem_Free(self.key)
        PyMem_Free(self.waiting)
        PyMem_Free(self.first_edge)
        PyMem_Free(self.users)
        PyMem_Free(self.first_item)
        PyMem_Free(self.items)
        PyMem_Free(self.parent)
        PyMem_Free(self.depth)
        PyMem_Free(self.range_of)
        PyMem_Free(self.mark)
        PyMem_Free(self.edges)

    cdef int* numbers(self, Py_ssize_t n) except NULL:
        """Room for ``n`` numbers, 0 at first."""
        cdef int* p = <int*>PyMem_Malloc((n + 1) * sizeof(int))
        if p == NULL:
            raise MemoryError()
        memset(p, 0, n * sizeof(int))
        return p

    cdef inline int number(self, object node) noexcept:
        return <int><uint64_t>ptrmap_get(&self.place, <PyObject*>node) - 1

    cdef inline int loop(self, object r) noexcept:
        """The number of the loop over a RANGE, or of the function for None."""
        return <int><uint64_t>ptrmap_get(&self.loop_of, <PyObject*>r) if r is not None else 0

    # -- where each node stands

    cdef int find_homes(self) except -1:
        cdef int k
        cdef UOp u
        for k in range(self.nodes):
            u = <UOp>self.order[k]
            if u.code == C_CONST or u.code == C_SINK:
                self.home[k] = -1
            elif u.code == C_END:
                self.home[k] = self.parent[self.loop(u.src[1])]
            elif u.code == C_RANGE:
                self.home[k] = self.parent[self.loop(u)]
            else:
                self.home[k] = self.innermost(u, self.around[k])
        return 0

    cdef int innermost(self, UOp u, int around) except -1:
        """The innermost of the loops that ``u`` depends on, and of the one whose body it is.  ValueError where they
        are not inside one another.
        """
        cdef Py_ssize_t i, n = PyTuple_GET_SIZE(u.ranges_)
        cdef PyObject* found
        cdef int best = around if around > 0 else 0, at, inside = 0, wanted = n
        if around < 0:
            found = ptrmap_get(&self.deepest, <PyObject*>u.ranges_)
            if found != NULL:
                return <int><uint64_t>found - 1
        for i in range(n):
            at = self.loop(<object>PyTuple_GET_ITEM(u.ranges_, i))
            self.mark[at] = 1
            if self.depth[at] > self.depth[best]:
                best = at
        if around > 0:
            wanted += not self.mark[around]
            self.mark[around] = 1
        at = best
        while at != 0:
            inside += self.mark[at]
            at = self.parent[at]
        for i in range(n):
            self.mark[self.loop(<object>PyTuple_GET_ITEM(u.ranges_, i))] = 0
        if around > 0:
            self.mark[around] = 0
        if inside != wanted:
            loops = [*u.ranges_] + ([self.order[self.range_of[around]]] if around > 0 else [])
            raise ValueError(f"{u!r} is inside loops that are not inside one another: {', '.join(map(repr, loops))}")
        if around < 0:
            ptrmap_set(&self.deepest, <PyObject*>u.ranges_, <PyObject*><uint64_t>(best + 1))
        return best

    # -- what comes before what

    cdef int order_pair(self, int before, int after) except -1:
        cdef Edge* bigger
        if self.edge_count == self.edge_room:
            self.edge_room = 2 * self.edge_room + 256
            bigger = <Edge*>PyMem_Realloc(self.edges, self.edge_room * sizeof(Edge))
            if bigger == NULL:
                raise MemoryError()
            self.edges = bigger
        self.edges[self.edge_count].before = before
        self.edges[self.edge_count].after = after
        self.edge_count += 1
        self.first_edge[before + 1] += 1
        self.waiting[after] += 1
        return 0

    cdef int source(self, int k, UOp s) except -1:
        """Node ``k`` uses ``s``: in the loop where ``s`` stands, ``k`` or the loop around it comes after ``s``."""
        cdef int t = self.number(s), region = self.home[t], after = k, at = self.home[k]
        cdef int before = self.range_of[self.loop(s.src[1])] if s.code == C_END else t
        while at != region:
            if at == 0:
                raise ValueError(f"{self.order[k]!r} uses {s!r} outside the loop it belongs to")
            after = self.range_of[at]
            at = self.parent[at]
        return self.order_pair(before, after)

    cdef int sources(self) except -1:
        cdef int k
        cdef Py_ssize_t i
        cdef UOp u, s
        for k in range(self.nodes):
            u = <UOp>self.order[k]
            if self.home[k] < 0 or u.code == C_END:
                continue
            for i in range(PyTuple_GET_SIZE(u.src)):
                s = <UOp>PyTuple_GET_ITEM(u.src, i)
                if s.code == C_SINK:
                    for statement in statements((s,)):
                        self.source(k, <UOp>statement)
                elif s.code != C_CONST and s.code != C_RANGE:
                    self.source(k, s)
        return 0

    cdef int meet(self, int a, int b) except -1:
        """``a`` comes before ``b``: in the innermost loop that holds both, each may be a loop that holds it."""
        cdef int at_a = self.home[a], at_b = self.home[b]
        while at_a != at_b:
            if self.depth[at_a] >= self.depth[at_b]:
                a, at_a = self.range_of[at_a], self.parent[at_a]
            else:
                b, at_b = self.range_of[at_b], self.parent[at_b]
        return self.order_pair(a, b) if a != b else 0

    cdef int gather(self) except -1:
        """Edges by the node that comes before, and nodes by their loops: both were counted, one place further on."""
        cdef int* next_
        cdef int k
        cdef Py_ssize_t e
        for k in range(self.nodes):
            if self.home[k] >= 0 and (<UOp>self.order[k]).code != C_END:
                self.first_item[self.home[k] + 1] += 1
            self.first_edge[k + 1] += self.first_edge[k]
        for k in range(self.loops):
            self.first_item[k + 1] += self.first_item[k]
        self.users = self.numbers(self.edge_count)
        next_ = self.numbers(max(self.nodes, self.loops))
        for e in range(self.edge_count):
            k = self.edges[e].before
            self.users[self.first_edge[k] + next_[k]] = self.edges[e].after
            next_[k] += 1
        memset(next_, 0, self.loops * sizeof(int))
        for k in range(self.nodes):
            if self.home[k] >= 0 and (<UOp>self.order[k]).code != C_END:
                self.items[self.first_item[self.home[k]] + next_[self.home[k]]] = k
                next_[self.home[k]] += 1
        PyMem_Free(next_)
        return 0

    # -- the sort

    cdef int sort(self, int loop, int* heap) noexcept:
        """The items of a loop in an order that respects what comes before what, smaller keys first, in their places.
        How many were left over.
        """
        cdef int low = self.first_item[loop], high = self.first_item[loop + 1], at, k, e, size = 0, done = low
        for at in range(low, high):
            if self.waiting[self.items[at]] == 0:
                size = heap_push(heap, size, self.items[at], self.key)
        while size > 0:
            k = heap[0]
            size = heap_pop(heap, size, self.key)
            self.items[done] = k
            done += 1
            for e in range(self.first_edge[k], self.first_edge[k + 1]):
                self.waiting[self.users[e]] -= 1
                if self.waiting[self.users[e]] == 0:
                    size = heap_push(heap, size, self.users[e], self.key)
        return high - done

    cdef dict stuck(self, int loop):
        """The items of a loop that wait for one another, each with those that come after it."""
        cdef int k, e
        cdef dict out = {}
        for k in range(self.nodes):
            if self.home[k] == loop and self.waiting[k] > 0:
                after = [self.order[self.users[e]] for e in range(self.first_edge[k], self.first_edge[k + 1])]
                out[self.order[k]] = after
        return out

    cdef list listed(self, list ends, refuse):
        """All nodes in their order; each loop is sorted when it is opened, and closed by its END of ``ends``."""
        cdef list out = [], loops = [0], places = [self.first_item[0]]
        cdef int loop, at
        cdef int* heap = self.numbers(self.nodes)
        cdef UOp u
        try:
            if self.sort(0, heap):
                refuse(self.stuck(0))
            while loops:
                loop = loops[len(loops) - 1]
                at = places[len(places) - 1]
                if at == self.first_item[loop + 1]:
                    loops.pop()
                    places.pop()
                    if loop:
                        out.append(ends[loop - 1])
                    continue
                places[len(places) - 1] = at + 1
                u = <UOp>self.order[self.items[at]]
                out.append(u)
                if u.code == C_RANGE:
                    loop = self.loop(u)
                    if self.sort(loop, heap):
                        refuse(self.stuck(loop))
                    loops.append(loop)
                    places.append(self.first_item[loop])
        finally:
            PyMem_Free(heap)
        return out


cdef int heap_push(int* heap, int size, int k, int64_t* key) noexcept:
    """Enter ``k`` in a heap with the smallest key on top; the new size."""
    cdef int at = size, up
    while at > 0:
        up = (at - 1) // 2
        if key[heap[up]] <= key[k]:
            break
        heap[at] = heap[up]
        at = up
    heap[at] = k
    return size + 1


cdef int heap_pop(int* heap, int size, int64_t* key) noexcept:
    """Take the top away; the new size."""
    cdef int k = heap[size - 1], at = 0, down
    size -= 1
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and key[heap[down + 1]] < key[heap[down]]:
            down += 1
        if key[heap[down]] >= key[k]:
            break
        heap[at] = heap[down]
        at = down
    heap[at] = k
    return size


cpdef list statements(tuple uops):
    """``uops`` with the sources of SINKs, which are no statements themselves, in their places."""
    cdef list out = [], stack = list(uops[::-1])
    cdef UOp u
    while stack:
        u = <UOp>stack.pop()
        if u.code == C_SINK:
            stack.extend(u.src[::-1])
        else:
            out.append(u)
    return out


def arrange(list order, dict ends, dict parents, dict depths, dict inside, list first, list last, list pairs, refuse):
    """The nodes of a program as a list: each but CONSTs and SINKs behind its sources, in the innermost loop that it
    depends on or whose body it is.

    order: the graph, sources before users.  ends: the END of each RANGE.  parents, depths: of each RANGE, that of the
    loop around it (None: none) and how many there are.  inside: the RANGE whose body a statement is.
    first, last: what goes first and last where nothing else decides; else the order of the graph does, and a loop
    stands where its END does.
    pairs: (a, b), a comes before b.
    ValueError for what stands inside loops that are not inside one another or is used outside its loop;
    ``refuse(items)`` raises what is to be said of nodes that wait for one another, given as {node: those after it}.
    """
    cdef Program program = Program(order, parents, depths)
    cdef int64_t step = 1 + max([len((<UOp>end).src) for end in ends.values()], default=0)  # room for the RANGEs
    cdef int64_t late = step * len(order)
    cdef int k
    cdef UOp u
    for k in range(program.nodes):
        program.key[k] = step * k + late
    for u in first:
        program.key[program.number(u)] -= late
    for u in last:
        program.key[program.number(u)] += late
    for u, end in ends.items():
        program.key[program.number(u)] = program.key[program.number(end)] + (<UOp>end).src.index(u)
    for u, r in inside.items():
        program.around[program.number(u)] = program.loop(r)
    program.find_homes()
    program.sources()
    for a, b in pairs:
        program.meet(program.number(a), program.number(b))
    program.gather()
    return program.listed([ends[r] for r in parents], refuse)
