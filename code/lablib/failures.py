"""Split the log of a failed distributed job into one report per rank, for lab 00."""

from __future__ import annotations

import re
from typing import TypedDict

# The line after a traceback's indented lines has the error. PyTorch prefixes each with the rank.
ERROR = r"^\[rank\d+\]:  .*\n\[rank(?P<rank>\d+)\]: (?P<error>\w.*)$"
# The text of ProcessGroupNCCL.cpp in PyTorch 2.x; PyTorch 1.x printed no prefix and no elements.
TIMEOUT = (r"\[Rank (?P<waiting>\d+)\] (?P<timeout>Watchdog caught collective operation timeout: "
           r"WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<operation>\w+)"
           r"(?:, NumelIn=(?P<elements>\d+), NumelOut=\d+)?, Timeout\(ms\)=\d+\).*)$")
REPORT = re.compile(f"{ERROR}|{TIMEOUT}", re.MULTILINE)


class Collective(TypedDict):
    """The collective that a rank waited for: its sequence number, operation, and input elements."""

    number: int
    operation: str
    elements: int


class Report(TypedDict):
    """The first error of a rank, and the collective that timed out, if the watchdog names one."""

    rank: int
    error: str
    waits_for: Collective | None


def reports(log: str) -> list[Report]:
    """Return the first error of each rank that has one, in the order of the log.

    Args:
        log: the text of the log.
    """
    found: dict[int, Report] = {}
    for match in REPORT.finditer(log):
        if match["rank"]:
            report = Report(rank=int(match["rank"]), error=match["error"], waits_for=None)
        else:
            waits_for = Collective(
                number=int(match["number"]), operation=match["operation"],
                elements=int(match["elements"] or 0))
            report = Report(rank=int(match["waiting"]), error=match["timeout"],
                            waits_for=waits_for)
        found.setdefault(report["rank"], report)
    return list(found.values())
