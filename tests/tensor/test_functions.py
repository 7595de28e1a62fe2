"""Functions of one tensor against NumPy, and activations against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tensors import ALL, FLOATS, same, same_all, sample, special

from uopc import Tensor, dtypes

FLOAT_FUNCTIONS = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
}
erf = np.vectorize(math.erf)


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_float_functions(name):
    arrays = [*map(sample, ALL), *map(special, FLOATS)]
    with np.errstate(all="ignore"):
        same_all((getattr(Tensor(a), name)(), FLOAT_FUNCTIONS[name](a)) for a in arrays)


@pytest.mark.parametrize("dtype", FLOATS)
def test_roots_and_reciprocals(dtype):
    x = special(dtype)
    t = Tensor(x)
    with np.errstate(all="ignore"):
        same(t.square(), x * x)
        same(t.rsqrt(), 1 / np.sqrt(x))
        same(t.reciprocal(), 1 / x)
        same(t.erf(), erf(x).astype(dtype))
    assert Tensor([1, 2]).rsqrt().dtype is dtypes.float64
    same(Tensor([2, 4]).reciprocal(), [0.5, 0.25])


@pytest.mark.parametrize("dtype", ALL)
def test_signs_and_rounding(dtype):
    a = special(dtype) if dtype in FLOATS else sample(dtype)
    t = Tensor(a)
    pairs = [(t.abs(), np.abs(a)), (abs(t), np.abs(a)), (t.square(), np.square(a) if dtype != "bool" else a)]
    pairs += [(getattr(t, f)(), getattr(np, f)(a) if dtype in FLOATS else a) for f in ("floor", "ceil", "trunc")]
    pairs += [(r, np.round(a) if dtype in FLOATS else a) for r in (t.round(), round(t))]
    pairs += [(t.isnan(), np.isnan(a)), (t.isinf(), np.isinf(a)), (t.isfinite(), np.isfinite(a))]
    same_all(pairs)
    if dtype == "bool":
        with pytest.raises(TypeError, match="sign is not defined for bool"):
            t.sign()
    else:
        same(t.sign(), np.sign(a))
        assert not (np.signbit(t.sign().numpy()) & (a == 0)).any()  # of -0.0 it is 0.0, as NumPy's
        same(+t, a)


def test_round_to_decimals():
    x = np.array([1.25, -2.675, 1234.5678, 0.5, np.nan])
    same(Tensor(x).round(2), np.round(x, 2))
    same(Tensor(x).round(-2), np.round(x, -2))
    with pytest.raises(TypeError, match="int64"):
        Tensor([123]).round(-1)
    with pytest.raises(ValueError, match="round to 309 decimals"):
        Tensor(x).round(309)
    with pytest.raises(TypeError, match="number of decimals"):
        Tensor(x).round(0.5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations(dtype):
    x = np.array([-1e4, -200, -88, -20, -3, -0.5, 0, 0.5, 3, 19, 21, 88, 200, 1e4, np.inf, np.nan]).astype(dtype)
    t, w = Tensor(x), x.astype(np.float64)
    wide = 3e-2 if dtype == "float16" else 1e-5 if dtype == "float32" else 1e-12
    with np.errstate(all="ignore"):
        sigmoid = 1 / (1 + np.exp(-w))
        softplus = np.where(w > 20, w, np.log1p(np.exp(w)))
        cubic = np.sqrt(2 / np.pi) * (w + 0.044715 * w**3)
    same(t.relu(), np.maximum(x, 0))
    same(t.sigmoid(), sigmoid.astype(dtype), wide)
    same(t.silu(), (w * sigmoid).astype(dtype), wide)
    same(t.softplus(), softplus.astype(dtype), wide)
    with np.errstate(all="ignore"):
        same(t.softplus(beta=2, threshold=10), np.where(2 * w > 10, w, np.log1p(np.exp(2 * w)) / 2).astype(dtype), wide)
        same(t.gelu(), (0.5 * w * (1 + erf(w / np.sqrt(2)))).astype(dtype), wide)
        if dtype != "float16":  # where the cube overflows
            same(t.gelu(approximate="tanh"), (0.5 * w * (1 + np.tanh(cubic))).astype(dtype), wide)
    with pytest.raises(ValueError, match=r"approximate='fast'.*\"none\""):
        t.gelu("fast")


def lower_tail(w):
    """P(X <= w) of a standard normal X, in float64."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in w])


def ulps(value, expected):
    """Errors in units of the last place that float32 has at what is expected."""
    exponent = np.maximum(np.frexp(expected)[1] - 1, -126)
    return np.abs(value - expected) / 2.0 ** (exponent - 23)


