"""The same attacks, and more, against ours: they change no score, leak nothing, stop nobody."""

from __future__ import annotations

import pytest

from tests.attacks import rows
from tests.attacks.attack import Attack
from tests.attacks.running import name

ATTACKS = rows.all_attacks()
SMALL = [one for one in ATTACKS if one.small]


def require_harmless(one: Attack, result: dict) -> None:
    assert "error" not in result, result["error"]
    assert not result["harms"].keys() - one.remains, result
    if result["score"] is None:
        assert one.reason in result["reason"] != "", result


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.parametrize("one", SMALL, ids=name)
def test_it_gains_nothing_from_ours(one, ours_small):
    require_harmless(one, ours_small[one.name])


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_nobody_else_suffers(ours_small):
    assert not ours_small[""]["harms"], ours_small[""]


@pytest.mark.stress
@pytest.mark.timeout(2500)
@pytest.mark.parametrize("one", ATTACKS, ids=name)
def test_none_gains_anything_from_ours(one, ours_all):
    require_harmless(one, ours_all[one.name])


@pytest.mark.stress
@pytest.mark.timeout(2500)
def test_nobody_else_suffers_from_any(ours_all):
    assert not ours_all[""]["harms"], ours_all[""]
