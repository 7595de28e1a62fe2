"""What pyproject.toml cannot say: the packages, listed by name, and the compiled modules of uopc._hot.

The Cython sources live in src/uopc/_hot, the modules built from them land in uopc/_hot.  The two empty `__init__.pxd`
files under src mark it as the package that `cimport uopc._hot.x` means: without them Cython finds the Python package,
which holds no `.pxd`.  setuptools runs Cython itself on a `.pyx` source; the C goes to the build directory.
"""

from __future__ import annotations

from glob import glob
from typing import Any

import numpy
from setuptools import Extension, setup

PACKAGES = [
    "uopc",
    "uopc._hot",
    "uopc.blockize",
    "uopc.cascade",
    "uopc.decompose",
    "uopc.gradient",
    "uopc.opt",
    "uopc.rangeify",
    "uopc.render_c",
    "uopc.runtime",
    "uopc.spec",
    "uopc.tensor",
    "uopc.inspect",
    "uopc.inspect.sweep",
]
PURE = [
    "uop",
    "rewrite",
    "simplify",
    "rangeify",
    "graph",
    "linearize",
    "text",
    "uses",
    "statements",
]  # Cython alone; uopc._hot.runtime is Cython over runtime_c
C_FLAGS = ["-std=gnu11", "-O2", "-g0"]  # line numbers for native backtraces (-g1) are half the size of the wheel


def hot_module(name: str, c_sources: list[str], **settings: Any) -> Extension:
    """The extension `uopc._hot.<name>`, from src/uopc/_hot/<name>.pyx and the C files given."""
    extension = Extension(f"uopc._hot.{name}", [f"src/uopc/_hot/{name}.pyx", *c_sources], **settings)
    extension.cython_include_dirs = ["src"]
    extension.cython_directives = {"language_level": 3}
    extension.cython_c_in_temp = True
    return extension


RUNTIME = hot_module(
    "runtime",
    sorted(glob("runtime_c/*.c")),
    include_dirs=["runtime_c/include"],
    depends=sorted(glob("runtime_c/*.h") + glob("runtime_c/include/*.h")),
    extra_compile_args=[*C_FLAGS, "-pthread"],
    extra_link_args=["-pthread"],
)
CALL = hot_module(
    "call",
    [],
    include_dirs=[numpy.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
    extra_compile_args=C_FLAGS,
)
EXTENSIONS = [*(hot_module(name, [], extra_compile_args=C_FLAGS) for name in PURE), RUNTIME, CALL]

setup(
    packages=PACKAGES,
    package_data={"uopc": ["py.typed"], "uopc._hot": ["*.pyi"], "uopc.inspect": ["*.html"]},
    ext_modules=EXTENSIONS,
)
