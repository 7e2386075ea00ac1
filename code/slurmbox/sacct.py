"""Show every finished job, like `sacct`, from Slurm's own completion records.

Without a database, there are no steps and no MaxRSS; `lab cluster up --accounting` has them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

from slurmbox import jobrecords

HINT = "for the full sacct: lab cluster down, then lab cluster up --accounting"
# Widths as in Slurm; a negative one means left-aligned.
FIELDS = {
    "JobID": -12, "JobIDRaw": -12, "JobName": 10, "Partition": 10, "Account": 10, "User": 9,
    "AllocCPUS": 10, "NCPUS": 10, "State": 10, "ExitCode": 8, "DerivedExitCode": 15,
    "Elapsed": 10, "ElapsedRaw": 10, "Start": 19, "End": 19, "Submit": 19, "Eligible": 19,
    "NodeList": 15, "NNodes": 8, "AllocNodes": 10, "WorkDir": 20, "Timelimit": 10,
    "AllocTRES": 10, "QOS": 10, "Cluster": 10,
}
# Slurm's own default, plus the elapsed time.
DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode,Elapsed"
BRIEF = "JobID,State,ExitCode"
BY_LOWER = {name.lower(): name for name in FIELDS}


class SacctParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"sacct: error: {message}; {HINT}", file=sys.stderr)
        sys.exit(1)


def build_parser() -> SacctParser:
    top = SacctParser(prog="sacct", description=__doc__, allow_abbrev=False)
    add = top.add_argument
    add("-j", "--jobs", metavar="ID[,ID...]", help="show only these jobs")
    add("-n", "--noheader", action="store_true", help="print no header")
    add("-P", "--parsable2", action="store_true", help="separate fields by |")
    add("-p", "--parsable", action="store_true", help="the same, with a | at the end")
    add("-X", "--allocations", action="store_true", help="accepted; there are no steps anyway")
    add("-o", "--format", default=None, metavar="FIELD[%%WIDTH],...",
        help="the fields to show, among " + ", ".join(FIELDS))
    add("-b", "--brief", action="store_true", help=f"show {BRIEF}")
    add("-D", "--duplicates", action="store_true", help="show each run of a requeued job")
    add("-S", "--starttime", metavar="YYYY-MM-DD[THH:MM[:SS]]",
        help="show jobs since then (default: the last 24 hours, or all jobs with -j)")
    add("-a", "--allusers", action="store_true", help="accepted; the cluster has one user")
    add("-u", "--user", help="accepted; the cluster has one user")
    add("-e", "--helpformat", action="store_true", help="list the fields")
    return top


def columns(text: str) -> list[tuple[str, int]]:
    """Parse `JobID,State%20` into [("JobID", -12), ("State", 20)]."""
    selected = []
    for word in filter(None, text.split(",")):
        name, _, width = word.strip().partition("%")
        field = BY_LOWER.get(name.lower())
        if field is None:
            build_parser().error(f"field {name!r} is not recorded without a database "
                                 f"(the recorded fields are {', '.join(FIELDS)})")
        if width and not re.fullmatch(r"-?[0-9]+", width):
            build_parser().error(f"width {width!r} of field {name!r} is not a number")
        selected.append((field, int(width) if width else FIELDS[field]))
    return selected


def value(job: dict[str, str], field: str, now: datetime) -> str:
    if field == "Elapsed":
        return jobrecords.format_seconds(jobrecords.elapsed_seconds(job, now))
    if field == "ElapsedRaw":
        return str(jobrecords.elapsed_seconds(job, now))
    aliases = {"NCPUS": "AllocCPUS", "AllocNodes": "NNodes"}
    return "lab" if field == "Cluster" else job[aliases.get(field, field)]


def cell(text: str, width: int) -> str:
    """Return a cell as sacct prints it: right-aligned, and truncated with a +."""
    room = abs(width)
    text = text if len(text) <= room else text[:room - 1] + "+"
    return f"{text:<{room}}" if width < 0 else f"{text:>{room}}"


def table(jobs: list[dict[str, str]], selected: list[tuple[str, int]], now: datetime,
          header: bool = True, separator: str | None = None, end: str = "") -> str:
    """Return a table of jobs.

    Args:
        selected: (field, width) of each column.
        now: the end of a job that has not ended.
        header: whether the table has a header.
        separator: separates the fields; None for columns of a fixed width.
        end: ends each line, if there is a separator.
    """
    rows = [[value(job, field, now) for field, _ in selected] for job in jobs]
    names = [field for field, _ in selected]
    if separator is not None:
        lines = [separator.join(row) + end for row in ([names] if header else []) + rows]
        return "".join(line + "\n" for line in lines)
    widths = [width for _, width in selected]
    if header:
        rows = [names, ["-" * abs(width) for width in widths], *rows]
    return "".join("".join(cell(text, width) + " " for text, width in
                           zip(row, widths, strict=True)) + "\n" for row in rows)


def job_ids(text: str) -> set[str]:
    """Parse `3,4.batch,5_1` into {"3", "4", "5_1"}; steps count as their job."""
    ids = {word.strip().partition(".")[0] for word in text.split(",")}
    for word in ids:
        if not word.replace("_", "", 1).isdigit():
            build_parser().error(f"-j {word!r}: not a job ID")
    return ids


def read_jobs(state: Path, duplicates: bool) -> list[dict[str, str]]:
    listing = subprocess.run([str(state / "bin" / "scontrol"), "show", "job", "-o"],
                             capture_output=True, text=True).stdout
    ended = jobrecords.finished(state / "log" / "jobcomp.txt")
    return jobrecords.merge(ended, jobrecords.active(listing), duplicates)


def main() -> None:
    arguments, unknown = build_parser().parse_known_args()
    if unknown:
        build_parser().error(f"option {unknown[0]} is not supported without a database")
    if arguments.helpformat:
        print("\n".join(FIELDS))
        return
    selected = columns(arguments.format or (BRIEF if arguments.brief else DEFAULT))
    now = datetime.now()
    since = now - timedelta(days=1)
    if arguments.starttime:
        since = jobrecords.parse_time(arguments.starttime)
        if since is None:
            build_parser().error(
                f"-S {arguments.starttime!r}: not YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS")
    wanted = job_ids(arguments.jobs) if arguments.jobs else set()
    state = Path(os.environ["SLURM_CONF"]).parents[1]
    jobs = read_jobs(state, arguments.duplicates)
    if arguments.user and arguments.user not in {job["User"] for job in jobs}:
        jobs = []
    if wanted:
        jobs = [job for job in jobs if wanted & {job["JobID"], job["JobIDRaw"],
                                                 job["JobID"].partition("_")[0]}]
    if arguments.starttime or not arguments.jobs:
        jobs = [job for job in jobs if (jobrecords.parse_time(job["End"]) or now) >= since]
    parsable = arguments.parsable or arguments.parsable2
    print(table(jobs, selected, now, not arguments.noheader, "|" if parsable else None,
                "|" if arguments.parsable else ""), end="")


if __name__ == "__main__":
    main()
