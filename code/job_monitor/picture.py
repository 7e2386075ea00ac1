"""A job as it stands: Slurm's word, the ranks', and the log's, put together."""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from job_monitor import asked, causes, liveness, logs, nodes, ranks, slurm
from job_monitor.asked import Mismatch, Setting
from job_monitor.causes import Cause
from job_monitor.logs import Iteration
from job_monitor.nodes import Node
from job_monitor.ranks import Rank
from job_monitor.slurm import Job
from labcore import workspace
from slurmbox.layout import Layout

LABEL = re.compile(r"\| (virtual [\w.-]+) \|$")
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD")
MEMORY = re.compile(r"^\[Rank (\d+)\] \(after \d+ iterations\) memory \(MB\) \| "
                    r"allocated: ([\d.]+) \| max allocated: ([\d.]+)(?:.* \| (virtual [\w.-]+))?")


@dataclass(frozen=True)
class Row:
    """A rank with its word. file: None where the rank has written none."""

    rank: int
    word: str
    reason: str
    file: Rank | None


@dataclass
class Picture:
    """device: what a modeled figure is called ("virtual a100-80gb"); empty: figures are measured.
    source: "ranks" or "log": where the figures come from. root: what went wrong first, on a job
    that failed or is about to. iterations: of the log. script: as it was submitted. nodes: their
    own files, where they were asked for."""

    job: Job
    rows: list[Row] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    iterations: tuple[Iteration, ...] = ()
    device: str = ""
    root: Cause | None = None
    waited_for: list[int] = field(default_factory=list)
    script: str = ""
    nodes: list[Node] = field(default_factory=list)

    @property
    def settings(self) -> list[Setting]:
        """What was requested beside what runs."""
        return asked.settings(self.job, self.script, self.config)

    @property
    def is_whole(self) -> bool:
        """Whether `lines` are one complete file, so that line numbers are the file's."""
        return len(self.job.logs) == 1 and causes.CUT not in self.lines

    @property
    def source(self) -> str:
        return "ranks" if any(row.file for row in self.rows) else "log"

    @property
    def files(self) -> list[Rank]:
        return [row.file for row in self.rows if row.file]

    @property
    def latest(self) -> Iteration:
        """The job's last iteration, from the ranks' status files or else from the log."""
        line = self.iterations[-1] if self.iterations else Iteration(0)
        if not self.files:
            return line
        first, last = max(self.files, key=lambda one: one.iteration), self.files[-1]
        return Iteration(max(first.iteration, line.iteration), line.samples,
                         first.milliseconds if first.milliseconds is not None
                         else line.milliseconds, line.learning_rate, line.global_batch,
                         last.loss if last.loss is not None else line.loss, line.grad_norm,
                         last.tflops if last.tflops is not None else line.tflops,
                         first.train_iters or line.train_iters)

    @property
    def problem(self) -> str:
        """The root cause in one line, naming the ranks; empty where nothing is wrong."""
        if self.root is None:
            return f"rank(s) {_listed(self.waited_for)} stopped" if self.waited_for else ""
        if self.root.kind == "time-out" and self.waited_for:
            return (f"time-out: rank(s) {_listed(self.waited_for)} did not answer the others "
                    f"({self.root.text})")
        where = f" on rank(s) {_listed(self.root.ranks)}" if self.root.ranks else ""
        return f"{self.root.kind}{where}: {self.root.text}"


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def take(job: Job, proc: Path | None, now: float | None = None, with_nodes: bool = False
         ) -> Picture:
    """The picture of a job. proc: as ranks.processes; with_nodes: read each node's files, too."""
    layout = Layout(workspace.home())
    lines = [line for path in job.logs for line in causes.read(path)]
    files = ranks.read(layout.ranks / str(job.number))
    config = asked.configuration(lines)
    picture = assemble(job, files, {number: ranks.process(proc, job.number, rank)
                                    for number, rank in files.items()},
                       lines, errors(job, lines), config, slurm.script(job.number),
                       time.time() if now is None else now)
    picture.nodes = nodes.read(job.number) if with_nodes else []
    return picture


