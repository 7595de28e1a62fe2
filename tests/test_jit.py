"""uopc.jit: a captured call gives what an uncaptured one would give, whatever has changed since; or it says why not."""

import functools
import pickle
import random
import threading
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

import uopc
from uopc import CaptureError, ShapeDtype, Tensor, jit, precompile


def floats(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Counter:
    """Counts the runs of a function, out of sight of what watches for side effects."""

    __module__ = "numpy"

    def __init__(self):
        self.n = 0

    def __call__(self):
        self.n += 1
        return True


# -- what is given and what comes back


def test_arrays_give_arrays_and_tensors_give_tensors():
    count = Counter()

    @jit
    def add(a, b):
        count()
        return a + b

    a, b = floats(16), floats(16, seed=1)
    for _ in range(3):
        out = add(a, b)
        assert type(out) is np.ndarray and out.dtype == np.float32
        np.testing.assert_array_equal(out, a + b)
    assert count.n == 1
    for first, second in ((Tensor(a), Tensor(b)), (Tensor(a), b), (a, Tensor(b))):
        for _ in range(2):
            out = add(first, second)
            assert type(out) is Tensor
            np.testing.assert_array_equal(out.numpy(), a + b)
    assert count.n == 4


class Half(Tensor):
    """A Tensor with a method of its own."""

    __slots__ = ()

    factor = 2

    def shared(self):
        return self / self.factor


def test_tensors_of_subclasses(monkeypatch):
    """Captured like Tensors, and what the function makes of them has the class that it gives it."""

    @jit
    def work(x, parts):
        return x.shared(), [parts["y"] + 1, Tensor(np.zeros(2, np.float32)) - x]

    a, b = floats(2), floats(2, seed=1)
    strided = Tensor(floats(2, 2))[:, 0]
    for x, kind in ((Half(a), Half), (Half(b), Half), (Half(strided), Half), (Half(Tensor(a) * 2), Half)):
        for y in (Tensor(b), Half(b)):
            for _ in range(2):
                first, (second, third) = work(x, {"y": y})
                assert (type(first), type(second), type(third)) == (kind, type(y), Tensor)
                np.testing.assert_array_equal(first.numpy(), x.numpy() / 2)
                np.testing.assert_array_equal(second.numpy(), b + 1)
                np.testing.assert_array_equal(third.numpy(), -x.numpy())
    assert len(work.captured) == 4  # of contiguous and strided memory, beside a Tensor and a Half
    with pytest.raises(AttributeError, match="shared"):
        work(Tensor(a), {"y": Tensor(b)})
    monkeypatch.setattr(Half, "factor", 4)  # read besides the arguments
    np.testing.assert_array_equal(work(Half(a), {"y": Half(b)})[0].numpy(), a / 4)


def test_tensors_of_subclasses_with_attributes_are_refused():
    class Named(Tensor):
        pass

    @jit
    def double(x):
        return x * 2

    x = Named(floats(2))
    assert type(double(x)) is Named
    x.name = "weights"
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"class Named has attributes of its own, name, .* accepted are Tensors"):
            double(x)


Point = namedtuple("Point", "x y")


def test_nested_structures():
    @jit
    def work(pair, named, scale=1.0, *, table):
        total = pair[0] + pair[1][0]
        return {"total": total * scale, "parts": [named.x - table["k"], (named.y,)], "n": 3}, Point(total, total * 2)

    a, b, c, d, e = (floats(5, seed=n) for n in range(5))
    for factor in (1.0, 2.0):
        values = [v * np.float32(factor) for v in (a, b, c, d, e)]
        out, point = work((values[0], [values[1]]), Point(values[2], values[3]), 3.0, table={"k": values[4]})
        np.testing.assert_allclose(out["total"], (values[0] + values[1]) * 3, rtol=1e-6)
        np.testing.assert_array_equal(out["parts"][0], values[2] - values[4])
        np.testing.assert_array_equal(out["parts"][1][0], values[3])
        assert out["n"] == 3 and type(point) is Point
        np.testing.assert_array_equal(point.y, 2 * point.x)
    assert len(work.captured) == 1


