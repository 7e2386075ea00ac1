"""The student's own trainer on the real cluster."""

import json
import os
import re
import shutil

import pytest

from tests.jobs.test_jobs import TINY, losses, submit
from tests.lab.mytrainer.conftest import WORKED

pytestmark = pytest.mark.cluster


@pytest.fixture
def pieces(course):
    copies = [shutil.copy(path, course.home / "mytrainer") for path in WORKED.glob("*.py")]
    yield
    for copy in copies:
        os.unlink(copy)


def test_two_nodes_with_two_ranks_each_train_as_the_trainer_does(course, warm, pieces):
    """The reference is the same script, with the course's trainer in it."""
    flags = f"{TINY} --train-iters 10 --log-interval 1 --eval-iters 0"
    number, state = submit(course, f"sbatch code/my_trainer.sh {flags}")
    log = (course.home / f"megatron/logs/my_trainer_{number}.txt").read_text()
    assert state == "COMPLETED|0:0", log[-3000:]
    assert re.search(r"^training .* parameters on 4 rank\(s\) with mytrainer/ddp.py, "
                     r"mytrainer/launch.py, and mytrainer/train.py$", log, re.M)
    assert list((course.home / "megatron/tensorboard/my_trainer").glob("events.out.*"))
    (shown,) = json.loads(course.run(f"lab top {number} --json").stdout)["jobs"]
    assert [rank["state"] for rank in shown["ranks"]] == ["done"] * 4
    theirs, state = submit(course, "sed s,code/my_trainer.py,megatron/Megatron-LM/pretrain_gpt.py, "
                           f"code/my_trainer.sh | sbatch /dev/stdin {flags}")
    assert state == "COMPLETED|0:0"
    reference = losses((course.home / f"megatron/logs/my_trainer_{theirs}.txt").read_text())
    assert losses(log) == pytest.approx(reference, rel=1e-5) and len(reference) == 10
    assert reference[-1] < reference[0]
