"""The statements of a LINEAR list as lines of C: values inside their users' texts or in constants, plain accesses."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, final

from uopc._hot.text import Code
from uopc._hot.uop import UOp
from uopc._hot.uses import Uses
from uopc.dtype import DType
from uopc.ops import Ops

@final
class Array:
    """What a memory is in C: its name, whether it is a variable of one element, and how pointers are qualified."""

    name: str
    variable: bool
    const: str
    def __init__(self, name: str, variable: bool, const: str) -> None: ...

# Of the node, which is one of the texts'.
Rule: TypeAlias = Callable[[Any, UOp], Code]

class Texts:
    """Texts of nodes.

    code: those of the nodes that were seen, an expression or the name that it was given.
    types: {dtype: its name in C} of those that were declared.  operators: what C calls an op between two operands.
    rules: for scalars, vectors of numbers and vectors of bool, a table by op of what gives the text of a node; None
    for an operator.

    A subclass knows ``constant``, ``spread``, ``variable_type``, ``array``, ``pointer``, ``load``, ``fetch`` and
    ``store``.
    """

    @property
    def code(self) -> dict[UOp, Code]: ...
    def __init__(
        self, types: dict[DType, str], operators: dict[Ops, str], rules: tuple[tuple[Rule | None, ...], ...]
    ) -> None: ...
    def constant(self, u: UOp, exact: bool) -> Code:
        """The text of a CONST; ``exact``: of its very C type."""
    def spread(self, u: UOp, count: int) -> Code:
        """A scalar in ``count`` lanes."""
    def variable_type(self, u: UOp) -> str:
        """The C type of a constant that holds a value, which is declared."""
    def array(self, memory: UOp) -> Array:
        """What a BUFFER or ALLOC is in C."""
    def pointer(self, index: UOp, memory: UOp) -> str:
        """What is put before an address to read it as an INDEX says: ``*(const f32x16u *)``."""
    def load(self, u: UOp) -> Code:
        """The text of a LOAD with a gate, of lanes that are apart, or of bools in lanes."""
    def fetch(self, u: UOp) -> str:
        """The statement that fetches what a LOAD says is read soon."""
    def store(self, u: UOp) -> list[str]:
        """The lines of a STORE with a gate, past the caches, to lanes that are apart, or of bools in lanes."""
    def operand(self, u: UOp, exact: bool = True) -> Code:
        """The text of a source.  ``exact``: of its very C type, where it is a constant."""
    def vector(self, u: UOp, count: int) -> Code:
        """``u`` in ``count`` lanes: itself, or a scalar spread."""
    def expression(self, u: UOp) -> Code:
        """The text of a value."""
    def binary(self, u: UOp) -> Code:
        """An operator of C between scalars, one of which may be a constant without a suffix, or vectors and scalars."""
    def called(self, function: str, u: UOp) -> Code:
        """``function(sources...)``, each in as many lanes as ``u`` has."""
    def facts(self, memory: UOp) -> Array:
        """What is known of a memory."""
    def place(self, index: UOp) -> Code:
        """What an INDEX of one element, or of a vector of consecutive ones, is."""
    def assigned(self, u: UOp, place: Code, stored: Code) -> str:
        """``place = stored;`` of a STORE, or ``place += x;`` where that is what is stored."""

class Statements:
    """The lines of a function.

    texts: of nodes.  uses: which values get a name.  most_depth, most_text: of an expression that gets none.
    values, silent: the ops of values, and those that print nothing.

    A subclass knows ``open_loop``, ``close_loop`` and ``refuse``.
    """

    margin: str
    @property
    def texts(self) -> Texts: ...
    @property
    def lines(self) -> list[str]: ...
    @property
    def uses(self) -> Uses: ...
    def __init__(
        self, texts: Texts, uses: Uses, most_depth: int, most_text: int, values: Iterable[Ops], silent: Iterable[Ops]
    ) -> None: ...
    def open_loop(self, u: UOp) -> None:
        """The head of a loop."""
    def close_loop(self, u: UOp) -> None:
        """The end of a loop."""
    def refuse(self, u: UOp) -> None:
        """Raise what is to be said of a node that has no form in C."""
    def line(self, text: str) -> None:
        """One line of the body."""
    def body(self, statements: tuple[UOp, ...]) -> None:
        """Print the nodes from top to bottom, or note their texts."""
