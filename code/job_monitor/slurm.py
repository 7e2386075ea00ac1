"""A job as Slurm knows it, or knew it: what was asked, where it runs, how it ended."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import slurmbox as cluster
from job_monitor import components
from labcore import workspace
from labcore.errors import LabError
from slurmbox import clients, health, jobrecords, keeping
from slurmbox.layout import Layout
from slurmbox.namespaces import MARKER

FIELDS = ("JobID", "JobName", "Partition", "State", "ExitCode", "Submit", "Start", "End", "Elapsed",
          "Timelimit", "NNodes", "NodeList", "AllocCPUS", "AllocTRES")
WITH_MEMORY = (*FIELDS, "MaxRSS")  # only a database knows it


@dataclass(frozen=True)
class Job:
    """command: the script and its arguments. out, err: the log's files. gpus, tasks: in all, as
    asked; None where not said. leader: the ID of the heterogeneous job that it is a component of,
    which is its first component's. joined: the IDs of the jobs that joined it. gpus_per_node: of
    each component, where there are several. joined_logs: the joined jobs' files. states: (ID,
    state) of each component, where there are several and Slurm has them."""

    number: int
    name: str
    state: str
    reason: str = ""
    elapsed: str = ""
    limit: str = ""
    start: str = ""
    end: str = ""
    nodes: str = ""
    node_count: int | None = None
    gpus: int | None = None
    tasks: int | None = None
    exit_code: str = ""
    command: str = ""
    folder: str = ""
    out: Path | None = None
    err: Path | None = None
    leader: int | None = None
    joined: tuple[int, ...] = ()
    gpus_per_node: tuple[int | None, ...] = ()
    joined_logs: tuple[Path, ...] = ()
    states: tuple[tuple[int, str], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state not in jobrecords.ACTIVE

    @property
    def logs(self) -> list[Path]:
        """Its files, the errors first; one where both are the same."""
        return list(dict.fromkeys(path for path in (self.err, self.out, *self.joined_logs) if path))


def client(*words: str, folder: Path = Path("/")) -> subprocess.CompletedProcess:
    """Run one of Slurm's commands on the cluster of this workspace.

    Args:
        words: the command.
        folder: in which it runs.

    Raises:
        LabError: there is no cluster, or it does not answer.
    """
    layout = Layout(workspace.home())
    if not (layout.site.exists() or layout.slurm_conf.exists()):  # Slurm would look for another
        raise LabError(clients.NOT_RUNNING)
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30, cwd=folder,
                              stdin=subprocess.DEVNULL, errors="replace",
                              env=cluster.environment(workspace.home()))
    except FileNotFoundError:
        raise LabError(clients.NOT_RUNNING) from None
    except subprocess.TimeoutExpired:
        raise LabError("Slurm does not answer: see `lab cluster status`") from None


def _show(*words: str) -> list[Job]:
    done = client("scontrol", "show", "job", "-o", *words)
    if done.returncode and "Invalid job id" not in done.stderr:
        text = done.stderr.strip() or "no answer"
        raise LabError(clients.NOT_RUNNING if clients.NOT_RUNNING in text else f"scontrol: {text}")
    return _jobs(line for line in done.stdout.splitlines() if words or jobrecords.is_owner(
        jobrecords.parse_line(line), os.getuid()))


def known() -> list[Job]:
    """This user's jobs that the controller still has: live ones, and those of the last minutes. The
    components of a heterogeneous job are one job, and so are a master job and those that joined."""
    jobs = {job.number: job for job in sorted(_show(), key=lambda job: job.number)}
    joining = {job.number: components.joining(job, jobs.get) for job in jobs.values()}
    inside = {part.number for parts in joining.values() for part in parts}
    return [components.span([job, *joining[number]]) for number, job in jobs.items()
            if number not in inside]


def find(number: int) -> Job:
    """A job with all of its components and the jobs that joined it, also one that Slurm has
    forgotten. Raises LabError for one that never was, and where a cluster that is up does not
    answer."""
    job = _find(number)
    if job.leader not in (None, number):
        job = _find(job.leader)
    return components.span([job, *components.joining(job, _find)])


def _find(number: int) -> Job:
    """Return a job with its components. Raises LabError like `find`."""
    layout = Layout(workspace.home())
    stopped = None
    try:
        now = next((job for job in _show(str(number)) if job.number == number), None)
    except LabError as error:  # a cluster that is down has its records all the same
        stopped, now = error, None
    if now:
        return now
    if stopped and _is_up(layout):  # the records do not know how a job is that may live
        raise stopped
    kept = _kept(layout, number)
    rows = accounting(number)
    if not kept and not rows:
        raise stopped or LabError(_unknown(layout, number))
    return merge(kept or Job(number, "", "UNKNOWN"), rows[0] if rows else {})


def _is_up(layout: Layout) -> bool:
    """Return whether the cluster seems to be up, judged without Slurm's commands."""
    return Path(MARKER).exists() or health.supervisor(layout) is not None


