"""Run the trainer (pretrain_gpt.py), and parse its log."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from benchmarks.gpu.runner import ROOT, environment
from job_monitor import logs
from job_monitor.logs import Iteration

sys.path.insert(0, str(ROOT / "benchmarks"))
from runs import data_flags

__all__ = ["Run", "TrainerFailed", "data_flags", "small_model", "start", "train"]

MEMORY = re.compile(r"^\[Rank 0\].*\| allocated: (\S+) \| max allocated: (\S+) \| "
                    r"reserved: (\S+) \| max reserved: (\S+)", re.M)
SECONDS = 240  # time limit of one run
LAST_LINES = 6


class TrainerFailed(Exception):
    """A run failed or timed out; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Run:
    """A finished run and its parsed log.

    Attributes:
        text: standard output and standard error of all ranks.
        code: exit code, that of the first failed rank if any failed.
        steps: iteration lines by iteration number.
        allocated: rank 0's peak of allocated memory in bytes, or None if it was not logged.
        reserved: rank 0's peak of reserved memory in bytes, or None if it was not logged.
    """

    text: str
    code: int
    steps: dict[int, Iteration] = field(default_factory=dict)
    allocated: float | None = None
    reserved: float | None = None

    def milliseconds(self, first: int) -> float:
        """Return the median step time from iteration `first` on."""
        return median(step.milliseconds for number, step in self.steps.items() if number >= first)


def train(flags: str, device: str = "cuda", ranks: int = 1, check: bool = True,
          shared_gpu: bool = False, **variables: str) -> Run:
    """Run the trainer to its end, and parse its log.

    Args:
        flags: command line of the trainer, without --device.
        device: value of --device.
        ranks: number of processes; each has its own GPU unless `shared_gpu` is set.
        check: raise TrainerFailed if the exit code is not 0.
        shared_gpu: let all ranks use GPU 0.
        variables: environment variables to add.

    Raises:
        TrainerFailed: The run failed or took longer than SECONDS.
    """
    processes = start(flags, device, ranks, shared_gpu, **variables)
    try:
        texts = [process.communicate(timeout=SECONDS)[0] for process in processes]
    except subprocess.TimeoutExpired as error:
        raise TrainerFailed(f"still running after {SECONDS} s: --device {device} {flags}"
                            ) from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    run = parse("".join(texts), next((p.returncode for p in processes if p.returncode), 0))
    if check and run.code:
        last = [line for line in run.text.splitlines() if line.strip()][-LAST_LINES:]
        raise TrainerFailed("\n".join([f"exit code {run.code}: --device {device} {flags}", *last]))
    return run


def start(flags: str, device: str, ranks: int = 1, shared_gpu: bool = False, **variables: str
          ) -> list[subprocess.Popen]:
    """Start the ranks of a run without waiting for them; `train` documents the arguments."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "code" / "pretrain_gpt.py"), "--device", device,
               *flags.split()]
    rendezvous = {} if ranks == 1 else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(0 if shared_gpu else rank)}
              if ranks > 1 else {} for rank in range(ranks)]
    return [subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**environment(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
             **rendezvous, **place, **variables}) for place in places]


def parse(text: str, code: int) -> Run:
    """Parse the log of a run that ended with this exit code."""
    steps = {step.iteration: step for step in logs.parse(text.splitlines()).iterations}
    memory = MEMORY.search(text)
    peaks = (float(memory[2]) * 2**20, float(memory[4]) * 2**20) if memory else (None, None)
    return Run(text, code, steps, *peaks)


@contextmanager
def small_model(iterations: int = 10) -> Iterator[str]:
    """Yield the flags of a small GPT with dropout; its data set is deleted on exit."""
    with data_flags() as data:
        yield ("--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256 "
               "--max-position-embeddings 256 --micro-batch-size 4 --global-batch-size 8 "
               f"--train-iters {iterations} --lr 1e-3 --lr-decay-iters 100 --log-interval 1 "
               f"--eval-iters 0 --make-vocab-size-divisible-by 64 {data}")
