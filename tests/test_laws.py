"""The laws of the simplifier's rules (src/uopc/_hot/laws.pxi) and of integer bounds (bounds.pxi), proved by a solver.

A law holds for all numbers: z3 finds none for which its assumption holds and its claim does not.  Products of unknowns
are hard for it: such a law names lemmas, which are themselves proved here for all numbers, at the terms that it needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from uopc._hot.simplify import Law

z3 = pytest.importorskip("z3", reason="z3-solver, of the extra `dev`, is not installed: no law is proved")

SOURCES = Path(__file__).parents[1] / "src/uopc/_hot"
MILLISECONDS = 60_000
# What is computed, not rewritten: the tests of simplify compare it with NumPy.
COMPUTED = {"FOLD", "CAST_SAME", "CAST_CONSTANT"}


@dataclass(frozen=True)
class Statement:
    """``claim`` wherever ``assume`` holds; ``lemmas``: instances of LEMMAS."""

    claim: Any
    assume: Any = True
    lemmas: tuple[Any, ...] = ()

    @property
    def whole(self) -> Any:
        return z3.Implies(self.assume, self.claim)


def div(x: Any, c: Any) -> Any:
    """x // c, rounded down, 0 where c is 0; z3's rounds so for c > 0."""
    return z3.If(c == 0, 0, z3.If(c > 0, x / c, -x / -c))


def mod(x: Any, c: Any) -> Any:
    """x % c, with the sign of c, 0 where c is 0."""
    return z3.If(c == 0, 0, x - c * div(x, c))


def least(x: Any, *others: Any) -> Any:
    for y in others:
        x = z3.If(x <= y, x, y)
    return x


def most(x: Any, *others: Any) -> Any:
    for y in others:
        x = z3.If(x >= y, x, y)
    return x


def within(x: Any, lo: Any, hi: Any) -> Any:
    return z3.And(lo <= x, x <= hi)


x, y, u, v, w, r = z3.Ints("x y u v w r")
a, b, c, d, e, f, g, k, lo, hi = z3.Ints("a b c d e f g k lo hi")
p, q = z3.Bools("p q")
word, other = z3.BitVecs("word other", 64)


# ---- lemmas --------------------------------------------------------------------------------------


def split(w: Any, r: Any, c: Any) -> Any:
    """Multiples of the divisor come out of a quotient."""
    return z3.Implies(c > 0, (w * c + r) / c == w + r / c)


def nested(x: Any, a: Any, c: Any) -> Any:
    """A quotient of a quotient is one quotient."""
    return z3.Implies(z3.And(a > 0, c > 0), x / a / c == x / (a * c))


def sign(u: Any, v: Any) -> Any:
    """The product of what is not negative is not negative."""
    return z3.Implies(z3.And(u >= 0, v >= 0), u * v >= 0)


def step(u: Any, c: Any) -> Any:
    """A multiple of c, unless it is 0, is as far from 0 as c."""
    return z3.Implies(c > 0, z3.And(z3.Implies(u >= 1, u * c >= c), z3.Implies(u <= -1, u * c <= -c)))


LEMMAS = {"split": split(w, r, c), "nested": nested(x, a, c), "sign": sign(u, v), "step": step(u, c)}


def bilinear(x: Any, y: Any, xs: tuple[Any, Any], ys: tuple[Any, Any]) -> tuple[Any, ...]:
    """What signs say of the product of two numbers within bounds."""
    (p, q), (s, t) = xs, ys
    ends = [sign(o, n) for o in (p, -p, q, -q) for n in (y - s, t - y)]
    return (*ends, *(sign(n, o) for n in (x - p, q - x) for o in (y, -y)))


# ---- the laws ------------------------------------------------------------------------------------


def counted(code: str) -> tuple[Any, ...]:
    """A value modulo m, with two constants, one after the other and together."""
    m = z3.Int("m")
    if code == "*":
        first, both = x * c, c * d
        lemmas = (split(-(first / m) * d, first * d, m), split(-(both / m) * x, x * both, m))
        return mod(mod(first, m) * d, m) == mod(x * mod(both, m), m), m > 0, lemmas
    lemmas = (split(-((x + c) / m), x + c + d, m), split(-((c + d) / m), x + c + d, m))
    return mod(mod(x + c, m) + d, m) == mod(x + mod(c + d, m), m), m > 0, lemmas


