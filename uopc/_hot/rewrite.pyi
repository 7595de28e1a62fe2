from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any, overload

from uopc._hot.uop import UOp
from uopc.dtype import DType
from uopc.ops import Ops

class Pattern:
    ops: frozenset[Ops] | None
    src: tuple[Pattern | EllipsisType, ...] | None
    name: str | None
    arg: Any
    dtype: DType | Iterable[DType] | Callable[[DType], bool] | None
    commutative: bool
    def __init__(
        self,
        op: Ops | Iterable[Ops] | None = None,
        src: Sequence[Pattern | EllipsisType] | None = None,
        name: str | None = None,
        *,
        arg: Any = None,
        dtype: DType | Iterable[DType] | Callable[[DType], bool] | None = None,
        commutative: bool = False,
    ) -> None: ...
    def named(self) -> list[str]: ...
    def orders(self) -> list[Pattern]: ...

class PatternMatcher:
    @property
    def rules(self) -> tuple[tuple[Pattern, Callable[..., UOp | None]], ...]: ...
    def __init__(self, rules: Iterable[tuple[Pattern, Callable[..., UOp | None]]]) -> None: ...
    def __add__(self, other: PatternMatcher) -> PatternMatcher: ...
    def rewrite(self, u: UOp, ctx: Any = None) -> UOp | None: ...

def rule_name(fn: Callable[..., Any]) -> str: ...
@overload
def graph_rewrite(roots: UOp, matcher: PatternMatcher, ctx: Any = None) -> UOp: ...
@overload
def graph_rewrite(roots: Sequence[UOp], matcher: PatternMatcher, ctx: Any = None) -> list[UOp]: ...

# The traversal that matchers and the simplifier share, for compiled modules alone.
class Rewriter: ...
class PatternRewriter(Rewriter): ...
class DtypeTest: ...
