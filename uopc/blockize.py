"""blockize: axes are split into blocks, and values inside a block are written to thread-private tiles.

In and out: a kernel, ``SINK(STORE(target, body), ...)``.  The stage has its place and its contract here: a STAGE at block level becomes a tile, and what is
inside a block is compiled by the stages after this one.  No axis is split yet: register tiles are all the blocking there is.
"""

from __future__ import annotations

from uopc.uop import UOp


def blockize(root: UOp) -> UOp:
    """The kernel ``root`` (a SINK), its axes split where its options say so."""
    return root