def floats(name: str = "x") -> tuple[Any, ...]:
    return tuple(z3.FP(f"{name}{sort.sbits()}", sort) for sort in (z3.Float16(), z3.Float32(), z3.Float64()))


def of_floats(same: Any) -> Statement:
    """The same float: NaN, infinities and the sign of 0 included."""
    return Statement(z3.And(*(same(z3.RNE(), n) == n for n in floats())))


def shifts() -> list[Statement]:
    """Of a number and its two parts, by n places: 2^n is no term of a whole number n, and so each n stands alone."""
    return [
        Statement(z3.And(word << n == word * (1 << n), word == ((word >> n) << n) + (word & ((1 << n) - 1))))
        for n in range(1, 62)
    ]


DIVIDED = z3.And(a > 0, c > 0)
LAWS: dict[str, list[Statement]] = {
    "ONE_VALUE": [Statement(x == lo, z3.And(within(x, lo, hi), lo == hi))],
    "COMMUTE": [
        Statement(z3.And(x + y == y + x, x * y == y * x, most(x, y) == most(y, x), least(x, y) == least(y, x))),
        Statement(z3.And((x == y) == (y == x), (x != y) == (y != x))),
        Statement(z3.And(word & other == other & word, word | other == other | word, word ^ other == other ^ word)),
    ],
    "REASSOCIATE": [Statement(*counted("+")), Statement(*counted("*"))],
    "ADD_ZERO": [Statement(word + 0 == word)],
    "ADD_NEGATIVE": [Statement(word + word * -1 == 0)],
    "MUL_ONE": [Statement(word * 1 == word)],
    "DIV_ONE": [Statement(div(x, z3.IntVal(1)) == x)],
    "SHIFT_ZERO": [Statement(z3.And(word << 0 == word, word >> 0 == word, z3.LShR(word, 0) == word))],
    "FLOAT_ADD_ZERO": [of_floats(lambda mode, n: z3.fpAdd(mode, n, z3.fpMinusZero(n.sort())))],
    "FLOAT_MUL_ONE": [of_floats(lambda mode, n: z3.fpMul(mode, n, z3.FPVal(1.0, n.sort())))],
    "FLOAT_DIV_ONE": [of_floats(lambda mode, n: z3.fpDiv(mode, n, z3.FPVal(1.0, n.sort())))],
    "SUM": [Statement(f * x + g * x == (f + g) * x), Statement(f * (g * x + y) == (f * g) * x + f * y)],
    "PRODUCT": [Statement((x * c) * (y * d) == (x * y) * (c * d))],
    "RELAX_RANGE": [Statement(f * r <= f * e - f, z3.And(r >= 0, r < e, f > 0), (sign(f, e - 1 - r),))],
    "RELAX_MIN_MAX": [
        Statement(
            z3.And(f * least(x, y) <= f * x, f * most(x, y) >= f * x),
            f > 0,
            (sign(f, x - y), sign(f, y - x)),
        )
    ],
    "RELAX_DIV": [
        Statement(
            within(g * c * (x / c), g * x - g * (c - 1), g * x),
            z3.And(c > 0, g > 0),
            (sign(g, x - c * (x / c)), sign(g, c - 1 - (x - c * (x / c)))),
        )
    ],
    "DECIDED": [
        Statement(
            z3.And(x / c == lo / c, mod(x, c) == x - lo / c * c),
            z3.And(within(x, lo, hi), c > 0, lo / c == hi / c),
            (step(x / c - lo / c, c), step(x / c - hi / c, c)),
        )
    ],
    "SPLIT": [
        Statement((w * c + r) / c == w + r / c, c > 0),
        Statement(mod(w * c + r, c) == mod(r, c), c > 0, (split(w, r, c),)),
    ],
    "FACTOR": [
        Statement((w * g + r) / (g * d) == w / d, z3.And(g > 0, d > 0, r >= 0, r < g)),
        Statement(mod(w * g + r, g * d) == mod(w, d) * g + r, z3.And(g > 0, d > 0, r >= 0, r < g)),
    ],
    "NESTED_DIV": [Statement((x / a + k) / c == (x + k * a) / (a * c), DIVIDED)],
    "MOD_THEN_DIV": [
        Statement(
            mod(x, a * c) / c == mod(x / c, a),
            DIVIDED,
            (split(-a * (x / (a * c)), x, c), nested(x, c, a)),
        )
    ],
    "NESTED_MOD": [
        Statement(
            mod(mod(x, a) * f + r, c) == mod(x * f + r, c),
            z3.And(DIVIDED, a * f == c * d),
            (split(-d * (x / a), x * f + r, c),),
        )
    ],
    "LIFT": [
        Statement(x / c == (x + k * c) / c - k, c > 0),
        Statement(mod(x, c) == mod(x + k * c, c), c > 0, (split(k, x, c),)),
    ],
    "DIV_SMALL": [Statement(z3.And(div(x, y) == 0, mod(x, y) == x), z3.And(x >= 0, x < y))],
    "DIV_ZERO": [Statement(z3.And(div(x, z3.IntVal(0)) == 0, mod(x, z3.IntVal(0)) == 0))],
    "DIV_NEGATIVE": [Statement(z3.And(div(x, -c) == -x / c, mod(x, -c) == -mod(-x, c)), c > 0)],
    "SHIFT_POWER": shifts(),
    "QUOTIENT_AND_REMAINDER": [Statement(f * c * (y / c) + f * mod(y, c) == f * y, c > 0)],
    "DIGITS": [
        Statement(f * c * mod(y / c, b) + f * mod(y, c) == f * mod(y, b * c), z3.And(b > 0, c > 0), (nested(y, c, b),))
    ],
    "ABS_POSITIVE": [Statement(z3.If(x < 0, -x, x) == x, x >= 0)],
    "ABS_NEGATIVE": [Statement(z3.If(x < 0, -x, x) == x * -1, x <= 0)],
    "COMPARE_BOUNDS": [
        Statement(x < 0, z3.And(within(x, lo, hi), hi < 0)),
        Statement(z3.Not(x < 0), z3.And(within(x, lo, hi), lo >= 0)),
        Statement(x != 0, z3.And(within(x, lo, hi), z3.Or(lo > 0, hi < 0))),
        Statement(x == 0, z3.And(within(x, lo, hi), lo == 0, hi == 0)),
    ],
    "COMPARE_SELF": [Statement(z3.And(x <= x, x == x, z3.Not(x < x), z3.Not(x != x)))],
    "COMPARE_BOOL": [
        Statement(z3.And((p == True) == p, (p == False) == z3.Not(p))),  # noqa: E712
        Statement(z3.And((p != False) == p, (p != True) == z3.Not(p))),  # noqa: E712
    ],
    "COMPARE_SIDES": [Statement(z3.And((a < b) == (a - b < 0), (a == b) == (a - b == 0), (a != b) == (a - b != 0)))],
    "LESS_OR_EQUAL": [Statement((a <= b) == (a - b - 1 < 0))],
    "QUOTIENT_SIGN": [Statement((w * g + r < 0) == (w + r / g < 0), g > 0)],
    "DIV_SIGN": [Statement((x / g + k < 0) == (x + k * g < 0), g > 0)],
    "MINUS_DIV_SIGN": [Statement((-(x / g) + k < 0) == (-x + (k + 1) * g - 1 < 0), g > 0)],
    "COMMON_FACTOR": [
        Statement((g * x + g * k == 0) == (x + k == 0), g != 0),
        Statement(g * x + k != 0, z3.And(g > 0, mod(k, g) != 0), (split(-x, z3.IntVal(0), g),)),
    ],
    "MIN_MAX_SELF": [Statement(z3.And(most(x, x) == x, least(x, x) == x))],
    "MIN_MAX_ORDERED": [Statement(z3.And(most(a, b) == a, least(a, b) == b), a >= b)],
    "MIN_MAX_CONSTANTS": [
        Statement(most(most(x, c), d) == most(x, most(c, d))),
        Statement(least(least(x, c), d) == least(x, least(c, d))),
    ],
    "SELF": [Statement(z3.And(word & word == word, word | word == word, z3.And(p, p) == p, z3.Or(p, p) == p))],
    "NEUTRAL": [
        Statement(z3.And(word & -1 == word, word | 0 == word)),
        Statement(z3.And(z3.And(p, True) == p, z3.Or(p, False) == p)),
    ],
    "DOMINANT": [Statement(z3.And(z3.Not(z3.And(p, False)), z3.Or(p, True)))],
    "JUNCTION": [
        Statement(z3.And(p, z3.And(q, p)) == z3.And(q, p)),
        Statement(z3.Or(p, z3.Or(q, p)) == z3.Or(q, p)),
    ],
    "COMPLEMENT": [Statement(z3.And(z3.Not(z3.And(p, z3.Not(p))), z3.Or(p, z3.Not(p))))],
    "ABSORB": [Statement(z3.And(z3.And(p, z3.Or(p, q)) == p, z3.Or(p, z3.And(p, q)) == p))],
    "LIMITS_ONE_SIDE": [
        Statement(z3.And(x < a, x < b) == (x < least(a, b))),
        Statement(z3.Or(x < a, x < b) == (x < most(a, b))),
        Statement(z3.And(a < x, b < x) == (most(a, b) < x)),
        Statement(z3.Or(a < x, b < x) == (least(a, b) < x)),
    ],
    "LIMITS_EMPTY": [Statement(z3.Not(z3.And(a < x, x < b)), b <= a + 1)],
    "LIMITS_POINT": [Statement(z3.And(a < x, x < a + 2) == (x == a + 1))],
    "LIMITS_ALL": [Statement(z3.Or(x < b, a < x), a < b)],
    "LIMITS_HOLE": [Statement(z3.Or(x < a, a < x) == (x != a))],
    "XOR_SELF": [Statement(word ^ word == 0)],
    "XOR_ZERO": [Statement(word ^ 0 == word)],
    "NOT_NOT": [Statement(z3.Xor(z3.Xor(p, True), True) == p)],
    "NOT_EQUAL": [
        Statement(z3.Not(a == b) == (a != b)),
        Statement(z3.And(*(z3.Not(z3.fpEQ(n, m)) == z3.fpNEQ(n, m) for n, m in zip(floats(), floats("y"))))),
    ],
    "NOT_LESS": [Statement(z3.And(z3.Not(a < b) == (b <= a), z3.Not(a <= b) == (b < a)))],
    "WHERE_DECIDED": [Statement(z3.And(z3.If(True, a, b) == a, z3.If(False, a, b) == b))],
    "WHERE_SAME": [Statement(z3.If(p, a, a) == a)],
    "WHERE_NOT": [Statement(z3.If(z3.Not(p), a, b) == z3.If(p, b, a))],
    "WHERE_TWICE": [
        Statement(z3.If(p, z3.If(p, a, d), b) == z3.If(p, a, b)),
        Statement(z3.If(p, a, z3.If(p, d, b)) == z3.If(p, a, b)),
    ],
    "WHERE_AND": [Statement(z3.If(p, z3.If(q, a, b), b) == z3.If(z3.And(p, q), a, b))],
    "WHERE_BOOL": [
        Statement(z3.If(p, True, q) == z3.Or(p, q)),
        Statement(z3.If(p, q, False) == z3.And(p, q)),
        Statement(z3.If(p, False, q) == z3.And(z3.Not(p), q)),
        Statement(z3.If(p, q, True) == z3.Or(z3.Not(p), q)),
    ],
    "WHERE_MIN_MAX": [
        Statement(z3.If(a < b, a, b) == least(a, b)),
        Statement(z3.If(b < a, a, b) == most(a, b)),
    ],
    # a type holds the numbers lo to hi, and takes others to the one that is as far modulo their count
    "CAST_TWICE": [Statement(mod(x - lo, hi - lo + 1) + lo == x, within(x, lo, hi))],
}


