# Included by call.pyx: the arguments of a call as a flat list of leaves, and what each leaf must be.

# ------------------------------------------------------------------------------------------------ arguments, flat --


@cython.final
cdef class Mark:
    """Where a tuple, list or dict begins among the leaves: its type, its length, and a dict's keys."""

    cdef readonly object kind
    cdef readonly Py_ssize_t length
    cdef readonly object keys

    def __cinit__(self, kind, Py_ssize_t length, keys=None):
        self.kind = kind
        self.length = length
        self.keys = keys


@cython.final
cdef class View:
    """An array that was made of an argument: of a Tensor's memory, or a copy in native byte order.

    dtype: uopc's.  tensor: the class of the argument, if it was a Tensor; else None.
    """

    cdef readonly cnp.ndarray array
    cdef readonly object dtype
    cdef readonly object tensor

    def __cinit__(self, cnp.ndarray array, dtype, tensor):
        self.array = array
        self.dtype = dtype
        self.tensor = tensor


cdef bint is_container(object x):
    cdef type kind = type(x)
    return kind is tuple or kind is list or kind is dict or (isinstance(x, tuple) and hasattr(kind, "_fields"))


cdef int add_leaves(list leaves, object x) except -1:
    if not is_container(x):
        leaves.append(x)
    elif type(x) is dict:
        leaves.append(Mark(dict, len(x), tuple(x)))
        for item in (<dict>x).values():
            add_leaves(leaves, item)
    else:
        leaves.append(Mark(type(x), len(x)))
        for item in x:
            add_leaves(leaves, item)
    return 0


def flatten(tuple args, dict kwargs):
    """The leaves of the arguments: tuples, named tuples, lists and dicts are opened, anything else is a leaf."""
    cdef list leaves = []
    for x in args:
        add_leaves(leaves, x)
    if kwargs:
        add_leaves(leaves, kwargs)
    return leaves


# ------------------------------------------------------------------------------------------------ what is required --


cdef enum Kind:
    ARRAY = 0
    TENSOR = 1
    VALUE = 2
    MARK = 3


@cython.final
cdef class Leaf:
    """What one leaf must be.

    An array or Tensor: `dtype` (uopc's), `shape`, `strides` in bytes (None: C-contiguous), `descr` (NumPy's dtype), and
    `tensor`, the class of a Tensor or None.  Those of subclasses come as Views.
    The kernel is given the address `offset` bytes from its first element.
    A Mark or any other value: `value`.
    """

    cdef Kind kind
    cdef readonly object dtype
    cdef readonly tuple shape
    cdef readonly object tensor
    cdef object value, descr, strides
    cdef Py_ssize_t offset
    cdef int nd
    cdef cnp.npy_intp dims[MAX_AXES]
    cdef cnp.npy_intp steps[MAX_AXES]
    cdef int slot  # of the plan's buffers; -1: not read

    def __cinit__(self, value=None, *, tensor=None, dtype=None, descr=None, tuple shape=None, strides=None,
                  Py_ssize_t offset=0):
        self.slot = -1
        self.value, self.dtype, self.descr, self.shape, self.strides, self.offset = (
            value, dtype, descr, shape, strides, offset
        )
        self.tensor = tensor
        if shape is None:
            self.kind = MARK if type(value) is Mark else VALUE
            return
        self.kind = ARRAY if tensor is None else TENSOR
        self.nd = <int>len(shape)
        if self.nd > MAX_AXES:
            raise ValueError(f"an array of {self.nd} axes; at most {MAX_AXES} are accepted")
        for i in range(self.nd):
            self.dims[i] = shape[i]
            self.steps[i] = strides[i] if strides is not None else 0

    @property
    def is_memory(self):
        return self.shape is not None

    cdef bint fits_array(self, cnp.ndarray a):
        cdef int i
        if cnp.PyArray_NDIM(a) != self.nd:
            return False
        for i in range(self.nd):
            if cnp.PyArray_DIM(a, i) != self.dims[i]:
                return False
        if self.strides is None:
            return cnp.PyArray_IS_C_CONTIGUOUS(a)
        if cnp.PyArray_IS_C_CONTIGUOUS(a):
            return False
        for i in range(self.nd):
            if cnp.PyArray_STRIDE(a, i) != self.steps[i]:
                return False
        return True

    cdef int fits(self, object x, void **at, list held) except -1:
        """1 if x is what is required, and then where its memory begins; 0 if it is not."""
        cdef UOp u
        if self.kind == ARRAY and type(x) is cnp.ndarray:
            if <void *>cnp.PyArray_DESCR(<cnp.ndarray>x) != <void *>self.descr or not self.fits_array(<cnp.ndarray>x):
                return 0
            if not cnp.PyArray_ISALIGNED(<cnp.ndarray>x):
                return 0
            at[0] = cnp.PyArray_BYTES(<cnp.ndarray>x) + self.offset
            return 1
        if self.kind == VALUE:
            return same_value(self.value, x)
        if self.kind == MARK:
            return type(x) is Mark and same_mark(<Mark>self.value, <Mark>x)
        if type(x) is View:
            view = <View>x
            if view.dtype is not self.dtype or view.tensor is not self.tensor:
                return 0
            if not self.fits_array(view.array):
                return 0
            at[0] = cnp.PyArray_BYTES(view.array) + self.offset
            return 1
        if self.tensor is tensor_type and type(x) is tensor_type:
            if self.strides is not None:
                return 0
            u = x.uop
            storage = u.realized
            if type(storage) is UOp:
                storage = (<UOp>storage).realized
            if storage is None or u.info.dtype is not self.dtype or (
                u.shape_ is not self.shape and u.shape != self.shape
            ):
                return 0
            at[0] = <void *><uintptr_t>storage.address
            held.append(storage)
            return 1
        return 0


