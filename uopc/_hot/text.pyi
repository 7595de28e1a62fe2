"""C text with its precedence, so that only the parentheses that C or a reader needs are printed."""

from collections.abc import Iterable
from typing import final

from uopc._hot.uop import UOp

CHOICE: int
OR: int
XOR: int
AND: int
COMPARE: int
SHIFT: int
SUM: int
PRODUCT: int
UNARY: int
ATOM: int

@final
class Code:
    """An expression.

    text: the C.  level: how tightly it binds.  depth: how deep it nests.  negated: its negative, where the text is a
    minus and that.
    """

    text: str
    level: int
    depth: int
    negated: Code | None
    def __init__(self, text: str, level: int = ..., depth: int = 0, negated: Code | None = None) -> None: ...
    def at(self, least: int) -> str:
        """The text as an operand of something that binds so tightly."""

def call(function: str, *args: Code) -> Code:
    """``function(args...)``."""

def cast(c_type: str, x: Code) -> Code:
    """``(c_type)x``."""

def prefix(operator: str, x: Code) -> Code:
    """``-x``, ``~x`` or ``!x``."""

def infix(operator: str, a: Code, b: Code) -> Code:
    """``a operator b``; a sum with a negative becomes a difference."""

def choice(condition: Code, a: Code, b: Code) -> Code:
    """``condition ? a : b``."""

def offset(base: Code, step: int) -> Code:
    """``base + step`` of an address."""

def elements(memory: str, base: Code, steps: Iterable[int]) -> list[str]:
    """``memory[base + step]`` for each of ``steps``."""

def narrowed(text: Code, u: UOp) -> Code:
    """The text of a scalar operation in the type of ``u``: C computes in int what is narrower."""
