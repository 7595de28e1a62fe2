from uopc._hot.ptrmap cimport PtrMap
from uopc._hot.uop cimport UOp


cdef class Rewriter:
    """A memoised rewrite of whole graphs; a subclass says what one step is."""
    cdef PtrMap memo             # node -> its final form, or (tagged) the replacement that it waits for
    cdef list keep               # what the memo borrows
    cdef bint busy

    cdef UOp step(self, UOp u)   # the replacement of a node whose sources are final, or None
    cdef object last_rules(self)  # for the message about an endless rewrite
    cdef UOp run(self, UOp root)
    cdef int reset(self) except -1
