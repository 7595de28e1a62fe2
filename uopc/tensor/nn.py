"""Functions that networks are made of: normalisation, loss, attention.

Plain compositions: the compiler finds the fusions.

Halves compute in float32 between the first step and the last, and the result has the type of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uopc.dtype import DType, dtypes, promote
from uopc.ops import Ops
from uopc.runtime.capture import is_unbound, note_check
from uopc.tensor.arithmetic import graph_of, in_type
from uopc.tensor.contraction import Contraction, product
from uopc.tensor.core import as_dtype
from uopc.tensor.creation import lower_triangle
from uopc.tensor.interop import weak_constant
from uopc.tensor.reduce import maximum_over, mean_of, reduce_, softmax_of
from uopc.tensor.shapes import (
    Shape,
    broadcast_shapes,
    counter,
    expand,
    integer,
    integers,
    number,
    operand,
    permute,
    reshape,
)
from uopc.uop import UOp, widened

if TYPE_CHECKING:
    from typing_extensions import Self


class NN(Contraction):
    """layer_norm, rms_norm, cross_entropy and scaled_dot_product_attention."""

    __slots__ = ()

    # ---- normalisation ----

    def layer_norm(
        self,
        normalized_shape: int | Sequence[int] | None = None,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> Self:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, as PyTorch; the variance is that of NumPy
        (two passes).

        normalized_shape: the sizes of those axes, by default the last one.  weight, bias: of that shape, or None.
        """
        x, axes = self._to_normalize(normalized_shape)
        away = x - expand(mean_of(x, axes, keepdim=True), x.shape)
        scale = (mean_of(away * away, axes, keepdim=True) + float(number(eps, "eps"))).alu(Ops.SQRT).recip()
        return self._scaled(away * expand(scale, x.shape), axes, weight, bias)

    def rms_norm(
        self, normalized_shape: int | Sequence[int] | None = None, weight: Any = None, eps: float | None = None
    ) -> Self:
        """x / sqrt(mean(x * x) + eps) * weight over the last axes, as PyTorch; eps is the dtype's resolution by
        default.
        """
        x, axes = self._to_normalize(normalized_shape)
        least = resolution(self._as_float().dtype) if eps is None else float(number(eps, "eps"))
        scale = (mean_of(x * x, axes, keepdim=True) + least).alu(Ops.SQRT).recip()
        return self._scaled(x * expand(scale, x.shape), axes, weight, None)

    def _to_normalize(self, normalized_shape: int | Sequence[int] | None) -> tuple[UOp, Shape]:
        """The graph in the type to compute in, and the axes; ValueError where these do not have the sizes said."""
        if not self.shape:
            raise ValueError("normalisation of a 0-d Tensor: an axis is needed")
        wanted = self.shape[-1:] if normalized_shape is None else integers((normalized_shape,), "a size")
        axes = tuple(range(self.ndim - len(wanted), self.ndim))
        if not wanted or self.shape[-len(wanted) :] != wanted:
            raise ValueError(f"normalisation over {wanted}: the last sizes of shape {self.shape} differ")
        return widened(self._as_float()), axes

    def _scaled(self, x: UOp, axes: Shape, weight: Any, bias: Any) -> Self:
        """``x`` in the type of this Tensor, times weight, plus bias; ValueError where these have another shape than the
        axes.
        """
        sizes = tuple([self.shape[a] for a in axes])
        dtype = x.dtype
        for factor, op, name in ((weight, Ops.MUL, "weight"), (bias, Ops.ADD, "bias")):
            if factor is None:
                continue
            u = graph_of(factor)
            if u is None or u.shape != sizes:
                raise ValueError(f"{name} has shape {None if u is None else u.shape}, and {sizes} is normalised")
            x = x.alu(op, expand(in_type(factor, u, dtype), x.shape))
        return self._of(as_dtype(x, self._as_float().dtype))

    # ---- loss ----

    def cross_entropy(
        self, target: Any, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0
    ) -> Self:
        """-log softmax(self)[target], as PyTorch.

        self: logits (N, C), (C,) or (N, C, d1 ...).  target: class positions (N,), () or (N, d1 ...), or probabilities
        of the shape of the logits, as floats.  reduction: "mean" (over targets that are not ``ignore_index``), "sum" or
        "none". IndexError for a class that does not exist, ValueError for shapes, TypeError for dtypes.
        """
        labels = graph_of(target)
        if labels is None or labels.dtype.is_bool:
            raise TypeError("cross_entropy takes integer classes or float probabilities for its target")
        if not self.shape:
            raise ValueError("cross_entropy of 0-d logits: an axis of classes is needed")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'reduction={reduction!r}; accepted are "mean", "sum" and "none"')
        at, smoothing = 0 if self.ndim == 1 else 1, float(number(label_smoothing, "label_smoothing"))
        if not 0.0 <= smoothing <= 1.0:
            raise ValueError(f"label_smoothing={label_smoothing!r}; from 0.0 to 1.0 is accepted")
        logp = self._of(widened(self._as_float())).log_softmax(at)
        counted: UOp | None = None
        if labels.dtype.is_float:
            losses = _expected_loss(logp.uop, labels, at, smoothing)
        else:
            losses, counted = logp._class_loss(labels, at, integer(ignore_index, "ignore_index"), smoothing)
        return self._of(as_dtype(_combined(losses, counted, reduction), self._as_float().dtype))

    def _class_loss(self, labels: UOp, at: int, ignored: int, smoothing: float) -> tuple[UOp, UOp]:
        """The loss of each target given log-probabilities (this), 0 where ignored; and where it counts."""
        rest = self.shape[:at] + self.shape[at + 1 :]
        if labels.shape != rest:
            raise ValueError(f"classes of shape {labels.shape} for logits of shape {self.shape}: {rest} is needed")
        labels, counts = self._checked_classes(labels, at, ignored)
        picked = reshape(self._picked(reshape(labels, self.shape[:at] + (1,) + self.shape[at + 1 :]), at), rest)
        losses = -picked
        if smoothing:
            losses = losses * (1.0 - smoothing) + mean_of(self.uop, (at,), keepdim=False) * -smoothing
        return counts.where(losses, UOp.const(0.0, losses.dtype)), counts

    def _checked_classes(self, labels: UOp, at: int, ignored: int) -> tuple[UOp, UOp]:
        """Classes as positions along an axis, 0 where ignored; and where they count.  In a function that is being
        captured they are looked at by every run."""
        classes, what = self.shape[at], f"the logits of shape {self.shape} have {self.shape[at]} classes"
        captured = is_unbound(labels)
        if not captured:
            known = self._of(labels).realize()
            array, labels = known._array(), known.uop
            wrong = array[(array != ignored) & ((array < 0) | (array >= classes))]
            if wrong.size:
                raise IndexError(f"class {wrong.flat[0]} does not exist: {what}")
        labels = as_dtype(labels, dtypes.int64)
        counts = labels.ne(weak_constant(ignored, dtypes.int64).arg)
        places = counts.where(labels, 0)
        if captured and 0 not in labels.shape:
            least, most = (reduce_(places, op, tuple(range(len(labels.shape)))) for op in (Ops.MIN, Ops.MAX))
            note_check(least, most, range(classes), f"no class: {what}")
            places = places.maximum(0).minimum(max(classes - 1, 0))
        return as_dtype(places, dtypes.index), counts

    def _picked(self, places: UOp, at: int) -> UOp:
        """The elements at checked positions along an axis."""
        idx = [places if i == at else counter(places.shape, i, dtypes.index) for i in range(self.ndim)]
        return UOp(Ops.GATHER, (self.uop, *idx))

    # ---- attention ----

    def scaled_dot_product_attention(
        self,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(self @ key.mT * scale) @ value, as PyTorch.

        self: (..., L, E), key: (..., S, E), value: (..., S, V); leading axes broadcast.  attn_mask: bool (True takes
        part) or a float that is added, broadcast to (..., L, S); a row in which nothing takes part gives 0.  is_causal:
        row i sees keys 0 to i.
        scale: 1/sqrt(E) by default.  enable_gqa: groups of query heads (axis -3) share a head of key and value.
        ValueError for shapes, for a mask beside is_causal, and for dropout; TypeError for dtypes.
        """
        mask = None if attn_mask is None else graph_of(attn_mask)
        if mask is None and attn_mask is not None:
            raise TypeError(f"attn_mask is a bool or float Tensor or array, not {type(attn_mask).__name__}")
        k, v = graph_of(key), graph_of(value)
        return self._of(attention(self.uop, k, v, mask, dropout_p, is_causal, scale, enable_gqa))


def resolution(dtype: DType) -> float:
    """The distance from 1 to the next number of a float type."""
    return 2.0**-7 if dtype is dtypes.bfloat16 else float(np.finfo(dtype.numpy).eps)


def _expected_loss(logp: UOp, target: UOp, at: int, smoothing: float) -> UOp:
    """The cross entropy with a target distribution."""
    if target.shape != logp.shape:
        raise ValueError(f"probabilities of shape {target.shape} for logits of shape {logp.shape}: they must agree")
    weights = as_dtype(target, logp.dtype)
    if smoothing:
        weights = weights * (1.0 - smoothing) + smoothing / logp.shape[at]
    return -reduce_(logp * weights, Ops.ADD, (at,))


def _combined(losses: UOp, counted: UOp | None, reduction: str) -> UOp:
    """ "none": each loss; "sum": all; "mean": all, over the number that counts."""
    if reduction == "none":
        return losses
    axes = tuple(range(len(losses.shape)))
    total = reduce_(losses, Ops.ADD, axes)
    if reduction == "sum":
        return total
    if counted is None:
        return total / float(math.prod(losses.shape))
    return total / reduce_(counted.cast(losses.dtype), Ops.ADD, axes)


# ---- attention, on graphs ----


def attention(
    q: UOp,
    k: UOp | None,
    v: UOp | None,
    mask: UOp | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> UOp:
    """The graph of ``scaled_dot_product_attention``, which says what it takes and raises."""
    if k is None or v is None:
        raise TypeError("scaled_dot_product_attention takes Tensors or arrays for query, key and value")
    if dropout:
        raise ValueError(f"dropout_p={dropout}: only 0.0 is accepted")
    if causal and mask is not None:
        raise ValueError("attn_mask is not accepted beside is_causal=True")
    dtype = promote(promote(q.dtype, k.dtype), v.dtype)
    if not dtype.is_float:
        raise TypeError(f"attention takes floats, not {q.dtype.name}, {k.dtype.name} and {v.dtype.name}")
    q, k, v = as_dtype(q, dtype), as_dtype(k, dtype), as_dtype(v, dtype)
    if min(len(q.shape), len(k.shape), len(v.shape)) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"attention of shapes {q.shape}, {k.shape} and {v.shape}: needed are (..., L, E), (..., S, E), (..., S, V)"
        )
    heads = q.shape
    if grouped:
        q, k, v, mask = _in_groups(q, k, v, mask)
    out = _attend(q, k, v, mask, causal, scale)
    return reshape(out, (*heads[:-1], out.shape[-1])) if grouped else out


def _attend(q: UOp, k: UOp, v: UOp, mask: UOp | None, causal: bool, scale: float | None) -> UOp:
    """Scores, mask, softmax, weighted sum."""
    size = q.shape[-1]
    factor = (1.0 / math.sqrt(size) if size else 1.0) if scale is None else float(number(scale, "a scale"))
    n = len(k.shape)
    scores = product(widened(q), permute(widened(k), (*range(n - 2), n - 1, n - 2))) * factor
    shape, last = scores.shape, len(scores.shape) - 1
    if shape[-1] == 0:  # nobody to look at
        return expand(UOp.const(0.0, q.dtype), (*broadcast_shapes(shape[:-2], v.shape[:-2]), shape[-2], v.shape[-1]))
    never = UOp.const(-math.inf, scores.dtype)
    if causal:
        scores = lower_triangle(shape).where(scores, never)
    elif mask is not None:
        scores = _masked(scores, mask, never)
    weights = as_dtype(softmax_of(scores, last), q.dtype)
    out = product(weights, v)
    if mask is None:
        return out
    dead = maximum_over(scores, last).eq(-math.inf)
    zero = UOp.const(0.0, out.dtype)
    # weights of dead rows are NaN, which must not reach the gradient of v: for gradients they are 0
    alive = product(operand(dead, shape).where(zero, weights), v)
    return UOp(Ops.ALIAS, (operand(dead, out.shape).where(zero, out), alive))


def _masked(scores: UOp, mask: UOp, never: UOp) -> UOp:
    """Scores that the mask lets through; ValueError for a mask that does not broadcast, TypeError for integers."""
    shape = scores.shape
    if broadcast_shapes(mask.shape, shape) != shape:
        raise ValueError(f"attn_mask of shape {mask.shape} does not broadcast to scores of shape {shape}")
    if mask.dtype.is_bool:
        return expand(mask, shape).where(scores, never)
    if not mask.dtype.is_float:
        raise TypeError(f"attn_mask is bool or float, not {mask.dtype.name}")
    return scores + expand(as_dtype(mask, scores.dtype), shape)


def _in_groups(q: UOp, k: UOp, v: UOp, mask: UOp | None) -> tuple[UOp, UOp, UOp, UOp | None]:
    """Query heads as (heads of k, group); k, v and mask get an axis of size 1 in place of the group, so that nothing is
    copied.
    """
    if (
        min(len(q.shape), len(k.shape), len(v.shape)) < 3
        or k.shape[-3] != v.shape[-3]
        or not k.shape[-3]
        or q.shape[-3] % k.shape[-3]
    ):
        raise ValueError(
            f"enable_gqa of shapes {q.shape}, {k.shape} and {v.shape}: needed are as many heads (axis -3) of value as "
            "of key, at least one, and a multiple of them of query"
        )
    heads, shared = q.shape[-3], k.shape[-3]
    q = reshape(q, (*q.shape[:-3], shared, heads // shared, *q.shape[-2:]))
    k, v = (reshape(u, (*u.shape[:-2], 1, *u.shape[-2:])) for u in (k, v))
    if mask is not None and len(mask.shape) > 2:
        split = (shared, heads // shared) if mask.shape[-3] == heads else (1, 1)
        if mask.shape[-3] not in (1, heads):
            raise ValueError(f"attn_mask of shape {mask.shape} does not broadcast to {heads} heads")
        mask = reshape(mask, (*mask.shape[:-3], *split, *mask.shape[-2:]))
    return q, k, v, mask


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``Tensor.scaled_dot_product_attention`` as a function: query, key and value are Tensors or arrays."""
    if not isinstance(query, NN):
        from uopc.tensor import Tensor

        query = Tensor(query)
    return query.scaled_dot_product_attention(key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