# ---- bounds --------------------------------------------------------------------------------------

al, ah, bl, bh = z3.Ints("al ah bl bh")
BOTH = z3.And(within(a, al, ah), within(b, bl, bh))


def bounded(value: Any, low: Any, high: Any, assume: Any = True, lemmas: tuple[Any, ...] = ()) -> Statement:
    """A value of a in al to ah, and of b in bl to bh, is within these bounds; what saturates is only wider."""
    return Statement(within(value, low, high), z3.And(BOTH, assume), lemmas)


def compared(holds: Any, always: Any, never: Any) -> list[Statement]:
    return [Statement(holds, z3.And(BOTH, always)), Statement(z3.Not(holds), z3.And(BOTH, never))]


CORNERS = [s * t for s in (al, ah) for t in (bl, bh)]
BOUNDS = {
    "ADD": [bounded(a + b, al + bl, ah + bh)],
    "MUL": [
        bounded(a * b, least(*CORNERS), most(*CORNERS), True, bilinear(a, b, (al, ah), (bl, bh))),
        bounded(a * b, al * bl, ah * bh, z3.And(al >= 0, bl >= 0), bilinear(a, b, (al, ah), (bl, bh))),
    ],
    "IDIV": [bounded(a / b, al / z3.If(al < 0, bl, bh), ah / z3.If(ah < 0, bh, bl), bl > 0)],
    "MOD": [
        bounded(mod(a, b), 0, bh - 1, bl > 0),
        bounded(mod(a, b), 0, least(bh - 1, ah), z3.And(bl > 0, al >= 0), (sign(a / b, b),)),
    ],
    "MAX": [bounded(most(a, b), most(al, bl), most(ah, bh))],
    "MIN": [bounded(least(a, b), least(al, bl), least(ah, bh))],
    "AND": [
        Statement(
            z3.And(word & other >= 0, word & other <= word, word & other <= other), z3.And(word >= 0, other >= 0)
        ),
        Statement(z3.And(word & other >= 0, word & other <= other), other >= 0),
        Statement(z3.If(z3.And(p, q), 1, 0) == least(z3.If(p, 1, 0), z3.If(q, 1, 0))),
    ],
    "OR": [Statement(z3.If(z3.Or(p, q), 1, 0) == most(z3.If(p, 1, 0), z3.If(q, 1, 0)))],
    "SHR": [bounded(a / c, al / c, ah / c, c > 0)],
    "ABS": [
        bounded(z3.If(a < 0, -a, a), 0, most(ah, -ah, al, -al), z3.And(al <= 0, ah >= 0)),
        bounded(
            z3.If(a < 0, -a, a),
            least(most(al, -al), most(ah, -ah)),
            most(ah, -ah, al, -al),
            z3.Not(z3.And(al <= 0, ah >= 0)),
        ),
    ],
    "CAST": [bounded(a, al, ah), Statement((a != 0) == True, z3.And(BOTH, z3.Or(al > 0, ah < 0)))],  # noqa: E712
    "WHERE": [bounded(z3.If(p, a, b), least(al, bl), most(ah, bh))],
    "CMPLT": compared(a < b, ah < bl, al >= bh),
    "CMPLE": compared(a <= b, ah <= bl, al > bh),
    "CMPEQ": compared(a == b, z3.And(ah <= bl, al >= bh), z3.Or(ah < bl, al > bh)),
    "CMPNE": compared(a != b, z3.Or(ah < bl, al > bh), z3.And(ah <= bl, al >= bh)),
}


