"""What a Tensor's methods make of wrong arguments: a refusal at the call, of the classes that DESIGN promises and in
words of ours, or a value; never an error from inside, and none that waits until values are asked for.
"""

from __future__ import annotations

import inspect
import math
import re

import numpy as np
import pytest

from uopc import CaptureError, Tensor, dtypes

REFUSALS = (TypeError, ValueError, IndexError, OverflowError, MemoryError, BufferError, CaptureError)
# Messages of Python and NumPy that do not say what was wrong with the call.
FOREIGN = re.compile(
    "is not iterable|has no len|unsupported operand|not supported between|argument must be|truth value of an|"
    "too large to convert|cannot fit|ufunc|[cC]ould not convert|invalid literal|inhomogeneous|division by"
)
TENSORS = {
    "float": Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "int": Tensor(np.arange(6).reshape(2, 3)),
    "bool": Tensor(np.ones((2, 3), bool)),
    "empty": Tensor(np.zeros((0, 3), np.float32)),
    "scalar": Tensor(np.float32(1.5)),
    "uint8": Tensor(np.arange(3, dtype=np.uint8)),
}
NUMBERS = [True, 0, 1, -1, 7, -7, 2**31, 2**62, 2**63, -(2**63), 2**64, 10**30, 0.5, -1.5, math.nan, math.inf, 1j]
SEQUENCES = [[], (), [[]], [0, 0], (0, -1), (5, 5), [None], [0.5], (2, 3), (-1, -1), (2**40, 2**40), [(0, 1), (1, 0)]]
SEQUENCES += [[(1, 1), None], ((0, 2**62), (0, 0)), range(3), set()]
STRANGE = [None, "zz", "", b"x", {}, {1: 2}, object(), int, slice(None), Ellipsis, len, np.dtype("c8"), dtypes.index]
STRANGE += [np.float64(1), np.int64(1), np.array(1), np.array(["a"]), np.array([object()]), np.datetime64("2020-01-01")]
# Arguments that let the others be tried alone.
FIRST = {
    "gather": 0,
    "einsum": "ij->ij",
    "cross_entropy": Tensor([0, 1]),
    "masked_fill": TENSORS["bool"],
    "unflatten": 0,
    "full": (2, 3),
    "linspace": 0,
    "pad": (1, 1),
    "where": 1,
    "scaled_dot_product_attention": TENSORS["float"],
    "conv1d": np.ones((1, 2, 2), np.float32),
}
FLAGS = {"keepdim", "descending", "largest", "is_causal", "enable_gqa", "optimize", "approximate", "count_include_pad"}
WITHOUT_ARGUMENTS = {"dtype", "fuse_reduce", "grad", "manual_seed", "mT", "ndim", "opt", "shape", "T", "uop"}
METHODS = [name for name in dir(Tensor) if not name.startswith("_") and name not in WITHOUT_ARGUMENTS]
HUGE = 1 << 20


def refusal(call):
    """Nothing, or what is wrong with what a call does."""
    try:
        made = call()
    except REFUSALS as error:
        return f"in foreign words: {error!r}" if FOREIGN.search(str(error)) else None
    except Exception as error:
        return repr(error)
    parts = made if isinstance(made, tuple) else (made,)
    try:
        for part in parts[:3]:
            if isinstance(part, Tensor) and all(math.prod(u.shape) < HUGE for u in part.uop.toposort()):
                part.numpy()
    except Exception as error:
        return f"not until its value was asked for: {error!r}"
    return None


@pytest.mark.parametrize("name", METHODS)
def test_wrong_arguments_are_refused_at_the_call(name, way):
    if way == "compiled":
        pytest.skip("tens of thousands of calls: what is accepted is computed by the interpreter")
    found = []
    for kind, tensor in TENSORS.items():
        method = getattr(tensor, name)
        named = [p.name for p in inspect.signature(method).parameters.values() if p.kind is not p.VAR_POSITIONAL][1:]
        for value in [*NUMBERS, *SEQUENCES, *STRANGE, *TENSORS.values()]:
            calls = {f"({value!r})": lambda method=method, value=value: method(value)}
            if name in FIRST:
                calls[f"(first, {value!r})"] = lambda method=method, value=value: method(FIRST[name], value)
            for key in set(named) - FLAGS:
                first = FIRST.get(name, 1)
                calls[f"(first, {key}={value!r})"] = lambda method=method, first=first, key=key, value=value: method(
                    first, **{key: value}
                )
            if name == "chunk" and type(value) is int and value > HUGE:
                continue  # so many parts of nothing are what was asked for
            found += [f"{kind}.{name}{text}: {wrong}" for text, call in calls.items() if (wrong := refusal(call))]
    assert not found, "\n".join(found[:20])


def test_the_watch_sees_what_it_is_for():
    assert "KeyError" in refusal(lambda: {}["a"])
    assert "foreign" in refusal(lambda: len(3))
    assert "foreign" in refusal(lambda: 1 + "a")
    assert refusal(lambda: Tensor([1]).reshape(2)) is None


def test_a_bool_is_no_axis_and_no_size():
    t = TENSORS["float"]
    for call in (lambda: t.sum(True), lambda: t.reshape(True, 6), lambda: Tensor.zeros(True), lambda: t.flatten(False)):
        with pytest.raises(TypeError, match=r"is an int, not (True|False)"):
            call()


@pytest.mark.parametrize("dtype", [None, [], "", "void", "index", "c8", 3, dtypes.index, dtypes.float32.vec(4), "O"])
def test_what_is_no_dtype_of_elements(dtype):
    for call in (lambda: Tensor([1]).cast(dtype), lambda: Tensor([1]).bitcast(dtype)):
        with pytest.raises(TypeError, match="is not a dtype; accepted are bool_, int8"):
            call()


LARGE = 1 << 60
ONE = Tensor([[1.0]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: Tensor.zeros(LARGE, 2),
        lambda: Tensor.rand(1 << 70),
        lambda: Tensor.arange(0, LARGE + 1),
        lambda: Tensor.arange(-(1 << 80), 0, dtype="float32"),
        lambda: Tensor.linspace(0, 1, 1 << 63),
        lambda: Tensor.eye(1 << 40),
        lambda: ONE.expand(LARGE, 2),
        lambda: ONE.repeat(1 << 40, 1 << 40),
        lambda: ONE.pad(((0, LARGE), (0, 0))),
        lambda: ONE.expand(LARGE, 1).cat(ONE),
        lambda: ONE.expand(LARGE, 1).stack(ONE.expand(LARGE, 1)),
        lambda: ONE.expand(1 << 40, 1) @ ONE.expand(1, 1 << 40),
        lambda: ONE.expand(1 << 40, 1) + ONE.expand(1, 1 << 40),
        lambda: Tensor.zeros(0, LARGE + 1),
        lambda: Tensor.zeros(0).reshape(1 << 40, 0, 1 << 40),
    ],
)
def test_shapes_beyond_any_memory(call):
    with pytest.raises(ValueError, match=r"shape \(.*\) has more than 2\*\*60 elements"):
        call()


def test_the_largest_shape():
    assert ONE.expand(LARGE, 1).numel() == LARGE
    assert (ONE.expand(LARGE, 1) * 2).sum().shape == ()
