from uopc._hot.uop cimport UOp

# How tightly the outermost operator of a text binds.  Between operators that few readers can rank (shifts, bits)
# parentheses always stand.
cdef enum:
    L_CHOICE, L_OR, L_XOR, L_AND, L_COMPARE, L_SHIFT, L_SUM, L_PRODUCT, L_UNARY, L_ATOM


cdef class Code:
    cdef readonly str text
    cdef readonly int level, depth
    cdef readonly Code negated


cdef Code make(str text, int level, int depth)
cpdef Code cast(str c_type, Code x)
cpdef Code prefix(str operator, Code x)
cpdef Code infix(str operator, Code a, Code b)
cpdef Code narrowed(Code text, UOp u)


cdef inline str enclosed(Code x, int least):
    return x.text if x.level >= least else "(" + x.text + ")"
