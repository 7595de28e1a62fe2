"""Nodes made and rewritten a second: the compiled core, the same in plain Python, and tinygrad where it is installed.

The work is 20,000 index expressions of the kind that reshapes make, ``((i*N + j) // N) % M + (i*N + j) % N * 1 + 0``,
built through Python operators and rewritten by equal rules, declared as patterns where the library has patterns.  The
built-in simplifiers, which do more, are beside them.  Run with

    pytest benchmarks/test_core.py

The last lines are nodes a second (of the graph before the rewrite) and how many times the others' they are; those of
"build and rewrite" go through both, one after the other.
"""

from __future__ import annotations

import gc
import importlib.util
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

EXPRESSIONS = 20_000
ROUNDS = 5


def build(core: Any) -> Any:
    """The expressions, under one root."""
    out = []
    for k in range(EXPRESSIONS):
        n, m = 3 + k % 61, 2 + k % 40
        flat = core.range(m, 2 * k) * n + core.range(n, 2 * k + 1)
        out.append(((flat // n) % m) + ((flat % n) * 1) + 0)
    return core.sink(out)


# ---- uopc -------------------------------------------------------------------------------------


def uopc_core() -> Any:
    from uopc._hot.simplify import simplify
    from uopc.uop import Ops, Pattern, PatternMatcher, UOp, graph_rewrite, range_, sink

    x, y, c, d = Pattern(name="x"), Pattern(name="y"), Pattern(Ops.CONST, name="c"), Pattern(Ops.CONST, name="d")
    flat = Pattern(Ops.ADD, (Pattern(Ops.MUL, (x, c)), y))
    const = UOp.const
    rules = PatternMatcher(
        [
            (Pattern(Ops.ADD, (x, Pattern(Ops.CONST, arg=0))), lambda x: x),
            (Pattern(Ops.ADD, (c, d)), lambda c, d: const(c.arg + d.arg)),
            (Pattern(Ops.MUL, (x, Pattern(Ops.CONST, arg=1))), lambda x: x),
            (Pattern(Ops.MUL, (x, Pattern(Ops.CONST, arg=0))), lambda x: const(0)),
            (Pattern(Ops.MUL, (c, d)), lambda c, d: const(c.arg * d.arg)),
            (Pattern(Ops.IDIV, (c, d)), lambda c, d: const(c.arg // d.arg)),
            (Pattern(Ops.IDIV, (flat, c)), lambda x, y, c: x if y.vmin >= 0 and y.vmax < c.arg else None),
            (Pattern(Ops.IDIV, (x, c)), lambda x, c: const(0) if x.vmin >= 0 and x.vmax < c.arg else None),
            (Pattern(Ops.MOD, (flat, c)), lambda x, y, c: y if y.vmin >= 0 and y.vmax < c.arg else None),
            (Pattern(Ops.MOD, (x, c)), lambda x, c: x if x.vmin >= 0 and x.vmax < c.arg else None),
        ]
    )
    return SimpleNamespace(
        range=range_,
        sink=lambda roots: sink(*roots),
        rewrite=lambda root: graph_rewrite(root, rules),
        simplify=simplify,
        count=lambda root: len(root.toposort()),
        first=lambda root: root.src[5],
    )


# ---- plain Python: what one would write first -------------------------------------------------

CONST, RANGE, ADD, MUL, IDIV, MOD, SINK = range(7)


class Node:
    """Hash-consed through a weak table, with bounds that are found when they are asked for."""

    __slots__ = ("__weakref__", "_bounds", "arg", "dtype", "op", "src")
    table: ClassVar[weakref.WeakValueDictionary[tuple, Node]] = weakref.WeakValueDictionary()

    def __new__(cls, op: int, src: tuple = (), arg: Any = None, dtype: str = "index") -> Node:
        key = (op, src, arg, dtype)
        found = cls.table.get(key)
        if found is None:
            found = object.__new__(cls)
            found.op, found.src, found.arg, found.dtype, found._bounds = op, src, arg, dtype, None
            cls.table[key] = found
        return found

    def __add__(self, other: Node | int) -> Node:
        return Node(ADD, (self, operand(other)))

    def __mul__(self, other: Node | int) -> Node:
        return Node(MUL, (self, operand(other)))

    def __floordiv__(self, other: Node | int) -> Node:
        return Node(IDIV, (self, operand(other)))

    def __mod__(self, other: Node | int) -> Node:
        return Node(MOD, (self, operand(other)))

    @property
    def bounds(self) -> tuple[int, int]:
        if self._bounds is None:
            self._bounds = self._find_bounds()
        return self._bounds

    def _find_bounds(self) -> tuple[int, int]:
        if self.op == CONST:
            return self.arg, self.arg
        if self.op == RANGE:
            return 0, self.src[0].bounds[1] - 1
        (a, b), (c, d) = self.src[0].bounds, self.src[1].bounds
        if self.op == ADD:
            return a + c, b + d
        if self.op == MUL:
            products = (a * c, a * d, b * c, b * d)
            return min(products), max(products)
        if self.op == IDIV and c == d > 0:
            return a // c, b // c
        if self.op == MOD and c == d > 0:
            return 0, min(c - 1, b) if a >= 0 else c - 1
        return -(1 << 63), 1 << 63


def operand(value: Node | int) -> Node:
    return value if isinstance(value, Node) else Node(CONST, (), value)


def add_rule(u: Node) -> Node | None:
    a, b = u.src
    if b.op != CONST:
        return None
    return a if b.arg == 0 else operand(a.arg + b.arg) if a.op == CONST else None


def mul_rule(u: Node) -> Node | None:
    a, b = u.src
    if b.op != CONST:
        return None
    return a if b.arg == 1 else b if b.arg == 0 else operand(a.arg * b.arg) if a.op == CONST else None


def is_flat(u: Node, c: Node) -> bool:
    """Whether u is x*c + y with 0 <= y < c."""
    if u.op != ADD or u.src[0].op != MUL or u.src[0].src[1] is not c:
        return False
    low, high = u.src[1].bounds
    return low >= 0 and high < c.arg


def idiv_rule(u: Node) -> Node | None:
    a, b = u.src
    if b.op != CONST:
        return None
    if a.op == CONST:
        return operand(a.arg // b.arg)
    if is_flat(a, b):
        return a.src[0].src[0]
    low, high = a.bounds
    return operand(0) if low >= 0 and high < b.arg else None


def mod_rule(u: Node) -> Node | None:
    a, b = u.src
    if b.op != CONST:
        return None
    if is_flat(a, b):
        return a.src[1]
    low, high = a.bounds
    return a if low >= 0 and high < b.arg else None


RULES: dict[int, list[Callable[[Node], Node | None]]] = {
    ADD: [add_rule],
    MUL: [mul_rule],
    IDIV: [idiv_rule],
    MOD: [mod_rule],
}


def plain_rewrite(root: Node) -> Node:
    """To a fixed point, sources first, without recursion on the graph that is there."""
    done: dict[Node, Node] = {}
    waits: dict[Node, Node] = {}
    stack = [root]
    while stack:
        u = stack[-1]
        if u in done:
            stack.pop()
            continue
        if u in waits:
            done[u] = done[waits[u]]
            stack.pop()
            continue
        todo = [s for s in u.src if s not in done]
        if todo:
            stack += reversed(todo)
            continue
        src = tuple([done[s] for s in u.src])
        w = u if src == u.src else Node(u.op, src, u.arg, u.dtype)
        new = next((r for r in (rule(w) for rule in RULES.get(w.op, ())) if r is not None), w)
        if new is w:
            done[u] = done[w] = w
            stack.pop()
        else:
            waits[u] = new
            stack.append(new)
    return done[root]


def plain_toposort(root: Node) -> list[Node]:
    seen: set[Node] = set()
    out, stack = [], [(root, False)]
    while stack:
        u, ready = stack.pop()
        if ready:
            out.append(u)
        elif u not in seen:
            seen.add(u)
            stack.append((u, True))
            stack += [(s, False) for s in reversed(u.src) if s not in seen]
    return out


def plain_core() -> Any:
    return SimpleNamespace(
        range=lambda end, id: Node(RANGE, (operand(end),), id),
        sink=lambda roots: Node(SINK, tuple(roots), None, "void"),
        rewrite=plain_rewrite,
        count=lambda root: len(plain_toposort(root)),
        first=lambda root: root.src[5],
    )


# ---- tinygrad ---------------------------------------------------------------------------------


def tinygrad_core() -> Any:
    from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
    from tinygrad.uop.symbolic import symbolic

    x, y, c, d = UPat.var("x"), UPat.var("y"), UPat.cvar("c"), UPat.cvar("d")
    flat = UOp.range(5, 0) * 3 + 1
    div, mod = (flat // 3).op, (flat % 3).op  # named differently from version to version
    rules = PatternMatcher(
        [
            (UPat(Ops.ADD, src=(x, UPat(Ops.CONST, arg=0))), lambda x: x),
            (UPat(Ops.ADD, src=(c, d)), lambda c, d: c.const_like(c.arg + d.arg)),
            (UPat(Ops.MUL, src=(x, UPat(Ops.CONST, arg=1))), lambda x: x),
            (UPat(Ops.MUL, src=(x, UPat(Ops.CONST, arg=0))), lambda x: x.const_like(0)),
            (UPat(Ops.MUL, src=(c, d)), lambda c, d: c.const_like(c.arg * d.arg)),
            (UPat(div, src=(c, d)), lambda c, d: c.const_like(c.arg // d.arg)),
            (UPat(div, src=(x * c + y, c)), lambda x, y, c: x if y.vmin >= 0 and y.vmax < c.arg else None),
            (UPat(div, src=(x, c)), lambda x, c: x.const_like(0) if x.vmin >= 0 and x.vmax < c.arg else None),
            (UPat(mod, src=(x * c + y, c)), lambda x, y, c: y if y.vmin >= 0 and y.vmax < c.arg else None),
            (UPat(mod, src=(x, c)), lambda x, c: x if x.vmin >= 0 and x.vmax < c.arg else None),
        ]
    )
    return SimpleNamespace(
        range=lambda end, id: UOp.range(end, id),
        sink=lambda roots: UOp.sink(*roots),
        rewrite=lambda root: graph_rewrite(root, rules),
        simplify=lambda root: graph_rewrite(root, symbolic),
        count=lambda root: len(root.toposort()),
        first=lambda root: root.src[5],
    )


# ---- the comparison ---------------------------------------------------------------------------

CORES = {"uopc": uopc_core, "plain Python": plain_core, "tinygrad": tinygrad_core}
speeds: dict[str, dict[str, float]] = {"create": {}, "rewrite": {}, "simplify": {}}


@pytest.fixture(scope="module", autouse=True)
def report(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints the ratios after the last benchmark."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        built, rewritten = speeds["create"], speeds["rewrite"]
        both = {name: 1 / (1 / built[name] + 1 / rewritten[name]) for name in rewritten if name in built}
        for task, by_core in {**speeds, "build and rewrite": both}.items():
            parts = [f"{name} {speed / 1e6:.3f}M nodes/s" for name, speed in by_core.items()]
            mine = by_core.get("uopc", 0.0)
            parts += [f"{mine / speed:.1f} x {name}" for name, speed in by_core.items() if name != "uopc"]
            print(f"\n{task}: " + ", ".join(parts), end="")
        print()


@pytest.fixture(scope="module", params=list(CORES))
def core(request: pytest.FixtureRequest) -> Any:
    if request.param == "tinygrad" and importlib.util.find_spec("tinygrad") is None:
        pytest.skip("tinygrad is not installed")
    made = CORES[request.param]()
    made.name = request.param
    return made


def timed(
    benchmark: Any, core: Any, task: str, setup: Callable[[], Any], run: Callable[[Any], Any], nodes: int
) -> None:
    best = [float("inf")]

    def once(arg: Any) -> None:
        start = time.perf_counter()
        result = run(arg)
        best[0] = min(best[0], time.perf_counter() - start)
        del result  # and is not returned: the nodes of a round that lives on would be found by the next, not made

    gc.collect()
    benchmark.pedantic(once, setup=lambda: ((setup(),), {}), rounds=ROUNDS if core.name == "uopc" else 2, iterations=1)
    speeds[task][core.name] = nodes / best[0]
    benchmark.extra_info["nodes a second"] = nodes / best[0]


def test_create(benchmark: Any, core: Any) -> None:
    nodes = core.count(build(core))
    timed(benchmark, core, "create", lambda: None, lambda _: build(core), nodes)


def test_rewrite(benchmark: Any, core: Any) -> None:
    root = build(core)
    assert len(core.first(core.rewrite(root)).src) == 2  # i + j
    timed(benchmark, core, "rewrite", lambda: root, core.rewrite, core.count(root))


def test_simplify(benchmark: Any, core: Any) -> None:
    if not hasattr(core, "simplify"):
        pytest.skip("has no simplifier")
    root = build(core)
    timed(benchmark, core, "simplify", lambda: root, core.simplify, core.count(root))
