"""Random expressions through the whole compiler, against the identities of ``identities.py``:
``python tests/fuzz_identities.py --count 5000 --seed 0``.

Expressions are asked about in batches (one plan, so that units compile side by side): each by itself under every
``fuse_reduce`` and ``batch_invariant``; then about some identities, in modes that are drawn, directly and in a captured
function; then about several at once.  All answers about one value must agree to the bit where no sum of floats is part
of it, equal ``stepwise`` where only correctly rounded operations are, and else lie within the bounds of ``bounds.py``.
What fails is reduced to the first part of the expression that still fails, and printed with its seed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

# Before anything reads it: graphs are verified between stages.
os.environ.setdefault("UOPC_VERIFY", "1")

import numpy as np
from bounds import claims, compare
from fuzz_graphs import MACHINES, machine
from graphs import seeded
from identities import (
    FACTORS,
    FLOATS,
    INTS,
    Draw,
    Expression,
    Identity,
    Verdict,
    alone,
    expression,
    identities,
    stepwise,
)
from reference import Array

import uopc
from uopc import Tensor
from uopc.dtype import DType, dtypes, to_dtype
from uopc.ops import Ops
from uopc.runtime.storage import new_buffer
from uopc.uop import UOp, format_graph, toposort

# Expressions a plan: fewer leave a processor idle at the end of each, more make a failure dear.
BATCH = 24
# Identities that each expression is asked about by themselves, modes for each, and how many at once.
EACH, MODES_EACH, AT_ONCE = 2, 2, 5
KINDS: tuple[DType, ...] = (dtypes.float32, dtypes.float16, dtypes.bfloat16) * 2 + (dtypes.float64, dtypes.int32)


@dataclass(frozen=True)
class Mode:
    """How a question is asked."""

    fuse_reduce: bool | None = None
    batch_invariant: bool = False
    captured: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())


PLAIN = tuple(Mode(*m) for m in product((None, False, True), (False, True)))
# How each expression is computed by itself.
BY_ITSELF = (Mode(), Mode(False), Mode(True), Mode(None, True))


@dataclass(frozen=True)
class Question:
    """Identities that are asked about one expression at once, each with an axis (or None) and a factor."""

    expression: Expression
    identities: tuple[Identity, ...]
    draws: tuple[tuple[int | None, float], ...]

    def __str__(self) -> str:
        return " + ".join(
            f"{i.__name__}(axis={axis}, c={factor:.6g})" for i, (axis, factor) in zip(self.identities, self.draws)
        )

    def verdicts(self, leaves: Sequence[UOp]) -> list[Verdict]:
        """The identities of the expression of ``leaves``, which stand in for its own."""
        e = self.expression
        names = dict(zip(e.leaves, leaves))
        x, twin = (Tensor._of(u.substitute(names)) for u in (e.root, e.twin))
        return [i(x, Draw(axis, factor, twin, e.dtype)) for i, (axis, factor) in zip(self.identities, self.draws)]


def question(e: Expression, asked: Sequence[Identity], draw: int = 0) -> Question:
    """With axes and factors of the expression's seed and ``draw``."""
    choose = random.Random(e.seed * 1000 + draw)
    axes = (None, len(e.root.shape) - 1, *range(len(e.root.shape)))
    factors = FACTORS if e.dtype.is_float else (3,)
    return Question(e, tuple(asked), tuple((choose.choice(axes), choose.choice(factors)) for _ in asked))


Answers = list[dict[str, Array]]


@dataclass(frozen=True)
class Failure:
    """A question whose answers are wrong (or whose plan raised), and how."""

    question: Question
    mode: Mode
    text: str


def started(questions: Sequence[Question], memory: Sequence[Sequence[Tensor]]) -> tuple[list[Verdict], list[Tensor]]:
    """The verdicts of all questions about the expressions of ``memory``, and all that they ask for."""
    verdicts = [v for q, leaves in zip(questions, memory) for v in q.verdicts([t.uop for t in leaves])]
    return verdicts, [t for v in verdicts for t in next(v).values()]


