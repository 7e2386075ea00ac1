"""Estimate a job's time and memory with the trainer's own model of virtual GPUs.

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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from labcore.errors import LabError
from labcore.workspace import CODE
from labkit.check.allowed import EstimateHardware, flags_for_estimate
from labkit.check.checks import Failed, passed
from labkit.check.job import TRAINER, Job
from labkit.check.sides import current_side
from virtualgpu.core import accuracy, cards, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.cluster_spec import NodeGroup, parse_nodes

GIB = 2**30
SECONDS = 120  # for one estimate; the largest that allowed.py lets through takes a sixth of it
MOST_PRINTED = 1_000_000  # bytes of JSON
LARGEST = 1e30  # figures above this are invalid
REFUSED, REFUSAL = 1, "error: "  # the trainer's exit code, and the prefix of its error message
GPT2_VOCABULARY = 50257
NUMBERS = ("seconds_per_iteration", "teraflops_per_gpu", "share_of_peak", "communication", "bubble",
           "parameters")


class StageMemory(NamedTuple):
    """Memory of the fullest rank that a pipeline stage has on one GPU model, in GiB.

    Attributes:
        stage: its number.
        gpu: the GPU model, such as "a10".
        memory: peak memory, including CUDA's and NCCL's.
        capacity: memory of the GPU.
    """

    stage: int
    gpu: str
    memory: float
    capacity: float

    @property
    def fits(self) -> bool:
        """Return whether the stage fits this GPU."""
        return self.memory <= self.capacity


@dataclass(frozen=True)
class Figures:
    """Figures for one iteration on virtual GPUs.

    Attributes:
        stages: the memory of each stage; a stage that has several GPU models is there for each.
        share_of_peak: MFU, from 0 to 1.
        communication, bubble: shares of the time in which a GPU waits for collectives, and for
            other stages.
        error, memory_error: expected errors of modeled step times and of peak memory on these GPUs
            (virtualgpu.core.accuracy); None where nothing was compared.
    """

    card: str
    milliseconds: float
    tokens_per_second: float
    teraflops_per_gpu: float
    share_of_peak: float
    communication: float
    bubble: float
    stages: tuple[StageMemory, ...]
    fits: bool
    parameters: int
    error: float | None = None
    memory_error: float | None = None

    @property
    def memory(self) -> tuple[float, ...]:
        """Return the peak memory of a rank of each stage, in GiB."""
        return tuple(stage.memory for stage in self.stages)

    @property
    def fullest(self) -> StageMemory:
        """Return the stage with the least room left on its GPU."""
        return min(self.stages, key=lambda stage: stage.capacity - stage.memory)

    @property
    def peak_memory(self) -> float:
        """Return the peak memory of the fullest rank, in GiB."""
        return self.fullest.memory

    @property
    def capacity(self) -> float:
        """Return the memory of the fullest rank's GPU, in GiB."""
        return self.fullest.capacity


def figures(job: Job, device: str | None = None, *, cluster: str | None = None,
            network: str | None = None, vocab_size: int = GPT2_VOCABULARY) -> Figures:
    """Return the modeled figures of a job, no matter what device its script names.

    Args:
        job: from check.script.
        device: "virtual:GPU"; a node has as many GPUs as the job starts ranks there.
        cluster: instead of `device`, the job's nodes in the order of their node ranks, as
            KIND:GPUSxNODES for each kind: "a100:2x1,a10:2x1".
        network: between nodes, such as "ethernet:25gbit"; None for the GPUs' usual one.
        vocab_size: the model's vocabulary size.

    Raises Failed when the job has problems, does not run on these nodes, or cannot be estimated.
    """
    if (device is None) == (cluster is None):
        raise ValueError("check.figures: give either a device, such as 'virtual:v100', or "
                         "cluster='a100:2x1,a10:2x1'")
    if device is not None and not device.startswith("virtual:"):
        raise ValueError(f"check.figures: {device!r} is not a virtual GPU, such as 'virtual:v100'")
    groups = _groups(cluster) if cluster is not None else ()
    flags = job.flags
    if job.problems:
        raise Failed("This job would fail, so it has no estimate. " + " ".join(job.problems))
    if groups:
        _require_nodes(job, groups)
    try:
        hardware = EstimateHardware(device or "", job.ranks_per_node, network,
                                    ",".join(map(str, groups)) or None)
        words = flags_for_estimate(flags, hardware, vocab_size)
        estimate = read(current_side().figures(words), flags.global_batch_size * flags.seq_length)
    except LabError as error:
        raise Failed(f"The cost of this job cannot be estimated: {error}") from None
    software = flags.software_stack
    modeled = [stacks.under_megatron(cards.find(stage.gpu), software)
               for stage in estimate.stages]
    estimate = replace(estimate, error=accuracy.expected_error(modeled),
                       memory_error=accuracy.memory_error(modeled))
    passed(f"{estimate.milliseconds:.1f} ms per iteration (modeled, "
           f"{accuracy.margin(estimate.error)}) and {estimate.peak_memory:.2f} "
           f"({accuracy.margin(estimate.memory_error)}) of "
           f"{estimate.capacity:.2f} GiB on {job.world_size} {estimate.card}"
           + ("" if estimate.fits else ": CUDA out of memory"))
    return estimate


