"""Keep a folder per job for `lab top` and `lab report`.

The job's ranks write their status to it. It also has the script and Slurm's description of the
job, which Slurm forgets minutes after the job ends.
"""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

from slurmbox.layout import Layout

JOB_FILE, SCRIPT_FILE = "job.txt", "script.sh"  # `scontrol show job -o`, and the batch script
MAX_FOLDERS = 100
MIN_AGE = 86400.0  # seconds; a folder with a newer file is never removed


def prolog_lines(layout: Layout) -> list[str]:
    """Return lines of the task prolog that create the job's folder.

    The batch script creates it, or the first task if there is no batch script. A requeued job
    starts a new one.
    """
    return [f'record={shlex.quote(str(layout.ranks))}"/$SLURM_JOB_ID"',
            'if [ -n "$SLURM_JOB_ID" ] && [ "${SLURM_PROCID:-0}" = 0 ] && '
            f'{{ [ -z "$SLURM_STEP_ID" ] || [ ! -e "$record/{JOB_FILE}" ]; }}; then',
            '    rm -rf "$record"; mkdir -p "$record"',
            '    scontrol show job -o "$SLURM_JOB_ID" >"$record/job.new" 2>/dev/null </dev/null',
            # Complete or not at all, so that a later task tries again.
            f'    [ -s "$record/job.new" ] && mv "$record/job.new" "$record/{JOB_FILE}"',
            f'    scontrol write batch_script "$SLURM_JOB_ID" "$record/{SCRIPT_FILE}" >/dev/null '
            "2>&1 "
            "</dev/null",
            "fi 2>/dev/null"]


def prune(layout: Layout, limit: int = MAX_FOLDERS) -> int:
    """Remove the folders of all jobs but the last `limit`, and return how many were removed."""
    try:
        folders = [one for one in layout.ranks.iterdir() if one.name.isdigit()]
    except OSError:
        return 0
    old = sorted(folders, key=lambda one: int(one.name))[:-limit or None]
    stale = [one for one in old if time.time() - _written(one) > MIN_AGE]
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    return len(stale)


def _written(folder: Path) -> float:
    """Return when a file in a folder was last written, in seconds since the epoch."""
    try:
        return max(one.stat().st_mtime for one in (folder, *folder.iterdir()))
    except OSError:  # a rank replaced its file in the meantime
        return time.time()
