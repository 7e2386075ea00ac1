"""A workspace with the pieces that a student has written, and the loop on warm ranks."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from lab.mytrainer.worked import WORKED_FOLDER
from labcore.workspace import CHECKOUT, CODE
from tests.lab.mytrainer.program import SCRIPT, main
from tests.minimegatron.conftest import Run, checked, dataset, train  # noqa: F401  fixtures
from warmranks import run_program

WORKED = CHECKOUT / WORKED_FOLDER
MODEL = ("--device cpu --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
         "--max-position-embeddings 32 --attention-dropout 0 --hidden-dropout 0 ")
TRAINING = ("--global-batch-size 16 --train-iters 32 --log-interval 1 --eval-iters 0 --lr 1e-3 "
            "--min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.1 --weight-decay 0.1 "
            "--clip-grad 0.5 --split 900,50,50 ")
FP16 = ("--fp16 --initial-loss-scale 33554432 --loss-scale-window 4 --hysteresis 2 "
        "--accumulate-allreduce-grads-in-fp32 ")
# A sample per micro-batch: launch.py may give the samples to ranks in another order, and the sum of
# other samples overflows at another step.
SCALED = TRAINING.replace("--train-iters 32", "--train-iters 20") + "--micro-batch-size 1 "


class Student:
    """A workspace, as $LAB_HOME names it while a test runs."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "mytrainer"
        self.folder.mkdir(parents=True)

    def solve(self, *names: str) -> None:
        """Write pieces correctly; an extended one, such as new/ddp, as if it were adopted."""
        for name in names:
            shutil.copy(WORKED / f"{name}.py", self.folder)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / f"{name}.py").write_text(text)

    def change(self, name: str, old: str, new: str, file: str = "") -> None:
        """Write a piece with one passage replaced, to another file if one is named."""
        text = (WORKED / f"{name}.py").read_text()
        assert text.count(old) == 1, old
        self.write(file or name, text.replace(old, new))


def forget() -> None:
    """Let the next import of a piece read its file."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mytrainer"]:
        del sys.modules[name]


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "workspace"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield Student(tmp_path / "workspace")
    forget()


@pytest.fixture
def my_trainer(student):
    """Run code/my_trainer.py on warm ranks."""

    def run(flags: str, ranks: int = 0, code: int = 0) -> Run:
        return checked(run_program(main, [SCRIPT, *shlex.split(flags)], ranks=ranks, timeout=200,
                                   cwd=CODE.parent, env=dict(os.environ)), code)

    return run


@pytest.fixture(scope="session")
def reference(train, dataset):  # noqa: F811
    """Loss and gradient norm of pretrain_gpt.py on one rank."""
    run = train(TRAINING + "--micro-batch-size 2", base=MODEL + dataset.flags)
    return run.column("lm loss"), run.column("grad norm")


@pytest.fixture(scope="session")
def scaled(train, dataset):  # noqa: F811
    """The log of pretrain_gpt.py in fp16, on one rank."""
    return train(SCALED + FP16, base=MODEL + dataset.flags)
