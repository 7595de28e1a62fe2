"""blockize: split axes into blocks, and give what a block reads again and again a tile of its own.

In: a kernel, ``SINK(STORE(out, body))`` with the schedule's ``Opts``.  Out: the same kernel; where it pays, the
output is cut into blocks (``Opts.block``), operands that the rows of a block share are STAGEs at block level (packed:
consecutive, in cache), as are values that its results read at overlapping places, and a long reduction runs over
blocks whose sum stands in a tile.

The question is asked of the loop nest: which memory does a register tile read that its neighbours along another output
axis read too, is that more than a cache holds, or does it lie at strides that a cache holds badly.  Never asks what the
kernel is for.
"""

from __future__ import annotations

from uopc.blockize.cascades import cascade_blocks, cascade_candidates
from uopc.blockize.dots import dots
from uopc.blockize.overlaps import overlap_candidates, overlaps
from uopc.blockize.panels import panel_candidates, panels
from uopc.blockize.rows import row_candidates, rows
from uopc.blockize.sweeps import sweep_candidates, sweeps
from uopc.cost import Candidate
from uopc.ops import Ops
from uopc.target import Target
from uopc.uop import UOp, toposort


def blockize(root: UOp, target: Target) -> UOp:
    """The kernel ``root`` (a SINK), in blocks where they pay."""
    if any(u.op is Ops.CASCADE for u in toposort(root)):
        return cascade_blocks(root, target)
    kept = rows(root, target) or overlaps(root, target)
    if kept is not None:
        return kept
    root = dots(root, target)
    return panels(root, target) or sweeps(root, target) or root


def block_candidates(plain: Candidate, target: Target) -> list[Candidate]:
    """A scheduled kernel without blocks and in all blocks that are worth a measurement, whether they are thought to pay
    or not."""
    if any(u.op is Ops.CASCADE for u in toposort(plain.root)):
        return cascade_candidates(plain, target)
    kept = row_candidates(plain, target) or overlap_candidates(plain, target)
    if kept:
        return [plain, *kept]
    plain = plain._replace(root=dots(plain.root, target))
    return [plain, *(panel_candidates(plain, target) or sweep_candidates(plain, target))]
