"""online: attention as a loop program written by hand, the textbook's online softmax (Milakov and Gimelshein 2018).

A thread takes a block of query rows, and reads each key and value once.  Its state is m, the largest score so far; l,
the sum of exp(score - m); and o, that sum with each term times its value.  A derived kernel is compared with it.
"""

from __future__ import annotations

import itertools
import math

from uopc.ops import AxisType, Ops, ParamArg, ReduceArg
from uopc.uop import UOp, dtypes, range_, sink

LANES = 16  # float32 values of 64 bytes; where registers are narrower, the C compiler takes several
GROUP = 8  # vectors that one turn of a loop handles side by side


class _Words:
    """Loops of one program, numbered."""

    def __init__(self) -> None:
        self.ids = itertools.count()

    def loop(self, end: UOp | int, axis: AxisType = AxisType.LOOP) -> UOp:
        return range_(end, next(self.ids), axis)

    def along(self, size: int, lanes: int, copied: AxisType) -> tuple[UOp, list[UOp]]:
        """An index from 0 to ``size``, and its loops: over groups of vectors, vectors of a group, lanes of a vector."""
        lanes = math.gcd(size, lanes)
        group = math.gcd(size // lanes, GROUP)
        loops = [self.loop(size // lanes // group), self.loop(group, copied), self.loop(lanes, AxisType.VECTOR)]
        loops = [r for r in loops if r.vmax > 0]
        at = UOp.const(0)
        for r in loops:
            at = at * (r.vmax + 1) + r
        return at, loops


def online(n: int, d: int, heads: int = 1, causal: bool = False, rows: int = 4) -> UOp:
    """softmax(q k^T / sqrt(d)) v of (heads, n, d) arrays: parameters out, q, k, v.

    With ``causal`` the loop over keys ends at the block's last row.
    """
    words = _Words()
    rows = min(rows, n)
    out, q, k, v = (UOp(Ops.BUFFER, (), ParamArg(slot, dtypes.float32, (heads * n, d))) for slot in range(4))
    sizes = ((rows,), (rows,), (rows, d))
    state = [UOp(Ops.ALLOC, (), ParamArg(slot, dtypes.float32, shape)) for slot, shape in enumerate(sizes)]
    blocks = -(-n // rows)
    i = words.loop(blocks * heads, AxisType.THREAD)
    first = (i % blocks * rows).minimum(n - rows)  # the last block begins early, and computes some rows again
    base = i // blocks * n

    m, l, o = (x.after(i) for x in state)
    r, block = words.along(rows, 1, AxisType.UPCAST)
    c, columns = words.along(d, LANES, AxisType.UPCAST)
    zero = (m.index(r).store(-math.inf), l.index(r).store(0.0), o.index(r, c).store(0.0).end(*columns))
    start = sink(*zero).end(*block)

    j = words.loop((first + rows).minimum(n) if causal else n)
    m, l, o = (x.after(start, j) for x in state)
    r, block = words.along(rows, 1, AxisType.UPCAST)
    e, elements = words.along(d, LANES, AxisType.UNROLL)
    products = q.index(base + first + r, e).load() * k.index(base + j, e).load()
    score = (UOp(Ops.REDUCE, (products, *elements), ReduceArg(Ops.ADD, ())) if elements else products) * d**-0.5
    if causal:
        score = (j <= first + r).where(score, -math.inf)
    larger = m.index(r).load().maximum(score)
    rescale = (m.index(r).load() - larger).alu(Ops.EXP)
    weight = (score - larger).alu(Ops.EXP)
    c, columns = words.along(d, LANES, AxisType.UPCAST)
    step = (
        m.index(r).store(larger),
        l.index(r).store(l.index(r).load() * rescale + weight),
        o.index(r, c).store(o.index(r, c).load() * rescale + weight * v.index(base + j, c).load()).end(*columns),
    )
    m, l, o = (x.after(sink(*step).end(j, *block)) for x in state)
    r, block = words.along(rows, 1, AxisType.UPCAST)
    c, columns = words.along(d, LANES, AxisType.UPCAST)
    done = o.index(r, c).load() / l.index(r).load()
    return sink(out.index(base + first + r, c).store(done).end(i, *block, *columns))
