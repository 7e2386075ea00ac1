"""Build the `lab` command: one parser, with a subcommand for each part of the product."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import signal
import sys

from labcore.errors import LabError, error_text
from labcore.terminal import quiet_stdout, visible

# Each module has add_parser(subparsers), which adds these commands. Their parsers set `run`, a
# function of the parsed arguments that returns the exit code (None means 0). Parts named without
# a command have one that another part extends: `lab contest` and `lab plan` need all parts.
PARTS = {"slurmbox.cli": ("cluster",), "corpus_tools.cli": ("data",),
         "checkpoint_tools.cli": ("convert-checkpoint",),
         "lab.start": ("start", "install-slurm"), "labkit.build.cli": ("build",),
         "labkit.build.new": ("new",), "lab.outputs.cli": ("outputs",),
         "lab.tensorboard.cli": ("tensorboard",),
         "lab.devices": ("devices",), "lab.doctor": ("doctor",), "lab.explain": ("explain",),
         "layout_estimator.cli": ("estimate",), "layout_estimator.plan_cli": (),
         "lab.submit.cli": ("submit",),
         "job_monitor.cli": ("top", "report"), "labkit.contest.cli": (),
         "lab.mytrainer.cli": ("mytrainer",)}


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of all commands, or of those in the part of one command.

    Args:
        command: the first word of the command line; importing all parts takes 0.1 s.
    """
    return build_part(next((part for part, names in PARTS.items() if command in names), None))


@functools.cache
def build_part(part: str | None) -> argparse.ArgumentParser:
    """Build the parser of a part's commands, or, with None, of all commands."""
    top = argparse.ArgumentParser(prog="lab",
                                  description="Set up and run the course on this machine.")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for name in [part] if part else PARTS:
        importlib.import_module(name).add_parser(subparsers)
    if not part:
        add_grading(subparsers)
    return top


def add_grading(subparsers: argparse._SubParsersAction) -> None:
    """Add the commands of grading, where it is installed."""
    import importlib.metadata  # a quarter of a short command's CPU time

    # Grading is found through its entry point, because `lab` must not import it by name.
    for entry in importlib.metadata.entry_points(group="lab.commands"):
        # An environment may have the entry point of grading, but not its package.
        if importlib.util.find_spec(entry.module.partition(".")[0]):
            entry.load().add_parser(subparsers)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser(words[0] if words else None).parse_args(words)
    try:
        code = arguments.run(arguments) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `lab top | head` has read enough
        quiet_stdout()
        return 128 + signal.SIGPIPE
    except (LabError, OSError) as error:
        text = visible(error_text(error), keep="\n\t")
        print(f"lab: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
