"""Functions of one tensor, element by element.

Float functions of integers and bools compute in the float that holds them, as NumPy: int8 and bool in float16, int16 in
float32, wider ones in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from uopc.dtype import float_of
from uopc.ops import Ops
from uopc.tensor.arithmetic import Arithmetic, filled
from uopc.tensor.core import as_dtype
from uopc.tensor.shapes import integer, number
from uopc.uop import UOp, widened

if TYPE_CHECKING:
    from typing_extensions import Self

# 10 to the power of more is no float64.
MOST_DECIMALS = 308
# From here on 1 / (1 + exp(-x)) rounds to 1 in every type.
ONE_FROM = 40.0


class Functions(Arithmetic):
    """Roots, exponentials, rounding, tests and activations."""

    __slots__ = ()

    def _float_op(self, op: Ops) -> Self:
        """``op`` in the float type of this Tensor."""
        u = self.uop
        return self._of((u if u.dtype.is_float else as_dtype(u, float_of(u.dtype))).alu(op))

    def _by_formula(self, formula: Callable[[UOp], UOp]) -> Self:
        """A formula of several steps in the float type of this Tensor, rounded once: halves compute in float32."""
        u = self._as_float()
        return self._of(as_dtype(formula(widened(u)), u.dtype))

    def _as_float(self) -> UOp:
        u = self.uop
        return u if u.dtype.is_float else as_dtype(u, float_of(u.dtype))

    # ---- powers and roots ----

    def square(self) -> Self:
        """x * x, in its own dtype."""
        return self * self

    def sqrt(self) -> Self:
        """The square root; NaN below 0."""
        return self._float_op(Ops.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self._by_formula(lambda x: x.alu(Ops.SQRT).recip())

    def reciprocal(self) -> Self:
        """1 / x, a float also for integers."""
        return self._float_op(Ops.RECIP)

    # ---- exponentials and logarithms ----

    def exp(self) -> Self:
        """e ** x."""
        return self._float_op(Ops.EXP)

    def exp2(self) -> Self:
        """2 ** x."""
        return self._float_op(Ops.EXP2)

    def expm1(self) -> Self:
        """exp(x) - 1, accurate near 0."""
        return self._float_op(Ops.EXPM1)

    def log(self) -> Self:
        """The natural logarithm; -inf at 0, NaN below."""
        return self._float_op(Ops.LOG)

    def log2(self) -> Self:
        """The logarithm to base 2."""
        return self._float_op(Ops.LOG2)

    def log1p(self) -> Self:
        """log(1 + x), accurate near 0."""
        return self._float_op(Ops.LOG1P)

    # ---- trigonometry and the error function ----

    def sin(self) -> Self:
        """The sine of radians."""
        return self._float_op(Ops.SIN)

    def cos(self) -> Self:
        """The cosine of radians."""
        return self._float_op(Ops.COS)

    def tan(self) -> Self:
        """The tangent of radians."""
        return self._float_op(Ops.TAN)

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._float_op(Ops.TANH)

    def erf(self) -> Self:
        """The error function."""
        return self._float_op(Ops.ERF)

    # ---- sign and rounding: the dtype stays ----

    def abs(self) -> Self:
        """The absolute value; the least integer stays what it is, as NumPy."""
        return self._of(self.uop if self.dtype.kind in "bu" else self.uop.alu(Ops.ABS))

    def sign(self) -> Self:
        """-1, 0 or 1; NaN for NaN.  TypeError for bool, as NumPy."""
        u = self.uop
        if u.dtype.is_bool:
            raise TypeError("sign is not defined for bool, as in NumPy")
        # -0.0 has the sign 0.0, and NaN that of a NaN
        above = (u > 0).where(UOp.const(1, u.dtype), u.alu(Ops.ABS) if u.dtype.is_float else u)
        return self._of(above if u.dtype.kind == "u" else (u < 0).where(UOp.const(-1, u.dtype), above))

    def _rounded(self, op: Ops) -> Self:
        return self._of(self.uop.alu(op) if self.dtype.is_float else self.uop)

    def floor(self) -> Self:
        """The next whole number below; integers as they are."""
        return self._rounded(Ops.FLOOR)

    def ceil(self) -> Self:
        """The next whole number above; integers as they are."""
        return self._rounded(Ops.CEIL)

    def trunc(self) -> Self:
        """Rounded towards 0; integers as they are."""
        return self._rounded(Ops.TRUNC)

    def round(self, decimals: int = 0) -> Self:
        """Rounded to ``decimals`` digits after the point, halves to even.

        Integers stay for decimals >= 0, else TypeError.  ValueError for digits that no float has.
        """
        digits = integer(decimals, "a number of decimals")
        if not self.dtype.is_float:
            if digits < 0:
                raise TypeError(f"round({digits}) of {self.dtype.name} is not supported; cast to a float first")
            return self._of(self.uop)
        if digits == 0:
            return self._rounded(Ops.ROUND)
        if abs(digits) > MOST_DECIMALS:
            raise ValueError(f"round to {digits} decimals: accepted are at most {MOST_DECIMALS}, on either side")
        scale = 10.0 ** abs(digits)
        if digits > 0:
            return self._by_formula(lambda x: (x * scale).alu(Ops.ROUND) / scale)
        return self._by_formula(lambda x: (x / scale).alu(Ops.ROUND) * scale)

    __abs__, __floor__, __ceil__, __trunc__ = abs, floor, ceil, trunc

    def __round__(self, digits: int | None = None) -> Self:
        return self.round(digits or 0)

    # ---- tests: bool ----

    def isnan(self) -> Self:
        """Where there is NaN."""
        return self._of(self.uop.ne(self.uop)) if self.dtype.is_float else self._of(filled(False, self.shape))

    def isinf(self) -> Self:
        """Where there is inf or -inf."""
        return (
            self._of(self.uop.alu(Ops.ABS).eq(math.inf)) if self.dtype.is_float else self._of(filled(False, self.shape))
        )

    def isfinite(self) -> Self:
        """Where there is neither NaN nor an infinity."""
        return self._of(self.uop.alu(Ops.ABS) < math.inf) if self.dtype.is_float else self._of(filled(True, self.shape))

    # ---- activations ----

    def relu(self) -> Self:
        """max(x, 0), in its own dtype."""
        return self._of(self.uop.maximum(0) if not self.dtype.is_bool else self.uop)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)); 0 and 1 far out, never NaN."""
        return self._by_formula(lambda x: ((-x).alu(Ops.EXP) + 1.0).recip())

    def silu(self) -> Self:
        """x * sigmoid(x)."""
        return self._by_formula(lambda x: x / ((-x).alu(Ops.EXP) + 1.0))

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """log(1 + exp(beta x)) / beta, without overflow; x itself where beta x > threshold, as PyTorch.

        ValueError for beta=0.
        """
        steepness, limit = float(number(beta, "beta")), float(number(threshold, "a threshold"))
        if steepness == 0:
            raise ValueError("softplus(beta=0) divides by 0; accepted is any other number")

        def formula(x: UOp) -> UOp:
            y = x * steepness
            smooth = y.maximum(0.0) + (-y.alu(Ops.ABS)).alu(Ops.EXP).alu(Ops.LOG1P)
            return (y > limit).where(x, smooth * (1.0 / steepness))

        return self._by_formula(formula)

    def gelu(self, approximate: str = "none") -> Self:
        """x P(X <= x) of a standard normal X: exactly for ``"none"``, by its tanh approximation for ``"tanh"``, as
        PyTorch; accurate relative to itself, however far below 0.
        """
        if approximate == "none":
            return self._by_formula(lambda x: x * x.alu(Ops.NDTR))
        if approximate == "tanh":
            return self._by_formula(_gelu_by_tanh)
        raise ValueError(f'gelu(approximate={approximate!r}); accepted are "none" and "tanh"')


def _gelu_by_tanh(x: UOp) -> UOp:
    # (1 + tanh u) / 2 is e^2u / (1 + e^2u), which is no difference of near numbers far below 0
    steepness = 2.0 * math.sqrt(2.0 / math.pi)
    power = (x * (x * x * (0.044715 * steepness) + steepness)).minimum(ONE_FROM).alu(Ops.EXP)
    return x * (power / (power + 1.0))
