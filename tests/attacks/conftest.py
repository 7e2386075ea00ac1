"""Each batch of attacks runs once, in a jail; the tests ask what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks import jail, rows, running


@pytest.fixture(scope="session", autouse=True)
def jailed() -> None:
    """Without a jail no attack runs, and that is no success."""
    reason = jail.available()
    if reason:
        pytest.fail(f"no attack can be tried safely: {reason}")


@pytest.fixture(scope="session")
def stock_together(jailed) -> dict[str, Any]:
    chosen = [one for one in rows.all_attacks() if one.stock != "-" and not one.alone]
    return running.judged("stock", chosen, seconds=900)


@pytest.fixture(scope="session")
def ours_small(jailed) -> dict[str, Any]:
    return running.judged("ours", [one for one in rows.all_attacks() if one.small], seconds=300)


@pytest.fixture(scope="session")
def ours_all(jailed) -> dict[str, Any]:
    return running.judged("ours", rows.all_attacks(), seconds=2400)
