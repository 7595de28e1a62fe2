# cython: language_level=3, boundscheck=False, wraparound=False
"""C text with its precedence, so that only the parentheses that C or a reader needs are printed."""
cimport cython

from uopc._hot.uop cimport K_INT, UOp

CHOICE, OR, XOR, AND, COMPARE = L_CHOICE, L_OR, L_XOR, L_AND, L_COMPARE
SHIFT, SUM, PRODUCT, UNARY, ATOM = L_SHIFT, L_SUM, L_PRODUCT, L_UNARY, L_ATOM

cdef dict LEVELS = {
    "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "<<": SHIFT, ">>": SHIFT, "&": AND, "|": OR, "^": XOR,
    "<": COMPARE, "<=": COMPARE, "==": COMPARE, "!=": COMPARE, ">": COMPARE,
}


@cython.final
@cython.no_gc  # a text is older than what holds it as its negative
@cython.freelist(256)
cdef class Code:
    """An expression.

    text: the C.  level: how tightly it binds.  depth: how deep it nests.  negated: its negative, where the text is a
    minus and that.
    """
    def __init__(self, str text not None, int level=L_ATOM, int depth=0, Code negated=None):
        self.text = text
        self.level = level
        self.depth = depth
        self.negated = negated

    def at(self, int least):
        """The text as an operand of something that binds so tightly."""
        return enclosed(self, least)

    def __repr__(self):
        return f"Code({self.text!r})"


cdef Code make(str text, int level, int depth):
    cdef Code code = Code.__new__(Code)
    code.text = text
    code.level = level
    code.depth = depth
    return code


def call(str function, *args):
    """``function(args...)``."""
    cdef int depth = 0
    cdef Code a
    for a in args:
        depth = max(depth, a.depth)
    return make(function + "(" + ", ".join([(<Code>x).text for x in args]) + ")", L_ATOM, depth + 1)


cpdef Code cast(str c_type, Code x):
    """``(c_type)x``."""
    return make("(" + c_type + ")" + enclosed(x, L_UNARY), L_UNARY, x.depth + 1)


cpdef Code prefix(str operator, Code x):
    """``-x``, ``~x`` or ``!x``."""
    cdef str text = enclosed(x, L_UNARY)
    cdef Code code
    if text.startswith(operator):  # -(-x): two signs in a row are another operator
        text = "(" + text + ")"
    code = make(operator + text, L_UNARY, x.depth + 1)
    if operator == "-":
        code.negated = x
    return code


cpdef Code infix(str operator, Code a, Code b):
    """``a operator b``; a sum with a negative becomes a difference."""
    cdef int level = LEVELS[operator], left, right
    if level == L_SUM and operator == "+":
        if b.negated is None and a.negated is not None:
            a, b = b, a
        if b.negated is not None:
            operator, b = "-", b.negated
    if level == L_SUM or level == L_PRODUCT:
        left, right = level, level + 1
    elif level == L_COMPARE:
        left = right = L_SUM
    else:
        left, right = level if a.level == level and level != L_SHIFT else L_UNARY, L_UNARY
    return make(enclosed(a, left) + " " + operator + " " + enclosed(b, right), level, max(a.depth, b.depth) + 1)


def choice(Code condition not None, Code a not None, Code b not None):
    """``condition ? a : b``."""
    cdef str text = enclosed(condition, L_OR) + " ? " + enclosed(a, L_OR) + " : " + enclosed(b, L_OR)
    return make(text, L_CHOICE, max(condition.depth, a.depth, b.depth) + 1)


cpdef Code offset(Code base, object step):
    """``base + step`` of an address."""
    if base.text == "0":
        return make(str(step), L_ATOM, 0)
    return infix("+", base, make(str(step), L_ATOM, 0)) if step else base


def elements(str memory not None, Code base not None, steps):
    """``memory[base + step]`` for each of ``steps``."""
    return [memory + "[" + offset(base, step).text + "]" for step in steps]


cpdef Code narrowed(Code text, UOp u):
    """The text of a scalar operation in the type of ``u``: C computes in int what is narrower."""
    if u.info.kind == K_INT and u.info.count == 1 and u.info.dtype.itemsize < 4:
        return cast(u.info.dtype.c_name, text)
    return text
