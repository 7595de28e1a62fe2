"""Register ranges: vectors of what is contiguous, lanes of what is not, copies that share loops."""

from __future__ import annotations

import pytest
from loop_ir import F32, AxisType, Ops, UOp, buffer, range_, reduce, sink

from uopc.opt.expand import expand
from uopc.uop import dtypes


def the(root: UOp, op: Ops) -> list[UOp]:
    """The nodes of one op."""
    return [u for u in root.toposort() if u.op is op]


def test_contiguous_memory_is_a_vector() -> None:
    i, lane = range_(4, 0), range_(8, 1, AxisType.VECTOR)
    at = i * 8 + lane
    out = expand(sink(buffer(0, 32).index(at).store(buffer(1, 32).index(at).load() * 2.0).end(i, lane)))
    (load,), (store,) = the(out, Ops.LOAD), the(out, Ops.STORE)
    assert load.dtype is F32.vec(8) and load.src[0].src[1].dtype is dtypes.index
    assert store.src[0].dtype is F32.vec(8)
    assert the(out, Ops.RANGE) == [i]


def test_other_memory_is_a_vector_of_addresses() -> None:
    lane = range_(8, 1, AxisType.VECTOR)
    for at, steps in ((lane * 3, 3), (7 - lane, -1)):
        out = expand(sink(buffer(0, 8).index(lane).store(buffer(1, 24).index(at).load()).end(lane)))
        addresses = the(out, Ops.LOAD)[0].src[0].src[1]
        assert addresses.dtype is dtypes.index.vec(8)
        assert any(c.arg == tuple(steps * k for k in range(8)) for c in the(addresses, Ops.CONST))


def test_what_does_not_depend_on_the_lane_stays_a_scalar() -> None:
    lane = range_(8, 1, AxisType.VECTOR)
    scale = buffer(1, 1).index(0).load()
    out = expand(sink(buffer(0, 8).index(lane).store(buffer(2, 8).index(lane).load() * scale).end(lane)))
    assert {u.dtype.count for u in the(out, Ops.LOAD)} == {1, 8}


def test_lanes_of_a_reduction_are_folded_behind_its_loop() -> None:
    k, lane = range_(6, 0), range_(8, 1, AxisType.VECTOR)
    out = expand(sink(buffer(0, 1).index(0).store(reduce(Ops.ADD, buffer(1, 48).index(k * 8 + lane).load(), k, lane))))
    (fold,), (loop,) = the(out, Ops.HREDUCE), the(out, Ops.REDUCE)
    assert fold.src == (loop,) and loop.dtype is F32.vec(8) and loop.src[1:] == (k,)


def test_copies_of_a_loop_inside_are_one_loop_of_copies() -> None:
    r, c = range_(3, 0, AxisType.UPCAST), range_(5, 1)
    body = buffer(0, 15).index(r * 5 + c).store(1.0).end(c)
    out = expand(sink(sink(body, buffer(1, 3).index(r).store(2.0)).end(r)))
    (inner,) = the(out, Ops.END)
    assert len(inner.src[0].src) == 3 and len(the(out, Ops.STORE)) == 6


def test_copies_of_a_loop_must_have_one_end() -> None:
    r = range_(3, 0, AxisType.UPCAST)
    c = range_(r + 1, 1)
    with pytest.raises(ValueError, match=r"RANGE.*id=1.*RANGE.*id=0"):
        expand(sink(buffer(0, 15).index(r * 5 + c).store(1.0).end(c).end(r)))


def test_a_program_without_register_ranges_is_left_alone() -> None:
    i = range_(4, 0)
    program = sink(buffer(0, 4).index(i).store(1.0).end(i))
    assert expand(program) is program
