"""Estimate the cost of a job, its time and memory, with the trainer's own model of virtual GPUs.

The estimate depends only on the command line, not on anything that the student's code measured or
wrote: a check composes its own command line (allowed.py), and the side runs it without any of the
student's files. The same command line gives the same figures everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labcore.errors import LabError
from labcore.workspace import CODE
from labkit.check.allowed import Cluster, flags_for_estimate
from labkit.check.checks import Failed, passed
from labkit.check.job import TRAINER, Job
from labkit.check.sides import side

GIB = 2**30
SECONDS = 120  # for one estimate; the largest that allowed.py lets through takes a sixth of it
MOST_PRINTED = 1_000_000  # bytes of JSON
LARGEST = 1e30  # no figure is as large
REFUSED, REFUSAL = 1, "error: "  # the trainer's exit code, and what its last words begin with
GPT2_VOCABULARY = 50257
NUMBERS = ("seconds_per_iteration", "teraflops_per_gpu", "share_of_peak", "communication", "bubble",
           "parameters", "capacity")


@dataclass(frozen=True)
class Figures:
    """Figures for one iteration on virtual GPUs.

    Attributes:
        memory: peak memory of a rank of each stage in GiB, with CUDA's and NCCL's own.
        capacity: memory of the GPU in GiB.
        share_of_peak: share of the data sheet's FLOP/s.
        communication, bubble: shares of the time in which a GPU waits for collectives, and for
            other stages.
    """

    card: str
    milliseconds: float
    tokens_per_second: float
    teraflops_per_gpu: float
    share_of_peak: float
    communication: float
    bubble: float
    memory: tuple[float, ...]
    capacity: float
    fits: bool
    parameters: int

    @property
    def peak_memory(self) -> float:
        """GiB of the fullest rank."""
        return max(self.memory)


def figures(job: Job, device: str, *, network: str | None = None,
            vocab_size: int = GPT2_VOCABULARY) -> Figures:
    """Return the modeled figures of a job, no matter what device its script names.

    Args:
        job: from check.script.
        device: "virtual:GPU"; a node has as many GPUs as the job starts ranks there.
        network: between nodes, such as "ethernet:25gbit"; None for the GPU's usual one.
        vocab_size: of the model.

    Raises Failed when the job has problems, or cannot be estimated.
    """
    if not device.startswith("virtual:"):
        raise ValueError(f"check.figures: {device!r} is no virtual card, such as 'virtual:v100'")
    flags = job.flags
    if job.problems:
        raise Failed("This job has no figures, it would go wrong. " + " ".join(job.problems))
    try:
        words = flags_for_estimate(flags, Cluster(device, job.ranks_per_node, network), vocab_size)
        found = read(side().figures(words), flags.global_batch_size * flags.seq_length)
    except LabError as error:
        raise Failed(f"What this job would cost cannot be said: {error}") from None
    passed(f"{found.milliseconds:.1f} ms per iteration and {found.peak_memory:.2f} of "
           f"{found.capacity:.2f} GiB on {job.world_size} {found.card}"
           + ("" if found.fits else ": CUDA out of memory"))
    return found


def program(words: Sequence[str]) -> list[str]:
    """The command that estimates."""
    return [sys.executable, str(CODE / TRAINER), *words]


def run_here(words: Sequence[str]) -> dict[str, Any]:
    """Estimate in a process of its own, which sees nothing of this one's; or as it was before in
    this one: checks are run again and again. Raises LabError."""
    environment = {name: value for name, value in os.environ.items()
                   if name in ("PATH", "HOME", "LANG", "PYTHONPATH")} | {"OMP_NUM_THREADS": "1"}
    return printed(*_run(tuple(program(words)), tuple(environment.items())))


@functools.lru_cache(maxsize=1000)
def _run(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]
         ) -> tuple[int, bytes, str]:
    """Exit code, output and last words of an estimate. What raises is not kept: a library that
    had no memory for a thread may have it the next time."""
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"the estimate took more than {SECONDS} s") from error
    answer = done.returncode, done.stdout, done.stderr.decode(errors="replace")
    with contextlib.suppress(Refused):
        printed(*answer)
    return answer


class Refused(LabError):
    """The trainer's words on why it does not estimate this."""


class Crashed(LabError):
    """The trainer ended in another way than by an estimate or a refusal."""


def printed(code: int, out: bytes, err: str) -> dict[str, Any]:
    """The JSON that the trainer printed. Raises Refused where it refused, and Crashed where it
    ended otherwise or printed no object."""
    if code != 0:
        _, refusal, words = f"\n{err.strip()}".rpartition(f"\n{REFUSAL}")
        if code == REFUSED and refusal:
            raise Refused(words[:1000])
        last = words.splitlines()[-1] if words.strip() else "it says nothing"
        raise Crashed(f"the trainer ended with exit code {code}: {last[:1000]}")
    try:
        if len(out) > MOST_PRINTED:
            raise ValueError(f"{len(out):,} bytes")
        found = json.loads(out)
        if not isinstance(found, dict):
            raise ValueError("no object")
        return found
    except (ValueError, RecursionError) as error:
        raise Crashed(f"the trainer printed no estimate: {error}") from error


def read(found: dict[str, Any], tokens: int) -> Figures:
    """The figures in the trainer's JSON of an iteration of so many tokens. Raises LabError."""
    memory = found.get("memory")
    totals = [stage.get("total") if isinstance(stage, dict) else None
              for stage in memory] if isinstance(memory, list) else []
    numbers = [found.get(name) for name in NUMBERS]
    sound = (totals and isinstance(found.get("card"), str) and type(found.get("fits")) is bool
             and all(type(number) in (int, float) and 0 <= number < LARGEST
                     for number in (*totals, *numbers))
             and found["seconds_per_iteration"] > 1 / LARGEST)
    if not sound:
        raise LabError("the trainer printed no estimate: a field is missing or of the wrong kind")
    seconds = found["seconds_per_iteration"]
    return Figures(found["card"], 1000 * seconds, tokens / seconds, found["teraflops_per_gpu"],
                   found["share_of_peak"], found["communication"], found["bubble"],
                   tuple(total / GIB for total in totals), found["capacity"] / GIB, found["fits"],
                   found["parameters"])
