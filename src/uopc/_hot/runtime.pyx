# cython: language_level=3, boundscheck=False, wraparound=False
"""The binding of runtime_c: memory, loaded libraries, plans and thread counts, and nothing that decides anything.

What each call does is defined in runtime_c/include/uopc_runtime.h; this file converts arguments, holds references to
what native code uses, and turns error codes into exceptions.
"""

import atexit

from uopc.limits import because

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsVoidPtr, PyLong_Check, PyLong_FromVoidPtr
from cpython.object cimport PyObject
from libc.errno cimport EINTR
from libc.stdlib cimport calloc, free
from posix.dlfcn cimport RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, dlclose, dlerror, dlopen, dlsym


cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept  # Cython's own declaration would raise here what is to be raised later
    object PySequence_Fast(object o, const char *message)
    Py_ssize_t PySequence_Fast_GET_SIZE(object fast)
    PyObject **PySequence_Fast_ITEMS(object fast)


cdef extern from "<fenv.h>" nogil:
    ctypedef struct fenv_t:
        pass

    const fenv_t *FE_DFL_ENV
    int fegetenv(fenv_t *environment)
    int fesetenv(const fenv_t *environment)


cdef extern from "uopc_runtime.h" nogil:
    ctypedef void (*uopc_range_fn)(void *const *args, long lo, long hi)

    ctypedef struct uopc_region:
        uopc_range_fn fn
        long trips
        long chunk
        int schedule
        unsigned long work_ticks

    ctypedef struct uopc_span:
        long long start_ns
        long long stop_ns

    ctypedef struct uopc_memory_stats:
        size_t live_bytes
        size_t idle_bytes
        size_t arena_bytes
        size_t peak_bytes
        size_t limit_bytes
        size_t keep_bytes
        unsigned long allocations
        unsigned long recycled
        unsigned long released

    ctypedef struct uopc_arg:
        int slot
        size_t offset

    ctypedef struct uopc_kernel:
        uopc_region region
        const uopc_arg *args
        int n_args

    ctypedef struct uopc_plan:
        pass

    ctypedef struct uopc_run_options:
        uopc_span *kernel_spans
        uopc_span *thread_spans
        int n_thread_spans
        int (*interrupted)(void *context) noexcept
        void *context

    int uopc_pool_set_kernel_stack(size_t bytes)
    int uopc_pool_set_threads(int n)
    int uopc_pool_override_threads(int n)
    int uopc_pool_threads()
    int uopc_pool_workers()
    void uopc_pool_shutdown()
    void *uopc_memory_take(size_t size)
    void uopc_memory_give(void *block, size_t size)
    void uopc_memory_set_limit(size_t limit)
    void uopc_memory_set_machine(size_t bytes)
    size_t uopc_memory_trim()
    void uopc_memory_get_stats(uopc_memory_stats *stats)
    uopc_plan *uopc_plan_new(
        const uopc_kernel *kernels, int n_kernels, int n_buffers, const size_t *temp_sizes, int n_temps
    )
    void uopc_plan_free(uopc_plan *plan)
    size_t uopc_plan_arena_size(const uopc_plan *plan)
    size_t uopc_plan_temp_offset(const uopc_plan *plan, int temp)
    int uopc_plan_run(uopc_plan *plan, void *const *buffers, const uopc_run_options *options)


# ---------------------------------------------------------------------------------------------------------- memory --


@cython.final
@cython.freelist(64)
cdef class Memory:
    """nbytes of uninitialised memory, aligned to 64 bytes, that returns to the recycler when it dies.

    Exports a writable buffer of bytes.  Zero bytes are fine.  MemoryError when it cannot be had.
    """

    def __cinit__(self, size_t nbytes):
        self.data = uopc_memory_take(nbytes)
        if self.data == NULL:
            raise MemoryError(f"no memory for a result of {nbytes} bytes{because(nbytes)}")
        self.nbytes = nbytes

    def __dealloc__(self):
        uopc_memory_give(self.data, self.nbytes)

    @property
    def address(self):
        return <size_t>self.data

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, <Py_ssize_t>self.nbytes, 0, flags)

    def __repr__(self):
        return f"Memory({self.nbytes})"


