"""kernelize: what is written down.  Plans are counted: kernels, the sizes of temporaries, the work of loops; never
seconds."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz_graphs import check
from reference import evaluate

from uopc import Tensor
from uopc.count import count
from uopc.dtype import dtypes
from uopc.kernelize import kernelize, stage_broadcast_compute
from uopc.ops import Ops, ReduceArg
from uopc.pipeline import Plan, make_plan
from uopc.runtime.plan import realize
from uopc.split import SPLIT_PART
from uopc.uop import UOp, sink, toposort

N, D = 1024, 64


def array(*shape: int, dtype: type = np.float32) -> Tensor:
    """Some values, small and of both signs."""
    size = int(np.prod(shape))
    return Tensor((np.arange(size) % 13 - 6).astype(dtype).reshape(shape))


def attention(n: int = N, causal: bool = False) -> Tensor:
    q, k, v = (array(n, D) for _ in range(3))
    scores = (q @ k.T) * 0.125
    if causal:
        position = Tensor.arange(n)
        scores = (position.reshape(n, 1) >= position.reshape(1, n)).where(scores, float("-inf"))
    return scores.softmax(-1) @ v


def plan(*tensors: Tensor, **options) -> Plan:
    return make_plan([t.uop for t in tensors], **options)


def sizes(p: Plan) -> list[int]:
    """Elements of each temporary, the largest first."""
    return sorted((n for _, n in p.temps), reverse=True)


def names(p: Plan) -> list[str]:
    return [k.name for k in p.kernels]


@pytest.mark.parametrize("causal", [False, True])
class TestAttention:
    def test_unfused_writes_down_every_reduction(self, causal):
        p = plan(attention(causal=causal), fuse_reduce=False)
        assert len(p.kernels) <= 6
        # the scores and the probabilities; a row's maximum and sum; the copy of k that lanes read in order
        assert sizes(p) == [N * N, N * N, N * D, N, N]

    def test_by_default_no_more_than_scores_and_probabilities(self, causal):
        p = plan(attention(causal=causal), fuse_reduce=None)
        assert len(p.kernels) <= 4
        assert [n for n in sizes(p) if n > N * D] in ([N * N, N * N], [N * N], [])

    def test_fused_has_one_kernel_and_no_score_buffer(self, causal):
        p = plan(attention(causal=causal), fuse_reduce=True)
        assert names(p)[-1] == f"r_{N}_{D}" and len(p.kernels) <= 2
        assert sum(sizes(p)) <= N * D

    @pytest.mark.parametrize("fuse_reduce", [None, False, True])
    def test_values(self, causal, fuse_reduce):
        assert not check([attention(33, causal).uop], [fuse_reduce])


def test_softmax_is_one_kernel():
    p = plan(array(N, N).softmax(-1))
    assert names(p) == [f"r_{N}_{N}"] and not p.temps


def test_a_causal_mask_never_materialises():
    for fuse_reduce in (None, False, True):
        plain, causal = (plan(attention(causal=c), fuse_reduce=fuse_reduce) for c in (False, True))
        assert causal.temps == plain.temps and len(causal.kernels) == len(plain.kernels)
        assert len(causal.inputs) == 3


def test_layer_norm_into_a_matmul_is_staged():
    x, w = array(512, 768), array(768, 768)
    p = plan(x.layer_norm(768) @ w)
    assert sizes(p)[0] == 512 * 768 and len(p.kernels) <= 4
    # recomputed, each of the 768 columns would pay for the row's mean and variance
    assert sum(count(k.linear).flops for k in p.kernels) < 1.1 * 2 * 512 * 768 * 768
    assert not any(n == 512 * 768 for _, n in plan(x.layer_norm(768) @ w, fuse_reduce=True).temps)


def test_stage_broadcast_compute_asks_for_factor_and_work():
    row = (array(256) * 0.5).exp()
    spread = row.reshape(1, 256).expand(256, 256) * array(256, 256)
    assert [u.op for u in toposort(stage_broadcast_compute([spread.uop])) if u.op is Ops.STAGE] == [Ops.STAGE]
    assert not any(u.op is Ops.STAGE for u in toposort(stage_broadcast_compute([spread.uop], factor=512)))
    small = array(8).exp().reshape(8, 1).expand(8, 8) * array(8, 8)
    assert not any(u.op is Ops.STAGE for u in toposort(stage_broadcast_compute([small.uop])))
    assert len(plan(spread).kernels) == 2 and len(plan(spread, fuse_reduce=True).kernels) == 1


def test_elementwise_consumers_join_a_matmul():
    p = plan((array(256, 128) @ array(128, 256)).relu() * 2.0 + array(256))
    assert names(p) == ["r_256_256"] and not p.temps


def test_a_value_used_twice_is_written_once():
    product = array(64, 64) @ array(64, 64)
    p = plan(product + 1.0, product * 2.0)
    assert len(p.kernels) == 3 and sizes(p) == [64 * 64]


def test_a_large_reduction_to_one_value_has_two_steps():
    p = plan(array(1).expand(1 << 24).sum(), Tensor(np.broadcast_to(np.float32(1), (1 << 24,))).max())
    assert len(p.kernels) == 4
    p = plan(Tensor(np.ones(1 << 24, np.int8)).cast("float32").sum())
    assert len(p.kernels) == 2 and sizes(p) == [256]
    assert sum(count(k.linear).flops for k in p.kernels) < 1.01 * 2**24


@pytest.mark.parametrize("size", [8 * SPLIT_PART, 8 * SPLIT_PART + 17, 1_000_003])
@pytest.mark.parametrize("op", ["sum", "max", "prod"])
def test_reductions_in_steps_are_right(size, op):
    x = Tensor(np.where(np.arange(size) % 1000 == 7, 3.0, 1.0).astype(np.float32))
    assert not check([getattr(x if op != "prod" else x.minimum(1.0), op)().uop])


def test_halves_in_steps_are_summed_in_float32():
    """Partial sums of halves once were halves: what they lost was more than one rounding of the result."""
    x = Tensor(np.full(1 << 19, 0.0625 + 2.0**-12, np.float16)).uop
    assert not check([UOp(Ops.REDUCE, (x,), ReduceArg(Ops.ADD, (0,)))])
    parts = [d for d, _ in make_plan([UOp(Ops.REDUCE, (x,), ReduceArg(Ops.ADD, (0,)))]).temps]
    assert parts == [dtypes.float32]


def test_stack_of_thousands_grows_linearly():
    def made(n):
        return plan(Tensor.stack([Tensor(np.full(8, k, np.float32)) * 2.0 for k in range(n)]))

    small, large = made(3000), made(6000)
    assert len(large.kernels) <= 2 * len(small.kernels) <= 6000 / 8
    # runs of equal parts are one piece of C
    assert len({k.source for k in large.kernels}) <= 3
    assert not large.temps


def test_stack_of_thousands_runs():
    rows = [Tensor(np.full(8, k, np.float32)) for k in range(6000)]
    (buffer,) = realize([(Tensor.stack(rows) + 0.0).uop])
    np.testing.assert_array_equal(buffer.realized.array.reshape(6000, 8)[:, 3], np.arange(6000))


def chain(steps: int) -> Tensor:
    x, a, b = (Tensor(np.full(64, v, np.float32)) for v in (1.0, 0.5, 0.25))
    for _ in range(steps):
        x = x * a + b
    return x


def test_chain_of_thousands_grows_linearly():
    small, large = plan(chain(2500)), plan(chain(5000))
    statements = [sum(len(k.linear.src) for k in p.kernels) for p in (small, large)]
    assert statements[1] <= 2.2 * statements[0] and statements[1] <= 10 * 5000
    assert len(large.kernels) <= 40
    assert len({k.source for k in large.kernels}) <= 4


def test_chain_of_thousands_runs():
    x = chain(5000)
    (expected,) = evaluate([x.uop])
    (buffer,) = realize([x.uop])
    np.testing.assert_allclose(buffer.realized.array, expected, rtol=1e-5)


def test_equal_kernels_are_compiled_once():
    w = array(512, 512)  # so wide that two layers do not become one kernel
    x = array(64, 512)
    for _ in range(6):
        x = (x @ w).relu()
    p = plan(x)
    assert len(p.kernels) >= 6
    assert len({k.source for k in p.kernels}) <= 3


def test_user_stages_are_kept():
    x = (array(64) + 1.0).contiguous() * 2.0
    assert names(plan(x)) == ["e_64", "e_64"]


def test_kernelize_stages_the_roots():
    root = sink((array(4) + 1.0).uop, array(3).uop)
    made = kernelize(root)
    assert [u.op for u in made.src] == [Ops.STAGE, Ops.BUFFER]


def test_sources_of_one_shape_compute_once_what_they_share():
    x, y = array(64, 32).exp(), array(64, 32).exp()
    low, high = x.minimum(y), x.maximum(y)
    p = plan(low.cat(high, low + high, high - low, low * 2, axis=1))
    assert len(p.kernels) == 1 and not p.temps
    once = count(plan(x).kernels[0].linear).flops
    assert count(p.kernels[0].linear).flops <= 2 * once + 8 * 64 * 32


def test_a_cat_that_is_reordered_is_written_in_place():
    parts = [(array(64, 32) + k).exp() for k in range(6)]
    arrays = [p.numpy() for p in parts]
    fresh = [(array(64, 32) + k).exp() for k in range(6)]
    beside, below = fresh[0].cat(*fresh[1:], axis=1), fresh[0].cat(*fresh[1:], axis=0)
    cases = (
        (beside.reshape(64, 6, 32).permute(1, 0, 2), np.stack(arrays)),
        (below.reshape(6, 64, 32), np.stack(arrays)),
        (below.T, np.concatenate(arrays).T),
        (fresh[0].stack(*fresh[1:]).reshape(384, 32), np.concatenate(arrays)),
    )
    for made, expected in cases:
        p = plan(made)
        assert len(p.kernels) == 1 and not p.temps
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-6)


def test_a_constant_that_is_a_result_is_written_down_for_itself_alone():
    x = array(4)
    p = plan(Tensor(2.0), x * 2.0)
    assert [k.name for k in p.kernels] == ["e_1", "e_4"]
    assert [len(call.buffers) for call in p.calls] == [1, 2]  # the product reads no constant
    for value, dtype in ((1.5, dtypes.float32), (True, dtypes.bool_), (-3, dtypes.int64), (0.5, dtypes.bfloat16)):
        (buffer,) = realize([UOp.const(value, dtype)])
        assert (buffer.dtype, buffer.shape) == (dtype, ())
        assert Tensor(buffer).item() == value
        assert Tensor(UOp.const(value, dtype)).contiguous().item() == value


@pytest.mark.parametrize("roots", [None, 3, "a", Tensor(1.0), [Tensor(1.0)], [None], UOp.const(1.0)], ids=repr)
def test_roots_are_a_list_of_graphs(roots):
    for name, call in (("make_plan", make_plan), ("realize", realize)):
        with pytest.raises(TypeError, match=f"{name} takes a list of tensor graphs, such as"):
            call(roots)


def test_what_takes_long_is_written_down_where_others_repeat_it():
    """A sine of a few positions that many rows use (4.5 times as fast as computing it for each), a division of
    integers; an exponential that a row uses twice stands in a tile, and is no kernel of its own."""

    def array(*shape, dtype=np.float32):
        return Tensor(np.ones(shape, dtype))

    assert len(make_plan([(array(72, 8).sin() * array(8, 72, 8)).uop]).kernels) == 2
    assert len(make_plan([(array(72, 8) + 1.0 + array(8, 72, 8)).uop]).kernels) == 1
    whole = array(64, 64, dtype=np.int32)
    assert len(make_plan([(whole // (whole + 1) + array(8, 64, 64, dtype=np.int32)).uop]).kernels) == 2
    silu = array(256, 512).silu()
    assert len(make_plan([(silu * 2.0 + silu.sum(1, keepdim=True)).uop]).kernels) == 1
