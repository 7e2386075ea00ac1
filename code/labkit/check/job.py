"""Describe what a job script would do, from the record of its launches: ranks, the trainer's flags,
and problems."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labcore.errors import LabError
from labkit.check import record, resources, scheduling
from labkit.check.allocation import Component
from labkit.check.checks import Failed
from labkit.check.launches import MOST_TEXT, Launch, launches_of
from labkit.check.runs import TRAINER, TrainingRun, is_trainer, runs_of, together
from labkit.check.sides import DEFAULT_TRIAL, Trial
from labkit.check.torchrun import Torchrun
from minimegatron.arguments import Config

MOST_RUNS = 64
LAUNCHERS = ("deepspeed", "mpirun", "sbatch", "salloc")
MOST_OPTIONS = 20  # python's options, before the program's name


@dataclass(frozen=True)
class Job:
    """The job that a script would run.

    `nodes`, `ranks_per_node`, `world_size`, and `flags` are those of its only training run.
    `directives`, `gpus_per_node`, and `cpus_per_node` are those of its first component.
    """

    components: tuple[Component, ...]  # several in a heterogeneous job
    runs: tuple[TrainingRun, ...]
    problems: tuple[str, ...]
    programs: tuple[str, ...]  # other programs it starts that could train a model
    requeues: bool = False  # it is back in the queue when the script ends
    status: int | None = 0  # its exit code; None if it was still running at the end
    notes: tuple[str, ...] = ()  # advice that fails no check

    @property
    def directives(self) -> dict[str, str]:
        """Return its #SBATCH options, by their long names."""
        return self.components[0].directives

    @property
    def allocated_nodes(self) -> int:
        """Return the number of nodes that its #SBATCH lines request, of all components."""
        return sum(component.nodes for component in self.components)

    @property
    def gpus_per_node(self) -> int:
        """Return the number of GPUs per node that its #SBATCH lines request."""
        return self.components[0].gpus_per_node

    @property
    def cpus_per_node(self) -> int:
        """Return the number of CPUs per node that its #SBATCH lines request."""
        return self.components[0].cpus_per_node

    @property
    def run(self) -> TrainingRun:
        """Return the only training run. Raises Failed unless there is exactly one."""
        if len(self.runs) != 1:
            times = f"{len(self.runs)} times" if self.runs else "not at all"
            why = "\n".join(("", *self.problems))
            raise Failed(f"the script starts {TRAINER} {times}; the exercise asks for one "
                         f"run.{why}")
        return self.runs[0]

    @property
    def nodes(self) -> int:
        return self.run.nodes

    @property
    def ranks_per_node(self) -> int:
        return self.run.ranks_per_node

    @property
    def world_size(self) -> int:
        return self.run.world_size

    @property
    def flags(self) -> Config:
        """Return the trainer's Config.

        Raises Failed with the trainer's message if it refuses them.
        """
        if self.run.flags is None:
            raise Failed("the trainer would refuse this: " + "; ".join(self.run.problems))
        return self.run.flags


def resolve(recorded: dict[str, Any], trainer: str = TRAINER, trial: Trial = DEFAULT_TRIAL) -> Job:
    """Return the Job that a record describes, which may come from anybody.

    Args:
        recorded: labkit.check.record's result.
        trainer: the file name of the program that trains.
        trial: the conditions of the record: an exit code of `ends` is no problem.

    Raises LabError where the record is not one.
    """
    components, recorded_launches = launches_of(recorded)
    launches = [launch for launch in recorded_launches if launch.program != "srun"]
    problems, notes, runs = list(recorded["notes"]), [], []
    steps: dict[int, list[Launch]] = {}
    for launch in recorded_launches:
        if launch.program == "srun":
            steps.setdefault(launch.step, []).append(launch)
    for group in together(launches):
        sruns = [srun for step in dict.fromkeys(launch.step for launch in group)
                 for srun in steps.get(step, ())]
        for run in runs_of(group, problems, trainer):
            wrong, noted = resources.gpu_advice(run, components)
            notes += [*noted, *resources.cpu_notes(components, sruns)]
            runs.append(replace(run, problems=(*run.problems, *wrong),
                                cpus_per_task=resources.fewest_cpus(sruns)))
        if len(runs) > MOST_RUNS:
            raise LabError(f"the script starts {trainer} more than {MOST_RUNS} times")
    problems += _end_problems(recorded, trial)
    queue = scheduling.queue(components, launches, trial.job_id)
    problems += scheduling.problems(components, queue)
    if runs:
        problems += resources.idle_nodes(components, launches)
    problems += [problem for run in runs for problem in run.problems]
    return Job(components, tuple(runs),
               tuple(dict.fromkeys(problem[:MOST_TEXT] for problem in problems)),
               tuple(dict.fromkeys(_other_programs(launches, trainer))),
               queue.job.requeued and queue.job.state != scheduling.CANCELED, recorded["exit"],
               tuple(dict.fromkeys(note[:MOST_TEXT] for note in notes)))


def _end_problems(recorded: Mapping[str, Any], trial: Trial) -> Iterator[str]:
    """Yield what is wrong with the script's end.

    A script may end with its program's exit code. If several programs end in different ways, it may
    choose its own.
    """
    status = recorded["exit"]
    fine = {0, *(code for _, code in trial.exit_codes)}
    if not isinstance(trial.ends, int) and trial.ends and status is not None:
        fine.add(status)
    if status is None:
        yield (f"the script was still running after {record.SECONDS} seconds, although no training "
               "takes place here")
    elif status not in fine:
        lines = [line[:200] for line in recorded["output"].splitlines()
                 if line.strip() and not line.startswith("+")]  # those with + come from set -x
        yield f"the script ends with exit code {status}: " + " / ".join(lines[-3:])


def _other_programs(launches: list[Launch], trainer: str) -> Iterator[str]:
    """Yield programs other than the trainer that could train a model."""
    for launch in launches:
        torchrun = launch.torchrun if launch.program == "torchrun" else None
        if launch.program in LAUNCHERS:
            yield launch.program
        elif isinstance(torchrun, Torchrun) and not is_trainer(torchrun.program, trainer):
            yield torchrun.program[0]
        elif launch.program == "python" and not is_trainer(launch.arguments, trainer):
            yield from _python_program(launch.arguments[:MOST_OPTIONS])


def _python_program(words: Sequence[str]) -> Iterator[str]:
    """Yield the file or module that python runs, unless it is in the standard library."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.endswith(".py"):
            yield word
            return
        if word == "-m":
            if following.partition(".")[0] not in sys.stdlib_module_names:
                yield f"python -m {following}"
            return
