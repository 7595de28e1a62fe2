"""Attention in nine forms: what each one writes down, what it computes again, and how long it takes.

    python examples/flash_attention.py [N] [D]          N queries and keys (1024) of D elements (64), float32

The first three are one Tensor expression, compiled with different options.  The others are loop programs written by
hand, in the IR that uopc itself lowers to:

- a BUFFER is a parameter of the kernel, by slot; an ALLOC is memory that each thread has to itself;
- ``range_(end, id, axis)`` is a loop, and ``store.end(i)`` closes it.  The threads share a THREAD loop, a VECTOR loop
  becomes the lanes of a register, an UPCAST or UNROLL loop is copied out;
- ``x.after(i)`` is "the x inside loop i", ``x.after(store)`` "the x once that is written".

Online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022) needs one pass over the keys.  Its state
is m, the largest score so far; l, the sum of exp(score - m); and o, that sum with each term times its value.  When a
larger score m' comes, what was summed so far is rescaled by exp(m - m').  The result is o / l.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import uopc
from uopc import Tensor
from uopc.count import products
from uopc.pipeline import Plan, make_plan, to_linear
from uopc.rangeify import Ctx, Opts, lower
from uopc.render_c import render_c
from uopc.runtime import Program
from uopc.uop import AxisType, Ops, ParamArg, ReduceArg, UOp, dtypes, range_, sink

LANES = 16  # float32 values in a register of 64 bytes; where registers are narrower, the C compiler takes several
GROUP = 8  # vectors that one turn of a loop handles side by side
CHUNK = 256  # keys that a thread of flash-decoding takes

# ---- one expression, three plans -----------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of (N, D) arrays, as one would write it in NumPy."""
    return (q @ k.T * q.shape[-1] ** -0.5).softmax(-1) @ v


class FlashOpt:
    """Loop sizes for fused attention: a thread takes rows, and computes ``upcast`` elements of the output at a time.

    The maximum and the sum of a row do not depend on the output's column: they take one pass over q.k each.  The output
    takes one for each group of ``upcast`` columns, so with D = 64 and upcast 16 there are 6 passes.
    """

    def __init__(self, upcast: int) -> None:
        self.upcast = upcast

    def layout(self, roots: list[UOp]) -> list[UOp]:
        """Nothing is copied: rows of q and k lie one element after the other as they are."""
        return roots

    def lower(self, body: UOp, out: UOp) -> UOp:
        """The loops of a kernel that writes ``body`` to ``out``."""
        lanes = math.gcd(self.upcast, LANES)
        sizes = Opts(upcast={1: self.upcast}, vector=1, lanes=lanes, reduce_lanes=LANES, thread=0)
        return lower(body, out, Ctx(opts=sizes))


# ---- words of the loop IR ------------------------------------------------------------------------

State = tuple[UOp, UOp, UOp]
_ids = itertools.count()


def loop(end: UOp | int, axis: AxisType = AxisType.LOOP) -> UOp:
    """A new loop."""
    return range_(end, next(_ids), axis)


def buffer(slot: int, *shape: int) -> UOp:
    """A parameter of the kernel: a float32 array."""
    return UOp(Ops.BUFFER, (), ParamArg(slot, dtypes.float32, shape))


def alloc(slot: int, *shape: int) -> UOp:
    """Memory of one thread; without a shape, a variable."""
    return UOp(Ops.ALLOC, (), ParamArg(slot, dtypes.float32, shape))


def reduce(op: Ops, x: UOp, *loops: UOp) -> UOp:
    """``x`` summed (or the like) over loops, which end here."""
    return UOp(Ops.REDUCE, (x, *loops), ReduceArg(op, ())) if loops else x


def exp(x: UOp) -> UOp:
    """e to the power of ``x``."""
    return x.alu(Ops.EXP)


