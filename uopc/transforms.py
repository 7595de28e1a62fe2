"""Functions of functions: gradients of Python functions of Tensors, by their arguments.

Arguments are arrays and Tensors, alone or in (nested) tuples, lists and dicts.  Each float array in an argument that is
differentiated by is a variable of its own while the function runs, so that two equal arguments are two.  Results are
Tensors, lazy as all are; ``uopc.jit`` of what these functions return compiles one plan for all of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from uopc._hot.call import Mark, flatten
from uopc.dtype import dtypes
from uopc.gradient import gradients
from uopc.gradient.batched import batched
from uopc.jit import Jit, rebuilt
from uopc.tensor import Tensor
from uopc.tensor.arithmetic import graph_of
from uopc.tensor.core import Core, as_dtype
from uopc.tensor.differentiation import seed_of
from uopc.tensor.shapes import counter, expand, integer, reshape
from uopc.tensor.variables import differentiating, variable
from uopc.uop import UOp

ArgNums = int | Sequence[int]


class _Run:
    """One run of a function on variables.

    result: what it returned.  variables: for each argument that is differentiated by, its leaves: Marks, None, and for
    each array the node of its variable.
    """

    def __init__(self, f: Callable[..., Any], argnums: Iterable[int], args: tuple[Any, ...], kwargs: dict) -> None:
        self.values: dict[UOp, UOp] = {}
        self.args = args
        self.variables = {k: [self._variable(x, k) for x in flatten((args[k],), {})] for k in argnums}
        given = [
            _as_variables(x, self.variables[k]) if k in self.variables else _as_tensors(x) for k, x in enumerate(args)
        ]
        f = f.__wrapped__ if isinstance(f, Jit) else f
        with differentiating():
            self.result = f(*given, **{name: _as_tensors(x) for name, x in kwargs.items()})

    def _variable(self, x: Any, k: int) -> Any:
        if isinstance(x, Mark) or x is None:
            return x
        u = UOp.const(x, dtypes.default_float) if type(x) is float else graph_of(x)
        if u is None or not u.dtype.is_float:
            found = type(x).__name__ if u is None else f"{u.dtype.name} of shape {u.shape}"
            raise TypeError(
                f"argument {k} holds {found}, which has no gradient; accepted are floats: arrays, Tensors and numbers, "
                "None, and tuples, lists and dicts of them"
            )
        made = variable(u)
        self.values[made] = u
        return made

    def targets(self) -> list[UOp]:
        """All variables, in the order of the arguments."""
        return [u for leaves in self.variables.values() for u in leaves if type(u) is UOp]

    def gradients(self, roots: Sequence[UOp], seeds: Sequence[UOp]) -> dict[UOp, UOp]:
        """For each variable its gradient: 0 for one that is not used."""
        targets = self.targets()
        zero = (expand(UOp.const(0, t.dtype), t.shape) for t in targets)
        return {t: z if g is None else g for t, g, z in zip(targets, gradients(roots, seeds, targets), zero)}

    def settled(self, u: UOp) -> UOp:
        """A graph with the arguments' own values in place of the variables."""
        return u.substitute(self.values)

    def like_arguments(self, found: dict[UOp, UOp]) -> tuple[Any, ...]:
        """A Tensor for each variable, in the structure of the arguments that are differentiated by."""
        return tuple([self.like_argument(k, lambda u: Tensor._of(self.settled(found[u]))) for k in self.variables])

    def like_argument(self, k: int, fn: Callable[[UOp], Any]) -> Any:
        """``fn`` of each variable of one argument, in its structure."""
        return _filled(self.args[k], [fn(u) if type(u) is UOp else u for u in self.variables[k]])


def _filled(x: Any, leaves: list[Any]) -> Any:
    """``x`` with other leaves."""
    return rebuilt((x,), {}, iter(leaves))[0][0]


def _as_variables(x: Any, variables: list[Any]) -> Any:
    """An argument with Tensors over variables in place of its data, of the classes that its Tensors have."""
    kinds = [type(a) if isinstance(a, Core) else Tensor for a in flatten((x,), {})]
    return _filled(x, [kind._of(u) if type(u) is UOp else u for kind, u in zip(kinds, variables)])


