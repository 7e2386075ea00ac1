"""Validate the record of what a job script starts, which may be forged.

A script runs beside its recorder, and the student's code beside both, so all three can write
anything into the record. It must be something that Slurm could have started; only a real run could
show that the job would run that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from labcore.errors import LabError
from labkit.check.allocation import (
    MOST_COMPONENTS,
    NODE,
    Component,
    component_at,
    components_of,
)
from labkit.check.torchrun import BadCommand, Torchrun, parse

MOST_LAUNCHES = 1024
MOST_WORDS = 1000  # of one launch
MOST_TEXT = 1000  # characters of a problem
UNKNOWN = ""  # the node of a program whose environment the script emptied (env -i)


@dataclass(frozen=True)
class Launch:
    """One program that the script starts on one node."""

    program: str
    arguments: tuple[str, ...]
    step: int  # of srun; -1 when the script itself starts it, on the first node
    task: int
    host: str  # the node's name
    background: bool  # started with &
    variables: dict[str, str]
    folder: str = ""  # in which it starts; "" if unknown
    component: int = 0  # of the job: the node's, or the first one if that is unknown

    @cached_property
    def torchrun(self) -> Torchrun | BadCommand:
        """Return how torchrun parses these arguments, or its error."""
        try:
            return parse(self.arguments, self.variables)
        except BadCommand as error:
            return error


def launches_of(record: dict[str, Any]) -> tuple[tuple[Component, ...], list[Launch]]:
    """Return the job's components and launches after validating the whole record.

    Raises LabError.
    """
    try:
        entries, requested = record["launches"], record["components"]
        if not (isinstance(requested, list) and 1 <= len(requested) <= MOST_COMPONENTS
                and all(isinstance(one, dict) for one in requested)):
            raise TypeError(f"a job without a list of 1 to {MOST_COMPONENTS} components")
        texts = [*(pair for one in requested for pair in one.items()), record["notes"],
                 [record["output"]]]
        if not (isinstance(record["notes"], list)
                and isinstance(entries, list) and all(type(text) is str for some in texts
                                                      for text in some)
                and (record["exit"] is None or type(record["exit"]) is int)):
            raise TypeError("a field has the wrong type")
        if len(entries) > MOST_LAUNCHES:
            raise LabError(f"the script starts more than {MOST_LAUNCHES} programs")
        components = components_of([dict(one) for one in requested])
        return components, _placed([_launch(entry) for entry in entries], components)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LabError("what the script starts was not recorded properly: "
                       f"{str(error)[:MOST_TEXT]}") from error


def _launch(entry: Any) -> Launch:
    """Return the launch in `entry`. Raises TypeError, KeyError, or ValueError if it is invalid."""
    if not isinstance(entry["arguments"], list) or len(entry["arguments"]) > MOST_WORDS:
        raise TypeError(f"a program with no list of at most {MOST_WORDS} arguments")
    launch = Launch(entry["program"], tuple(entry["arguments"]), entry["step"], entry["task"],
                    entry["host"], entry["background"], dict(entry["variables"]),
                    entry.get("folder", ""))
    words = (launch.program, launch.host, launch.folder, *launch.arguments, *launch.variables,
             *launch.variables.values())
    if not (all(type(word) is str for word in words)
            and all(type(number) is int for number in (launch.step, launch.task))
            and type(launch.background) is bool):
        raise TypeError("a launch has fields of the wrong type")
    return launch


def _placed(launches: list[Launch], components: Sequence[Component]) -> list[Launch]:
    """Return the launches with the components that they run on.

    Each task runs on one of the job's nodes, and the script itself runs on the first one. Raises
    ValueError unless Slurm could have started these launches.
    """
    hosts = {host: component_at(host, components) for host in {launch.host for launch in launches}}
    hosts[UNKNOWN] = 0
    places: dict[tuple[int, int], str] = {}
    for launch in launches:
        inside = hosts[launch.host] is not None
        if launch.program == "srun" and inside:  # it starts the step, from outside
            continue
        place = launch.step, launch.task
        if launch.step < -1 or not 0 <= launch.task < MOST_LAUNCHES:
            raise ValueError(f"step {launch.step}, task {launch.task}")
        home = f"{NODE}1" if launch.step < 0 else places.setdefault(place, launch.host)
        if not inside or launch.host not in (home, UNKNOWN):
            raise ValueError(f"step {launch.step}, task {launch.task} on node "
                             f"{launch.host[:50]!r}")
    return [replace(launch, component=hosts[launch.host] or 0)
            for launch in launches]
