"""The compiled modules: mechanism in Cython, from src/uopc/_hot, each with a typed `.pyi` here.

Nothing is imported from this package itself.  It only tells a source tree that was never built from an installed one.
"""

from pathlib import Path

_here = Path(__file__).parent
if not any(file.suffix in (".so", ".pyd") for file in _here.iterdir()):
    raise ImportError(
        f"uopc is imported from the source tree {_here.parents[1]}, whose compiled modules are not built: "
        "run `pip install -e .` there, or start Python elsewhere to use an installed uopc"
    )
