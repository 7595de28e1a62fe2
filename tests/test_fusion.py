"""fusion: a product stays with what keeps its tile and panels, and is written down below what does not.

Plans are counted for machines of two kinds, whatever machine runs this: kernels, temporaries, and whether each product
got panels.  Never seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from fixed import MACHINE, SAPPHIRE_RAPIDS
from tensors import same

from uopc import Tensor, pipeline
from uopc.blockize import blockize
from uopc.cascade import cascade
from uopc.fusion import fusion
from uopc.kernelize import decisions, kernelize
from uopc.ops import ALU, Level, Ops, Tile
from uopc.opt.layout import layout_pass
from uopc.opt.schedule import schedule
from uopc.outline import outline
from uopc.price import price
from uopc.target import Target
from uopc.uop import UOp, sink, toposort

MACHINES = {"Zen 4": MACHINE, "Sapphire Rapids": SAPPHIRE_RAPIDS}
CUT = {"rows": 768, "inner": 512, "columns": 768}


def array(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def cuts(*tensors: Tensor, machine: Target = MACHINE) -> UOp:
    """The graph after ``kernelize``, for a machine."""
    root = sink(*(UOp(Ops.STAGE, (t.uop,), Level.KERNEL) for t in tensors))
    return kernelize(cascade(root, None, machine), None, machine, lambda value: price(value, machine))


def kernels(*tensors: Tensor, machine: Target = MACHINE) -> list[UOp]:
    """Each kernel with its sizes and blocks."""
    staged = sink(*layout_pass(list(cuts(*tensors, machine=machine).src)))
    return [blockize(schedule(root, machine), machine) for root, _ in outline(staged).calls]


def written(*tensors: Tensor, machine: Target = MACHINE) -> list[tuple[int, ...]]:
    """The shapes of what is written down besides the results."""
    graph = cuts(*tensors, machine=machine)
    return [u.shape for u in toposort(graph) if u.op is Ops.STAGE and u not in graph.src]


def product() -> Tensor:
    return array(CUT["rows"], CUT["inner"]) @ array(CUT["inner"], CUT["columns"])


SQUARES = tuple(array(512, 512, seed=k) for k in range(4))

# What stands above or beside a product, and what is to be written down for it.
CONTENDED: dict[str, tuple[Callable[[], Tensor], list[tuple[int, ...]]]] = {
    "maximum of rows": (lambda: product().max(1), [(768, 768)]),
    "maximum of columns": (lambda: product().max(0), [(768, 768)]),
    "sum of rows": (lambda: product().relu().sum(1), [(768, 768)]),
    "padding": (lambda: (SQUARES[0] @ SQUARES[1]).pad(((1, 1), (1, 1))), [(512, 512)]),
    "another product": (lambda: SQUARES[0] @ SQUARES[1] + SQUARES[2] @ SQUARES[3], [(512, 512)]),
    "a gate": (lambda: (SQUARES[0] @ SQUARES[1]).silu() * (SQUARES[0] @ SQUARES[3]), [(512, 512)]),
    "a factor of rows": (
        lambda: (SQUARES[0] @ SQUARES[1]) * (SQUARES[0].square().mean(-1, keepdim=True) + 1).rsqrt(),
        [],
    ),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("name", CONTENDED)
def test_every_product_has_a_kernel_whose_result_it_is(name: str, machine: Target) -> None:
    """Under elementwise operations at most, and no other product beside it: there it can be blocked."""
    make, shapes = CONTENDED[name]
    large = [shape for shape in written(make(), machine=machine) if math.prod(shape) > 512]
    assert large == shapes
    counts = [(len(products(k)), len(at_place(k))) for k in kernels(make(), machine=machine)]
    assert sum(n for n, _ in counts) == 1 + (name in ("another product", "a gate"))
    assert all(of_all == of_place <= 1 for of_all, of_place in counts)


def products(kernel: UOp) -> list[UOp]:
    """The sums of products of matrices, in parts or not."""
    sums = [u for u in toposort(kernel) if u.op is Ops.REDUCE and math.prod(u.src[0].shape) > 1 << 26]
    return [u for u in sums if len(u.shape) == 2 or u.shape[:2] in ((512, 512), (768, 768))]


def at_place(kernel: UOp) -> list[UOp]:
    """Those that are computed element by element with the result."""
    found, stack = set[UOp](), [kernel.src[0].src[1]]
    while stack:
        u = stack.pop()
        found.add(u)
        whole = u.op in ALU or isinstance(u.arg, Tile) or (u.op is Ops.REDUCE and u.src[0].op is Ops.REDUCE)
        stack += u.src if whole else ()
    return [u for u in products(kernel) if u in found]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_reductions_of_scores_without_columns_write_them_down(machine: Target) -> None:
    """A cascade alone keeps its scores in tiles; what reduces them once more, outside of it, has no tile."""
    scores = array(1024, 128) @ array(1024, 128).T * 0.05
    p = scores.softmax(-1)
    others = [scores.logsumexp(-1) - 0.1 * scores.mean(-1), -(p * p.log()).sum(-1), scores.exp().sum()]
    assert all((1024, 1024) in written(t, machine=machine) for t in others)
    assert (1024, 1024) not in written(scores.logsumexp(-1), machine=machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_what_stays_in_one_kernel(machine: Target) -> None:
    q, k, v = (array(1024, 64, seed=i) for i in range(3))
    a, b, c = SQUARES[:3]
    assert not written((q @ k.T * 0.125).softmax(-1) @ v, machine=machine)
    assert not written((a @ b + c).relu(), machine=machine)
    assert not written((a @ b).T.flip(0), machine=machine)
    # a few rows need no panels, and share what each product reads
    assert not written((a[:4] @ b).silu() * (a[:4] @ c), machine=machine)


def test_a_flipped_product_has_panels() -> None:
    (kernel,) = kernels((array(512, 512) @ array(512, 512)).relu().flip(0))
    assert any(u.op is Ops.STAGE for u in toposort(kernel))


def test_a_dequantized_operand_is_computed_where_it_is_multiplied() -> None:
    weights = Tensor(np.ones((1024, 1024), np.int8))
    assert not written(array(16, 1024) @ (weights.float() * array(1024, 1)).T)


def test_equal_layers_are_priced_once() -> None:
    asked: list[UOp] = []

    def seconds(value: UOp) -> float:
        asked.append(value)
        return price(value, MACHINE)

    x = SQUARES[0]
    for k in range(3):
        x = (x @ SQUARES[k]).silu() * (x @ SQUARES[3])
    kernelize(sink(UOp(Ops.STAGE, (x.uop,), Level.KERNEL)), None, MACHINE, seconds)
    assert len(asked) >= 3 * len(set(asked)) > 0


def test_prices_are_asked_for_contended_kernels_only() -> None:
    x = SQUARES[0]
    for k in range(3):
        x = (x.layer_norm(512) @ SQUARES[k] + x).gelu()
    asked: list[UOp] = []
    kernelize(sink(UOp(Ops.STAGE, (x.uop,), Level.KERNEL)), None, MACHINE, lambda value: asked.append(value) or 1.0)
    assert not asked


def test_a_cut_that_gains_nothing_is_not_made() -> None:
    """Also where the price says so of every kernel: the search ends, with the cuts that it began with."""
    value = product().max(1).uop
    found, compared = fusion(sink(value), {value}, {value}, lambda _: 1.0)
    assert found == {value} and compared and not any(c.written for c in compared)


def test_a_comparison_is_what_explain_shows() -> None:
    (entry,) = decisions(
        sink(UOp(Ops.STAGE, (product().max(1).uop,), Level.KERNEL)), None, MACHINE, lambda value: price(value, MACHINE)
    )
    assert entry.written and entry.cut < entry.fused and "predicted" in entry.reason


def test_options_that_say_what_is_written_ask_for_no_price() -> None:
    assert pipeline.prices(pipeline.Settings(pipeline.Options(fuse_reduce=False), MACHINE)) is None
    assert pipeline.prices(pipeline.Settings(pipeline.Options(), MACHINE)) is not None


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_what_is_written_backwards_is_right(axes: tuple[int, ...]) -> None:
    for rows, inner, columns in ((70, 40, 65), (200, 100, 300), (33, 1, 17)):
        a, b = (Tensor(x.numpy().astype(np.float64)) for x in (array(rows, inner), array(inner, columns, seed=1)))
        same((a @ b).flip(axes) * 2.0, np.flip(a.numpy() @ b.numpy(), axes) * 2.0, rtol=1e-10)
        x = Tensor.cat(a * 2.0, a).flip(axes)
        same(x, np.flip(np.concatenate([a.numpy() * 2.0, a.numpy()]), axes))


SMALL: dict[str, Callable[[np.ndarray, np.ndarray], tuple[Tensor, np.ndarray]]] = {
    "maximum": lambda a, b: ((Tensor(a) @ Tensor(b)).max(1), (a @ b).max(1)),
    "padding": lambda a, b: ((Tensor(a) @ Tensor(b)).pad(((1, 2), (0, 1))), np.pad(a @ b, ((1, 2), (0, 1)))),
    "gate": lambda a, b: ((Tensor(a) @ Tensor(b)).relu() * (Tensor(a) @ Tensor(-b)), np.maximum(a @ b, 0) * -(a @ b)),
    "logarithm of a sum": lambda a, b: (
        (Tensor(a) @ Tensor(b)).logsumexp(-1) - (Tensor(a) @ Tensor(b)).mean(-1),
        np.log(np.exp(a @ b).sum(-1)) - (a @ b).mean(-1),
    ),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shape", [(150, 120, 170), (64, 64, 64), (5, 3, 2), (1, 1, 1)], ids=str)
def test_values(name: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(shape[:2]), rng.standard_normal(shape[1:])
    same(*SMALL[name](a, b), rtol=1e-10)
