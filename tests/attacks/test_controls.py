"""The positive controls: against stock nbgrader each attack wins, where the table says so. So an
attack that has died cannot pass for a defence."""

from __future__ import annotations

import pytest

from tests.attacks import rows, running
from tests.attacks.attack import FEEDBACK, INVENTED, LOST, ORACLE, TIME, Attack
from tests.attacks.running import name

ATTACKS = [one for one in rows.all_attacks() if one.stock != "-"]
TOGETHER = [one for one in ATTACKS if not one.alone]
ALONE = [one for one in ATTACKS if one.alone]
SECONDS = 300  # for one course folder of stock nbgrader, on a busy machine


def require(one: Attack, result: dict) -> None:
    """That it did in `result` what the table says."""
    assert "error" not in result, result["error"]
    actual = result["harms"]
    if one.stock == "S":
        # On every page of stock nbgrader there are hidden tests; what it cannot read it counts 0;
        # and a busy machine is slow.
        assert not actual.keys() - {FEEDBACK, ORACLE, LOST, INVENTED, TIME}, actual
    else:
        assert one.harms <= actual.keys(), f"missing: {one.harms - actual.keys()}; {result}"


@pytest.mark.stress
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("one", TOGETHER, ids=name)
def test_stock_nbgrader_does_as_the_table_says(one, stock_together):
    require(one, stock_together[one.name])


@pytest.mark.stress
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("one", ALONE, ids=name)
def test_stock_nbgrader_does_as_the_table_says_in_a_course_of_its_own(one):
    result = running.judged("stock", [one], seconds=SECONDS)
    require(one, result[one.name])