def _as_tensors(x: Any) -> Any:
    """An argument with Tensors in place of arrays, as captured functions see it."""
    leaves = flatten((x,), {})
    return _filled(x, [a if isinstance(a, (Core, np.generic)) or not _is_data(a) else Tensor(a) for a in leaves])


def _is_data(x: Any) -> bool:
    return hasattr(x, "__array__") or hasattr(x, "__dlpack__")


def _positions(argnums: ArgNums, n: int) -> tuple[int, ...]:
    """Argument numbers counted from the front; ValueError for those that there are not."""
    given = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    numbers = [integer(k, "an argument number") for k in given]
    if not numbers or any(not -n <= k < n for k in numbers) or len({k % n for k in numbers}) < len(numbers):
        raise ValueError(f"argnums={argnums!r} for {n} positional arguments: accepted are numbers of them, each once")
    return tuple([k % n for k in numbers])


def _tensors(tree: Any, f: Callable[..., Any]) -> tuple[list[Any], list[UOp]]:
    """The leaves of a result, and the graphs of those that are Tensors; TypeError for what is neither nor None."""
    leaves = flatten((tree,), {})
    for x in leaves:
        if not isinstance(x, (Mark, Core, type(None))):
            raise TypeError(
                f"{_name(f)} returned a {type(x).__name__}; Tensors are accepted, in tuples, lists and dicts"
            )
        if isinstance(x, Core) and not x.dtype.is_float:
            raise TypeError(f"{_name(f)} returned {x.dtype.name} of shape {x.shape}, which has no gradient; cast it")
    return leaves, [x.uop for x in leaves if isinstance(x, Core)]


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__qualname__", None) or repr(f)


def _function(f: Any, name: str) -> Callable[..., Any]:
    if not callable(f):
        raise TypeError(f"{name} takes a function of Tensors, not {f!r}")
    return f


def _scalar(value: Any, f: Callable[..., Any]) -> UOp:
    """The graph of a result of one element."""
    if not isinstance(value, Core):
        raise TypeError(f"{_name(f)} returned a {type(value).__name__}; a Tensor of one element is accepted")
    if any(n != 1 for n in value.shape):
        raise ValueError(f"{_name(f)} returned shape {value.shape}; one element is accepted: sum() it, or use uopc.vjp")
    return value.uop


