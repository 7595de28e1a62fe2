"""Captured functions: run the Python of a function once for each signature, and from then on only launch its kernels.

What a signature is: the structure of the arguments; the shape, dtype and layout (C-contiguous, or exact strides) of
each array and Tensor; the value of everything else; and the options in force.  What the function reads besides its
arguments (closure, globals, attributes) is watched by Guards: where that has changed, the function is captured anew.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from uopc._hot.call import Captured, Function, Guard, Leaf, Mark, View, flatten, set_tensor_type
from uopc.dtype import DType, dtypes, from_numpy, to_dtype
from uopc.ops import Level, Ops, ViewArg
from uopc.options import Options, _scoped, current, environment
from uopc.runtime.capture import CaptureError, Recording, is_recording, recording
from uopc.runtime.state import Unwatchable, Walk, attributes, foreign_random_state
from uopc.runtime.storage import new_buffer, placeholder
from uopc.tensor import Tensor, interop
from uopc.tensor.random import next_key
from uopc.tensor.shapes import sizes
from uopc.tensor.variables import is_differentiating
from uopc.uop import UOp

# Signatures kept for each function; the one used longest ago goes first.
MAX_SIGNATURES = 256
# What changes the meaning of a function besides scoped options.
_PROCESS_WIDE = ((Tensor, "fuse_reduce"), (Tensor, "opt"), (dtypes, "default_float"), (dtypes, "default_int"))

set_tensor_type(Tensor)


class ShapeDtype:
    """An array in name only, for ``precompile``: a shape and a dtype (float32 if not given), no memory.

    TypeError for sizes that are no ints, ValueError for negative ones.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: Any = None) -> None:
        self.shape = sizes((shape,))
        self.dtype = dtypes.float32 if dtype is None else to_dtype(dtype)

    def __repr__(self) -> str:
        return f"ShapeDtype({self.shape}, {self.dtype.name!r})"


