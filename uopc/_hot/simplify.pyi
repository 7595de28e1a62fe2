from collections.abc import Sequence
from enum import IntEnum

from uopc._hot.rewrite import PatternMatcher
from uopc._hot.uop import UOp

class Law(IntEnum):
    """The rules by name; each stands with its law in src/uopc/_hot/laws.pxi."""

    UNNAMED = 0
    ONE_VALUE = 1
    FOLD = 2
    COMMUTE = 3
    REASSOCIATE = 4
    ADD_ZERO = 5
    ADD_NEGATIVE = 6
    MUL_ONE = 7
    DIV_ONE = 8
    SHIFT_ZERO = 9
    FLOAT_ADD_ZERO = 10
    FLOAT_MUL_ONE = 11
    FLOAT_DIV_ONE = 12
    SUM = 13
    PRODUCT = 14
    RELAX_RANGE = 15
    RELAX_MIN_MAX = 16
    RELAX_DIV = 17
    DECIDED = 18
    SPLIT = 19
    FACTOR = 20
    NESTED_DIV = 21
    MOD_THEN_DIV = 22
    NESTED_MOD = 23
    LIFT = 24
    DIV_SMALL = 25
    DIV_ZERO = 26
    DIV_NEGATIVE = 27
    SHIFT_POWER = 28
    QUOTIENT_AND_REMAINDER = 29
    DIGITS = 30
    ABS_POSITIVE = 31
    ABS_NEGATIVE = 32
    COMPARE_BOUNDS = 33
    COMPARE_SELF = 34
    COMPARE_BOOL = 35
    COMPARE_SIDES = 36
    LESS_OR_EQUAL = 37
    QUOTIENT_SIGN = 38
    DIV_SIGN = 39
    MINUS_DIV_SIGN = 40
    COMMON_FACTOR = 41
    MIN_MAX_SELF = 42
    MIN_MAX_ORDERED = 43
    MIN_MAX_CONSTANTS = 44
    SELF = 45
    NEUTRAL = 46
    DOMINANT = 47
    JUNCTION = 48
    COMPLEMENT = 49
    ABSORB = 50
    LIMITS_ONE_SIDE = 51
    LIMITS_EMPTY = 52
    LIMITS_POINT = 53
    LIMITS_ALL = 54
    LIMITS_HOLE = 55
    XOR_SELF = 56
    XOR_ZERO = 57
    NOT_NOT = 58
    NOT_EQUAL = 59
    NOT_LESS = 60
    WHERE_DECIDED = 61
    WHERE_SAME = 62
    WHERE_NOT = 63
    WHERE_TWICE = 64
    WHERE_AND = 65
    WHERE_BOOL = 66
    WHERE_MIN_MAX = 67
    CAST_SAME = 68
    CAST_CONSTANT = 69
    CAST_TWICE = 70

class Simplifier:
    def __init__(self, matcher: PatternMatcher | None = None) -> None: ...
    def simplify(self, u: UOp) -> UOp: ...

def last_law() -> str:
    """The name of the built-in rule that gave the last replacement, in any Simplifier."""

def simplify(u: UOp) -> UOp: ...
def simplify_all(roots: Sequence[UOp]) -> list[UOp]: ...
