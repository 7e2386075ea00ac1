"""Write the page of `lab report`."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path

from job_monitor import page, ranks, slurm, snapshot
from job_monitor.components import SlurmJob
from job_monitor.snapshot import Snapshot
from job_monitor.timeline import FILE, Lane, read
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError
from slurmbox import jobrecords
from slurmbox.layout import Layout

FOLDER = Path("megatron/reports")
MAX_TIMELINE = 20 * 2**20  # bytes


def write(job: SlurmJob, output: str | None) -> Path:
    """Write a job's report and return its path.

    Args:
        output: the file to write; None for megatron/reports/NAME_JOBID.html.

    Raises:
        LabError: the file cannot be written.
    """
    home = workspace.home()
    name = re.sub(r"[^\w.-]+", "_", job.name).strip("._")[:80] or "job"
    path = Path(output).absolute() if output else home / FOLDER / f"{name}_{job.number}.html"
    if not output:
        workspace.require_writable(path.parent)
    if path.is_dir() or not path.parent.is_dir():
        raise LabError(f"--output {output}: " + (
            f"it is a folder; nearest: {path / f'{name}_{job.number}.html'}" if path.is_dir() else
            f"there is no folder {path.parent}; create it first"))
    current = snapshot.take(job, ranks.processes(Layout(home)))
    text = page.render_page(current, current.script, slurm.accounting(job.number),
                            *timeline(current), time.strftime("%Y-%m-%d %H:%M"))
    try:
        write_atomic(path, text.encode(errors="replace"))
    except OSError as error:
        raise LabError(f"--output {path}: {error.strerror}") from error
    return path


def timeline(current: Snapshot) -> tuple[list[Lane], str]:
    """Return the ranks' lanes that the job recorded with --timeline, or else why there are none.

    The file's time decides, because another job may have written to the same folder.
    """
    folder = current.config.get("timeline", "None")
    if folder == "None":
        return [], ("No timeline was recorded: submit the job with lab submit --profile, or give "
                    "the trainer --timeline FOLDER.")
    path = Path(os.path.join(current.job.folder, folder)) / FILE
    start, end = (jobrecords.parse_time(text) for text in (current.job.start, current.job.end))
    missing = (f"--timeline {folder}: this job has recorded no timeline there. It records "
               f"iteration {current.config.get('timeline_iteration', '3')} (--timeline-iteration).")
    try:
        status = path.stat()
        written = datetime.fromtimestamp(status.st_mtime)
        if start is None or written < start:
            return [], missing
        if current.job.is_over and end and (written - end).total_seconds() > 2:
            return [], missing
        if status.st_size > MAX_TIMELINE:
            return [], (f"{path} has {status.st_size / 2**20:.0f} MiB, too much for a page; open "
                        "it in Perfetto (ui.perfetto.dev).")
        return read(path), ""
    except OSError:
        return [], missing
    except ValueError as error:
        return [], f"{path}: {error}"