def test_the_negative_tail_of_gelu_is_accurate_relative_to_itself():
    """What is 1 + erf, or 1 + tanh, is 0 from -5.5 on when it is computed so."""
    x = np.concatenate([np.linspace(-14, 14, 60_001), -np.logspace(-30, 0, 500)]).astype(np.float32)
    w = x.astype(np.float64)
    expected, normal = w * lower_tail(w), w > -12.9  # further down the probability is no normal float32
    exact = Tensor(x).gelu().numpy()
    assert ulps(exact, expected)[w > -3].max() <= 6
    assert ulps(exact, expected)[normal].max() <= 8
    assert ulps(exact, expected).max() <= 10
    # here an error of the exponent, 2u, is one of the result: it has 2^-24 of up to 88
    steep = 2 * math.sqrt(2 / math.pi) * (w + 0.044715 * w**3)
    approximate, expected = Tensor(x).gelu("tanh").numpy(), w / (1 + np.exp(-steep))
    assert (ulps(approximate, expected) <= 8 + 4 * np.abs(np.minimum(steep, 0))).all()
    assert Tensor(np.float32([-6])).gelu().item() == pytest.approx(-5.9195253e-09, rel=1e-6)
    assert Tensor(np.float32([-6])).gelu("tanh").item() == pytest.approx(-6 / (1 + math.exp(24.98823)), rel=1e-4)
    w = np.array([-6.0, -8.5, -20.0, -37.0])
    same(Tensor(w).gelu(), w * lower_tail(w), 1e-12, 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_special_numbers(approximate, dtype):
    large = float(np.finfo(dtype).max)
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, large, -large], dtype)
    value = Tensor(x).gelu(approximate).numpy()
    np.testing.assert_array_equal(value, np.array([np.nan, np.inf, np.nan, 0.0, -0.0, large, -0.0], dtype))
    assert np.signbit(value[[3, 4, 6]]).tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "tanh", "expm1"])
def test_other_tails_are_accurate_relative_to_themselves(name):
    x = np.concatenate([np.linspace(-80, 14, 30_001), -np.logspace(-30, 0, 500)]).astype(np.float32)
    w = x.astype(np.float64)
    power = np.exp(w)
    expected = {
        "sigmoid": power / (1 + power),
        "silu": w * power / (1 + power),
        "softplus": np.log1p(power),
        "tanh": np.tanh(w),
        "expm1": np.expm1(w),
    }[name]
    assert ulps(getattr(Tensor(x), name)().numpy(), expected).max() <= 4


def test_activations_of_integers():
    a = sample("int8")
    assert Tensor(a).sigmoid().dtype is dtypes.float16
    same(Tensor(a).relu(), np.maximum(a, 0))
    same(Tensor(sample("bool")).relu(), sample("bool"))
    assert Tensor(sample("int64")).gelu().dtype is dtypes.float64


def test_negative_infinity_stays_quiet():
    x = Tensor(np.float32([-np.inf]))
    assert x.sigmoid().item() == 0
    assert x.softplus().item() == 0
    assert x.relu().item() == 0


def test_casts():
    a = np.array([-2.5, -0.5, 0, 0.49, 3.99])
    t = Tensor(a)
    for name, method in (
        ("float16", "half"),
        ("float32", "float"),
        ("float64", "double"),
        ("int32", "int"),
        ("int64", "long"),
        ("bool", "bool"),
    ):
        same(getattr(t, method)(), a.astype(name))
        same(t.cast(name), a.astype(name))
        same(t.cast(np.dtype(name)), a.astype(name))
    assert t.bfloat16().dtype is dtypes.bfloat16
    assert t.cast(dtypes.bfloat16).numpy().tolist() == [-2.5, -0.5, 0, 0.490234375, 3.984375]
    same(Tensor(3).cast("float32"), np.float32(3))
    same(Tensor(np.nan).cast("bool"), True)
    with pytest.raises(TypeError, match="'complex64' is not a dtype; accepted are"):
        t.cast("complex64")


def test_bitcasts():
    a = sample("float32")
    same(Tensor(a).bitcast("uint32"), a.view(np.uint32))
    same(Tensor(a).bitcast("uint32").bitcast("float32"), a)
    with pytest.raises(TypeError, match="sizes differ"):
        Tensor(a).bitcast("int64")


@pytest.mark.parametrize("n", [3, 67])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bitcasts_of_bools(dtype, n):
    """A bool is the byte 0 or 1, also where a comparison made it a mask of wide lanes; a byte other than 0 is True."""
    truth, numbers = np.arange(n) % 3 == 0, (np.arange(n) % 5).astype(dtype)
    wide, narrow = np.arange(n) - 2, (np.arange(n) - 2).astype("int32")
    above = Tensor(narrow) >= 0
    same_all(
        [
            (Tensor(truth).bitcast(dtype), truth.view(dtype)),
            (Tensor(truth).bitcast(dtype).sum(), truth.view(dtype).sum()),
            (above.bitcast(dtype), (narrow >= 0).view(dtype)),
            ((above & (Tensor(wide) < 1)).bitcast(dtype) + 1, ((narrow >= 0) & (wide < 1)).view(dtype) + 1),
            (Tensor(numbers).bitcast("bool"), numbers != 0),
            ((Tensor(numbers) + 1).bitcast("bool").where(5, Tensor(wide)), np.where(numbers + 1 != 0, 5, wide)),
            (Tensor(numbers).bitcast("bool").any(), np.array(True)),
            (Tensor(numbers).bitcast("bool").bitcast(dtype), (numbers != 0).view(dtype)),
            (Tensor.full((n,), True).bitcast(dtype), np.ones(n, dtype)),
            (Tensor.full((n,), 2, dtype=dtype).bitcast("bool"), np.ones(n, bool)),
        ]
    )
    with pytest.raises(TypeError, match="sizes differ"):
        Tensor(truth).bitcast("int16")


@pytest.mark.parametrize("shape", [(0,), (), (1, 1), (3, 0, 2)])
def test_odd_shapes(shape):
    a = sample("float32", shape)
    same(Tensor(a).exp(), np.exp(a))
    same(Tensor(a).isnan(), np.isnan(a))
    same(Tensor(a).gelu() * 0, np.zeros(shape, np.float32))
