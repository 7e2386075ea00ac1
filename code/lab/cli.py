"""Build the `lab` command: one parser, with a subcommand for each part of the product."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import importlib.util
import sys

from labcore.errors import LabError, error_text
from labcore.terminal import visible

# Each module has add_parser(subparsers). The parsers set `run`, a function of the parsed arguments
# that returns the exit code (None means 0).
PARTS = ("slurmbox.cli", "corpus_tools.cli", "lab.start", "labkit.build.cli", "labkit.build.new",
         "lab.tensorboard.cli", "lab.devices", "layout_estimator.cli",
         "layout_estimator.cluster_planner.cli", "lab.submit.cli",
         "job_monitor.cli", "labkit.contest.cli", "lab.mytrainer.cli")


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lab",
                                  description="Set up and run the course on this machine.")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for part in PARTS:
        importlib.import_module(part).add_parser(subparsers)
    # Grading is found through its entry point, because `lab` must not import it by name.
    for entry in importlib.metadata.entry_points(group="lab.commands"):
        # The students' image has the entry point of grading, but not its package.
        if importlib.util.find_spec(entry.module.partition(".")[0]):
            entry.load().add_parser(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except (LabError, OSError) as error:
        text = visible(error_text(error), keep="\n\t")
        print(f"lab: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
