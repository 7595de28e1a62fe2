"""The table of operations: one row per op, and everything that a pass may want to know about it.

A row gives arity, dtype rule, argument type, algebraic flags and the stages in which the op is legal.  ``spec.verify``
checks graphs against it, ``_hot.uop`` derives dtypes from it, and rewrites read the flags instead of naming ops.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, EnumMeta, Flag, IntEnum, auto
from functools import lru_cache
from typing import Any, NamedTuple

from uopc.dtype import DType

if sys.version_info >= (3, 12):
    _Members = EnumMeta
else:

    class _Members(EnumMeta):
        """The class of enums whose members passes name in their inner loops.

        Before Python 3.12, EnumMeta has a ``__getattr__``, which makes every ``Ops.ADD`` three times as slow as this:
        first what the enum itself holds, as any object is asked, and only then what it inherits.
        """

        __getattribute__ = object.__getattribute__

        def __getattr__(cls, name: str) -> Any:
            return type.__getattribute__(cls, name)


class Ops(IntEnum, metaclass=_Members):
    """Every operation.  The order of the groups matters to nobody but the reader."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    __str__ = IntEnum.__repr__

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    # structure
    SINK = auto()
    LINEAR = auto()
    CONST = auto()
    BUFFER = auto()
    ALLOC = auto()
    RANGE = auto()
    INDEX = auto()
    LOAD = auto()
    STORE = auto()
    AFTER = auto()
    END = auto()
    REDUCE = auto()
    HREDUCE = auto()
    SHUFFLE = auto()
    CASCADE = auto()
    STATE = auto()
    COMPONENT = auto()
    STAGE = auto()
    ALIAS = auto()
    # movement: an index in, an index out
    RESHAPE = auto()
    EXPAND = auto()
    PERMUTE = auto()
    SHRINK = auto()
    FLIP = auto()
    STRIDE = auto()
    PAD = auto()
    VIEW = auto()
    # sources of values, and choice among them
    IOTA = auto()
    STACK = auto()
    CAT = auto()
    GATHER = auto()
    # one operand
    CAST = auto()
    BITCAST = auto()
    RECIP = auto()
    SQRT = auto()
    EXP = auto()
    EXP2 = auto()
    EXPM1 = auto()
    LOG = auto()
    LOG2 = auto()
    LOG1P = auto()
    SIN = auto()
    COS = auto()
    TAN = auto()
    TANH = auto()
    ERF = auto()
    NDTR = auto()
    ABS = auto()
    FLOOR = auto()
    CEIL = auto()
    ROUND = auto()
    TRUNC = auto()
    LOOKUP = auto()
    # two operands
    ADD = auto()
    MUL = auto()
    DIV = auto()
    IDIV = auto()
    MOD = auto()
    FMOD = auto()
    POW = auto()
    LDEXP = auto()
    MAX = auto()
    MIN = auto()
    CMPLT = auto()
    CMPLE = auto()
    CMPEQ = auto()
    CMPNE = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    SHL = auto()
    SHR = auto()
    PAIR = auto()
    # three operands
    WHERE = auto()
    DOT2 = auto()
    FMA = auto()


class Order(IntEnum, metaclass=_Members):
    """In which order a reduction combines what it reduces."""

    ANY = 0  # as its kernel is fastest
    STEPS = 1  # one after the other, in blocks of a fixed length
    LANES = 2  # in a fixed number of lanes and copies, which are combined at the end

    def __repr__(self) -> str:
        return f"Order.{self.name}"


class AxisType(IntEnum, metaclass=_Members):
    """What a RANGE is for: it decides who turns it into code."""

    THREAD = 0  # iterations handed to the pool in chunks; at most one in a kernel, outermost
    LOOP = 1  # a C loop
    REDUCE = 2  # a C loop that an accumulator runs along
    UPCAST = 3  # replicated by expand: copies in registers
    UNROLL = 4  # replicated by expand, copies combined into one reduction
    VECTOR = 5  # the lanes of a vector register

    def __repr__(self) -> str:
        return f"AxisType.{self.name}"