class Jit(Function):
    """What ``jit`` makes of a function.  ``captured``: what it holds, one for each signature."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(_scoped, _PROCESS_WIDE, MAX_SIGNATURES)
        functools.update_wrapper(self, fn)
        self.__wrapped__ = fn

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<uopc.jit of {self.__wrapped__!r}>"

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return self.__wrapped__.__qualname__

    def missed(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """A call that no captured function served as it stands: normalise its arguments, else capture."""
        if is_recording() or is_differentiating():
            return self._inline(args, kwargs, out)
        leaves = [_normal(x) for x in flatten(args, kwargs)]
        served = self.try_leaves(leaves, out)
        if served is None:
            self.add(_capture(self.__wrapped__, args, kwargs, leaves, self.ambient()))
            served = self.try_leaves(leaves, out)
        if served is None:
            raise CaptureError(
                f"what {_name(self.__wrapped__)} reads was changed by another thread while it was captured"
            )
        return served[0] if out is None else out

    def precompile(self, *args: Any, **kwargs: Any) -> None:
        """Capture and compile for such arguments, without running; arrays may be ``ShapeDtype``s."""
        leaves = [_normal(x) for x in flatten(args, kwargs)]
        self.add(_capture(self.__wrapped__, args, kwargs, leaves, self.ambient()))

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """A captured function called by one that is being captured, or differentiated, is part of it."""
        if out is not None:
            raise CaptureError(f"{_name(self.__wrapped__)} is called with out= by a function that is being captured")
        leaves = iter([Tensor(x) if isinstance(x, np.ndarray) else x for x in flatten(args, kwargs)])
        new_args, new_kwargs = rebuilt(args, kwargs, leaves)
        return self.__wrapped__(*new_args, **new_kwargs)


def jit(fn: Callable[..., Any]) -> Jit:
    """``fn``, of Tensors, as a function that builds its graph and compiles once a signature, and then only launches.

    Arguments: arrays and Tensors, alone or in (nested) tuples, lists and dicts, are data, and ``fn`` sees a Tensor for
    each, of the same class (a subclass must not hold more).  Anything else is part of the signature, by type and value:
    another number is another capture (pass ``np.array(x)`` for one that often changes).  It must be hashable.

    Results: what ``fn`` returns with NumPy arrays in place of Tensors, if the data of the call were arrays alone
    (bfloat16 then as float32); if there was a Tensor among them, or no data at all, Tensors of the classes that ``fn``
    gave them.  Results are new memory: they share none with arguments, temporaries or each other.  ``out=`` takes an
    array for each result, in the same structure without what is no Tensor, to write to; it is what is then returned.
    It may be an argument, too.

    Random numbers are new at each call, and the same that an uncaptured ``fn`` would draw.

    CaptureError if ``fn`` asks for a value that depends on its arguments, changes what it can reach (globals, closure,
    attributes, containers), reads from an iterator that it names, draws random numbers from Python or NumPy, seeds
    those of uopc, or returns no Tensor.  Not noticed: what no Python object shows (files, the clock, prints, thread
    counts), what the standard library holds (of it, ``os.environ`` alone is watched where code names it), and changes
    in place of arrays larger than 1 MB that ``fn`` reads not as Tensors but in NumPy.  Errors that ``fn`` raises come
    out as they are.  Positions that are data (``table[tokens]``) are looked at by every run:
    IndexError, after which the contents of ``out`` are undefined.
    """
    return fn if isinstance(fn, Jit) else Jit(fn)


def precompile(target: Any, *args: Any, **kwargs: Any) -> None:
    """Compile ahead: into the disk cache, and for this process.

    ``precompile(fn, *args, **kwargs)``: what ``fn``, captured or not, needs for such arguments: arrays, Tensors or
    ``ShapeDtype``s in place of either; ``fn`` runs once, its kernels do not.
    ``precompile(tensor, ...)``: what realizing these Tensors together needs.
    """
    if isinstance(target, Tensor):
        from uopc.runtime.plan import executable, normal

        roots = list(dict.fromkeys(t.uop for t in (target, *args) if interop.standing_array(t.uop) is None))
        if roots:
            executable(normal(roots)[0], current(Options(Tensor.fuse_reduce, Tensor.opt)))
        return
    if not callable(target):
        raise TypeError(f"precompile takes a function and examples of its arguments, or Tensors, not {target!r}")
    jit(target).precompile(*args, **kwargs)


# ------------------------------------------------------------------------------------------------------ arguments --


def _normal(x: Any) -> Any:
    """A leaf as a Leaf can judge it: memory that is not a plain array or realized Tensor becomes a View."""
    if isinstance(x, (Mark, ShapeDtype)):
        return x
    if isinstance(x, Tensor):
        array = interop.standing_array(x.uop)
        if array is None:
            array = interop.standing_array(x.realize().uop)
            assert array is not None
        if type(x) is not Tensor:
            _refuse_attributes(x)
        elif x.uop.op is Ops.BUFFER:
            return x
        return View(_addressable(array), x.dtype, type(x))
    if isinstance(x, np.generic) or not (hasattr(x, "__array__") or hasattr(x, "__dlpack__")):
        return _memory(x)
    array, dtype = (x, from_numpy(x.dtype)) if isinstance(x, np.ndarray) else interop.memory_of(x)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array is not accepted: its mask would be lost; use array.filled(value)")
    native = array.dtype is dtype.numpy and dtype is not dtypes.bfloat16
    usual = type(array) is np.ndarray and native and array.flags.aligned
    if usual and _steps_are_whole(array):
        return array
    if dtype is dtypes.bfloat16:
        array = np.asarray(array).view(np.uint16)
    return View(_addressable(np.asarray(array)), dtype, None)


def _refuse_attributes(x: Tensor) -> None:
    """CaptureError for a Tensor of a subclass that holds more than its value: what stands in for it has no more."""
    own = [name for name in attributes(x) if name not in attributes(Tensor._of(x.uop))]
    if own:
        raise CaptureError(
            f"an argument of class {type(x).__name__} has attributes of its own, {', '.join(own)}, which a captured "
            "function would not see; accepted are Tensors, also of subclasses, without any: pass those beside them"
        )


def _memory(x: Any) -> Any:
    """Objects that export a buffer of numbers, but not bytes, are data."""
    if isinstance(x, (bytes, str, np.generic)):
        return x
    try:
        array = np.asarray(memoryview(x))
    except TypeError:
        return x
    return View(_addressable(array), from_numpy(array.dtype), None)


def _steps_are_whole(array: np.ndarray[Any, Any]) -> bool:
    return not any(step % array.itemsize for step in array.strides)


def _addressable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy that is native, aligned, and strided by whole elements."""
    if not array.dtype.isnative or not array.flags.aligned:
        return array.astype(array.dtype.newbyteorder("="))
    return array if _steps_are_whole(array) else np.ascontiguousarray(array)


