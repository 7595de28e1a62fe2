"""Equal cascades are derived once: layers of a network differ in what they read, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from uopc._hot.graph import cone
from uopc.cascade.derivation import Builder, Piece
from uopc.cascade.factors import Parts
from uopc.cascade.frame import Frame, Refused
from uopc.cascade.lift import ENDS, LEAVES
from uopc.cascade.trial import holds
from uopc.memo import Memo
from uopc.ops import Ops, ParamArg
from uopc.uop import UOp

MAX_KNOWN = 256
# Apart from what frames (from -1) and trials (from -1000) number.
FIRST_NUMBER = -2000
# For reductions over numbered memory their pieces, or why they are refused.
_known: Memo[tuple[UOp, ...], tuple[Piece, ...] | str] = Memo(MAX_KNOWN)


def derived(frame: Frame, parts: Mapping[UOp, Parts], pieces: Mapping[UOp, Piece]) -> dict[UOp, Piece]:
    """``pieces``, and those of the reductions that a frame adds, taken apart in ``parts``; Refused where they cannot be
    corrected, or samples tell them from the original."""
    if frame.survey.needs(frame.producers, frame.members):  # memory in their place would hide that
        return _derived(frame, parts, pieces)
    numbered = _numbered([*pieces, *frame.members])
    key = tuple(u.substitute(numbered) for u in (*pieces, frame.members[-1]))
    found = _known.get(key)
    if found is None:
        try:
            made = _derived(frame, parts, pieces)
        except Refused as why:
            _known[key] = str(why)
            raise
        _known[key] = tuple(made[u].over(numbered) for u in parts)
        return made
    if isinstance(found, str):
        raise Refused(found)
    memory = {buffer: u for u, buffer in numbered.items()}
    return {**pieces, **{u: p.over(memory) for u, p in zip(parts, found)}}


def _numbered(reductions: list[UOp]) -> dict[UOp, UOp]:
    """Memory for what reductions are made of, beside each other."""
    out: dict[UOp, UOp] = {}
    for r in reductions:
        for u in cone(r.src[0], ENDS):
            if u.op in LEAVES and u not in reductions and u not in out:
                out[u] = UOp(Ops.BUFFER, (), ParamArg(FIRST_NUMBER - len(out), u.dtype, u.shape))
    return out


def _derived(frame: Frame, parts: Mapping[UOp, Parts], pieces: Mapping[UOp, Piece]) -> dict[UOp, Piece]:
    builder, made = Builder(frame), dict(pieces)
    for u in parts:
        made[u] = builder.piece(u, parts[u], made)
    if len(made) > 1 and not holds(frame, made):
        raise Refused("rounding or overflow tells the derived reduction from the original on samples")
    return made
