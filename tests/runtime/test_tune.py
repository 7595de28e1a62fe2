"""Tuning: schedules are measured once, the best is kept, and nobody who does not tune sees it."""

import itertools
import json
import math

import numpy as np
import pytest

import uopc
from uopc import Tensor
from uopc.options import Options, environment
from uopc.pipeline import make_plan
from uopc.runtime import num_threads, tune
from uopc.runtime import plan as plans
from uopc.runtime.cache import TUNED
from uopc.runtime.compiler import disk_cache

WORK = """
import uopc
from uopc.runtime import tune
a, b = (np.random.default_rng(n).standard_normal((48, 48)).astype("f") for n in range(2))
def work(): return (uopc.Tensor(a) @ uopc.Tensor(b)).relu()
"""


@pytest.fixture(autouse=True)
def fresh(settings, monkeypatch):
    """Nothing is known in memory, and the cache on disk is empty."""
    settings(UOPC_TUNE=None)
    monkeypatch.setattr(tune, "_known", {})
    monkeypatch.setattr(plans, "_executables", {})
    return settings


def forget(monkeypatch):
    """As a new process would."""
    monkeypatch.setattr(tune, "_known", {})
    monkeypatch.setattr(plans, "_executables", {})


def product(n=48):
    a, b = (np.random.default_rng(k).standard_normal((n, n)).astype("f") for k in range(2))
    return Tensor(a) @ Tensor(b), a.astype(np.float64) @ b


def kernel_of(t):
    (kernel,) = make_plan([t.uop]).kernels
    return kernel


def fastest(k):
    """A race that the k-th wins, without a clock."""
    return lambda runs: [1.0 if n == k else 2.0 + n for n in range(len(runs))]


def nobody(runs):
    pytest.fail("schedules were measured again")


# --------------------------------------------------------------------------------------------------------- the race


