"""fixture: ``uopc_benchmark`` for pytest, which times a function and records the facts of its plan beside the time.

In a conftest.py:

    pytest_plugins = ["uopc.inspect.fixture"]

    def test_loss(uopc_benchmark):
        uopc_benchmark(loss, x, target)  # kernels, FLOPs, bytes, temporaries, recompute: in extra_info["uopc"]

A structural regression (a kernel more, a value computed twice) is then seen by ``python -m uopc bench compare`` on
however noisy a machine.  Before and after each benchmark a reference workload is timed, whose work never changes
(extra_info["reference"]): a slower machine is told from slower code.  Needs pytest-benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from uopc.inspect.bench import FACTS, REFERENCE
from uopc.inspect.explain import explain
from uopc.inspect.probes import Probe, Probes
from uopc.jit import jit
from uopc.runtime import get_num_threads
from uopc.runtime.device import host

STEPS = 160_000  # of FMAs on all threads: a millisecond, which sleeping threads still join
RUNS = 20  # before, and as many after


@lru_cache(maxsize=8)
def _workload(threads: int) -> Probe:
    """FMAs from registers: what they take depends on the machine, and on who else uses it."""
    return Probes(threads, host()).fma(STEPS)


class UopcBenchmark:
    """What the fixture gives: called with a function of Tensors and its arguments, it times the captured function."""

    def __init__(self, benchmark: Any) -> None:
        self.benchmark = benchmark

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record the plan's facts and time ``uopc.jit(function)(*args, **kwargs)``.  Returns what that returns."""
        self.record(function, *args, **kwargs)
        captured = jit(function)
        captured(*args, **kwargs)  # compiled before the clock runs
        return self.time(captured, *args, **kwargs)

    def record(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Record the facts alone."""
        facts = explain(function, *args, **kwargs).facts()
        self.benchmark.extra_info[FACTS] = facts
        return facts

    def time(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Time any function, with the reference workload before and after it.  Returns what that returns."""
        probe = _workload(get_num_threads())
        before = [probe.seconds() for _ in range(RUNS)]
        result = self.benchmark(function, *args, **kwargs)
        self.benchmark.extra_info[REFERENCE] = before + [probe.seconds() for _ in range(RUNS)]
        return result


@pytest.fixture
def uopc_benchmark(benchmark: Any) -> UopcBenchmark:
    """Times a function of Tensors, and records the kernels, FLOPs, bytes, temporaries and recompute of its plan."""
    return UopcBenchmark(benchmark)
