"""The commands `lab top` and `lab report`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from job_monitor import details, ranks, slurm, snapshot, table
from job_monitor.components import SlurmJob
from job_monitor.snapshot import Snapshot
from labcore import workspace
from labcore.errors import LabError
from slurmbox.layout import Layout

TOP = "show the progress and state of every rank, and what went wrong first"
REPORT = "write a self-contained HTML page about a job"
NO_JOBS = "no job is running, and none has ended in the last few minutes"
RECENT_JOBS = 3  # ended jobs to show if no job is alive


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    top = subparsers.add_parser("top", help=TOP, description=TOP)
    top.add_argument("job", nargs="?", metavar="JOBID", help="show this job only, live or finished")
    mode = top.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true",
                      help="print once and exit; the default if the output is not a terminal")
    mode.add_argument("--watch", action="store_true",
                      help="refresh until the job ends; the default in a terminal")
    mode.add_argument("--json", action="store_true", help="print once, as JSON for programs")
    top.add_argument("--lines", type=int, metavar="N",
                     help="last lines to show of each node's files, with a JOBID "
                          f"(default: {details.LINES})")
    top.add_argument("--interval", type=float, default=2.0, metavar="S",
                     help="seconds between two refreshes (default: 2)")
    add_log_argument(top)
    top.set_defaults(run=run_top)
    report = subparsers.add_parser("report", help=REPORT, description=REPORT)
    report.add_argument("job", metavar="JOBID", help="ID of a live or finished job")
    report.add_argument("--output", metavar="FILE",
                        help="file to write (default: megatron/reports/NAME_JOBID.html)")
    add_log_argument(report)
    report.set_defaults(run=run_report)


def add_log_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FILE", help="the job's log, if Slurm no longer knows "
                        "where it is (a site's Slurm forgets it minutes after the job ends)")


def find_job(number: int, log: str | None) -> SlurmJob:
    """Return a job, with the given log. Raises LabError if there is no such job or log."""
    job = slurm.find(number)
    if log is None:
        return job
    path = Path(log).absolute()
    if not path.is_file():
        raise LabError(f"--log {log}: no such file; logs are often in megatron/logs")
    return replace(job, out=path, err=path)


def take_snapshots(number: int | None, log: str | None = None) -> list[Snapshot]:
    """Return snapshots of jobs.

    Args:
        number: the ID of the only job; None for all live jobs, or for the last RECENT_JOBS if none
            is alive.
        log: the path of its log, if Slurm does not know it.
    """
    proc = ranks.processes(Layout(workspace.home()))
    if number is not None:
        return [snapshot.take(find_job(number, log), proc, with_nodes=True)]
    recent = slurm.recent_jobs()
    live = [job for job in recent if not job.is_over]
    return [snapshot.take(job, proc) for job in live or recent[-RECENT_JOBS:]]


def run_top(arguments: argparse.Namespace) -> None:
    """Run `lab top`. Raises LabError if there is no such job or no cluster."""
    number = None if arguments.job is None else slurm.number_of(arguments.job, "top")
    if not 0.2 <= arguments.interval <= 3600:
        raise LabError(f"top --interval {arguments.interval:g}: not between 0.2 and 3600 seconds; "
                       f"nearest: {min(3600, max(0.2, arguments.interval)):g}")
    if arguments.log and number is None:
        raise LabError(f"top --log {arguments.log} needs a job; nearest: lab top JOBID --log "
                       f"{arguments.log}")
    count = _line_count(arguments.lines, number)
    snapshots = take_snapshots(number, arguments.log)
    if arguments.json:
        jobs = [snapshot.as_dict(one) | ({} if number is None else details.as_dict(one))
                for one in snapshots]
        print(json.dumps({"time": time.time(), "jobs": jobs}, indent=2))
    elif arguments.once or not (arguments.watch or sys.stdout.isatty()):
        print(table.as_text(snapshots, count) or NO_JOBS)
    elif sys.stdout.isatty():
        redraw(snapshots, number, arguments.log, arguments.interval, count)
    else:
        print_repeatedly(snapshots, number, arguments.log, arguments.interval, count)


def _line_count(requested: int | None, number: int | None) -> int | None:
    """Return how many lines of each file to show; None without a job. Raises LabError."""
    if requested is not None and number is None:
        raise LabError(f"top --lines {requested} needs a job; nearest: lab top JOBID --lines "
                       f"{requested}")
    if requested is not None and not 1 <= requested <= 1000:
        raise LabError(f"top --lines {requested}: not between 1 and 1000 lines; nearest: "
                       f"{min(1000, max(1, requested))}")
    return None if number is None else requested or details.LINES


def print_repeatedly(snapshots: list[Snapshot], number: int | None, log: str | None,
                     interval: float, count: int | None) -> None:
    """Print a new block of plain lines per interval until Ctrl-C, or until the only job ends.

    Args:
        snapshots: the first ones to print.
        number: the ID of the only job; None for all live jobs.
        log: the path of its log, if Slurm does not know it.
        interval: seconds between two blocks.
        count: lines of each node's files; None for no details.
    """
    try:
        while True:
            print(time.strftime("%H:%M:%S"), table.as_text(snapshots, count) or NO_JOBS, sep="\n",
                  end="\n\n", flush=True)
            if number is not None and snapshots[0].job.is_over:
                return
            time.sleep(interval)
            try:
                snapshots = take_snapshots(number, log)
            except LabError as error:
                print(f"no update: {error}", flush=True)
    except KeyboardInterrupt:
        pass


def redraw(snapshots: list[Snapshot], number: int | None, log: str | None, interval: float,
           count: int | None = None) -> None:
    """Redraw the terminal until Ctrl-C, or until the only job ends.

    While Slurm does not respond, the last screen stays. The arguments are those of
    `print_repeatedly`.
    """
    from rich.console import Console
    from rich.live import Live

    updated, failure = time.strftime("%H:%M:%S"), ""
    console = Console()

    def screen() -> object:
        foot = (f"{updated}, every {interval:g} s; Ctrl-C to quit"
                + ("" if snapshots else "; no job is running"))
        return table.shorten_to_terminal(snapshots, foot + failure, console, count)

    try:
        with Live(screen(), console=console, auto_refresh=False) as live:
            while number is None or not snapshots[0].job.is_over:
                time.sleep(interval)
                try:
                    snapshots = take_snapshots(number, log)
                    updated, failure = time.strftime("%H:%M:%S"), ""
                except LabError as error:
                    failure = f"; no update: {error}"
                live.update(screen(), refresh=True)
    except KeyboardInterrupt:
        pass


def run_report(arguments: argparse.Namespace) -> None:
    """Run `lab report`. Raises LabError if there is no such job, or the file is not writable."""
    from job_monitor import report

    job = find_job(slurm.number_of(arguments.job, "report"), arguments.log)
    path = report.write(job, arguments.output)
    print(f"report: {path}")
