"""A student's schedule from the workspace, on ranks of two nodes: `--schedule code/my_gpipe.py`."""

import re

import pytest

from lablib import plots
from pipeline_schedules import gpipe, parse, timeline_of

from .test_jobs import TINY, losses

pytestmark = pytest.mark.cluster

MINE = """def my_gpipe(p, m):
    numbers = [f"F{k}" for k in range(m)] + [f"B{k}" for k in range(m)]
    return [numbers] * p
"""
HANGS = """def my_gpipe(p, m):
    return [" ".join(f"F{k} B{k}" for k in range(m))] * (p - 1) + [
        " ".join(f"F{k} B{k}" for k in reversed(range(m)))]
"""
SHORT = (TINY + "--train-iters 3 --log-interval 1 --eval-iters 0 --global-batch-size 8 "
         "--save-interval 100 --lr 1e-2")
JOBS = {
    "mine": f"code/pp_two_nodes.sh {SHORT} --schedule code/mine/my_gpipe.py "
            "--timeline megatron/timeline/mine",
    "built_in": f"code/pp_two_nodes.sh {SHORT} --schedule gpipe --balance 1-1-1-1",
    "hangs": f"code/pp_two_nodes.sh {SHORT} --schedule code/hangs/my_gpipe.py",
    "uneven": f"code/pp_two_nodes.sh {SHORT} --balance 1-1-3",
    "two": f"--nodes=1 code/pp_two_nodes.sh {SHORT} --pipeline-model-parallel-size 2 "
           "--schedule code/mine/my_gpipe.py --balance 1-3 --timeline megatron/timeline/two",
}


@pytest.fixture(scope="module")
def ended(course, warm):
    """{name: (its log, its state)} of all jobs, submitted at once."""
    for name, text in (("mine", MINE), ("hangs", HANGS)):
        (course.home / "code" / name).mkdir(exist_ok=True)
        (course.home / "code" / name / "my_gpipe.py").write_text(text)
    numbers = {}
    for name, words in JOBS.items():
        done = course.run(f"sbatch --parsable --job-name={name} {words}")
        assert done.returncode == 0, done.stderr
        numbers[name] = done.stdout.strip()
    assert course.until(lambda: not course.run("squeue -h").stdout.strip(), 240)
    states = dict(line.split("|", 1) for line in
                  course.run("sacct -n -X -P -o JobID,State").stdout.splitlines())
    return {name: ((course.home / f"megatron/logs/{name}_{number}.txt").read_text(),
                   states[number]) for name, number in numbers.items()}


def test_one_s_own_schedule_trains_as_the_built_in_one_does(course, ended):
    (mine, state), (built_in, other) = ended["mine"], ended["built_in"]
    assert state == other == "COMPLETED", mine[-3000:] + built_in[-3000:]
    assert "pipeline-model-parallel size: 4" in mine
    assert len(losses(mine)) == 3 and losses(mine) == pytest.approx(losses(built_in), rel=1e-4)


@pytest.mark.parametrize(("name", "stages"), [("mine", 4), ("two", 2)])
def test_its_timeline_is_drawn_from_the_workspace(course, ended, monkeypatch, name, stages):
    log, state = ended[name]
    assert state == "COMPLETED", log[-3000:]
    monkeypatch.setenv("LAB_HOME", str(course.home))
    timeline = plots.timeline(f"megatron/timeline/{name}")
    kinds = [[span.kind for span in spans] for spans in timeline.spans.values()]
    assert kinds == [[action.kind for action in actions] for actions in gpipe(stages, 4)]
    both = plots.pipeline(f"megatron/timeline/{name}", simulated=True)
    assert both.alt.count(f"{stages} stages over time. total ") == 2
    assert timeline_of(parse([["F0", "B0"]])).total < timeline.total


@pytest.mark.parametrize(("name", "said"), [
    ("hangs", r"\[rank 0\] error: --schedule code/hangs/my_gpipe.py: deadlock: stage 2 is at B0 "),
    ("uneven", r"error: --balance 1-1-3 is for 3 stage\(s\), but .* nearest: --balance 1-1-1-1")])
def test_what_cannot_work_is_said_once_and_ends_the_job(ended, name, said):
    log, state = ended[name]
    assert state == "FAILED"
    assert len(re.findall(f"^{said}", log, re.M)) == 1, log[-3000:]
    assert len(re.findall(r"^(\[rank \d\] )?error: ", log, re.M)) == 1
