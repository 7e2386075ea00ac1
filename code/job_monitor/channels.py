"""NCCL's channel lines in a job's log, communicator by communicator."""

from __future__ import annotations

import re
from pathlib import Path

from job_monitor import logs
from labcore.errors import LabError

LINE = re.compile(r"^(\S+:\d+):\d+ \[\d+\] NCCL INFO (.*)$")  # NODE:PROCESS of a rank
NEW = re.compile(r"a modeled communicator of the job's rank\(s\) ([\d,]+)$")


def of(path: str | Path) -> dict[str, list[str]]:
    """The lines that say who reaches whom, by the job's ranks in their communicator ("0,2").

    path: of the log, absolute or relative to the workspace. Ranks print in turn, each of one
    communicator after the other; two communicators of the same ranks are alike and count once.
    Raises LabError where the log has no such lines.
    """
    found: dict[str, list[str]] = {}
    now: dict[str, str] = {}  # the communicator of which each rank talks
    for line in logs.lines(path, ""):
        if not (match := LINE.match(line)):
            continue
        rank, text = match.groups()
        if new := NEW.search(text):
            now[rank] = new[1]
        elif " via " in text and rank in now and line not in found.get(now[rank], ()):
            found.setdefault(now[rank], []).append(line)
    if not found:
        raise LabError(f"{path} has no channel lines of a virtual card: submit the job with "
                       "--export=ALL,NCCL_DEBUG=INFO")
    return dict(sorted(found.items(), key=lambda item: [int(rank) for rank in item[0].split(",")]))
