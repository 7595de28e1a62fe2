from uopc._hot.rewrite cimport PatternMatcher, Rewriter
from uopc._hot.uop cimport UOp


cdef class Simplifier(Rewriter):
    cdef PatternMatcher matcher      # rules beyond the built-in ones, or None
    cdef object rule                 # the last that applied

    cpdef UOp simplify(self, UOp u)
