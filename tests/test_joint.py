"""joint: results of one cascade come out of one kernel, with the values of float64 NumPy; what cannot be joined is
right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.inspect.recompute import reductions
from uopc.ops import Ops
from uopc.options import Options
from uopc.pipeline import Plan, make_plan, settings_for
from uopc.runtime import num_threads
from uopc.uop import memory_of

Array = np.ndarray[Any, Any]


def draw(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng([seed, *shape]).integers(-8, 9, shape) / 8).astype(np.float32)


@dataclass
class Rows:
    """Softmax in parts: scores, their maxima, exponentials and sums; as Tensors and as float64 arrays."""

    s: Any
    m: Any
    e: Any
    l: Any

    @property
    def p(self) -> Any:
        return self.e / self.l


def rows(
    lead: tuple[int, ...] = (), n: int = 63, keys: int = 65, d: int = 8, dtype: Any = np.float32
) -> tuple[Rows, Rows]:
    q, k = draw(*lead, n, d).astype(dtype), draw(*lead, keys, d, seed=1).astype(dtype)
    s = Tensor(q) @ Tensor(k).mT * 0.25
    m = s.max(-1, keepdim=True)
    e = (s - m).exp()
    s64 = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) * 0.25
    m64 = s64.max(-1, keepdims=True)
    e64 = np.exp(s64 - m64)
    return Rows(s, m, e, e.sum(-1, keepdim=True)), Rows(s64, m64, e64, e64.sum(-1, keepdims=True))


def values(*shape: int, seed: int = 2, dtype: Any = np.float32) -> tuple[Tensor, Array]:
    v = draw(*shape, seed=seed).astype(dtype)
    return Tensor(v), v.astype(np.float64)


def plan(*tensors: Tensor) -> Plan:
    return make_plan([t.uop for t in tensors])


def check(tensors: list[Tensor], wanted: list[Array], kernels: int | None = None, tolerance: float = 1e-5) -> None:
    """The values of several Tensors, computed together; by so many kernels."""
    made = plan(*tensors)
    assert kernels is None or len(made.kernels) == kernels, made
    tensors[0].realize(*tensors[1:])
    for k, (t, want) in enumerate(zip(tensors, wanted, strict=True)):
        got = t.numpy()
        assert got.shape == want.shape
        np.testing.assert_allclose(
            got, want, rtol=tolerance, atol=tolerance * np.abs(want).max(initial=0), err_msg=f"result {k}"
        )


LEADS = [(), (3,), (2, 3)]


@pytest.mark.parametrize("lead", LEADS)
def test_attention_and_its_log_sum_exp_are_one_kernel(lead):
    """Also where the logarithms have fewer axes than the output, and whichever is asked for first."""
    for flat in (False, True):
        t, a = rows(lead)
        v, v64 = values(*lead, 65, 12)
        lse, lse64 = t.m + t.l.log(), a.m + np.log(a.l)
        if flat:
            check([lse.reshape(*lead, 63), t.p @ v], [lse64[..., 0], a.p @ v64], 1)
        else:
            check([t.p @ v, lse], [a.p @ v64, lse64], 1)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 1000])
def test_any_number_of_rows(n):
    """Few rows have another schedule than many."""
    t, a = rows((2,), n, 100)
    v, v64 = values(2, 100, 16)
    check([t.p @ v, t.m, t.l], [a.p @ v64, a.m, a.l], 1)


@pytest.mark.parametrize("lead", LEADS)
def test_expectations_of_values_of_several_widths(lead):
    t, a = rows(lead)
    pairs = [values(*lead, 65, width, seed=width) for width in (5, 16, 16, 1)]
    check([t.p @ v for v, _ in pairs], [a.p @ v for _, v in pairs], 1)


def test_sums_that_share_only_running_values():
    t, a = rows()
    (v, v64), (w, w64) = values(65, 5), values(65, 7)
    check([t.e @ v, t.e @ w, t.l], [a.e @ v64, a.e @ w64, a.l], 1)


def test_a_result_in_another_order_of_axes():
    t, a = rows((3,))
    (v, v64), (w, w64) = values(3, 65, 5), values(3, 65, 20)
    check([(t.p @ v).mT, (t.p @ w).permute(1, 0, 2)], [np.swapaxes(a.p @ v64, 1, 2), (a.p @ w64).transpose(1, 0, 2)], 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_dtypes(dtype):
    t, a = rows(dtype=dtype)
    v, v64 = values(65, 12, dtype=dtype)
    check([t.p @ v, t.m + t.l.log()], [a.p @ v64, a.m + np.log(a.l)], 1, 1e-12 if dtype == np.float64 else 4e-3)


def test_a_difference_of_two_cascades_beside_one_of_them():
    t, a = rows()
    v, v64 = values(65, 12)
    other, other64 = (t.s * 0.5).softmax(-1), np.exp(a.s * 0.5) / np.exp(a.s * 0.5).sum(-1, keepdims=True)
    check([(t.p - 0.25 * other) @ v, t.m + t.l.log()], [(a.p - 0.25 * other64) @ v64, a.m + np.log(a.l)], 1)


def test_a_causal_mask_bounds_the_loop_of_all_results():
    n = 200
    q, k, v = draw(n, 8), draw(n, 8, seed=1), draw(n, 12, seed=2)
    mask = Tensor.arange(n).reshape(1, n) <= Tensor.arange(n).reshape(n, 1)
    s = mask.where(Tensor(q) @ Tensor(k).T, float("-inf"))
    m = s.max(-1, keepdim=True)
    e = (s - m).exp()
    l = e.sum(-1, keepdim=True)
    s64 = np.where(np.tri(n, dtype=bool), q.astype(np.float64) @ k.T.astype(np.float64), -np.inf)
    m64 = s64.max(-1, keepdims=True)
    e64 = np.exp(s64 - m64)
    l64 = e64.sum(-1, keepdims=True)
    outputs = [(e / l) @ Tensor(v), m + l.log()]
    (kernel,) = plan(*outputs).kernels
    assert any(u.op is Ops.RANGE and u.src[0].op is not Ops.CONST for u in kernel.linear.src)
    check(outputs, [(e64 / l64) @ v, m64 + np.log(l64)])


def test_rows_without_keys_and_nan_stay_where_they_are():
    q, k, v = draw(40, 8), draw(70, 8, seed=1), draw(70, 12, seed=2)
    q[3, 2] = np.nan
    mask = np.ones((40, 1), bool)
    mask[7] = False
    s = Tensor(mask).where(Tensor(q) @ Tensor(k).T, float("-inf"))
    m = s.max(-1, keepdim=True)
    e = (s - m).exp()
    l = e.sum(-1, keepdim=True)
    o, lse = (e / l) @ Tensor(v), m + l.log()
    o.realize(lse)
    for got in (o.numpy(), lse.numpy()):
        assert set(np.flatnonzero(np.isnan(got).any(-1))) == {3, 7}


def test_every_body_is_computed_once():
    t, _ = rows(n=64, keys=96)
    (kernel,) = plan(t.p @ values(96, 16)[0], t.m + t.l.log()).kernels
    assert [r.factor for r in reductions(kernel, settings_for(Options()))] == [1.0] * 4


def test_each_output_is_an_argument_of_the_kernel_and_is_stored():
    t, _ = rows()
    (kernel,) = plan(t.p @ values(65, 12)[0], t.m, t.l).kernels
    assert kernel.outs == 3 and kernel.name == "r_63_12"
    stored = {
        memory.arg.slot
        for u in kernel.linear.src
        if u.op is Ops.STORE and (memory := memory_of(u.src[0])).op is Ops.BUFFER
    }
    assert stored == {0, 1, 2}


def test_explain_names_all_outputs():
    t, _ = rows()
    report = uopc.explain([t.p @ values(65, 12)[0], t.m + t.l.log()])
    (kernel,) = report.kernels
    assert [name.split("[")[0] for name in kernel.writes] == ["out0", "out1"]
    assert "log(y2)" in kernel.value and "y3 / y2" in kernel.value


# ---- what has to wait for another result ----


def test_what_scales_by_a_sum_of_another_result_reads_its_own_part_from_memory():
    """The maxima are written beside the output: the kernel that uses both does not run the cascade again."""
    t, a = rows()
    v, v64 = values(65, 12)
    o = t.p @ v
    outputs = [o, t.m * (o * o).sum()]
    assert sum(k.name.startswith("r_63") for k in plan(*outputs).kernels) == 1
    check(outputs, [a.p @ v64, a.m * ((a.p @ v64) ** 2).sum()])


def test_two_cascades_that_need_results_of_each_other_are_not_joined_in_a_circle():
    t, a = rows()
    r, b = rows(n=40, keys=50)
    (v, v64), (w, w64) = values(65, 12), values(50, 12)
    first, second = (t.p @ v).sum(), (r.p @ w).sum()
    outputs = [t.p @ v, t.l * second, r.p @ w, r.l * first]
    first64, second64 = (a.p @ v64).sum(), (b.p @ w64).sum()
    check(outputs, [a.p @ v64, a.l * second64, b.p @ w64, b.l * first64], tolerance=1e-4)


def test_layers_that_use_an_output_and_its_sums():
    t, a = rows(keys=63)
    v, v64 = values(63, 63)
    o = t.p @ v
    again = (o @ v * 0.125).softmax(-1) @ v + t.l
    x = a.p @ v64 @ v64 * 0.125
    e = np.exp(x - x.max(-1, keepdims=True))
    check([again, t.m], [e / e.sum(-1, keepdims=True) @ v64 + a.l, a.m], tolerance=1e-4)


def test_same_bits_for_any_number_of_threads():
    seen = set()
    for threads in (1, 2, 3):
        t, _ = rows((2,), 100, 130)
        o, lse = t.p @ values(2, 130, 12)[0], t.m + t.l.log()
        with num_threads(threads):
            o.realize(lse)
        seen.add((o.numpy().tobytes(), lse.numpy().tobytes()))
    assert len(seen) == 1


def test_empty_results_beside_others():
    t, a = rows()
    v, v64 = values(65, 12)
    empty = (t.p @ v)[:, :0]
    check([t.p @ v, empty, t.m], [a.p @ v64, np.empty((63, 0)), a.m])


def test_weights_from_the_log_sum_exp_that_is_a_result_too():
    """The logarithm of the sum is deferred, the maximum in it is anchored: one pass, special values as in NumPy."""
    q, k, v = draw(40, 8), draw(130, 8, seed=1), draw(130, 12, seed=2)
    q[0] *= 1e4
    q[1, 0], q[2, 0] = np.nan, np.inf
    mask = np.ones((40, 1), bool)
    mask[3] = False
    s = Tensor(mask).where(Tensor(q) @ Tensor(k).T, float("-inf"))
    lse = s.logsumexp(-1, keepdim=True)
    o = (s - lse).exp() @ Tensor(v)
    assert len(plan(o, lse).kernels) == 1
    o.realize(lse)
    with np.errstate(all="ignore"):
        s64 = np.where(mask, q.astype(np.float64) @ k.T.astype(np.float64), -np.inf)
        m64 = s64.max(-1, keepdims=True)
        lse64 = m64 + np.log(np.exp(s64 - m64).sum(-1, keepdims=True))
        want = np.exp(s64 - lse64) @ v
    assert set(np.flatnonzero(np.isnan(o.numpy()).any(1))) == {1, 2, 3}
    rest = [k for k in range(40) if k not in (1, 2, 3)]
    np.testing.assert_allclose(o.numpy()[rest], want[rest], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse.numpy()[rest], lse64[rest], rtol=1e-6)


@pytest.mark.parametrize("logarithm", [lambda s, p: p.log(), lambda s, p: s.log_softmax(-1)])
def test_entropy_is_of_rows_of_scores(logarithm):
    """The logarithm of a weight is no product of a score and of what runs.  A second pass over the keys is no cascade,
    and would have no tile for a product: scores are written down, and one kernel has all that a row needs."""
    t, a = rows(n=200, keys=300)
    p = t.s.softmax(-1)
    entropy = -(p * logarithm(t.s, p)).sum(-1)
    made = plan(entropy)
    assert [k.name for k in made.kernels][-2:] == ["r_200_300", "r_200"]
    assert max(n for _, n in made.temps) == 200 * 300
    check([entropy], [-(a.p * np.log(a.p)).sum(-1)])
