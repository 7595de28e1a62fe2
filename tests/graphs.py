"""Random tensor graphs: what property tests feed to the compiler.

``build(pick)`` makes a graph out of choices: ``pick(n)`` is a number in ``range(n)``, drawn by hypothesis or from a
seeded generator, 0 being
the plainest choice.  Every node is legal, and every GATHER stays in range; values may be anything, NaN included.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from uopc.dtype import SIGNED, UNSIGNED, DType, dtypes, float32_to_bfloat16
from uopc.ops import Level, Ops, ReduceArg, ViewArg
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp

T = TypeVar("T")
Pick = Callable[[int], int]

SIZES = (2, 3, 1, 4, 5, 0, 7, 8, 9, 16, 17, 31, 33, 65)
SMALL = 3000  # elements of an ordinary value
LARGE = 1 << 18  # and of the few that reach split reductions, chunks and threads
DTYPES = (
    *[dtypes.float32] * 8, *[dtypes.float64] * 2, *[dtypes.float16] * 2, *[dtypes.bfloat16] * 2, *[dtypes.int32] * 3,
    dtypes.bool_, dtypes.bool_, *SIGNED, *UNSIGNED,
)  # fmt: skip
ANY_REDUCE = (Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL)
INT_REDUCE = (*ANY_REDUCE, Ops.AND, Ops.OR, Ops.XOR)
FLOAT_UNARY = (
    Ops.ABS, Ops.SQRT, Ops.EXP, Ops.RECIP, Ops.EXP2, Ops.EXPM1, Ops.LOG, Ops.LOG2, Ops.LOG1P, Ops.SIN, Ops.COS,
    Ops.TAN, Ops.TANH,
    Ops.ERF, Ops.NDTR, Ops.FLOOR, Ops.CEIL, Ops.ROUND, Ops.TRUNC,
)  # fmt: skip
BOOL_BINARY = (Ops.AND, Ops.OR, Ops.XOR, Ops.MAX, Ops.MIN, Ops.ADD, Ops.MUL)
INT_BINARY = (*BOOL_BINARY, Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR)
FLOAT_BINARY = (Ops.ADD, Ops.MUL, Ops.DIV, Ops.MAX, Ops.MIN, Ops.POW, Ops.FMOD)
COMPARISONS = (Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE)
# No number so large that a factor taken out of a sum lets it overflow on the way: a cascade's deferred division does.
SPECIAL = (
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    1e30,
    -1e30,
    1e-40,
    1e-45,
    65504.0,
    7e4,
    1e200,
    88.7,
    -104.0,
    1e9,
)


def seeded(seed: int) -> Pick:
    """Choices from a seed, the same on every machine."""
    return random.Random(seed).randrange


def data(shape: tuple[int, ...], dtype: DType, kind: int, seed: int) -> np.ndarray[Any, Any]:
    """Flat values of ``dtype``.  Kinds: 0 small integers, 1 eighths, 2 normal, 3 wide, 4 the values at which
    functions go wrong."""
    rng = np.random.default_rng(seed)
    n = math.prod(shape)
    if dtype.is_bool:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_int:
        if kind < 3:
            return rng.integers(0 if dtype.kind == "u" else -9, 10, n).astype(dtype.numpy)
        low, high = dtype.min, dtype.max
        wide = rng.integers(low, high, n, dtype=dtype.numpy, endpoint=True)
        return (
            wide
            if kind == 3
            else np.where(rng.random(n) < 0.5, rng.choice(np.array([low, high, 0, 1], dtype.numpy), n), wide)
        )
    if kind == 0:
        values = rng.integers(-5, 6, n).astype(np.float64)
    elif kind == 1:
        values = rng.integers(-24, 25, n) / 8.0
    elif kind == 2:
        values = rng.standard_normal(n)
    elif kind == 3:
        values = rng.standard_normal(n) * 2.0 ** rng.integers(-12, 10, n)
    else:
        values = np.where(rng.random(n) < 0.5, rng.choice(np.array(SPECIAL), n), rng.standard_normal(n) * 4)
    with np.errstate(over="ignore"):
        if dtype is dtypes.bfloat16:
            return np.asarray(float32_to_bfloat16(values.astype(np.float32)))
        return values.astype(dtype.numpy)


class Builder:
    """A graph under construction: a pool of values, and the steps that add one."""

    def __init__(self, pick: Pick, special: bool = False) -> None:
        self.pick = pick
        self.special = special
        self.pool: list[UOp] = []
        self.limit = SMALL

    # -- choices

    def one(self, options: Sequence[T]) -> T:
        return options[self.pick(len(options))]

    def chance(self, one_in: int) -> bool:
        """True once in ``one_in``; the plainest choice is False."""
        return self.pick(one_in) == one_in - 1

    def shape(self, most: int = 5) -> tuple[int, ...]:
        shape: list[int] = []
        for _ in range(self.one((2, 1, 3, 2, 0, 4, 5, 3)) if most == 5 else self.pick(most + 1)):
            room = self.limit // max(math.prod(shape), 1)
            shape.append(self.one([n for n in SIZES if n <= room or n == 1]))
        return tuple(shape)

    def value(self) -> UOp:
        """Some value of the pool, recent ones more often."""
        back = min(self.pick(len(self.pool)), self.pick(len(self.pool)))
        return self.pool[-1 - back]

    # -- leaves

    def buffer(self, shape: tuple[int, ...], dtype: DType | None = None) -> UOp:
        dtype = dtype or self.one(DTYPES)
        kind = 4 if self.special and not self.chance(3) else self.one((0, 1, 2, 2, 3) if dtype.is_int else (0, 1, 2))
        return new_buffer(dtype, shape, data(shape, dtype, kind, self.pick(1 << 30)))

    def leaf(self, shape: tuple[int, ...], dtype: DType | None = None) -> UOp:
        kind = self.pick(8)
        if kind < 5:
            return self.buffer(shape, dtype)
        if kind == 5:
            return self.view(shape, dtype)
        dtype = dtype or self.one(DTYPES)
        if kind == 6 and not dtype.is_bool:
            flat = UOp(Ops.IOTA, (), math.prod(shape), dtypes.int32 if dtype.is_float else dtype).cast(dtype)
            return UOp(Ops.RESHAPE, (flat,), shape)
        return self.grow(UOp(Ops.RESHAPE, (self.constant(dtype),), (1,) * len(shape)), shape)

    def constant(self, dtype: DType) -> UOp:
        values: Sequence[float] = (1, 0, 2, 3, 7) if not dtype.is_float else (1.0, 0.5, 0.0, -1.0, 2.0, 0.1)
        if self.special and self.chance(3):
            values = SPECIAL if dtype.is_float else (dtype.min, dtype.max)
        return UOp.const(self.one(values), dtype)

    def view(self, shape: tuple[int, ...], dtype: DType | None) -> UOp:
        """A strided window: negative and zero strides, and gaps."""
        size, strides = 1, [0] * len(shape)
        for axis in self.shuffled(len(shape)):
            n = shape[axis]
            if self.chance(6):
                continue  # stride 0
            strides[axis] = size * self.one((1, -1)) * self.one((1, 1, 2))
            size = abs(strides[axis]) * max(n, 1)
        reach = [s * (n - 1) for s, n in zip(strides, shape)]
        before = self.pick(3)
        offset = before - sum(min(r, 0) for r in reach) if math.prod(shape) else 0
        total = offset + sum(max(r, 0) for r in reach) + 1 + self.pick(3)
        return UOp(Ops.VIEW, (self.buffer((max(total, 1),), dtype),), ViewArg(shape, tuple(strides), offset))

    def shuffled(self, n: int) -> list[int]:
        left, out = list(range(n)), []
        while left:
            out.append(left.pop(self.pick(len(left))))
        return out

    # -- movement

    def grow(self, u: UOp, shape: tuple[int, ...]) -> UOp:
        """EXPAND to ``shape``, of as many axes."""
        return u if u.shape == shape else UOp(Ops.EXPAND, (u,), shape)

    def move(self, u: UOp) -> UOp:
        if self.chance(20):
            return UOp(Ops.STAGE, (u,), Level.KERNEL)
        kind = self.one((Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.EXPAND, Ops.PAD, Ops.FLIP, Ops.STRIDE))
        shape = u.shape
        if kind is Ops.RESHAPE:
            return UOp(kind, (u,), self.reshaped(shape))
        if kind is Ops.PERMUTE:
            return UOp(kind, (u,), tuple(self.shuffled(len(shape))))
        if kind is Ops.SHRINK:
            return UOp(kind, (u,), tuple(self.cut(n) for n in shape))
        if kind is Ops.EXPAND:
            return self.grow(u, self.expanded(u))
        if kind is Ops.PAD:
            pads = [(self.one((0, 1, 2, 9)), self.one((0, 1, 3))) for _ in shape]
            padded = UOp(kind, (u,), tuple(pads))
            return padded if math.prod(padded.shape) <= self.limit else u
        if kind is Ops.FLIP:
            return UOp(kind, (u,), tuple(a for a in range(len(shape)) if self.chance(2)))
        return UOp(kind, (u,), tuple(self.one((1, 2, 3)) for _ in shape))

    def cut(self, n: int) -> tuple[int, int]:
        """Bounds within an axis, mostly all of it, seldom nothing."""
        low, high = sorted((self.pick(n + 1), self.pick(n + 1))) if self.chance(2) else (0, n)
        return (low, high) if low < high or self.chance(8) else (0, n)

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape of as many elements: flat, with ones, with factors moved between axes."""
        total = math.prod(shape)
        kind = self.pick(4)
        if kind == 0:
            return (total,)
        if kind == 1 and len(shape) < 5:
            at = self.pick(len(shape) + 1)
            return (*shape[:at], 1, *shape[at:])
        if not total:
            return tuple(shape[a] for a in self.shuffled(len(shape)))
        out: list[int] = []
        while total > 1 and len(out) < 4:
            divisors = [d for d in range(2, min(total, 70) + 1) if total % d == 0] or [total]
            out.append(self.one(divisors))
            total //= out[-1]
        return (
            tuple([*out, total] if total > 1 or not out else out)
            if self.chance(2)
            else tuple([total, *out] if total > 1 else out)
        )

    def expanded(self, u: UOp) -> tuple[int, ...]:
        out = list(u.shape)
        for axis, n in enumerate(out):
            room = self.limit // max(math.prod(out), 1)
            fitting = [s for s in SIZES if s <= room]
            if n == 1 and fitting:
                out[axis] = self.one(fitting)
        return tuple(out)

    def like(self, u: UOp, dtype: DType | None = None) -> UOp:
        """A value of the shape of ``u`` (or a scalar) and of ``dtype``: from the pool where one broadcasts, else
        new."""
        if self.chance(6):
            return self.constant(dtype or u.dtype)
        found = [p for p in self.pool if _broadcasts(p.shape, u.shape)]
        if found and not self.chance(3):
            other = found[self.pick(len(found))]
            lead = (1,) * (len(u.shape) - len(other.shape))
            other = self.grow(UOp(Ops.RESHAPE, (other,), lead + other.shape) if lead else other, u.shape)
        else:
            other = self.grow(self.leaf(tuple(1 if self.chance(3) else n for n in u.shape), dtype), u.shape)
        return self.convert(other, dtype or u.dtype)

    def convert(self, u: UOp, dtype: DType) -> UOp:
        if u.dtype.is_float and dtype.is_int and not self.special:
            u = u.alu(Ops.MIN, 100.0).alu(Ops.MAX, 0.0 if dtype.kind == "u" else -100.0)
        return u.cast(dtype)

    # -- computation

    def unary(self, u: UOp) -> UOp:
        if u.dtype.is_bool:
            return u.cast(self.one(DTYPES))
        if u.dtype.is_int:
            return u.alu(Ops.ABS) if self.chance(3) else self.convert(u, self.one(DTYPES))
        op = self.one(FLOAT_UNARY)
        if self.special:
            return u.alu(op)
        if op in (Ops.LOG, Ops.LOG2, Ops.SQRT, Ops.LOG1P):
            u = u.alu(Ops.ABS) + (0.5 if op is not Ops.SQRT else 0.0)
        elif op is Ops.RECIP:
            u = u.alu(Ops.ABS) + 0.25
        elif op in (Ops.EXP, Ops.EXP2, Ops.EXPM1, Ops.TAN, Ops.SIN, Ops.COS):
            u = u.alu(Ops.MIN, 8.0).alu(Ops.MAX, -8.0)
        return u.alu(op)

    def binary(self, u: UOp) -> UOp:
        if u.dtype.is_bool:
            return u.alu(self.one(BOOL_BINARY), self.like(u))
        if u.dtype.is_int:
            op = self.one(INT_BINARY)
            other = self.like(u)
            if op in (Ops.SHL, Ops.SHR) and not self.special:
                other = other & 7
            return other.alu(op, u) if self.chance(3) else u.alu(op, other)
        op = self.one(FLOAT_BINARY)
        other = self.like(u)
        if op in (Ops.DIV, Ops.FMOD) and not self.special:
            other = other.alu(Ops.ABS) + 0.5
        if op is Ops.POW and not self.special:
            u, other = u.alu(Ops.ABS).alu(Ops.MIN, 9.0) + 0.25, other.alu(Ops.MIN, 3.0).alu(Ops.MAX, -3.0)
        return u.alu(op, other)

    def choose(self, u: UOp) -> UOp:
        compared = u.alu(self.one(COMPARISONS), self.like(u))
        if self.chance(3):
            return compared
        return compared.where(u, self.like(u)) if self.chance(2) else compared.where(self.like(u), u)

    def cast(self, u: UOp) -> UOp:
        if self.chance(6) and u.dtype.is_int:
            same = [d for d in (*SIGNED, *UNSIGNED) if d.itemsize == u.dtype.itemsize]
            return u.bitcast(self.one(same))
        return self.convert(u, self.one(DTYPES))

    def reduce(self, u: UOp) -> UOp:
        axes = tuple(a for a in range(len(u.shape)) if self.chance(2)) or (
            (self.pick(len(u.shape)),) if u.shape else ()
        )
        if not axes:
            return u
        op = self.one(INT_REDUCE if not u.dtype.is_float else ANY_REDUCE)
        if op is Ops.MUL and u.dtype.is_float and not self.special:
            u = u.alu(Ops.MIN, 1.25).alu(Ops.MAX, -1.25)
        return UOp(Ops.REDUCE, (u,), ReduceArg(op, axes))

    def scan(self, u: UOp) -> UOp:
        """A sum over a triangle."""
        n = u.shape[0] if len(u.shape) == 1 else 0
        if not n or n > 70:
            return u
        rows = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (u,), (1, n)),), (n, n))
        return UOp(Ops.REDUCE, (triangle(n).where(rows, UOp.const(0, u.dtype)),), ReduceArg(Ops.ADD, (1,)))

    # -- joins

    def join(self, u: UOp) -> UOp:
        count = self.one((2, 3, 1, 4, 5, 37))
        if count * math.prod(u.shape) > self.limit:
            return u
        parts = [u] + [
            self.like(u) if count < 9 else u + u.dtype.convert(k) if not u.dtype.is_bool else u
            for k in range(count - 1)
        ]
        parts = [
            UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (p,), (1,) * len(u.shape)),), u.shape) if p.shape != u.shape else p
            for p in parts
        ]
        if not u.shape or self.chance(2):
            return UOp(Ops.STACK, tuple(parts))
        axis = self.pick(len(u.shape))
        cut = [
            UOp(
                Ops.SHRINK,
                (p,),
                tuple((0, self.pick(n + 1)) if a == axis and self.chance(3) else (0, n) for a, n in enumerate(p.shape)),
            )
            for p in parts
        ]
        return UOp(Ops.CAT, tuple(cut), axis)

    def gather(self, u: UOp) -> UOp:
        """Indices from memory, or computed; in range by a MOD."""
        shape = self.shape(3)
        if not u.shape or 0 in u.shape:
            return u
        kind = self.one((dtypes.int32, dtypes.int64, dtypes.uint8))
        index = []
        for n in u.shape:
            if kind is dtypes.uint8 and n > 127:
                kind = dtypes.int32
            index.append(
                self.grow(self.leaf(tuple(1 if self.chance(3) else s for s in shape), kind), shape).alu(Ops.MOD, n)
            )
        return UOp(Ops.GATHER, (u, *index))

    # -- what users write

    def matmul(self, u: UOp) -> UOp:
        m, k, n = (self.one((4, 17, 33, 65, 5, 1, 64)) for _ in range(3))
        dtype = u.dtype if not u.dtype.is_bool else dtypes.float32
        a, b = self.leaf((m, k), dtype), self.leaf((k, n) if self.chance(2) else (n, k), dtype)
        if b.shape == (k, n):
            b = UOp(Ops.PERMUTE, (b,), (1, 0))
        if b.shape != (n, k):
            return u
        if self.chance(3):
            a = a.alu(Ops.MAX, 0)
        return product(a, b)

    def softmax(self, u: UOp) -> UOp:
        if not u.shape or not u.shape[-1]:
            return u
        u = u if u.dtype.is_float else u.cast(dtypes.float32)
        if not self.special:
            u = u.alu(Ops.MIN, 30.0).alu(Ops.MAX, -30.0)
        if len(u.shape) == 2 and u.shape[0] == u.shape[1] and self.chance(2):
            u = triangle(u.shape[0]).where(u, UOp.const(-math.inf, u.dtype))
        e = (u - keep(u, Ops.MAX)).alu(Ops.EXP)
        return e / keep(e, Ops.ADD)

    def attention(self, u: UOp) -> UOp:
        """Weights from products of rows, masked or not, and what they make of other rows; with heads, or without."""
        n, m, d, e = (self.one((4, 17, 33, 8, 5, 1, 40)) for _ in range(4))
        lead = self.one(((), (2,), (), (1, 3)))
        dtype = self.one((dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16))
        q, k, v = (self.leaf((*lead, *s), dtype) for s in ((n, d), (m, d), (e, m) if self.chance(2) else (m, e)))
        if v.shape[-2:] == (m, e) and m != e:
            axes = len(lead)
            v = UOp(Ops.PERMUTE, (v,), (*range(axes), axes + 1, axes))
        if v.shape[-1] != m:
            return u
        scores = product(q, k) * self.one((0.125, 1.0, -0.5))
        if not self.special:
            scores = scores.alu(Ops.MIN, 30.0).alu(Ops.MAX, -30.0)
        if self.chance(2):
            mask = triangle(n, m) if self.chance(2) else self.leaf((n, m), dtypes.bool_)
            mask = self.grow(UOp(Ops.RESHAPE, (mask,), (*(1 for _ in lead), n, m)), scores.shape)
            scores = mask.where(scores, UOp.const(self.one((-math.inf, -1e30, 0.0)), dtype))
        kind = self.pick(5)
        if kind == 1:
            weights = scores.alu(Ops.EXP)  # no maximum
        elif kind == 2:
            weights = (scores - keep(scores, Ops.MAX)).alu(Ops.EXP)  # no sum
        elif kind == 3:
            centred = scores - keep(scores, Ops.MAX)
            weights = centred * centred  # not of a form that keeps up with a changing maximum
        else:
            e = (scores - keep(scores, Ops.MAX)).alu(Ops.EXP)
            weights = e / keep(e, Ops.ADD)
        return product(weights, v)

    def normalise(self, u: UOp) -> UOp:
        if not u.shape or not u.shape[-1]:
            return u
        u = u if u.dtype.is_float else u.cast(dtypes.float32)
        n = float(u.shape[-1])
        centred = u - keep(u, Ops.ADD) * (1.0 / n)
        return centred * (keep(centred * centred, Ops.ADD) * (1.0 / n) + 0.125).alu(Ops.SQRT).recip()

    def large(self, u: UOp) -> UOp:
        """A value big enough for threads, chunks and reductions in parts."""
        self.limit = LARGE
        shape = self.one(((140_001,), (37, 4099), (300, 513), (131_072, 2), (3, 50_000), (40, 61, 67)))
        dtype = self.one((dtypes.float32, dtypes.int32, dtypes.float16, dtypes.float64, dtypes.uint8))
        return new_buffer(dtype, shape, data(shape, dtype, self.one((0, 1, 2)), self.pick(1 << 30)))

    def step(self) -> None:
        """One more value in the pool."""
        u = self.value()
        makers = (
            *[self.binary] * 6, *[self.unary] * 4, *[self.move] * 8, *[self.reduce] * 5, *[self.choose] * 2,
            *[self.cast] * 2, *[self.join] * 2, self.gather, *[self.attention] * 2, *[self.matmul] * 2,
            self.softmax, self.normalise, self.scan,
        )  # fmt: skip
        made = self.one(makers)(u)
        if made.shape or made is not u:
            self.pool.append(made)


