"""What the environment makes uopc print: DEBUG=1 to 4, and UOPC_DUMP."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from uopc import Tensor, pipeline
from uopc.options import environment
from uopc.pipeline import STAGES
from uopc.runtime import plan

Set = Callable[..., None]
TIME, RATES = r" +\d+\.\d{3} ms", r" +\d+\.\d GFLOP/s +\d+\.\d GB/s"
REALIZE = r"realize: 2 kernels, schedule \d+\.\d ms, run \d+\.\d ms"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Set]:
    """Sets variables of the environment, which is read anew, and forgets plans and kernels."""

    def set_all(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(plan, "_executables", {})
        monkeypatch.setattr(pipeline, "_kernels", {})
        environment.cache_clear()

    yield set_all
    monkeypatch.undo()
    environment.cache_clear()


def two_kernels() -> None:
    x = Tensor(np.ones((24, 24), np.float32))
    (x @ x).realize((x + 1).contiguous())


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("1", [REALIZE]),
        ("2", [f"r_24_24{TIME}{RATES}", f"e_24_24{TIME}{RATES}", REALIZE]),
        ("3", [f"r_24_24{TIME} again{TIME}{RATES}", f"e_24_24{TIME} again{TIME}{RATES}", REALIZE]),
    ],
)
def test_debug_prints_a_line_a_realize_and_a_line_a_kernel(level, lines, variables, capsys):
    variables(DEBUG=level)
    two_kernels()
    printed = [re.sub(r"^(\S+) +(?=\d)", r"\1 ", line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == len(lines)
    for line, wanted in zip(printed, lines):
        assert re.fullmatch(wanted, line), line


def test_debug_4_prints_the_c_before_its_kernel(variables, capsys):
    variables(DEBUG="4")
    two_kernels()
    out = capsys.readouterr().out
    first, second = out.index("void r_24_24_range("), out.index("void e_24_24_range(")
    assert first < out.index("\nr_24_24 ") < second < out.index("\ne_24_24 ")


def test_debug_0_prints_nothing(variables, capsys):
    variables(DEBUG="0")
    two_kernels()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("step", STAGES, ids=lambda step: step.name)
def test_dump_prints_the_graph_behind_one_stage(step, variables, capsys):
    variables(UOPC_DUMP=step.name)
    two_kernels()
    heads = [line for line in capsys.readouterr().err.splitlines() if line.startswith("-- ")]
    assert heads and {head.split(":")[0] for head in heads} == {f"-- {step.name}"}


def test_dump_of_all_stages_in_order(variables, capsys):
    variables(UOPC_DUMP="all")
    two_kernels()
    heads = re.findall(r"^-- (\w+): ", capsys.readouterr().err, re.MULTILINE)
    assert list(dict.fromkeys(heads)) == [step.name for step in STAGES]


def test_what_the_environment_cannot_mean_is_refused(variables):
    for name, value, message in (
        ("UOPC_DUMP", "rangefy", "UOPC_DUMP='rangefy'; accepted are widen, summation, cascade, .*, all"),
        ("DEBUG", "yes", "DEBUG='yes' is not an integer"),
    ):
        variables(UOPC_DUMP="", DEBUG="0")
        variables(**{name: value})
        with pytest.raises(ValueError, match=message):
            two_kernels()
