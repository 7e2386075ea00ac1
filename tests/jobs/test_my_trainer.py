"""The student's own trainer on the real cluster."""

import re
import shutil

import pytest

from tests.jobs.test_jobs import TINY, losses, submit
from tests.lab.mytrainer.conftest import WORKED

pytestmark = pytest.mark.cluster


def test_two_nodes_with_two_ranks_each_train_with_the_students_ddp(course, warm):
    folder = course.home / "mytrainer"
    shutil.copytree(WORKED, folder, dirs_exist_ok=True)
    try:
        number, state = submit(course, f"sbatch code/my_trainer.sh {TINY} --train-iters 12 "
                               "--log-interval 4 --lr 1e-2")
    finally:
        shutil.rmtree(folder)
    log = (course.home / f"megatron/logs/my_trainer_{number}.txt").read_text()
    assert state == "COMPLETED|0:0", log[-3000:]
    assert re.search(r"^training .* parameters on 4 rank\(s\) with mytrainer/ddp.py$", log, re.M)
    loss = losses(log)
    assert len(loss) == 3 and loss[2] < loss[0]
    assert list((course.home / "megatron/tensorboard/my_trainer").glob("events.out.*"))
