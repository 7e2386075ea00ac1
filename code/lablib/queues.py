"""Read what the pending jobs of the cluster ask for, for lab 00."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from labcore.errors import LabError

FIELDS = "%i|%j|%r|%l|%n|%E"  # ID, name, reason, limit, nodes, dependencies
UNAVAILABLE = ("drain", "down", "fail", "maint")
NO_LIMIT = 10**6  # minutes
DEPENDENCY = re.compile(r"(after\w+):(\d+)(?:\+\d+)?\((\w+)\)")


def read() -> dict[str, Any]:
    """Return {"jobs", "drained", "limit", "failed"}, the arguments of the lab's `unblock`.

    Raises:
        LabError: Slurm does not answer.
    """
    nodes = [line.split("|") for line in _ask("sinfo", "--noheader", "--Node", "--format=%N|%T")]
    limits = [_minutes(line) for line in _ask("sinfo", "--noheader", "--format=%l")]
    jobs, failed = [], set()
    for line in _ask("squeue", "--noheader", "--me", "--states=PENDING", f"--format={FIELDS}"):
        number, name, reason, limit, required, dependencies = line.split("|")
        waits = DEPENDENCY.findall(dependencies)
        failed |= {int(other) for _, other, state in waits if state == "failed"}
        jobs.append({"job": int(number), "name": name, "held": reason.startswith("JobHeld"),
                     "nodes": _hosts(required), "minutes": _minutes(limit),
                     "after": [[kind, int(other)] for kind, other, _ in waits]})
    return {"jobs": jobs, "failed": sorted(failed), "limit": max(limits, default=NO_LIMIT),
            "drained": sorted({node for node, state in nodes if state.startswith(UNAVAILABLE)})}


def _hosts(required: str) -> list[str]:
    if required in ("", "(null)", "n/a"):
        return []
    return _ask("scontrol", "show", "hostnames", required)


def _minutes(limit: str) -> int:
    """Return a limit as squeue prints it, such as "1-02:00:00", "5:00", or "infinite"."""
    days, _, clock = limit.strip().rpartition("-")
    if not re.fullmatch(r"[\d:]+", clock):
        return NO_LIMIT
    hours, minutes, seconds = [0, 0, *map(int, clock.split(":"))][-3:]
    return (int(days or 0) * 24 + hours) * 60 + minutes + (seconds > 0)


def _ask(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LabError(f"{command[0]}: {said.strip()}; is the cluster up? Run `lab cluster up`"
                       ) from error
    return done.stdout.split("\n")[:-1]
