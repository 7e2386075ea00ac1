"""The attacks are all there, and docs/attacks.md says which."""

from __future__ import annotations

from tests.attacks.jail import CHECKOUT
from tests.attacks.rows import all_attacks
from tests.attacks.table import OTHERS, table

ROWS = 41  # of the survey


def test_every_row_of_the_survey_has_an_attack():
    there = {one.row for one in all_attacks()} | {row for row, *_ in OTHERS}
    assert {str(row) for row in range(1, ROWS + 1)} <= there


def test_at_least_ten_go_beyond_it():
    assert len({one.row for one in all_attacks() if one.row[0].isalpha()}) >= 10


def test_no_two_attackers_have_one_name():
    names = [one.name for one in all_attacks()]
    assert len(names) == len(set(names))


def test_an_attack_that_wins_says_what_the_control_must_see():
    assert all(bool(one.harms) == (one.stock in "WP") for one in all_attacks())


def test_the_page_of_attacks_is_fresh():
    page = (CHECKOUT / "docs" / "attacks.md").read_text()
    assert page == table(), "python -m tests.attacks.table > docs/attacks.md"


def test_rows_about_records_and_ranks_have_tests():
    files = {"hostile": "virtualgpu/replay/test_hostile.py",
             "pricing": "labkit/check/test_pricing.py",
             "forged_ranks": "grader/sandbox/test_forged_ranks.py",
             "isolation": "warmranks/isolated.py"}
    for _, _, _, module, name in OTHERS:
        if module in files:
            assert name in (CHECKOUT / "tests" / files[module]).read_text()
