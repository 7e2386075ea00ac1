"""Combine Slurm's record of a job, its ranks' status files, and its log into one snapshot."""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from job_monitor import causes, liveness, logs, nodes, prefixes, ranks, requested, slurm
from job_monitor.causes import LogError
from job_monitor.components import SlurmJob
from job_monitor.logs import Iteration
from job_monitor.nodes import NodeFiles
from job_monitor.ranks import RankStatus
from job_monitor.requested import JobSetting
from labcore import workspace
from slurmbox.layout import Layout

STACK_LINE = re.compile(r"^software stack (.+)$")
MODELED_LINE = re.compile(r"\| (virtual [\w.-]+) \|$")
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD")
MEMORY_LINE = re.compile(r"^\[Rank (\d+)\] \(after \d+ iterations\) memory \(MB\) \| "
                         r"allocated: ([\d.]+) \| max allocated: ([\d.]+)"
                         r"(?:.* \| (virtual [\w.-]+))?")


@dataclass(frozen=True)
class RankHealth:
    """The health of one rank.

    Attributes:
        rank: its number.
        health: one of liveness.RUNNING, STALLED, STOPPED, DEAD, DONE, and FAILED.
        reason: why, in words.
        status: its status file; None if it has not written one.
    """

    rank: int
    health: str
    reason: str
    status: RankStatus | None


@dataclass
class Snapshot:
    """The state of a job at one moment.

    Attributes:
        job: Slurm's record of it.
        rows: its ranks, by number.
        lines: its log.
        errors: the errors in the log, the root cause first.
        config: the configuration in the log.
        mismatches: settings that differ from the requested ones.
        iterations: the iterations in the log.
        device: the name of its virtual GPUs ("virtual a100-80gb"); empty if figures are measured.
        software: their software stack, and the expected errors of modeled figures.
        root: the root cause, if the job failed or is about to fail.
        waited_for: the ranks for which the others wait.
        script: the batch script that was submitted.
        nodes: the nodes' own files, if they were read.
    """

    job: SlurmJob
    rows: list[RankHealth] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    errors: list[LogError] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    mismatches: list[JobSetting] = field(default_factory=list)
    iterations: tuple[Iteration, ...] = ()
    device: str = ""
    software: str = ""
    root: LogError | None = None
    waited_for: list[int] = field(default_factory=list)
    script: str = ""
    nodes: list[NodeFiles] = field(default_factory=list)

    @property
    def settings(self) -> list[JobSetting]:
        """The requested and the actual value of every setting."""
        return requested.settings(self.job, self.script, self.config)

    @property
    def has_one_complete_log(self) -> bool:
        """True if `lines` are one complete file, so that line numbers are the file's."""
        return len(self.job.logs) == 1 and causes.OMISSION not in self.lines

    @property
    def source(self) -> str:
        """The source of the figures, "ranks" or "log"."""
        return "ranks" if self.statuses else "log"

    @property
    def statuses(self) -> list[RankStatus]:
        return [row.status for row in self.rows if row.status]

    @property
    def latest(self) -> Iteration:
        """The job's last iteration, from the ranks' status files or else from the log."""
        line = self.iterations[-1] if self.iterations else Iteration(0)
        if not self.statuses:
            return line
        first = max(self.statuses, key=lambda one: one.iteration)
        last = self.statuses[-1]
        return Iteration(max(first.iteration, line.iteration), line.samples,
                         first.milliseconds if first.milliseconds is not None
                         else line.milliseconds, line.learning_rate, line.global_batch,
                         last.loss if last.loss is not None else line.loss, line.grad_norm,
                         last.tflops if last.tflops is not None else line.tflops,
                         first.train_iters or line.train_iters)

    @property
    def problem(self) -> str:
        """The root cause in one line, with its ranks; empty if nothing is wrong."""
        if self.root is None:
            return f"rank(s) {_listed(self.waited_for)} stopped" if self.waited_for else ""
        if self.root.kind == "timeout" and self.waited_for:
            return (f"timeout: rank(s) {_listed(self.waited_for)} did not respond to the others "
                    f"({self.root.text})")
        where = f" on rank(s) {_listed(self.root.ranks)}" if self.root.ranks else ""
        return f"{self.root.kind}{where}: {self.root.text}"


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def take(job: SlurmJob, proc: Path | None, now: float | None = None, with_nodes: bool = False
         ) -> Snapshot:
    """Take a snapshot of a job.

    Args:
        job: Slurm's record of it.
        proc: the /proc of its processes, as from `ranks.processes`.
        now: the time in seconds since the epoch; None for the current time.
        with_nodes: also read each node's files.
    """
    layout = Layout(workspace.home())
    lines = [line for path in job.logs for line in causes.read(path)]
    statuses = ranks.read(layout.ranks / str(job.number))
    config = requested.configuration(lines)
    snapshot = assemble(job, statuses, {number: ranks.process(proc, job.number, rank)
                                        for number, rank in statuses.items()},
                        lines, log_errors(job, lines), config, slurm.script(job.number),
                        time.time() if now is None else now)
    snapshot.nodes = nodes.read(job.number) if with_nodes else []
    if snapshot.root is None and not lines and job.is_over and job.state != "COMPLETED":
        snapshot.root = _missing_folder(job)
    return snapshot


def _missing_folder(job: SlurmJob) -> LogError | None:
    """Return the error that Slurm cannot log: it could not open the job's own log."""
    folder = next((path.parent for path in job.logs if not path.parent.is_dir()), None)
    return folder and LogError(
        "log", f"there is no folder {folder}, so Slurm could not open the log and did not start "
        f"the script; create it with mkdir -p {folder}", (), 0, causes.OWN)


