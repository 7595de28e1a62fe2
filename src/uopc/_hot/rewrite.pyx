# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Rewriting of graphs: one iterative, memoised traversal, and rules that are declared in Python and matched in Cython.

``Rewriter`` is the traversal.  It visits sources before users, gives each node whose sources are final to ``step``,
and rewrites what comes back until nothing changes.  It never recurses: neither the depth of a graph nor that of what
rules build is limited by the C stack.  ``PatternMatcher`` compiles a table of (Pattern, function) into arrays by op;
the compiled simplifier is another subclass of ``Rewriter``.
"""
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint64_t
from libc.string cimport memset

from uopc._hot.ptrmap cimport ptrmap_free, ptrmap_get, ptrmap_init, ptrmap_set
from uopc._hot.stack cimport Stack, push, stack_free, stack_init
from uopc._hot.uop cimport UOp, rebuild, same_arg

from itertools import product

from uopc.dtype import DType
from uopc.ops import TABLE, Flags, Ops

cdef extern from "Python.h":
    object PyObject_Vectorcall(object fn, PyObject** args, size_t nargs, PyObject* kwnames)

cdef extern from *:
    # nothing here waits for what it asks for
    void prefetch "__builtin_prefetch"(const void*) noexcept nogil

cdef enum:
    MAX_VARIANTS = 64      # orders of the sources of one pattern
    DIRECT_STEPS = 32      # rewrites of one node before it takes the slower path, which sees circles
    # Replacements that wait for replacements. An endless rewrite without a circle has no bound on these and every
    # other has (a node waits for finitely many others), so this is the one number to watch. 100,000-deep chains are
    # legitimate.
    MAX_WAITING = 1 << 18
    RECENT = 8             # rules named in the message


include "memo.pxi"

# ---- the traversal -------------------------------------------------------------------------------

cdef inline PyObject* tag(PyObject* p) noexcept nogil:
    return <PyObject*>(<uint64_t>p | 1)


cdef inline PyObject* untag(PyObject* p) noexcept nogil:
    return <PyObject*>(<uint64_t>p & ~<uint64_t>1)


cdef inline bint is_final(PyObject* p) noexcept nogil:
    return p != NULL and not <uint64_t>p & 1


cdef class Rewriter:
    def __cinit__(self):
        self.keep = []
        memo_open(&self.memo)

    def __dealloc__(self):
        memo_close(&self.memo)

    cdef UOp step(self, UOp u):
        raise NotImplementedError

    cdef object last_rules(self):
        return "a built-in rule"

    cdef int reset(self) except -1:
        """Forget everything; after an error the memo holds nodes that wait for what will never come."""
        memo_close(&self.memo)
        self.keep = []
        memo_open(&self.memo)
        return 0

    cdef UOp run(self, UOp root):
        """The final form of ``root``.  Not reentrant: the caller looks at ``busy``."""
        cdef Stack st
        cdef UOp out
        self.busy = True
        try:
            stack_init(&st)
            try:
                self.keep.append(root)
                push(&st, <PyObject*>root)
                drain(self, &st)
                out = <UOp>memo_get(&self.memo, <PyObject*>root)
            finally:
                stack_free(&st)
        except BaseException:
            self.reset()
            raise
        finally:
            self.busy = False
        return out


cdef int drain(Rewriter rw, Stack* st) except -1:
    """Work until the stack is empty: then the memo knows the final form of everything that was on it."""
    cdef Memo* memo = &rw.memo
    cdef PyObject* p
    cdef PyObject* found
    cdef Py_ssize_t i, waiting = 0
    cdef bint ready, changed
    cdef tuple src
    while st.size > 0:
        p = st.items[st.size - 1]
        found = memo_get(memo, p)
        if found != NULL:
            if not is_final(found):  # it waited for its replacement, which lay above it on the stack
                found = memo_get(memo, untag(found))
                if not is_final(found):
                    raise RecursionError(f"endless rewriting: {<UOp>p!r} turns into itself by {rw.last_rules()}")
                memo_set(memo, p, found)
                waiting -= 1
            st.size -= 1
            continue
        src = (<UOp>p).src
        ready = True
        changed = False
        for i in range(PyTuple_GET_SIZE(src) - 1, -1, -1):
            found = memo_get(memo, PyTuple_GET_ITEM(src, i))
            if not is_final(found):
                push(st, PyTuple_GET_ITEM(src, i))
                prefetch(<PyObject*>(<UOp>PyTuple_GET_ITEM(src, i)).src)  # looked at when it is popped
                ready = False
            elif found != PyTuple_GET_ITEM(src, i):
                changed = True
        if not ready:
            continue
        waiting += settle(rw, st, <UOp>p, changed)
        if waiting > MAX_WAITING:
            raise RecursionError(f"endless rewriting: {MAX_WAITING} replacements of replacements, by {rw.last_rules()}")
    return 0


cdef int settle(Rewriter rw, Stack* st, UOp u, bint changed) except -1:
    """Rewrite ``u``, whose sources are final, and pop it (0); or make it wait for its replacement (1)."""
    cdef Memo* memo = &rw.memo
    cdef PyObject* found
    cdef UOp w = u, r
    cdef int steps = 0
    if changed:
        w = rebuild(u, final_sources(memo, u.src))
        rw.keep.append(w)
        found = memo_get(memo, <PyObject*>w)
        if found != NULL:
            return conclude(memo, st, u, w, found)
    while True:
        r = rw.step(w)
        if r is None or r is w:
            memo_set(memo, <PyObject*>w, <PyObject*>w)
            return conclude(memo, st, u, w, <PyObject*>w)
        rw.keep.append(r)
        found = memo_get(memo, <PyObject*>r)
        steps += 1
        if found != NULL or steps > DIRECT_STEPS or not sources_final(memo, r.src):
            return conclude(memo, st, u, r, found)
        w = r


cdef inline int conclude(Memo* memo, Stack* st, UOp u, UOp r, PyObject* found) except -1:
    """``u`` has become ``r``, of which the memo says ``found``."""
    if is_final(found):
        memo_set(memo, <PyObject*>u, found)
        st.size -= 1
        return 0
    memo_set(memo, <PyObject*>u, tag(<PyObject*>r))
    push(st, <PyObject*>r)
    return 1


cdef inline bint sources_final(Memo* memo, tuple src) noexcept:
    """Whether all sources are in their final form already."""
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(src)):
        if memo_get(memo, PyTuple_GET_ITEM(src, i)) != PyTuple_GET_ITEM(src, i):
            return False
    return True


cdef inline tuple final_sources(Memo* memo, tuple src):
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(src)
    cdef tuple out = PyTuple_New(n)
    cdef PyObject* p
    for i in range(n):
        p = memo_get(memo, PyTuple_GET_ITEM(src, i))
        Py_INCREF(<object>p)
        PyTuple_SET_ITEM(out, i, <object>p)
    return out


# ---- patterns ------------------------------------------------------------------------------------

class Pattern:
    """What a rule applies to.  Every constraint that is left out holds.

    op: an op, or a set of ops.
    src: a tuple with a Pattern for each source; a last element ``...`` allows more sources.
    name: the rule's function gets the matched node as the parameter of this name; one name used twice matches one node.
    arg: the argument, of the same type and value (0 is not 0.0, 0.0 is not -0.0), or a function from it to bool.
    dtype: a dtype (also in vectors of it), a set of dtypes, or a function from the dtype to bool (asked once a dtype).
    commutative: the sources match in either order.  ValueError unless the op is commutative by the op table.
    """

    __slots__ = ("arg", "commutative", "dtype", "name", "ops", "src")

    def __init__(self, op=None, src=None, name=None, *, arg=None, dtype=None, commutative=False):
        self.ops = None if op is None else frozenset([Ops(op)] if isinstance(op, int) else map(Ops, op))
        self.src = None if src is None else tuple(src)
        self.name = name
        self.arg = arg
        self.dtype = dtype
        self.commutative = commutative
        for s in self.src or ():
            if not isinstance(s, Pattern) and not (s is ... and s is self.src[len(self.src) - 1]):
                raise TypeError(f"a source pattern is a Pattern, or ... at the end, not {s!r}")
        if commutative and (self.ops is None or not all(TABLE[o].flags & Flags.COMMUTATIVE for o in self.ops)):
            raise ValueError(f"{op!r} is not commutative")
        if commutative and (self.src is None or len(self.src) != 2):
            raise ValueError("a commutative pattern has two sources")

    def __repr__(self):
        ops = "any" if self.ops is None else "|".join(o.name for o in sorted(self.ops))
        src = "" if self.src is None else f"({', '.join('...' if s is ... else repr(s) for s in self.src)})"
        return ops + src + ("" if self.name is None else f" as {self.name}")

    def named(self):
        """The names captured, outermost first."""
        own = [] if self.name is None else [self.name]
        return own + [n for s in self.src or () if s is not ... for n in s.named()]

    def orders(self):
        """This pattern with the sources of commutative nodes in each order, none of them commutative any more."""
        if self.src is None:
            return [self]
        out = []
        for src in [self.src, self.src[::-1]] if self.commutative else [self.src]:
            for choice in product(*[[s] if s is ... else s.orders() for s in src]):
                out.append(Pattern(self.ops, choice, self.name, arg=self.arg, dtype=self.dtype))
        return out


cdef class DtypeTest:
    """A constraint on a dtype with the answers given so far."""
    cdef dict known
    cdef object accepted

    def __init__(self, accepted):
        self.known = {}
        self.accepted = accepted

    cdef bint holds(self, object dtype) except -1:
        answer = self.known.get(dtype)
        if answer is None:
            if isinstance(self.accepted, DType):
                answer = dtype.scalar() is self.accepted or dtype is self.accepted
            elif callable(self.accepted):
                answer = bool(self.accepted(dtype))
            else:
                answer = dtype.scalar() in self.accepted or dtype in self.accepted
            self.known[dtype] = answer
        return answer


def rule_name(fn):
    """How messages call a rule: its function's name and place."""
    code = getattr(fn, "__code__", None)
    name = getattr(fn, "__qualname__", repr(fn))
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