def ask(questions: Sequence[Question], mode: Mode) -> list[list[tuple[Verdict, dict[str, Array]]]]:
    """For each question its verdicts, and the answers that they wait for; all are computed in one plan."""
    # new nodes each time: what was computed once is remembered by its node
    memory = [
        [Tensor._of(new_buffer(b.dtype, b.shape, b.realized.array)) for b in q.expression.leaves] for q in questions
    ]
    verdicts = [q.verdicts([t.uop for t in leaves]) for q, leaves in zip(questions, memory)]
    asked = [[next(v) for v in each] for each in verdicts]
    with uopc.options(fuse_reduce=mode.fuse_reduce, batch_invariant=mode.batch_invariant):
        if mode.captured:
            computed = uopc.jit(lambda leaves: started(questions, leaves)[1])(memory)
        else:
            computed = [t for each in asked for a in each for t in a.values()]
            computed[0].realize(*computed[1:])
    values = iter(computed)
    return [
        [(v, {name: next(values).numpy() for name in a}) for v, a in zip(mine, each)]
        for mine, each in zip(verdicts, asked)
    ]


def verdict_of(verdict: Verdict, answers: dict[str, Array]) -> str | None:
    try:
        verdict.send(answers)
    except StopIteration as end:
        return end.value
    raise AssertionError("an identity asks once")


