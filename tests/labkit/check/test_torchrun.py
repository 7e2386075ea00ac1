"""The part of torchrun's command line that says which ranks form a world, and how they end."""

import pytest

from labkit.check.torchrun import BadCommand, parse


@pytest.mark.parametrize(("words", "variables", "seconds"), [
    ("train.py", {}, 30), ("--shutdown-timeout 120 train.py", {}, 120),
    ("--shutdown_timeout=0 train.py", {}, 0),
    ("train.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}, 90),
    ("--shutdown-timeout 120 train.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}, 120)])
def test_ranks_have_the_launchers_time_to_end(words, variables, seconds):
    assert parse(words.split(), variables).shutdown_timeout == seconds


@pytest.mark.parametrize("value", ["soon", "-1", "2.5", ""])
def test_a_time_that_is_none_is_refused(value):
    with pytest.raises(BadCommand, match=r"torchrun --shutdown_timeout"):
        parse([f"--shutdown-timeout={value}", "train.py"])
