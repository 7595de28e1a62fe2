from uopc._hot.rewrite cimport PatternMatcher, Rewriter
from uopc._hot.uop cimport UOp


cdef class Simplifier(Rewriter):
    cdef PatternMatcher matcher      # rules beyond the built-in ones, or None
    cdef object rule                 # the matcher's last that applied, or None

    cpdef UOp simplify(self, UOp u)
