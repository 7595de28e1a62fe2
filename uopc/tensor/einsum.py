"""The formula of an einsum, parsed and checked against the shapes of its operands."""

from __future__ import annotations

from dataclasses import dataclass

from uopc.tensor.shapes import Shape


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