def keep(u: UOp, op: Ops) -> UOp:
    """A reduction of the last axis, repeated along it."""
    small = UOp(Ops.REDUCE, (u,), ReduceArg(op, (len(u.shape) - 1,)))
    return UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (small,), (*small.shape, 1)),), u.shape)


def product(a: UOp, b: UOp) -> UOp:
    """The products of the rows of ``a`` and of ``b``, summed: a matrix times a transposed one, over leading axes."""
    *lead, n, k = a.shape
    m = b.shape[-2]
    left = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (a,), (*lead, n, 1, k)),), (*lead, n, m, k))
    right = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (b,), (*lead, 1, m, k)),), (*lead, n, m, k))
    return UOp(Ops.REDUCE, (left * right,), ReduceArg(Ops.ADD, (len(lead) + 2,)))


def triangle(n: int, m: int | None = None) -> UOp:
    """True where the column is not past the row."""
    m = n if m is None else m
    rows, columns = UOp(Ops.IOTA, (), n, dtypes.int32), UOp(Ops.IOTA, (), m, dtypes.int32)
    rows = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (rows,), (n, 1)),), (n, m))
    columns = UOp(Ops.EXPAND, (UOp(Ops.RESHAPE, (columns,), (1, m)),), (n, m))
    return columns <= rows


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    if len(shape) > len(to):
        return False
    return all(a in (1, b) for a, b in zip(shape[::-1], to[::-1]))


def build(pick: Pick, special: bool = False, most: int = 12) -> list[UOp]:
    """The roots of a graph of up to ``most`` steps."""
    b = Builder(pick, special)
    b.pool.append(b.leaf(b.shape()))
    if b.chance(40):
        b.pool.append(b.large(b.pool[0]))
        most = min(most, 4)
    if b.chance(2):
        b.pool.append(b.leaf(b.shape()))
    for _ in range(1 + pick(most)):
        b.step()
    used = {s for u in b.pool for s in u.toposort()[:-1]}
    roots = [u for u in b.pool[1:] if u not in used and u.op is not Ops.BUFFER][-3:] or [b.pool[-1]]
    if b.chance(4):
        roots.append(b.value())
    return list(dict.fromkeys(r for r in roots if r.op is not Ops.BUFFER))
