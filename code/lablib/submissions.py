"""Record which cell submitted which job, so that a notebook waits for its own jobs and finds their
results again after its kernel was restarted.

`jobs.connect()` puts this program in front of Slurm's own `sbatch` on a notebook's PATH. Standard
library only, and no imports of ours: it starts for every submission.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# What the kernel tells this program.
NOTEBOOK, KERNEL, CELL, RUN = "LAB_NOTEBOOK", "LAB_KERNEL", "LAB_CELL", "LAB_CELL_RUN"
FILE = ".cluster/submissions.jsonl"  # in the workspace
SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?(?: on cluster \S+)?$", re.M)
FIELD = re.compile(r"(\w+)=(\S*)")
# Changed by shells and by `jobs.connect()`, whatever the cell does.
IGNORED = re.compile(r"LAB_.*|PATH|PWD|OLDPWD|SHLVL|_|SLURM_CONF|USER")
DONE = "COMPLETED"
ACTIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED")
ASK_SECONDS = 10


@dataclass(frozen=True)
class Submission:
    """A job that a cell submitted, or found again.

    Attributes:
        job: its ID.
        notebook: the notebook's path; empty where Jupyter does not say it.
        kernel: which start of the notebook's kernel.
        cell: the cell's ID.
        run: the cell's execution count.
        command: the digest of all that the job depends on.
        time: when it was submitted, in seconds since the epoch.
        log: the path of its output, if known.
    """

    job: int
    notebook: str
    kernel: str
    cell: str
    run: str
    command: str
    time: float
    log: str


def read(home: Path) -> list[Submission]:
    """Return all submissions of a workspace's notebooks, oldest first."""
    return [Submission(**line) for line in _lines(home) if "kernel" in line]


def final_state(home: Path, submission: Submission) -> dict | None:
    """Return the "state", "name", and "seconds" with which a job ended, if that was recorded."""
    return next((line for line in _lines(home) if "state" in line
                 and (line["job"], line["time"]) == (submission.job, submission.time)), None)


def record_end(home: Path, submission: Submission, state: str, name: str, seconds: int) -> None:
    """Record how a job ended: Slurm forgets it within minutes."""
    if final_state(home, submission) is None:
        _append(home, {"job": submission.job, "time": submission.time, "state": state,
                       "name": name, "seconds": seconds})


def _lines(home: Path) -> Iterator[dict]:
    try:
        text = (home / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut off by a full disk
            continue


def _append(home: Path, line: dict) -> None:
    path = home / FILE
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


# --- instead of sbatch

def main(folder: str, arguments: list[str]) -> int:
    """Submit a job, unless this cell has one from before a restart that is still valid.

    Args:
        folder: where the `sbatch` is that started this program.
        arguments: sbatch's.
    """
    program, home = _sbatch(folder), Path(os.environ.get("LAB_HOME", "."))
    if program is None:
        print("sbatch: error: Slurm's commands are not on the PATH", file=sys.stderr)
        return 127
    if KERNEL not in os.environ or "SLURM_JOB_ID" in os.environ:  # within a job
        os.execv(program, [program, *arguments])
    mine = Submission(0, *(os.environ.get(name, "") for name in (NOTEBOOK, KERNEL, CELL, RUN)),
                      digest(home, arguments), time.time(), "")
    if (found := _reusable(home, mine)) is not None:
        submission, state = found
        _append(home, asdict(mine) | {"job": submission.job, "time": submission.time,
                                      "log": submission.log})
        _explain(submission, state, "--parsable" in arguments)
        return 0
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True)
    sys.stdout.write(done.stdout)
    for job in SUBMITTED.findall(done.stdout) if not done.returncode else ():
        log = _controller(job).get("StdOut", "")
        _append(home, asdict(mine) | {"job": int(job), "log": log})
    return done.returncode