def log_errors(job: SlurmJob, lines: list[str]) -> list[LogError]:
    """Return the errors in a job's log; for a running job, only those of its last attempt.

    With separate output and error files, the order is unknown, so all errors count.
    """
    ordered = not job.is_over and len(job.logs) == 1
    return causes.errors_of_last_start(lines) if ordered else causes.find_errors(lines)


def assemble(job: SlurmJob, statuses: dict[int, RankStatus], processes: dict[int, str | None],
             lines: list[str], errors: list[LogError], config: dict[str, str], script: str,
             now: float) -> Snapshot:
    """Build a snapshot from its parts; this reads only the metrics.jsonl that the log names.

    Args:
        job: Slurm's record of the job.
        statuses: the ranks' status files, by rank.
        processes: the state of each rank's process.
        lines: the log.
        errors: the errors in the log.
        config: the configuration in the log.
        script: the batch script that was submitted.
        now: the time in seconds since the epoch.
    """
    if job.state in WAITING:  # the job will run again, and the files are those of its last attempt
        statuses = {}
    rows = _rank_rows(job, statuses, processes, errors, config, now)
    snapshot = Snapshot(job, rows, lines, errors, config,
                        requested.mismatches(job, script, config), logs.parse(lines).iterations,
                        script=script)
    snapshot.device = next((rank.device for rank in statuses.values() if rank.modeled), "") or next(
        (match[1] for line in reversed(lines) if (match := MODELED_LINE.search(line))), "")
    snapshot.software = next((match[1] for line in prefixes.strip_all(lines)
                              if (match := STACK_LINE.match(line))), "")
    health = {row.rank: row.health for row in rows}
    healthy = set(health.values()) <= {liveness.RUNNING, liveness.DONE}
    if job.state in ("COMPLETED", *WAITING) or (not job.is_over and healthy and statuses):
        return snapshot
    serious = [error for error in errors if job.is_over or error.tier < causes.EXIT]
    snapshot.root = serious[0] if serious else None
    snapshot.waited_for = liveness.unresponsive_ranks(snapshot.root, errors, health)
    snapshot.rows = [_with_culprits(row, snapshot.waited_for) for row in rows]
    return snapshot


def _rank_rows(job: SlurmJob, statuses: dict[int, RankStatus], processes: dict[int, str | None],
               errors: list[LogError], config: dict[str, str], now: float) -> list[RankHealth]:
    """Return the health of every rank, also of those without a status file."""
    rows = [RankHealth(number, *liveness.rank_health(rank, processes.get(number), job, errors, now),
                       rank) for number, rank in statuses.items()]
    size = next((rank.world_size for rank in statuses.values() if rank.world_size), 0)
    if not size and config.get("world_size", "").isdigit() and statuses:
        size = int(config["world_size"])
    rows += [RankHealth(number, *liveness.missing_rank_health(number, job, errors), None)
             for number in range(min(size, 10_000)) if number not in statuses]
    return sorted(rows, key=lambda row: row.rank)


def _with_culprits(row: RankHealth, waited_for: list[int]) -> RankHealth:
    """Add to a stalled rank the ranks that it waits for, and to a dead one that it was the one."""
    if not waited_for:
        return row
    if row.health == liveness.STALLED and row.rank not in waited_for:
        return replace(row, reason=f"waits for rank(s) {_listed(waited_for)}; {row.reason}")
    if row.health == liveness.DEAD and row.rank in waited_for:
        return replace(row, reason="did not respond to the other ranks in time")
    return row


def log_memory(lines: list[str]) -> dict[int, tuple[float, float]]:
    """Return (allocated, peak) memory in bytes, by rank, from the lines that the trainer logs."""
    return {int(match[1]): (float(match[2]) * 2**20, float(match[3]) * 2**20)
            for line in prefixes.strip_all(lines) if (match := MEMORY_LINE.match(line))}


def as_dict(snapshot: Snapshot) -> dict:
    """Return a snapshot as a dictionary for JSON, with NaN and infinity as "nan" and "inf"."""
    job, latest = snapshot.job, snapshot.latest
    fields_of_job = {name: value for name, value in asdict(job).items()
                     if name not in ("number", "out", "err", "joined_logs")}
    return _json_value({
        **fields_of_job, "job": job.number, "logs": [str(path) for path in job.logs],
        "source": snapshot.source, "virtual": snapshot.device or None,
        "iteration": latest.iteration, "train_iters": latest.train_iters,
        "loss": latest.loss, "milliseconds": latest.milliseconds, "tflops": latest.tflops,
        "problem": snapshot.problem or None, "waited_for": snapshot.waited_for,
        "errors": [asdict(error) | ({} if snapshot.has_one_complete_log else {"line": None})
                   for error in snapshot.errors],
        "mismatches": [{"what": one.name, "asked": one.requested, "found": one.actual}
                       for one in snapshot.mismatches],
        "ranks": [_rank_record(row) for row in snapshot.rows]})


def _rank_record(row: RankHealth) -> dict:
    health = {"rank": row.rank, "word": row.health, "reason": row.reason}
    if row.status is None:
        return health
    return health | {one.name: getattr(row.status, one.name) for one in fields(row.status)
                     if one.name != "number"}


def _json_value(value: object) -> object:
    if isinstance(value, dict):
        return {key: _json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
