"""The `lab` command: one parser, one subcommand per part of the product."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import sys

from labcore.errors import LabError, error_text
from labcore.terminal import visible

# Each module offers add_parser(subparsers); its parsers set `run`, a function of the arguments
# that returns the exit code (None is 0).
PARTS = ("slurmbox.cli", "corpus_tools.cli", "lab.start", "labkit.build.cli", "labkit.build.new",
         "lab.tensorboard.cli", "lab.devices", "layout_estimator.cli",
         "layout_estimator.cluster_planner.cli", "lab.submit.cli",
         "job_monitor.cli", "labkit.contest.cli", "lab.mytrainer.cli")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lab",
                                  description="Set up and run the course on this machine.")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for part in PARTS:
        importlib.import_module(part).add_parser(subparsers)
    # What `lab` must not import by name: grading finds its way in through its entry point.
    for entry in importlib.metadata.entry_points(group="lab.commands"):
        # The students' image has the entry point of grading, but not its package.
        if importlib.util.find_spec(entry.module.partition(".")[0]):
            entry.load().add_parser(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except (LabError, OSError) as error:
        text = visible(error_text(error), keep="\n\t")
        print(f"lab: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
