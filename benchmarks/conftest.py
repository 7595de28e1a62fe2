"""Fixtures of the benchmarks: what is known about a plan goes beside its times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # cases and peers, as compare.py finds them

from cases import Case

from uopc import options
from uopc.runtime import get_num_threads
from uopc.runtime.compiler import clear_memory_cache

if TYPE_CHECKING:
    from uopc.inspect.fixture import UopcBenchmark

pytest_plugins = ["uopc.inspect.fixture"]


@pytest.fixture
def measure(uopc_benchmark: UopcBenchmark) -> Callable[[Case], None]:
    """Measures a case: compiles it, compares with the exact rows, records its plan, and times calls."""
    from peers import Skip, with_uopc

    def run(case: Case) -> None:
        arrays, benchmark = case.arrays(), uopc_benchmark.benchmark
        try:
            prepared = with_uopc.build("uopc", case, arrays)
        except Skip as skip:
            pytest.skip(str(skip))
        error = case.error(prepared.read(prepared.run()), case.exact(arrays, case.sampled_rows()))
        assert error < (1e-2 if case.dtype == "bfloat16" else 1e-4), f"{case.name}: error {error}"
        fields = {} if getattr(case, "fused", True) else {"fuse_reduce": False}
        with options(**fields):
            uopc_benchmark.record(with_uopc.function(case), *with_uopc.arguments(case, arrays))
        uopc_benchmark.time(prepared.run)
        if benchmark.stats is not None:  # --benchmark-disable
            best = benchmark.stats.stats.min
            benchmark.extra_info.update(gflops=case.flops / best * 1e-9, gbytes=case.moved / best * 1e-9)
        benchmark.extra_info.update(
            flops=case.flops,
            bytes=case.moved,
            error=error,
            how=prepared.how,
            threads=get_num_threads(),
            load=os.getloadavg()[0],
        )

    return run


@pytest.fixture
def no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel that is not in memory is compiled."""
    from uopc.options import environment

    monkeypatch.setenv("UOPC_CACHE", "0")
    environment.cache_clear()
    clear_memory_cache()
    yield
    monkeypatch.undo()
    environment.cache_clear()


@pytest.fixture
def rows() -> Callable[..., list[np.ndarray]]:
    """Arrays of standard normal float32."""
    rng = np.random.default_rng(0)
    return lambda n, *shape: [rng.standard_normal(shape, dtype=np.float32) for _ in range(n)]