def _groups(cluster: str) -> tuple[NodeGroup, ...]:
    try:
        return parse_nodes(cluster)
    except VirtualGpuError as error:
        raise ValueError(f"check.figures: {error}") from None


def _require_nodes(job: Job, groups: Sequence[NodeGroup]) -> None:
    """Raise Failed unless the job's nodes are those of a cluster, in the order of the node ranks.

    A node that the script requests without a GPU kind may have any.
    """
    cluster = ",".join(map(str, groups))
    size = " + ".join(f"{group.nodes} x {group.per_node}" for group in groups)
    per_node = [group.per_node for group in groups for _ in range(group.nodes)]
    if [node.ranks for node in job.run.on_nodes] != per_node:
        raise Failed(f"The script starts ranks on {job.run.size} (nodes x ranks per node, in the "
                     f"order of the node ranks); the cluster {cluster} has {size} GPUs.")
    models = (group.card for group in groups for _ in range(group.nodes))
    for rank, (node, card) in enumerate(zip(job.run.on_nodes, models, strict=True)):
        kind = job.components[node.component].gpu
        if kind and not _is_kind(kind, card):
            raise Failed(f"Node rank {rank} is on a node with {kind[:50]} GPUs, which component "
                         f"{node.component} of the job requests; in the cluster {cluster}, it has "
                         f"{card.name} GPUs.")


def _is_kind(kind: str, card: Card) -> bool:
    try:
        return cards.find(kind) == card
    except VirtualGpuError:
        return False


def program(words: Sequence[str]) -> list[str]:
    """Return the command that estimates."""
    return [sys.executable, str(CODE / TRAINER), *words]


def run_here(words: Sequence[str]) -> dict[str, Any]:
    """Estimate in a separate process, or return a cached result, since checks are run repeatedly.

    Raises LabError.
    """
    environment = {name: value for name, value in os.environ.items()
                   if name in ("PATH", "HOME", "LANG", "PYTHONPATH")} | {"OMP_NUM_THREADS": "1"}
    return printed(*_run(tuple(program(words)), tuple(environment.items())))


@functools.lru_cache(maxsize=1000)
def _run(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]
         ) -> tuple[int, bytes, str]:
    """Return the exit code, stdout, and stderr of an estimate.

    Crashes are raised, so they are not cached: a library that could not allocate a thread may
    succeed next time.
    """
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
    """Raised with the trainer's own message if it refuses to estimate this."""


class Crashed(LabError):
    """Raised if the trainer ends without an estimate or a refusal."""


def printed(code: int, out: bytes, err: str) -> dict[str, Any]:
    """Return the JSON that the trainer printed.

    Raises Refused if it refused the flags, and Crashed if it failed in any other way.
    """
    if code != 0:
        _, refusal, words = f"\n{err.strip()}".rpartition(f"\n{REFUSAL}")
        if code == REFUSED and refusal:
            raise Refused(words[:1000])
        last = words.splitlines()[-1] if words.strip() else "it printed nothing"
        raise Crashed(f"the trainer ended with exit code {code}: {last[:1000]}")
    try:
        if len(out) > MOST_PRINTED:
            raise ValueError(f"{len(out):,} bytes")
        estimate = json.loads(out)
        if not isinstance(estimate, dict):
            raise ValueError("not a JSON object")
        return estimate
    except (ValueError, RecursionError) as error:
        raise Crashed(f"the trainer printed no estimate: {error}") from error


def read(estimate: dict[str, Any], tokens: int) -> Figures:
    """Return the figures in the trainer's JSON, for `tokens` per iteration. Raises LabError."""
    memory = estimate.get("memory")
    stages = memory if isinstance(memory, list) and all(
        isinstance(stage, dict) and type(stage.get("stage")) is int
        and isinstance(stage.get("card"), str) for stage in memory) else []
    numbers = [*(estimate.get(name) for name in NUMBERS),
               *(stage.get(name) for stage in stages for name in ("total", "capacity"))]
    sound = (stages and isinstance(estimate.get("card"), str) and type(estimate.get("fits")) is bool
             and all(type(number) in (int, float) and 0 <= number < LARGEST for number in numbers)
             and estimate["seconds_per_iteration"] > 1 / LARGEST)
    if not sound:
        raise LabError("the trainer printed no estimate: a field is missing or has the wrong type")
    seconds = estimate["seconds_per_iteration"]
    return Figures(estimate["card"], 1000 * seconds, tokens / seconds,
                   estimate["teraflops_per_gpu"],
                   estimate["share_of_peak"], estimate["communication"], estimate["bubble"],
                   tuple(StageMemory(stage["stage"], stage["card"], stage["total"] / GIB,
                                     stage["capacity"] / GIB) for stage in stages),
                   estimate["fits"], estimate["parameters"])
