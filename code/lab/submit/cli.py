"""Check a run's configuration, write its batch scripts, and submit them: `lab submit`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from lab.submit.layout import RunLayout
    from lab.submit.memory import RankMemory
    from lab.submit.scripts import Script

HELP = "check a training run's configuration, and submit it as one or several jobs"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("submit", help=HELP, description=HELP)
    parser.add_argument("conf", metavar="CONF.TOML", type=Path,
                        help="the configuration file; docs/heterogeneous.md explains its keys")
    parser.add_argument("--dry-run", action="store_true",
                        help="check, and print the scripts, but write and submit nothing")
    parser.add_argument("--profile", action="store_true",
                        help="record a timeline of one step on all ranks, like profile = true")
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
    from lab.submit import conf, containers, layout, memory, nodes, scripts, trainer_flags

    settings = conf.read(path)
    if profile:
        settings = replace(settings, profile=True)
    placed = layout.lay_out(settings)
    trainer_flags.check(placed)
    containers.check(settings, workspace.home())
    available = _available_nodes(dry_run)
    if available is not None:
        placed = nodes.match(placed, available)
    stages = memory.check(placed)
    batch_scripts = scripts.render(placed)
    if dry_run:
        print("\n".join(f"==> {script.path} <==\n{script.text}" for script in batch_scripts),
              end="")
        return
    prepare_workspace(workspace.home(), trainer_flags.uses_own_data(placed))
    scripts.write(workspace.home(), batch_scripts)
    print(summary(placed, stages))
    job = _submit(batch_scripts)
    print(f"watch it: lab top {job}")
    if settings.profile:
        print(f"its timeline, once it has ended: lab report {job}")


def _available_nodes(dry_run: bool) -> list | None:
    """Return the cluster's nodes, or None if `--dry-run` was given and no cluster is up."""
    from lab.submit import nodes
    from slurmbox.clients import NOT_RUNNING

    try:
        return nodes.usable_nodes()
    except LabError as error:
        if not dry_run or NOT_RUNNING not in str(error):
            raise
        print("lab: the cluster is not running, so its nodes are not checked", file=sys.stderr)
        return None


def prepare_workspace(home: Path, uses_own_data: bool) -> None:
    """Create the folders and files that the scripts use.

    Args:
        home: the workspace.
        uses_own_data: whether the run trains on the text that `lab data` prepares.

    Raises:
        LabError: that text is missing.
    """
    from labcore import shipping

    data = home / "data/GPT-2_assets/my-gpt2_text_document.bin"
    if uses_own_data and not data.exists():
        raise LabError(f"{data} is missing; create it with lab data, or pass another data set: "
                       'flags = ["--data-path", "PREFIX"]')
    if not all((home / path).exists() for path in ("code/run_node.sh", "megatron/Megatron-LM")):
        shipping.make_workspace(home)


def summary(layout: RunLayout, stages: list[RankMemory]) -> str:
    """Return a description of the run: each component, and the memory of its fullest stage."""
    from lab.submit import scripts
    from lab.submit.memory import GIB

    lines = [scripts.title(layout)]
    for component in layout.components:
        fullest = max((stages[stage] for stage in component.stages), key=lambda one: one.needed)
        layers = "-".join(str(layout.split[stage]) for stage in component.stages)
        lines.append(f"  {component}: layers {layers}; stage {fullest.stage} needs "
                     f"{fullest.needed / GIB:.2f} of {fullest.capacity / GIB:.2f} GiB (modeled)")
    return "\n".join(lines)


def _submit(batch_scripts: list[Script]) -> str:
    """Submit the scripts, and return the first job's ID; if one is refused, cancel those before it.

    Raises:
        LabError: Slurm refused a script.
    """
    from lab.submit import nodes

    job_ids: list[str] = []
    try:
        for script in batch_scripts:
            words = [] if not job_ids else [job_ids[0]]
            done = nodes.slurm("sbatch", "--parsable", str(script.path), *words)
            job_ids.append(done.strip().partition(";")[0])
            joins = f", joins job {job_ids[0]}" if words else ""
            print(f"job {job_ids[-1]}: sbatch {' '.join([str(script.path), *words])}{joins}")
    except LabError:
        if job_ids:
            nodes.slurm("scancel", *job_ids)
        raise
    return job_ids[0]
