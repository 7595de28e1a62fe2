# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The statements of a LINEAR list as lines of C: values inside their users' texts or in constants, plain accesses.

What an op is called, and how a node is written for which there is no plain form, is known to subclasses in Python.
"""
cimport cython
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

from uopc._hot.text cimport L_ATOM, L_SUM, L_UNARY, Code, enclosed, infix, make, narrowed, prefix
from uopc._hot.uop cimport K_BOOL, UOp
from uopc._hot.uses cimport F_INLINE, F_UNUSED, Uses, place_of

from uopc.ops import Ops

cdef int C_ADD = Ops.ADD, C_AFTER = Ops.AFTER, C_ALLOC = Ops.ALLOC, C_BUFFER = Ops.BUFFER, C_CONST = Ops.CONST
cdef int C_END = Ops.END, C_LOAD = Ops.LOAD, C_MUL = Ops.MUL, C_RANGE = Ops.RANGE, C_SHL = Ops.SHL, C_SHR = Ops.SHR
cdef int C_STORE = Ops.STORE

cdef enum:
    MAX_OPS = 128


cdef inline UOp source(UOp u, Py_ssize_t k):
    return <UOp>PyTuple_GET_ITEM(u.src, k)


@cython.final
cdef class Array:
    """What a memory is in C: its name, whether it is a variable of one element, and how pointers are qualified."""
    cdef readonly str name, const
    cdef readonly bint variable
    cdef dict pointers           # by dtype: what is put before an address to read it as that

    def __init__(self, str name not None, bint variable, str const not None):
        self.name = name
        self.variable = variable
        self.const = const
        self.pointers = {}


cdef class Texts:
    """Texts of nodes.

    code: those of the nodes that were seen, an expression or the name that it was given.
    types: {dtype: its name in C} of those that were declared.
    operators: what C calls an op between two operands.
    rules: for scalars, vectors of numbers and vectors of bool, a table by op of what gives the text of a node; None
    for an operator.
    """
    cdef readonly dict code
    cdef dict numbers            # constants beside an operand that decides the type
    cdef dict spreads            # constants in so many lanes
    cdef dict known              # of memories
    cdef dict types, operators
    cdef tuple rules

    def __init__(self, dict types not None, dict operators not None, tuple rules not None):
        self.code = {}
        self.numbers = {}
        self.spreads = {}
        self.known = {}
        self.types = types
        self.operators = operators
        self.rules = rules

    # what subclasses know

    def constant(self, u, exact):
        """The text of a CONST; ``exact``: of its very C type."""
        raise NotImplementedError

    def spread(self, u, count):
        """A scalar in ``count`` lanes."""
        raise NotImplementedError

    def variable_type(self, u):
        """The C type of a constant that holds a value, which is declared."""
        raise NotImplementedError

    def array(self, memory):
        """What a BUFFER or ALLOC is in C."""
        raise NotImplementedError

    def pointer(self, index, memory):
        """What is put before an address to read it as an INDEX says: ``*(const f32x16u *)``."""
        raise NotImplementedError

    def load(self, u):
        """The text of a LOAD with a gate, of lanes that are apart, or of bools in lanes."""
        raise NotImplementedError

    def fetch(self, u):
        """The statement that fetches what a LOAD says is read soon."""
        raise NotImplementedError

    def store(self, u):
        """The lines of a STORE with a gate, past the caches, to lanes that are apart, or of bools in lanes."""
        raise NotImplementedError

    # operands

    cpdef Code operand(self, UOp u, bint exact=True):
        """The text of a source.  ``exact``: of its very C type, where it is a constant."""
        cdef dict known = self.code
        if u.code == C_CONST and not exact and u.info.count == 1:
            known = self.numbers
        found = known.get(u)
        if found is None:
            if u.code != C_CONST:
                raise KeyError(u)
            found = known[u] = self.constant(u, exact)
        return <Code>found

    cpdef Code vector(self, UOp u, int count):
        """``u`` in ``count`` lanes: itself, or a scalar spread."""
        if u.info.count == count:
            return self.operand(u)
        if u.code != C_CONST:
            return self.spread(u, count)
        key = u, count
        found = self.spreads.get(key)
        if found is None:
            found = self.spreads[key] = self.spread(u, count)
        return <Code>found

    # values

    cpdef Code expression(self, UOp u):
        """The text of a value."""
        cdef int kind = 0 if u.info.count == 1 else 2 if u.info.kind == K_BOOL else 1
        if u.code == C_LOAD and is_plain(u, 1):
            return self.place(source(u, 0))
        rule = (<tuple?>self.rules[kind])[u.code]
        return self.binary(u) if rule is None else rule(self, u)

    cpdef Code binary(self, UOp u):
        """An operator of C between scalars, one of which may be a constant without a suffix, or vectors and scalars."""
        cdef UOp a = source(u, 0), b = source(u, 1)
        cdef bint constant = b.code == C_CONST
        if constant and u.code == C_MUL and b.arg == -1:
            return narrowed(prefix("-", self.operand(a)), u)
        constant = constant or u.code == C_SHL or u.code == C_SHR
        return narrowed(infix(self.operators[u.op], self.operand(a, constant), self.operand(b, False)), u)

    def called(self, str function not None, UOp u not None):
        """``function(sources...)``, each in as many lanes as ``u`` has."""
        cdef list texts = []
        cdef Code x
        cdef int depth = 0
        for s in u.src:
            x = self.vector(<UOp>s, u.info.count)
            depth = max(depth, x.depth)
            texts.append(x.text)
        return make(f"{function}({', '.join(texts)})", L_ATOM, depth + 1)

    # accesses

    cpdef Array facts(self, UOp memory):
        """What is known of a memory."""
        found = self.known.get(memory)
        if found is None:
            found = self.known[memory] = self.array(memory)
        return <Array>found

    cpdef Code place(self, UOp index):
        """What an INDEX of one element, or of a vector of consecutive ones, is."""
        cdef UOp memory = place_of(index)
        cdef Array array = self.facts(memory)
        cdef Code at
        cdef object pointer
        if array.variable:
            return make(array.name, L_ATOM, 0)
        at = self.operand(source(index, 1), False)
        if index.info is memory.info or is_as_wide(index, memory):
            return make(f"{array.name}[{at.text}]", L_ATOM, at.depth)
        pointer = array.pointers.get(index.info.dtype)
        if pointer is None:
            pointer = array.pointers[index.info.dtype] = self.pointer(index, memory)
        if at.text == "0":
            return make(<str>pointer + array.name, L_UNARY, at.depth + 1)
        return make(f"{<str>pointer}({array.name} + {enclosed(at, L_SUM)})", L_UNARY, at.depth + 1)

    cpdef str assigned(self, UOp u, Code place, Code stored):
        """``place = stored;`` of a STORE, or ``place += x;`` where that is what is stored."""
        cdef UOp index = source(u, 0), value = source(u, 1), read
        cdef int side
        cdef Code added
        if stored.level == L_SUM and value.code == C_ADD and value.info is index.info:
            for side in range(2):
                read = source(value, side)
                if read.code == C_LOAD and source(read, 0) is index and self.operand(read).text == place.text:
                    added = self.operand(source(value, 1 - side), False)
                    if added.negated is None:
                        return f"{place.text} += {added.text};"
                    return f"{place.text} -= {added.negated.text};"
        return f"{place.text} = {stored.text};"

    cdef str plain_store(self, UOp u):
        cdef UOp value = source(u, 1)
        cdef int count = source(u, 0).info.count
        return self.assigned(
            u, self.place(source(u, 0)), self.operand(value, False) if count == 1 else self.vector(value, count)
        )


cdef bint is_as_wide(UOp index, UOp memory):
    """Whether an INDEX is of elements of its memory, or of others of their size."""
    return index.info.count == memory.info.count and index.info.dtype.itemsize == memory.info.dtype.itemsize


cdef inline bint is_plain(UOp u, Py_ssize_t sources):
    """Whether a LOAD or STORE is of one element or of consecutive ones, without a gate, and needs no conversion."""
    cdef UOp index = source(u, 0)
    return PyTuple_GET_SIZE(u.src) == sources and source(index, 1).info.count == 1 and (
        index.info.count == 1 or index.info.kind != K_BOOL
    )


cdef class Statements:
    """The lines of a function.

    texts: of nodes.  uses: which values get a name.  most_depth, most_text: of an expression that gets none.
    values, silent: the ops of values, and those that print nothing.
    """
    cdef readonly Texts texts
    cdef readonly Uses uses
    cdef readonly list lines
    cdef public str margin
    cdef int held, most_depth, most_text
    cdef bint is_value[MAX_OPS]    # by op, as is the next
    cdef bint is_silent[MAX_OPS]

    def __init__(self, Texts texts not None, Uses uses not None, int most_depth, int most_text, values, silent):
        cdef int op
        self.texts = texts
        self.uses = uses
        self.most_depth = most_depth
        self.most_text = most_text
        self.lines = []
        self.margin = "  "
        for op in values:
            self.is_value[op] = True
        for op in silent:
            self.is_silent[op] = True

    # what a subclass knows

    def open_loop(self, u):
        """The head of a loop."""
        raise NotImplementedError

    def close_loop(self, u):
        """The end of a loop."""
        raise NotImplementedError

    def refuse(self, u):
        """Raise what is to be said of a node that has no form in C."""
        raise NotImplementedError

    cpdef int line(self, str text) except -1:
        """One line of the body."""
        self.lines.append(self.margin + text)
        return 0

    def body(self, tuple statements not None):
        """Print the nodes from top to bottom, or note their texts."""
        cdef UOp u
        for u in statements:
            if self.is_value[u.code]:
                self.value(u)
            elif u.code == C_STORE:
                self.store(u)
            elif u.code == C_AFTER:
                self.after(u)
            elif u.code == C_RANGE:
                self.open_loop(u)
            elif u.code == C_END:
                self.close_loop(u)
            elif not self.is_silent[u.code]:
                self.refuse(u)

    cdef int store(self, UOp u) except -1:
        cdef UOp index = source(u, 0)
        if not u.arg and is_plain(u, 2) and source(u, 1).info.count <= index.info.count:
            return self.line(self.texts.plain_store(u))
        for text in self.texts.store(u):
            self.line(text)
        return 0

    cdef int after(self, UOp u) except -1:
        """An AFTER of a value is printed as the value; that of a memory has no text."""
        cdef UOp first = source(u, 0)
        if (first.code != C_BUFFER and first.code != C_ALLOC and first.code != C_AFTER) or first in self.texts.code:
            self.texts.code[u] = self.texts.expression(u)
        return 0

    cdef bint fits(self, Code code):
        """Whether it may stand inside its user's text."""
        return code.depth < self.most_depth and len(code.text) <= self.most_text

    cdef int value(self, UOp u) except -1:
        """A value: inside its user's text where that is its only place, else a constant of C."""
        cdef Texts texts = self.texts
        cdef Code code
        cdef int fate = self.uses.fate(u)
        if fate == F_UNUSED:
            return 0
        if u.code == C_LOAD and u.arg:
            self.line(texts.fetch(u))
        code = texts.expression(u)
        if fate == F_INLINE and self.fits(code):
            texts.code[u] = code
        else:
            self.hold(u, code)
        return 0

    cdef int hold(self, UOp u, Code code) except -1:
        """A value as a constant of C."""
        cdef object c_type = None
        cdef str name = f"v{self.held}"
        if u.info.count == 1 or u.info.kind != K_BOOL:
            c_type = self.texts.types.get(u.info.dtype)
        if c_type is None:
            c_type = self.texts.variable_type(u)
        self.held += 1
        self.lines.append(f"{self.margin}{<str>c_type} {name} = {code.text};")
        self.texts.code[u] = make(name, L_ATOM, 0)
        return 0
