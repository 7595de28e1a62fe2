"""Simplify a kernel: canonical index expressions, masks that bounds decide, and the accesses they guard.

Comes in: a graph of any stage.  Comes out: the same values, with index expressions as canonical sums of products,
without divisions and conditions that bounds decide, constants folded.  Guarantees one form for equal index expressions
of the kinds that reshapes make, the same in every process.  Never changes the bits of a float, NaN, infinities and -0
included, and never moves, drops or adds a loop or a STORE that may run.

The mechanism is compiled (``_hot.simplify``), its rules grouped by subject: sums, division and modulo, comparisons,
boolean logic, WHERE, casts.  What is said about memory, which the compiled rules do not know, is the table below.
"""

from __future__ import annotations

import math

from uopc._hot.simplify import Simplifier
from uopc.uop import Ops, Pattern, PatternMatcher, UOp, dtypes

ALWAYS = Pattern(Ops.CONST, arg=True)
NEVER = Pattern(Ops.CONST, arg=False)
INDEX = Pattern(Ops.INDEX, name="index")
GATED = Pattern(Ops.LOAD, (Pattern(Ops.INDEX), Pattern(name="held")), "load")


def _ungated_load(load: UOp, index: UOp) -> UOp:
    return load.replace(src=(index,))


def _load_of_nothing(load: UOp) -> UOp:
    return UOp.const(0, load.dtype)


def _ungated_store(index: UOp, value: UOp) -> UOp:
    return index.store(value)


def _gated_already(gate: UOp, load: UOp, held: UOp, nothing: UOp) -> UOp | None:
    return load if held is gate and nothing.arg == 0 and math.copysign(1.0, nothing.arg) > 0 else None


# Memory: a gate that always holds is no gate; one that never does leaves the 0 that LOAD promises, and nobody needs to
# choose that 0 once more.
MEMORY = PatternMatcher(
    [
        (Pattern(Ops.LOAD, (INDEX, ALWAYS), "load"), _ungated_load),
        (Pattern(Ops.LOAD, (INDEX, NEVER), "load"), _load_of_nothing),
        (Pattern(Ops.STORE, (INDEX, Pattern(name="value"), ALWAYS)), _ungated_store),
        (Pattern(Ops.WHERE, (Pattern(name="gate"), GATED, Pattern(Ops.CONST, name="nothing"))), _gated_already),
    ]
)


def linear_in(expr: UOp, rng: UOp) -> tuple[UOp, int] | None:
    """(base, step) with ``expr == base + step * rng``, base free of ``rng`` and step an int; None where it is not so.

    ``expr`` is an index in canonical form: then a load at it is contiguous along ``rng`` if step is 1, and a gather if
    this is None.  What surrounds ``rng`` must be a sum; a MIN, say, may stand beside it.
    """
    rest: list[UOp] = []
    step = 0
    u = expr
    while True:
        term = u.src[1] if u.op is Ops.ADD else u
        if term is rng:
            step += 1
        elif term.op is Ops.MUL and term.src[0] is rng and term.src[1].op is Ops.CONST:
            step += term.src[1].arg
        elif rng in term.ranges:
            return None
        else:
            rest.append(term)
        if u.op is not Ops.ADD:
            break
        u = u.src[0]
    if step == 0:
        return expr, 0
    base = rest.pop() if rest else UOp.const(0, dtypes.index)
    while rest:
        base = base + rest.pop()
    return base, step


def simplify(sink: UOp) -> UOp:
    """``sink``, simplified."""
    return Simplifier(MEMORY).simplify(sink)
