"""Compare a student's job script with the part of the job that the exercise prescribes.

`lab build` runs the reference script as a check would, and writes the job into the check as
`given=`: nodes, ranks, and flags, except for those that `only=` leaves to the student. So the
notebook and the grader compare with the same text, which does not contain the answer.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from labkit.check.allocation import Component
from labkit.check.compared import (
    COMPARED,
    GPUS,
    NODES,
    OTHER_SPELLINGS,
    RANKS,
    SPELLINGS,
    meaning,
    normalized_path,
    settable_fields,
    words_of,
)
from labkit.check.job import Job
from labkit.check.runs import TrainingRun
from minimegatron.arguments import Config
from minimegatron.arguments.checks import check
from minimegatron.arguments.flag import spelled
from minimegatron.arguments.parse import parse_unchecked
from minimegatron.arguments.stages import write_layout
from minimegatron.arguments.table import EstimateConfig
from minimegatron.errors import UserError

MOST_DIFFERENCES = 6  # differences
MOST_TEXT = 120  # characters of a student's value
IN_ALL = ("nodes", "gpus_per_node", "components", "programs", "runs")
IN_RUN = ("nodes", "ranks_per_node", "components", "trainer", "settings", "flags")
IN_COMPONENT = {"nodes": int, "gpus_per_node": int, "gpu": str}


def from_reference(job: Job, only: Sequence[str]) -> dict[str, Any]:
    """Return the part of the reference that the check compares with.

    Args:
        job: the reference script, resolved and without problems.
        only: the flags that the student may choose; they are left out.

    Raises InvalidOnly.
    """
    free = settable_fields(only)
    names = [name for name in (*COMPARED, *sorted(OTHER_SPELLINGS))
             if name not in free and name != "layers_per_chunk"]
    kept: dict[str, Any] = {}
    if len(job.components) > 1:
        kept["components"] = [_described(one, only) for one in job.components]
    else:
        kept |= {name: value for name, value in _described(job.components[0], only).items()
                 if name != "gpu"}
    if job.programs:
        kept["programs"] = list(job.programs)
    kept["runs"] = []
    for run in job.runs:
        one: dict[str, Any] = {"nodes": run.nodes} if NODES not in only else {}
        if len(job.components) > 1:
            one["components"] = _order(run, RANKS not in only)
        elif RANKS not in only:
            one["ranks_per_node"] = run.ranks_per_node
        one["trainer"] = run.trainer
        if run.settings:
            one["settings"] = run.settings
        one["flags"] = shlex.join(words_of(_flags_of(run.arguments), names))
        kept["runs"].append(one)
    return kept


def _described(component: Component, only: Sequence[str]) -> dict[str, Any]:
    """Return what is compared of a component: its nodes, and their GPUs if it requests any."""
    described: dict[str, Any] = {} if NODES in only else {"nodes": component.nodes}
    if GPUS not in only and component.gpus_per_node:
        described["gpus_per_node"] = component.gpus_per_node
        if component.gpu:
            described["gpu"] = component.gpu
    return described


def _order(run: TrainingRun, with_ranks: bool) -> list[list[int]]:
    """Return the components that a run's nodes belong to, in the order of their node ranks.

    Each is [its number], or [its number, ranks per node]; equal neighbors count once.
    """
    per_node = [[node.component, node.ranks] if with_ranks else [node.component]
                for node in run.on_nodes]
    return [component for component, _ in groupby(per_node)]


def require_sound(given: Any) -> None:
    """Raise ValueError unless `given` has the structure that `from_reference` returns."""
    try:
        if not given["runs"] or set(given) - set(IN_ALL):
            raise ValueError(f"it has {', '.join(given)}")
        for one in given.get("components", ()):
            if any(type(value) is not IN_COMPONENT[name] for name, value in dict(one).items()):
                raise ValueError(f"a component has {one}")
        for run in given["runs"]:
            if set(run) - set(IN_RUN) or not isinstance(run["flags"], str):
                raise ValueError(f"a run has {', '.join(run)}")
            _flags_of(shlex.split(run["flags"]))
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise ValueError(f"check.script: given= is not what `lab build` writes: {error}") from error


def differences(job: Job, given: Mapping[str, Any], only: Sequence[str]) -> list[str]:
    """Return one sentence per difference between a job and what the exercise prescribes.

    Args:
        job: the student's script, resolved and without problems.
        given: the value that `from_reference` returned.
        only: the flags that the student may choose, as they were when `given` was made.

    Raises InvalidOnly.
    """
    free = settable_fields(only)
    sentences = list(_job_differences(job, given))
    runs = given["runs"]
    if len(job.runs) != len(runs):
        sentences.append(f"it starts the trainer {len(job.runs)} times; the exercise's script does "
                         f"so {'once' if len(runs) == 1 else f'{len(runs)} times'}")
        return sentences
    for number, (run, prescribed) in enumerate(zip(job.runs, runs, strict=True), 1):
        where = f"training {number}: " if len(runs) > 1 else ""
        sentences += [where + text for text in (*_run_differences(run, prescribed),
                                                *_flag_differences(run, prescribed, free))]
    return list(dict.fromkeys(sentences))


def report(changes: Sequence[str], path: str, only: Sequence[str]) -> str:
    """Return a message for the student that lists the differences.

    Args:
        changes: the differences.
        path: the script.
        only: the flags that the student may choose.
    """
    lines = [f"{path} changes what this exercise does not ask you to change:",
             *(f"  {text}." for text in changes[:MOST_DIFFERENCES])]
    if len(changes) > MOST_DIFFERENCES:
        lines.append(f"  ... and {len(changes) - MOST_DIFFERENCES} more.")
    lines.append(f"Yours to choose: {', '.join(only)}." if only else
                 "All of it is given; change it back.")
    return "\n".join(lines)


def _job_differences(job: Job, given: Mapping[str, Any]) -> Iterator[str]:
    components = given.get("components", [given])
    if len(job.components) != len(components):
        yield (f"the job has {len(job.components)} component(s); the exercise's has "
               f"{len(components)}, which `#SBATCH hetjob` separates" if len(components) > 1 else
               f"the job has {len(job.components)} components; the exercise's does not have "
               "`#SBATCH hetjob`")
        return
    for number, (component, prescribed) in enumerate(zip(job.components, components, strict=True)):
        where = f"component {number}: " if len(components) > 1 else ""
        for name, flag in (("nodes", NODES), ("gpus_per_node", GPUS), ("gpu", GPUS)):
            wanted, has = prescribed.get(name), getattr(component, name)
            if wanted is not None and has != wanted:
                yield (f"{where}#SBATCH asks for {flag} {_shortened(str(has or 'of no kind'))}; "
                       f"the exercise uses {wanted}")
    for program in job.programs:
        if program not in given.get("programs", ()):
            yield f"it also starts {_shortened(program)}; the exercise's script does not"


def _run_differences(run: TrainingRun, prescribed: Mapping[str, Any]) -> Iterator[str]:
    nodes, ranks = prescribed.get("nodes", run.nodes), prescribed.get("ranks_per_node",
                                                                      run.ranks_per_node)
    if (run.nodes, run.ranks_per_node) != (nodes, ranks):
        yield (f"nodes x ranks per node: {run.nodes} x {run.ranks_per_node}; the exercise uses "
               f"{nodes} x {ranks}")
    if order := prescribed.get("components"):
        mine = _order(run, len(order[0]) > 1)
        if mine != order:
            yield (f"in the order of the node ranks, the nodes are of {_in_words(mine)}; the "
                   f"exercise's are of {_in_words(order)}")
    if not (_same_file(run.trainer, prescribed["trainer"])
            or _same_file(run.absolute(run.trainer), prescribed["trainer"])):
        yield (f"it starts {_shortened(run.trainer)}; the exercise's trainer is "
               f"{prescribed['trainer']}")
    settings = prescribed.get("settings", {})
    for name in sorted({*run.settings, *settings}):
        if run.settings.get(name) != settings.get(name):
            yield (f"{name} is {_shortened(run.settings.get(name, 'not set'))}; in the exercise it "
                   f"is {settings.get(name, 'not set')}")


def _in_words(order: Sequence[Sequence[int]]) -> str:
    return _shortened(", then ".join(
        f"component {one[0]}" + "".join(f" ({ranks} ranks per node)" for ranks in one[1:])
        for one in order))


def _same_file(path: str, trainer: str) -> bool:
    """Return whether `path` is the trainer, possibly relative to one of its parent folders."""
    if path.startswith(("/", "$LAB_HOME/")):
        return normalized_path(path) == normalized_path(trainer)
    return f"/{normalized_path(trainer)}".endswith(f"/{posixpath.normpath(path)}")


def _flags_of(arguments: Sequence[str]) -> EstimateConfig:
    return parse_unchecked(arguments, config=EstimateConfig)


def _flag_differences(run: TrainingRun, prescribed: Mapping[str, Any],
                      free: frozenset[str]) -> Iterator[str]:
    if run.flags is None:  # refused, which is among the job's problems
        return
    mine, given = _flags_of(run.arguments), _flags_of(shlex.split(prescribed["flags"]))
    given = replace(given, **{name: getattr(mine, name) for name in free
                              if name != "layers_per_chunk"})
    differing_as_written = [name for name in COMPARED if name not in free and any(
        not _equal(spelling, mine, given) for spelling in (name, *SPELLINGS.get(name, ())))]
    try:
        expected = check(given, rank=0, world_size=run.world_size)
    except UserError:  # this free flag depends on others that the student changed
        yield from (_sentence(name, run.flags, given) for name in differing_as_written)
        return
    differing = [name for name in COMPARED
                 if name not in free and not _equal(name, run.flags, expected)]
    # A difference that follows from another one is not reported.
    for name in [name for name in differing if name in differing_as_written] or differing:
        yield _sentence(name, run.flags, expected)


def _equal(name: str, one: Config, other: Config) -> bool:
    return bool(meaning(name, getattr(one, name)) == meaning(name, getattr(other, name)))


def _sentence(name: str, mine: Config, wanted: Config) -> str:
    if name == "layers_per_chunk":
        split = wanted.layers_per_chunk
        layout = repr(write_layout(split)) if split else "another one"
        return ("--pipeline-model-parallel-layout "
                f"'{_shortened(write_layout(mine.layers_per_chunk))}'; the exercise uses {layout}")
    has, value, flag = getattr(mine, name), getattr(wanted, name), spelled(name)
    if isinstance(has, bool):
        return f"{flag}; the exercise does not use it" if has else \
            f"{flag} is missing; the exercise uses it"
    if has is None:
        return f"{flag} is missing; the exercise uses {value}"
    return f"{flag} {_shortened(str(has))}; the exercise " + (
        f"uses {value}" if value is not None else "does not use it")


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."