def bits(array: Array) -> bytes:
    """An answer as bytes, all NaNs alike and all zeros too: which of two zeros is the maximum nobody says."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array) + array.dtype.type(0)
    return array.tobytes()


# Answers that are made of the expression itself, without a sum.
SHARED = {"x", "max", "argmax", "min", "argmin"}


@dataclass
class Ledger:
    """What was answered about one expression: every name has one value."""

    expression: Expression
    seen: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def wrong(self, answers: dict[str, Array], how: str) -> str | None:
        """What contradicts the value, or an earlier answer."""
        text = self._value_is_wrong(answers["x"]) if "x" in answers else None
        for name in answers if self.expression.exact and text is None else ():
            if name.split()[0] in SHARED:
                before, by = self.seen.setdefault(name, (bits(answers[name]), how))
                if before != bits(answers[name]):
                    return f"{name} has other bits than by {by}"
        return text

    def _value_is_wrong(self, x: Array) -> str | None:
        e = self.expression
        if not e.known:
            (claim,) = claims([e.root])
            text = compare(claim, x, e.dtype)
            return text and f"x: {text}"
        expected = stepwise(e.root)
        if bits(x) == bits(expected):
            return None
        wrong = (x != expected) & ~(np.isnan(x) & np.isnan(expected))
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"x{list(at)} is {x[at]!r} instead of {expected[at]!r} ({int(wrong.sum())} of {wrong.size} elements)"


@dataclass
class Tally:
    """How much was asked, and of what."""

    asked: Counter[str] = field(default_factory=Counter)
    expressions: Counter[str] = field(default_factory=Counter)


def judge(questions: Sequence[Question], mode: Mode, ledgers: dict[Expression, Ledger]) -> list[Failure]:
    """What is wrong with the answers to ``questions``."""
    failures = []
    for q, asked in zip(questions, ask(questions, mode)):
        for verdict, answers in asked:
            how = f"{q}, {mode}"
            texts = [ledgers[q.expression].wrong(answers, how), verdict_of(verdict, answers)]
            failures += [Failure(q, mode, text) for text in texts if text is not None]
    return failures


def judge_each(questions: Sequence[Question], mode: Mode, ledgers: dict[Expression, Ledger]) -> list[Failure]:
    """The same; where a plan raises, each question by itself."""
    try:
        return judge(questions, mode, ledgers)
    except Exception as error:
        if len(questions) == 1:
            return [Failure(questions[0], mode, f"{type(error).__name__}: {str(error)[:2000]}")]
        return [f for q in questions for f in judge_each([q], mode, ledgers)]


def rounds(expressions: Sequence[Expression]) -> list[tuple[list[Question], list[Mode]]]:
    """What is asked about a batch, and in which modes."""
    choose = random.Random(expressions[0].seed)
    samples = {e: random.Random(e.seed).sample(identities(e.dtype)[1:], AT_ONCE) for e in expressions}
    asked = [([question(e, [alone]) for e in expressions], list(BY_ITSELF))]
    for k in range(EACH):
        modes = choose.sample(PLAIN, MODES_EACH)
        modes.append(replace(modes[0], captured=True))
        asked.append(([question(e, samples[e][k : k + 1], k) for e in expressions], modes))
    mode = choose.choice(PLAIN)
    asked.append(([question(e, samples[e], EACH) for e in expressions], [mode, replace(mode, captured=True)]))
    return asked


def check(expressions: Sequence[Expression], tally: Tally | None = None) -> list[Failure]:
    """What is wrong with the answers about ``expressions``, at most one failure for each identity of each."""
    ledgers = {e: Ledger(e) for e in expressions}
    failures: dict[tuple[Expression, str], Failure] = {}
    for questions, modes in rounds(expressions):
        for mode in modes:
            for f in judge_each(questions, mode, ledgers):
                failures.setdefault((f.question.expression, str(f.question)), f)
            if tally is not None:
                tally.asked.update(i.__name__ for q in questions for i in q.identities)
    if tally is not None:
        tally.expressions.update(e.dtype.name for e in expressions)
        tally.expressions.update("known" if e.known else "exact" if e.exact else "with sums" for e in expressions)
    return list(failures.values())


def reduced(failure: Failure) -> Failure:
    """The first part of the expression of which the same question, by itself, has a wrong answer."""
    q = failure.question
    for u in toposort(q.expression.root):
        if u.dtype is not q.expression.dtype or u.op is Ops.BUFFER or len(u.shape) == 0 or 0 in u.shape:
            continue
        e = replace(q.expression, root=u)
        for identity, (axis, factor) in zip(q.identities, q.draws):
            if axis is not None and axis >= len(u.shape):
                continue
            part = Question(e, (identity,), ((axis, factor),))
            ledger = Ledger(e)
            for mode in dict.fromkeys((*PLAIN, failure.mode)) if identity is alone else (failure.mode,):
                found = judge_each([part], mode, {e: ledger})
                if found:
                    return found[0]
    return failure


def report(failure: Failure, original: Failure) -> str:
    """All that is needed to look into a failure."""
    e, first = failure.question.expression, original.question.expression
    lines = [
        f"seed {first.seed} ({first.dtype.name}): {original.question}",
        f"  {original.mode}: {original.text}",
        f"  again: python tests/fuzz_identities.py --count 1 --seed {first.seed} --dtype {first.dtype.name}",
        f"  reduced to {failure.question}, {failure.mode}: {failure.text}",
        format_graph(e.root),
    ]
    small = [u for u in toposort(e.root) if u.op is Ops.BUFFER and u.realized.array.size <= 20]
    return "\n".join([*lines, *(f"{u.arg.slot}: {u.realized.array.tolist()}" for u in small)])


def expression_of(seed: int, dtype: DType | None = None) -> Expression:
    """The expression of ``seed``, of ``dtype`` or of the one whose turn it is."""
    return expression(seed, dtype or KINDS[seed % len(KINDS)], seeded(seed))


def run(
    seeds: Sequence[int], tally: Tally | None = None, dtype: DType | None = None, most: int = 3
) -> tuple[list[str], int]:
    """Reports of the failures among the expressions of ``seeds``, at most ``most`` of them, and how many there are."""
    failures = check([expression_of(seed, dtype) for seed in seeds], tally)
    first = {f.question.expression: f for f in reversed(failures)}
    return [report(reduced(f), f) for f in list(first.values())[:most]], len(first)


def main() -> int:
    """Ask about ``--count`` expressions from ``--seed`` on; the exit code is 1 if any identity broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=[d.name for d in (*FLOATS, *INTS)], help="all in turn by default")
    parser.add_argument("--machine", choices=MACHINES, default="own")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--most", type=int, default=3, help="reports of a batch")
    args = parser.parse_args()
    with machine(args.machine):
        return _many(args)


def _many(args: argparse.Namespace) -> int:
    start, failed, done, tally = time.perf_counter(), 0, 0, Tally()
    dtype = to_dtype(args.dtype) if args.dtype else None
    for first in range(args.seed, args.seed + args.count, BATCH):
        seeds = range(first, min(first + BATCH, args.seed + args.count))
        texts, count = run(seeds, tally, dtype, args.most)
        failed += count
        print(*texts, sep="\n\n", end="\n\n" if texts else "", flush=True)
        done += len(seeds)
        spent = time.perf_counter() - start
        print(
            f"seeds {first}..{seeds[-1]}: {done} expressions, {tally.asked.total()} questions, {failed} expressions "
            f"break an identity, {spent:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        if spent > args.seconds:
            break
    print(f"{done} expressions {dict(tally.expressions)}, asked {dict(tally.asked)}: {failed} break an identity")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
