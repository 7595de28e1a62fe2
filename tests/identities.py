"""Random expressions of one dtype, and what holds for any expression, however it is computed.

``expression(seed, dtype)`` makes an expression as users write them: arithmetic, functions, movement, sums, products,
softmax, norms, masks.  Each *identity* asks for results that are made of one and says what they must be; none knows the
expression's value.  What they have in common: **one value has one rounding**.  A value that is used twice, or that is
given and used, has the same bits at each use, whatever is fused with it.

Values that no sum of floats is part of are moreover the same for every plan (``exact``), and those that correctly
rounded operations alone lead to are known to the bit (``stepwise``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from graphs import Builder, Pick, data, keep, product, triangle
from reference import Array, _node, round_to

from uopc import Tensor
from uopc.dtype import DType, dtypes
from uopc.ops import Ops, ReduceArg
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp, toposort

FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64)
INTS = (dtypes.int32, dtypes.int64, dtypes.int16, dtypes.uint8)
# Factors without a short form in binary, by which products are inexact; and such that a mask's fill stays finite.
FACTORS = (0.11, 1 / 3, 0.7, 3.0, 48**-0.5, -1.7, 0.1, -0.3)
# The largest finite number of each type.
LARGEST = {dtypes.float16: 65504.0, dtypes.bfloat16: 2.0**128 - 2.0**120, dtypes.float32: 2.0**128 - 2.0**104}
DIGITS = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}
# Longer axes are not sorted: each doubling is another few kernels to compile.
LONGEST_SORTED = 40


def largest(dtype: DType) -> float:
    return LARGEST.get(dtype, 1.7976931348623157e308)


class Expressions(Builder):
    """An expression of one dtype under construction."""

    def __init__(self, pick: Pick, dtype: DType) -> None:
        super().__init__(pick)
        self.dtype = dtype

    def buffer(self, shape: tuple[int, ...], dtype: DType | None = None) -> UOp:
        dtype = dtype or self.dtype
        return new_buffer(dtype, shape, data(shape, dtype, self.one((2, 2, 2, 3, 1)), self.pick(1 << 30)))

    def leaf(self, shape: tuple[int, ...], dtype: DType | None = None) -> UOp:
        return super().leaf(shape, dtype or self.dtype)

    def constant(self, dtype: DType) -> UOp:
        return UOp.const(self.one(FACTORS), dtype) if dtype.is_float else super().constant(dtype)

    # ---- what is correctly rounded ----

    def arithmetic(self, u: UOp) -> UOp:
        kind, other = self.pick(9), self.like(u)
        if kind < 6:
            return [u * other, u + other, u - other, u.alu(Ops.MAX, other), u.alu(Ops.MIN, other), u * u][kind]
        if kind == 6:
            return u / (other.alu(Ops.ABS) + 0.5)
        return u * other - self.like(u) if kind == 7 else u * other + self.like(u) * self.like(u)

    def rounded(self, u: UOp) -> UOp:
        kind = self.pick(5)
        if kind == 0:
            return u.alu(Ops.ABS).alu(Ops.SQRT)
        return [-u, u.alu(Ops.ABS), (u.alu(Ops.ABS) + 0.25).recip(), u.alu(self.one((Ops.FLOOR, Ops.ROUND)))][kind - 1]

    def clipped(self, u: UOp) -> UOp:
        return u.alu(Ops.MIN, 9.0).alu(Ops.MAX, -9.0)

    def extremum(self, u: UOp) -> UOp:
        """Over the last axis, there or kept, or over some."""
        if not u.shape or 0 in u.shape:
            return u
        op = self.one((Ops.MAX, Ops.MIN))
        if self.chance(2):
            return u - keep(u, op)
        return UOp(Ops.REDUCE, (u,), ReduceArg(op, (self.pick(len(u.shape)),)))

    # ---- what is not ----

    def function(self, u: UOp) -> UOp:
        op = self.one((Ops.EXP, Ops.TANH, Ops.ERF, Ops.SIN, Ops.LOG, Ops.EXP2, Ops.EXPM1))
        return (u.alu(Ops.ABS) + 0.5).alu(op) if op is Ops.LOG else self.clipped(u).alu(op)

    def total(self, u: UOp) -> UOp:
        if not u.shape:
            return u
        if self.chance(2):
            return keep(u, Ops.ADD)
        return UOp(Ops.REDUCE, (u,), ReduceArg(Ops.ADD, (self.pick(len(u.shape)),)))

    def library(self, u: UOp) -> UOp:
        """What has a name, over the last axis."""
        if not u.shape or 0 in u.shape:
            return u
        t = Tensor._of(u)
        return [
            t.softmax, t.log_softmax, t.layer_norm, t.rms_norm, t.gelu, t.silu, t.sigmoid,
        ][self.pick(7)]().uop  # fmt: skip

    def masked(self, u: UOp) -> UOp:
        """Scores whose masked elements are the lowest number, -1e9 or -inf, times a factor that keeps them there."""
        if len(u.shape) < 2 or 0 in u.shape:
            return u
        never = self.one((-largest(u.dtype), -1e9 if u.dtype is not dtypes.float16 else -6e4, -math.inf))
        mask = triangle(*u.shape[-2:]) if self.chance(2) else self.leaf(u.shape[-2:], dtypes.bool_)
        mask = self.grow(UOp(Ops.RESHAPE, (mask,), ((1,) * (len(u.shape) - 2) + u.shape[-2:])), u.shape)
        scores = mask.where(u, UOp.const(never, u.dtype))
        return scores * self.one((48**-0.5, 0.11, 0.125)) if self.chance(2) else scores

    def scores(self, u: UOp) -> UOp:
        n, m, d = (self.one((4, 17, 33, 8, 5, 1, 48)) for _ in range(3))
        return product(self.leaf((n, d)), self.leaf((m, d))) * self.one((48**-0.5, 1.0, 0.3))

    def step(self) -> None:
        u = self.value()
        if u.dtype.is_bool:  # of a comparison
            u = u.where(self.like(u, self.dtype), self.like(u, self.dtype))
        if not self.dtype.is_float:
            makers = [*[self.binary] * 4, *[self.move] * 3, self.choose, self.join, self.extremum, self.total]
        elif self.kind < 2:
            makers = [*[self.arithmetic] * 6, *[self.move] * 4, self.choose, self.join, self.rounded, self.clipped]
            makers += [self.extremum, *[self.function] * (4 * self.kind)]
        else:
            makers = [*[self.arithmetic] * 4, *[self.move] * 2, self.choose, self.join, self.clipped, self.function]
            makers += [*[self.total] * 2, *[self.library] * 3, *[self.masked] * 2, *[self.scores] * 2, self.scan]
            makers += [self.extremum]
        made = self.one(makers)(u)
        if made.dtype.is_bool and made.shape == u.shape:
            made = made.where(u, self.like(u))
        if 0 not in made.shape:
            self.pool.append(made)

    kind = 0  # 0: correctly rounded operations alone, 1: functions too, 2: sums and all that is made of them


# Functions of the table that round once, or not at all; not POW, EXP, ... which are within some ULP.
_ROUNDED = {
    Ops.ADD, Ops.MUL, Ops.DIV, Ops.RECIP, Ops.SQRT, Ops.ABS, Ops.MAX, Ops.MIN, Ops.FLOOR, Ops.CEIL, Ops.ROUND,
    Ops.TRUNC, Ops.WHERE, Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE, Ops.AND, Ops.OR, Ops.XOR,
}  # fmt: skip
_MOVES = {
    Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.SHRINK, Ops.FLIP, Ops.STRIDE, Ops.PAD, Ops.VIEW, Ops.STACK, Ops.CAT,
    Ops.STAGE, Ops.BUFFER, Ops.CONST, Ops.IOTA, Ops.CAST,
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """An expression, and what of it is known beforehand."""

    seed: int
    dtype: DType
    root: UOp

    @cached_property
    def exact(self) -> bool:
        """No sum or product of floats is part of it, so that no order is: every plan gives the same bits."""
        return not any(
            u.op is Ops.REDUCE and u.dtype.is_float and u.arg.op in (Ops.ADD, Ops.MUL) for u in toposort(self.root)
        )

    @cached_property
    def known(self) -> bool:
        """Correctly rounded operations alone."""
        return self.exact and all(u.op in _ROUNDED or u.op in _MOVES or u.op is Ops.REDUCE for u in toposort(self.root))

    @cached_property
    def leaves(self) -> list[UOp]:
        """The buffers of the expression and of its twin."""
        return [u for u in toposort([self.root, self.twin]) if u.op is Ops.BUFFER]

    @cached_property
    def twin(self) -> UOp:
        """The same expression of copies of all that it is made of; itself where it is not exact, since sums of equal
        numbers may be taken in two orders."""
        buffers = [u for u in toposort(self.root) if u.op is Ops.BUFFER] if self.exact else []
        return self.root.substitute({b: new_buffer(b.dtype, b.shape, b.realized.array.copy()) for b in buffers})


def expression(seed: int, dtype: DType, pick: Pick) -> Expression:
    """A random expression of at least one axis and one element."""
    b = Expressions(pick, dtype)
    b.kind = b.one((2, 0, 1, 2))
    b.pool.append(b.leaf(b.shape(3) or (7,)))
    if b.chance(30):
        shape = b.one(((140_001,), (37, 4099), (300, 513), (131_072,)))
        b.limit = math.prod(shape)
        b.pool.append(b.buffer(shape))
    sums = (b.scores, b.total, b.library, b.total) if b.kind == 2 and dtype.is_float else ()
    if sums:  # first, so that others are made of it, or last, so that it is what is used twice
        b.pool.append(b.one(sums)(b.pool[-1]))
    for _ in range(1 + b.pick(7)):
        b.step()
    if sums and b.chance(2):
        b.pool.append(b.one(sums)(b.pool[-1]))
    roots = [u for u in b.pool if u.shape and 0 not in u.shape and u.dtype is dtype]
    return Expression(seed, dtype, roots[-1] if roots else b.buffer((5, 7)))


def stepwise(root: UOp) -> Array:
    """The value of an expression that is ``known``: each operation in the type itself; on halves in float32, rounded to
    nearest even where the operation ends.  bfloat16 as float32."""
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for u in toposort(root):
            value = _node(u, [values[s] for s in u.src], False)
            values[u] = round_to(u.dtype, value) if u.dtype.is_half else value
    return values[root].astype(np.float16) if root.dtype is dtypes.float16 else values[root]


# ---- identities ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """What an identity may choose: an axis (of all: None), a factor, and the twin of an expression that is exact."""

    axis: int | None
    factor: float
    twin: Tensor
    dtype: DType


Results = dict[str, Tensor]
Verdict = Generator[Results, dict[str, Array], "str | None"]
Identity = Callable[[Tensor, Draw], Verdict]


def _never(name: str, condition: Tensor) -> Verdict:
    """``condition`` holds nowhere."""
    answers = yield {name: condition.sum()}
    count = int(answers[name])
    return f"{name} at {count} of {condition.numel()} elements" if count else None


def difference(x: Tensor, draw: Draw) -> Verdict:
    """x - x is 0 where x is finite."""
    return (yield from _never("x - x != 0", x.isfinite() & (x - x != 0)))


def twins(x: Tensor, draw: Draw) -> Verdict:
    """The same operations on equal numbers give equal numbers."""
    t = draw.twin
    return (yield from _never("x != its twin", (x == x) & (x != t) | ((x == x) != (t == t))))


def squares(x: Tensor, draw: Draw) -> Verdict:
    """sqrt(a*a - b*b) is 0 for a == b."""
    t = draw.twin
    return (yield from _never("sqrt(a*a - b*b) != 0", (x * x).isfinite() & ((x * x - t * t).sqrt() != 0)))


def products(x: Tensor, draw: Draw) -> Verdict:
    """a*c - b*c is 0 for a == b."""
    y, t = x * draw.factor, draw.twin * draw.factor
    return (yield from _never("x*c - t*c != 0", y.isfinite() & (y - t != 0)))


def attained(x: Tensor, draw: Draw) -> Verdict:
    """Some element is the maximum, unless that is NaN."""
    top = x.max(draw.axis, keepdim=True)
    return (yield from _never("no x == x.max()", ((x == top) | (top != top)).any(draw.axis).logical_not()))


def attained_scaled(x: Tensor, draw: Draw) -> Verdict:
    y = x * draw.factor
    return (yield from attained(y, draw))


def below(x: Tensor, draw: Draw) -> Verdict:
    """x.max() - x is not negative, and neither is x - x.min()."""
    top, bottom = x.max(draw.axis, keepdim=True), x.min(draw.axis, keepdim=True)
    return (yield from _never("x.max() - x < 0", (top - x < 0) | (x - bottom < 0)))


def below_scaled(x: Tensor, draw: Draw) -> Verdict:
    """x*c - max(x*c) is not positive."""
    y = x * draw.factor
    return (yield from _never("x*c - max(x*c) > 0", y - y.max(draw.axis, keepdim=True) > 0))


def centred(x: Tensor, draw: Draw) -> Verdict:
    """The maximum of x*c - max(x*c) is 0 where that is finite."""
    y = x * draw.factor
    top = y.max(draw.axis, keepdim=True)
    most = (y - top).max(draw.axis, keepdim=True)
    return (yield from _never("max(y - y.max()) != 0", top.isfinite() & (most != 0) & (y == y).all(draw.axis, True)))


def above(x: Tensor, draw: Draw) -> Verdict:
    """Integers: nothing is above the maximum or below the minimum."""
    top, bottom = x.max(draw.axis, keepdim=True), x.min(draw.axis, keepdim=True)
    return (yield from _never("x > x.max()", (x > top) | (x < bottom)))


def _at(values: Array, places: Array, axis: int | None) -> Array:
    if axis is None:
        return values.reshape(-1)[places]
    return np.take_along_axis(values, np.expand_dims(places, axis), axis).squeeze(axis)


def _equal(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def positions(x: Tensor, draw: Draw) -> Verdict:
    """argmax and max, argmin and min, and x itself, asked for together."""
    axis = draw.axis
    a = yield {
        "x": x,
        f"max {axis}": x.max(axis),
        f"argmax {axis}": x.argmax(axis),
        f"min {axis}": x.min(axis),
        f"argmin {axis}": x.argmin(axis),
    }
    for name, best in (("max", np.argmax), ("min", np.argmin)):
        if not _equal(a[f"arg{name} {axis}"], best(a["x"], axis)):
            return f"arg{name} is not NumPy's of x"
        if not _equal(_at(a["x"], a[f"arg{name} {axis}"], axis), a[f"{name} {axis}"]):
            return f"x[arg{name}] is not x.{name}()"
    return None


def position(x: Tensor, draw: Draw) -> Verdict:
    """x at argmax, read where it was found, is max."""
    y = (x * draw.factor if draw.dtype.is_float else x).flatten() if draw.axis is None else x
    axis = draw.axis or 0
    top = y.max(axis, keepdim=True)
    found = y.gather(axis, y.argmax(axis, keepdim=True))
    return (yield from _never("x[argmax] != max", (found != top) & (top == top)))


def softmax(x: Tensor, draw: Draw) -> Verdict:
    """Of a finite row no NaN, nothing negative, and a sum of 1."""
    axis = -1 if draw.axis is None else draw.axis
    a = yield {"x": x, "softmax": x.softmax(axis)}
    weights = np.moveaxis(a["softmax"], axis, -1)
    finite = np.isfinite(np.moveaxis(a["x"], axis, -1)).all(-1)
    if not (weights[finite] >= 0).all():
        return "softmax of a finite row is NaN or negative"
    return _sum_is_one(weights[finite].astype(np.float64), draw.dtype)


def softmax_scaled(x: Tensor, draw: Draw) -> Verdict:
    """The same of x*c, which nobody asks for."""
    axis = -1 if draw.axis is None else draw.axis
    y = x * draw.factor
    a = yield {"finite": y.isfinite().all(axis), "softmax": y.softmax(axis)}
    weights = np.moveaxis(a["softmax"], axis, -1)[a["finite"]]
    if not (weights >= 0).all():
        return "softmax of a finite row is NaN or negative"
    return _sum_is_one(weights.astype(np.float64), draw.dtype)


def _sum_is_one(weights: Array, dtype: DType) -> str | None:
    """Each of n weights is a quotient of what is added and the sum: rounded, and off by the exponential's error if
    blocks computed it with different maxima (4 ULP, at both); the sum by n - 1 roundings.  A half rounds its weight."""
    n, u = weights.shape[-1], 2.0 ** -max(DIGITS[dtype], 24)
    least = 2.0**-24 if dtype is dtypes.float16 else 2.0**-126
    bound = (n + 40) * u + (2.0 ** -DIGITS[dtype] if dtype.is_half else 0.0) + n * least
    off = np.abs(weights.sum(-1) - 1).max(initial=0.0)
    return f"softmax sums to 1 only within {off:.3g}, more than {bound:.3g}" if off > bound else None


def log_softmax(x: Tensor, draw: Draw) -> Verdict:
    """Not positive, and a number where the row is finite."""
    axis = -1 if draw.axis is None else draw.axis
    y = x * draw.factor
    logs = y.log_softmax(axis)
    wrong = (logs > 0) | (y.isfinite().all(axis, keepdim=True) & logs.isnan())
    return (yield from _never("log_softmax is positive or NaN", wrong))


def cumulative(x: Tensor, draw: Draw) -> Verdict:
    """The last of cumsum is sum, and both are the sum of what x is."""
    axis = 0 if draw.axis is None else draw.axis
    a = yield {"x": x, "cumsum": x.cumsum(axis), "sum": x.sum(axis)}
    last = np.take(a["cumsum"], -1, axis)
    if not draw.dtype.is_float:
        return None if _equal(last, a["sum"]) and _equal(a["sum"], a["x"].sum(axis)) else "cumsum[-1] is not sum"
    wide = a["x"].astype(np.float64)
    with np.errstate(all="ignore"):
        size, exact = np.abs(wide).sum(axis), wide.sum(axis)
        bound = (
            wide.shape[axis] * 2.0 ** -max(DIGITS[draw.dtype], 24) * size + np.abs(exact) * 2.0 ** -DIGITS[draw.dtype]
        )
        bound += 2.0**-24 if draw.dtype is dtypes.float16 else 2.0**-126
        for name, value in (("sum", a["sum"]), ("cumsum[-1]", last)):
            off = np.abs(value.astype(np.float64) - exact)
            wrong = (size < largest(draw.dtype) / 2) & ~(off <= 2 * bound)
            if wrong.any():
                return f"{name} is off by {off[wrong].max():.3g}, more than {2 * bound[wrong].min():.3g}"
    return None


def ordered(x: Tensor, draw: Draw) -> Verdict:
    """sort is a permutation in order, and argsort and topk say the same."""
    axis = x.ndim - 1 if draw.axis is None else draw.axis
    if x.shape[axis] > LONGEST_SORTED:
        x = x[(slice(None),) * axis + (slice(LONGEST_SORTED),)]
    k = x.shape[axis] // 2
    top, places = x.topk(k, axis)
    a = yield {"first x": x, "sort": x.sort(axis), "argsort": x.argsort(axis), "topk": top, "places": places}
    values = a["first x"]
    expected = np.sort(values, axis)
    if not _equal(a["sort"], expected):
        return "sort is not NumPy's of x"
    if not _equal(a["argsort"], np.argsort(values, axis, kind="stable")):
        return "argsort is not NumPy's of x"
    if not _equal(a["topk"], np.take(np.flip(expected, axis), range(k), axis)):
        return "topk is not the end of sort"
    if not _equal(np.take_along_axis(values, a["places"], axis), a["topk"]):
        return "x at topk's places is not topk"
    return None


def alone(x: Tensor, draw: Draw) -> Verdict:
    """x by itself: what it is when asked for beside others."""
    yield {"x": x}
    return None


def extrema(x: Tensor, draw: Draw) -> Verdict:
    """Maximum and its position, without x."""
    yield {f"max {draw.axis}": x.max(draw.axis), f"argmax {draw.axis}": x.argmax(draw.axis)}
    return None


OF_FLOATS: tuple[Identity, ...] = (
    alone, positions, difference, below_scaled, attained, softmax, squares, below, attained_scaled, position, extrema,
    log_softmax, centred, twins, products, softmax_scaled, cumulative, ordered,
)  # fmt: skip
OF_INTS: tuple[Identity, ...] = (alone, positions, difference, attained, above, position, cumulative, ordered, extrema)
# What compares the values of two graphs, which sums may round in two orders.
OF_EXACT = (twins,)


def identities(dtype: DType) -> tuple[Identity, ...]:
    return OF_FLOATS if dtype.is_float else OF_INTS


def answer_of(tensor: Any) -> Array:
    return np.asarray(tensor.numpy())
