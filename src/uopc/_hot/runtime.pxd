cdef class Memory:
    cdef void *data
    cdef readonly size_t nbytes


cdef class NativePlan:
    cdef void *plan  # a uopc_plan: only the binding includes its header
    cdef readonly Py_ssize_t n_buffers
    cdef int n_kernels
    cdef void *watched  # uopc_spans of the last run, n_watched a kernel; NULL unless they were asked for
    cdef int n_watched
    cdef size_t *sizes
    cdef char *is_written
    cdef tuple libraries
    cdef Py_ssize_t external(self, slot) except -1
    cdef int make(self, list kernels, tuple temps) except -1
    cdef list timeline_of(self, void *spans, int n)
    cdef int run_at(self, void **pointers) except -1
    cdef str shortage(self)
