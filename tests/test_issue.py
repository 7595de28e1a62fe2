"""uopc.issue: what operations take is counted in what they are made of."""

from __future__ import annotations

import pytest
from fixed import MACHINE

from uopc.decompose import decompose, legal_after
from uopc.dtype import dtypes
from uopc.issue import issue_of, own_issue
from uopc.ops import ALU, TABLE, Flags, Issue, Ops, ParamArg
from uopc.uop import UOp, toposort


def load(k: int, dtype=dtypes.float32) -> UOp:
    return UOp(Ops.BUFFER, (), ParamArg(k, dtype, (1,))).index(0).load()


def node(op: Ops, dtype=dtypes.float32) -> UOp:
    return UOp(op, tuple(load(k, dtype) for k in range(TABLE[op].arity[0])))


def test_every_alu_op_has_a_price_and_no_other():
    priced = {op for op, row in TABLE.items() if row.issue != Issue()}
    assert priced == (ALU | {Ops.HREDUCE, Ops.SHUFFLE}) - {Ops.BITCAST}


@pytest.mark.parametrize("op", sorted(op for op in ALU if Flags.FLOAT_ONLY in TABLE[op].flags and op is not Ops.FMA))
def test_functions_take_at_least_the_nodes_that_they_are_made_of(op):
    """But for products, which are part of a sum, and BITCASTs."""
    if op is Ops.LDEXP:
        pytest.skip("decompose makes it, and takes it apart no further")
    made = [u for u in toposort(decompose(node(op))) if u.op in ALU]
    assert all(map(legal_after, made))
    bare = [u for u in made if u.op not in (Ops.MUL, Ops.BITCAST)]
    found = issue_of(node(op))
    assert sum(found) >= len(bare) * 0.9 and sum(found) <= 3 * len(made) + 8


def test_what_is_one_instruction_is_one():
    for op in (Ops.ADD, Ops.MUL, Ops.CMPLT, Ops.ABS):
        assert issue_of(node(op)) == Issue(1.0)
    assert issue_of(node(Ops.DIV)) == issue_of(node(Ops.RECIP)) == Issue(divisions=1.0)
    assert issue_of(load(0).maximum(0.0)) == Issue(1.0) != issue_of(node(Ops.MAX)), "a number is no NaN"
    assert issue_of(node(Ops.MAX, dtypes.int32)) == Issue(1.0)


def test_functions_are_ordered_as_their_times_are():
    """Measured on a machine with two FMAs a cycle: exp 15 slots, log 35, sin 128, pow 174, a division of integers
    186."""
    exp, log, sin, power = (MACHINE.slots(issue_of(node(op))) for op in (Ops.EXP, Ops.LOG, Ops.SIN, Ops.POW))
    assert 8 < exp < log < sin < power
    assert MACHINE.slots(issue_of(node(Ops.IDIV, dtypes.int32))) > sin


def test_doubles_call_libm_for_each_lane():
    double = issue_of(node(Ops.EXP, dtypes.float64))
    assert double.scalar > 0 and MACHINE.slots(double, 8) > 4 * MACHINE.slots(issue_of(node(Ops.EXP)))


def test_halves_are_computed_as_float32():
    for op in (Ops.ADD, Ops.EXP, Ops.MAX):
        assert issue_of(node(op, dtypes.float16)) == issue_of(node(op))


def test_by_a_number_integers_are_divided_sooner():
    x = load(0, dtypes.int32)
    assert sum(issue_of(x // 3)) < sum(issue_of(x // load(1, dtypes.int32)))
    assert issue_of(x << 2) == Issue(1.0) != issue_of(x << load(1, dtypes.int32))


def test_own_price_is_that_of_the_operator_alone():
    assert own_issue(node(Ops.MAX)) == TABLE[Ops.MAX].issue and own_issue(load(0).maximum(1.0)) == Issue(1.0)
