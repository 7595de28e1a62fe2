"""uopc.cost: what is asserted are directions and reasons, never a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fixed import MACHINE

from uopc import Tensor
from uopc.cost import Cost, Model
from uopc.ops import KernelInfo, Ops, ParamArg
from uopc.opt.schedule import schedule
from uopc.opt.sizes import candidates
from uopc.rangeify import Opts
from uopc.rangeify.nest import Nest, analyse
from uopc.uop import UOp, sink


def array(*shape: int, dtype: type = np.float32) -> Tensor:
    return Tensor(np.zeros(shape, dtype))


def root_of(t: Tensor) -> UOp:
    out = UOp(Ops.BUFFER, (), ParamArg(0, t.uop.dtype, t.uop.shape))
    return sink(UOp(Ops.STORE, (out, t.uop))).replace(arg=KernelInfo("k"))


def nest_of(t: Tensor) -> Nest:
    return analyse(root_of(t).src)


def cost(t: Tensor, **sizes) -> Cost:
    return Model(nest_of(t), MACHINE).cost(Opts(**sizes))


def product(m: int, k: int, n: int) -> Tensor:
    return array(m, k) @ array(k, n)


def tile(rows: int, columns: int, thread=(1, 0)) -> dict:
    return {"upcast": {0: rows, 1: columns}, "vector": 1, "lanes": 16, "thread": thread}


# -------------------------------------------------------------------------------------------------------- one cost


def test_the_busiest_part_takes_the_time():
    busy = Cost(operations=1e6, accesses=1e5)
    assert busy.seconds(MACHINE) < Cost(operations=1e6, accesses=9e5).seconds(MACHINE)
    assert Cost(accesses=1e6).seconds(MACHINE) == Cost(operations=1e6).seconds(MACHINE)
    waits = 1e6 / MACHINE.fma_latency
    assert Cost(1e6, 1e6, waits).seconds(MACHINE) < 2 * Cost(1e6).seconds(MACHINE), "they overlap"


def test_the_last_round_of_tasks_may_leave_cores_idle():
    even, odd, one = (Cost(1e8, tasks=n).seconds(MACHINE) for n in (2, 3, 1))
    assert even < odd < one
    assert odd / even == pytest.approx(4 / 3, rel=1e-3)


def test_bytes_from_further_away_take_longer():
    times = [Cost(moved={level: 1e9}, tasks=2).seconds(MACHINE) for level in ("L2", "L3", "memory")]
    assert times == sorted(times) and times[0] < times[2] / 2


def test_nothing_takes_the_time_of_a_launch():
    assert Cost().seconds(MACHINE) == MACHINE.launch < Cost(tasks=2).seconds(MACHINE) == MACHINE.launch_shared


# ----------------------------------------------------------------------------------------------------------- a nest


def test_a_product_takes_its_multiplications():
    """An FMA is one operation; loops and nothing else come on top."""
    found = cost(product(512, 256, 512), **tile(4, 64))
    assert 512 * 512 * 256 / 16 <= found.operations <= 1.1 * 512 * 512 * 256 / 16


def test_halves_are_widened_where_they_are_loaded():
    """A product of halves in float32 costs no more than one of float32."""
    x, y = (array(64, 64, dtype=np.float16).float() for _ in range(2))
    assert cost(x @ y, **tile(4, 64)).operations == cost(product(64, 64, 64), **tile(4, 64)).operations


def test_edges_are_computed_again():
    assert (
        cost(product(65, 64, 64), **tile(8, 64)).operations > 1.1 * cost(product(64, 64, 64), **tile(8, 64)).operations
    )


def test_a_taller_tile_loads_less():
    loads = [cost(product(240, 64, 256), **tile(rows, 64)).accesses for rows in (1, 2, 4, 6)]
    assert loads == sorted(loads, reverse=True)


def test_few_accumulators_wait():
    latency = MACHINE.fma * MACHINE.fma_latency
    found = cost(product(64, 64, 64), **tile(1, 16))
    assert found.waits * latency > found.operations
    found = cost(product(64, 64, 64), **tile(4, 64))
    assert found.waits * latency < found.operations


def test_what_lanes_do_not_find_side_by_side_is_dear():
    t = array(256, 256).T * 2
    across = cost(t, upcast={1: 16}, vector=1, lanes=16)
    along = cost(array(256, 256) * 2, upcast={1: 16}, vector=1, lanes=16)
    assert across.accesses > 20 * along.accesses


def test_what_a_cache_holds_comes_once():
    small = cost(product(64, 64, 64), **tile(4, 64))
    assert small.moved["L3"] == small.moved["memory"] == 0
    large = cost(product(2000, 1000, 2000), **tile(4, 64))
    assert large.moved["L2"] > large.moved["L3"] > 0
    rows_inside, columns_inside = (
        cost(product(4000, 100, 4000), **tile(4, 64, order)).moved["L3"] for order in ((1, 0), (0, 1))
    )
    assert rows_inside < columns_inside / 4, "64 columns stay in a cache while 4 rows at a time go by"


def test_one_array_read_twice_takes_its_place_once():
    x = array(64, 4096)
    once, twice = nest_of(x.sum(1)), nest_of((x * x.sum(1, keepdim=True)).sum(1))
    opts = Opts(unroll=4, reduce_lanes=16, thread=0)
    assert Model(twice, MACHINE).cost(opts).moved["L3"] == Model(once, MACHINE).cost(opts).moved["L3"]


def test_steps_of_a_power_of_two_crowd_a_cache():
    opts = Opts(**tile(4, 64))

    def far(n: int, crowded: bool) -> float:
        return Model(nest_of(product(n, n, n)), MACHINE).cost(opts, crowded).moved["L3"]

    assert far(512, True) > 5 * far(512, False)
    assert far(500, True) < 2 * far(500, False)


def test_lines_from_far_away_cost_where_no_prefetcher_foresees_them():
    columns, rows = array(4000, 4000).sum(0), array(4000, 4000).sum(1)
    assert cost(columns, upcast={0: 64}, vector=0, lanes=16, thread=0).jumps > 0
    assert cost(rows, unroll=4, reduce_lanes=16, thread=0).jumps == 0
    by_rows, by_columns = (cost(product(2000, 64, 2000), **tile(6, 64, order)).jumps for order in ((0, 1), (1, 0)))
    assert by_rows < by_columns, "results are written along rows, or a few of each at a time"
    assert cost(product(64, 64, 64), **tile(4, 64)).jumps == 0, "a cache has all"


def test_what_tiles_repeat_is_counted():
    """A value that rows share is computed for each tile of rows."""
    weights = array(64, 64).exp()
    found = [Model(nest_of(array(64, 64) @ weights), MACHINE).cost(Opts(**tile(rows, 64))) for rows in (2, 4)]
    assert found[0].again == pytest.approx(2 * found[1].again, rel=0.1)
    assert found[1].again > 0 == cost(product(64, 64, 64), **tile(4, 64)).again


def test_work_too_small_to_share_is_one_task():
    assert cost(product(8, 8, 64), **tile(4, 64)).tasks == 1
    assert cost(product(512, 64, 64), **tile(4, 64)).tasks > 2


# ------------------------------------------------------------------------------------------------------- the choice

KERNELS = {
    "product": product(100, 70, 90),
    "odd product": product(1023, 1025, 1027),
    "rows": array(300, 1000).sum(1),
    "columns": array(64, 100, 64).sum((0, 1)),
    "softmax": array(64, 500).softmax(-1),
    "vector": array(500, 512) @ array(512),
    "elementwise": array(300, 1) + array(300, 400),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_choice_takes_about_the_least_time(name):
    nest = nest_of(KERNELS[name])
    model = Model(nest, MACHINE)
    chosen = model.choose(candidates(nest, MACHINE))
    alike = [c for c in candidates(nest, MACHINE) if c.unroll == chosen.unroll]

    def seconds(c: Opts) -> float:
        return model.cost(c, crowded=False).seconds(MACHINE)

    assert chosen in alike and seconds(chosen) <= 1.1 * min(map(seconds, alike))
    assert all(model.least(c) <= seconds(c) for c in alike)


def test_of_equals_the_first_is_taken():
    nest = nest_of(product(512, 512, 512))
    model = Model(nest, MACHINE)
    assert model.choose(candidates(nest, MACHINE)) == next(candidates(nest, MACHINE))


@pytest.mark.parametrize("name", KERNELS)
def test_the_order_of_a_sum_does_not_depend_on_cores(name):
    """Bits are the same on one core and on many."""
    found = [schedule(root_of(KERNELS[name]), replace(MACHINE, cores=n)).arg.opts for n in (1, 2, 3, 8, 64)]
    orders = {(o.unroll, o.lanes if o.reduce_lanes > 1 else 0, o.reduce_lanes, o.reduce_block) for o in found}
    assert len(orders) == 1


def test_cores_share_a_sum_over_columns():
    """One register tile would leave all but one of them idle."""
    opts = schedule(root_of(KERNELS["columns"]), MACHINE).arg.opts
    assert 64 // opts.upcast_of(0) >= 2
