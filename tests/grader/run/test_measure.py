"""The figures of a job, when it is graded: computed in a sandbox, from the command line alone."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
from nbformat import v4

from grader.run import measure
from grader.run.lab_plan import GradingPlan, bound_by_answers, planned
from grader.run.notebook_run import NotebookRun
from grader.run.settings import Grading
from grader.sandbox.bubblewrap import Bubblewrap
from grader.sandbox.interface import MB
from labcore.errors import LabError
from labkit.check.allowed import EstimateHardware, flags_for_estimate
from labkit.check.measure import read
from tests.grader.small_lab import cell, find, marks
from tests.labkit.check.test_measure import CARD, in_process, job

pytestmark = pytest.mark.slow


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
    monkeypatch.setattr(measure, "_cache", measure.OrderedDict())


@pytest.mark.slow
def test_a_graded_job_has_the_figures_that_the_notebook_showed(monkeypatch):
    """Nothing of the environment decides."""
    monkeypatch.setenv("VIRTUAL_GPU", "h200")
    monkeypatch.setenv("VIRTUAL_NETWORK", "ethernet:1gbit")
    words = flags_for_estimate(job().flags, EstimateHardware(CARD, 1), 500)
    content = read(measure.figures(words, Bubblewrap()), 128)
    assert content.milliseconds == 1000 * in_process(words).seconds_per_iteration


@pytest.mark.slow
def test_what_the_trainer_refuses_is_said_in_its_words():
    words = flags_for_estimate(job().flags, EstimateHardware("virtual:v10", 1), 500)
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
    monkeypatch.setattr(measure, "CACHE_SIZE", 1)
    program = Program("print('{}')")
    for word in "aba":
        measure.figures([word], program)
    assert program.runs == 3


@pytest.mark.parametrize(("source", "seconds", "says"), [
    ("import time; time.sleep(60)", 0.5, "out of time while estimating"),
    ("import os, time; os.close(1); time.sleep(60)", 0.5, "out of time|does not end"),
    ("import os; os.kill(os.getpid(), 9)", 10, "ended early: "),
    ("x = b'x' * (1 << 28)", 10, "ended early: its memory"),
    ("raise MemoryError('no room')", 10, "failed: .*exit code 1: MemoryError: no room"),
    ("print('half an est')", 10, "failed: .*no estimate"),
    ("exit(3)", 10, "ended early: exit code 3")])
def test_an_estimate_that_does_not_finish_is_no_fault_of_the_student(
        monkeypatch, source, seconds, says):
    monkeypatch.setattr(measure, "LIMITS", replace(measure.LIMITS, memory=100 * MB))
    program, started = Program(source), time.monotonic()
    for _ in range(2):
        with pytest.raises(measure.EstimateFailed, match=says):
            measure.figures(["a"], program, seconds)
    assert program.runs == 2 and time.monotonic() - started < 20


def test_endless_output_ends():
    program = Program("while True: print('{' * 100_000)")
    with pytest.raises(measure.EstimateFailed, match="does not end"):
        measure.figures(["a"], program, seconds=10)


# An exercise: the largest micro-batch of GPT-2 small that fits on a V100.
SCRIPT = """%%writefile code/mine.sh
#!/bin/bash
#SBATCH --nodes=1 --gpus-per-node=1
torchrun --nproc_per_node 1 $LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \\
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \\
    --max-position-embeddings 1024 --micro-batch-size 6 --lr 1e-4 --train-iters 5 \\
    --data-path $LAB_HOME/data/x --vocab-file v --merge-file m --device virtual \\
    --save $LAB_HOME/out --save-interval 5
"""
CHECK = """job = check.script("code/mine.sh", given=None)
cost = check.figures(job, "virtual:v100")
check.that(cost.fits, "It does not fit.")
check.that(cost.peak_memory > 0.9 * cost.capacity, "There is room for more.")
"""
FORGE = "echo elapsed time per iteration: 1 ms, fits: yes > megatron/logs/log.txt\n"


def answered(script: str) -> v4.new_notebook:
    return v4.new_notebook(cells=[
        cell("import os\nos.chdir(os.environ['LAB_HOME'])", ["setup"]),
        cell("from labkit import check", ["check-setup"]),
        cell(script, **marks("script", solution=True, locked=False)),
        cell(CHECK, **marks("script-check", grade=True, points=2))])


def graded(script: str, backend=None) -> tuple[dict, str, str]:
    """(scores, why ungraded, what the check said)."""
    notebook = answered(script)
    plan = GradingPlan("exercise", "", answered(SCRIPT), tuple(
        planned(index, one) for index, one in enumerate(notebook.cells)),
        bound_by_answers(answered(SCRIPT)))
    run = NotebookRun(plan, notebook, backend or Bubblewrap(), Grading(), "seed")
    reason = run.run()
    said = "".join(output.get("text", output.get("evalue", ""))
                   for output in find(notebook, "script-check").outputs)
    return run.scores, reason, said


@pytest.mark.slow
def test_the_largest_micro_batch_that_fits_is_found_and_nothing_else():
    scores, reason, said = graded(SCRIPT)
    assert (scores, reason) == ({"script-check": 2.0}, ""), said
    assert "GiB on 1 virtual v100-sxm2-16gb" in said
    for change, says in (
            (("--micro-batch-size 6", "--micro-batch-size 7"), "It does not fit"),
            (("--lr 1e-4", "--lr 1e-4 --schedule /home/student/evil.py"), "--schedule /home"),
            (("torchrun", "echo 'fits: yes'; exit\ntorchrun"), "does not start the trainer")):
        scores, reason, said = graded(SCRIPT.replace(*change) + FORGE)
        assert (scores, reason) == ({"script-check": 0.0}, "") and says in said


@pytest.mark.slow
def test_without_figures_a_check_is_not_scored(monkeypatch):
    """A grader's own trouble costs nobody a point."""
    monkeypatch.setattr(measure, "program", lambda words: ["/bin/sh", "-c", "kill -9 $$"])
    scores, reason, said = graded(SCRIPT)
    assert scores == {} and "script-check" in reason and "the estimate of its job" in reason
    assert "not scored" in said
