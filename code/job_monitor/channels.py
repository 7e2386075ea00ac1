"""Read NCCL's channel lines from a job's log, grouped by communicator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from job_monitor import logs, prefixes
from labcore.errors import LabError

NCCL_LINE = re.compile(r"^(\S+:\d+):\d+ \[\d+\] NCCL INFO (.*)$")  # NODE:PID identifies the rank
COMMUNICATOR = re.compile(r"a modeled communicator of the job's rank\(s\) ([\d,]+)$")
CONNECTION = re.compile(r"(\d+)\[\w+\] -> (\d+)\[\w+\].* via (\w+)")


def read(path: str | Path) -> dict[str, list[str]]:
    """Return the lines that report how two ranks are connected, by communicator.

    A communicator is named by the job's ranks in it, such as "0,2". The lines of several ranks are
    interleaved in the log, but each rank prints one communicator after another. Two communicators
    of the same ranks have the same lines and count once.

    Args:
        path: the log, absolute or relative to the workspace.

    Raises:
        LabError: the log has no such lines.
    """
    channels: dict[str, list[str]] = {}
    current: dict[str, str] = {}  # each rank's communicator at this line
    for line in prefixes.strip_all(logs.lines(path, "")):
        if not (match := NCCL_LINE.match(line)):
            continue
        rank, text = match.groups()
        if new := COMMUNICATOR.search(text):
            current[rank] = new[1]
        elif " via " in text and rank in current and line not in channels.get(current[rank], ()):
            channels.setdefault(current[rank], []).append(line)
    if not channels:
        raise LabError(f"{path} has no channel lines of a virtual GPU: submit the job with "
                       "--export=ALL,NCCL_DEBUG=INFO")
    return dict(sorted(channels.items(),
                       key=lambda item: [int(rank) for rank in item[0].split(",")]))


def connections(lines: Iterable[str]) -> list[tuple[int, int, str]]:
    """Return the sorted connections (sender, receiver, transport) in the lines of a log.

    The transport is its first word: P2P, SHM, or NET. A connection counts once, however many
    channels use it, and whether its sender, its receiver, or both report it.

    Args:
        lines: the log with NCCL_DEBUG=INFO, of NCCL 2.10 or of a newer version.
    """
    matches = (CONNECTION.search(line) for line in lines)
    return sorted({(int(match[1]), int(match[2]), match[3]) for match in matches if match})
