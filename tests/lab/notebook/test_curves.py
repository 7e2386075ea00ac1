"""Curves of a student's function."""

import pytest

from lab.notebook import curves
from labcore.errors import LabError


def test_a_line_for_each_number_of_stages():
    picture = curves.bubbles(lambda p, m: (p - 1) / (m + p - 1), (2, 4), micro_batches=(1, 3))
    (axes,) = picture.figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines == {"p = 2": [50.0, 25.0], "p = 4": [75.0, 50.0]}
    assert repr(picture) == ("Bubble fraction over 1 to 3 micro-batches: p = 2 from 50% to 25%; "
                             "p = 4 from 75% to 50%.")


def test_an_answer_that_is_not_written_yet_is_named():
    with pytest.raises(LabError, match=r"bubble\(2, 1\) is None.*write the function first"):
        curves.bubbles(lambda p, m: None)
