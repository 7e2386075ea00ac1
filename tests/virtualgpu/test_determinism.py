"""The same job gives the same digits, whatever else the machine does."""

import pytest

from .repeats import repeated


@pytest.mark.stress  # test_group.py has a short one
def test_a_job_beside_busy_loops_prints_the_same_figures(pretrain):
    first, again = repeated(pretrain, 2)
    assert first == again
    for start, count in ((" iteration ", 4), ("time (ms)", 4), ("[Rank ", 4), (" model TFLOP", 4)):
        assert sum(line.startswith(start) for line in first) == count
