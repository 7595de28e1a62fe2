"""A derived cascade tried on samples: block after block with corrections, against the reductions one after the other.

Everything is float64.  The samples are what breaks a derivation that is right in exact arithmetic only: values that
begin or end thousands above or below the others, beginnings that a mask excludes, rows of zeros, of equal values and of
opposites.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from uopc.cascade.lift import operations
from uopc.ops import ALU, Ops, identity
from uopc.uop import DType, UOp

Array = np.ndarray[Any, Any]
ROWS, STEPS = 128, 9
BLOCKS = ((0, 3), (3, 6), (6, 9))
# In so many rows each third of the axis is shifted by one of these: exp of them, and of their differences, overflows.
SHIFTED = 72
SHIFTS = (-2000.0, -900.0, 0.0, 0.0, 900.0)
# What float64 loses on exponents of a few thousand, and far less than what a wrong factor does.
TOLERANCE = 1e-7
LEAST = 1e-280

_erf: Any = np.frompyfunc(math.erf, 1, 1)
_erfc: Any = np.frompyfunc(math.erfc, 1, 1)
COMPUTE: dict[Ops, Any] = {
    Ops.RECIP: lambda x: 1.0 / x, Ops.SQRT: np.sqrt, Ops.EXP: np.exp, Ops.EXP2: np.exp2, Ops.EXPM1: np.expm1,
    Ops.LOG: np.log, Ops.LOG2: np.log2, Ops.LOG1P: np.log1p, Ops.SIN: np.sin, Ops.COS: np.cos, Ops.TAN: np.tan,
    Ops.TANH: np.tanh, Ops.ERF: lambda x: _erf(x).astype(np.float64),
    Ops.NDTR: lambda x: 0.5 * _erfc(x * -math.sqrt(0.5)).astype(np.float64), Ops.ABS: np.abs, Ops.FLOOR: np.floor,
    Ops.CEIL: np.ceil, Ops.ROUND: np.rint, Ops.TRUNC: np.trunc, Ops.ADD: np.add, Ops.MUL: np.multiply,
    Ops.DIV: np.divide, Ops.IDIV: np.floor_divide, Ops.MOD: np.mod, Ops.FMOD: np.fmod, Ops.POW: np.power,
    Ops.MAX: np.maximum, Ops.MIN: np.minimum, Ops.CMPLT: np.less, Ops.CMPLE: np.less_equal, Ops.CMPEQ: np.equal,
    Ops.CMPNE: np.not_equal, Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
    Ops.SHL: np.left_shift, Ops.SHR: np.right_shift, Ops.WHERE: np.where,
}  # fmt: skip
_REDUCE: dict[Ops, Any] = {
    Ops.ADD: np.sum, Ops.MAX: np.max, Ops.MIN: np.min, Ops.MUL: np.prod, Ops.AND: np.bitwise_and.reduce,
    Ops.OR: np.bitwise_or.reduce, Ops.XOR: np.bitwise_xor.reduce,
}  # fmt: skip


def reduce_samples(op: Ops, x: Array) -> Array:
    """A body's samples combined along the axis."""
    return np.asarray(_REDUCE[op](np.broadcast_to(x, (ROWS, x.shape[-1])), axis=1)).reshape(ROWS, 1)


class Samples:
    """Values for everything that ranged expressions read, the same whenever they are asked for."""

    def __init__(self, along: UOp) -> None:
        self.along = along
        self.rng = np.random.default_rng(20)
        self.leaves: dict[UOp, Array] = {}

    def leaf(self, u: UOp) -> Array:
        """The samples of a LOAD, a RANGE or the bits of something: (ROWS, STEPS) where it varies along the axis, else
        (ROWS, 1)."""
        if u not in self.leaves:
            varies = self.along in u.ranges
            self.leaves[u] = self._positions(u) if u.op is Ops.RANGE else self._values(u.dtype, varies)
        return self.leaves[u]

    def _positions(self, u: UOp) -> Array:
        steps = STEPS if u is self.along else 1
        return np.sort(self.rng.integers(0, u.vmax + 1, (ROWS, steps)), axis=1)

    def _values(self, dtype: DType, varies: bool) -> Array:
        shape = (ROWS, STEPS if varies else 1)
        if dtype.is_bool:
            return self.rng.random(shape) < self.rng.choice([0.1, 0.7, 0.9, 1.0], (ROWS, 1))
        if not dtype.is_float:
            return self.rng.integers(0 if dtype.kind == "u" else -3, 4, shape)
        x = self.rng.standard_normal(shape)
        if not varies:
            return self._settled_rows(x)
        x[:SHIFTED] += np.repeat(self.rng.choice(SHIFTS, (SHIFTED, 3)), (3, 3, 3), axis=1)
        x[SHIFTED:] *= self.rng.choice([1.0, 1e-3, 30.0], (ROWS - SHIFTED, 1))
        kind = self.rng.integers(0, 7, ROWS)
        kind[:SHIFTED] = -1
        x[kind == 0] = x[kind == 0, :1]
        x[kind == 1] = 0.0
        x[kind == 2, 1:] = x[kind == 2, :1] * np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 0.0])
        for k, first in ((3, 3), (4, 6), (5, STEPS)):
            x[kind == k, :first] = -math.inf
        return x

    def _settled_rows(self, x: Array) -> Array:
        """What does not vary: of both signs, of any size, and 0."""
        x *= self.rng.choice([1.0, 1.0, 1e-3, 30.0, 1e3], x.shape)
        x[self.rng.integers(0, 12, ROWS) == 0] = 0.0
        return x


def evaluate(u: UOp, known: dict[UOp, Any], samples: Samples, steps: slice) -> Array:
    """The value of a ranged expression on the samples ``steps`` of the axis; ``known`` holds what stands in buffers."""
    memo: dict[UOp, Any] = {}
    for v in operations(u):
        if v.op in ALU and v.op is not Ops.BITCAST:
            memo[v] = _compute(v, [memo[s] for s in v.src])
        elif v.op is Ops.CONST:
            memo[v] = np.asarray(v.arg, np.float64 if v.dtype.is_float else None)
        else:
            # the bits of a value are any number, as what memory holds
            memory = v.src[0].src[0] if v.op is Ops.LOAD else v
            x = known[memory] if memory in known else samples.leaf(v)
            memo[v] = x[:, steps] if x.shape[1] > 1 else x
    out = memo[u]
    return np.broadcast_to(out, (ROWS, 1)) if out.ndim < 2 else out


def _compute(u: UOp, src: list[Any]) -> Any:
    if u.op is Ops.CAST:
        if u.dtype.is_bool:
            return src[0] != 0
        return src[0].astype(np.float64 if u.dtype.is_float else np.int64)
    return COMPUTE[u.op](*src)


def start(op: Ops, dtype: DType) -> Array:
    """The running value before the first block."""
    return np.full((ROWS, 1), identity(op, dtype), np.float64 if dtype.is_float else None)


def differ(got: Array, want: Array, scale: Array) -> bool:
    """Whether samples tell two results apart: where one is finite and the other is not, or by more than rounding."""
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return True
    near = np.abs(got - want) <= TOLERANCE * np.maximum(np.abs(want), scale) + LEAST
    return not bool(np.all(near | ~finite))
