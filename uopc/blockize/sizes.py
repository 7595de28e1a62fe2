"""Sizes of the blocks of a cascade: rows that fill vectors, and as much of the reduced axis as the first-level cache
holds of all tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from uopc.rangeify.context import power_of_two_below
from uopc.target import Target

# Vectors of rows in a block: two share every broadcast.
ROW_VECTORS = 2
ROW_CHOICES = (2, 1, 3, 4)
# Fewer accumulators than this share of those hide neither loads nor latency.
LEAST_ACCUMULATORS = 2 / 3
# Columns of a register tile of a result; one that divides the result's width is chosen.
TILE_COLUMNS = (12, 8, 10, 9, 11, 7, 6, 5, 4, 3, 2, 1)
# The least that a block holds of the reduced axis, however small the cache.
LEAST_STEPS = 16
# The reduced axis is cut so that the tiles of one block fill this part of L1.
TILE_SHARE = 0.75
# A block's results for its rows fill this part of the second-level cache, and of a thread's stack, at most.
RESULTS_SHARE = 0.25


def most_width(target: Target) -> int:
    """How many results for each row a block of a cascade holds at most."""
    return int(min(target.l2.size, target.stack) * RESULTS_SHARE) // (ROW_VECTORS * target.vector_bytes)


@dataclass(frozen=True)
class Sizes:
    """The block: rows, lanes, and elements of the reduced axis; and how many vector registers there are."""

    rows: int
    lanes: int
    steps: int
    registers: int

    @property
    def _most(self) -> int:
        """Accumulators of a register tile for each vector of rows: those vectors, as many broadcasts and all
        accumulators have registers."""
        vectors = max(self.rows // self.lanes, ROW_VECTORS)
        return max((self.registers - vectors) // (vectors + 1), 1)

    @property
    def tile_steps(self) -> int:
        """Steps of a register tile: those that compute the least twice at a block's end, and of equals the most."""
        least = max(int(self._most * LEAST_ACCUMULATORS), 1)
        return min(range(self._most, least - 1, -1), key=lambda n: -(-self.steps // n) * n)

    def tile_columns(self, width: int) -> int:
        """Columns of a register tile that divide the width."""
        return next(c for c in TILE_COLUMNS if c <= self._most and width % c == 0)


def block_sizes(
    size: int, held: int, length: int, itemsize: int, tiles: int, target: Target, ordered: bool = False
) -> Sizes:
    """The sizes of a block for so many rows (0: lanes run along no rows, and a block holds ``held``), a reduced axis of
    ``length``, and ``tiles`` tiles of rows by steps; ordered: its steps are those of a block of many rows."""
    lanes = max(1, target.vector_bytes // itemsize)
    block, many = held, lanes * ROW_VECTORS
    if size:
        lanes = min(lanes, power_of_two_below(size))
        block = lanes * (ROW_VECTORS if size >= ROW_VECTORS * lanes else 1)
    filled = (many if ordered else block) * itemsize * max(tiles, 1)
    fits = max(int(target.l1.size * TILE_SHARE / filled), LEAST_STEPS)
    return Sizes(block, lanes, _steps(length, fits), target.vector_registers)


def _steps(length: int, fits: int) -> int:
    """Elements of the reduced axis in a block: about as many as fit; a divisor of its length if one is near, so that
    nothing is left over to compile once more."""
    if length <= fits:
        return length
    near = [n for n in range(fits // 2, fits + fits // 3 + 1) if length % n == 0]
    return min(near, key=lambda n: abs(n - fits)) if near else fits


def rows_of(usual: Sizes, size: int) -> list[int]:
    """How many rows a block may hold, the usual number first."""
    return list(dict.fromkeys([usual.rows, *(usual.lanes * n for n in ROW_CHOICES if usual.lanes * n <= size)]))


def other_sizes(usual: Sizes, size: int, length: int) -> list[Sizes]:
    """Sizes that are worth a measurement, the usual ones first: more and fewer rows, longer and shorter blocks."""
    out: dict[Sizes, None] = {usual: None}
    for n in rows_of(usual, size) if size else [usual.rows]:
        fits = usual.steps * usual.rows // n
        for steps in (
            usual.steps,
            *(_steps(length, min(max(int(fits * x), LEAST_STEPS), length)) for x in (1, 2, 0.5)),
        ):
            out[replace(usual, rows=n, steps=steps)] = None
    return list(out)
