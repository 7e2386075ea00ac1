"""The examples' job scripts, from the workspace, on the real cluster."""

import re

import pytest

import pipe_dream
import setting
from pipeline_schedules import one_f_one_b, peak_live, to_text

from .runs import assert_same, plain, printed

pytestmark = pytest.mark.cluster

SHORT = "--seq-length 32 --iterations 2"


@pytest.fixture(scope="module")
def logs(course):
    """{name: log} of two jobs of the same batches, submitted at once."""
    commands = {"gpipe": "gpipe.sh --chunks 8", "four": "pipe_dream.sh"}
    numbers = {}
    for name, command in commands.items():
        done = course.run(f"sbatch --parsable code/examples/{command} {SHORT}")
        assert done.returncode == 0, done.stderr
        numbers[name] = done.stdout.strip()
    waiting = f"squeue -h -j {','.join(numbers.values())}"
    assert course.until(lambda: not course.run(waiting).stdout.strip(), 170)
    folder = course.home / "megatron/logs"
    return {name: next(folder.glob(f"*_{number}.txt")).read_text()
            for name, number in numbers.items()}


def test_four_ranks_and_torchgpipe_train_as_one_process_does(course, logs, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(course.home))
    run = setting.read(pipe_dream.flags().parse_args(["--seq-length", "32"]))
    wanted = plain(run, 16, 2)
    for log in logs.values():
        assert_same(printed(log), wanted)


def test_stages_print_their_order_and_keep_what_it_says(logs):
    """Two stages, whose balance is a flag: test_pipe_dream.py."""
    schedule = one_f_one_b(4, 8)
    for stage, row in enumerate(to_text(schedule)):
        assert f"stage {stage}: {row}\n" in logs["four"]
    found = re.findall(r"^stage (\d): layers (\d+) to (\d+), .*?, (\S+) MB of act", logs["four"],
                       re.M)
    assert [int(stage) for stage, *_ in sorted(found)] == list(range(4))
    # Stages 1 and 2 have equal layers: activations grow with the micro-batches in flight.
    _, (_, first, last, peak), (_, _, _, later), _ = sorted(found)
    kept = peak_live(schedule)
    assert (first, last) == ("4", "6")
    assert float(peak) / float(later) == pytest.approx(kept[1] / kept[2], rel=0.1)