class Clock:
    """Moves only when a runner runs."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def runner(self, name, seconds):
        times = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def run():
            self.log.append(name)
            self.now += next(times)

        return run


def test_the_fastest_turn_of_each_counts():
    clock = Clock()
    runs = [clock.runner("a", [9, 5, 3, 4]), clock.runner("b", [9, 2, 8, 8]), clock.runner("c", [1, 7, 7, 6, 2.5])]
    assert tune.race(runs, clock) == [3, 2, 2.5]
    assert clock.log[:9] == ["a", "b", "c"] * 3, "they take turns"


def test_a_race_ends():
    clock = Clock()
    tune.race([clock.runner("slow", [100.0]), clock.runner("slower", [101.0])], clock)
    assert clock.log.count("slow") == 1 + tune.LEAST_ROUNDS
    quick = Clock()
    tune.race([quick.runner("quick", [0.0])], quick)
    assert quick.log.count("quick") == 1 + tune.MOST_ROUNDS


def test_the_hopeless_are_not_run_again():
    clock = Clock()
    tune.race([clock.runner("fast", [1e-6]), clock.runner("hopeless", [1e-5])], clock)
    assert clock.log.count("hopeless") == 1 + tune.LEAST_ROUNDS < clock.log.count("fast")


# ------------------------------------------------------------------------------------------------------ the choice


@pytest.mark.parametrize("k", range(4))
def test_the_fastest_schedule_is_taken(k):
    t, _ = product()
    usual = kernel_of(t)
    kernel, found = tune.tune_kernel(usual.root, Options(tune=4), fastest(k))
    assert found is not None and found.best == k and len(found.trials) == 4
    assert (kernel is usual) == (k == 0), "the usual schedule is the first"
    assert len({t.name for t in found.trials}) == len({t.schedule for t in found.trials}) == 4
    assert all(math.isfinite(t.predicted) and t.predicted > 0 for t in found.trials)


def test_a_gain_within_noise_changes_nothing():
    t, _ = product()
    race = [1.0, 1.0 - tune.NOISE / 2, 1.0 - tune.NOISE / 3]
    kernel, found = tune.tune_kernel(kernel_of(t).root, Options(tune=3), lambda runs: race)
    assert found.best == 0 and kernel is kernel_of(t)


def test_there_are_no_more_trials_than_schedules():
    t = Tensor(np.ones(300, "f")) * 2
    _, found = tune.tune_kernel(kernel_of(t).root, Options(tune=1000), fastest(0))
    assert 2 <= len(found.trials) < 20


@pytest.mark.parametrize("n", [0, 1])
def test_one_schedule_is_no_choice(n):
    t, _ = product()
    kernel, found = tune.tune_kernel(kernel_of(t).root, Options(tune=n), nobody)
    assert found is None and kernel is kernel_of(t)


def test_where_a_rows_bits_depend_on_nothing_beside_it_the_usual_schedule_is_taken():
    t, _ = product()
    kernel, found = tune.tune_kernel(kernel_of(t).root, Options(tune=4, batch_invariant=True), nobody)
    assert found is None and kernel.source == kernel_of(t).source


def test_a_users_own_schedule_is_left_alone():
    class Own:
        def layout(self, roots):
            return roots

        def lower(self, body, out):
            return uopc.rangeify.lower(body, out, uopc.rangeify.Ctx())

    t, _ = product(8)
    own = Options(opt=Own(), tune=4)
    plan = make_plan([t.uop], opt=own.opt)
    assert tune.tuned(plan, own, nobody) == (plan, {})


@pytest.mark.parametrize("k", range(5))
def test_values_are_right_whatever_wins(k, monkeypatch):
    monkeypatch.setattr(tune, "race", fastest(k))
    t, expected = product(70)
    with uopc.options(tune=5):
        np.testing.assert_allclose(t.relu().numpy(), np.maximum(expected, 0), rtol=1e-4, atol=1e-4)
    (found,) = tune._known.values()
    assert found.best == k


def test_without_memory_for_a_measurement_the_usual_schedule_is_taken(monkeypatch):
    def refuse(root):
        raise MemoryError

    monkeypatch.setattr(tune, "_scratch", refuse)
    t, _ = product()
    kernel, found = tune.tune_kernel(kernel_of(t).root, Options(tune=4))
    assert found is None and kernel is kernel_of(t)


def test_scratch_arrays_have_a_kernels_shapes_and_harmless_values():
    index = Tensor(np.array([2, 0, 1]))
    kernel = kernel_of(Tensor(np.ones((3, 5), "f"))[index] * Tensor(np.ones((3, 5), np.float16)))
    arrays = tune._scratch(kernel.root)
    shapes = {u.arg.slot: u for u in kernel.root.toposort() if u.op is uopc.ops.Ops.BUFFER}
    assert [a.nbytes for a in arrays] == [
        math.prod(shapes[s].arg.shape) * shapes[s].dtype.itemsize for s in range(len(arrays))
    ]
    for slot, memory in enumerate(arrays):
        values = np.frombuffer(memory, shapes[slot].dtype.numpy)
        if shapes[slot].dtype.is_int:
            assert not values.any(), "an index of 0 is inside everything"
        else:
            assert ((values >= 0.5) & (values <= 1.5)).all()


# ------------------------------------------------------------------------------------------------------ what is kept


def test_what_was_found_is_kept_on_disk(monkeypatch):
    t, _ = product()
    root = kernel_of(t).root
    first, found = tune.tune_kernel(root, Options(tune=4), fastest(2))
    assert not found.kept
    forget(monkeypatch)
    second, again = tune.tune_kernel(root, Options(tune=4), nobody)
    assert again.kept and again.trials == found.trials and second.source == first.source


def test_fewer_are_not_measured_again_and_more_are(monkeypatch):
    t, _ = product()
    root = kernel_of(t).root
    tune.tune_kernel(root, Options(tune=4), fastest(2))
    forget(monkeypatch)
    _, fewer = tune.tune_kernel(root, Options(tune=3), nobody)
    assert len(fewer.trials) == 4
    _, more = tune.tune_kernel(root, Options(tune=6), fastest(5))
    assert len(more.trials) == 6 and more.best == 5


def test_other_threads_and_other_code_are_other_measurements(monkeypatch):
    t, _ = product()
    root = kernel_of(t).root
    keys = {tune._key(root, Options())}
    with num_threads(7):
        keys.add(tune._key(root, Options()))
    keys.add(tune._key(root, Options(fuse_reduce=False)))
    keys.add(tune._key(kernel_of(product(40)[0]).root, Options()))
    monkeypatch.setattr(tune, "identity", lambda: "other files")
    keys.add(tune._key(root, Options()))
    assert len(keys) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: b"no json",
        lambda kept: b"[]",
        lambda kept: json.dumps({**kept, "best": 99}).encode(),
        lambda kept: json.dumps({**kept, "trials": []}).encode(),
        lambda kept: json.dumps({**kept, "trials": [["x", "y", 1.0, 1.0]]}).encode(),
        lambda kept: json.dumps({k: v for k, v in kept.items() if k != "asked"}).encode(),
    ],
)
def test_a_record_that_makes_no_sense_is_measured_again(change, monkeypatch):
    t, _ = product()
    root = kernel_of(t).root
    tune.tune_kernel(root, Options(tune=3), fastest(1))
    key = tune._key(root, Options(tune=0))
    cache = disk_cache()
    cache.keep_note(key, change(json.loads(cache.note(key, TUNED))), TUNED)
    forget(monkeypatch)
    _, found = tune.tune_kernel(root, Options(tune=3), fastest(2))
    assert found.best == 2 and not found.kept


def test_a_damaged_file_is_measured_again(monkeypatch, tmp_path):
    t, _ = product()
    root = kernel_of(t).root
    tune.tune_kernel(root, Options(tune=3), fastest(1))
    (file,) = (tmp_path / "cache" / "kernels").glob("*" + TUNED)
    file.write_bytes(file.read_bytes()[:-7])
    forget(monkeypatch)
    _, found = tune.tune_kernel(root, Options(tune=3), fastest(2))
    assert found.best == 2


def test_without_a_cache_on_disk_it_is_known_in_memory(fresh):
    fresh(UOPC_CACHE="0")
    t, _ = product()
    root = kernel_of(t).root
    tune.tune_kernel(root, Options(tune=3), fastest(1))
    _, found = tune.tune_kernel(root, Options(tune=3), nobody)
    assert found.best == 1


# ------------------------------------------------------------------------------------------------------- who sees it


def test_a_second_process_measures_nothing(python):
    say = "print(work().numpy().tobytes().hex())"
    choose = "tune.race = lambda runs: [2.0 if k != 2 else 1.0 for k in range(len(runs))]\n"
    fail = "tune.race = None\n"  # a call of it is a TypeError
    first = python(WORK + choose + say, UOPC_TUNE=4)
    assert first == python(WORK + fail + say, UOPC_TUNE=4)
    # with the record of the plan out of use, the schedule is looked up
    seen = "from uopc.inspect import explain\nprint(explain.explain(work()).kernels[0].tuning)"
    assert "4 schedules, kept" in python(WORK + fail + seen, UOPC_TUNE=4)


def test_who_does_not_tune_reads_nothing(monkeypatch):
    t, _ = product()
    usual = kernel_of(t)
    tune.tune_kernel(usual.root, Options(tune=4), fastest(3))
    monkeypatch.setattr(tune, "tune_kernel", nobody)
    monkeypatch.setattr(tune, "tuned", nobody)
    assert kernel_of(t) is usual
    with uopc.options(tune=4):
        assert kernel_of(t) is usual, "make_plan gives the usual schedules"
    np.testing.assert_allclose(t.numpy(), product()[1], rtol=1e-4, atol=1e-4)


def test_plans_of_other_thread_counts_are_other_plans(monkeypatch):
    seen = []

    def note(plan, options, measure=None):
        seen.append(options.tune)
        return plan, {}

    monkeypatch.setattr(tune, "tuned", note)
    for threads in (1, 2, 1):
        with uopc.options(tune=3), num_threads(threads):
            product(24)[0].numpy()
    assert seen == [3, 3]


def test_the_environment_sets_the_default(fresh):
    assert Options().tune == 0
    fresh(UOPC_TUNE="6")
    assert environment().tune == Options().tune == 6
    fresh(UOPC_TUNE="many")
    with pytest.raises(ValueError, match="UOPC_TUNE='many' is not an integer"):
        Options()


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (True, TypeError), ("3", TypeError), (2.0, TypeError)])
def test_other_values_are_refused_by_name(value, error):
    with pytest.raises(error, match="tune="), uopc.options(tune=value):
        pass