def value_and_grad(f: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that returns what ``f`` does and its gradients: ``(value, grads)``.

    f: returns a float Tensor of one element; with ``has_aux`` a pair of it and anything else, and then the first of
    what is returned is a pair too.  argnums: which positional arguments to differentiate by: floats, alone or in
    tuples, lists and dicts.
    grads: Tensors in the structure of the argument, for several ``argnums`` a tuple; 0 for what ``f`` does not use.
    TypeError for integers and bools among them and for other results, ValueError for results of more elements.
    """
    _function(f, "value_and_grad")

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        run = _Run(f, _positions(argnums, len(args)), args, kwargs)
        value, aux = run.result if has_aux else (run.result, None)
        root = _scalar(value, f)
        grads = run.like_arguments(run.gradients([root], [seed_of(root, None)]))
        first = Tensor._of(run.settled(root))
        result = grads[0] if isinstance(argnums, int) else grads
        return ((first, _without_variables(aux, run)), result) if has_aux else (first, result)

    return differentiated


def _without_variables(tree: Any, run: _Run) -> Any:
    leaves = flatten((tree,), {})
    return _filled(tree, [type(x)._of(run.settled(x.uop)) if isinstance(x, Core) else x for x in leaves])


def grad(f: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that returns the gradients of ``f``, as ``value_and_grad`` without the value; ``(grads, aux)`` with
    ``has_aux``.
    """
    both = value_and_grad(_function(f, "grad"), argnums, has_aux)

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return differentiated


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """``f(*primals)``, and the function that takes gradients in the structure of that to those of all ``primals``.

    TypeError for primals and results that are no floats, ValueError for gradients of other shapes.
    """
    run = _Run(_function(f, "vjp"), range(len(primals)), primals, {})
    leaves, roots = _tensors(run.result, f)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        seeds = _matching(cotangents, leaves, "a gradient")
        return run.like_arguments(run.gradients(roots, seeds))

    return _without_variables(run.result, run), pullback


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """``f(*primals)``, and its derivative in the direction of ``tangents`` (in the structure of ``primals``).

    Reverse mode twice: the derivative of what ``vjp`` gives, which is linear, by what it is given.
    """
    run = _Run(_function(f, "jvp"), range(len(primals)), tuple(primals), {})
    directions = _matching(tuple(tangents), flatten((tuple(primals),), {}), "a tangent")
    leaves, roots = _tensors(run.result, f)
    seeds = [variable(expand(UOp.const(0, r.dtype), r.shape)) for r in roots]
    found = run.gradients(roots, seeds)
    made = gradients(list(found.values()), directions, seeds)
    zeros = [expand(UOp.const(0, r.dtype), r.shape) for r in roots]
    values = iter([Tensor._of(run.settled(z if m is None else m)) for m, z in zip(made, zeros)])
    moved = _filled(run.result, [next(values) if isinstance(x, Core) else x for x in leaves])
    return _without_variables(run.result, run), moved


def _matching(given: Any, leaves: list[Any], what: str) -> list[UOp]:
    """The graphs of a tree that has an array for each of those among ``leaves``; ValueError where it does not."""
    found = flatten((given,), {})
    if len(found) != len(leaves) or not all(map(_stand_alike, found, leaves)):
        raise ValueError(f"{what} is needed for each array, in the same structure of tuples, lists and dicts")
    uops = []
    for x, like in zip(found, leaves):
        if isinstance(like, Mark) or like is None:
            continue
        u = graph_of(like) if type(like) is not float else UOp.const(like, dtypes.default_float)
        assert u is not None
        uops.append(_of_kind(x, u, what))
    return uops


def _stand_alike(a: Any, b: Any) -> bool:
    """Whether two leaves are the same container, or neither is one."""
    if isinstance(a, Mark) and isinstance(b, Mark):
        return (a.kind, a.length, a.keys) == (b.kind, b.length, b.keys)
    return not isinstance(a, Mark) and not isinstance(b, Mark)


def _of_kind(x: Any, like: UOp, what: str) -> UOp:
    u = UOp.const(x, like.dtype) if type(x) in (int, float) else graph_of(x)
    if u is None:
        raise TypeError(f"{what} is a Tensor, an array or a number, not {type(x).__name__}")
    if u.shape != like.shape:
        raise ValueError(f"{what} has shape {u.shape}, and {like.shape} is needed")
    return as_dtype(u, like.dtype)


def hessian(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The function that returns the second derivatives of ``f``, which returns one element, by an argument.

    For an array of shape s a Tensor of shape (*s, *s); for a tuple, list or dict, in its structure, for each array the
    derivatives of its gradient, in that structure again.  All rows are computed at once: memory and work are those of
    the gradient's gradient times the number of elements.
    """
    _function(f, "hessian")

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        (k,) = _positions((argnums,), len(args))
        run = _Run(f, (k,), args, kwargs)
        root = _scalar(run.result, f)
        first = run.gradients([root], [seed_of(root, None)])

        def rows(u: UOp) -> Any:
            second = _rows(run, u, first[u])
            return run.like_argument(k, lambda v: Tensor._of(run.settled(second[v])))

        return run.like_argument(k, rows)

    return differentiated


def _rows(run: _Run, u: UOp, g: UOp) -> dict[UOp, UOp]:
    """The derivatives of the gradient ``g`` by the variable ``u``, by every variable: the gradient of ``seed * g`` for
    a seed of each element, all along a new axis."""
    seed = variable(expand(UOp.const(0, g.dtype), g.shape))
    second = run.gradients([g], [seed])
    n = math.prod(u.shape)
    ones = counter((n, n), 0, dtypes.index).eq(counter((n, n), 1, dtypes.index)).cast(g.dtype)
    made = batched(list(second.values()), seed, reshape(ones, (n, *g.shape)))
    return {v: reshape(m, (*u.shape, *v.shape)) for v, m in zip(second, made)}