def memory_stats():
    """Bytes and counts of the memory that uopc holds; the names are explained in uopc_runtime.h."""
    cdef uopc_memory_stats stats
    uopc_memory_get_stats(&stats)
    return stats


def set_memory_limit(size_t nbytes):
    """Bound the temporaries of all plans together, and the idle memory kept, by nbytes; 0 ends the bound."""
    with nogil:
        uopc_memory_set_limit(nbytes)


def set_machine_memory(size_t nbytes):
    """The memory that this process may use, where that is less than the machine has: a quarter is kept idle at most."""
    with nogil:
        uopc_memory_set_machine(nbytes)


def trim_memory():
    """Give all idle memory back to the system.  Returns its size in bytes."""
    cdef size_t released
    with nogil:
        released = uopc_memory_trim()
    return released


# --------------------------------------------------------------------------------------------------------- threads --


def set_kernel_stack(size_t nbytes):
    """Kernels take so many bytes of a stack at most: a caller that has less left runs them on another thread.

    ValueError where the threads of the pool have less.
    """
    if uopc_pool_set_kernel_stack(nbytes):
        raise ValueError(f"kernels cannot take {nbytes} bytes of a stack: threads of the pool have fewer")


def set_num_threads(n):
    """Use n threads from now on, the calling one included; None: as many as the affinity mask allows.

    ValueError if n < 1.  Returns the number in force before.
    """
    return uopc_pool_set_threads(thread_count(n))


def override_num_threads(n):
    """As set_num_threads, for regions that the calling thread starts; None ends the override.

    Returns the override in force before, None if there was none.
    """
    return uopc_pool_override_threads(thread_count(n)) or None


cdef int thread_count(n) except -1:
    if n is None:
        return 0
    if n < 1:
        raise ValueError(f"{n} threads; at least 1 is accepted")
    return min(n, 1 << 30)


def get_num_threads():
    """The number of threads that work started now by this thread may use."""
    return uopc_pool_threads()


def num_workers():
    """The number of worker threads that exist now."""
    return uopc_pool_workers()


def shutdown():
    """Wait for the parallel region that is running, and join the workers.  set_num_threads starts them again."""
    with nogil:
        uopc_pool_shutdown()


@cython.final
cdef class DefaultFloats:
    """`with DefaultFloats():` this thread rounds to nearest and keeps denormals inside, whatever it does outside."""

    cdef fenv_t before

    def __enter__(self):
        fegetenv(&self.before)
        fesetenv(FE_DFL_ENV)

    def __exit__(self, *error):
        fesetenv(&self.before)


# ------------------------------------------------------------------------------------------------------- libraries --


cdef bint have_libm = False
cdef Py_ssize_t loaded = 0


cdef void need_libm() noexcept:
    """Kernels are linked without libm, which takes the linker longer than the kernel: it is here when they load."""
    global have_libm
    if not have_libm:
        dlopen(b"libm.so.6", RTLD_NOW | RTLD_GLOBAL)  # without glibc's name for it, it is part of libc
        have_libm = True


