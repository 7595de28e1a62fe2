"""What is kept of what was computed has a bound, whatever a process is asked for."""

import ast
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import uopc
from uopc import Tensor, memo, pipeline
from uopc.memo import Memo
from uopc.pipeline import make_plan

# Module-level mappings and lists whose keys the code of uopc chooses, and no shape, graph or text of a caller.
FIXED = {
    ("dtype.py", "_vectors"),  # a dtype and how many of them a register holds
    ("pipeline.py", "_watchers"),  # those inside a `with watch(...)`
    ("pipeline.py", "timings"),  # names of stages
    ("runtime/compiler.py", "_making"),  # what is being made now
    ("inspect/roofline.py", "_kept"),  # numbers of threads
}


def test_the_one_used_longest_ago_goes_first():
    kept = Memo(3)
    for n in range(3):
        kept[n] = str(n)
    assert kept.get(0) == "0"  # a use
    kept[3] = "3"
    assert list(kept) == [2, 0, 3] and kept.get(1) is None
    kept[2] = "again"
    assert kept.values() == ["0", "3", "again"] and len(kept) == 3
    kept.clear()
    assert len(kept) == 0 and kept.get(2) is None
    with pytest.raises(ValueError, match="0 entries"):
        Memo(0)


def test_shed_drops_what_was_used_longest_ago_until_nothing_is_left():
    kept = Memo(8)
    for n in range(6):
        kept[n] = n + 1
    assert memo.shed() and list(kept) == [3, 4, 5]
    while memo.shed():
        pass
    assert len(kept) == 0


def test_what_dies_may_look_again():
    """A value that is dropped runs code of its own, which may use the memo."""
    kept = Memo(2)

    class Value:
        def __del__(self):
            kept["last"] = "words"

    kept["a"] = Value()
    kept["b"] = 1
    kept["c"] = 2
    assert kept.get("last") == "words" and len(kept) == 2


def test_several_threads():
    kept, wrong = Memo(5), []

    def work(seed):
        for n in range(5000):
            key = (n * seed) % 13
            found = kept.get(key)
            if found is None:
                kept[key] = key + 1
            elif found != key + 1:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(kept) == 5


EMPTY = re.compile(r"\{\}|\[\]|(dict|list|set|defaultdict|OrderedDict)(\[.*\])?\(.*\)")
ENDLESS = re.compile(r"(functools\.)?(cache|lru_cache(\(\)|\(.*None.*\))?)")


def unbounded(tree: ast.Module) -> list[str]:
    """The module-level names of a file that begin as empty mappings or lists, and its caches without a bound."""
    assigned = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    found = [
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in assigned
        if EMPTY.fullmatch(ast.unparse(node.value or node))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found += [f"@{text} {node.name}" for d in node.decorator_list if ENDLESS.fullmatch(text := ast.unparse(d))]
    return found


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a: dict[int, int] = {}", ["a"]),
        ("a = OrderedDict()", ["a"]),
        ("a = defaultdict[int, int](int)", ["a"]),
        ("a = {1: 2}\ndef f():\n    b = {}", []),
        ("@cache\ndef f(x): ...", ["@cache f"]),
        ("@functools.cache\ndef f(x): ...", ["@functools.cache f"]),
        ("@lru_cache\ndef f(x): ...", ["@lru_cache f"]),
        ("@lru_cache(maxsize=None)\ndef f(x): ...", ["@lru_cache(maxsize=None) f"]),
        ("@lru_cache(maxsize=4)\ndef f(x): ...", []),
    ],
)
def test_what_counts_as_unbounded(source, names):
    assert unbounded(ast.parse(source)) == names


def test_nothing_in_the_package_is_kept_without_a_bound():
    root = Path(uopc.__file__).parent
    found = {
        (file.relative_to(root).as_posix(), name)
        for file in root.rglob("*.py")
        for name in unbounded(ast.parse(file.read_text()))
    }
    assert found == FIXED


def test_a_kernel_lives_as_long_as_a_plan_has_it(monkeypatch):
    """Evicted, it is made again for the next plan, and is equal."""
    monkeypatch.setattr(pipeline, "_kernels", Memo(2))
    plan = make_plan([(Tensor.zeros(5).contiguous() * 3 + 1).uop])
    text = plan.kernels[0].source
    for n in range(6, 10):
        make_plan([(Tensor.zeros(n).contiguous() * 3 + 1).uop])
    assert len(pipeline._kernels) == 2 and plan.kernels[0] not in pipeline._kernels.values()
    again = make_plan([(Tensor.zeros(5).contiguous() * 3 + 1).uop])
    assert plan.kernels[0].source == text and plan.kernels[0].linear.src
    assert again.kernels[0] == plan.kernels[0] and again.kernels[0] is not plan.kernels[0]


FLAT = """
import gc, sys, tracemalloc
import numpy as np
from uopc import Tensor
from uopc._hot.uop import live_nodes
from uopc.pipeline import make_plan

last, traced = int(sys.argv[1]), sys.argv[2] == "traced"
if traced: tracemalloc.start()

def measured():
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * 4096
    return live_nodes(), tracemalloc.get_traced_memory()[0] if traced else resident

for n in range(1, last + 1):
    y = Tensor(np.empty(1000 + n, "f")) * (1 / n) + n
    make_plan([(y.sum() if n % 16 == 0 else y).uop])
    if n == last // 2: before = measured()
print(*before, *measured())
"""


@pytest.mark.parametrize(("shapes", "what", "most"), [(2000, "resident", 2 << 20), (700, "traced", 100_000)])
def test_any_number_of_shapes_in_flat_memory(shapes, what, most):
    """Nodes, and the process's memory or Python's own, while the second half of so many shapes is planned.

    Kept for each shape, kernels would be ten megabytes.
    """
    command = [sys.executable, "-c", FLAT, str(shapes), what]
    env = {**os.environ, "UOPC_VERIFY": "0"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    nodes, size, nodes_after, size_after = map(int, said.split())
    assert abs(nodes_after - nodes) < 0.05 * nodes, (nodes, nodes_after)
    assert size_after - size < most, (size, size_after)
