"""The layer check: the tree obeys it, and a tree that does not is refused with file, line, arrow and rule."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / ".ci" / "check_layers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_layers"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


# A tree that obeys: every kind of import that is allowed, and text that only looks like one.
GOOD = {
    "uopc/__init__.py": "from uopc.tensor import Tensor\nfrom importlib.metadata import version\n",
    "uopc/dtype.py": "import enum\n",
    "uopc/ops.py": "from uopc.dtype import DType\n",
    "uopc/options.py": "",
    "uopc/_hot/__init__.py": "",
    "uopc/uop.py": "from uopc._hot.uop import UOp\nfrom . import ops\n",
    "uopc/kernelize.py": (
        '"""Says: import uopc.tensor."""\n'
        "from importlib import import_module\n"
        "from uopc.uop import UOp\n"
        "def __getattr__(name):\n    return getattr(import_module('uopc.runtime'), name)\n"
    ),
    "uopc/linearize.py": "",
    "uopc/opt/__init__.py": "from .layout import layout_pass\n",
    "uopc/opt/layout.py": "from ..uop import UOp\n",
    "uopc/pipeline.py": "from uopc import kernelize, linearize\n",
    "uopc/runtime/__init__.py": "from uopc.runtime.plan import realize\n",
    "uopc/runtime/plan.py": "def f():\n    from uopc import pipeline\n",
    "uopc/tensor/__init__.py": "import uopc.runtime.plan\n",
    "src/uopc/__init__.pxd": "",
    "src/uopc/_hot/__init__.pxd": "",
    "src/uopc/_hot/uop.pxd": "cdef class UOp:\n    pass\n",
    "src/uopc/_hot/uop.pyx": (
        '"""A doc that says\nimport uopc.tensor\n"""\n'
        "# from uopc.tensor import Tensor\n"
        "from uopc.ops import Ops\n"
        'include "infer.pxi"\n'
    ),
    "src/uopc/_hot/infer.pxi": "from uopc.dtype import dtypes\n",
    "src/uopc/_hot/rewrite.pyx": "from uopc._hot cimport uop\nfrom uopc._hot.uop cimport (\n    UOp,\n)\n",
    "src/uopc/_hot/runtime.pyx": 'cdef extern from "uopc_runtime.h":\n    pass\n',
    "runtime_c/include/uopc_runtime.h": "#include <stddef.h>\n",
    "runtime_c/internal.h": "",
    "runtime_c/pool.c": '#include "uopc_runtime.h"\n#include "internal.h"\n#include <pthread.h>\n',
    "runtime_c/test/check.h": "",
    "runtime_c/test/test_pool.c": '#include "check.h"\n#include "../internal.h"\n',
}

# (file, what to append, what the report says): one arrow back of each kind.
BAD = [
    ("uopc/dtype.py", "from uopc.ops import Ops\n", "2: uopc.dtype -> uopc.ops: layer facts: within a layer"),
    ("uopc/ops.py", "import uopc.uop as u\n", "2: uopc.ops -> uopc.uop: layer graph is above layer facts"),
    ("uopc/uop.py", "def f():\n    from .pipeline import g\n", "4: uopc.uop -> uopc.pipeline: layer pipeline is above"),
    (
        "uopc/linearize.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from uopc.tensor import Tensor\n",
        "3: uopc.linearize -> uopc.tensor: layer tensor is above layer passes",
    ),
    (
        "uopc/linearize.py",
        "from uopc import kernelize\n",
        "1: uopc.linearize -> uopc.kernelize: layer passes: modules of",
    ),
    ("uopc/opt/layout.py", "from .. import Tensor\n", "2: uopc.opt.layout -> uopc: layer public is above layer passes"),
    (
        "uopc/opt/layout.py",
        "from ..linearize import f\n",
        "2: uopc.opt.layout -> uopc.linearize: layer passes: modules",
    ),
    ("uopc/runtime/plan.py", "import os, uopc.tensor\n", "3: uopc.runtime.plan -> uopc.tensor: layer tensor is above"),
    ("uopc/newcomer.py", "x = 1\n", "uopc.newcomer -> uopc.newcomer: stands in no layer"),
    (
        "uopc/pipeline.py",
        "import importlib\nimportlib.import_module('uopc.tensor')\n",
        "3: uopc.pipeline -> importlib: only uopc.kernelize and uopc.render_c",
    ),
    ("uopc/pipeline.py", "__import__('uopc.tensor')\n", "2: uopc.pipeline -> importlib: only uopc.kernelize"),
    ("uopc/kernelize.py", "import_module('uopc.tensor')\n", "6: uopc.kernelize -> importlib: a lazy lookup stands in"),
    (
        "uopc/_hot/uop.pyi",
        "from uopc.uop import Ops\n",
        "1: uopc._hot.uop -> uopc.uop: layer graph is above layer _hot",
    ),
    ("src/uopc/_hot/uop.pyx", "from uopc.spec import verify\n", "7: uopc._hot.uop -> uopc.spec: layer graph is above"),
    ("src/uopc/_hot/uop.pyx", "def f():\n    import uopc.uop\n", "8: uopc._hot.uop -> uopc.uop: layer graph is above"),
    ("src/uopc/_hot/uop.pxd", "from uopc._hot cimport rewrite\n", "3: uopc._hot.uop -> uopc._hot.rewrite: layer _hot"),
    (
        "src/uopc/_hot/infer.pxi",
        "from uopc.spec import verify\n",
        "2: uopc._hot.uop -> uopc.spec: layer graph is above",
    ),
    ("src/uopc/_hot/rewrite.pyx", "import importlib\n", "5: uopc._hot.rewrite -> importlib: Cython looks no module up"),
    (
        "src/uopc/_hot/rewrite.pyx",
        'cdef extern from "uopc_runtime.h":\n    pass\n',
        "5: uopc._hot.rewrite -> uopc_runtime.h: only uopc._hot.runtime binds runtime_c",
    ),
    (
        "src/uopc/_hot/runtime.pyx",
        'cdef extern from "internal.h" nogil:\n    pass\n',
        "3: uopc._hot.runtime -> internal.h: the only public header of runtime_c is uopc_runtime.h",
    ),
    ("runtime_c/pool.c", "#include <Python.h>\n", "4: runtime_c/pool.c -> Python.h: runtime_c is plain C"),
    ("runtime_c/pool.c", '#include "test/check.h"\n', "4: runtime_c/pool.c -> test/check.h: nothing includes a test"),
    (
        "runtime_c/include/uopc_runtime.h",
        '#  include "../internal.h"\n',
        "2: runtime_c/include/uopc_runtime.h -> ../internal.h: the public header includes system headers only",
    ),
]


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_the_tree_obeys(layers: ModuleType) -> None:
    assert [str(violation) for violation in layers.check(ROOT)] == []


def test_a_good_tree_passes(layers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert layers.main([str(plant(tmp_path, GOOD))]) == 0
    assert "every import points down" in capsys.readouterr().out


@pytest.mark.parametrize(("file", "addition", "report"), BAD, ids=[report.split(": ")[1] for *_, report in BAD])
def test_an_arrow_back_is_refused(
    layers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, addition: str, report: str
) -> None:
    root = plant(tmp_path, {**GOOD, file: GOOD.get(file, "") + addition})
    assert layers.main([str(root)]) == 1
    out = capsys.readouterr().out
    where = "uopc:1" if "no layer" in report else file
    assert len(out.splitlines()) == 1, out
    assert out.startswith(f"{where}:") and report in out, out
