"""uopc.jit and what it cannot see at a glance: values that are equal and not the same, containers of all kinds,
generators of random numbers, iterators."""

import argparse
import array
import functools
import itertools
import os
import random
import types
from collections import OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import CaptureError, Tensor, jit

X = np.arange(1, 5, dtype="f")


@dataclass(frozen=True)
class Frozen:
    value: Any
    inner: Any = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    def __hash__(self):
        return hash(self.value)


# -- equal values that are not the same

EQUAL = {
    "dataclass": [Frozen(2), Frozen(2.0), Frozen(True), Frozen(1)],
    "dataclass, signed zero": [Frozen(0.0), Frozen(-0.0)],
    "nested": [Frozen(1, Frozen((0, 0.0))), Frozen(1, Frozen((0, -0.0))), Frozen(1, Frozen((False, 0.0)))],
    "slots": [Slotted(1), Slotted(1.0), Slotted(True)],
    "NumPy numbers": [np.float32(0.0), np.float32(-0.0), np.float64(-0.0), np.float32("nan"), np.float64("nan")],
    "in a tuple": [(np.float32(0.0),), (np.float32(-0.0),)],
    "decimals": [Decimal("0.0"), Decimal("-0.0"), Decimal("0.00")],
    "sets": [frozenset({0}), frozenset({0.0}), frozenset({-0.0}), frozenset({False})],
    "keys": [{1: 2}, {True: 2}, {1.0: 2}],
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_that_are_not_the_same_are_captured_apart(name):
    captures = Unseen()

    @jit
    def look(x, value):
        captures()
        return x * 1

    for _ in range(2):
        for value in EQUAL[name]:
            look(X, value)
    assert captures.n == len(EQUAL[name])  # each once, and the second time round none


class Unseen:
    """Counts, where nothing is watched."""

    __module__ = "numpy"

    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1


def test_equal_objects_share_a_capture():
    f = jit(lambda x, value: x * 1)
    for _ in range(3):
        for make in (
            lambda: Frozen(2.0, (1, "a")),
            lambda: Slotted(3),
            lambda: np.float64(2.5),
            lambda: np.float32("nan"),
            lambda: Fraction(1, 3),
            lambda: frozenset({1.5}),
            lambda: np.dtype("f4"),
        ):
            f(X, make())
    assert len(f.captured) == 7


def test_signed_zeros_and_kinds_of_numbers_inside_objects():
    f = jit(lambda x, c: x * c.value)
    assert not np.signbit(f(X, Frozen(0.0))).any()
    assert np.signbit(f(X, Frozen(-0.0))).all()
    whole = np.arange(3, dtype="i4")
    assert f(whole, Frozen(2)).dtype == np.int32
    assert f(whole, Frozen(2.0)).dtype == (whole * 2.0).dtype


def test_what_refers_to_itself_is_known_by_identity():
    class Node:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    def ring():
        a, b = Node(), Node()
        a.next, b.next = b, a
        return a

    f = jit(lambda x, node: x + 1)
    one = ring()
    for node in (one, one, ring()):
        np.testing.assert_array_equal(f(X, node), X + 1)


# -- containers that change


def changing(kind):
    """A container or object, a function of a number that reads it, and a function that changes it to hold that."""
    if kind in ("set", "deque", "list", "bytearray", "array", "memoryview"):
        make = {"array": lambda v: array.array("d", v), "memoryview": lambda v: memoryview(bytearray(v))}
        x = make.get(kind, {"set": set, "deque": deque, "list": list, "bytearray": bytearray}.get(kind))([1])

        def change(n):
            if kind == "set":
                x.clear(), x.add(n)
            else:
                x[0] = n

        return x, lambda x: float(next(iter(x))), change
    if kind == "method of a dict":
        table = {"k": 1.0}
        return table.get, lambda get: get("k"), lambda n: table.__setitem__("k", n)
    if kind in ("namespace", "arguments"):
        x = types.SimpleNamespace(k=1.0) if kind == "namespace" else argparse.Namespace(k=1.0)
        return x, lambda x: x.k, lambda n: setattr(x, "k", n)
    x = {"ordered": OrderedDict, "default": lambda **k: defaultdict(int, **k), "user's": UserDict, "own": Own}[kind](
        k=1.0
    )
    return x, lambda x: x["k"], lambda n: x.__setitem__("k", n)


class Own(dict):
    extra = 0.0


KINDS = (
    "set",
    "deque",
    "list",
    "bytearray",
    "array",
    "memoryview",
    "method of a dict",
    "namespace",
    "arguments",
    "ordered",
    "default",
    "user's",
    "own",
)


@pytest.mark.parametrize("kind", KINDS)
def test_containers_that_change(kind):
    held, read, change = changing(kind)
    f = jit(lambda x: x * read(held))
    for n in (1, 5, 2, 5):
        change(n)
        np.testing.assert_array_equal(f(X), X * n)
        np.testing.assert_array_equal(f(X), X * n)


def test_attributes_of_ones_own_containers():
    own = Own(k=2.0)
    own.extra = 1.0
    f = jit(lambda x: x * own["k"] + own.extra)
    np.testing.assert_array_equal(f(X), X * 2 + 1)
    own.extra = 5.0
    np.testing.assert_array_equal(f(X), X * 2 + 5)


RATE = 1.0


@functools.lru_cache
def remembered(k):
    return k * RATE


class WithCachedProperty:
    def __init__(self):
        self.k = 2.0

    @functools.cached_property
    def rate(self):
        return self.k * RATE

    def __call__(self, x):
        return x * self.rate


def test_functions_behind_decorators_of_functools(monkeypatch):
    f = jit(lambda x: x * remembered(3.0))
    np.testing.assert_array_equal(f(X), X * 3)
    monkeypatch.setitem(globals(), "RATE", 2.0)
    remembered.cache_clear()
    np.testing.assert_array_equal(f(X), X * 6)
    remembered.cache_clear()

    model = WithCachedProperty()
    assert model.rate == 4.0
    np.testing.assert_array_equal(jit(model)(X), X * 4)


def test_sets_that_are_changed_are_refused():
    seen = set()

    def remembers(x):
        seen.add(len(seen))
        return x

    with pytest.raises(CaptureError, match="changes seen"):
        jit(remembers)(X)


# -- random numbers and iterators


@pytest.mark.parametrize(
    "rng",
    [
        np.random.default_rng(0),
        np.random.RandomState(0),
        random.Random(0),
        types.SimpleNamespace(random=np.random.default_rng(0).random),
    ],
    ids=["Generator", "RandomState", "Random", "bound method"],
)
def test_ones_own_generators_of_random_numbers(rng):
    draw = rng.random_sample if isinstance(rng, np.random.RandomState) else rng.random
    for _ in range(2):
        with pytest.raises(CaptureError, match="draws random numbers"):
            jit(lambda x: x * float(draw()))(X)
    held = jit(lambda x: x * (2.0 if rng is not None else 1.0))  # not drawn from
    np.testing.assert_array_equal(held(X), X * 2)
    draw()
    np.testing.assert_array_equal(held(X), X * 2)
    with pytest.raises(CaptureError, match="draws random numbers"):
        jit(lambda x, r: x * float(r()))(X, draw)


COUNT = itertools.count(1)


class HasCount:
    COUNT = 3.0


def test_iterators_are_refused():
    numbers = iter([1.0, 2.0])
    made = (float(n) for n in range(9))
    for f in (lambda x: x * next(numbers), lambda x: x * next(made), lambda x: x * next(COUNT)):
        with pytest.raises(CaptureError, match="iterator"):
            jit(f)(X)
    with pytest.raises(CaptureError, match="iterator"):
        jit(lambda x, it: x * next(it))(X, iter([3.0]))
    np.testing.assert_array_equal(jit(lambda x: x * HasCount.COUNT)(X), X * 3)  # an attribute of the same name
    assert next(numbers) == 1.0 and next(made) == 0.0 and next(COUNT) == 1


def test_seeding_inside_is_refused():
    def seeded(x):
        uopc.manual_seed(1)
        return x + Tensor.rand(4)

    with pytest.raises(CaptureError, match="manual_seed"):
        jit(seeded)(X)


def _scale_by_helper():
    import os as system

    return float(system.environ["UOPC_TEST_SCALE"])


READERS = {
    "a helper": _scale_by_helper,
    "get": lambda: float(os.environ.get("UOPC_TEST_SCALE", "7")),
    "getenv": lambda: float(os.getenv("UOPC_TEST_SCALE", "7")),
    "another name": lambda: float(ENVIRONMENT["UOPC_TEST_SCALE"]),
    "another name of getenv": lambda: float(ASKED("UOPC_TEST_SCALE")),
    "all of it": lambda: float(dict(os.environ)["UOPC_TEST_SCALE"]),
}
ENVIRONMENT, ASKED = os.environ, os.getenv


@pytest.mark.parametrize("reader", READERS)
def test_the_environment_is_watched(reader, monkeypatch):
    read = READERS[reader]
    scaled = jit(lambda x: x * read())
    x = np.ones(3, np.float32)
    for value in ("2", "3", "2"):
        monkeypatch.setenv("UOPC_TEST_SCALE", value)
        np.testing.assert_array_equal(scaled(x), x * float(value))
    assert len(scaled.captured) == 2
    if reader in ("get", "getenv"):
        monkeypatch.delenv("UOPC_TEST_SCALE")
        np.testing.assert_array_equal(scaled(x), x * 7)


def test_who_does_not_name_the_environment_does_not_watch_it(monkeypatch):
    double = jit(lambda x: x * 2)
    x = np.ones(3, np.float32)
    for value in ("2", "3"):
        monkeypatch.setenv("UOPC_TEST_SCALE", value)
        double(x)
    assert len(double.captured) == 1


def test_a_function_that_changes_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("UOPC_TEST_SCALE", "1")

    @jit
    def change(x):
        os.environ["UOPC_TEST_SCALE"] = "2"
        return x * 2

    with pytest.raises(CaptureError, match=r"changes os\.environ"):
        change(np.ones(3, np.float32))
