"""Read a job from Slurm or its records: what was requested, where it runs, and how it ended."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import slurmbox as cluster
from job_monitor import components, filenames
from job_monitor.components import SlurmJob
from labcore import workspace
from labcore.errors import LabError
from slurmbox import clients, health, jobfolders, jobrecords
from slurmbox.layout import Layout
from slurmbox.namespaces import MARKER

FIELDS = ("JobID", "JobName", "Partition", "State", "ExitCode", "Submit", "Start", "End", "Elapsed",
          "Timelimit", "NNodes", "NodeList", "AllocCPUS", "AllocTRES")
JOB_ID = re.compile(r"(?a:(?P<job>\d{1,10})(?:_(?P<task>\d{1,10})|\+\d+)?(?:\.\w+)?)")
WITH_MEMORY = (*FIELDS, "MaxRSS")  # only an accounting database has MaxRSS


def run_command(*words: str, folder: Path = Path("/")) -> subprocess.CompletedProcess:
    """Run one of Slurm's commands on the cluster of this workspace.

    Args:
        words: the command.
        folder: its working directory.

    Raises:
        LabError: there is no cluster, or it does not respond.
    """
    layout = Layout(workspace.home())
    if not (layout.site.exists() or layout.slurm_conf.exists()):  # Slurm would look elsewhere
        raise LabError(clients.NOT_RUNNING)
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30, cwd=folder,
                              stdin=subprocess.DEVNULL, errors="replace",
                              env=cluster.environment(workspace.home()))
    except FileNotFoundError:
        raise LabError(clients.NOT_RUNNING) from None
    except subprocess.TimeoutExpired:
        raise LabError("Slurm does not respond: see `lab cluster status`") from None


def _scontrol_jobs(*words: str) -> list[SlurmJob]:
    done = run_command("scontrol", "show", "job", "-o", *words)
    if done.returncode and "Invalid job id" not in done.stderr:
        text = done.stderr.strip() or "no response"
        raise LabError(clients.NOT_RUNNING if clients.NOT_RUNNING in text else f"scontrol: {text}")
    return _jobs(line for line in done.stdout.splitlines() if words or jobrecords.is_owner(
        jobrecords.parse_line(line), os.getuid()))


def recent_jobs() -> list[SlurmJob]:
    """Return this user's jobs that the controller still has: live ones and recently ended ones.

    The components of a heterogeneous job are one job, and so are a master job and the jobs that
    joined it.
    """
    jobs = {job.number: job for job in sorted(_scontrol_jobs(), key=lambda job: job.number)}
    joined = {job.number: components.joined_jobs(job, jobs.get) for job in jobs.values()}
    joined_ids = {part.number for parts in joined.values() for part in parts}
    return [components.combine([job, *joined[number]]) for number, job in jobs.items()
            if number not in joined_ids]


def find(number: int) -> SlurmJob:
    """Return a job with its components and the jobs that joined it, even if Slurm forgot it.

    Args:
        number: its ID.

    Raises:
        LabError: there was never such a job, or the cluster is up but does not respond.
    """
    job = _find(number)
    if job.leader not in (None, number):
        job = _find(job.leader)
    return components.combine([job, *components.joined_jobs(job, _find)])


def number_of(text: str, command: str) -> int:
    """Return the number of the job that a user names.

    Args:
        text: its ID: 28, 28_0 (a task of an array), or 26+1 (a component of a heterogeneous job),
            possibly with a step, as in 28.0.
        command: the command that was given the ID, for errors.

    Raises:
        LabError: it is no job ID, or the array has no such task.
    """
    match = JOB_ID.fullmatch(text)
    if not match:
        near = re.search(r"[0-9]+", text) or ["7"]
        raise LabError(f"{command} {text}: a job ID is a number, such as {near[0]}; "
                       "28_0 is a task of an array, and 26+1 a component; squeue and sacct list "
                       "them")
    if match["task"] is None:
        return int(match["job"])
    name = f"{match['job']}_{match['task']}"
    records = jobrecords.finished(Layout(workspace.home()).job_records)
    numbers = [job["JobIDRaw"] for job in records if job["JobID"] == name]
    try:
        done = run_command("scontrol", "show", "job", "-o", name)
    except LabError:
        if not numbers:
            raise
    else:
        numbers += re.findall(r"(?m)^JobId=(\d+)", done.stdout) if done.returncode == 0 else []
    if not numbers:
        raise LabError(f"{command} {text}: Slurm has no such task of an array; squeue and sacct "
                       "list them")
    return int(numbers[-1])


def _find(number: int) -> SlurmJob:
    """Return a job with its components. Raises LabError like `find`."""
    layout = Layout(workspace.home())
    failure = None
    try:
        live = next((job for job in _scontrol_jobs(str(number)) if job.number == number), None)
    except LabError as error:  # a cluster that is down still has its records
        failure, live = error, None
    if live:
        return live
    if failure and _is_up(layout):  # the records do not tell the state of a job that may be alive
        raise failure
    recorded = _recorded(layout, number)
    rows = accounting(number)
    if not recorded and not rows:
        raise failure or LabError(_unknown_job(layout, number))
    return merge(recorded or SlurmJob(number, "", "UNKNOWN"), rows[0] if rows else {})


def _is_up(layout: Layout) -> bool:
    """Return whether the cluster seems to be up, judged without Slurm's commands."""
    return Path(MARKER).exists() or health.supervisor(layout) is not None


