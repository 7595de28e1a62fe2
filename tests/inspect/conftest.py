"""What tests of inspect share: a roofline that nobody measured."""

from __future__ import annotations

import pytest

from uopc.inspect import explain
from uopc.inspect.roofline import Rates, Roofline

LEVELS = {"L2": 1e11, "L3": 5e10, "memory": 2e10}
ROOF = Roofline(Rates(1, 1e11, LEVELS, LEVELS, 1e-7), Rates(2, 2e11, LEVELS, LEVELS, 1e-7), 64, 1 << 20, 1 << 25)


@pytest.fixture(autouse=True)
def _roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "roofline", lambda: ROOF)