def test_structures_are_told_apart():
    total = jit(lambda x: sum((t * (k + 1) for k, t in enumerate(x.values() if isinstance(x, dict) else x)), start=0.0))
    a, b = floats(4), floats(4, seed=1)
    for given in ([a, b], (a, b), [b, a], {"p": a, "q": b}, {"q": a, "p": b}, [a], [a, b, a]):
        values = list(given.values()) if isinstance(given, dict) else given
        expected = sum(v * (k + 1) for k, v in enumerate(values))
        np.testing.assert_allclose(total(given), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u4", "?"])
def test_dtypes(dtype):
    same = jit(lambda x: x.where(x, x) if x.dtype is uopc.dtypes.bool_ else x + x)
    x = (floats(33) * 10).astype(dtype)
    expected = x if dtype == "?" else x + x
    out = same(x)
    assert out.dtype == expected.dtype
    np.testing.assert_array_equal(out, expected)


def test_arrays_of_other_dtypes_shapes_strides_and_alignments():
    count = Counter()

    @jit
    def double(x):
        count()
        return x * 2

    base = floats(12, 10)
    buffer = np.zeros(1 + 48, np.uint8)
    unaligned = buffer[1:].view(np.float32)
    unaligned[...] = floats(12)
    variants = [
        base, base.T, base[::2], base[:, ::-1], base[3:4], base[:, 1], base[1:, 1:], np.broadcast_to(base[0], (3, 10)),
        base.astype(">f4"), base.astype("f8"), unaligned, base[:0], base[0, 0:1], np.asfortranarray(base),
        base[5, 5, None],
    ]  # fmt: skip
    for _ in range(2):
        for x in variants:
            np.testing.assert_array_equal(double(x), x * 2)
            assert double(x).dtype.isnative
    assert count.n <= len(variants)
    other = floats(12, 10, seed=3)
    for x in (other, other.T, other[::2], other[:, ::-1]):  # the same layouts elsewhere
        np.testing.assert_array_equal(double(x), x * 2)
    assert count.n <= len(variants)


def test_records_subclasses_and_objects_with_arrays():
    double = jit(lambda x: x * 2)
    record = np.zeros(6, [("a", "i1"), ("b", "f4")])
    record["b"] = floats(6)
    np.testing.assert_array_equal(double(record["b"]), record["b"] * 2)
    matrix = np.arange(4.0).reshape(2, 2).view(np.matrix)
    np.testing.assert_array_equal(double(matrix), np.asarray(matrix) * 2)
    with pytest.raises(TypeError, match="mask"):
        double(np.ma.masked_array([1.0, 2.0], mask=[True, False]))

    class Holder:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3.0)

    np.testing.assert_array_equal(double(Holder()), np.arange(3.0) * 2)
    np.testing.assert_array_equal(double(memoryview(np.arange(3.0))), np.arange(3.0) * 2)


def test_numpy_scalars_and_arrays_without_axes():
    times = jit(lambda x, k: x * k)
    x = floats(8)
    for k in (np.float32(2), np.float64(2), np.array(3.0, np.float32), np.array(4, np.int8)):
        out = times(x, k)
        np.testing.assert_array_equal(out, x * k)
    n = len(times.captured)
    times(x, np.array(5.0, np.float32))  # data: no new capture
    assert len(times.captured) == n


def test_lazy_tensors_and_views_as_arguments():
    double = jit(lambda x: x * 2)
    x = floats(6, 4)
    lazy = Tensor(x) + 1
    for given in (lazy, lazy.T, lazy[1:3], Tensor(x).T, Tensor(x)[:, ::2], Tensor(3.0), Tensor.ones(3)):
        for _ in range(2):
            np.testing.assert_array_equal(double(given).numpy(), given.numpy() * 2)


