"""What computing and writing down take, in seconds on a small machine: by this, passes over whole expressions weigh one
against the other, before there are loops for ``uopc.cost`` to look at.  Only ratios matter."""

from __future__ import annotations

ALU_TIME = 2.5e-11  # one simple operation on one element, vectorised, on two cores
BYTE_TIME = 5e-11  # one byte to or from memory
LAUNCH_TIME = 1e-6
CHUNK_WORK = 16384  # simple operations on elements that take about as long as a launch: less is no chunk for a thread
TRANSCENDENTAL = 6.0  # how many simple operations exp, sin, ... take the time of
CACHED = 0.125  # of the bytes that a recomputation reads, those that caches do not serve
# How many results for each row a block of a cascade holds at most: with 32 rows of float32 they fill a quarter of an
# L2 cache of 1 MB, and are little beside a thread's stack.
BLOCK_WIDTH = 2048
