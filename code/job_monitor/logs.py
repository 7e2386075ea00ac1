"""Read the numbers in a trainer's log from its metrics.jsonl, or else from the lines themselves.

The regular expressions are for logs that name no readable metrics.jsonl: Megatron-LM's own on a
site's cluster, those of runs outside Slurm without --metrics, and copies of a log alone. Either
way, the numbers are rounded to the digits in the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from job_monitor import metrics
from labcore import workspace
from labcore.errors import LabError

NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|(?i:nan|inf)))"  # the format "E" prints NAN and INF
FIELDS = {"iteration": r"iteration +(\d+)/", "samples": r"consumed samples: +(\d+)",
          "milliseconds": rf"elapsed time per iteration \(ms\): {NUMBER}",
          "seconds": rf"elapsed time per iteration \(s\): {NUMBER}",  # Megatron-DeepSpeed's
          "learning_rate": rf"learning rate: {NUMBER}",
          "global_batch": r"global batch size: +(\d+)", "loss": rf"lm[ -]loss: {NUMBER}",
          "grad_norm": rf"grad norm: {NUMBER}",
          "tflops": rf"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): {NUMBER}",
          "train_iters": r"iteration +\d+/ +(\d+)",
          "loss_scale": rf"loss scale: {NUMBER}",
          "skipped": r"number of skipped iterations: +(\d+)"}
# The fields of an iteration in metrics.jsonl, and the log's format of those that are not integers.
NAMES = {"iteration": "iteration", "samples": "consumed_samples", "train_iters": "train_iters",
         "milliseconds": "elapsed_ms_per_iteration", "learning_rate": "learning_rate",
         "global_batch": "global_batch_size", "loss": "lm_loss", "grad_norm": "grad_norm",
         "tflops": "tflops_per_gpu", "loss_scale": "loss_scale", "skipped": "skipped_iterations"}
FORMATS = {"milliseconds": ".1f", "loss": ".6E", "grad_norm": ".3f", "tflops": ".1f",
           "loss_scale": ".1f"}
INTEGERS = {"iteration", "samples", "global_batch", "train_iters", "skipped"}
# Megatron core has more sizes in between, of context parallelism and of encoders.
WORLD = re.compile(r"using world size: (\d+), data-parallel[- ]size: (\d+),.*? "
                   r"tensor-model-parallel size: (\d+),.*? pipeline-model-parallel size: (\d+)")


@dataclass(frozen=True)
class Iteration:
    """An iteration line of the log; a value that the run does not print is None.

    A virtual GPU, for example, prints no loss. Times are in milliseconds.
    """

    iteration: int
    samples: int | None = None
    milliseconds: float | None = None
    learning_rate: float | None = None
    global_batch: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tflops: float | None = None  # per GPU
    train_iters: int | None = None
    loss_scale: float | None = None  # after the last step of the line
    skipped: int | None = None  # steps since the line before


@dataclass(frozen=True)
class Log:
    """The group sizes and iterations of a run; sizes are None until the log contains them."""

    world_size: int | None
    data_parallel: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    iterations: tuple[Iteration, ...]


def parse_line(line: str) -> Iteration | None:
    """Return the numbers of an iteration line, or None for any other line."""
    if "elapsed time per iteration" not in line:  # a cheap test, because few lines have numbers
        return None
    values: dict[str, int | float] = {}
    for name, pattern in FIELDS.items():
        match = re.search(pattern, line)
        if match:
            values[name] = int(match[1]) if name in INTEGERS else float(match[1])
    if "seconds" in values:
        values["milliseconds"] = 1000 * values.pop("seconds")
    if not {"iteration", "milliseconds"} <= values.keys():
        return None
    return Iteration(**values)


def read(path: str | Path) -> Log:
    """Return the log at `path`, absolute or relative to the workspace. Raises LabError if there
    is none."""
    return parse(_text(path).splitlines())


def lines(path: str | Path, phrase: str) -> list[str]:
    """Return the log's lines that contain `phrase`, at least one.

    Args:
        path: the log, absolute or relative to the workspace.
        phrase: the text to search for.

    Raises:
        LabError: there is no log or no such line.
    """
    text = _text(path)
    matches = [line for line in text.splitlines() if phrase in line]
    if not matches:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise LabError(f"no line of {path} contains {phrase!r}; its last line is: {last}")
    return matches


def _text(path: str | Path) -> str:
    log = workspace.home() / path
    try:
        return log.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"no log at {log}: {error.strerror}; has the job started? "
                       "squeue shows it") from error


def parse(lines: Sequence[str]) -> Log:
    """Return the log of these lines, in which the trainer may have started several times."""
    starts = [number for number, line in enumerate(lines) if WORLD.search(line)]
    sizes = WORLD.search(lines[starts[0]]).groups() if starts else [None] * 4
    iterations: list[Iteration] = []
    for start, end in pairwise([0, *starts, len(lines)]):
        iterations += _iterations(lines[start:end])
    return Log(*(size and int(size) for size in sizes), tuple(iterations))


def _iterations(lines: Sequence[str]) -> list[Iteration]:
    """Return the iterations after one start of the trainer."""
    objects = metrics.read_for_log(lines)
    if objects is None:
        return [iteration for line in lines if (iteration := parse_line(line))]
    start = next((one for one in objects if one.get("kind") == "start"), {})
    arguments = start.get("arguments")
    core = isinstance(arguments, dict) and arguments.get("log_format") == "core"
    formats = {**FORMATS, "learning_rate": ".6E" if core else ".3E"}
    iterations = [_from_metrics(one, formats) for one in objects if one.get("kind") == "iteration"]
    return [iteration for iteration in iterations if iteration]


def _from_metrics(fields: Mapping[str, object], formats: Mapping[str, str]) -> Iteration | None:
    """Return an iteration of metrics.jsonl, rounded to the log's digits.

    Returns None if it lacks its number or its time.
    """
    values: dict[str, int | float | None] = {}
    for name, field in NAMES.items():
        if name in INTEGERS:
            values[name] = metrics.integer(fields.get(field))
        else:
            value = metrics.number(fields.get(field))
            values[name] = None if value is None else float(format(value, formats[name]))
    if values["iteration"] is None or values["milliseconds"] is None:
        return None
    return Iteration(**values)


def loss_difference(reference: Log, other: Log) -> float:
    """Return the largest relative difference between the losses of two runs of equal length.

    Raises LabError if they did not log losses of the same iterations.
    """
    losses = [{one.iteration: one.loss for one in log.iterations if one.loss is not None}
              for log in (reference, other)]
    if not losses[0] or losses[0].keys() != losses[1].keys():
        counts = " and ".join(str(len(one)) for one in losses)
        raise LabError(f"the two logs have losses of {counts} iterations, which are not the same "
                       "ones; have both runs completed?")
    return max(abs(losses[1][number] / loss - 1) for number, loss in losses[0].items())
