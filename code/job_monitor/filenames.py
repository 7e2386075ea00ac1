"""Find a job's log by the pattern that Slurm prints, which it expands only in part."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from pathlib import Path

SYMBOL = re.compile(r"%(\d*)([%AabjJNnstux])")
VARIES = "NnstJ"  # between the starts of a requeued job, or the files of its steps
NO_TASK = 4294967294  # what Slurm writes for the task of a job that is no array


def find(pattern: str, pairs: Mapping[str, str]) -> Path | None:
    """Return the file with a pattern such as logs/%x_%N.txt, which need not exist yet.

    Args:
        pattern: the path as `scontrol show job` prints it.
        pairs: the job's fields there.
    """
    if pattern in ("", "/dev/null", "(null)"):
        return None
    folder = pairs.get("WorkDir", "") or "/"
    path = Path(folder) / expand(pattern, pairs)
    if path.exists() or "%" not in pattern:
        return path
    wild = str(Path(glob.escape(folder)) / expand(pattern, pairs, wild=True))
    return max(map(Path, glob.glob(wild)), key=_changed, default=path)


def expand(pattern: str, pairs: Mapping[str, str], wild: bool = False) -> str:
    """Return a pattern with its symbols replaced as for the batch script of a job.

    Args:
        pattern: the pattern.
        pairs: the job's fields.
        wild: replace VARIES by `*`, and escape the rest for glob.
    """
    if "\\" in pattern:  # which turns the symbols off
        return pattern.replace("\\", "")
    job, task = pairs.get("JobId", ""), pairs.get("ArrayTaskId", str(NO_TASK))
    values = {"%": "%", "A": pairs.get("ArrayJobId") or job, "a": task, "j": job, "J": job,
              "b": str(int(task) % 10) if task.isdigit() else task,
              "N": first_node(pairs.get("NodeList", "")), "n": "0", "s": "batch", "t": "0",
              "u": pairs.get("UserId", "").partition("(")[0], "x": pairs.get("JobName", "")}

    def value(match: re.Match) -> str:
        if wild and match[2] in VARIES:
            return "*"
        text = values[match[2]]
        return text.zfill(min(10, int(match[1] or 0))) if text.isdigit() else text

    parts, end = [], 0
    for match in SYMBOL.finditer(pattern):
        between = pattern[end:match.start()]
        parts += [glob.escape(between) if wild else between, value(match)]
        end = match.end()
    return "".join(parts) + (glob.escape(pattern[end:]) if wild else pattern[end:])


def first_node(nodes: str) -> str:
    """Return the short name of the first node in a list such as gpu[02-04,7].site,login1."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in match.groups()).partition(".")[0]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
