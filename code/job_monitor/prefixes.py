"""Strip what launchers and log collectors write before the lines of programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Each may occur once or several times, in any order.
PREFIX = re.compile("|".join((
    r".*\r(?=.)",  # a progress bar, which the terminal overwrites with the line
    r" *\d+: ",  # srun -l
    r"\[(?!rank\d)[A-Za-z_][\w-]*?\d+\]: ?",  # torchrun --tee 3: the role and the local rank
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]? ",  # a timestamp
    r"\[\d+\.(?:\d+|batch|extern)\] ",  # slurmd's log: the step
    r"\(\w+ pid=\d+(?:, ip=[\d.]+)?\) ",  # Ray
)))
RANK = re.compile(r"\[rank(\d+)\]: ?")
STARTS = frozenset("[( 0123456789")  # few lines have a prefix, so most need no regular expression


def split(line: str) -> tuple[str, str | None]:
    """Return a line without its prefixes, and the rank that torch names in them."""
    rank = None
    while line and (line[0] in STARTS or "\r" in line):
        if match := RANK.match(line):
            rank = match[1]
        elif not (match := PREFIX.match(line)):
            break
        line = line[match.end():]
    return line, rank


def strip_all(lines: Sequence[str]) -> list[str]:
    """Return the lines without their prefixes, but with the spaces that a program begins with."""
    return [split(line)[0] for line in lines]