class Level(IntEnum):
    """Where a STAGE writes its value down."""

    KERNEL = 0  # a buffer in memory: a temporary of the plan, or an output
    BLOCK = 1  # a thread-private tile
    REGISTER = 2

    def __repr__(self) -> str:
        return f"Level.{self.name}"


class ParamArg(NamedTuple):
    """What a BUFFER or an ALLOC is: its slot, element type and shape.  Addresses are flat, row-major over the shape."""

    slot: int
    dtype: DType
    shape: tuple[int, ...]


class RangeArg(NamedTuple):
    """Identity and kind of a RANGE.  Two RANGEs of one kernel never share an id."""

    id: int
    axis_type: AxisType


class ViewArg(NamedTuple):
    """A strided window on a flat buffer: element ``i`` lies at ``offset + sum(i * strides)``, all in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class ReduceArg(NamedTuple):
    """How a REDUCE combines, and over which axes of its operand (none in a loop program: there the sources name the
    RANGEs); in an order that is free, or fixed."""

    op: Ops
    axes: tuple[int, ...]
    order: Order = Order.ANY


@dataclass(frozen=True)
class Opts:
    """Sizes of a kernel's loops.

    upcast: output axis -> how many of its elements one iteration computes in registers.
    unroll: how many steps of the innermost reduction one iteration takes.
    thread: the output axis whose loop the threads share, or several, which are merged.
    vector: the output axis along which vector lanes run, and ``lanes`` how many; its upcast counts elements, not
    vectors.
    reduce_lanes: vector lanes along the innermost reduced axis (1: none).
    reduce_block: how many iterations of a reduction are summed before they join the sum of blocks (0: all at once).
    order: the output axes in loop order, outermost first (None: as they come).
    block: output axis -> how many of its elements one block holds; threads then share blocks, and STAGEs at block level
    are tiles of one block.
    """

    upcast: Any = ()
    unroll: int = 1
    thread: Any = None
    vector: int | None = None
    lanes: int = 1
    reduce_lanes: int = 1
    reduce_block: int = 0
    order: tuple[int, ...] | None = None
    block: Any = ()

    def __post_init__(self) -> None:
        for name in ("upcast", "block"):
            given = getattr(self, name)
            pairs = [(int(a), int(n)) for a, n in dict(given).items() if n != 1 or name == "block"] if given else ()
            object.__setattr__(self, name, tuple(sorted(pairs)))
        if self.unroll < 1 or (self.upcast and min(n for _, n in self.upcast) < 1):
            raise ValueError(f"upcast {dict(self.upcast)} and unroll {self.unroll} must be at least 1")

    def upcast_of(self, axis: int) -> int:
        """How many elements of ``axis`` one iteration computes."""
        return dict(self.upcast).get(axis, 1)

    def block_of(self, axis: int) -> int:
        """How many elements of ``axis`` a block holds; 0: the axis is not cut into blocks."""
        return dict(self.block).get(axis, 0)

    @property
    def threads(self) -> tuple[int, ...]:
        """The merged thread axes, outermost first."""
        if self.thread is None:
            return ()
        return (self.thread,) if isinstance(self.thread, int) else tuple(self.thread)


class Tile(NamedTuple):
    """The argument of a STAGE at block level: a thread-private part of the value, ``extents`` long along each axis.

    The part begins where the block does.  An extent of -n, in a cascade, is that of a block of its reduced axis, of
    which one element takes n steps.  ``opts`` sizes the loops that fill it.
    ``accumulate``: the value is a REDUCE over blocks, which the tile sums up block by block.
    """

    extents: tuple[int, ...]
    opts: Opts | None = None
    accumulate: bool = False
    layout: tuple[int, ...] | None = None


class Component(NamedTuple):
    """One reduction of a cascade: how it combines, over which axis of its body, whether a correction follows the body
    among the CASCADE's sources, the tile that its running value stands in, how many elements of the reduced axis one
    step of the body takes (both set by ``blockize``), and whether its order is fixed: then it is STEPS."""

    op: Ops
    axis: int
    corrected: bool
    tile: Tile | None = None
    steps: int = 1
    order: Order = Order.ANY


class Limit(NamedTuple):
    """A bound on what a cascade visits: ``row * rows + step * steps + offset <= 0``, of the output's row and the
    position along the reduced axis."""

    row: int
    step: int
    offset: int


class CascadeArg(NamedTuple):
    """Which cascade of its graph a CASCADE is, its reductions in the order in which they depend on each other, and how
    many elements of the reduced axis one block holds (0: not yet decided).

    Steps beyond ``limits`` change nothing.  ``test_lanes``: if not 0, the last sources of the CASCADE are for each
    reduction an integer at the shape of its body, and a block in which it is 0 everywhere changes nothing; so many
    lanes look at it at once.
    """

    id: int
    components: tuple[Component, ...]
    block: int = 0
    limits: tuple[Limit, ...] = ()
    test_lanes: int = 0


class StateArg(NamedTuple):
    """A running value of a cascade, as it is before (``new`` False) or after the block at hand.

    ``part`` tells the loop over whole blocks from what is left over.
    """

    cascade: int
    component: int
    new: bool
    dtype: DType
    shape: tuple[int, ...]
    part: int = 0


class ComponentArg(NamedTuple):
    """The final value of one reduction of a cascade."""

    component: int
    dtype: DType
    shape: tuple[int, ...]


class KernelInfo(NamedTuple):
    """The argument of a kernel's SINK: the name of the C function, what ``schedule`` decided (None before), and whether
    sizes and blocks are given, so that neither ``schedule`` nor ``blockize`` has a say."""

    name: str
    opts: Opts | None = None
    settled: bool = False


class Kind(Enum):
    """Which family an op belongs to."""

    STRUCTURE = auto()
    MOVEMENT = auto()
    SOURCE = auto()
    ALU = auto()


class DTypeRule(IntEnum):
    """How the dtype of a node follows from its sources and argument."""

    VOID = 0
    GIVEN = 1  # the caller says
    FIRST = 2  # that of the first source
    ARG = 3  # that of the ParamArg
    INDEX = 4  # dtypes.index
    SAME = 5  # all sources agree, scalars spread over vectors
    BOOL = 6  # sources agree, the result is bool
    SELECT = 7  # bool, then two that agree
    LOAD = 8  # as given; else the first source's, as wide as its index is
    WORD = 9  # sources agree, bfloat16 or float32; the result is uint32
    DOT = 10  # two uint32, then a float: its type, as wide as the widest


class Flags(Flag):
    """Algebra that a rewrite may rely on."""

    NONE = 0
    COMMUTATIVE = auto()
    ASSOCIATIVE = auto()  # in exact arithmetic: a REDUCE may use the op
    IDEMPOTENT = auto()  # op(x, x) = x
    INT_ONLY = auto()  # integers and bool
    FLOAT_ONLY = auto()


class Stage(Flag):
    """The kinds of graph between which the pipeline moves."""

    TENSOR = auto()  # whole expressions, movement ops
    TILED = auto()  # one kernel of those: its sizes, and tiles
    LOOP = auto()  # ranges and scalar expressions
    REGISTER = auto()  # after expand: no UPCAST, UNROLL or VECTOR range, no REDUCE
    LINEAR = auto()  # the list that the renderer prints; no transcendental is left for it

    ALL = TENSOR | TILED | LOOP | REGISTER | LINEAR


class Issue(NamedTuple):
    """What an op takes of a processor for one vector of 32-bit lanes, as an operator of C: ``simple`` operations, each
    of which takes a slot of a port that does FMAs; ``divisions`` and square roots, which have a unit of their own; and
    ``scalar``: operations on single lanes, in units of a division of integers.  How long each takes, the target says.
    What an op takes that ``decompose`` takes apart is counted there (``uopc.issue``)."""

    simple: float = 0.0
    divisions: float = 0.0
    scalar: float = 0.0

    def __add__(self, other: Issue) -> Issue:  # type: ignore[override]
        return Issue(*(a + b for a, b in zip(self, other)))


FREE = Issue()
ONE = Issue(1.0)
DIVISION = Issue(divisions=1.0)
# A call of libm for each lane takes about so many divisions of integers.
CALL = Issue(scalar=4.0)


@dataclass(frozen=True)
class OpInfo:
    """One row of the table.  ``arity`` is (least, most); most is None where any number of sources may follow."""

    arity: tuple[int, int | None]
    dtype: DTypeRule
    kind: Kind
    stages: Stage
    arg: type | tuple[type, ...] | None = None
    flags: Flags = Flags.NONE
    issue: Issue = FREE


TENSORS = Stage.TENSOR | Stage.TILED
LOOPS = Stage.LOOP | Stage.REGISTER | Stage.LINEAR


def _movement(arg: type) -> OpInfo:
    return OpInfo((1, 1), DTypeRule.FIRST, Kind.MOVEMENT, TENSORS, arg)


def _unary(flags: Flags = Flags.FLOAT_ONLY, issue: Issue = ONE) -> OpInfo:
    return OpInfo((1, 1), DTypeRule.SAME, Kind.ALU, Stage.ALL, None, flags, issue)


def _binary(flags: Flags = Flags.NONE, issue: Issue = ONE) -> OpInfo:
    return OpInfo((2, 2), DTypeRule.SAME, Kind.ALU, Stage.ALL, None, flags, issue)


def _compare(flags: Flags = Flags.NONE) -> OpInfo:
    return OpInfo((2, 2), DTypeRule.BOOL, Kind.ALU, Stage.ALL, None, flags, ONE)


def _structure(
    least: int, most: int | None, dtype: DTypeRule, stages: Stage, arg: Any = None, issue: Issue = FREE
) -> OpInfo:
    return OpInfo((least, most), dtype, Kind.STRUCTURE, stages, arg, issue=issue)


_MONOID = Flags.COMMUTATIVE | Flags.ASSOCIATIVE
_LATTICE = _MONOID | Flags.IDEMPOTENT

TABLE: dict[Ops, OpInfo] = {
    Ops.SINK: _structure(0, None, DTypeRule.VOID, Stage.ALL, (KernelInfo, type(None))),
    Ops.LINEAR: _structure(0, None, DTypeRule.VOID, Stage.LINEAR, (KernelInfo, type(None))),
    Ops.CONST: _structure(0, 0, DTypeRule.GIVEN, Stage.ALL, (bool, int, float, tuple)),
    Ops.BUFFER: _structure(0, 0, DTypeRule.ARG, Stage.ALL, ParamArg),
    Ops.ALLOC: _structure(0, 0, DTypeRule.ARG, LOOPS, ParamArg),
    Ops.RANGE: _structure(1, 1, DTypeRule.INDEX, LOOPS, RangeArg),
    Ops.INDEX: _structure(2, 2, DTypeRule.LOAD, LOOPS),  # of a vector type: so many elements in a row
    # INDEX, and the bool that must hold (else the value is 0); an int: memory so many elements further on is read soon
    Ops.LOAD: _structure(1, 2, DTypeRule.LOAD, LOOPS, (int, type(None))),
    # INDEX, value, and the bool that must hold; True: past the caches
    Ops.STORE: _structure(2, 3, DTypeRule.VOID, Stage.ALL, (bool, type(None))),
    Ops.AFTER: _structure(1, None, DTypeRule.FIRST, LOOPS),
    Ops.END: _structure(1, None, DTypeRule.VOID, LOOPS),
    Ops.REDUCE: _structure(1, None, DTypeRule.FIRST, Stage.ALL, ReduceArg),
    # the lanes of a vector, in halves: a shuffle and an operation for about three of them
    Ops.HREDUCE: _structure(1, 1, DTypeRule.GIVEN, LOOPS, Ops, Issue(6.0)),
    Ops.SHUFFLE: _structure(2, 2, DTypeRule.SAME, LOOPS, tuple, ONE),  # lanes of both, by number
    # Reductions of one axis, each using the earlier ones' running values (STATE): for each the body, and its
    # correction.
    Ops.CASCADE: _structure(1, None, DTypeRule.VOID, TENSORS, CascadeArg),
    Ops.STATE: _structure(0, 0, DTypeRule.ARG, TENSORS, StateArg),
    Ops.COMPONENT: _structure(1, 1, DTypeRule.ARG, TENSORS, ComponentArg),
    Ops.STAGE: _structure(1, 1, DTypeRule.FIRST, TENSORS, (Level, Tile)),
    # The value of the first source; gone before a plan is made.  What a gradient sees of it (``uopc.gradient``): with
    # an int, its number, a variable of its own; else the second source, or nothing where there is none.
    Ops.ALIAS: _structure(1, 2, DTypeRule.FIRST, Stage.TENSOR, (int, type(None))),
    Ops.RESHAPE: _movement(tuple),  # the new shape
    Ops.EXPAND: _movement(tuple),  # the new shape; axes of size 1 grow
    Ops.PERMUTE: _movement(tuple),  # new axis i is old axis arg[i]
    Ops.SHRINK: _movement(tuple),  # (first, past the last) of each axis
    Ops.FLIP: _movement(tuple),  # the axes that run backwards
    Ops.STRIDE: _movement(tuple),  # the step (> 0) of each axis
    Ops.PAD: _movement(tuple),  # (before, after) of each axis; the new elements are 0
    Ops.VIEW: _movement(ViewArg),  # memory of an array that is not contiguous, seen through its strides
    Ops.IOTA: OpInfo((0, 0), DTypeRule.GIVEN, Kind.SOURCE, TENSORS, int),  # 0, 1, ... arg-1
    Ops.STACK: OpInfo(
        (1, None), DTypeRule.FIRST, Kind.SOURCE, Stage.ALL
    ),  # a new first axis; lanes of a vector in loops
    Ops.CAT: OpInfo((1, None), DTypeRule.FIRST, Kind.SOURCE, TENSORS, int),  # one after another along axis arg
    Ops.GATHER: OpInfo((2, None), DTypeRule.FIRST, Kind.SOURCE, TENSORS),  # x and an integer index for each axis of it
    Ops.CAST: OpInfo((1, 1), DTypeRule.GIVEN, Kind.ALU, Stage.ALL, issue=ONE),
    Ops.BITCAST: OpInfo((1, 1), DTypeRule.GIVEN, Kind.ALU, Stage.ALL),  # no instruction
    Ops.RECIP: _unary(issue=DIVISION),
    Ops.SQRT: _unary(issue=DIVISION),
    Ops.EXP: _unary(issue=CALL),
    Ops.EXP2: _unary(issue=CALL),
    Ops.EXPM1: _unary(issue=CALL),
    Ops.LOG: _unary(issue=CALL),
    Ops.LOG2: _unary(issue=CALL),
    Ops.LOG1P: _unary(issue=CALL),
    Ops.SIN: _unary(issue=CALL),
    Ops.COS: _unary(issue=CALL),
    Ops.TAN: _unary(issue=CALL),
    Ops.TANH: _unary(issue=CALL),
    Ops.ERF: _unary(issue=CALL),
    Ops.NDTR: _unary(issue=CALL),  # the distribution function of a standard normal number
    Ops.ABS: _unary(Flags.NONE),
    Ops.FLOOR: _unary(),
    Ops.CEIL: _unary(),
    Ops.ROUND: _unary(),  # half to even
    Ops.TRUNC: _unary(),
    # what the argument, a table of 16 numbers, holds at the low four bits of an index
    Ops.LOOKUP: OpInfo((1, 1), DTypeRule.GIVEN, Kind.ALU, Stage.ALL, tuple, issue=ONE),
    Ops.ADD: _binary(_MONOID),
    Ops.MUL: _binary(_MONOID),
    Ops.DIV: _binary(Flags.FLOAT_ONLY, DIVISION),
    Ops.IDIV: _binary(Flags.INT_ONLY, Issue(scalar=1.0)),  # rounds towards minus infinity; by 0 it is 0, as NumPy's
    Ops.MOD: _binary(Flags.INT_ONLY, Issue(scalar=1.0)),  # has the divisor's sign; by 0 it is 0, as NumPy's
    Ops.FMOD: _binary(Flags.FLOAT_ONLY, CALL),  # C's: has the dividend's sign
    Ops.POW: _binary(Flags.FLOAT_ONLY, Issue(scalar=8.0)),
    Ops.LDEXP: _binary(
        Flags.FLOAT_ONLY, Issue(2.0)
    ),  # a * 2^floor(b), rounded once, for |b| <= 254; float32, made by decompose
    Ops.MAX: _binary(_LATTICE, Issue(3.0)),  # NaN if either is: a comparison and a selection pass it on
    Ops.MIN: _binary(_LATTICE, Issue(3.0)),
    Ops.CMPLT: _compare(),
    Ops.CMPLE: _compare(),
    Ops.CMPEQ: _compare(Flags.COMMUTATIVE),
    Ops.CMPNE: _compare(Flags.COMMUTATIVE),
    Ops.AND: _binary(_LATTICE | Flags.INT_ONLY),
    Ops.OR: _binary(_LATTICE | Flags.INT_ONLY),
    Ops.XOR: _binary(_MONOID | Flags.INT_ONLY),
    Ops.SHL: _binary(Flags.INT_ONLY),  # by the width or more: 0
    Ops.SHR: _binary(
        Flags.INT_ONLY
    ),  # arithmetic for signed types; by the width or more: 0, or -1 where the value is negative
    # Two values as bfloat16, the first in the lower half of a word.  float32 is rounded to nearest even; what is below
    # its normal numbers may become 0.
    Ops.PAIR: OpInfo((2, 2), DTypeRule.WORD, Kind.ALU, Stage.ALL, issue=Issue(2.0)),
    Ops.WHERE: OpInfo((3, 3), DTypeRule.SELECT, Kind.ALU, Stage.ALL, issue=ONE),
    # PAIRs a and b and a sum c: c + a.high * b.high, then that + a.low * b.low, each rounded to float32.  Operands and
    # sums below its normal numbers may count as 0.
    Ops.DOT2: OpInfo((3, 3), DTypeRule.DOT, Kind.ALU, Stage.ALL, issue=ONE),
    # a * b + c, rounded once where the processor has an instruction for it, else twice: made where a sum takes its
    # products, and by decompose; the C compiler makes none
    Ops.FMA: OpInfo((3, 3), DTypeRule.SAME, Kind.ALU, Stage.ALL, flags=Flags.FLOAT_ONLY, issue=ONE),
}
assert set(TABLE) == set(Ops)

MOVEMENT = frozenset(op for op, row in TABLE.items() if row.kind is Kind.MOVEMENT)
ALU = frozenset(op for op, row in TABLE.items() if row.kind is Kind.ALU)
# Movement that gives every element of its result from one of its source: it commutes with elementwise ops.
PLAIN = MOVEMENT - {Ops.PAD, Ops.VIEW}
# The functions that take many simple operations.
ELEMENTARY = frozenset(
    {
        Ops.EXP, Ops.EXP2, Ops.EXPM1, Ops.LOG, Ops.LOG2, Ops.LOG1P, Ops.SIN, Ops.COS, Ops.TAN, Ops.TANH, Ops.ERF,
        Ops.NDTR, Ops.POW,
    }
)  # fmt: skip
COMPARE = frozenset({Ops.CMPLT, Ops.CMPLE, Ops.CMPEQ, Ops.CMPNE})


@lru_cache(maxsize=256)  # ops times dtypes
def identity(op: Ops, dtype: DType) -> bool | int | float:
    """The element that leaves a reduction by ``op`` unchanged, as a Python value of type ``dtype``."""
    if op is Ops.MAX:
        return dtype.min
    if op is Ops.MIN:
        return dtype.max
    if op is Ops.AND:
        return True if dtype.is_bool else -1 if dtype.kind == "i" else dtype.max
    one_or_zero = {Ops.ADD: 0, Ops.MUL: 1, Ops.OR: 0, Ops.XOR: 0}
    if op not in one_or_zero:
        raise ValueError(f"{op!r} cannot reduce; accepted are ADD MUL MAX MIN AND OR XOR")
    return dtype.convert(one_or_zero[op])
