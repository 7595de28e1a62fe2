"""Random graphs through the whole compiler, against the claims of ``bounds.py``: ``python tests/fuzz_graphs.py
--count 20000 --seed 0``.

Graphs are compiled in batches (one plan, so that units compile side by side), with ``fuse_reduce`` None, False and
True; then run again with 1, 2 and 3
threads, which must give the same bits.  What fails is reduced to the smallest subgraph that still fails, and printed
with its seed and C.

``--machine`` small compiles for a machine with caches of a few hundred bytes, and with every size that a pass waits
for turned down, so that small graphs are
split, blocked, packed and chunked as large ones are; narrow does so with vectors of 16 bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from unittest import mock

# Before anything reads it: graphs are verified between stages, and no plan of another machine is kept on disk.
os.environ.setdefault("UOPC_VERIFY", "1")

import numpy as np
from bounds import Claim, claims, compare
from graphs import build, seeded
from reference import evaluate

from uopc.dtype import bfloat16_to_float32, dtypes, float32_to_bfloat16
from uopc.ops import Ops
from uopc.options import Options
from uopc.pipeline import make_plan
from uopc.runtime import num_threads
from uopc.runtime.plan import realize
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp, format_graph, toposort

MODES = (None, False, True)
# Graphs a plan: fewer leave a processor idle at the end of each, more make a failure dear.
BATCH = 25
# One graph in so many has NaN, infinities, -0 and the ends of the integers among its values.
SPECIAL_EVERY = 4


# What a small machine's passes wait for; each is a number that only decides where time is spent.
SMALL_SIZES = {
    "uopc.split": {"SPLIT_ELEMENTS": 64, "SPLIT_PART": 16, "SPLIT_MAX_PARTS": 8},
    "uopc.kernelize": {
        "MAX_KERNEL_OPS": 12,
        "MAX_INSTANCES": 4,
        "BROADCAST_WORK": 16,
        "GROUP": 5,
    },
    "uopc.blockize.panels": {"LEAST_TILES": 2, "BLOCK_REDUCE": 7, "FEWER_ROWS": (5,)},
    "uopc.blockize.overlaps": {"LEAST_READINGS": 1, "LONGEST_CHAIN": 5, "BLOCK_ROWS": 5, "LEAST_BLOCKS": 2},
    "uopc.blockize.cascades": {"LEAST_ROWS": 2},
    "uopc.opt.layout": {"REUSE": 2, "LEAST_LANES": 2},
    "uopc.opt.sizes": {"SUM_BLOCK": 3, "MERGE_WORK": 1, "ENOUGH_TRIPS": 2},
    "uopc.opt.prefetch": {"LEAST_BYTES": 4, "CACHE_SHARE": 1.0, "LEAST_WORK": 1},
    "uopc.render_c.kernel": {"MAX_CHUNKS": 64, "MAX_DEPTH": 4},
}
MACHINES = ("own", "small", "narrow")


@contextmanager
def machine(name: str) -> Iterator[None]:
    """Compile for another machine inside the block; what is compiled there is forgotten."""
    pipeline, plans = import_module("uopc.pipeline"), import_module("uopc.runtime.plan")
    with ExitStack() as stack:
        if name != "own":
            own = pipeline.host()
            other = replace(own.with_caches(256, 512, 1024), jump=0.0, chunk=40)
            other = other.narrowed(16) if name == "narrow" else other
            stack.enter_context(mock.patch.object(pipeline, "host", lambda: other))
            stack.enter_context(mock.patch.object(pipeline, "_kernels", {}))
            stack.enter_context(mock.patch.object(plans, "_executables", {}))
            for module, sizes in SMALL_SIZES.items():
                for size, value in sizes.items():
                    stack.enter_context(mock.patch.object(import_module(module), size, value))
        yield


@dataclass(frozen=True)
class Failure:
    """A root whose answer is wrong (or whose plan raised), how, and under which option."""

    root: UOp
    fuse_reduce: bool | None
    text: str


@dataclass
class Tally:
    """How much was checked: elements, those about which something was claimed, and those claimed exactly."""

    elements: int = 0
    known: int = 0
    exact: int = 0

    def add(self, claim: Claim) -> None:
        self.elements += claim.e.size
        self.known += int(claim.known.sum())
        self.exact += int((claim.e == 0).sum())


def graph_of(seed: int) -> list[UOp]:
    """The roots of the graph of ``seed``."""
    return build(seeded(seed), special=seed % SPECIAL_EVERY == SPECIAL_EVERY - 1)


def answers(roots: Sequence[UOp], fuse_reduce: bool | None) -> list[np.ndarray]:
    """Compiled values of ``roots``, which do not remember them; bfloat16 as its bits."""
    buffers = realize(list(roots), Options(fuse_reduce=fuse_reduce))
    for r in roots:
        r.realized = None
    return [b.realized.array.reshape(r.shape) for b, r in zip(buffers, roots)]


def bits(root: UOp, answer: np.ndarray) -> bytes:
    """An answer as bytes, all NaNs alike: which of two NaNs an FMA passes on depends on registers, and tiles
    overlap."""
    wide = bfloat16_to_float32(answer) if root.dtype is dtypes.bfloat16 else answer
    return (np.where(np.isnan(wide), wide.dtype.type(np.nan), wide) if root.dtype.is_float else wide).tobytes()


def judge(root: UOp, claim: Claim, answer: np.ndarray) -> str | None:
    """What is wrong with an answer, or None."""
    return compare(claim, bfloat16_to_float32(answer) if root.dtype is dtypes.bfloat16 else answer, root.dtype)


def check(
    roots: Sequence[UOp],
    modes: Sequence[bool | None] = MODES,
    tally: Tally | None = None,
    threads: Sequence[int] = (1, 3, 2),
) -> list[Failure]:
    """What is wrong with the compiled values of ``roots``."""
    claimed = claims(roots)
    failures = []
    for claim in claimed if tally is not None else ():
        tally.add(claim)
    for fuse_reduce in modes:
        first = answers(roots, fuse_reduce)
        for root, claim, answer in zip(roots, claimed, first):
            wrong = judge(root, claim, answer)
            if wrong is not None:
                failures.append(Failure(root, fuse_reduce, wrong))
        for n in threads:
            with num_threads(n):
                again = answers(roots, fuse_reduce)
            failures += [
                Failure(r, fuse_reduce, f"{n} threads give other bits")
                for r, a, b in zip(roots, first, again)
                if bits(r, a) != bits(r, b)
            ]
    return failures


def failure_of(root: UOp, fuse_reduce: bool | None) -> Failure | None:
    """The failure of one root by itself; what a compiler raises is one too."""
    try:
        found = check([root], [fuse_reduce])
    except Exception as error:
        return Failure(root, fuse_reduce, f"{type(error).__name__}: {str(error)[:2000]}")
    return found[0] if found else None


def reduced(failure: Failure) -> Failure:
    """The smallest graph found that still fails: an early node as the root, and computed values in place of what
    leads to them."""
    for u in toposort(failure.root):
        if u.op not in (Ops.BUFFER, Ops.CONST):
            found = failure_of(u, failure.fuse_reduce)
            if found is not None:
                failure = found
                break
    for u in reversed(toposort(failure.root)[:-1]):
        if u.op in (Ops.BUFFER, Ops.CONST) or u not in toposort(failure.root):
            continue
        (value,) = evaluate([u])
        bits = float32_to_bfloat16(value) if u.dtype is dtypes.bfloat16 else value
        memory = new_buffer(u.dtype, u.shape, np.array(bits, u.dtype.numpy).reshape(-1))
        found = failure_of(failure.root.substitute({u: memory}), failure.fuse_reduce)
        if found is not None:
            failure = found
    return failure


def report(seed: int, failure: Failure) -> str:
    """All that is needed to look into a failure."""
    lines = [f"graph of seed {seed}, fuse_reduce={failure.fuse_reduce}: {failure.text}", format_graph(failure.root)]
    buffers = [u for u in toposort(failure.root) if u.op is Ops.BUFFER]
    lines += [f"{u.arg.slot}: {u.realized.array.tolist()}" for u in buffers if u.realized.array.size <= 40]
    try:
        plan = make_plan([failure.root], fuse_reduce=failure.fuse_reduce)
    except Exception as error:
        return "\n".join([*lines, f"no plan: {error!r}"[:3000]])
    path = f"/tmp/uopc-graph-{seed}.c"
    with open(path, "w") as file:
        file.write("\n".join(k.source for k in plan.kernels))
    return "\n".join([*lines, repr(plan), f"C: {path}"])


def run(seeds: Sequence[int], tally: Tally | None = None, most: int = 3) -> list[str]:
    """Reports of the failures among the graphs of ``seeds``, at most ``most`` of them."""
    graphs = {seed: graph_of(seed) for seed in seeds}
    owner = {r: seed for seed, roots in graphs.items() for r in roots}
    try:
        failures = check(list(owner), tally=tally)
    except Exception:
        failures = [f for r in owner for mode in MODES if (f := failure_of(r, mode)) is not None]
    reports: dict[int, str] = {}
    for f in failures:
        if owner[f.root] not in reports and len(reports) < most:
            reports[owner[f.root]] = report(owner[f.root], reduced(f))
    return list(reports.values())


def main() -> int:
    """Run ``--count`` graphs from ``--seed`` on; the exit code is 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=MACHINES, default="own")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    args = parser.parse_args()
    with machine(args.machine):
        return _many(args)


def _many(args: argparse.Namespace) -> int:
    start, failed, done, tally = time.perf_counter(), 0, 0, Tally()
    for first in range(args.seed, args.seed + args.count, BATCH):
        seeds = range(first, min(first + BATCH, args.seed + args.count))
        for text in run(seeds, tally):
            failed += 1
            print(text, flush=True)
        done += len(seeds)
        spent = time.perf_counter() - start
        known, exact = (n / max(tally.elements, 1) for n in (tally.known, tally.exact))
        share = f"{known:.1%} of elements claimed, {exact:.1%} exactly"
        print(
            f"seeds {first}..{seeds[-1]} done: {done} graphs, {failed} failures, {spent:.0f} s; {share}",
            file=sys.stderr,
            flush=True,
        )
        if spent > args.seconds:
            break
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
