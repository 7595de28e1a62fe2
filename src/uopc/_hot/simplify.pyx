# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Simplification: canonical index expressions, and what is exactly true of everything else.

An index never wraps, so that sums and products of it are rewritten freely: linear.pxi has the canonical sum of
products, divmod.pxi floor division and modulo, logic.pxi comparisons, MIN and MAX, boolean logic and WHERE.  A
canonical index has its terms in an order that is the same in every process, its constant last, and no division that
bounds decide.  Types that wrap get identities that hold modulo 2^n, floats only those that hold for NaN, infinities
and -0.

Each rule takes a node whose sources are simplified and gives a replacement of the same dtype and shape, or None.
"""
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, INT64_MAX, INT64_MIN

from uopc._hot.int64 cimport floor_div, floor_mod, gcd, sat_add, sat_mul, uopc_add_overflows, uopc_mul_overflows
from uopc._hot.rewrite cimport MAX_OPS, PatternMatcher, Rewriter
from uopc._hot.uop cimport DInfo, K_BOOL, K_INDEX, K_INT, K_OTHER, UOp, binary, const_int, intern

import operator

from uopc.dtype import dtypes
from uopc.ops import TABLE, Flags, Kind, Ops

cdef extern from "Python.h":
    long PyLong_AsLong(object) except? -1

cdef int C_CONST = Ops.CONST, C_RANGE = Ops.RANGE, C_CAST = Ops.CAST, C_WHERE = Ops.WHERE, C_ABS = Ops.ABS
cdef int C_DIV = Ops.DIV
cdef int C_ADD = Ops.ADD, C_MUL = Ops.MUL, C_IDIV = Ops.IDIV, C_MOD = Ops.MOD, C_MAX = Ops.MAX, C_MIN = Ops.MIN
cdef int C_CMPLT = Ops.CMPLT, C_CMPLE = Ops.CMPLE, C_CMPEQ = Ops.CMPEQ, C_CMPNE = Ops.CMPNE
cdef int C_AND = Ops.AND, C_OR = Ops.OR, C_XOR = Ops.XOR, C_SHL = Ops.SHL, C_SHR = Ops.SHR
cdef tuple EMPTY = ()


cdef inline bint known(UOp u, int64_t* value) noexcept:
    """Whether a scalar integer or bool has one value."""
    value[0] = u.lo
    return u.lo == u.hi and u.info.count == 1


cdef inline bint is_value(UOp u, int64_t value) noexcept:
    """Whether an integer or bool (each lane of it) is ``value``."""
    return u.lo == value and u.hi == value


cdef UOp zero_of(UOp u):
    return intern(C_CONST, u.info, EMPTY, False if u.info.kind == K_BOOL else 0) if u.info.count == 1 else None


include "laws.pxi"
include "linear.pxi"
include "divmod.pxi"
include "logic.pxi"

# ---- constants -----------------------------------------------------------------------------------

cdef dict INTEGER_FOLDS = {
    C_ADD: operator.add, C_MUL: operator.mul, C_MAX: max, C_MIN: min,
    C_AND: operator.and_, C_OR: operator.or_, C_XOR: operator.xor,
    C_IDIV: lambda a, b: a // b if b else 0, C_MOD: lambda a, b: a % b if b else 0,
}
# In double and then rounded: for these two operations the same as rounding once.
cdef dict FLOAT_FOLDS = {C_ADD: operator.add, C_MUL: operator.mul}
cdef dict COMPARISONS = {C_CMPLT: operator.lt, C_CMPLE: operator.le, C_CMPEQ: operator.eq, C_CMPNE: operator.ne}


cdef UOp fold(UOp u):
    """An operation on two scalar constants of a type that wraps, or of floats."""
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    if a.info.count != 1 or b.info.count != 1 or a.info.kind == K_INDEX:
        return None
    fn = COMPARISONS.get(u.code)
    if fn is not None:
        return intern(C_CONST, u.info, EMPTY, bool(fn(a.arg, b.arg)))
    if a.info.kind == K_BOOL and u.code != C_XOR:
        return None
    fn = (FLOAT_FOLDS if a.info.kind == K_OTHER else INTEGER_FOLDS).get(u.code)
    return None if fn is None else intern(C_CONST, u.info, EMPTY, u.dtype.convert(fn(a.arg, b.arg)))


# ---- arithmetic ----------------------------------------------------------------------------------

cdef UOp reassociate(UOp u):
    """(x op c1) op c2 = x op (c1 op c2), for types that wrap."""
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1), c
    if a.code != u.code or b.code != C_CONST or u.info.kind != K_INT:
        return None
    c = <UOp>PyTuple_GET_ITEM(a.src, 1)
    if c.code != C_CONST or c.info is not b.info or c.info.count != 1:
        return None
    return by(REASSOCIATE, binary(u.code, <UOp>PyTuple_GET_ITEM(a.src, 0), fold(binary(u.code, c, b))))


cdef inline bint is_negated(UOp a, UOp b) noexcept:
    """Whether b is a * -1."""
    return b.code == C_MUL and PyTuple_GET_ITEM(b.src, 0) == <PyObject*>a \
        and is_value(<UOp>PyTuple_GET_ITEM(b.src, 1), -1)


cdef inline bint is_float(UOp u, double value) except -1:
    """Whether u is a constant with just these bits (0.0 is not -0.0), and not a vector of several."""
    return u.code == C_CONST and type(u.arg) is float and u.arg == value and (value != 0 or str(u.arg) == str(value))


cdef UOp rule_add(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    if u.info.kind == K_INDEX and u.info.count == 1:
        return add_index(u)
    if u.info.kind == K_OTHER:
        return by(FLOAT_ADD_ZERO, a) if is_float(b, -0.0) else None  # x + 0.0 turns -0.0 into 0.0
    if is_value(b, 0):
        return by(ADD_ZERO, a)
    if u.info.kind == K_INT and (is_negated(a, b) or is_negated(b, a)):
        return by(ADD_NEGATIVE, zero_of(u))
    return reassociate(u)


cdef UOp rule_mul(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef int64_t v
    if u.info.kind == K_INDEX and u.info.count == 1:
        return add_index(u) if known(b, &v) else multiply(a, b)
    if u.info.kind == K_OTHER:
        return by(FLOAT_MUL_ONE, a) if is_float(b, 1.0) else None
    if is_value(b, 1):
        return by(MUL_ONE, a)
    return reassociate(u)


cdef UOp multiply(UOp a, UOp b):
    """A product of two unknown indices: the factors in order, leaning to the left, the constant last."""
    cdef int64_t scale = 1, v
    cdef list factors = []
    cdef UOp u, out
    cdef Py_ssize_t i, k
    for start in (b, a):
        u = <UOp>start
        while u.code == C_MUL and len(factors) < MAX_TERMS:
            if known(<UOp>PyTuple_GET_ITEM(u.src, 1), &v):
                if uopc_mul_overflows(scale, v, &scale): return None
            else:
                factors.append(<UOp>PyTuple_GET_ITEM(u.src, 1))
            u = <UOp>PyTuple_GET_ITEM(u.src, 0)
        if u.code == C_MUL:
            return None  # too long
        factors.append(u)
    factors.reverse()
    for i in range(1, len(factors)):
        u = <UOp>factors[i]
        k = i
        while k > 0 and compare_nodes(u, <UOp>factors[k - 1]) < 0:
            factors[k] = factors[k - 1]
            k -= 1
        factors[k] = u
    out = <UOp>factors[0]
    for i in range(1, len(factors)):
        out = binary(C_MUL, out, <UOp>factors[i])
    return by(PRODUCT, out if scale == 1 else binary(C_MUL, out, const_int(scale, a.info)))


cdef UOp rule_divide(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef int64_t p, q
    if u.info.kind == K_INDEX and u.info.count == 1:
        return divide(u)
    if u.code == C_IDIV and is_value(b, 1):
        return by(DIV_ONE, a)
    if u.info.kind == K_INT and known(b, &q) and q > 0 and nested_divisor(a, u.code, &p):
        # x//p//q = x//(p*q), and x%p%q = x%q where q divides p
        if u.code == C_IDIV and not uopc_mul_overflows(p, q, &p) and p <= u.info.hi:
            return by(NESTED_DIV, binary(C_IDIV, <UOp>PyTuple_GET_ITEM(a.src, 0), const_int(p, b.info)))
        if u.code == C_MOD and p % q == 0:
            return by(NESTED_MOD, binary(C_MOD, <UOp>PyTuple_GET_ITEM(a.src, 0), b))
    if u.code == C_MOD and a.lo >= 0 and a.hi != INT64_MAX and a.hi < b.lo:
        return by(DIV_SMALL, a)
    return None


cdef UOp rule_float_divide(UOp u):
    if is_float(<UOp>PyTuple_GET_ITEM(u.src, 1), 1.0):
        return by(FLOAT_DIV_ONE, <UOp>PyTuple_GET_ITEM(u.src, 0))
    return None


cdef UOp rule_shift(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), b = <UOp>PyTuple_GET_ITEM(u.src, 1)
    cdef int64_t v
    if is_value(b, 0):
        return by(SHIFT_ZERO, a)
    if u.info.kind == K_INDEX and known(b, &v) and 0 < v < 62 and u.info.count == 1:
        return by(SHIFT_POWER, binary(C_MUL if u.code == C_SHL else C_IDIV, a, const_int((<int64_t>1) << v, u.info)))
    return None


cdef UOp rule_abs(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0)
    if u.info.kind == K_OTHER:
        return None
    if a.lo >= 0:
        return by(ABS_POSITIVE, a)
    if a.hi <= 0 and u.info.kind == K_INDEX and u.info.count == 1:
        return by(ABS_NEGATIVE, binary(C_MUL, a, const_int(-1, u.info)))
    return None


# ---- casts ---------------------------------------------------------------------------------------

cdef dict MANTISSA = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}


cdef bint holds_all(DInfo wide, UOp u) except -1:
    """Whether each value that ``u`` may have is a value of the type ``wide``."""
    cdef int bits
    narrow = u.dtype.scalar()
    target = wide.dtype.scalar()
    if u.info is wide or u.info.kind == K_BOOL:
        return True
    if u.info.kind == K_OTHER:
        # the exponents of float16 and bfloat16 fit float32; of each other they do not
        return wide.kind == K_OTHER and target.itemsize > narrow.itemsize
    if wide.kind == K_OTHER:
        bits = MANTISSA[target]
        # an int8 fits each float but for float16 and bfloat16, which are not worth a case (and float16 overflows)
        return bits > 11 and u.lo >= -(<int64_t>1 << bits) and u.hi <= (<int64_t>1 << bits)
    if wide.kind == K_BOOL:
        return u.lo >= 0 and u.hi <= 1
    if target.itemsize == narrow.itemsize and u.info.lo < 0 and wide.lo < 0:
        return True  # int64 as an index, and back
    return u.lo >= wide.lo and u.hi <= wide.hi and u.lo != INT64_MIN and u.hi != INT64_MAX


cdef UOp rule_cast(UOp u):
    cdef UOp a = <UOp>PyTuple_GET_ITEM(u.src, 0), x
    if a.info is u.info:
        return by(CAST_SAME, a)
    if a.code == C_CONST and u.info.count == 1:
        return cast_constant(u, a)
    if a.code == C_CAST:
        x = <UOp>PyTuple_GET_ITEM(a.src, 0)
        if holds_all(a.info, x):
            return by(CAST_TWICE, x if x.info is u.info else intern(C_CAST, u.info, (x,), None))
    return None


cdef UOp cast_constant(UOp u, UOp a):
    """A constant as another type, where C says what that is and one rounding gives it."""
    value = a.arg
    target = u.dtype
    if type(value) is tuple:
        return None
    if a.info.kind == K_OTHER:
        if target.is_int:
            if not (value == value and target.min - 1 < value < target.max + 1): return None
        elif target is dtypes.bfloat16 and a.dtype is dtypes.float64:
            return None
    elif target.is_float and abs(value) > 1 << 24:
        return None
    return by(CAST_CONSTANT, intern(C_CONST, u.info, EMPTY, target.convert(value)))


# ---- the simplifier ------------------------------------------------------------------------------

ctypedef UOp (*rule_t)(UOp)

cdef rule_t RULES[MAX_OPS]
cdef bint BINARY[MAX_OPS]
cdef bint COMMUTATIVE[MAX_OPS]
cdef int _op
for _op in range(MAX_OPS):
    RULES[_op] = NULL
    BINARY[_op] = COMMUTATIVE[_op] = False
for _op in TABLE:
    BINARY[_op] = TABLE[Ops(_op)].kind is Kind.ALU and TABLE[Ops(_op)].arity == (2, 2)
    COMMUTATIVE[_op] = BINARY[_op] and bool(TABLE[Ops(_op)].flags & Flags.COMMUTATIVE)
RULES[C_ADD] = rule_add
RULES[C_MUL] = rule_mul
RULES[C_IDIV] = RULES[C_MOD] = rule_divide
RULES[C_DIV] = rule_float_divide
RULES[C_MAX] = RULES[C_MIN] = rule_min_max
RULES[C_CMPLT] = RULES[C_CMPLE] = RULES[C_CMPEQ] = RULES[C_CMPNE] = rule_compare
RULES[C_AND] = RULES[C_OR] = rule_and_or
RULES[C_XOR] = rule_xor
RULES[C_SHL] = RULES[C_SHR] = rule_shift
RULES[C_ABS] = rule_abs
RULES[C_WHERE] = rule_where
RULES[C_CAST] = rule_cast


cdef UOp constant_last(UOp u):
    """``u`` with a constant to its right, where the order of its sources is free: the order that the rules know.

    MIN and MAX of floats keep theirs, which tells 0.0 from -0.0.
    """
    cdef UOp a, b
    if not COMMUTATIVE[u.code] or (u.info.kind == K_OTHER and (u.code == C_MAX or u.code == C_MIN)):
        return u
    a, b = <UOp>PyTuple_GET_ITEM(u.src, 0), <UOp>PyTuple_GET_ITEM(u.src, 1)
    return binary(u.code, b, a) if a.code == C_CONST and b.code != C_CONST else u


cdef UOp built_in(UOp u):
    cdef rule_t rule = RULES[u.code]
    cdef UOp out = None, ordered
    if rule == NULL:
        return None
    if u.lo == u.hi and u.info.count == 1:  # bounds leave one value
        note(ONE_VALUE)
        out = intern(C_CONST, u.info, EMPTY, bool(u.lo)) if u.info.kind == K_BOOL else const_int(u.lo, u.info)
    elif BINARY[u.code] and (<UOp>PyTuple_GET_ITEM(u.src, 0)).code == C_CONST \
            and (<UOp>PyTuple_GET_ITEM(u.src, 1)).code == C_CONST:
        out = by(FOLD, fold(u))
    if out is None:
        note(UNNAMED)
        ordered = constant_last(u)
        out = rule(ordered)
        if out is None:
            out = by(COMMUTE, ordered)
    if out is u:
        return None
    # a scalar in place of a vector or a tensor is not the same
    return out if out.info is u.info and (out.shape_ is u.shape_ or out.shape_ == u.shape_) else None


cdef class Simplifier(Rewriter):
    """Simplifies graphs with one memo for all calls, which keeps what it has seen alive.

    ``matcher``: rules to apply where no built-in one does.  Calls may nest, and threads may interleave.
    """

    def __init__(self, PatternMatcher matcher=None):
        self.matcher = matcher

    cdef UOp step(self, UOp u):
        global last
        cdef UOp out = built_in(u)
        cdef int used = 0
        if out is not None:
            last = applied
        elif self.matcher is not None:
            out = self.matcher.apply(u, None, &used)
            self.rule = used
        return out

    cdef object last_rules(self):
        rules = [] if self.rule is None else [self.matcher.name_of(self.rule)]
        return " and ".join([*rules, *([] if last == UNNAMED else [Law(last).name])])

    cpdef UOp simplify(self, UOp u):
        """``u`` in canonical form."""
        if self.busy:
            return (<Simplifier>Simplifier(self.matcher)).run(u)
        return self.run(u)


def last_law():
    """The name of the built-in rule that was applied last, by any Simplifier."""
    return Law(last).name


def simplify(UOp u not None):
    """``u`` in canonical form, as if by a Simplifier used once."""
    return (<Simplifier>Simplifier()).run(u)


def simplify_all(roots):
    """A list: the canonical forms of ``roots``, which share one memo."""
    cdef Simplifier s = Simplifier()
    return [s.run(<UOp?>u) for u in roots]
