"""The formula of an einsum, parsed and checked against the shapes of its operands; the order of its products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from uopc.tensor.shapes import Shape

# So many operands have a few thousand ways to be multiplied two at a time, which are tried in milliseconds.
ALL_ORDERS = 8


@dataclass(frozen=True)
class Formula:
    """Labels of the axes of each operand and of the result, and the size of each label.

    The axes of an ellipsis have labels of their own ("...0" is the last one), shared by all operands.
    """

    inputs: list[list[str]]
    output: list[str]
    sizes: dict[str, int]

    @classmethod
    def parse(cls, formula: str, shapes: list[Shape]) -> Formula:
        """ValueError, with the formula and the shapes, where they do not fit each other."""
        left, arrow, right = formula.replace(" ", "").partition("->")
        terms = left.split(",")
        if len(terms) != len(shapes):
            raise ValueError(f"einsum({formula!r}) names {len(terms)} operands, and {len(shapes)} were given")
        inputs = [_axes(term, len(shape), formula, shape) for term, shape in zip(terms, shapes)]
        sizes = _sizes(formula, inputs, shapes)
        dots = sorted({c for labels in inputs for c in labels if len(c) > 1}, key=lambda c: -int(c[3:]))
        if arrow:
            output = _output(right, dots, formula)
        else:
            every = [c for labels in inputs for c in labels]
            output = [*dots, *sorted([c for c in set(every) if len(c) == 1 and every.count(c) == 1])]
        unknown = [c for c in output if c not in sizes]
        if unknown or len(set(output)) != len(output):
            raise ValueError(f"einsum({formula!r}): each letter of the result stands in it once, and in some operand")
        return cls(inputs, output, sizes)

    def left_to_right(self) -> list[tuple[int, int]]:
        """Which two operands to multiply, one step after another; what a step makes is numbered on from them."""
        count = len(self.inputs)
        return [(count + k - 2 if k > 1 else 0, k) for k in range(1, count)]

    def cheapest_order(self) -> list[tuple[int, int]]:
        """The same, with the fewest multiplications: the best of all orders of ``ALL_ORDERS`` operands, and of more the
        one that takes the cheapest step each time."""
        return _best_order(self) if len(self.inputs) <= ALL_ORDERS else _greedy_order(self)

    def needed(self, inside: int) -> frozenset[str]:
        """The labels of a product of some operands (a set of bits) that the others or the result ask for."""
        mine, others = set[str](), set(self.output)
        for k, labels in enumerate(self.inputs):
            (mine if inside >> k & 1 else others).update(labels)
        return frozenset(mine & others)

    def multiplications(self, a: int, b: int) -> int:
        """How many it takes to multiply the products of two sets of operands."""
        return prod([self.sizes[c] for c in self.needed(a) | self.needed(b)])


def _best_order(formula: Formula) -> list[tuple[int, int]]:
    """By the best way to make each set of operands from two smaller ones."""
    count = len(formula.inputs)
    # the cost, and the part that holds the first operand of the set
    best: dict[int, tuple[int, int]] = {1 << k: (0, 0) for k in range(count)}
    for whole in range(1, 1 << count):
        if whole in best:
            continue
        first = whole & -whole
        part = (whole - 1) & whole
        ways = []
        while part:
            if part & first:
                rest = whole ^ part
                ways.append((best[part][0] + best[rest][0] + formula.multiplications(part, rest), part))
            part = (part - 1) & whole
        best[whole] = min(ways)
    order: list[tuple[int, int]] = []

    def number(whole: int) -> int:
        if not whole & (whole - 1):
            return whole.bit_length() - 1
        part = best[whole][1]
        pair = number(part), number(whole ^ part)
        order.append(pair)
        return count + len(order) - 1

    number((1 << count) - 1)
    return order


def _greedy_order(formula: Formula) -> list[tuple[int, int]]:
    count = len(formula.inputs)
    left = {k: 1 << k for k in range(count)}
    order: list[tuple[int, int]] = []
    while len(left) > 1:
        pairs = [(i, j) for i in left for j in left if i < j]
        i, j = min(pairs, key=lambda p: formula.multiplications(left[p[0]], left[p[1]]))
        left[count + len(order)] = left.pop(i) | left.pop(j)
        order.append((i, j))
    return order


def _axes(term: str, ndim: int, formula: str, shape: Shape) -> list[str]:
    """One label an axis."""
    before, dots, after = term.partition("...")
    letters = before + after
    if not all(c.isalpha() and c.isascii() for c in letters):
        raise ValueError(f"einsum({formula!r}): {term!r} holds something other than letters and one ellipsis")
    free = ndim - len(letters)
    if free < 0 or (free and not dots):
        raise ValueError(f"einsum({formula!r}): {term!r} does not fit the {ndim} axes of shape {shape}")
    return [*before, *[f"...{free - 1 - i}" for i in range(free)], *after]


def _output(term: str, dots: list[str], formula: str) -> list[str]:
    before, ellipsis, after = term.partition("...")
    if not all(c.isalpha() and c.isascii() for c in before + after):
        raise ValueError(f"einsum({formula!r}): {term!r} holds something other than letters and one ellipsis")
    if dots and not ellipsis:
        raise ValueError(f"einsum({formula!r}): the result needs an ellipsis, since the operands have axes under one")
    return [*before, *dots, *after]


def _sizes(formula: str, inputs: list[list[str]], shapes: list[Shape]) -> dict[str, int]:
    """The size of each label: all that carry it agree, or are 1 (broadcast), as NumPy has it."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(inputs, shapes):
        own = dict(zip(labels, shape))
        for c, n in zip(labels, shape):
            if own[c] != n:
                raise ValueError(
                    f"einsum({formula!r}): there is no diagonal {c!r} of sizes {n} and {own[c]} in shape {shape}"
                )
            known = sizes.setdefault(c, n)
            if known == 1:
                sizes[c] = n
            elif n not in (1, known):
                raise ValueError(f"einsum({formula!r}): {c!r} has sizes {known} and {n} in shapes {shapes}")
    return sizes
