"""Runs the judge in a jail, for the tests."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.attacks import jail
from tests.attacks.attack import Attack


def in_jail(program: str, kind: str, *words: str, seconds: float) -> dict[str, Any]:
    """Return the output of tests.attacks.`program`; raise AssertionError with its last lines."""
    done = jail.run([sys.executable, "-m", f"tests.attacks.{program}", kind, jail.SCRATCH, *words],
                    jail.Limits(seconds=seconds))
    assert done.code == 0, f"{done.killed or done.code}\n{done.errors[-3000:]}{done.output[-1000:]}"
    return merged(done.output)


def merged(output: str) -> dict[str, Any]:
    """The lines of JSON in what the program printed; the harms to all course folders are one."""
    result: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            folder = json.loads(line)
            if "" in result and "" in folder:
                folder[""]["harms"] |= result[""]["harms"]
            result |= folder
    return result


def judged(kind: str, attacks: list[Attack], seconds: float) -> dict[str, Any]:
    return in_jail("judge", kind, *(one.name for one in attacks), seconds=seconds)


def name(one: Attack) -> str:
    """Return the name of an attack's test."""
    return f"{one.row}-{one.name[:40].encode('unicode_escape').decode()}"
