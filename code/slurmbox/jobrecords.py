"""Read jobs, ended or not, from what Slurm writes without an accounting database."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

# States of a job that has not ended.
ACTIVE = ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED",
          "REQUEUE_HOLD", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
# A command may contain anything, even NAME=VALUE, so it ends only where its folder begins.
_PAIR = re.compile(r"(?P<name>Command)=(?P<command>.*?)(?=\s+WorkDir=)|"
                   r"(?P<other>\S+?)=(?P<value>.*?)(?=\s+[A-Z][\w/:]*=|\s*$)")

# Slurm's two outputs use different names for the same fields. Ours are the names that sacct prints.
_FROM_COMPLETION = {
    "JobIDRaw": "JobId", "JobName": "Name", "Partition": "Partition", "Account": "Account",
    "State": "JobState", "Start": "StartTime", "End": "EndTime", "Submit": "SubmitTime",
    "Eligible": "EligibleTime", "NodeList": "NodeList", "NNodes": "NodeCnt",
    "AllocCPUS": "ProcCnt", "WorkDir": "WorkDir", "AllocTRES": "Tres", "ExitCode": "ExitCode",
    "DerivedExitCode": "DerivedExitCode", "QOS": "QOS", "Timelimit": "TimeLimit",
}
_FROM_CONTROLLER = _FROM_COMPLETION | {
    "JobName": "JobName", "NNodes": "NumNodes", "AllocCPUS": "NumCPUs", "AllocTRES": "TRES"}


def parse_line(line: str) -> dict[str, str]:
    """Parse `Key=value Key=value`, whose values may contain spaces and may be empty."""
    return {one["name"] or one["other"]: one["command"] or one["value"] or ""
            for one in _PAIR.finditer(line)}


def is_owner(pairs: dict[str, str], uid: int) -> bool:
    """Return whether the job is this user's, by the UID in `UserId=NAME(UID)`.

    The name does not count, because it may not be unique.
    """
    return pairs.get("UserId", "").endswith(f"({uid})")


def _job(pairs: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    job = {name: pairs.get(slurm_name, "") for name, slurm_name in names.items()}
    job["User"] = pairs.get("UserId", "").partition("(")[0]
    job["Account"] = "" if job["Account"] == "(null)" else job["Account"]
    job["QOS"] = "" if job["QOS"] == "(null)" else job["QOS"]
    job["NodeList"] = "None assigned" if job["NodeList"] in ("", "(null)") else job["NodeList"]
    array, task = pairs.get("ArrayJobId"), pairs.get("ArrayTaskId")
    job["JobID"] = f"{array}_{task}" if array and task else job["JobIDRaw"]
    for name in ("Start", "End", "Submit", "Eligible"):
        job[name] = "Unknown" if job[name] in ("", "N/A", "None", "(null)") else job[name]
    job["Timelimit"] = _time_limit(job["Timelimit"])
    return job


def _time_limit(text: str) -> str:
    """Return a time limit as HH:MM:SS, or a word such as UNLIMITED; some of Slurm's are minutes."""
    return format_seconds(60 * int(text)) if text.isdigit() else text


def finished(records: Path) -> list[dict[str, str]]:
    """Return the recorded jobs in the order in which they ended."""
    try:
        lines = records.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [_job(parse_line(line), _FROM_COMPLETION) for line in lines
            if line.startswith("JobId=")]


def active(listing: str) -> list[dict[str, str]]:
    """Return the jobs in the output of `scontrol show job -o` that have not ended."""
    jobs = []
    for line in listing.splitlines():
        if line.startswith("JobId="):
            job = _job(parse_line(line), _FROM_CONTROLLER)
            if job["State"] in ACTIVE:
                job["End"] = "Unknown"
                if job["State"] == "PENDING":
                    job["Start"], job["AllocCPUS"], job["AllocTRES"] = "Unknown", "0", ""
                jobs.append(job)
    return jobs


def merge(ended: list[dict[str, str]], live: list[dict[str, str]],
          duplicates: bool = False) -> list[dict[str, str]]:
    """Return one entry per job, sorted by its ID.

    Args:
        ended: records of jobs that have ended.
        live: jobs that have not.
        duplicates: keep an entry for each run of a requeued job, not only for the latest.
    """
    recorded = {(job["JobIDRaw"], job["Start"]) for job in ended}
    jobs = ended + [job for job in live
                    if not (job["State"] == "COMPLETING"
                            and (job["JobIDRaw"], job["Start"]) in recorded)]
    if not duplicates:
        jobs = list({job["JobIDRaw"]: job for job in jobs}.values())
    return sorted(jobs, key=lambda job: int(job["JobIDRaw"]))


def parse_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo else time  # Slurm's times have no time zone


def elapsed_seconds(job: dict[str, str], now: datetime) -> int:
    start, end = parse_time(job["Start"]), parse_time(job["End"]) or now
    return max(0, int((end - start).total_seconds())) if start and start <= end else 0


def format_seconds(seconds: int) -> str:
    """Return a duration in Slurm's format, [DAYS-]HH:MM:SS."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