@cython.final
cdef class Library:
    """A shared object, loaded while this object lives.  Plans hold the libraries whose kernels they run.

    opened: the name to give to the loader, where that is not the path.  OSError if it cannot be loaded.
    """

    cdef void *handle
    cdef readonly str path

    def __cinit__(self, path, opened=None):
        global loaded
        self.path = path
        need_libm()
        self.handle = dlopen((opened or path).encode("utf-8", "surrogateescape"), RTLD_NOW | RTLD_LOCAL)
        if self.handle == NULL:
            raise OSError(f"cannot load {path}: {dlerror().decode('utf-8', 'replace')}")
        loaded += 1

    def __dealloc__(self):
        global loaded
        if self.handle != NULL:
            dlclose(self.handle)
            loaded -= 1

    cdef void *symbol(self, str name) except NULL:
        cdef void *found = dlsym(self.handle, name.encode())
        if found == NULL:
            raise LookupError(f"{self.path} has no symbol {name}")
        return found

    def address(self, str name):
        """The address of a symbol.  LookupError if there is none."""
        return PyLong_FromVoidPtr(self.symbol(name))

    def launch(self, str name):
        """(address of NAME_range, trips, chunk, schedule) of a kernel.  LookupError if there is none."""
        cdef const long *numbers = <const long *>self.symbol(name + "_launch")
        return PyLong_FromVoidPtr(self.symbol(name + "_range")), numbers[0], numbers[1], numbers[2]

    def __repr__(self):
        return f"Library({self.path!r})"


def n_libraries():
    """How many libraries are loaded."""
    return loaded


# ----------------------------------------------------------------------------------------------------------- plans --


cdef enum:
    FEW = 16  # buffers that need no allocation


cdef int check_signals(void *context) noexcept with gil:
    """An exception that a signal handler raises stays set in this thread until the run has returned."""
    return PyErr_CheckSignals()


cdef int raise_what_is_set() except -1:
    return -1


