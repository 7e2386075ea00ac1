"""Rows 30, 31 and 35: archives and the exchange."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks import running
from tests.attacks.collecting import ARCHIVES

pytestmark = [pytest.mark.stress, pytest.mark.timeout(500)]
WINS = ("bomb", "exchange")  # against stock nbgrader


@pytest.fixture(scope="module")
def stock(jailed) -> dict[str, Any]:
    return running.in_jail("collecting", "stock", seconds=400)


@pytest.fixture(scope="module")
def ours(jailed) -> dict[str, Any]:
    return running.in_jail("collecting", "ours", seconds=400)


@pytest.mark.parametrize("name", [*ARCHIVES, "exchange"])
def test_stock_nbgrader_does_as_the_table_says(name, stock):
    assert bool(stock[name]["won"]) == (name in WINS), stock[name]


@pytest.mark.parametrize("name", [*ARCHIVES, "exchange"])
def test_ours_takes_nothing_of_it(name, ours):
    assert not ours[name]["won"], ours[name]
