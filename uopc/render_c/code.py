"""C text with its precedence, so that only the parentheses that C or a reader needs are printed."""

from __future__ import annotations

from typing import NamedTuple

# How tightly the outermost operator of a text binds.  Between operators that few readers can rank (shifts, bits)
# parentheses always stand.
CHOICE, OR, XOR, AND, COMPARE, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(10)

LEVELS = {
    "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "<<": SHIFT, ">>": SHIFT, "&": AND, "|": OR, "^": XOR,
    "<": COMPARE, "<=": COMPARE, "==": COMPARE, "!=": COMPARE, ">": COMPARE,
}  # fmt: skip


class Code(NamedTuple):
    """An expression.

    text: the C.  level: how tightly it binds.  depth: how deep it nests.  negated: its negative, where the text is a
    minus and that.
    """

    text: str
    level: int = ATOM
    depth: int = 0
    negated: Code | None = None

    def at(self, least: int) -> str:
        """The text as an operand of something that binds so tightly."""
        return self.text if self.level >= least else f"({self.text})"


def call(function: str, *args: Code) -> Code:
    """``function(args...)``."""
    return Code(f"{function}({', '.join(a.text for a in args)})", ATOM, _deeper(*args))


def cast(c_type: str, x: Code) -> Code:
    """``(c_type)x``."""
    return Code(f"({c_type}){x.at(UNARY)}", UNARY, _deeper(x))


def prefix(operator: str, x: Code) -> Code:
    """``-x``, ``~x`` or ``!x``."""
    operand = x.at(UNARY)
    if operand.startswith(operator):  # -(-x): two signs in a row are another operator
        operand = f"({operand})"
    return Code(operator + operand, UNARY, _deeper(x), x if operator == "-" else None)


def infix(operator: str, a: Code, b: Code) -> Code:
    """``a operator b``; a sum with a negative becomes a difference."""
    level = LEVELS[operator]
    if operator == "+" and b.negated is None and a.negated is not None:
        a, b = b, a
    if operator == "+" and b.negated is not None:
        operator, b = "-", b.negated
    if level in (SUM, PRODUCT):
        left, right = level, level + 1
    elif level == COMPARE:
        left = right = SUM
    else:
        left, right = level if a.level == level else UNARY, UNARY
        if level == SHIFT:
            left = UNARY
    return Code(f"{a.at(left)} {operator} {b.at(right)}", level, _deeper(a, b))


def choice(condition: Code, a: Code, b: Code) -> Code:
    """``condition ? a : b``."""
    return Code(f"{condition.at(OR)} ? {a.at(OR)} : {b.at(OR)}", CHOICE, _deeper(condition, a, b))


def _deeper(*sources: Code) -> int:
    return 1 + max((s.depth for s in sources), default=0)
