"""`lab top` and `lab report`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from job_monitor import details, picture, ranks, slurm, table
from job_monitor.picture import Picture
from job_monitor.slurm import Job
from labcore import workspace
from labcore.errors import LabError
from slurmbox.layout import Layout

TOP = "what runs now: every job's ranks, how far they are, and what is wrong"
REPORT = "one self-contained HTML page about a job"
NOTHING = "no job runs, and none has in the last minutes"
RECENT = 3  # jobs that have ended, where none is alive


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    top = subparsers.add_parser("top", help=TOP, description=TOP)
    top.add_argument("job", nargs="?", metavar="JOBID", help="this job only, also one that is over")
    how = top.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true",
                     help="print once and exit; the default if the output is not a terminal")
    how.add_argument("--watch", action="store_true",
                     help="refresh until the job ends; the default in a terminal")
    how.add_argument("--json", action="store_true", help="for programs; once")
    top.add_argument("--lines", type=int, metavar="N",
                     help="last lines to show of each node's files, with a JOBID "
                          f"(default: {details.LINES})")
    top.add_argument("--interval", type=float, default=2.0, metavar="S",
                     help="seconds between two looks (default: 2)")
    add_log(top)
    top.set_defaults(run=run_top)
    report = subparsers.add_parser("report", help=REPORT, description=REPORT)
    report.add_argument("job", metavar="JOBID", help="running or over")
    report.add_argument("--output", metavar="FILE",
                        help="where to (default: megatron/reports/NAME_JOBID.html)")
    add_log(report)
    report.set_defaults(run=run_report)


def add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FILE", help="the job's log, where Slurm does not know it "
                        "any more (a site's own forgets it minutes after the end)")


def job_number(text: str, command: str) -> int:
    """Raises LabError for what is no job's number."""
    if not (text.isascii() and text.isdigit()):
        raise LabError(f"{command} {text}: a job's number is a whole number, such as "
                       f"{''.join(one for one in text if one.isascii() and one.isdigit()) or '7'}; "
                       "squeue and sacct list them")
    return int(text)


def find(number: int, log: str | None) -> Job:
    """Raises LabError for an unknown job and for a log that is not there."""
    job = slurm.find(number)
    if log is None:
        return job
    path = Path(log).absolute()
    if not path.is_file():
        raise LabError(f"--log {log}: no such file; logs are often in megatron/logs")
    return replace(job, out=path, err=path)


def look(number: int | None, log: str | None = None) -> list[Picture]:
    """One job, or all that live; where none lives, the last that Slurm still has."""
    proc = ranks.processes(Layout(workspace.home()))
    if number is not None:
        return [picture.take(find(number, log), proc, with_nodes=True)]
    known = slurm.known()
    live = [job for job in known if not job.is_over]
    return [picture.take(job, proc) for job in live or known[-RECENT:]]


def run_top(arguments: argparse.Namespace) -> None:
    """Raises LabError for an unknown job and where there is no cluster."""
    number = None if arguments.job is None else job_number(arguments.job, "top")
    if not 0.2 <= arguments.interval <= 3600:
        raise LabError(f"top --interval {arguments.interval:g}: between 0.2 and 3600 seconds; "
                       f"nearest: {min(3600, max(0.2, arguments.interval)):g}")
    if arguments.log and number is None:
        raise LabError(f"top --log {arguments.log}: of which job? lab top JOBID --log FILE")
    count = _lines(arguments.lines, number)
    pictures = look(number, arguments.log)
    if arguments.json:
        jobs = [picture.record(one) | ({} if number is None else details.record(one))
                for one in pictures]
        print(json.dumps({"time": time.time(), "jobs": jobs}, indent=2))
    elif arguments.once or not (arguments.watch or sys.stdout.isatty()):
        print(table.plain(pictures, count) or NOTHING)
    elif sys.stdout.isatty():
        refresh(pictures, number, arguments.log, arguments.interval, count)
    else:
        follow(pictures, number, arguments.log, arguments.interval, count)


def _lines(asked: int | None, number: int | None) -> int | None:
    """Return how many lines of each file to show; None without a job. Raises LabError."""
    if asked is not None and number is None:
        raise LabError(f"top --lines {asked}: of which job? lab top JOBID --lines {asked}")
    if asked is not None and not 1 <= asked <= 1000:
        raise LabError(f"top --lines {asked}: between 1 and 1000 lines; nearest: "
                       f"{min(1000, max(1, asked))}")
    return None if number is None else asked or details.LINES


def follow(pictures: list[Picture], number: int | None, log: str | None, interval: float,
           count: int | None) -> None:
    """Print a block of plain lines again and again, where no terminal can be redrawn, until ^C or
    until the one job is over."""
    try:
        while True:
            print(time.strftime("%H:%M:%S"), table.plain(pictures, count) or NOTHING, sep="\n",
                  end="\n\n", flush=True)
            if number is not None and pictures[0].job.is_over:
                return
            time.sleep(interval)
            try:
                pictures = look(number, log)
            except LabError as error:
                print(f"no newer picture: {error}", flush=True)
    except KeyboardInterrupt:
        pass


def refresh(pictures: list[Picture], number: int | None, log: str | None, interval: float,
            count: int | None = None) -> None:
    """Until ^C, or until the one job is over. While Slurm does not answer, the last picture
    stays."""
    from rich.console import Console
    from rich.live import Live

    seen, said = time.strftime("%H:%M:%S"), ""
    console = Console()

    def shown() -> object:
        foot = f"{seen}, every {interval:g} s; ^C ends" + ("" if pictures else "; no job runs")
        return table.fitting(pictures, foot + said, console, count)

    try:
        with Live(shown(), console=console, auto_refresh=False) as live:
            while number is None or not pictures[0].job.is_over:
                time.sleep(interval)
                try:
                    pictures, seen, said = look(number, log), time.strftime("%H:%M:%S"), ""
                except LabError as error:
                    said = f"; no newer picture: {error}"
                live.update(shown(), refresh=True)
    except KeyboardInterrupt:
        pass


def run_report(arguments: argparse.Namespace) -> None:
    """Raises LabError for an unknown job and a file that cannot be written."""
    from job_monitor import report

    job = find(job_number(arguments.job, "report"), arguments.log)
    path = report.write(job, arguments.output)
    print(f"report: {path}")