def errors(job: Job, lines: list[str]) -> list[Cause]:
    """Return the errors in a job's log; for a running job, only those of its last attempt.

    With separate output and error files, the order is unknown and all errors count.
    """
    one = not job.is_over and len(job.logs) == 1
    return causes.of_last_start(lines) if one else causes.find(lines)


def assemble(job: Job, files: dict[int, Rank], processes: dict[int, str | None], lines: list[str],
             found: list[Cause], config: dict[str, str], script: str, now: float) -> Picture:
    """The picture, from all that is known; of files, only the log's metrics.jsonl is read here."""
    if job.state in WAITING:  # it runs again: the files are of its last attempt
        files = {}
    rows = [Row(number, *liveness.judge(rank, processes.get(number), job, found, now), rank)
            for number, rank in files.items()]
    size = next((rank.world_size for rank in files.values() if rank.world_size), 0)
    if not size and config.get("world_size", "").isdigit() and files:
        size = int(config["world_size"])
    rows += [Row(number, *liveness.missing(number, job, found), None)
             for number in range(min(size, 10_000)) if number not in files]
    rows.sort(key=lambda row: row.rank)
    picture = Picture(job, rows, lines, found, config, asked.compare(job, script, config),
                      logs.parse(lines).iterations, script=script)
    picture.device = next((rank.device for rank in files.values() if rank.modeled), "") or next(
        (match[1] for line in reversed(lines) if (match := LABEL.search(line))), "")
    words = {row.rank: row.word for row in rows}
    wrong = job.state not in ("COMPLETED", *WAITING) and (
        job.is_over or not set(words.values()) <= {liveness.RUNNING, liveness.DONE} or not files)
    serious = [cause for cause in found if job.is_over or cause.tier < causes.EXIT]
    picture.root = serious[0] if wrong and serious else None
    picture.waited_for = liveness.silent_ones(picture.root, found, words, words) if wrong else []
    if wrong:
        picture.rows = [_told(row, picture.waited_for) for row in rows]
    return picture


def _told(row: Row, waited_for: list[int]) -> Row:
    """A stalled rank says whom it waits for; after a time-out, who was silent."""
    if not waited_for:
        return row
    if row.word == liveness.STALLED and row.rank not in waited_for:
        return Row(row.rank, row.word, f"waits for rank(s) {_listed(waited_for)}; {row.reason}",
                   row.file)
    if row.word == liveness.DEAD and row.rank in waited_for:
        return Row(row.rank, row.word, "did not answer the other ranks in time", row.file)
    return row


def log_memory(lines: list[str]) -> dict[int, tuple[float, float]]:
    """{rank: (allocated, peak)} in bytes, of the lines that the trainer prints once."""
    return {int(match[1]): (float(match[2]) * 2**20, float(match[3]) * 2**20)
            for line in lines if (match := MEMORY.match(line))}


def record(picture: Picture) -> dict:
    """For programs. Numbers that JSON does not have are texts: "nan", "inf"."""
    job, latest = picture.job, picture.latest
    shown = {**{name: value for name, value in asdict(job).items()
                if name not in ("out", "err", "joined_logs")},
             "job": job.number, "logs": [str(path) for path in job.logs],
             "source": picture.source, "virtual": picture.device or None,
             "iteration": latest.iteration, "train_iters": latest.train_iters,
             "loss": latest.loss, "milliseconds": latest.milliseconds, "tflops": latest.tflops,
             "problem": picture.problem or None, "waited_for": picture.waited_for,
             "errors": [asdict(cause) | ({} if picture.is_whole else {"line": None})
                        for cause in picture.causes],
             "mismatches": [asdict(one) for one in picture.mismatches],
             "ranks": [_row(row) for row in picture.rows]}
    del shown["number"]
    return _plain(shown)


def _row(row: Row) -> dict:
    told = {"rank": row.rank, "word": row.word, "reason": row.reason}
    if row.file is None:
        return told
    return told | {one.name: getattr(row.file, one.name) for one in fields(row.file)
                   if one.name != "number"}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
