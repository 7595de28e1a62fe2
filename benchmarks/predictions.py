"""Predicted and measured times of the kernels of the benchmark suite: how far the roofline model can be trusted.

    python benchmarks/predictions.py                    a line a kernel, and how many are within a factor of 1.5
    python benchmarks/predictions.py --suite memory --json predictions.json

On a machine that others use too, ``--most 0.003`` leaves out kernels of which no run is undisturbed.  A prediction is
made from the program alone (``uopc.explain``); what it is compared with is the fastest of a few runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # cases and peers, as compare.py finds them

from cases import SUITES
from peers import Skip, with_uopc

import uopc
from uopc import Tensor
from uopc.inspect.report import duration
from uopc.inspect.table import table

LONGEST = 5e9  # operations of a case: what takes more is left out
NEAR = 1.5
LEAST = 2e-6  # seconds: what is shorter is a matter of the launch


def rows(suite: str) -> list[dict[str, object]]:
    """A row for each kernel of a suite's cases."""
    out: list[dict[str, object]] = []
    for case in SUITES[suite]:
        if case.flops > LONGEST or suite == "machine":
            continue
        try:
            fn = with_uopc.function(case)
        except Skip:
            continue
        fields = {} if getattr(case, "fused", True) else {"fuse_reduce": False}
        with uopc.options(**fields):
            tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in with_uopc.arguments(case, case.arrays())]
            report = uopc.explain(fn(*tensors), measure=True)
        for k in report.kernels:
            assert k.seconds is not None
            out.append({
                "suite": suite, "case": case.name, "kernel": k.name, "predicted": k.predicted.seconds,
                "measured": k.seconds, "ratio": k.seconds / k.predicted.seconds, "bound": k.predicted.bound,
            })  # fmt: skip
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="predicted and measured times of kernels")
    parser.add_argument("--suite", choices=sorted(SUITES), action="append", help="the suites (all)")
    parser.add_argument("--most", type=float, default=1.0, help="seconds: what takes longer is not counted (1)")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    chosen = parser.parse_args()
    found = [row for suite in chosen.suite or sorted(SUITES) for row in rows(suite)]
    cells = [
        [r["case"], r["kernel"], duration(r["predicted"]), r["bound"], duration(r["measured"]), f"{r['ratio']:.2f}"]  # type: ignore[arg-type]
        for r in found
    ]
    print(table("", ["case", "kernel", "predicted", "by", "measured", "ratio"], cells))  # type: ignore[arg-type]
    long = [r for r in found if r["measured"] >= LEAST and r["predicted"] <= chosen.most]  # type: ignore[operator]
    near = sum(1 / NEAR <= r["ratio"] <= NEAR for r in long)  # type: ignore[operator]
    print(f"{near} of {len(long)} kernels of at least {duration(LEAST)} are within a factor of {NEAR}")
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
