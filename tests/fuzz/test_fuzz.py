"""A small round of every target; the long one is tests/stress/test_fuzz.py."""

from __future__ import annotations

import pytest

from tests.fuzz.rounds import fuzz
from tests.fuzz.targets import TARGETS

SEEDS = {"record": 150, "notebook": 400, "copies": 400}  # others are quicker
MANY = 1500


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_declared_errors_comes_out(name):
    result = fuzz(name, range(SEEDS.get(name, MANY)))
    assert result.bugs == {}
    assert result.refused or not TARGETS[name].declared