cdef class PatternMatcher:
    """A table of rules ``(Pattern, function)``, tried in order.

    A function's parameters are names that its pattern captures, in any order, and ``ctx``, which is the context given
    to ``graph_rewrite``; this is checked here (ValueError).  It returns the replacement, or None for "does not apply".
    Tables are joined with ``+``: the left one's rules come first.
    """

    def __init__(self, rules):
        self.rules = tuple([(p, fn) for p, fn in rules])
        self.kept = []
        variants = []
        for pattern, fn in self.rules:
            if not isinstance(pattern, Pattern):
                raise TypeError(f"a rule is a Pattern and a function, not {pattern!r} and {fn!r}")
            orders = pattern.orders()
            if len(orders) > MAX_VARIANTS:
                raise ValueError(f"{rule_name(fn)}: {len(orders)} orders of sources are more than {MAX_VARIANTS}")
            variants.extend([(p, fn) for p in orders])
        self.compile(variants)

    def __dealloc__(self):
        PyMem_Free(self.nodes)
        PyMem_Free(self.table)
        PyMem_Free(self.by_op)

    def __add__(self, other):
        if not isinstance(other, PatternMatcher):
            return NotImplemented
        return PatternMatcher(self.rules + (<PatternMatcher>other).rules)

    def __repr__(self):
        return f"PatternMatcher({len(self.rules)} rules)"

    cdef int compile(self, list variants) except -1:
        cdef list flat = []  # (pattern, slots of its rule), sources of one pattern side by side
        cdef int k, op
        self.table = <Rule*>PyMem_Malloc(max(1, len(variants)) * sizeof(Rule))
        if self.table == NULL:
            raise MemoryError()
        firsts = []
        for k, (pattern, fn) in enumerate(variants):
            slots = {n: i for i, n in enumerate(dict.fromkeys(pattern.named()))}
            self.table[k].root = len(flat)
            self.table[k].captures = len(slots)
            self.table[k].fn = <PyObject*>fn
            self.kept.append(fn)
            bind(&self.table[k], fn, slots)
            queue = [pattern]
            flat.append((pattern, slots))
            for p in queue:  # grows
                sources = [s for s in p.src or () if s is not ...]
                firsts.append(len(flat))
                flat.extend([(s, slots) for s in sources])
                queue.extend(sources)
        self.nodes = <Node*>PyMem_Malloc(max(1, len(flat)) * sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError()
        for k, (pattern, slots) in enumerate(flat):
            self.fill(&self.nodes[k], pattern, slots, firsts[k])
        chosen = []
        for op in range(MAX_OPS):
            self.start[op] = len(chosen)
            chosen.extend([k for k in range(len(variants)) if accepts(&self.nodes[self.table[k].root], op)])
        self.start[MAX_OPS] = len(chosen)
        self.by_op = <int*>PyMem_Malloc(max(1, len(chosen)) * sizeof(int))
        if self.by_op == NULL:
            raise MemoryError()
        for k in range(len(chosen)):
            self.by_op[k] = chosen[k]
        return 0

    cdef int fill(self, Node* node, object pattern, dict slots, int first) except -1:
        memset(node, 0, sizeof(Node))
        for op in Ops if pattern.ops is None else pattern.ops:
            node.ops[<int>op >> 6] |= (<uint64_t>1) << (<int>op & 63)
        node.slot = slots[pattern.name] if pattern.name is not None else -1
        node.first = first
        node.count = -1
        if pattern.src is not None:
            node.more = len(pattern.src) > 0 and pattern.src[len(pattern.src) - 1] is ...
            node.count = len(pattern.src) - node.more
        if pattern.arg is not None:
            self.kept.append(pattern.arg)
            node.arg = <PyObject*>pattern.arg
            node.test = callable(pattern.arg)
        if pattern.dtype is not None:
            test = DtypeTest(pattern.dtype)
            self.kept.append(test)
            node.dtype = <PyObject*>test
        node.bare = node.slot >= 0 and node.count < 0 and node.arg == NULL and node.dtype == NULL
        return 0

    cdef inline bint plausible(self, Node* node, UOp u) noexcept:
        """Whether the sources of ``u`` are as many, and of such ops, as ``node`` wants: at this most rules fail."""
        cdef Py_ssize_t i, n
        if node.count < 0:
            return True
        n = PyTuple_GET_SIZE(u.src)
        if n < node.count or (n > node.count and not node.more):
            return False
        for i in range(node.count):
            if not accepts(&self.nodes[node.first + i], (<UOp>PyTuple_GET_ITEM(u.src, i)).code):
                return False
        return True

    cdef int match(self, int k, UOp u, PyObject** captured) except -1:
        """1 if node ``k``, which is plausible, matches ``u``, else 0.  As deep as patterns are written."""
        cdef Node* node = &self.nodes[k]
        cdef Node* below
        cdef UOp s
        cdef Py_ssize_t i
        if node.slot >= 0:
            if captured[node.slot] == NULL:
                captured[node.slot] = <PyObject*>u
            elif captured[node.slot] != <PyObject*>u:
                return 0
        if node.arg != NULL:
            if node.test:
                if not (<object>node.arg)(u.arg):
                    return 0
            elif node.arg != <PyObject*>u.arg and not same_arg(u.arg, <object>node.arg):
                return 0
        for i in range(node.count):
            below = &self.nodes[node.first + i]
            if below.bare:
                if captured[below.slot] == NULL:
                    captured[below.slot] = PyTuple_GET_ITEM(u.src, i)
                elif captured[below.slot] != PyTuple_GET_ITEM(u.src, i):
                    return 0
            else:
                s = <UOp>PyTuple_GET_ITEM(u.src, i)
                if not self.plausible(below, s) or not self.match(node.first + i, s, captured):
                    return 0
        return node.dtype == NULL or (<DtypeTest>node.dtype).holds(u.info.dtype)

    cdef UOp apply(self, UOp u, object ctx, int* used):
        """The replacement by the first rule that gives one, or None; ``used`` is then that rule."""
        cdef PyObject* captured[MAX_CAPTURES]
        cdef PyObject* args[MAX_CAPTURES]
        cdef Rule* rule
        cdef int at, i
        for at in range(self.start[u.code], self.start[u.code + 1]):
            rule = &self.table[self.by_op[at]]
            if not self.plausible(&self.nodes[rule.root], u):
                continue
            for i in range(rule.captures):
                captured[i] = NULL
            if not self.match(rule.root, u, captured):
                continue
            for i in range(rule.params):
                args[i] = captured[rule.slot[i]] if rule.slot[i] >= 0 else <PyObject*>ctx
            found = PyObject_Vectorcall(<object>rule.fn, args, rule.params, NULL)
            if found is None:
                continue
            if type(found) is not UOp:
                name = rule_name(<object>rule.fn)
                raise TypeError(f"the rule {name} returned {found!r}; a rule returns a UOp or None")
            if found is not u:
                used[0] = self.by_op[at]
                return <UOp>found
        return None

    cdef object name_of(self, int k):
        return rule_name(<object>self.table[k].fn)

    def rewrite(self, UOp u not None, ctx=None):
        """One step at ``u`` itself: the replacement, or None where no rule applies."""
        cdef int used
        return self.apply(u, ctx, &used)


cdef inline bint accepts(Node* node, int op) noexcept nogil:
    return (node.ops[op >> 6] >> (op & 63)) & 1


cdef int bind(Rule* rule, object fn, dict slots) except -1:
    """Find out what the function of a rule takes."""
    code = getattr(fn, "__code__", None)
    if code is None:
        raise TypeError(f"the function of a rule is a Python function, not {fn!r}")
    first = 1 if getattr(fn, "__self__", None) is not None else 0
    params = code.co_varnames[first:code.co_argcount]
    wrong = [n for n in params if n not in slots and n != "ctx"]
    if wrong or code.co_kwonlyargcount or len(params) > MAX_CAPTURES or len(slots) > MAX_CAPTURES:
        captures = ", ".join(slots) or "nothing"
        raise ValueError(f"the rule {rule_name(fn)} takes {', '.join(params)}; its pattern captures {captures}")
    rule.params = len(params)
    for i, n in enumerate(params):
        rule.slot[<int>i] = slots.get(n, -1)
    return 0


# ---- rewriting by patterns -----------------------------------------------------------------------

cdef class PatternRewriter(Rewriter):
    cdef PatternMatcher matcher
    cdef object ctx
    cdef int recent[RECENT]
    cdef int applied

    cdef UOp step(self, UOp u):
        cdef int used = 0
        cdef UOp found
        if self.matcher.start[u.code] == self.matcher.start[u.code + 1]:
            return None
        found = self.matcher.apply(u, self.ctx, &used)
        if found is not None:
            self.recent[self.applied % RECENT] = used
            self.applied = (self.applied + 1) % (1 << 30)
        return found

    cdef object last_rules(self):
        count = min(self.applied, RECENT)
        return " and ".join({self.matcher.name_of(self.recent[i]): None for i in range(count)})


def graph_rewrite(roots, PatternMatcher matcher not None, ctx=None):
    """``roots`` (a UOp, or a sequence of them: the result is then a list) rewritten until no rule applies anywhere.

    Sources come before users, and a replacement is rewritten like the rest.  A node is rewritten once a call.  Rules
    may call ``graph_rewrite``.  Raises RecursionError, naming the rules, for a rewrite that would not end.
    """
    cdef PatternRewriter rw = PatternRewriter.__new__(PatternRewriter)
    rw.matcher = matcher
    rw.ctx = ctx
    if type(roots) is UOp:
        return rw.run(<UOp>roots)
    return [rw.run(<UOp?>u) for u in roots]
