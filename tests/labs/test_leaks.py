"""No lab gives a prediction away: tests.labs.test_run does the same for the numbers that a run
measures, and for the output above the guess."""

import pytest

from tests.labs.leaks import KNOWN, above, leaks, predictions
from tests.labs.test_labs import SOLUTIONS, each_lab, lab_of


@each_lab
def test_no_reference_guess_stands_above_its_cell(path):
    lab = lab_of(path)
    found = {one.what: leaks(one.what, one.reference, above(lab, one), measured=False)
             for one in predictions(lab)}
    assert {what: lines for what, lines in found.items() if lines} == {}


@pytest.mark.parametrize(("what", "value", "text"), [
    ("milliseconds per step", 120.0, "It took 118 ms."), ("times faster", 3.8, "is 3.9 times as"),
    ("times as fast (virtual)", 5.3, "## Get a 5.3x speedup"), ("minutes", 5.0, "5 min"),
    ("share of the speed", 0.83, "about 83%"), ("share", 0.5, "50 percent of it"),
    ("width", 1712.0, "from 1,712 on"), ("percent longer", 31.4, "| 31.4 |")])
def test_a_leak_is_found(what, value, text):
    assert leaks(what, value, ["no 1 number", text])


@pytest.mark.parametrize(("what", "value", "text"), [
    ("milliseconds per step", 120.0, "120 samples"), ("milliseconds", 120.0, "60 ms"),
    ("times faster", 8.0, "8 GPUs"), ("times faster", 3.8, "GPT-3.8"), ("share", 0.5, "50 steps"),
    ("days", 154.4, "154.5 ms of kernels")])
def test_another_number_is_no_leak(what, value, text):
    assert leaks(what, value, [text]) == []


def test_what_is_known_is_still_predicted():
    for stem, what in KNOWN:
        (path,) = (path for path in SOLUTIONS if path.stem == stem)
        assert f'check.compare("{what}"' in path.read_text()
