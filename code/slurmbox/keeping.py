"""Keep a folder per job for `lab top` and `lab report`.

The job's ranks write their status to it. It also holds the script and Slurm's description of the
job, which Slurm forgets minutes after the job ends."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

from slurmbox.layout import Layout

JOB, SCRIPT = "job.txt", "script.sh"  # `scontrol show job -o`, and the batch script
KEPT = 100  # jobs
LIVE = 86400.0  # seconds: a folder that was written to since then stays in any case


def prolog_lines(layout: Layout) -> list[str]:
    """Return lines of the task prolog that create the job's folder.

    The batch script creates it, or the first task if there is no batch script. A requeued job
    starts a new one.
    """
    return [f'record={shlex.quote(str(layout.ranks))}"/$SLURM_JOB_ID"',
            'if [ -n "$SLURM_JOB_ID" ] && [ "${SLURM_PROCID:-0}" = 0 ] && '
            f'{{ [ -z "$SLURM_STEP_ID" ] || [ ! -e "$record/{JOB}" ]; }}; then',
            '    rm -rf "$record"; mkdir -p "$record"',
            '    scontrol show job -o "$SLURM_JOB_ID" >"$record/job.new" 2>/dev/null </dev/null',
            # Whole or not at all, so that a later task tries again.
            f'    [ -s "$record/job.new" ] && mv "$record/job.new" "$record/{JOB}"',
            f'    scontrol write batch_script "$SLURM_JOB_ID" "$record/{SCRIPT}" >/dev/null 2>&1 '
            "</dev/null",
            "fi 2>/dev/null"]


def prune(layout: Layout, kept: int = KEPT) -> int:
    """Remove the folders of all jobs but the last `kept`. Returns how many went."""
    try:
        folders = [one for one in layout.ranks.iterdir() if one.name.isdigit()]
    except OSError:
        return 0
    old = sorted(folders, key=lambda one: int(one.name))[:-kept or None]
    gone = [one for one in old if time.time() - _written(one) > LIVE]
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)
    return len(gone)


def _written(folder: Path) -> float:
    """When a file in it was last written, in seconds since the epoch."""
    try:
        return max(one.stat().st_mtime for one in (folder, *folder.iterdir()))
    except OSError:  # a rank replaced its file meanwhile
        return time.time()
