"""Sizes of the blocks of a cascade: rows that fill vectors, and as much of the reduced axis as the first-level cache
holds of all tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from uopc.rangeify.context import power_of_two_below
from uopc.runtime.device import Device

# Vectors of rows in a block: two share every broadcast.
ROW_VECTORS = 2
ROW_CHOICES = (2, 1, 3, 4)
# Accumulators of a register tile: with the operands beside them they fill 32 registers.
ACCUMULATORS = 24
# Elements of the reduced axis that a register tile takes at once: with two vectors of rows, up to 24 accumulators, and
# enough of them to hide the loads.
TILE_STEPS = (12, 11, 10, 9, 8)
# Columns of a register tile of a result, likewise; one that divides the result's width is chosen.
TILE_COLUMNS = (12, 8, 10, 9, 11, 7, 6, 5, 4, 3, 2, 1)
# The least that a block holds of the reduced axis, however small the cache.
LEAST_STEPS = 16
# The reduced axis is cut so that the tiles of one block fill this part of L1.
TILE_SHARE = 0.75


@dataclass(frozen=True)
class Sizes:
    """The block: rows, lanes, and elements of the reduced axis."""

    rows: int
    lanes: int
    steps: int

    @property
    def _scale(self) -> int:
        """How many times as many vectors of rows as are usual share the registers."""
        return max(self.rows // (self.lanes * ROW_VECTORS), 1)

    @property
    def tile_steps(self) -> int:
        """Steps of a register tile: those that compute the least twice at a block's end, and of equals the most."""
        return min((max(n // self._scale, 1) for n in TILE_STEPS), key=lambda n: -(-self.steps // n) * n)

    def tile_columns(self, width: int) -> int:
        """Columns of a register tile that divide the width."""
        return next(c for c in TILE_COLUMNS if c * self._scale <= TILE_COLUMNS[0] and width % c == 0)


def block_sizes(size: int, held: int, length: int, itemsize: int, tiles: int, machine: Device) -> Sizes:
    """The sizes of a block for so many rows (0: lanes run along no rows, and a block holds ``held``), a reduced axis of
    ``length``, and ``tiles`` tiles of rows by steps."""
    lanes = max(1, machine.vector_bytes // itemsize)
    block = held
    if size:
        lanes = min(lanes, power_of_two_below(size))
        block = lanes * (ROW_VECTORS if size >= ROW_VECTORS * lanes else 1)
    fits = max(int(machine.l1d * TILE_SHARE / (block * itemsize * max(tiles, 1))), LEAST_STEPS)
    return Sizes(block, lanes, _steps(length, fits))


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
