"""Processes that are killed at every point of a save."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.arguments import parse_arguments
from minimegatron.checkpoint.async_save import start_saving
from minimegatron.checkpoint.save import TRACKER
from minimegatron.context import Context, Progress
from minimegatron.device.device import CpuDevice
from minimegatron.grid import make_grid
from minimegatron.main import main
from minimegatron.optim import LearningRate

FLAGS = ("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --lr 1 "
         "--max-position-embeddings 16 --micro-batch-size 2 --train-iters 9 --data-path x "
         "--vocab-file x --merge-file x --save-interval 1 --no-save-optim --save ")
# What a save needs of the optimizer of a model that is not sharded, with --no-save-optim.
UNSHARDED = SimpleNamespace(ddp=SimpleNamespace(full_params=nullcontext))
CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


class Killer:
    """Kills the process before its n-th change of the file system."""

    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0

    def audit(self, event: str, arguments: tuple) -> None:
        if event in CHANGES:
            self.count()

    def count(self) -> None:
        if self.seen == self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1


def save(*arguments: object) -> None:
    saving = start_saving(*arguments)
    if saving is not None:
        saving.finish()


def save_twice(root: Path, first: int, second: int, after: int, more: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = parse_arguments([*FLAGS.split(), str(root), *more.split()], {})
    ctx = Context(config, make_grid({}, "gloo"), CpuDevice())
    model, learning_rate = nn.Linear(30, 30), LearningRate(config)
    save(ctx, model, UNSHARDED, learning_rate, Progress(first), 128)
    killer, whole = Killer(after), torch.save

    def halting(state: dict, file: object) -> None:
        start = file.tell()
        whole(state, file)
        file.flush()
        os.truncate(file.fileno(), (start + file.tell()) // 2)
        killer.count()
        os.truncate(file.fileno(), start)
        file.seek(start)
        whole(state, file)

    torch.save = halting
    sys.addaudithook(killer.audit)
    save(ctx, model, UNSHARDED, learning_rate, Progress(second), 128)
    os._exit(0)


def run(root: str, first: int, second: int, more: str = "") -> int:
    """Save two iterations in ROOT/0, ROOT/1, .., and return how many of the saves were killed.

    The process of the n-th folder is killed (SIGKILL) before the n-th change that its second save
    makes to the file system. One of the kills comes when half of a file is written.

    Args:
        root: an empty folder.
        first: the iteration that is saved without a kill.
        second: the iteration whose save is killed.
        more: flags.
    """
    for after in range(200):
        folder = Path(root, str(after))
        folder.mkdir()
        child = os.fork()
        if child == 0:
            try:
                save_twice(folder, first, second, after, more)
            finally:
                os._exit(70)  # it must not go on as the rank that it was forked from
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return after
    raise AssertionError("a save that is never complete")


def kill_at_random(flags: list[str], root: str, seed: int) -> None:
    """Train until rank 1 is killed (SIGKILL), at a random time after one more checkpoint.

    Args:
        flags: the trainer's.
        root: --save.
        seed: of the random time.
    """
    tracker = Path(root, TRACKER)
    before = tracker.read_text() if tracker.exists() else ""
    trainer = os.fork()
    if not trainer:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.argv[1:] = flags
        try:
            main()
        finally:
            os._exit(70)
    if os.environ["RANK"] == "1":
        while not tracker.exists() or tracker.read_text() == before:
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0, 0.3))
        os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
