"""A trainer's log as numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError

NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|(?i:nan|inf)))"  # the format "E" prints NAN and INF
FIELDS = {"iteration": r"iteration +(\d+)/", "samples": r"consumed samples: +(\d+)",
          "milliseconds": rf"elapsed time per iteration \(ms\): {NUMBER}",
          "learning_rate": rf"learning rate: {NUMBER}",
          "global_batch": r"global batch size: +(\d+)", "loss": rf"lm loss: {NUMBER}",
          "grad_norm": rf"grad norm: {NUMBER}",
          "tflops": rf"throughput per GPU \(TFLOP/s/GPU\): {NUMBER}",
          "train_iters": r"iteration +\d+/ +(\d+)",
          "loss_scale": rf"loss scale: {NUMBER}",
          "skipped": r"number of skipped iterations: +(\d+)"}
WHOLE = {"iteration", "samples", "global_batch", "train_iters", "skipped"}
WORLD = re.compile(r"using world size: (\d+), data-parallel-size: (\d+), "
                   r"tensor-model-parallel size: (\d+), pipeline-model-parallel size: (\d+)")


@dataclass(frozen=True)
class Iteration:
    """One line of the log; None where the run does not print a value (a virtual GPU has no
    loss)."""

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
    """What a run said of itself. Sizes are None until it has said so much."""

    world_size: int | None
    data_parallel: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    iterations: tuple[Iteration, ...]


def parse_line(line: str) -> Iteration | None:
    """The numbers of an iteration line; None for any other line."""
    if "elapsed time per iteration" not in line:  # few lines of a log are worth the searches
        return None
    values: dict[str, int | float] = {}
    for name, pattern in FIELDS.items():
        match = re.search(pattern, line)
        if match:
            values[name] = int(match[1]) if name in WHOLE else float(match[1])
    if not {"iteration", "milliseconds"} <= values.keys():
        return None
    return Iteration(**values)


def read(path: str | Path) -> Log:
    """The log at `path`, absolute or relative to the workspace. Raises LabError when there is
    none."""
    return parse(_text(path).splitlines())


def lines(path: str | Path, phrase: str) -> list[str]:
    """The lines of that log that hold `phrase`. Raises LabError when there is none."""
    text = _text(path)
    found = [line for line in text.splitlines() if phrase in line]
    if not found:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise LabError(f"no line of {path} holds {phrase!r}; its last line is: {last}")
    return found


def _text(path: str | Path) -> str:
    place = workspace.home() / path
    try:
        return place.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"no log at {place}: {error.strerror}; has the job started? "
                       "squeue shows it") from error


def parse(lines: Sequence[str]) -> Log:
    """The log of these lines."""
    sizes = next((match.groups() for line in lines if (match := WORLD.search(line))), [None] * 4)
    found = [iteration for line in lines if (iteration := parse_line(line))]
    return Log(*(size and int(size) for size in sizes), tuple(found))
