"""`lab report`: gather all that is known of a job, and write the page."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path

from job_monitor import page, picture, ranks, slurm
from job_monitor.picture import Picture
from job_monitor.slurm import Job
from labcore import workspace
from labcore.atomic import put_whole
from labcore.errors import LabError
from slurmbox import jobrecords
from slurmbox.layout import Layout

FOLDER = Path("megatron/reports")
LARGEST = 20 * 2**20  # bytes of a timeline


def write(job: Job, output: str | None) -> Path:
    """Write a job's report, and return where. Raises LabError where it cannot be written."""
    home = workspace.home()
    name = re.sub(r"[^\w.-]+", "_", job.name).strip("._")[:80] or "job"
    path = Path(output).absolute() if output else home / FOLDER / f"{name}_{job.number}.html"
    if not output:
        workspace.require_writable(path.parent)
    if path.is_dir() or not path.parent.is_dir():
        raise LabError(f"--output {output}: " + (
            f"it is a folder; nearest: {path / f'{name}_{job.number}.html'}" if path.is_dir() else
            f"there is no folder {path.parent}; make it first"))
    shown = picture.take(job, ranks.processes(Layout(home)))
    text = page.document(shown, shown.script, slurm.accounting(job.number),
                         timeline(shown), time.strftime("%Y-%m-%d %H:%M"))
    try:
        put_whole(path, text.encode(errors="replace"))
    except OSError as error:
        raise LabError(f"--output {path}: {error.strerror}") from error
    return path


def timeline(shown: Picture) -> bytes | None:
    """The figure that this job wrote with --timeline; another job's may lie in the same folder."""
    folder = shown.config.get("timeline", "None")
    if folder == "None":
        return None
    path = Path(os.path.join(shown.job.folder, folder)) / "timeline.svg"
    start, end = (jobrecords.parse_time(text) for text in (shown.job.start, shown.job.end))
    try:
        about = path.stat()
        written = datetime.fromtimestamp(about.st_mtime)
        if about.st_size > LARGEST or start is None or written < start:
            return None
        if shown.job.is_over and end and (written - end).total_seconds() > 2:
            return None
        return path.read_bytes()
    except OSError:
        return None