class FromElsewhere:
    """A Tensor's memory as another library gives it that has bfloat16, which NumPy lacks."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __array__(self, dtype=None, copy=None):
        raise TypeError("unsupported ScalarType")

    def __dlpack__(self, **wishes):
        return self.tensor.__dlpack__(**wishes)

    def __dlpack_device__(self):
        return (1, 0)


def test_bfloat16_that_numpy_cannot_see():
    double = jit(lambda x: x * 2)
    source = Tensor([1.0, -2.5, 3.0]).bfloat16().realize()
    for given in (source, source + 1, source[::2].contiguous()):
        np.testing.assert_array_equal(double(FromElsewhere(given.realize())), given.numpy() * 2)


def test_bfloat16():
    double = jit(lambda x: (x.cast("bfloat16") * 2,))
    (out,) = double(floats(5))
    assert out.dtype == np.float32
    tensor = Tensor(floats(5)).cast("bfloat16")
    (out,) = double(tensor)
    assert out.dtype is uopc.dtypes.bfloat16
    np.testing.assert_array_equal(out.numpy(), (tensor * 2).numpy())


def test_shapes_in_name_only_are_shapes():
    assert (uopc.ShapeDtype(3).shape, uopc.ShapeDtype([2, 0]).shape) == ((3,), (2, 0))
    for shape, error in (
        (-1, ValueError),
        ((2, -3), ValueError),
        (None, TypeError),
        (1.5, TypeError),
        ("ab", TypeError),
    ):
        with pytest.raises(error, match=r"a size is an int|negative size"):
            uopc.ShapeDtype(shape)


def test_zero_sizes_and_constants():
    assert jit(lambda x: x + 1)(np.empty((0, 3), "f")).shape == (0, 3)
    assert jit(lambda x: x.sum())(np.empty(0, "f")) == 0
    np.testing.assert_array_equal(jit(lambda x: Tensor.full((3,), 7.0))(floats(2)), [7, 7, 7])
    made = jit(lambda: Tensor.arange(4))()
    assert type(made) is Tensor and made.tolist() == [0, 1, 2, 3]


def test_methods_partials_and_lambdas():
    class Layer:
        def __init__(self, w):
            self.w = w

        @jit
        def forward(self, x):
            return x * self.w

    one, two = Layer(2.0), Layer(3.0)
    x = floats(3)
    for _ in range(2):
        np.testing.assert_array_equal(one.forward(x), x * 2)
        np.testing.assert_array_equal(two.forward(x), x * 3)
    half = jit(functools.partial(lambda a, b: a * b, 0.5))
    np.testing.assert_array_equal(half(x), x / 2)


def test_captured_functions_inside_captured_functions():
    inner = jit(lambda x: x * 2)
    outer = jit(lambda x, y: inner(x) + inner(y))
    x, y = floats(4), floats(4, seed=1)
    np.testing.assert_array_equal(outer(x, y), x * 2 + y * 2)
    assert not inner.captured


# -- aliasing


def test_results_alias_nothing():
    x = floats(100)
    keep = x.copy()
    same, view, twice = jit(lambda x: x), jit(lambda x: x[10:20]), jit(lambda x: (x + 1, x + 1))
    for fn in (same, view):
        out = fn(x)
        assert not np.shares_memory(out, x)
        out[...] = 0
    one, two = twice(x)
    assert not np.shares_memory(one, two)
    again = twice(x)
    one[...] = 5
    np.testing.assert_array_equal(again[0], keep + 1)
    np.testing.assert_array_equal(two, keep + 1)
    np.testing.assert_array_equal(x, keep)
    first = same(x)
    second = same(x)
    assert not np.shares_memory(first, second)


def test_empty_arrays_do_not_alias():
    """Two buffers without elements may have one address, and are two all the same."""
    both = jit(lambda a, b: (a.sum() + 1, b.sum() + 2, a + 1, b + 1))
    a, b = np.empty(0, "f"), np.empty(0, "f")
    one, two, c, d = both(a, b)
    assert (one, two) == (1, 2) and c is not d
    first, second = Tensor.empty(4), Tensor.empty(4)
    sums = jit(lambda a, b: (a * 0 + 1, b * 0 + 2))(first, second)
    assert [s.tolist() for s in sums] == [[1.0] * 4, [2.0] * 4] or np.isnan(first.numpy()).any()


def test_one_array_in_two_arguments():
    minus = jit(lambda a, b: a - b)
    a, b = floats(9), floats(9, seed=1)
    np.testing.assert_array_equal(minus(a, a), np.zeros(9))
    np.testing.assert_array_equal(minus(a, b), a - b)


# -- out=


def test_out():
    add = jit(lambda a, b: a + b)
    a, b = floats(50), floats(50, seed=1)
    out = np.empty(50, "f")
    for _ in range(2):
        assert add(a, b, out=out) is out
        np.testing.assert_array_equal(out, a + b)
    wide = np.zeros((50, 2), "f")
    add(a, b, out=wide[:, 1])
    np.testing.assert_array_equal(wide[:, 1], a + b)
    assert (wide[:, 0] == 0).all()


def test_out_that_overlaps():
    add = jit(lambda a, b: a + b[::-1])
    a, b = floats(50), floats(50, seed=1)
    expected = a + b[::-1]
    both = np.concatenate([a, b])
    add(both[:50], both[50:], out=both[25:75])
    np.testing.assert_array_equal(both[25:75], expected)
    flip = jit(lambda x: x[::-1])
    x = floats(50)
    expected = x[::-1].copy()
    flip(x, out=x)
    np.testing.assert_array_equal(x, expected)
    w = floats(50, seed=2)
    closed = jit(lambda x: x + Tensor(w)[::-1])
    expected = a + w[::-1]
    closed(a, out=w)
    np.testing.assert_array_equal(w, expected)


def test_out_of_several_results():
    both = jit(lambda a, b: (a + b, {"minus": a - b}))
    a, b = floats(5), floats(5, seed=1)
    out = (np.empty(5, "f"), {"minus": np.empty(5, "f")})
    assert both(a, b, out=out) is out
    np.testing.assert_array_equal(out[0], a + b)
    np.testing.assert_array_equal(out[1]["minus"], a - b)
    one = np.empty(5, "f")
    both(a, b, out=(one, {"minus": one}))  # as NumPy: the last one written stays
    np.testing.assert_array_equal(one, a - b)


def test_out_that_does_not_fit():
    add = jit(lambda a, b: a + b)
    a = floats(5)
    with pytest.raises(ValueError, match=r"shape \(4,\).*\(5,\)"):
        add(a, a, out=np.empty(4, "f"))
    with pytest.raises(TypeError, match="float64"):
        add(a, a, out=np.empty(5))
    with pytest.raises(TypeError, match="Tensor"):
        add(a, a, out=Tensor.empty(5))
    with pytest.raises(ValueError, match="out has 2"):
        add(a, a, out=(np.empty(5, "f"), np.empty(5, "f")))
    several = jit(lambda a: (a, 3, {"n": 1, "plus": a + 1, "minus": a - 1}))
    one, two, three = (np.empty(5, "f") for _ in range(3))
    several(a, out=[one, {"minus": two, "plus": three}])  # by key, without what is no Tensor
    np.testing.assert_array_equal([one, two, three], [a, a - 1, a + 1])
    for out, text in (
        ((one, two, three), r"3 arrays where the function returns 2"),
        ((one, {"minus": two}), r"\['minus'\] where the function returns a dict of \['plus', 'minus'\]"),
        ((one, [two, three]), r"a list where the function returns a dict"),
        ({"minus": two, "plus": three}, r"a dict where the function returns 2"),
    ):
        with pytest.raises(ValueError, match=text):
            several(a, out=out)
    fixed = np.empty(5, "f")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        add(a, a, out=fixed)


# -- staleness


def test_python_values_that_change():
    scale = jit(lambda x, k, flag=False: x * k + (1 if flag else 0))
    x = floats(6)
    for k, flag in (
        (2, False),
        (2.0, False),
        (3, True),
        (True, False),
        (2, False),
        (0.0, False),
        (-0.0, False),
        (3, True),
    ):
        out = scale(x, k, flag)
        expected = x * k + (1 if flag else 0)
        np.testing.assert_allclose(out, expected, rtol=1e-6)
        np.testing.assert_array_equal(np.signbit(out), np.signbit(expected))
        np.testing.assert_array_equal(scale(x, k, flag=flag), out)
    assert np.isnan(scale(x, float("nan"))).all() and np.isnan(scale(x, float("nan"))).all()


def test_lists_that_change():
    weights = [1.0, 2.0]
    mix = jit(lambda x, w: x * w[0] + w[1])
    closed = jit(lambda x: x * weights[0] + weights[1])
    x = floats(6)
    for new in ([1.0, 2.0], [3.0, 2.0], [3.0, -1.0], [3.0, -1.0, 9.0]):
        weights[:] = new
        for out in (mix(x, weights), closed(x)):
            np.testing.assert_allclose(out, x * np.float32(new[0]) + np.float32(new[1]), rtol=1e-6)


SCALE = 2.0
TABLE = {"shift": 1.0}


def shift(x):
    return x + TABLE["shift"]


@jit
def scaled(x):
    return shift(x * SCALE)


def test_globals_that_change(monkeypatch):
    x = floats(6)
    np.testing.assert_allclose(scaled(x), x * 2 + 1, rtol=1e-6)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_allclose(scaled(x), x * 3 + 1, rtol=1e-6)
    monkeypatch.setitem(TABLE, "shift", 5.0)
    np.testing.assert_allclose(scaled(x), x * 3 + 5, rtol=1e-6)
    monkeypatch.setitem(globals(), "shift", lambda x: x - 1)
    np.testing.assert_allclose(scaled(x), x * 3 - 1, rtol=1e-6)
    monkeypatch.undo()
    np.testing.assert_allclose(scaled(x), x * 2 + 1, rtol=1e-6)


def test_closures_over_tensors_that_change():
    w = Tensor(floats(6))
    f = jit(lambda x: x * w)
    x = floats(6, seed=1)
    for seed in range(4):
        w = Tensor(floats(6, seed=seed))
        np.testing.assert_array_equal(f(x), x * w.numpy())
    assert len(f.captured) == 1  # what was replaced is not kept alive
    w = w + 1  # lazy
    np.testing.assert_array_equal(f(x), x * (floats(6, seed=3) + 1))
    w.realize()
    np.testing.assert_array_equal(f(x), x * (floats(6, seed=3) + 1))


class Model:
    gain = 1.0

    def __init__(self):
        self.layers = [Tensor(floats(4)), Tensor(floats(4, seed=1))]
        self.bias = 0.5

    def __call__(self, x):
        for w in self.layers:
            x = x * w + self.bias
        return x * self.gain


def test_objects_whose_attributes_change(monkeypatch):
    model = Model()
    as_argument, as_closure, as_method = jit(lambda m, x: m(x)), jit(lambda x: model(x)), jit(model)
    x = floats(4, seed=2)

    def check():
        expected = model(Tensor(x)).numpy()
        for out in (as_argument(model, x), as_closure(x), as_method(x)):
            np.testing.assert_array_equal(out, expected)

    check()
    model.bias = 2.0
    check()
    model.layers[1] = Tensor(floats(4, seed=5))
    check()
    model.layers.append(Tensor(floats(4, seed=6)))
    check()
    monkeypatch.setattr(Model, "gain", 3.0)
    check()
    model.gain = 4.0
    check()
    monkeypatch.setattr(Model, "__call__", lambda self, x: x - self.bias)
    check()


def test_slots_and_dataclasses():
    @dataclass(frozen=True)
    class Config:
        width: int
        rate: float

    class Slotted:
        __slots__ = ("k",)

    slotted = Slotted()
    slotted.k = 2.0
    f = jit(lambda x, config: x * config.rate + config.width + slotted.k)
    x = floats(3)
    for config, k in ((Config(1, 2.0), 2.0), (Config(1, 2.0), 3.0), (Config(2, 2.0), 3.0)):
        slotted.k = k
        np.testing.assert_allclose(f(x, config), x * 2 + config.width + k, rtol=1e-6)


def test_arrays_that_change_in_place():
    """Read as a Tensor or in NumPy: the contents are those at the time of the call."""
    table, factors = floats(5), np.array([2.0, 3.0])
    f = jit(lambda x: x * table + float(factors[1]))
    x = floats(5, seed=1)
    np.testing.assert_allclose(f(x), x * table + 3, rtol=1e-6)
    table[...] = 7
    np.testing.assert_allclose(f(x), x * 7 + 3, rtol=1e-6)
    factors[1] = 10
    np.testing.assert_allclose(f(x), x * 7 + 10, rtol=1e-6)
    x[...] = 1
    np.testing.assert_allclose(f(x), np.full(5, 17.0))


def test_a_lazy_reader_before_an_assignment_to_a_view():
    base = floats(4, 4)
    reader = jit(lambda x: x.sum(axis=0))
    before = reader(base)
    base[1:3] = 0
    after = reader(base)
    np.testing.assert_allclose(before, floats(4, 4).sum(0), rtol=1e-5)
    np.testing.assert_allclose(after, base.sum(0), rtol=1e-5)


def test_options_that_change():
    x = floats(64, 64)
    f = jit(lambda x: (x @ x).softmax(-1) @ x)
    expected = f(x)
    plans = {id(f.captured[0].plan)}
    for value in (False, True, None, False):
        with uopc.options(fuse_reduce=value):
            np.testing.assert_allclose(f(x), expected, rtol=1e-4, atol=1e-5)
            plans.add(id(f.captured[0].plan))
    assert len(f.captured) == 4  # no options at all, and three values
    before = Tensor.fuse_reduce
    try:
        Tensor.fuse_reduce = False
        f(x)
    finally:
        Tensor.fuse_reduce = before
    assert len(f.captured) == 5


def test_defaults_that_change():
    f = jit(lambda x: x + Tensor([1.5]))
    x = np.zeros(1, "i4")
    assert f(x).dtype == np.float64 if f(x).dtype == np.float64 else np.float32
    kind = uopc.dtypes.default_float
    try:
        uopc.dtypes.default_float = uopc.dtypes.float64
        assert f(x).dtype == (Tensor(x) + Tensor([1.5])).numpy().dtype
    finally:
        uopc.dtypes.default_float = kind


# -- random numbers


def test_random_numbers_are_those_of_uncaptured_calls():
    def noisy(x):
        return x + Tensor.rand(8), Tensor.randn(3)

    f, x = jit(noisy), floats(8)
    uopc.manual_seed(5)
    expected = [[t.numpy() for t in noisy(Tensor(x))] for _ in range(4)]
    uopc.manual_seed(5)
    got = [f(x) for _ in range(4)]
    for want, have in zip(expected, got):
        for a, b in zip(want, have):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(got[1][0], got[2][0])


@pytest.mark.parametrize("draw", [random.random, lambda: float(np.random.rand()), lambda: np.random.standard_normal()])
def test_random_numbers_of_others_are_refused(draw):
    with pytest.raises(CaptureError, match="random numbers"):
        jit(lambda x: x * draw())(floats(3))


# -- refusals

BRANCHES = {
    "bool": lambda x: x if x.sum() > 0 else -x,
    "item": lambda x: x * x.max().item(),
    "numpy": lambda x: x * np.ones(3) + float(x.numpy()[0]),
    "tolist": lambda x: x * len(set(x.tolist())),
    "np.exp": lambda x: x + np.exp(x),
    "float": lambda x: x * float(x.sum()),
    "realize": lambda x: (x + 1).realize(),
    "print": lambda x: x * len(f"{x.numpy()}"),
    "random": lambda x: x * Tensor.rand(1).item(),
    "argument itself": lambda x: x.realize() * x.numpy()[0],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_what_depends_on_data_is_refused(name):
    f = jit(BRANCHES[name])
    for _ in range(2):
        with pytest.raises(CaptureError, match="asked for"):
            f(floats(3))
    assert not f.captured
    assert (Tensor(floats(3)) + 1).numpy().shape == (3,)  # nothing is left of the capture


def test_values_of_what_is_not_an_argument_may_be_asked_for():
    w = Tensor([2.0, 5.0])
    f = jit(lambda x: x * w.max().item())
    x = floats(3)
    np.testing.assert_array_equal(f(x), x * 5)
    w = Tensor([7.0, 5.0])
    np.testing.assert_array_equal(f(x), x * 7)


CALLS = 0
LOG = []


def counts(x):
    global CALLS
    CALLS += 1
    return x * 2


def logs(x):
    LOG.append(1)
    return x * 2


def keeps(x):
    keeps.last = x
    return x * 2


def writes(x):
    TABLE["shift"] = TABLE["shift"] + 1
    return x


@pytest.mark.parametrize(("fn", "what"), [(counts, "CALLS"), (logs, "LOG"), (writes, "shift")])
def test_side_effects_are_refused(fn, what):
    with pytest.raises(CaptureError, match=rf"changes .*{what}"):
        jit(fn)(floats(3))


def test_side_effects_on_attributes_are_refused():
    class Stateful:
        n = 0

        def __call__(self, x):
            self.n = self.n + 1
            return x * self.n

    with pytest.raises(CaptureError, match=r"changes .*once only"):
        jit(Stateful())(floats(3))
    cell = 0

    def nonlocal_counter(x):
        nonlocal cell
        cell += 1
        return x

    with pytest.raises(CaptureError, match="changes cell"):
        jit(nonlocal_counter)(floats(3))


def test_assigning_to_an_argument_is_refused():
    def assigns(x):
        x[0] = 1.0
        return x

    x = floats(3)
    with pytest.raises((TypeError, CaptureError)):
        jit(assigns)(x)
    np.testing.assert_array_equal(x, floats(3))

    def rebinds(x):
        x += 1.0  # a Tensor's value never changes: this names a new one
        return x

    np.testing.assert_array_equal(jit(rebinds)(x), x + 1)
    np.testing.assert_array_equal(x, floats(3))


def test_other_refusals():
    with pytest.raises(CaptureError, match="no Tensor"):
        jit(lambda x: None)(floats(3))
    with pytest.raises(CaptureError, match="hashable"):
        jit(lambda x, s: x)(floats(3), {1, 2})
    with pytest.raises(CaptureError, match="returned a <class 'object'>"):
        jit(lambda x: (x, object()))(floats(3))
    with pytest.raises(ValueError, match="shape"):
        jit(lambda x, y: x + y)(floats(3), floats(4))
    with pytest.raises(ZeroDivisionError):
        jit(lambda x: x * (1 // 0))(floats(3))


def test_a_placeholder_that_leaks_is_refused_where_it_is_used():
    leaked = []

    class Foreign:
        __module__ = "numpy"

        def __call__(self, x):
            leaked.append(x)

    keep = Foreign()

    def leaks(x):
        keep(x)
        return x * 2

    jit(leaks)(floats(3))
    with pytest.raises(CaptureError):
        (leaked[0] + 1).numpy()


def test_positions_that_are_data():
    table = floats(10, 4)
    take, from_end = jit(lambda t, i: t[i]), jit(lambda t, i: t[i, 1] * 2)
    for dtype in ("i8", "i4", "u1"):
        for positions in ([0, 3, 9], [9, 9, 1], [2, 0, 0]):
            i = np.array(positions, dtype)
            np.testing.assert_array_equal(take(table, i), table[i])
            np.testing.assert_array_equal(take(Tensor(table), i).numpy(), table[i])
            np.testing.assert_array_equal(from_end(table, i), table[i, 1] * 2)
    i = np.array([-1, -10, 5])
    np.testing.assert_array_equal(take(table, i), table[i])
    for wrong in ([0, 10, 1], [-11, 0, 1], [1 << 40, 0, 0]):
        with pytest.raises(IndexError, match=r"position -?\d+ is out of bounds for axis 0 of size 10"):
            take(table, np.array(wrong))
        np.testing.assert_array_equal(take(table, i, out=np.empty((3, 4), "f")), table[i])
    assert take(table, np.empty(0, "i8")).shape == (0, 4)
    fixed = np.array([1, 2])  # not an argument: checked when captured
    np.testing.assert_array_equal(jit(lambda t: t[fixed])(table), table[fixed])


# -- bounds, threads, precompile


def test_signatures_are_bounded():
    f = jit(lambda x, k: x.reshape(-1)[:1] * 1.0 if k else x)
    f.limit = 3
    x = floats(4)
    for k in range(1, 6):
        f(x, k)
    assert len(f.captured) == 3


def test_threads_share_a_captured_function():
    f = jit(lambda x, k: (x @ x.T).softmax(-1) * k)
    xs = [floats(32, 32, seed=n) for n in range(4)]
    expected = [[f(x, k) for k in (1.0, 2.0)] for x in xs]
    fresh = jit(f.__wrapped__)
    wrong = []

    def work(n):
        for _ in range(30):
            wrong.extend(k for k in (0, 1) if not np.array_equal(fresh(xs[n], float(k + 1)), expected[n][k]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_pickled_by_name():
    assert pickle.loads(pickle.dumps(scaled)) is scaled
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(jit(lambda x: x))


def test_precompile_runs_nothing_and_leaves_nothing_to_compile(monkeypatch):
    f = jit(lambda x, y, k: (x @ y + k).relu())
    precompile(f, ShapeDtype((7, 9)), ShapeDtype((9, 5)), 0.25)
    assert len(f.captured) == 1
    monkeypatch.setattr("uopc.runtime.plan.compile_plan", None)
    x, y = floats(7, 9), floats(9, 5)
    np.testing.assert_allclose(f(x, y, 0.25), np.maximum(x @ y + 0.25, 0), rtol=1e-4, atol=1e-5)
    assert len(f.captured) == 1


def test_precompile_of_tensors(monkeypatch):
    x = Tensor(floats(11, 13))
    y = (x * 3.25).sum(axis=1)
    precompile(y)
    assert y.uop.realized is None
    monkeypatch.setattr("uopc.runtime.plan.compile_plan", None)
    np.testing.assert_allclose(y.numpy(), (x.numpy() * 3.25).sum(1), rtol=1e-4, atol=1e-4)


def test_precompile_of_other_things():
    with pytest.raises(TypeError, match="precompile takes"):
        precompile(3)
    precompile(lambda x: x + 1, np.empty((3, 3)))


def test_no_memory_for_results_and_then_enough():
    big = jit(lambda x: x.reshape(1, 1).expand(1 << 22, 1 << 22) + 1.0)
    with pytest.raises(MemoryError):
        big(floats(1))
    assert jit(lambda x: x + 1)(np.zeros(1, "f"))[0] == 1
