"""The figures of a job, when it is graded: computed in a sandbox, from the command line alone."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from grader import measure
from grader.sandbox.bubblewrap import Bubblewrap
from grader.sandbox.interface import MB
from lab.check.allowed import Cluster, flags_for_estimate
from lab.check.measure import read
from lab.errors import LabError
from tests.lab.check.test_measure import CARD, in_process, job


class Program:
    """A back-end that runs a program of the test's, and counts how often."""

    name = "program"

    def __init__(self, source: str) -> None:
        self.source, self.runs = source, 0

    def start(self, command, limits, **more):
        self.runs += 1
        return Bubblewrap().start([sys.executable, "-I", "-c", self.source], limits, **more)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(measure, "_kept", measure.OrderedDict())


@pytest.mark.slow
def test_a_graded_job_has_the_figures_that_the_notebook_showed(monkeypatch):
    """Nothing of the environment decides."""
    monkeypatch.setenv("VIRTUAL_GPU", "h200")
    words = flags_for_estimate(job().flags, Cluster(CARD, 1), 500)
    found = read(measure.figures(words, Bubblewrap()), 128)
    assert found.milliseconds == 1000 * in_process(words).seconds_per_iteration


@pytest.mark.slow
def test_what_the_trainer_refuses_is_said_in_its_words():
    words = flags_for_estimate(job().flags, Cluster("virtual:v10", 1), 500)
    with pytest.raises(LabError, match=r"^--device virtual:v10: .*nearest"):
        measure.figures(words, Bubblewrap())


def test_a_command_line_is_estimated_once_and_so_is_a_refusal():
    right, wrong = Program("print('{\"fits\": 1}')"), Program("exit('error: no')")
    assert measure.figures(["a"], right) == measure.figures(["a"], right) == {"fits": 1}
    for _ in range(2):
        with pytest.raises(LabError, match=r"^no$"):
            measure.figures(["b"], wrong)
    measure.figures(["a", "b"], right)
    assert (right.runs, wrong.runs) == (2, 1)


def test_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(measure, "MOST_KEPT", 1)
    program = Program("print('{}')")
    for word in "aba":
        measure.figures([word], program)
    assert program.runs == 3


@pytest.mark.parametrize(("source", "seconds", "says"), [
    ("import time; time.sleep(60)", 0.5, "out of time at the estimate"),
    ("import os, time; os.close(1); time.sleep(60)", 0.5, "out of time|does not end"),
    ("import os; os.kill(os.getpid(), 9)", 10, "ended early: "),
    ("x = b'x' * (1 << 28)", 10, "ended early: its memory"),
    ("exit(3)", 10, "ended early: exit code 3")])
def test_an_estimate_that_does_not_finish_is_no_fault_of_the_student(
        monkeypatch, source, seconds, says):
    monkeypatch.setattr(measure, "LIMITS", replace(measure.LIMITS, memory=100 * MB))
    program, started = Program(source), time.monotonic()
    for _ in range(2):
        with pytest.raises(measure.Unmeasured, match=says):
            measure.figures(["a"], program, seconds)
    assert program.runs == 2 and time.monotonic() - started < 20


def test_endless_output_ends():
    program = Program("while True: print('{' * 100_000)")
    with pytest.raises(measure.Unmeasured, match="does not end"):
        measure.figures(["a"], program, seconds=10)
