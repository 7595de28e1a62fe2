"""isolate: what one kernel computes, by itself.

In: a value of a graph, and which other values it reads from memory.  Out: its expression with BUFFERs in their place,
which are numbered in the order in which they stand, as its cascades are: values of equal layers become one node, and
what is asked of one (a price) is remembered for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container

from uopc.ops import ComponentArg, Ops, Order, ParamArg, ReduceArg
from uopc.uop import UOp

_MEMORY = frozenset({Ops.BUFFER, Ops.STAGE})


def isolated(value: UOp, written: Container[UOp] = ()) -> UOp:
    """The expression of ``value``, with BUFFERs for memory and for what is in ``written``."""
    made: dict[UOp, UOp] = {}
    cascades: dict[int, int] = {}
    slots = itertools.count()

    def read(u: UOp, computed: UOp) -> UOp:
        """``u`` from memory, if it is written down."""
        if u is value or not (u in written or u.op in _MEMORY):
            return computed
        return made.setdefault(u, UOp(Ops.BUFFER, (), ParamArg(next(slots), u.dtype, u.shape)))

    stack = [value]
    while stack:
        u = stack[-1]
        if u in made or read(u, u) is not u:
            stack.pop()
        elif missing := [s for s in u.src if s not in made]:
            stack += reversed(missing)
        else:
            made[stack.pop()] = reduction(u, _renumbered(u, tuple(made[s] for s in u.src), cascades), read)
    return made[value]


def _renumbered(u: UOp, src: tuple[UOp, ...], cascades: dict[int, int]) -> UOp:
    """A node with other sources, and the cascade that it is of or belongs to by its place."""
    if u.op is Ops.STATE:
        return u.replace(arg=u.arg._replace(cascade=cascades.setdefault(u.arg.cascade, len(cascades))))
    if u.op is Ops.CASCADE:
        return u.replace(src=src, arg=u.arg._replace(id=cascades.setdefault(u.arg.id, len(cascades))))
    return u if src == u.src else u.replace(src=src)


def reduction(u: UOp, new: UOp, read: Callable[[UOp, UOp], UOp]) -> UOp:
    """What takes the place of ``u``, which with other sources is ``new``: for a value of a cascade all of whose
    reductions are of memory, the REDUCE, of running values that have run; for any other node ``new``.  Passes over
    memory need no blocks: a row stands in a cache after the first.

    read: of a value of the cascade, and as it is computed: that, or where it is read.
    """
    if new.op is not Ops.COMPONENT or any(c.order is not Order.ANY for c in new.src[0].arg.components):
        return new
    node, sources = new.src[0], iter(new.src[0].src)
    results: list[UOp] = []
    for k, component in enumerate(node.arg.components[: new.arg.component + 1]):
        body = next(sources)
        if component.corrected:
            next(sources)
        states = _states(body)
        if states is None or not all(s.arg.new and s.arg.cascade == node.arg.id for s in states):
            return new
        value = body.substitute({s: results[s.arg.component] for s in states})
        value = UOp(Ops.REDUCE, (value,), ReduceArg(component.op, (component.axis,)))
        same = u if k == new.arg.component else u.replace(arg=ComponentArg(k, value.dtype, value.shape))
        results.append(value if same is u else read(same, value))
    return results[-1]


def _states(body: UOp) -> list[UOp] | None:
    """The running values that a body uses; None where it computes a reduction itself."""
    seen, stack = {body}, [body]
    while stack:
        v = stack.pop()
        if v.op in (Ops.REDUCE, Ops.CASCADE):
            return None
        new = [s for s in v.src if s not in seen] if v.op is not Ops.STAGE else []
        seen.update(new)
        stack += new
    return [v for v in seen if v.op is Ops.STATE]