def along(size: int, lanes: int, copied: AxisType) -> tuple[UOp, list[UOp]]:
    """An index that runs from 0 to ``size``, and the loops that it is made of: over groups of vectors, over the vectors
    of a group, which are copied out, and over the lanes of a vector."""
    lanes = math.gcd(size, lanes)
    group = math.gcd(size // lanes, GROUP)
    loops = [loop(size // lanes // group), loop(group, copied), loop(lanes, AxisType.VECTOR)]
    loops = [r for r in loops if r.vmax > 0]
    at = UOp.const(0)
    for r in loops:
        at = at * (r.vmax + 1) + r
    return at, loops


# ---- attention by hand ---------------------------------------------------------------------------


def dot(d: int, a: Callable[[UOp], UOp], b: Callable[[UOp], UOp], lanes: int = LANES) -> UOp:
    """The dot product of two rows, given by their elements."""
    x, columns = along(d, lanes, AxisType.UNROLL)
    return reduce(Ops.ADD, a(x) * b(x), *columns)


def attend(d: int, rows: int, i: UOp, j: UOp, score: Callable[[UOp], UOp], value: Callable[[UOp], UOp]) -> State:
    """Online softmax of ``rows`` queries inside the loop ``i``, over the loop ``j`` of keys.  Vectors lie along the
    head.

    score: from the number of a row, its score with key j.  value: from a column, the element of value j.
    Returns (m, l, o) as they are after the loop over keys.
    """
    state = alloc(0, rows), alloc(1, rows), alloc(2, rows, d)

    m, l, o = (x.after(i) for x in state)
    r, block = along(rows, 1, AxisType.UPCAST)
    c, columns = along(d, LANES, AxisType.UPCAST)
    first = m.index(r).store(-math.inf), l.index(r).store(0.0), o.index(r, c).store(0.0).end(*columns)
    start = sink(*first).end(*block)

    m, l, o = (x.after(start, j) for x in state)
    r, block = along(rows, 1, AxisType.UPCAST)
    c, columns = along(d, LANES, AxisType.UPCAST)
    s = score(r)
    larger = m.index(r).load().maximum(s)
    rescale, weight = exp(m.index(r).load() - larger), exp(s - larger)
    step = (
        m.index(r).store(larger),
        l.index(r).store(l.index(r).load() * rescale + weight),
        o.index(r, c).store(o.index(r, c).load() * rescale + weight * value(c)).end(*columns),
    )
    m, l, o = (x.after(sink(*step).end(j, *block)) for x in state)
    return m, l, o


def few_rows(n: int, d: int, rows: int = 1, causal: str = "") -> UOp:
    """One query row a thread, or a block of them, for which each key and value is read once.

    causal: "where" computes every score and masks it; "loop" ends the loop over keys at the diagonal, for one row.
    """
    rows = min(rows, n)
    out, q, k, v = (buffer(slot, n, d) for slot in range(4))
    i = loop(-(-n // rows), AxisType.THREAD)
    first = (i * rows).minimum(n - rows)  # the last block begins early, and computes some rows again
    j = loop(first + 1 if causal == "loop" else n)

    def score(r: UOp) -> UOp:
        x = dot(d, lambda c: q.index(first + r, c).load(), lambda c: k.index(j, c).load()) * d**-0.5
        return (j <= first + r).where(x, -math.inf) if causal == "where" else x

    _, l, o = attend(d, rows, i, j, score, lambda c: v.index(j, c).load())
    r, block = along(rows, 1, AxisType.UPCAST)
    c, columns = along(d, LANES, AxisType.UPCAST)
    return sink(out.index(first + r, c).store(o.index(r, c).load() / l.index(r).load()).end(i, *block, *columns))


def rows_in_lanes(n: int, d: int, rows: int = LANES) -> UOp:
    """A block of query rows a thread, one in each lane of a vector.

    What is done for each row, its maximum, sum and rescaling, is then one operation for all of them.
    """
    rows = min(rows, 1 << n.bit_length() - 1)
    out, q, k, v = (buffer(slot, n, d) for slot in range(4))
    state = alloc(0, rows), alloc(1, rows), alloc(2, d, rows), alloc(3, d, rows)
    i = loop(-(-n // rows), AxisType.THREAD)
    first = (i * rows).minimum(n - rows)

    m, l, o, query = (x.after(i) for x in state)
    r, lane = along(rows, rows, AxisType.UPCAST)
    c = loop(d)
    head = sink(query.index(c, r).store(q.index(first + r, c).load() * d**-0.5), o.index(c, r).store(0.0)).end(c)
    start = sink(m.index(r).store(-math.inf), l.index(r).store(0.0), head).end(*lane)

    j = loop(n)
    m, l, o, query = (x.after(start, j) for x in state)
    r, lane = along(rows, rows, AxisType.UPCAST)
    score = dot(d, lambda x: query.index(x, r).load(), lambda x: k.index(j, x).load(), lanes=1)
    larger = m.index(r).load().maximum(score)
    rescale, weight = exp(m.index(r).load() - larger), exp(score - larger)
    c, columns = along(d, 1, AxisType.UPCAST)
    step = (
        m.index(r).store(larger),
        l.index(r).store(l.index(r).load() * rescale + weight),
        o.index(c, r).store(o.index(c, r).load() * rescale + weight * v.index(j, c).load()).end(*columns),
    )

    m, l, o, query = (x.after(sink(*step).end(j, *lane)) for x in state)
    r, lane = along(rows, rows, AxisType.UPCAST)
    c = loop(d)
    return sink(out.index(first + r, c).store(o.index(c, r).load() / l.index(r).load()).end(i, c, *lane))


def decode(n: int, d: int) -> tuple[UOp, UOp]:
    """One query: threads take chunks of keys and write down their states, which a second kernel merges.

    A state counts exp(m - M) times, where M is the largest m: what a step does with one key, the merge does with a
    chunk.
    """
    chunks = -(-n // CHUNK)
    states = m_out, l_out, o_out = buffer(0, chunks), buffer(1, chunks), buffer(2, chunks, d)
    q, k, v = buffer(3, d), buffer(4, n, d), buffer(5, n, d)
    t = loop(chunks, AxisType.THREAD)
    j = loop((n - t * CHUNK).minimum(CHUNK))
    key = t * CHUNK + j
    score = dot(d, lambda c: q.index(c).load(), lambda c: k.index(key, c).load()) * d**-0.5
    m, l, o = attend(d, 1, t, j, lambda _: score, lambda c: v.index(key, c).load())
    c, columns = along(d, LANES, AxisType.UPCAST)
    part = sink(
        m_out.index(t).store(m.index(0).load()),
        l_out.index(t).store(l.index(0).load()),
        o_out.index(t, c).store(o.index(c).load()).end(*columns),
    )

    out = buffer(0, d)
    m, l, o = (buffer(1 + slot, *x.shape) for slot, x in enumerate(states))
    t1, t2 = loop(chunks, AxisType.REDUCE), loop(chunks, AxisType.REDUCE)
    weight = exp(m.index(t2).load() - reduce(Ops.MAX, m.index(t1).load(), t1))
    c, columns = along(d, LANES, AxisType.UPCAST)
    summed = reduce(Ops.ADD, weight * o.index(t2, c).load(), t2)
    merged = out.index(c).store(summed / reduce(Ops.ADD, weight * l.index(t2).load(), t2))
    return sink(part.end(t)), sink(merged.end(*columns))


# ---- what it costs -------------------------------------------------------------------------------


@dataclass
class Row:
    """A line of the table.  passes: how often each product of q and k is computed.  written: shapes of temporaries."""

    form: str
    seconds: float
    flops: float
    error: float
    passes: float
    written: list[tuple[int, ...]]

    def __str__(self) -> str:
        kept = ", ".join(f"{'x'.join(map(str, s))} ({4 * math.prod(s):,} bytes)" for s in self.written) or "nothing"
        rate = self.flops / self.seconds * 1e-9
        return f"{self.form:38s} {self.seconds * 1e3:9.2f} {rate:9.1f} {self.error:9.1e} {self.passes:7.2f}  {kept}"


def fastest(run: Callable[[], object], budget: float = 0.25) -> float:
    """The seconds of the fastest run in a quarter of a second, the first not counted."""
    run()
    best, end = math.inf, time.perf_counter() + budget
    while best == math.inf or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> np.ndarray:
    """Attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def temporaries(plan: Plan) -> list[tuple[int, ...]]:
    """The shapes of what a plan writes down that is not its result."""
    results = len(plan.inputs) + len(plan.outs)
    written = {call.buffers[0][0]: call.kernel.linear for call in plan.calls if call.buffers[0][0] >= results}
    return [
        next(u.arg.shape for u in linear.src if u.op is Ops.BUFFER and u.arg.slot == 0) for linear in written.values()
    ]


def passes(plan: Plan, number: int) -> int:
    """How many multiplications have an element of input ``number`` for a factor, or of a rearranged copy of it."""
    copies, counted = {number}, 0
    for call in plan.calls:
        numbers = [buffer for buffer, _ in call.buffers]
        counted += products(call.kernel.linear, {slot for slot, b in enumerate(numbers) if b in copies})
        if copies.issuperset(numbers[1:]):
            copies.add(numbers[0])
    return counted


class Table:
    """Runs every form on the same arrays."""

    def __init__(self, n: int, d: int) -> None:
        self.n, self.d = n, d
        random = np.random.default_rng(0)
        self.q, self.k, self.v = (random.standard_normal((n, d), dtype=np.float32) for _ in range(3))
        self.expected = {causal: reference(self.q, self.k, self.v, causal) for causal in (False, True)}

    def row(self, form: str, seconds: float, out: np.ndarray, products: int, written: list[tuple[int, ...]]) -> Row:
        """A line; the scores that count are those of the queries in ``out``, up to the diagonal in causal forms."""
        causal, queries = "causal" in form, out.size // self.d
        expected = self.expected[causal][:queries]
        scores = self.n * (self.n + 1) // 2 if causal else self.n * queries
        error = float(np.abs(out.reshape(expected.shape) - expected).max())
        return Row(form, seconds, 4 * scores * self.d, error, products / (self.n * queries * self.d), written)

    def tensor(self, form: str, fuse_reduce: bool | None, opt: FlashOpt | None = None) -> Row:
        """The Tensor expression, compiled as the options say."""
        with uopc.options(fuse_reduce=fuse_reduce, opt=opt):
            graph = attention(*(Tensor(x) for x in (self.q, self.k, self.v)))
            plan = make_plan([graph.uop])
            out = graph.numpy()
            seconds = fastest(lambda: attention(*(Tensor(x) for x in (self.q, self.k, self.v))).numpy())
        # q, k and v are the inputs, in the order in which the graph mentions them
        return self.row(form, seconds, out, passes(plan, 1), temporaries(plan))

    def by_hand(self, form: str, program: UOp) -> Row:
        """A kernel with the parameters out, q, k, v."""
        linear = to_linear(program)
        kernel = Program(render_c(linear, "attention"), "attention")
        out = np.empty((self.n, self.d), np.float32)
        seconds = fastest(lambda: kernel(out, self.q, self.k, self.v))
        return self.row(form, seconds, out, products(linear, {2}), [])

    def decode(self, form: str) -> Row:
        """The two kernels of flash-decoding, for the first query."""
        linears = [to_linear(program) for program in decode(self.n, self.d)]
        chunks = -(-self.n // CHUNK)
        states = [np.empty(shape, np.float32) for shape in ((chunks,), (chunks,), (chunks, self.d))]
        out = np.empty(self.d, np.float32)
        partial = Program(render_c(linears[0], "decode"), "decode", outputs=(0, 1, 2))
        merge = Program(render_c(linears[1], "merge"), "merge")

        def run() -> None:
            partial(*states, self.q[0], self.k, self.v)
            merge(out, *states)

        return self.row(form, fastest(run), out, products(linears[0], {4}), [x.shape for x in states])

    def rows(self) -> Iterator[Row]:
        """All forms."""
        n, d = self.n, self.d
        yield self.tensor("Tensor, unfused (fuse_reduce=False)", False)
        yield self.tensor("Tensor, default", None)
        yield self.tensor("Tensor, fused, upcast 16", True, FlashOpt(16))
        yield self.by_hand("online softmax, a row a thread", few_rows(n, d))
        yield self.by_hand("online softmax, blocks of 4 rows", few_rows(n, d, rows=4))
        yield self.by_hand("online softmax, 16 rows in lanes", rows_in_lanes(n, d))
        yield self.by_hand("causal, by WHERE", few_rows(n, d, causal="where"))
        yield self.by_hand("causal, by the end of a loop", few_rows(n, d, causal="loop"))
        yield self.decode("flash-decoding, one query")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="attention in nine forms: time, error, and what is written down")
    parser.add_argument("n", metavar="N", type=int, nargs="?", default=1024, help="queries and keys (default: 1024)")
    parser.add_argument("d", metavar="D", type=int, nargs="?", default=64, help="elements of each (default: 64)")
    args = parser.parse_args()
    if args.n < 1 or args.d < 1:
        parser.error(f"N and D must be at least 1, and are {args.n} and {args.d}")
    print(f"attention of {args.n} queries and keys of {args.d} elements, float32")
    print(f"{'form':38s} {'ms':>9s} {'GFLOP/s':>9s} {'error':>9s} {'passes':>7s}  written down and read again")
    for row in Table(args.n, args.d).rows():
        print(row)
    print("error: the largest difference from float64.  passes: how often each product of q and k is computed.")


if __name__ == "__main__":
    main()
