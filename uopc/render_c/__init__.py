"""render_c: a list of statements becomes C.

In: ``LINEAR`` (what ``linearize`` returns), or a SINK written by hand, which is taken through the stages before this
one.
Out: one self-contained translation unit without headers: ``NAME_range(args, lo, hi)`` for the pool, ``NAME_launch`` =
{trips, chunk, schedule}, and ``NAME(buffers...)``, a complete OpenMP kernel that calls it.

Values with one use stand inside the expression that uses them; the rest become constants of C.  Vectors are GCC vector
types, understood by clang too.  Loops are i0, i1 ..., values v0, v1 ..., BUFFERs d0 ... and ALLOCs a0 ... by slot, so
that equal programs are equal text.

``types`` and ``functions`` say what a unit declares, ``expressions`` and ``memory`` the text of a node, ``kernel`` the
loops and the unit.  ``_hot.text`` is text with precedence, ``_hot.uses`` says which values get a name,
``_hot.statements`` prints the list: of the texts, it knows plain operators and accesses itself.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

from uopc._hot.graph import of_ops
from uopc.ops import Ops
from uopc.render_c.kernel import Kernel
from uopc.runtime.device import host
from uopc.target import Target
from uopc.uop import UOp, toposort

__all__ = ["TilesTooLarge", "render_c"]


class TilesTooLarge(ValueError):
    """What a kernel keeps does not fit a thread's stack."""


def render_c(root: UOp, name: str, target: Target | None = None) -> str:
    """The C of a program: ``root`` is LINEAR, or a SINK of loop IR, which first goes through the stages that make it
    LINEAR, for a machine: this one where nobody says.

    ValueError for a program that cannot be put in order, in which something stands outside the THREAD range that it
    has, or whose ALLOCs do not fit a thread's stack.
    """
    if not isinstance(root, UOp) or root.op not in (Ops.SINK, Ops.LINEAR):
        raise TypeError(f"render_c takes a SINK of statements, or a LINEAR list, not {root!r}")
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ValueError(f"{name!r} cannot be the name of a C function")
    parameters: list[UOp] = []
    if root.op is Ops.SINK:
        parameters = of_ops(toposort(root), Ops.BUFFER)  # also those that turn out not to be needed
        root = sys.modules[__name__].to_linear(root)
    target = target or host()
    kept = sum(u.dtype.itemsize * math.prod(u.arg.shape) for u in of_ops(root.src, Ops.ALLOC))
    if kept > target.stack:
        raise TilesTooLarge(
            f"{name} would keep {kept} bytes in ALLOCs, and a thread's stack has room for {target.stack}"
        )
    return Kernel(root, name, parameters, target).print()


def __getattr__(name: str) -> Any:
    """``to_linear``, by its home: the pipeline knows the stages and stands above this package."""
    if name == "to_linear":
        return importlib.import_module("uopc.pipeline").to_linear
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
