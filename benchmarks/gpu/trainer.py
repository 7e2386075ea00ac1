"""Runs of the trainer: start pretrain_gpt.py, and read what it logs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.gpu.runner import ROOT, environment

sys.path.insert(0, str(ROOT / "benchmarks"))
from runs import data_flags

__all__ = ["Run", "Step", "TrainerFailed", "data_flags", "start", "train"]

ITERATION = re.compile(r"^ iteration +(\d+)/.*$", re.M)
FIELDS = {"loss": r"lm loss: (\S+)", "norm": r"grad norm: (\S+)", "scale": r"loss scale: (\S+)",
          "milliseconds": r"elapsed time per iteration \(ms\): (\S+)"}
MEMORY = re.compile(r"^\[Rank 0\].*\| allocated: (\S+) \| max allocated: (\S+) \| "
                    r"reserved: (\S+) \| max reserved: (\S+)", re.M)
SECONDS = 240  # the longest that one run may take
LAST_LINES = 6


class TrainerFailed(Exception):
    """A run of the trainer did not exit with 0; the message has its last lines."""


@dataclass(frozen=True)
class Step:
    """One iteration line; None for what it does not show (a skipped step has no loss)."""

    loss: float | None
    norm: float | None
    scale: float | None
    milliseconds: float | None


@dataclass(frozen=True)
class Run:
    """What a run printed.

    Attributes:
        text: standard output and error.
        code: the exit code.
        steps: the iteration lines by number.
        allocated, reserved: rank 0's peaks in bytes after the first steps; None without the line.
    """

    text: str
    code: int
    steps: dict[int, Step] = field(default_factory=dict)
    allocated: float | None = None
    reserved: float | None = None

    def milliseconds(self, first: int) -> float:
        """Return the median step time from iteration `first` on."""
        times = sorted(step.milliseconds for number, step in self.steps.items()
                       if number >= first)
        return times[len(times) // 2]


def train(flags: str, device: str = "cuda", ranks: int = 1, check: bool = True,
          shared_gpu: bool = False, **variables: str) -> Run:
    """Run the trainer and return what it printed.

    Args:
        flags: its command line, without --device.
        device: for --device.
        ranks: how many processes; each has a GPU of its own unless `shared_gpu`.
        check: whether a failed run raises TrainerFailed.
        shared_gpu: whether all ranks use GPU 0.
        variables: added to the environment.

    Raises:
        TrainerFailed: the run failed or took longer than SECONDS.
    """
    processes = start(flags, device, ranks, shared_gpu, **variables)
    try:
        texts = [process.communicate(timeout=SECONDS)[0] for process in processes]
    except subprocess.TimeoutExpired as error:
        raise TrainerFailed(f"not finished after {SECONDS} s: --device {device} {flags}"
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
    """Start the ranks of a run; the arguments are those of `train`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "code" / "pretrain_gpt.py"), "--device", device,
               *flags.split()]
    meeting = {} if ranks == 1 else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                     "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(0 if shared_gpu else rank)}
              if ranks > 1 else {} for rank in range(ranks)]
    return [subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**environment(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
             **meeting, **place, **variables}) for place in places]


def parse(text: str, code: int) -> Run:
    """Read a log."""
    steps = {}
    for line in ITERATION.finditer(text):
        found = {name: re.search(pattern, line[0]) for name, pattern in FIELDS.items()}
        steps[int(line[1])] = Step(**{name: match and float(match[1])
                                      for name, match in found.items()})
    memory = MEMORY.search(text)
    peaks = (float(memory[2]) * 2**20, float(memory[4]) * 2**20) if memory else (None, None)
    return Run(text, code, steps, *peaks)


@contextmanager
def small_model(iterations: int = 10) -> Iterator[str]:
    """Flags of a small GPT with dropout and of its data, as long as the context lasts."""
    with data_flags() as data:
        yield ("--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256 "
               "--max-position-embeddings 256 --micro-batch-size 4 --global-batch-size 8 "
               f"--train-iters {iterations} --lr 1e-3 --lr-decay-iters 100 --log-interval 1 "
               f"--eval-iters 0 --make-vocab-size-divisible-by 64 {data}")
