"""`lab submit`: check a run's configuration, write its batch scripts, and submit them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from lab.submit.layout import Layout
    from lab.submit.memory import StageMemory
    from lab.submit.scripts import Script

HELP = "check a training run's configuration, and submit it as one job, or as several"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("submit", help=HELP, description=HELP)
    parser.add_argument("conf", metavar="CONF.TOML", type=Path,
                        help="its keys are in docs/heterogeneous.md")
    parser.add_argument("--dry-run", action="store_true",
                        help="check, and print the scripts; write and submit nothing")
    parser.add_argument("--profile", action="store_true",
                        help="record a timeline of one step on all ranks, as with profile = true")
    parser.set_defaults(run=run)
    if "plan" in subparsers.choices:  # the planner is below this package and cannot import it
        subparsers.choices["plan"].set_defaults(submit_file=submit)


def run(arguments: argparse.Namespace) -> None:
    """Check everything, and only then write and submit. Raises LabError."""
    submit(arguments.conf, profile=arguments.profile, dry_run=arguments.dry_run)


def submit(path: Path, *, profile: bool = False, dry_run: bool = False) -> None:
    """Submit the run that a configuration file describes.

    Args:
        path: the file.
        profile: record a timeline of one step.
        dry_run: print the scripts instead.

    Raises:
        LabError: a check failed, and nothing was written or submitted; or Slurm refused a job.
    """
    from lab.submit import conf, containers, layout, memory, nodes, scripts

    read = conf.read(path)
    if profile:
        read = replace(read, profile=True)
    placed = layout.place(read)
    memory.check_flags(placed)
    containers.check(read, workspace.home())
    there = _nodes(dry_run)
    if there is not None:
        placed = nodes.matched(placed, there)
    stages = memory.check(placed)
    written = scripts.of(placed)
    if dry_run:
        print("\n".join(f"==> {script.path} <==\n{script.text}" for script in written), end="")
        return
    _check_workspace(workspace.home())
    scripts.write(workspace.home(), written)
    print(summary(placed, stages))
    _submit(written)


def _nodes(dry_run: bool) -> list | None:
    """Return the cluster's nodes; None if the scripts are only printed and no cluster is up."""
    from lab.submit import nodes
    from slurmbox.clients import NOT_RUNNING

    try:
        return nodes.usable()
    except LabError as error:
        if not dry_run or NOT_RUNNING not in str(error):
            raise
        print("lab: the cluster is not running, so its nodes are not checked", file=sys.stderr)
        return None


def _check_workspace(home: Path) -> None:
    for path, command in (("code/run_node.sh", "make lab"),
                          ("data/GPT-2_assets/my-gpt2_text_document.bin", "lab data")):
        if not (home / path).exists():
            raise LabError(f"{home / path} is missing: {command}")


def summary(layout: Layout, stages: list[StageMemory]) -> str:
    """Return what is submitted: each component, and the memory of its fullest stage."""
    from lab.submit import scripts
    from lab.submit.memory import GIB

    lines = [scripts.title(layout)]
    for component in layout.components:
        fullest = max((stages[stage] for stage in component.stages), key=lambda one: one.needed)
        layers = "-".join(str(layout.split[stage]) for stage in component.stages)
        lines.append(f"  {component}: layers {layers}; stage {fullest.stage} needs "
                     f"{fullest.needed / GIB:.2f} of {fullest.capacity / GIB:.2f} GiB (modeled)")
    return "\n".join(lines)


def _submit(written: list[Script]) -> None:
    """Submit the scripts; if one is refused, cancel those before it. Raises LabError."""
    from lab.submit import nodes

    numbers: list[str] = []
    try:
        for script in written:
            words = [] if not numbers else [numbers[0]]
            done = nodes.slurm("sbatch", "--parsable", str(script.path), *words)
            numbers.append(done.strip().partition(";")[0])
            joins = f", joins job {numbers[0]}" if words else ""
            print(f"job {numbers[-1]}: sbatch {' '.join([str(script.path), *words])}{joins}")
    except LabError:
        if numbers:
            nodes.slurm("scancel", *numbers)
        raise
    print(f"watch it: lab top {numbers[0]}")