def _kept(layout: Layout, number: int) -> Job | None:
    try:
        text = (layout.ranks / str(number) / keeping.JOB).read_text(errors="replace")
        return next((job for job in _jobs(text.splitlines()) if job.number == number), None)
    except (OSError, ValueError):
        return None


def merge(kept: Job, row: dict[str, str]) -> Job:
    """Return a job with what was recorded at its start and how it ended according to accounting."""
    if not row:  # it was alive when the cluster went down in a way that left no record
        return replace(kept, state="UNKNOWN", reason="", elapsed="", states=())
    count = row.get("NNodes", "")
    ended = replace(
        kept, name=row["JobName"], state=row["State"].split()[0], reason="", end=row["End"],
        start=row["Start"], elapsed=row["Elapsed"], exit_code=row["ExitCode"],
        limit=row["Timelimit"], states=())
    if kept.gpus_per_node:  # the row is of the first component only
        return ended
    return replace(ended, nodes=row["NodeList"],
                   node_count=int(count) if count.isdigit() else kept.node_count)


def accounting(number: int) -> list[dict[str, str]]:
    """Return sacct's rows for a job and its steps; empty if there is no accounting."""
    for fields in (WITH_MEMORY, FIELDS):
        try:
            done = client("sacct", "-j", str(number), "-n", "-P", "-o", ",".join(fields))
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
    """The batch script, as it was submitted; empty where there is none."""
    try:
        place = Layout(workspace.home()).ranks / str(number) / keeping.SCRIPT
        return place.read_text(errors="replace")
    except OSError:
        pass
    try:
        done = client("scontrol", "write", "batch_script", str(number), "-")
    except LabError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _unknown(layout: Layout, number: int) -> str:
    seen = [job.number for job in known()]
    seen += [int(job["JobIDRaw"]) for job in jobrecords.finished(layout.job_records)]
    last = f"; the latest is {max(seen)}" if seen else "; there has been no job yet"
    return f"job {number}: Slurm knows no such job{last}"


def _jobs(lines: Iterable[str]) -> list[Job]:
    """Return the jobs of `scontrol show job -o`, which has a line for each component of a
    heterogeneous job."""
    found: dict[int, list[Job]] = {}
    for line in lines:
        if line.startswith("JobId="):
            job = parse(line)
            found.setdefault(job.leader or job.number, []).append(job)
    return [components.span(sorted(parts, key=lambda job: job.number)) for parts in found.values()]


def parse(line: str) -> Job:
    """A line of `scontrol show job -o`."""
    pairs = jobrecords.parse_line(line)

    def number(name: str) -> int | None:
        found = re.match(r"\d+", pairs.get(name, ""))
        return int(found[0]) if found else None

    def path(name: str) -> Path | None:
        text = pairs.get(name, "")
        return Path(text) if text and text not in ("/dev/null", "(null)") else None

    def plain(name: str) -> str:
        text = pairs.get(name, "")
        return "" if text in ("(null)", "None", "Unknown", "N/A") else text

    out = path("StdOut")
    return Job(int(pairs["JobId"]), pairs.get("JobName", ""), pairs.get("JobState", "UNKNOWN"),
               plain("Reason"), plain("RunTime"), plain("TimeLimit"), plain("StartTime"),
               plain("EndTime"), plain("NodeList"), number("NumNodes"), _gpus(pairs),
               number("NumTasks"), plain("ExitCode"), plain("Command"), plain("WorkDir"),
               out, path("StdErr") or out, number("HetJobId"))


def _gpus(pairs: dict[str, str]) -> int | None:
    """Return the number of GPUs of the whole job."""
    for name in ("TRES", "AllocTRES"):
        found = re.search(r"gres/gpu(?::[^=,]+)?=(\d+)", pairs.get(name, ""))
        if found:
            return int(found[1])
    found = re.search(r"gpu(?::[^:,]*[^\d:,][^:,]*)?(?::(\d+))?", pairs.get("TresPerNode", ""))
    nodes = re.match(r"\d+", pairs.get("NumNodes", ""))
    return int(found[1] or 1) * int(nodes[0]) if found and nodes else None
