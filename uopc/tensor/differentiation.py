"""Gradients of Tensors: ``gradient`` returns them, ``backward`` adds them up in ``.grad``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uopc.gradient import gradients
from uopc.ops import Ops
from uopc.runtime.capture import CaptureError, is_recording
from uopc.tensor.arithmetic import graph_of
from uopc.tensor.core import Core, as_dtype
from uopc.tensor.random import Random
from uopc.tensor.shapes import expand
from uopc.tensor.variables import is_variable
from uopc.uop import UOp, toposort

if TYPE_CHECKING:
    from typing_extensions import Self


class Differentiation(Random):
    """gradient and backward."""

    __slots__ = ()

    def gradient(self, *targets: Core, grad: Any = None) -> list[Self]:
        """The gradients of this Tensor by each of ``targets``, in their shapes and dtypes: lazy, and differentiable.

        targets: Tensors that this one was computed from, inputs or results on the way.  A target is its expression: all
        uses of that in the graph count.  grad: the gradient of what is computed further by this Tensor, in its shape; 1
        by default, for one element.
        0 where a target has no influence that can be differentiated (``detach``, comparisons, rounding).
        TypeError for integers and bools; ValueError for a target that is no part of the graph, for one that consists of
        constants (all equal constants are one node), and for another shape of ``grad``.
        """
        seed = seed_of(self.uop, grad)
        uops = [_target(t, k) for k, t in enumerate(targets)]
        if not targets:
            raise TypeError("gradient of no targets: name the Tensors to differentiate by")
        for k, t in enumerate(targets):
            if any(other is not t and u is uops[k] for other, u in zip(targets[:k], uops)):
                raise ValueError(
                    f"target {k}, of shape {t.shape}, is the same expression as another one, so that their gradients "
                    "cannot be told apart; uopc.grad tells its arguments apart"
                )
        found = gradients([self.uop], [seed], uops)
        for k, (t, g) in enumerate(zip(targets, found)):
            if g is None:
                raise ValueError(_not_found(k, t, self))
        return [self._of(g) for g in found if g is not None]

    def backward(self, *targets: Core, grad: Any = None) -> None:
        """Add the gradient by each of ``targets`` to its ``.grad``.  Arguments and errors as for ``gradient``."""
        if is_recording():
            raise CaptureError("backward() in a captured function would set .grad once only; return gradient() instead")
        made = self.gradient(*targets, grad=grad)
        for t, g in zip(targets, made):
            t.grad = g if t.grad is None else t.grad + g


def seed_of(u: UOp, grad: Any) -> UOp:
    """The gradient of a result: as given, or 1 for one element.  TypeError, ValueError: see ``gradient``."""
    if not u.dtype.is_float:
        raise TypeError(f"{u.dtype.name} of shape {u.shape} has no gradient; accepted are floats")
    if grad is None:
        if any(n != 1 for n in u.shape):
            raise ValueError(f"the gradient of shape {u.shape} needs grad=, of that shape; alone it takes one element")
        return expand(UOp.const(1.0, u.dtype), u.shape)
    given = UOp.const(grad, u.dtype) if type(grad) in (int, float) else graph_of(grad)
    if given is None or given.dtype.is_bool:
        raise TypeError(f"grad is a Tensor, an array or a number, not {type(grad).__name__}")
    if given.shape != u.shape:
        raise ValueError(f"grad has shape {given.shape}, and what is differentiated has {u.shape}")
    return as_dtype(given, u.dtype)


def _target(t: Any, k: int) -> UOp:
    """The node of a target."""
    if not isinstance(t, Core):
        raise TypeError(f"target {k} is a {type(t).__name__}; accepted are Tensors")
    if not t.dtype.is_float:
        raise TypeError(f"target {k} is {t.dtype.name} of shape {t.shape}, which has no gradient; accepted are floats")
    if not any(u.op is Ops.BUFFER or is_variable(u) for u in toposort(t.uop)):
        raise ValueError(
            f"target {k}, of shape {t.shape}, consists of constants, which are one node wherever they stand; give it "
            "memory of its own, such as Tensor(np.zeros(...)), or use uopc.grad"
        )
    return t.uop


def _not_found(k: int, t: Core, result: Core) -> str:
    what = f"target {k}, {t.dtype.name} of shape {t.shape}, is no part of the graph"
    if result.uop.op is Ops.BUFFER:
        return f"{what}: the result was computed already (realize(), item(), numpy()); take its gradient before"
    return f"{what} of this Tensor, or what lies between was realized; accepted are Tensors that it was computed from"
