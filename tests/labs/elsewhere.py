"""A student who is elsewhere: the answers run in another process, the checks here see stand-ins.

Proof that a check written for a notebook also works across a wall. There is no wall here: the other
process is an ordinary one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labcore.workspace import CHECKOUT
from labkit.build.lab import Lab, Role
from labkit.check import wire
from labkit.check.measure import run_here
from labkit.check.record import record
from labkit.check.sides import Raised, checking_on
from tests.labs.graded import Outcome, inside


@dataclass(frozen=True)
class Name:
    """What a check sees of something that the student defined."""

    name: str


class Elsewhere:
    """The side of labkit.check that asks the other process, in lines of JSON."""

    seed = "elsewhere"

    def __init__(self, process: subprocess.Popen, home: Path) -> None:
        self.process, self.home = process, home

    def ask(self, kind: str, name: Name, sent: Any = None) -> Any:
        request = {"kind": kind, "name": name.name, "sent": wire.dumps(sent).decode()}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if answer["kind"] == "cannot":
            raise wire.CannotCross(answer["text"])
        if answer["kind"] == "raised":
            return Raised(tuple(answer["names"]), answer["text"])
        return wire.loads(answer["value"].encode())

    def value(self, name: Name) -> Any:
        return self.ask("value", name)

    def call(self, function: Name, arguments: Any, keywords: Any) -> Any:
        return self.ask("call", function, (tuple(arguments), dict(keywords)))

    def title(self, function: Name) -> str:
        return function.name

    def mask(self, names: Sequence[str]) -> None:
        """Do nothing, as in grading: there the sandbox is started without what a lab masks."""

    def script(self, path: str) -> dict[str, Any]:
        return wire.copy(record(self.home, path))

    def figures(self, words: Sequence[str]) -> dict[str, Any]:
        return run_here(words)


@contextlib.contextmanager
def student(sources: list[str], home: Path) -> Iterator[Elsewhere]:
    """A process that has run `sources` and answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.labs.elsewhere"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd=home,
        env={**os.environ, "LAB_HOME": str(home), "PYTHONPATH": str(CHECKOUT)})
    try:
        process.stdin.write(json.dumps(sources) + "\n")
        yield Elsewhere(process, home)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def run(lab: Lab, home: Path, changed: dict[str, str], only: set[str] | None = None) -> Outcome:
    """Grade `lab` with the answers in `changed` (by grade_id) replaced, across processes."""
    outcome, sources = Outcome(), []
    with inside(home):
        for cell in lab.of(Role.SETUP, Role.ANSWER, Role.DRIVER):
            source = changed.get(cell.grade_id, cell.source)
            if cell.path:
                (home / cell.path).write_text(source.partition("\n")[2] + "\n")
            else:
                sources.append(source)
        theirs = {name: Name(name) for cell in lab.of(Role.ANSWER, Role.DRIVER)
                  for name in cell.defines}
        trusted: dict[str, Any] = {}
        with student(sources, home) as side, checking_on(side):
            for cell in lab.of(Role.CHECK_SETUP, Role.CHECK):
                if cell.role is Role.CHECK and only is not None and cell.grade_id not in only:
                    continue
                names = trusted if cell.role is Role.CHECK_SETUP else {**theirs, **trusted}
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        exec(cell.source, names)
                    outcome.checks |= {cell.grade_id: None} if cell.role is Role.CHECK else {}
                except AssertionError as error:
                    outcome.checks[cell.grade_id] = error
    return outcome


def serve() -> None:
    """The other process: run the sources, then answer one request a line."""
    from labkit.check.kernel import Kernel
    from labkit.check.sides import raised

    names: dict[str, Any] = {}
    kernel = Kernel()
    for source in json.loads(sys.stdin.readline()):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(sys.stderr):
            exec(source, names)
    for line in sys.stdin:
        request = json.loads(line)
        sent = wire.loads(request["sent"].encode())
        try:
            found = names[request["name"]]
            with contextlib.redirect_stdout(sys.stderr):
                value = kernel.call(found, *sent) if request["kind"] == "call" else found
            if isinstance(value, Raised):
                answer = {"kind": "raised", "names": value.names, "text": value.text}
            else:
                answer = {"kind": "value", "value": wire.dumps(value).decode()}
        except wire.CannotCross as error:
            answer = {"kind": "cannot", "text": str(error)}
        except Exception as error:
            told = raised(error)
            answer = {"kind": "raised", "names": told.names, "text": told.text}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