def _leaf(x: Any) -> tuple[Leaf, Any, UOp | None]:
    """What a call must bring in place of this leaf, what the function is given for it, and the BUFFER behind that."""
    if isinstance(x, ShapeDtype):
        buffer = placeholder(x.dtype, x.shape)
        return Leaf(dtype=x.dtype, descr=x.dtype.numpy, shape=x.shape), Tensor._of(buffer), buffer
    if isinstance(x, Tensor):
        buffer = placeholder(x.dtype, x.shape)
        return Leaf(tensor=Tensor, dtype=x.dtype, shape=x.shape), Tensor._of(buffer), buffer
    if isinstance(x, View):
        array, dtype, tensor = x.array, x.dtype, x.tensor
    elif isinstance(x, np.ndarray):
        array, dtype, tensor = x, from_numpy(x.dtype), None
    else:
        if not isinstance(x, Mark):
            try:
                hash(x)
            except TypeError:
                raise CaptureError(
                    f"an argument of {type(x)} is neither data nor hashable; accepted are arrays, Tensors, hashable "
                    "values, and tuples, lists and dicts of them"
                ) from None
        return Leaf(x), x, None
    known: dict[str, Any] = {"tensor": tensor, "dtype": dtype, "descr": array.dtype, "shape": array.shape}
    if array.flags.c_contiguous:
        buffer = placeholder(dtype, array.shape)
        return Leaf(**known), (tensor or Tensor)._of(buffer), buffer
    strides = tuple(step // array.itemsize if n > 1 else 0 for step, n in zip(array.strides, array.shape))
    reach = [step * (n - 1) for step, n in zip(strides, array.shape)]
    low = sum(r for r in reach if r < 0)
    buffer = placeholder(dtype, (sum(r for r in reach if r > 0) - low + 1,))
    window = UOp(Ops.VIEW, (buffer,), ViewArg(array.shape, strides, -low))
    leaf = Leaf(**known, strides=array.strides, offset=low * array.itemsize)
    return leaf, (tensor or Tensor)._of(window), buffer


def rebuilt(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Iterator[Any]) -> tuple[tuple, dict]:
    """The arguments with other leaves, which are taken in the order that ``flatten`` gives."""
    new_args = tuple([_filled(x, leaves) for x in args])
    return new_args, _filled(kwargs, leaves) if kwargs else {}


def _filled(x: Any, leaves: Iterator[Any]) -> Any:
    leaf = next(leaves)
    if not isinstance(leaf, Mark):
        return leaf
    if leaf.kind is dict:
        return {key: _filled(value, leaves) for key, value in x.items()}
    items = [_filled(item, leaves) for item in x]
    return items if leaf.kind is list else tuple(items) if leaf.kind is tuple else leaf.kind(*items)


# -------------------------------------------------------------------------------------------------------- results --


class _Results:
    """What a function returned: ``roots`` to compute, and how to put their values where they were."""

    def __init__(self, result: Any, as_tensors: bool) -> None:
        self.as_tensors = as_tensors
        self.roots: list[UOp] = []
        self.kinds: list[tuple[type[Tensor], DType]] = []
        self.tree = self._taken(result)

    def _taken(self, x: Any) -> Any:
        """The result with functions of the list of arrays in place of Tensors."""
        if isinstance(x, tuple):
            return x if not x else (type(x), [self._taken(item) for item in x])
        if isinstance(x, list):
            return (list, [self._taken(item) for item in x])
        if isinstance(x, dict):
            return (dict, list(x), [self._taken(item) for item in x.values()])
        if isinstance(x, np.ndarray):
            x = Tensor(x)
        if not isinstance(x, Tensor):
            if not isinstance(x, (bool, int, float, str, bytes, type(None), np.generic)):
                raise CaptureError(f"a captured function returned a {type(x)}; Tensors and plain values are accepted")
            return _Constant(x)
        uop = x.uop
        if uop.dtype is dtypes.bfloat16 and not self.as_tensors:
            uop = uop.cast(dtypes.float32)
        self.roots.append(_staged(uop))
        self.kinds.append((type(x), uop.dtype))
        return len(self.roots) - 1

    def finish(self) -> Callable[[list[Any]], Any] | None:
        """From the arrays of the roots to what the function returns; None where that is the one array."""
        if self.tree == 0 and not self.as_tensors:
            return None
        if isinstance(self.tree, tuple) and self.tree[1:] == (list(range(len(self.roots))),) and not self.as_tensors:
            return self.tree[0] if self.tree[0] in (tuple, list) else self._built
        return self._built

    def unpacked(self, out: Any) -> list[Any]:
        """The arrays of ``out``, which has the structure of the result without its constants, in the order of
        ``roots``.  ValueError where it has another."""
        return _unpacked(self.tree, out)

    def _built(self, arrays: list[Any]) -> Any:
        if self.as_tensors:
            arrays = [_tensor(array, *kind) for array, kind in zip(arrays, self.kinds)]
        return _placed(self.tree, arrays)


def _staged(u: UOp) -> UOp:
    """A root: a value that is written down."""
    return u if u.op is Ops.STAGE else UOp(Ops.STAGE, (u,), Level.KERNEL)


class _Checks:
    """Called after each run with the arrays of all result slots: IndexError for positions out of bounds."""

    def __init__(self, checks: list[tuple[int, int, range, str]]) -> None:
        self.checks = checks

    def __call__(self, arrays: list[np.ndarray[Any, Any]]) -> None:
        for low, high, accepted, text in self.checks:
            for position in (int(arrays[high].item()), int(arrays[low].item())):
                if position not in accepted:
                    raise IndexError(f"position {position} is {text}")


class _Constant:
    """A value that a function returns as it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _placed(tree: Any, values: list[Any]) -> Any:
    if type(tree) is int:
        return values[tree]
    if isinstance(tree, _Constant):
        return tree.value
    if not tree:
        return tree
    if tree[0] is dict:
        return {key: _placed(item, values) for key, item in zip(tree[1], tree[2])}
    items = [_placed(item, values) for item in tree[1]]
    return items if tree[0] is list else tuple(items) if tree[0] is tuple else tree[0](*items)


def _unpacked(tree: Any, out: Any) -> list[Any]:
    if type(tree) is int:
        if isinstance(out, (tuple, list, dict)) and len(out) != 1:
            raise ValueError(f"out has {len(out)} arrays where the function returns 1")
        return [out[0] if isinstance(out, (tuple, list)) else out]
    if tree[0] is dict:
        named = {key: part for key, part in zip(tree[1], tree[2]) if _has_arrays(part)}
        if not isinstance(out, dict) or out.keys() != named.keys():
            given = list(out) if isinstance(out, dict) else f"a {type(out).__name__}"
            raise ValueError(f"out has {given} where the function returns a dict of {list(named)}")
        return [array for key, part in named.items() for array in _unpacked(part, out[key])]
    parts = [part for part in tree[1] if _has_arrays(part)]
    if not isinstance(out, (tuple, list)) or len(out) != len(parts):
        given = f"{len(out)} arrays" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
        raise ValueError(f"out has {given} where the function returns {len(parts)}")
    return [array for part, item in zip(parts, out) for array in _unpacked(part, item)]


def _has_arrays(tree: Any) -> bool:
    return type(tree) is int or (isinstance(tree, tuple) and bool(tree) and any(map(_has_arrays, tree[-1])))


def _tensor(array: np.ndarray[Any, Any], kind: type[Tensor], dtype: DType) -> Tensor:
    flat = array if array.ndim == 1 else array.reshape(-1)
    return kind._of(new_buffer(dtype, array.shape, flat))


# -------------------------------------------------------------------------------------------------------- capture --


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def _capture(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], ambient: Any
) -> Captured:
    """Run ``fn`` on Tensors without memory, and compile the graph that it returns."""
    made = [_leaf(x) for x in leaves]
    data = [leaf for leaf, _, _ in made if leaf.is_memory]
    as_tensors = not data or any(leaf.tensor for leaf in data)
    classes = dict.fromkeys(leaf.tensor for leaf in data if leaf.tensor)
    walk = _watched(fn, [x for x, (leaf, _, _) in zip(leaves, made) if not leaf.is_memory], classes)
    random_state = foreign_random_state(walk.generators)
    new_args, new_kwargs = rebuilt(args, kwargs, iter([given for _, given, _ in made]))
    with recording() as recorded:
        returned = fn(*new_args, **new_kwargs)
    _refuse_side_effects(fn, walk, random_state)
    results = _Results(returned, as_tensors)
    if not results.roots:
        raise CaptureError(f"{_name(fn)} returned no Tensor, and what else it does would be done once only")
    buffers = {buffer: k for k, (_, _, buffer) in enumerate(made) if buffer is not None}
    return _compiled(results, [leaf for leaf, _, _ in made], buffers, recorded, walk.guards, ambient)


def _compiled(
    results: _Results,
    leaves: list[Leaf],
    arguments: dict[UOp, int],
    recorded: Recording,
    guards: list[Guard],
    ambient: Any,
) -> Captured:
    """The plan of the results, with its inputs told apart: arguments, random keys, and arrays that were found."""
    from uopc.runtime.plan import executable, normal

    keys = recorded.keys
    checks = [(_staged(low), _staged(high), accepted, text) for low, high, accepted, text in recorded.checks]
    roots = list(dict.fromkeys([*results.roots, *(bound for check in checks for bound in check[:2])]))
    graph, buffers = normal(roots)
    made = executable(graph, current(Options(Tensor.fuse_reduce, Tensor.opt)))
    inputs: list[Any] = []
    draws = []
    for slot, number in enumerate(made.input_numbers):
        buffer = buffers[number]
        if buffer in arguments:
            inputs.append(arguments[buffer])
        elif buffer in keys:
            draws.append((keys.index(buffer), slot))
            inputs.append(None)
        elif buffer.realized is None:
            raise CaptureError("a Tensor of another captured function, which was never computed, is used")
        else:
            inputs.append((buffer.realized.address, buffer.realized))
    # an argument that is returned as it stands is no kernel's result: it is copied
    copies = list(dict.fromkeys(number for number in made.results if number < len(inputs)))
    place = {
        root: len(made.outs) + copies.index(number) if number in copies else number - len(inputs)
        for root, number in zip(roots, made.results)
    }
    outs = [(dtype.numpy, shape, size) for (dtype, shape), size in zip(made.outs, made.out_sizes)]
    for slot in copies:
        buffer = buffers[made.input_numbers[slot]]
        outs.append((buffer.dtype.numpy, buffer.shape, buffer.dtype.itemsize * math.prod(buffer.shape)))
    bounds = [(place[low], place[high], accepted, text) for low, high, accepted, text in checks]
    captured = Captured(
        leaves,
        [],
        ambient,
        made.native,
        inputs,
        draws,
        len(keys),
        next_key,
        outs,
        copies,
        [place[r] for r in results.roots],
        results.finish(),
        results.unpacked,
        made.run_loudly if environment().debug else None,
        _Checks(bounds) if bounds else None,
    )
    captured.set_guards([_without_needless_contents(guard, captured.addresses()) for guard in guards])
    return captured


def _watched(fn: Callable[..., Any], values: list[Any], classes: Iterable[type]) -> Walk:
    """All that ``fn`` can reach, and the objects and the classes of Tensors among its arguments."""
    walk = Walk(Tensor)
    try:
        walk.visit(fn, _name(fn))
        for kind in classes:
            walk.visit(kind, kind.__name__)
        for x in values:
            if not isinstance(x, Mark):
                walk.visit_direct(x, f"an argument of type {type(x).__name__}")
    except Unwatchable as reason:
        raise CaptureError(f"{_name(fn)} reaches {reason}; pass what it needs as arguments") from None
    return walk


def _refuse_side_effects(fn: Callable[..., Any], walk: Walk, random_state: tuple[Any, ...]) -> None:
    changed = next((guard for guard in walk.guards if not guard.holds()), None)
    if changed is not None:
        raise CaptureError(
            f"{_name(fn)} changes {changed.where} while it runs, which a captured function would do once only; return "
            "the new value instead"
        )
    if foreign_random_state(walk.generators) != random_state:
        raise CaptureError(
            f"{_name(fn)} draws random numbers from Python or NumPy, which would be the same ones at each call; use "
            "Tensor.rand and its like, or pass them as arguments"
        )


def _without_needless_contents(guard: Guard, addresses: set[int]) -> Guard:
    """An array that the kernels read in place may change: they see it."""
    if guard.kind != "array" or guard.value is None:
        return guard
    low = guard.owner.ctypes.data
    reach = [step * (n - 1) for step, n in zip(guard.owner.strides, guard.owner.shape)]
    first = low + sum(r for r in reach if r < 0)
    return guard.without_contents() if first in addresses else guard
