"""numexpr: fused elementwise expressions and their sums."""

from __future__ import annotations

import os

import numexpr
import numpy as np
from cases.base import Array, Case, empty

from peers import Prepared, Skip

VERSIONS = {"numexpr": numexpr.__version__}
EXPRESSIONS = {"axpy": "x * 2 + y", "exp_sum": "sum(exp(x * y + z))"}


def build(variant: str, case: Case, arrays: dict[str, Array]) -> Prepared:
    expression = EXPRESSIONS.get(getattr(case, "op", ""))
    if expression is None:
        raise Skip("not an elementwise expression of numexpr's functions")
    numexpr.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    out = empty(case.out_shape) if case.out_shape else None
    numexpr.validate(expression, local_dict=arrays)
    return Prepared(
        lambda: numexpr.evaluate(expression, local_dict=arrays, out=out), np.asarray, "numexpr.evaluate(out=)"
    )
