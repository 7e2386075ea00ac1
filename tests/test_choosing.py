"""A run with `-m` imports every file that has a test for it."""

import pytest

from tests.choosing import can_skip

STRESS = "import pytest\n\npytestmark = [pytest.mark.stress, pytest.mark.timeout(5)]\n"
LONG = ("import pytest\n\npytestmark = [\n    pytest.mark.timeout(5),\n    pytest.mark.slow]\n\n\n"
        "def test_it(): pass\n")
ONE = "import pytest\n\n\n@pytest.mark.alone\ndef test_it(): pass\n\n\ndef test_other(): pass\n"


@pytest.mark.parametrize(("expression", "text"), [
    ("not stress and not image", STRESS), ("not slow", LONG), ("alone", STRESS),
    ("not slow and not stress", STRESS), ("stress", ONE)])
def test_a_file_without_a_test_for_the_run_is_left_out(expression, text):
    assert can_skip(expression, text)


@pytest.mark.parametrize(("expression", "text"), [
    ("", STRESS), ("stress", STRESS), ("not image", STRESS), ("not timeout2", LONG),
    ("not alone", ONE), ("alone", ONE), ("slow", ONE), ("browser", ONE),
    ("not (stress and slow)", STRESS), ("not stress or slow", STRESS), ("not stress", ONE)])
def test_a_file_that_may_have_one_is_imported(expression, text):
    assert not can_skip(expression, text)