def _recorded(layout: Layout, number: int) -> SlurmJob | None:
    """Return a job from the record that was written at its start."""
    try:
        text = (layout.ranks / str(number) / jobfolders.JOB_FILE).read_text(errors="replace")
        return next((job for job in _jobs(text.splitlines()) if job.number == number), None)
    except (OSError, ValueError):
        return None


def merge(recorded: SlurmJob, row: dict[str, str]) -> SlurmJob:
    """Combine a job's record from its start with accounting's record of its end.

    Args:
        recorded: the job at its start.
        row: its row in the accounting; empty if there is none.
    """
    if not row:  # it was alive when the cluster went down without writing a record
        return replace(recorded, state="UNKNOWN", reason="", elapsed="", states=())
    count = row.get("NNodes", "")
    ended = replace(
        recorded, name=row["JobName"], state=row["State"].split()[0], reason="", end=row["End"],
        start=row["Start"], elapsed=row["Elapsed"], exit_code=row["ExitCode"],
        limit=row["Timelimit"], states=())
    if recorded.gpus_per_node:  # the row is of the first component only
        return ended
    return replace(ended, nodes=row["NodeList"],
                   node_count=int(count) if count.isdigit() else recorded.node_count)


def accounting(number: int) -> list[dict[str, str]]:
    """Return sacct's rows for a job and its steps; empty if there is no accounting."""
    for fields in (WITH_MEMORY, FIELDS):
        try:
            done = run_command("sacct", "-j", str(number), "-n", "-P", "-o", ",".join(fields))
        except LabError:
            break
        if done.returncode == 0 and done.stdout.strip():
            return [dict(zip(fields, line.split("|"), strict=False))
                    for line in done.stdout.splitlines() if line.count("|") >= len(fields) - 1]
    records = jobrecords.finished(Layout(workspace.home()).job_records)
    job = next((job for job in reversed(records) if job["JobIDRaw"] == str(number)), None)
    if job is None:
        return []
    start, end = (jobrecords.parse_time(job[name]) for name in ("Start", "End"))
    seconds = int((end - start).total_seconds()) if start and end else 0
    job["Elapsed"] = jobrecords.format_seconds(max(0, seconds))
    return [{name: job[name] for name in FIELDS}]


def script(number: int) -> str:
    """Return the batch script that was submitted; empty if there is none."""
    try:
        path = Layout(workspace.home()).ranks / str(number) / jobfolders.SCRIPT_FILE
        return path.read_text(errors="replace")
    except OSError:
        pass
    try:
        done = run_command("scontrol", "write", "batch_script", str(number), "-")
    except LabError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _unknown_job(layout: Layout, number: int) -> str:
    known = [job.number for job in recent_jobs()]
    known += [int(job["JobIDRaw"]) for job in jobrecords.finished(layout.job_records)]
    last = f"; the latest is {max(known)}" if known else "; no job has been submitted yet"
    return f"job {number}: Slurm has no such job{last}"


def _jobs(lines: Iterable[str]) -> list[SlurmJob]:
    """Return the jobs of `scontrol show job -o`, which has a line for each component of a
    heterogeneous job."""
    parts_by_leader: dict[int, list[SlurmJob]] = {}
    for line in lines:
        if line.startswith("JobId="):
            job = parse(line)
            parts_by_leader.setdefault(job.leader or job.number, []).append(job)
    return [components.combine(sorted(parts, key=lambda job: job.number))
            for parts in parts_by_leader.values()]


def parse(line: str) -> SlurmJob:
    """Parse a line of `scontrol show job -o`."""
    pairs = jobrecords.parse_line(line)

    def number(name: str) -> int | None:
        match = re.match(r"\d+", pairs.get(name, ""))
        return int(match[0]) if match else None

    def value(name: str) -> str:
        text = pairs.get(name, "")
        return "" if text in ("(null)", "None", "Unknown", "N/A") else text

    out = filenames.find(pairs.get("StdOut", ""), pairs)
    return SlurmJob(
        int(pairs["JobId"]), pairs.get("JobName", ""), pairs.get("JobState", "UNKNOWN"),
        value("Reason"), value("RunTime"), value("TimeLimit"), value("StartTime"),
        value("EndTime"), value("NodeList"), number("NumNodes"), _gpus(pairs),
        number("NumTasks"), value("ExitCode"), value("Command"), value("WorkDir"),
        out, filenames.find(pairs.get("StdErr", ""), pairs) or out, number("HetJobId"))


def _gpus(pairs: dict[str, str]) -> int | None:
    """Return the number of GPUs of the whole job."""
    for name in ("TRES", "AllocTRES"):
        total = re.search(r"gres/gpu(?::[^=,]+)?=(\d+)", pairs.get(name, ""))
        if total:
            return int(total[1])
    per_node = re.search(r"gpu(?::[^:,]*[^\d:,][^:,]*)?(?::(\d+))?", pairs.get("TresPerNode", ""))
    nodes = re.match(r"\d+", pairs.get("NumNodes", ""))
    return int(per_node[1] or 1) * int(nodes[0]) if per_node and nodes else None
