"""Derivatives of the operations on numbers: a rule for each operand of each operation.

``RULES[op][k](u, g)`` is what the gradient ``g`` of ``u`` adds to that of its source k; None where that is nothing.
What holds at some elements only is a WHERE with 0, which ``reverse`` knows for a mask.

At a kink the derivative is one that both sides allow: 0 for abs at 0; equal operands of a maximum share, and a constant
takes all of it, so that relu has 0 at 0, as PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from uopc.ops import COMPARE, Ops
from uopc.uop import UOp, unmoved

Rule = Callable[[UOp, UOp], UOp]


def masked(condition: UOp, g: UOp) -> UOp:
    """``g`` where the condition holds, else 0."""
    return UOp(Ops.WHERE, (condition, g, UOp.const(0, g.dtype)))


def _is_constant(u: UOp) -> bool:
    return unmoved(u).op is Ops.CONST


def _sign(u: UOp, g: UOp) -> UOp:
    x = u.src[0]
    return masked(x.ne(0.0), (x < 0.0).where(-g, g))


def _product(k: int) -> Rule:
    return lambda u, g: g * u.src[1 - k]


def _extremum(k: int) -> Rule:
    """A maximum or minimum: to the operand that it is."""

    def rule(u: UOp, g: UOp) -> UOp:
        x, other = u.src[k], u.src[1 - k]
        wins = other < x if u.op is Ops.MAX else x < other
        if _is_constant(other):
            return masked(wins, g)
        return masked(x.alu(Ops.CMPLE, other) if u.op is Ops.MIN else other.alu(Ops.CMPLE, x), wins.where(g, g * 0.5))

    return rule


def _base(u: UOp, g: UOp) -> UOp:
    """n x^(n - 1); 0 for n = 0, also where x is 0."""
    x, n = u.src
    if n.op is Ops.CONST:
        return g * (x.alu(Ops.POW, UOp.const(n.arg - 1.0, n.dtype)) * n)
    return masked(n.ne(0.0), g * (n * x.alu(Ops.POW, n - 1.0)))


def _exponent(u: UOp, g: UOp) -> UOp:
    """x^n log x; 0 for x = 0, unless n is negative."""
    x, n = u.src
    return masked(x.ne(0.0) | (n < 0.0), g * (u * x.alu(Ops.LOG)))


def _normal_density(u: UOp, g: UOp) -> UOp:
    x = u.src[0]
    return g * ((x * x * -0.5).alu(Ops.EXP) * (1.0 / math.sqrt(2.0 * math.pi)))


def _error_density(u: UOp, g: UOp) -> UOp:
    x = u.src[0]
    return g * ((-(x * x)).alu(Ops.EXP) * (2.0 / math.sqrt(math.pi)))


def _as_it_is(u: UOp, g: UOp) -> UOp:
    return g


RULES: dict[Ops, tuple[Rule | None, ...]] = {
    # one operand
    Ops.CAST: (lambda u, g: g.cast(u.src[0].dtype),),
    Ops.RECIP: (lambda u, g: -(g * (u * u)),),
    Ops.SQRT: (lambda u, g: g * 0.5 / u,),
    Ops.EXP: (lambda u, g: g * u,),
    Ops.EXP2: (lambda u, g: g * (u * math.log(2.0)),),
    Ops.EXPM1: (lambda u, g: g * u.src[0].alu(Ops.EXP),),
    Ops.LOG: (lambda u, g: g / u.src[0],),
    Ops.LOG2: (lambda u, g: g / (u.src[0] * math.log(2.0)),),
    Ops.LOG1P: (lambda u, g: g / (u.src[0] + 1.0),),
    Ops.SIN: (lambda u, g: g * u.src[0].alu(Ops.COS),),
    Ops.COS: (lambda u, g: -(g * u.src[0].alu(Ops.SIN)),),
    Ops.TAN: (lambda u, g: g * (u * u + 1.0),),
    Ops.TANH: (lambda u, g: g * (1.0 - u * u),),
    Ops.ERF: (_error_density,),
    Ops.NDTR: (_normal_density,),
    Ops.ABS: (_sign,),
    Ops.FLOOR: (None,),
    Ops.CEIL: (None,),
    Ops.ROUND: (None,),
    Ops.TRUNC: (None,),
    Ops.BITCAST: (None,),  # the bits of a float are numbers of another kind
    # two operands
    Ops.ADD: (_as_it_is, _as_it_is),
    Ops.MUL: (_product(0), _product(1)),
    Ops.DIV: (lambda u, g: g / u.src[1], lambda u, g: -(g * (u / u.src[1]))),
    Ops.FMOD: (_as_it_is, lambda u, g: -(g * (u.src[0] / u.src[1]).alu(Ops.TRUNC))),
    Ops.POW: (_base, _exponent),
    Ops.MAX: (_extremum(0), _extremum(1)),
    Ops.MIN: (_extremum(0), _extremum(1)),
    **dict.fromkeys(COMPARE, (None, None)),
    # three
    Ops.WHERE: (None, lambda u, g: masked(u.src[0], g), lambda u, g: masked(u.src[0] ^ True, g)),
}
