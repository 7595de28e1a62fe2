"""unrounded: halves that only the blocks of a cascade use stay in float32, as their registers have them.

Scores of an attention in halves are rounded by each operation (``widen``), before their maximum is taken and before
their exponential is.  Where nothing else uses them, no block does that: all of their uses see the same float32.  What
running values go into is left as it is: it is a factor of a sum, and as such better a half.
"""

from __future__ import annotations

from uopc._hot.graph import cone
from uopc.cascade.group import Group
from uopc.cascade.lift import ENDS
from uopc.cascade.survey import Survey
from uopc.cascade.written import Users
from uopc.dtype import dtypes
from uopc.ops import ALU, PLAIN, Ops
from uopc.uop import UOp, widened


def unrounded(group: Group, survey: Survey, users: Users) -> dict[UOp, UOp]:
    """For each conversion of such a half to float32, the value that was not rounded."""
    within = dict.fromkeys(v for m in group.pieces for v in cone(m.src[0], ENDS))
    halves = [u for u in within if u.dtype.is_half and (u.op in PLAIN or u.op in ALU)]
    if not halves:
        return {}
    computed = [p for p in group.producers if p not in group.written]
    halves.sort(key=survey.place.__getitem__)
    private: set[UOp] = set()
    for u in reversed(halves):  # users first
        inside = all(v in private or (v in within and _is_widening(v)) for v in users.of(u))
        if inside and survey.needs([u], computed) and not survey.needs([u], group.pieces):
            private.add(u)
    wide: dict[UOp, UOp] = {}
    made: dict[UOp, UOp] = {}
    for u in halves:
        if u in private:
            if u.op is Ops.CAST:
                wide[u] = survey.replaced(u.src[0], made).cast(dtypes.float32)
            else:  # it rounds nothing: ``widen`` has left it a half
                wide[u] = u.replace(src=tuple(widened(wide.get(s, s)) for s in u.src))
            made.update(dict.fromkeys((v for v in users.of(u) if _is_widening(v)), wide[u]))
    return made


def _is_widening(u: UOp) -> bool:
    return u.op is Ops.CAST and u.dtype is dtypes.float32
