"""Layers of models as they are written: what their plans write down, how often they compute it, and values.

The reference is the same graph in float64, node by node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from reference import evaluate

import uopc
from uopc import Tensor
from uopc.count import count
from uopc.ops import AxisType, Ops, ParamArg
from uopc.pipeline import Plan, make_plan
from uopc.render_c import render_c
from uopc.runtime.device import host
from uopc.runtime.plan import realize
from uopc.uop import UOp, range_, sink, toposort

B, N, H, D = 2, 72, 4, 16  # batch, positions, heads, and the width of one
WIDTH = H * D

Array = np.ndarray


def draw(*shape: int, seed: int = 0) -> Tensor:
    return Tensor((np.random.default_rng([seed, *shape]).standard_normal(shape) / 4).astype(np.float32))


def heads(x: Tensor, count: int = H) -> Tensor:
    return x.reshape(B, N, count, D).transpose(1, 2)


def project(x: Tensor, k: int, width: int = WIDTH) -> Tensor:
    return x @ draw(WIDTH, width, seed=k) + draw(width, seed=k)


def rms(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def rotated(x: Tensor) -> Tensor:
    """Rotary positions."""
    angles = Tensor(np.outer(np.arange(N), 1e4 ** (-np.arange(D // 2) / (D // 2))).astype(np.float32))
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return Tensor.cat(a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos(), axis=-1)


def joined(causal: bool, bias: bool) -> Tensor:
    """Queries, keys and values of one product."""
    y = draw(B, N, WIDTH) @ draw(WIDTH, 3 * WIDTH)
    qkv = (y + draw(3 * WIDTH) if bias else y).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
    return uopc.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=causal)


def separate(*change: Callable[[Tensor], Tensor], **options: bool) -> Tensor:
    """Queries, keys and values of a product each, and what is done to them."""
    x = draw(B, N, WIDTH)
    q, k, v = (f(heads(project(x, i))) for i, f in enumerate(change))
    return uopc.scaled_dot_product_attention(q, k, v, **options)


def same(x: Tensor) -> Tensor:
    return x


def shared_keys() -> Tensor:
    k = heads(project(draw(B, N, WIDTH), 1))
    return uopc.scaled_dot_product_attention(heads(project(draw(B, N, WIDTH), 0)), k, k)


def grouped() -> Tensor:
    x = draw(B, N, WIDTH)
    k, v = (heads(project(x, i, 2 * D), 2) for i in (1, 2))
    return uopc.scaled_dot_product_attention(heads(project(x, 0)), k, v, enable_gqa=True)


def cached() -> Tensor:
    """Keys and values of positions before these."""
    x = draw(B, N, WIDTH)
    k, v = (Tensor.cat(draw(B, H, 30, D, seed=i), heads(project(x, i)), axis=2) for i in (1, 2))
    return uopc.scaled_dot_product_attention(heads(project(x, 0)), k, v)


ATTENTION: dict[str, tuple[Callable[[], Tensor], int]] = {  # and how many kernels
    "one product": (lambda: joined(False, False), 2),
    "one product and a bias": (lambda: joined(False, True), 2),
    "one product and a bias, causal": (lambda: joined(True, True), 2),
    "separate products": (lambda: separate(same, same, same), 4),
    "an activation": (lambda: separate(same, same, lambda v: v.gelu()), 4),
    "normalized queries and keys": (lambda: separate(rms, rms, same, is_causal=True), 6),
    # with tables of sines and cosines; and each product is used twice, by halves that change places: in one kernel with
    # that, it would be computed twice
    "rotary positions": (lambda: separate(rotated, rotated, same, is_causal=True), 10),
    "keys that are the values": (shared_keys, 3),
    "groups of heads": (grouped, 4),
    "keys from before": (cached, 4),
}


def right(t: Tensor, tolerance: float = 2e-6) -> None:
    (want,) = evaluate([t.uop], exact=True)
    assert np.abs(t.numpy() - want).max() <= tolerance * np.abs(want).max()


def largest(plan: Plan) -> int:
    return max((n for _, n in plan.temps), default=0)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_in_a_model_writes_no_scores_down(name):
    """Neither where queries, keys and values are computed in the same plan: the cut is at what is small, the projected
    rows with all that is done to them, and never at the scores."""
    make, kernels = ATTENTION[name]
    plan = make_plan([make().uop])
    assert largest(plan) < B * H * N * N
    assert len(plan.kernels) == kernels, plan
    right(make())


def test_a_bias_is_added_where_the_product_is_written():
    plan = make_plan([joined(False, True).uop])
    assert [k.name for k in plan.kernels] == [f"r_{B}_{N}_{3 * WIDTH}", f"r_{B}_{H}_{N}_{D}"]
    assert plan.temps == [(uopc.dtypes.float32, B * N * 3 * WIDTH)]


def work(make: Callable[[], Tensor], **options: bool) -> float:
    return sum(count(k.linear).flops for k in make_plan([make().uop], **options).kernels)


ROWS, COLUMNS, DEPTH, LONG = 300, 2500, 24, 64


def products() -> tuple[Tensor, Tensor]:
    return draw(ROWS, LONG) @ draw(LONG, DEPTH), draw(COLUMNS, LONG) @ draw(LONG, DEPTH)


def pairs(f: Callable[[Tensor], Tensor], g: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    def make() -> Tensor:
        x, y = products()
        return f(x) @ g(y).T

    return make


def distances() -> Tensor:
    x, y = products()
    return x.square().sum(-1, keepdim=True) + y.square().sum(-1) - 2 * (x @ y.T)


def outer_sums() -> Tensor:
    x, y = products()
    return x.logsumexp(-1).reshape(ROWS, 1) + y.logsumexp(-1)


WIDE: dict[str, Callable[[], Tensor]] = {
    "similarities": pairs(unit, unit),
    "normalized": pairs(rms, rms),
    "softmax of both": pairs(lambda x: x.softmax(-1), lambda x: x.softmax(-1)),
    "softmax of one": pairs(lambda x: x.softmax(-1), same),
    "distances": distances,
    "sums of rows and columns": outer_sums,
    "a softmax of similarities": lambda: (pairs(unit, unit)() * 20).softmax(-1),
}


@pytest.mark.parametrize("name", WIDE)
def test_many_columns_are_no_row_of_a_block(name):
    """What a block would have to hold of all columns is written down instead, on no thread's stack; and what two sides
    are made of is computed once, not once for each row of the other."""
    make = WIDE[name]
    plan = make_plan([make().uop])
    for kernel in plan.kernels:
        kept = [u.dtype.itemsize * math.prod(u.arg.shape) for u in kernel.linear.src if u.op is Ops.ALLOC]
        assert sum(kept) <= host().stack // 4
    assert uopc.explain(make()).recompute <= 1.5
    if name != "sums of rows and columns":  # whose logarithms each of the results computes
        assert work(make) <= 1.1 * work(make, fuse_reduce=False)
    right(make(), 4e-6)


def attended(x: Tensor) -> Tensor:
    q, k, v = (heads(project(x, i)) for i in range(3))
    return uopc.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, WIDTH)


def two_layers() -> Tensor:
    """As most language models have them: norms without a mean, a gate, and what each layer adds."""
    x = draw(B, N, WIDTH)
    for k in range(2):
        x = x + attended(rms(x)) @ draw(WIDTH, WIDTH, seed=k)
        y = rms(x)
        gate, up = y @ draw(WIDTH, 2 * WIDTH, seed=k), y @ draw(WIDTH, 2 * WIDTH, seed=k + 10)
        x = x + (gate.silu() * up) @ draw(2 * WIDTH, WIDTH, seed=k)
    return rms(x)


AFTER: dict[str, Callable[[], Tensor]] = {
    "a norm": lambda: rms(attended(draw(B, N, WIDTH))),
    "the logarithm of a sum": lambda: attended(draw(B, N, WIDTH)).logsumexp(-1),
    "a softmax": lambda: attended(draw(B, N, WIDTH)).softmax(-1),
    "a norm and a product": lambda: unit(attended(draw(B, N, WIDTH))) @ draw(WIDTH, 2 * WIDTH),
    "a norm and three products": lambda: attended(rms(project(draw(B, N, WIDTH), 5))),
    "what is added to it": lambda: rms(draw(B, N, WIDTH) + attended(draw(B, N, WIDTH))) @ draw(WIDTH, WIDTH),
    "two layers": two_layers,
}


@pytest.mark.parametrize("name", AFTER)
def test_what_follows_attention_takes_no_part_in_its_blocks(name):
    """Nor is attention, or a projection, computed again for each of the products that use it."""
    make = AFTER[name]
    plan = make_plan([make().uop])
    assert largest(plan) < B * H * N * N
    assert uopc.explain(make()).recompute <= 1.5
    assert work(make) <= 1.1 * work(make, fuse_reduce=False)
    right(make(), 1e-5)


def test_a_softmax_that_is_the_result_computes_its_scores_once():
    """They would be computed for the sums, and again for the result."""

    def make() -> Tensor:
        return (draw(ROWS, LONG) @ draw(LONG, 256)).softmax(-1)

    assert not any(u.op is Ops.CASCADE for k in make_plan([make().uop]).kernels for u in toposort(k.root))
    assert work(make) <= 1.1 * work(make, fuse_reduce=False)
    right(make())


def test_cross_entropy_of_a_product_writes_no_logits_down():
    words = 5000
    targets = Tensor(np.arange(ROWS) * 7 % words)

    def loss() -> Tensor:
        logits = draw(ROWS, LONG) @ draw(LONG, words)
        return (logits.logsumexp(-1) - logits.gather(1, targets.reshape(ROWS, 1)).reshape(ROWS)).mean()

    assert largest(make_plan([loss().uop])) < ROWS * words
    right(loss())


@pytest.mark.parametrize("columns", [2048, 2049, 200_000])
def test_a_softmax_times_very_many_columns(columns):
    y = (draw(33, 16) @ draw(16, 24)).softmax(-1) @ draw(24, columns)
    right(y)
    assert realize([y.uop])[0].shape == (33, columns)


def test_a_kernel_that_needs_more_than_a_stack_is_refused():
    out = UOp(Ops.BUFFER, (), ParamArg(0, uopc.dtypes.float32, (4,)))
    cell = UOp(Ops.ALLOC, (), ParamArg(0, uopc.dtypes.float32, (1 << 21,)))
    i = range_(4, 0, AxisType.LOOP)
    filled = cell.after(cell.index(i * 1000).store(UOp.const(1.0, uopc.dtypes.float32)).end(i))
    j = range_(4, 1, AxisType.LOOP)
    program = sink(out.index(j).store(filled.after(j).index(j * 1000).load()).end(j))
    with pytest.raises(ValueError, match=r"big would keep 8388608 bytes in ALLOCs, and .* room for 4194304"):
        render_c(program, "big")


@pytest.mark.parametrize("scale", [1, 0.125])
@pytest.mark.parametrize("copied", [False, True])
def test_scores_that_are_a_result_beside_attention(scale, copied):
    """Whatever a cascade would compute in its blocks may be asked for by itself."""
    scores = draw(65, 8) @ draw(70, 8, seed=1).T
    kept = (scores if scale == 1 else scores * scale).contiguous() if copied else scores * scale
    out = (scores * scale).softmax(-1) @ draw(70, 12)
    for roots in ([kept, out], [out, kept], [out, kept.max(1), kept.sum(0)]):
        want = evaluate([t.uop for t in roots], exact=True)
        for got, wanted in zip(realize([t.uop for t in roots]), want):
            assert np.abs(Tensor(got).numpy() - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_equal_layers_share_their_kernels():
    """Whatever their number in the graph: attention of one layer is the kernel of all others."""
    x, weights = draw(B, N, WIDTH), [[draw(WIDTH, WIDTH, seed=4 * k + i) for i in range(4)] for k in range(3)]
    for q, k, v, out in weights:
        x = (
            x
            + uopc.scaled_dot_product_attention(heads(x @ q), heads(x @ k), heads(x @ v))
            .transpose(1, 2)
            .reshape(B, N, WIDTH)
            @ out
        )
    plan = make_plan([x.uop])
    attention = [k for k in plan.kernels if k.name == f"r_{B}_{H}_{N}_{D}"]
    assert len(attention) == 3 and all(k is attention[0] for k in attention)
    right(x)


def pooled(x: Tensor) -> Tensor:
    return x.layer_norm(x.shape[-1]).mean(1)


TWICE: dict[str, Callable[[int], Tensor]] = {
    "a norm, a mean and a product": lambda b: pooled(draw(b, 5, 16)) @ draw(16, 4),
    "a softmax and a sum": lambda b: draw(b, 5, 16).softmax(-1).sum(1) @ draw(16, 4),
    "a product, a maximum and a product": lambda b: (draw(b, 5, 8) @ draw(8, 16)).max(1) @ draw(16, 4),
    "a product, a mean along its last axis and a product": lambda b: (
        (draw(b, 8, 64) @ draw(64, 16)).mean(2) @ draw(8, 4)
    ),
    "a product with itself and a product": lambda b: draw(b, 5, 14) @ draw(b, 5, 14).mT @ draw(5, 16),
    "a product, turned, and a product": lambda b: (draw(b, 8, 16) @ draw(16, 4)).mT @ draw(8, 2),
    "a sum over two axes and a product": lambda b: (
        (draw(b, 3, 6, 5) * draw(b, 3, 1, 5, seed=1)).sum((1, 3)) @ draw(6, 7)
    ),
}


@pytest.mark.parametrize("batch", [1, 7, 8, 9, 33, 64])
@pytest.mark.parametrize("name", TWICE)
def test_what_a_batch_and_a_block_both_vary_is_no_operand_of_rows(name, batch):
    """A block packs, of an operand, one element of each axis that it does not run over: along axes that it does run
    over, and reduced axes that are not the last, it read beyond the tile (NaN, or a segmentation fault)."""
    right(TWICE[name](batch))


def test_a_plan_whose_tiles_are_too_large_is_cut_at_its_reductions(compile_for):
    """What blocks hold is bounded before there are blocks; where that was too little, the plan is another one."""
    compile_for(replace(host(), stack=8192))
    out = (draw(65, 48) @ draw(70, 48, seed=1).T).softmax(-1) @ draw(70, 100)
    plan = make_plan([out.uop])
    assert len(plan.kernels) > 1 and not any(u.op is Ops.CASCADE for k in plan.kernels for u in toposort(k.root))
    right(out)
