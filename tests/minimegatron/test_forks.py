"""The tests' own way to run the trainer."""

import subprocess

import psutil
import pytest

from .conftest import MODEL
from .forks import Forks


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended_and_the_next_is_not_disturbed(dataset):
    forks = Forks()
    words = [*(MODEL + dataset.flags).split(), "--log-interval", "1", "--eval-iters", "0"]
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run([*words, "--train-iters", "1000000"], 2, {}, timeout=2)
    assert not psutil.Process(forks.server.pid).children()
    done = forks.run([*words, "--train-iters", "1"], 0, {}, timeout=60)
    assert done.returncode == 0 and " iteration        1/       1 " in done.stdout
    done = forks.run([*words, "--train-iters", "1", "--split", "0,50,50"], 2, {}, timeout=60)
    assert done.returncode == 1 and "--split 0,50,50" in done.stderr
    forks.close()