cdef object tensor_type = None


def set_tensor_type(kind):
    """The class of Tensors, which stands in a layer above."""
    global tensor_type
    tensor_type = kind


cdef bint same_mark(Mark a, Mark b) except -1:
    return a.kind is b.kind and a.length == b.length and (a.keys is None or same_keys(a.keys, b.keys))


cdef bint same_keys(tuple a, tuple b) except -1:
    cdef Py_ssize_t i
    if len(a) != len(b):
        return False
    for i in range(len(a)):
        if a[i] is not b[i] and not same_value(a[i], b[i]):
            return False
    return True


cdef enum:
    MAX_DEPTH = 50  # of what is described; deeper is known by identity

cdef frozenset PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None), type))


cdef bint same_value(object a, object b, int depth=0) except -1:
    """The same object, or one that no code can tell from it but by identity: equal, hashable, of the same type, and
    with the same inside, since 2 equals 2.0 and 0.0 equals -0.0."""
    if a is b or same_plain(a, b):
        return True
    if type(a) is not type(b) or isinstance(a, (cnp.ndarray, tensor_type)):
        return False
    if type(a) in PLAIN or depth > MAX_DEPTH:
        return False
    if isinstance(a, cnp.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    try:
        hash(a)
        return bool(a == b) and same_state(a.__reduce_ex__(2), b.__reduce_ex__(2), depth + 1)
    except (TypeError, ValueError):  # what has no such description is known by identity alone
        return False


cdef bint same_state(object a, object b, int depth) except -1:
    """Descriptions as pickling gives them: tuples, lists and dicts are compared item by item."""
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is tuple or kind is list:
        return len(a) == len(b) and depth < MAX_DEPTH and all([same_state(x, y, depth + 1) for x, y in zip(a, b)])
    if kind is dict:
        return same_state(list(a.items()), list(b.items()), depth)
    return same_value(a, b, depth)


cdef bint same_plain(object a, object b) except -1:
    """Equal numbers, strings or tuples of them, of the same type.  0.0 is not -0.0, and NaN is NaN."""
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        return same_bits(<double>a, <double>b)
    if kind is int or kind is str or kind is bool or kind is bytes:
        return a == b
    if kind is complex:
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    if kind is tuple:
        return len(a) == len(b) and all([x is y or same_plain(x, y) for x, y in zip(a, b)])
    return False


cdef bint same_bits(double a, double b):
    return memcmp(&a, &b, sizeof(double)) == 0
