"""What tests of inspect share: a roofline that nobody measured."""

from __future__ import annotations

import pytest
from fixed import ROOF

from uopc.inspect import explain


@pytest.fixture(autouse=True)
def _roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "roofline", lambda: ROOF)
