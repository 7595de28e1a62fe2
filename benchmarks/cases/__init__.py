"""What is measured: every row of the tables that uopc is judged by, as data that no library appears in."""

from __future__ import annotations

from cases import attention, fusion, machine, matmul, memory, model
from cases.base import Case

SUITES: dict[str, tuple[Case, ...]] = {
    "attention": attention.CASES,
    "fusion": fusion.CASES,
    "matmul": matmul.CASES,
    "memory": memory.CASES,
    "model": model.CASES,
    "machine": machine.CASES,
}


def find(suite: str, name: str) -> Case:
    """The case of that name; KeyError names what there is."""
    for case in SUITES[suite]:
        if case.name == name:
            return case
    raise KeyError(f"{suite} has no case {name!r}; there are {', '.join(c.name for c in SUITES[suite])}")
