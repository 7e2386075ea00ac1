"""The examples' job scripts, from the workspace, on the real cluster."""

import re

import pytest

import pipe_dream
import setting
from pipeline_schedules import one_f_one_b, peak_live, to_text

from ..labs.warm.launch import more_servers
from .runs import assert_same, plain, printed

pytestmark = pytest.mark.cluster

SHORT = "--seq-length 32 --iterations 2"


@pytest.fixture(scope="module")
def programs(course, warm_nodes):
    """Import what the programs need once, for all jobs."""
    with more_servers(warm_nodes, course, "lablib.deepspeed_cpu deepspeed.pipe torchgpipe"
                      ) as started, started.commands():
        yield


@pytest.fixture(scope="module", params=["warm", pytest.param("cold", marks=pytest.mark.stress)])
def logs(request, course):
    """{name: log} of three jobs of the same batches, submitted at once."""
    if request.param == "warm":
        request.getfixturevalue("programs")
    commands = {"gpipe": "code/examples/gpipe.sh --chunks 8",
                "four": "code/examples/pipe_dream.sh",
                "two": "--ntasks-per-node=1 code/examples/pipe_dream.sh --balance 7,7"}
    numbers = {}
    for name, command in commands.items():
        done = course.run(f"sbatch --parsable {command} {SHORT}")
        assert done.returncode == 0, done.stderr
        numbers[name] = done.stdout.strip()
    waiting = f"squeue -h -j {','.join(numbers.values())}"
    assert course.until(lambda: not course.run(waiting).stdout.strip(), 170)
    folder = course.home / "megatron/logs"
    return {name: next(folder.glob(f"*_{number}.txt")).read_text()
            for name, number in numbers.items()}


def test_two_ranks_four_ranks_and_torchgpipe_train_as_one_process_does(course, logs, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(course.home))
    run = setting.read(pipe_dream.flags().parse_args(["--seq-length", "32"]))
    wanted = plain(run, 16, 2)
    for log in logs.values():
        assert_same(printed(log), wanted)


def test_stages_print_their_order_and_keep_what_it_says(logs):
    for name, stages in (("two", 2), ("four", 4)):
        for stage, row in enumerate(to_text(one_f_one_b(stages, 8))):
            assert f"stage {stage}: {row}\n" in logs[name]
    results = {name: sorted(re.findall(r"^stage (\d): layers (\d+) to (\d+), .*?, (\S+) MB of act",
                                       log, re.M)) for name, log in logs.items()}
    assert [stage for stage, *_ in results["two"]] == ["0", "1"]
    assert [stage for stage, *_ in results["four"]] == ["0", "1", "2", "3"]
    # Stages 1 and 2 have equal layers: activations grow with the micro-batches in flight.
    _, (_, first, last, peak), (_, _, _, later), _ = results["four"]
    kept = peak_live(one_f_one_b(4, 8))
    assert (first, last) == ("4", "6")
    assert float(peak) / float(later) == pytest.approx(kept[1] / kept[2], rel=0.1)