def _sbatch(own: str) -> str | None:
    """Return the next sbatch on the PATH: Slurm's own, or the course's wrapper of it.

    Args:
        own: the folder of the one that started this program.
    """
    others = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder != own]
    return shutil.which("sbatch", path=os.pathsep.join(others))


def digest(home: Path, arguments: list[str]) -> str:
    """Return a digest of what a job depends on: its command line, the variables that the cell set,
    and the student's files that its script names, and that those name in turn."""
    parts = [json.dumps(arguments), json.dumps(_own_variables())]
    named = {path.name: path for folder in ("code", "mytrainer")
             for path in sorted((home / folder).glob("*.*")) if path.is_file()}
    todo = [path for word in arguments if (path := Path(word)).is_file()]
    seen: set[Path] = set()
    while todo:
        path = todo.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        parts.append(f"{path}\n{text}")
        todo += [other for name, other in named.items()
                 if name in text or ("mytrainer" in text and other.parent.name == "mytrainer")]
    return hashlib.sha256("\0".join([*parts[:2], *sorted(parts[2:])]).encode()).hexdigest()


def _own_variables() -> dict[str, str]:
    """Return the environment variables that differ from those with which the kernel started."""
    try:
        kernel = os.environ[KERNEL].partition("-")[0]
        pairs = Path(f"/proc/{kernel}/environ").read_bytes().decode(errors="replace").split("\0")
    except (OSError, KeyError):
        pairs = []
    before = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {name: value for name, value in sorted(os.environ.items())
            if before.get(name) != value and not IGNORED.fullmatch(name)}


def _reusable(home: Path, mine: Submission) -> tuple[Submission, str] | None:
    """Return this cell's job from before the kernel was restarted, and its state; None where there
    is none that completed or still runs, or where the cell has run since the restart."""
    same = [one for one in read(home) if mine.notebook and (one.notebook, one.cell, one.command)
            == (mine.notebook, mine.cell, mine.command)]
    if any(one.kernel == mine.kernel for one in same) or not same:
        return None
    last = same[-1]
    state = _state(home, last)
    if state in ACTIVE or (state == DONE and last.log and Path(last.log).is_file()):
        return last, state
    return None


def _state(home: Path, submission: Submission) -> str:
    """Return a job's state, as recorded, or as Slurm or its accounting says; empty if unknown."""
    if (ended := final_state(home, submission)) is not None:
        return ended["state"]
    # A new cluster counts its jobs from 1 again.
    now = _controller(str(submission.job))
    if now.get("StdOut") == submission.log and now:
        return now.get("JobState", "")
    return accounted(submission).get("State", "")


def accounted(submission: Submission) -> dict[str, str]:
    """Return the State, JobName, and Elapsed of a job from sacct; none where that cannot tell."""
    names = ("State", "JobName", "Elapsed", "Submit")
    lines = _asked(["sacct", "-n", "-P", "-X", "-j", str(submission.job), "-o", ",".join(names)])
    values = lines[-1].split("|") if lines else []
    if len(values) != len(names):
        return {}
    try:
        submitted = time.mktime(time.strptime(values[3], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return {}
    # Slurm's clock is in whole seconds; another job of this ID is older or newer.
    return dict(zip(names, values, strict=True)) if abs(submitted - submission.time) < 60 else {}


def _controller(job: str) -> dict[str, str]:
    lines = _asked(["scontrol", "--oneliner", "show", "job", job])
    return dict(FIELD.findall(lines[0])) if lines else {}


def _asked(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if not done.returncode else []


def _explain(submission: Submission, state: str, is_parsable: bool) -> None:
    when = time.strftime("%b %d at %H:%M", time.localtime(submission.time))
    doing = "COMPLETED" if state == DONE else f"is {state}"
    stream = sys.stdout
    if is_parsable:
        print(submission.job)
        stream = sys.stderr
    print(f"Not submitted again: job {submission.job}, which this cell submitted on {when}, {doing}"
          ", and the files that it names have not changed. Its results are used below. To submit a "
          "new job, run this cell once more.", file=stream)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
