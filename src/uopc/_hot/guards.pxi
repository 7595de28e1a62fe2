# Included by call.pyx: what a captured function read besides its arguments, and whether that is as it was.

cdef enum Held:
    HOLDS = 0
    DIFFERS = 1  # and may come back: a flag, a number
    GONE = 2     # memory was replaced: what was captured keeps it alive for nothing


@cython.final
cdef class Guard:
    """Something that the captured function read besides its arguments, and what it was.

    kind: "cell" (of a closure), "item" (`owner[key]`: globals, attributes, dict items), "items" (of a list, set or
    deque), "keys" (a dict's keys), "attribute", "array" (its shape, strides and, where `value` holds them, contents),
    "bytes" (of a bytearray and its like).
    where: how a person would name it.
    """

    cdef readonly str kind
    cdef readonly object owner, key, value
    cdef readonly str where
    cdef int code

    def __init__(self, str kind, owner, key, value, str where):
        self.kind, self.owner, self.key, self.value, self.where = kind, owner, key, value, where
        self.code = ("cell", "item", "items", "keys", "attribute", "array", "bytes").index(kind)

    def without_contents(self):
        """This guard on an array, whose contents are read anew by every run."""
        return Guard(self.kind, self.owner, self.key, None, self.where)

    def holds(self):
        return check(self) == HOLDS


cdef Held judge(object was, object now) except *:
    if was is now or same_plain(was, now) or (isinstance(was, cnp.generic) and same_value(was, now)):
        return HOLDS
    return GONE if isinstance(was, cnp.ndarray) or isinstance(was, UOp) or isinstance(was, tensor_type) else DIFFERS


cdef Held check(Guard g) except *:
    cdef PyObject *found
    cdef Held verdict
    if g.code == 1:
        if type(g.owner) is dict:
            found = PyDict_GetItem(g.owner, g.key)
            if found == NULL:
                return DIFFERS
            return HOLDS if <object>found is g.value else judge(g.value, <object>found)
        return judge(g.value, g.owner[g.key]) if g.key in g.owner else DIFFERS
    if g.code == 0:
        try:
            return judge(g.value, PyCell_Get(g.owner))
        except ValueError:
            return DIFFERS
    if g.code == 4:
        return judge(g.value, getattr(g.owner, g.key, None))
    if g.code == 3:
        return HOLDS if same_keys(tuple(g.owner), <tuple>g.value) else DIFFERS
    if g.code == 2:
        if len(g.owner) != len(g.value):
            return DIFFERS
        for was, now in zip(g.value, g.owner):
            verdict = judge(was, now)
            if verdict != HOLDS:
                return verdict
        return HOLDS
    if g.code == 6:
        return HOLDS if memoryview(g.owner).tobytes() == g.value else DIFFERS
    a = g.owner
    if (a.shape, a.strides) != g.key or (g.value is not None and a.tobytes() != g.value):
        return DIFFERS
    return HOLDS