@cython.final
cdef class NativePlan:
    """Kernels that run in order in one call.

    kernels: (library, name, args) each, where an arg is a slot or (slot, byte offset).  Slots below n_buffers are the
    buffers given to `run`; those from n_buffers on are temporaries, whose sizes in bytes are `temps`.
    sizes: the least bytes of each buffer, checked where a buffer is an object and not an address.
    written: the slots whose buffers must be writable.

    ValueError for a slot that does not exist, LookupError for a kernel that does not.
    """

    def __cinit__(self, kernels, int n_buffers, temps=(), *, sizes=None, written=()):
        if n_buffers < 0:
            raise ValueError(f"n_buffers={n_buffers}; at least 0 is accepted")
        kernels = [(library, name, tuple(args)) for library, name, args in kernels]
        temps = tuple(temps)
        self.libraries = tuple({library for library, _, _ in kernels})
        self.n_buffers = n_buffers
        self.n_kernels = len(kernels)
        self.sizes = <size_t *>calloc(n_buffers + 1, sizeof(size_t))
        self.is_written = <char *>calloc(n_buffers + 1, 1)
        if self.sizes == NULL or self.is_written == NULL:
            raise MemoryError
        for slot, size in enumerate(sizes or ()):
            self.sizes[self.external(slot)] = size
        for slot in written:
            self.is_written[self.external(slot)] = 1
        self.make(kernels, temps)

    def __dealloc__(self):
        uopc_plan_free(<uopc_plan *>self.plan)
        free(self.watched)
        free(self.sizes)
        free(self.is_written)

    cdef Py_ssize_t external(self, slot) except -1:
        if not 0 <= slot < self.n_buffers:
            raise ValueError(f"slot {slot} is not one of the plan's {self.n_buffers} buffers")
        return slot

    cdef int make(self, list kernels, tuple temps) except -1:
        cdef int n_args = sum(len(args) for _, _, args in kernels)
        cdef uopc_kernel *native = <uopc_kernel *>calloc(self.n_kernels + 1, sizeof(uopc_kernel))
        cdef uopc_arg *native_args = <uopc_arg *>calloc(n_args + 1, sizeof(uopc_arg))
        cdef size_t *temp_sizes = <size_t *>calloc(len(temps) + 1, sizeof(size_t))
        cdef int k, i, at = 0
        try:
            if native == NULL or native_args == NULL or temp_sizes == NULL:
                raise MemoryError
            for i in range(len(temps)):
                temp_sizes[i] = temps[i]
            for k in range(self.n_kernels):
                at = fill_kernel(self, &native[k], kernels[k], len(temps), native_args, at)
            self.plan = uopc_plan_new(native, self.n_kernels, <int>self.n_buffers, temp_sizes, <int>len(temps))
            if self.plan == NULL:
                raise MemoryError(f"no memory for a plan of {self.n_kernels} kernels and {sum(temps)} bytes{because()}")
        finally:
            free(native)
            free(native_args)
            free(temp_sizes)
        return 0

    @property
    def arena_size(self):
        return uopc_plan_arena_size(<uopc_plan *>self.plan)

    def temp_offset(self, int temp):
        """Where in the arena a temporary lies, in bytes."""
        return uopc_plan_temp_offset(<uopc_plan *>self.plan, temp)

    # -- running

    def run(self, buffers):
        """Run all kernels, with the GIL released.

        buffers: one for each slot: an address (int), a Memory, or an object that exports a C-contiguous buffer.
        ValueError for a wrong number of buffers or one that is too small or not contiguous; BufferError or ValueError
        for one that must be writable and is not; TypeError for what is none of these; MemoryError, before any kernel
        ran, if there is no memory for temporaries; KeyboardInterrupt, or what a signal handler raises, between kernels.
        """
        cdef uopc_run_options options = uopc_run_options(NULL, NULL, 0, check_signals, NULL)
        run_with(self, buffers, &options)

    def run_timed(self, buffers):
        """Run as `run` does.  Returns the seconds that each kernel took."""
        cdef uopc_run_options options = uopc_run_options(NULL, NULL, 0, check_signals, NULL)
        cdef uopc_span *spans = <uopc_span *>calloc(self.n_kernels + 1, sizeof(uopc_span))
        if spans == NULL:
            raise MemoryError
        options.kernel_spans = spans
        try:
            run_with(self, buffers, &options)
            return [1e-9 * (spans[k].stop_ns - spans[k].start_ns) for k in range(self.n_kernels)]
        finally:
            free(spans)

    def run_timeline(self, buffers):
        """Run as `run` does.  Returns for each kernel a list of (thread, start, stop), in ns of CLOCK_MONOTONIC."""
        cdef uopc_run_options options = uopc_run_options(NULL, NULL, uopc_pool_threads(), check_signals, NULL)
        cdef int n = options.n_thread_spans
        cdef uopc_span *spans = <uopc_span *>calloc(self.n_kernels * n + 1, sizeof(uopc_span))
        if spans == NULL:
            raise MemoryError
        options.thread_spans = spans
        try:
            run_with(self, buffers, &options)
            return self.timeline_of(spans, n)
        finally:
            free(spans)

    cdef list timeline_of(self, void *memory, int n):
        cdef uopc_span *spans = <uopc_span *>memory
        return [
            [(t, spans[k * n + t].start_ns, spans[k * n + t].stop_ns) for t in range(n) if spans[k * n + t].stop_ns]
            for k in range(self.n_kernels)
        ]

    def watch(self):
        """Note, from the next call of a captured function on, when threads work on the kernels; with this, a call takes
        as long as two looks at the clock more for each thread and kernel.  Not for several threads at once."""
        if self.watched == NULL:
            self.n_watched = uopc_pool_threads()
            self.watched = calloc(self.n_kernels * self.n_watched + 1, sizeof(uopc_span))
            if self.watched == NULL:
                raise MemoryError

    def watched_timeline(self):
        """As `run_timeline` returns it, of the last call that was watched."""
        return self.timeline_of(self.watched, self.n_watched)

    cdef int run_at(self, void **pointers) except -1:
        """Run as `run` does, on buffers whose addresses the caller has checked."""
        cdef uopc_run_options options = uopc_run_options(
            NULL, <uopc_span *>self.watched, self.n_watched, check_signals, NULL
        )
        return launch(self, pointers, &options)

    cdef str shortage(self):
        cdef uopc_memory_stats stats
        uopc_memory_get_stats(&stats)
        text = f"no memory for the plan's temporaries, {uopc_plan_arena_size(<uopc_plan *>self.plan)} bytes"
        if stats.limit_bytes:
            return f"{text}; UOPC_ARENA_LIMIT is {stats.limit_bytes} for all plans together"
        return text + because(uopc_plan_arena_size(<uopc_plan *>self.plan))

    def __repr__(self):
        return f"NativePlan({self.n_kernels} kernels, {self.n_buffers} buffers, arena of {self.arena_size} bytes)"


