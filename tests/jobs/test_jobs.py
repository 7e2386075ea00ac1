"""Slurm scripts on the real cluster: those we ship, and one of the classic course's form."""

import os
import re
from pathlib import Path

import pytest

from lab import workspace

pytestmark = pytest.mark.cluster

CLASSIC = Path(__file__).with_name("classic.sh")
SHIPPED = sorted((workspace.CODE / "jobs").glob("*.sh"))


@pytest.fixture
def lab(course):
    return course


def submit(lab, command, seconds=170):
    """Run an sbatch command; returns (job number, final state) when the job has ended."""
    done = lab.run(command)
    assert done.returncode == 0, done.stderr
    number = re.search(r"Submitted batch job (\d+)", done.stdout).group(1)
    query = f"sacct -n -X -P -j {number} -o State,ExitCode"
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
    assert lab.until(lambda: lab.run(query).stdout.startswith(ended), seconds)
    return number, lab.run(query).stdout.strip()


def losses(log):
    return [float(loss) for loss in re.findall(r"^ iteration .* lm loss: (\S+) \|", log, re.M)]


@pytest.mark.parametrize("script", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_script_trains(lab, script):
    number, state = submit(lab, f"sbatch code/{script.name} --train-iters 12 --log-interval 4 "
                                "--eval-iters 1 --save-interval 12")
    log = (lab.home / f"megatron/logs/{script.stem}_{number}.txt").read_text()
    assert state == "COMPLETED|0:0", log[-3000:]
    ranks = 4 if "#SBATCH --nodes=2" in script.read_text() else 2
    assert f"using world size: {ranks}, data-parallel-size: {ranks}" in log
    loss = losses(log)
    assert len(loss) == 3 and loss[2] < loss[0]
    assert (lab.home / f"megatron/checkpoints/{script.stem}/iter_0000012").is_dir()
    assert list((lab.home / f"megatron/tensorboard/{script.stem}").glob("events.out.*"))


def test_shipped_scripts_name_their_device_and_come_with_the_workspace(lab):
    assert len(SHIPPED) >= 2
    for script in SHIPPED:
        assert "--device " in script.read_text()
        assert os.access(lab.home / "code" / script.name, os.X_OK)


def test_a_script_of_the_classic_course_runs_unchanged(lab):
    """/dli paths, no partition, no gres, 32 CPUs per task, port 6000, TERM unset."""
    script = lab.home / "code" / "classic.sh"
    script.write_bytes(CLASSIC.read_bytes())
    number, state = submit(lab, "unset TERM; sbatch code/classic.sh")
    logs = lab.home / "megatron/logs"
    log = (logs / f"{number}.out").read_text()
    assert state == "COMPLETED|0:0", log[-3000:] + (logs / f"{number}.err").read_text()[-3000:]
    assert (logs / "log_2_nodes.txt").read_text() in log
    assert "using world size: 4, data-parallel-size: 4" in log
    assert len(losses(log)) == 3
    assert "--distributed-backend nccl needs GPUs: on the CPU gloo is used instead" in log
    assert (lab.home / "megatron/checkpoints/latest_checkpointed_iteration.txt").read_text() == "6"