# ---- tests ---------------------------------------------------------------------------------------


def prove(claim: Any, assume: Any = True, lemmas: tuple[Any, ...] = ()) -> None:
    solver = z3.Solver()
    solver.set("timeout", MILLISECONDS)
    solver.add(assume, z3.Not(claim), *lemmas)
    found = solver.check()
    assert found == z3.unsat, f"{found}: {solver.model() if found == z3.sat else solver.reason_unknown()}"


@pytest.mark.parametrize("name", LEMMAS)
def test_lemmas(name: str) -> None:
    prove(LEMMAS[name])


@pytest.mark.parametrize("name", LAWS)
def test_laws(name: str) -> None:
    for s in LAWS[name]:
        prove(s.claim, s.assume, s.lemmas)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    for s in BOUNDS[name]:
        prove(s.claim, s.assume, s.lemmas)


@pytest.mark.parametrize("name", [*LAWS, *BOUNDS])
def test_no_law_assumes_what_cannot_be(name: str) -> None:
    """Of a contradiction anything follows."""
    for s in (*LAWS.get(name, ()), *BOUNDS.get(name, ())):
        solver = z3.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.add(s.assume)
        assert solver.check() == z3.sat


def test_a_law_that_does_not_hold_is_found() -> None:
    with pytest.raises(AssertionError, match="sat"):
        prove((w * c + r) / c == w + r / c + 1, c > 0)
    with pytest.raises(AssertionError, match="sat"):
        prove(mod(mod(x, a) + r, c) == mod(x + r, c), DIVIDED)


def test_every_rule_has_a_law() -> None:
    assert set(LAWS) | COMPUTED == {law.name for law in Law} - {"UNNAMED"}


def test_every_bound_has_a_law() -> None:
    text = (SOURCES / "bounds.pxi").read_text()
    assert set(re.findall(r"BOUNDS\[C_(\w+)\]", text)) == set(BOUNDS)
