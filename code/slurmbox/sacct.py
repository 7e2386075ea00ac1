"""`sacct` of the light default: every finished job, from Slurm's own completion records.

No database runs, so there are no steps and no MaxRSS; `lab cluster up --accounting` has them.
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

ALL_OF_IT = "for all of sacct: lab cluster down, then lab cluster up --accounting"
# Width as in Slurm; a negative one is aligned to the left.
FIELDS = {
    "JobID": -12, "JobIDRaw": -12, "JobName": 10, "Partition": 10, "Account": 10, "User": 9,
    "AllocCPUS": 10, "NCPUS": 10, "State": 10, "ExitCode": 8, "DerivedExitCode": 15,
    "Elapsed": 10, "ElapsedRaw": 10, "Start": 19, "End": 19, "Submit": 19, "Eligible": 19,
    "NodeList": 15, "NNodes": 8, "AllocNodes": 10, "WorkDir": 20, "Timelimit": 10,
    "AllocTRES": 10, "QOS": 10, "Cluster": 10,
}
# Slurm's own default, and how long it took.
DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode,Elapsed"
BRIEF = "JobID,State,ExitCode"
BY_LOWER = {name.lower(): name for name in FIELDS}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"sacct: error: {message}; {ALL_OF_IT}", file=sys.stderr)
        sys.exit(1)


def parser() -> Parser:
    top = Parser(prog="sacct", description=__doc__, allow_abbrev=False)
    add = top.add_argument
    add("-j", "--jobs", metavar="ID[,ID...]", help="only these jobs")
    add("-n", "--noheader", action="store_true")
    add("-P", "--parsable2", action="store_true", help="fields separated by |")
    add("-p", "--parsable", action="store_true", help="the same with a | at the end")
    add("-X", "--allocations", action="store_true", help="no steps (there are none anyway)")
    add("-o", "--format", default=None, metavar="FIELD[%%WIDTH],...",
        help="of " + ", ".join(FIELDS))
    add("-b", "--brief", action="store_true", help=BRIEF)
    add("-D", "--duplicates", action="store_true", help="each run of a requeued job")
    add("-S", "--starttime", metavar="YYYY-MM-DD[THH:MM[:SS]]",
        help="jobs since then (default: the last 24 hours; with -j: ever)")
    add("-a", "--allusers", action="store_true", help="accepted: the cluster has one user")
    add("-u", "--user", help="accepted where it is you: the cluster has one user")
    add("-e", "--helpformat", action="store_true", help="list the fields")
    return top


def columns(text: str) -> list[tuple[str, int]]:
    """`JobID,State%20` -> [("JobID", -12), ("State", 20)]."""
    chosen = []
    for word in filter(None, text.split(",")):
        name, _, width = word.strip().partition("%")
        field = BY_LOWER.get(name.lower())
        if field is None:
            parser().error(f"field {name!r} is not in the light records "
                           f"(they have {', '.join(FIELDS)})")
        if width and not re.fullmatch(r"-?[0-9]+", width):
            parser().error(f"width {width!r} of field {name!r} is not a number")
        chosen.append((field, int(width) if width else FIELDS[field]))
    return chosen


def value(job: dict[str, str], field: str, now: datetime) -> str:
    if field == "Elapsed":
        return jobrecords.format_seconds(jobrecords.elapsed_seconds(job, now))
    if field == "ElapsedRaw":
        return str(jobrecords.elapsed_seconds(job, now))
    same = {"NCPUS": "AllocCPUS", "AllocNodes": "NNodes"}
    return "lab" if field == "Cluster" else job[same.get(field, field)]


def cell(text: str, width: int) -> str:
    """Return a cell as sacct prints it: right-aligned, and truncated with a +."""
    room = abs(width)
    text = text if len(text) <= room else text[:room - 1] + "+"
    return f"{text:<{room}}" if width < 0 else f"{text:>{room}}"


def table(jobs: list[dict[str, str]], chosen: list[tuple[str, int]], now: datetime,
          header: bool = True, separator: str | None = None, end: str = "") -> str:
    rows = [[value(job, field, now) for field, _ in chosen] for job in jobs]
    names = [field for field, _ in chosen]
    if separator is not None:
        lines = [separator.join(row) + end for row in ([names] if header else []) + rows]
        return "".join(line + "\n" for line in lines)
    widths = [width for _, width in chosen]
    if header:
        rows = [names, ["-" * abs(width) for width in widths], *rows]
    return "".join("".join(cell(text, width) + " " for text, width in
                           zip(row, widths, strict=True)) + "\n" for row in rows)


def job_ids(text: str) -> set[str]:
    """`3,4.batch,5_1` -> {"3", "4", "5_1"}; there are no steps to choose."""
    ids = {word.strip().partition(".")[0] for word in text.split(",")}
    for word in ids:
        if not word.replace("_", "", 1).isdigit():
            parser().error(f"-j {word!r}: not a job's number")
    return ids


def read_jobs(state: Path, duplicates: bool) -> list[dict[str, str]]:
    listing = subprocess.run([str(state / "bin" / "scontrol"), "show", "job", "-o"],
                             capture_output=True, text=True).stdout
    ended = jobrecords.finished(state / "log" / "jobcomp.txt")
    return jobrecords.merge(ended, jobrecords.active(listing), duplicates)


def main() -> None:
    arguments, unknown = parser().parse_known_args()
    if unknown:
        parser().error(f"{unknown[0]} is not known to the light sacct")
    if arguments.helpformat:
        print("\n".join(FIELDS))
        return
    chosen = columns(arguments.format or (BRIEF if arguments.brief else DEFAULT))
    now = datetime.now()
    since = now - timedelta(days=1)
    if arguments.starttime:
        since = jobrecords.parse_time(arguments.starttime)
        if since is None:
            parser().error(f"-S {arguments.starttime!r}: not YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS")
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
    print(table(jobs, chosen, now, not arguments.noheader, "|" if parsable else None,
                "|" if arguments.parsable else ""), end="")


if __name__ == "__main__":
    main()