cdef int fill_kernel(
    NativePlan plan, uopc_kernel *kernel, tuple spec, Py_ssize_t n_temps, uopc_arg *args, int at
) except -1:
    cdef Library library = spec[0]
    fn, kernel.region.trips, kernel.region.chunk, kernel.region.schedule = library.launch(spec[1])
    kernel.region.fn = <uopc_range_fn>PyLong_AsVoidPtr(fn)
    kernel.args = &args[at]
    kernel.n_args = <int>len(spec[2])
    for arg in spec[2]:
        slot, offset = arg if isinstance(arg, tuple) else (arg, 0)
        if not 0 <= slot < plan.n_buffers + n_temps:
            raise ValueError(
                f"kernel {spec[1]}: slot {slot}; there are {plan.n_buffers} buffers and {n_temps} temporaries"
            )
        args[at].slot = slot
        args[at].offset = offset
        at += 1
    return at


cdef int launch(NativePlan plan, void **pointers, uopc_run_options *options) except -1:
    cdef int error
    with nogil:
        error = uopc_plan_run(<uopc_plan *>plan.plan, pointers, options)
    if error == EINTR:
        raise_what_is_set()
    if error:
        raise MemoryError(plan.shortage())
    return 0


cdef int run_with(NativePlan plan, object buffers, uopc_run_options *options) except -1:
    cdef void *few_pointers[FEW]
    cdef Py_buffer few_views[FEW]
    cdef void **pointers = few_pointers
    cdef Py_buffer *views = few_views
    cdef int n_views = 0
    buffers = PySequence_Fast(buffers, b"buffers must be a sequence")
    if PySequence_Fast_GET_SIZE(buffers) != plan.n_buffers:
        raise ValueError(f"{PySequence_Fast_GET_SIZE(buffers)} buffers; the plan takes {plan.n_buffers}")
    if plan.n_buffers > FEW:
        pointers = <void **>calloc(plan.n_buffers, sizeof(void *))
        views = <Py_buffer *>calloc(plan.n_buffers, sizeof(Py_buffer))
    try:
        if pointers == NULL or views == NULL:
            raise MemoryError
        open_buffers(plan, buffers, pointers, views, &n_views)
        launch(plan, pointers, options)
    finally:
        while n_views:
            n_views -= 1
            PyBuffer_Release(&views[n_views])
        if plan.n_buffers > FEW:
            free(pointers)
            free(views)
    return 0


cdef int open_buffers(NativePlan plan, object fast, void **pointers, Py_buffer *views, int *n_views) except -1:
    """The address of each buffer; *n_views is right at any time, so that the caller can release them."""
    cdef PyObject **items = PySequence_Fast_ITEMS(fast)
    cdef Py_ssize_t slot
    cdef size_t size
    for slot in range(plan.n_buffers):
        item = <object>items[slot]
        if type(item) is Memory:
            pointers[slot] = (<Memory>item).data
            size = (<Memory>item).nbytes
        elif PyLong_Check(item):
            pointers[slot] = PyLong_AsVoidPtr(item)
            continue
        else:
            PyObject_GetBuffer(item, &views[n_views[0]], PyBUF_WRITABLE if plan.is_written[slot] else PyBUF_SIMPLE)
            pointers[slot] = views[n_views[0]].buf
            size = <size_t>views[n_views[0]].len
            n_views[0] += 1
        if size < plan.sizes[slot]:
            raise ValueError(f"the buffer of slot {slot} has {size} bytes; at least {plan.sizes[slot]} are needed")
    return 0


atexit.register(shutdown)
