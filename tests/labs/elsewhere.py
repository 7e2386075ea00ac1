"""A student who is elsewhere: the answers run in another process, the checks here see stand-ins.

Proof that a check written for a notebook also works across a wall. There is no wall here: the other
process is an ordinary one, a fork of the process that has imported torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from labkit.build.lab import Lab, Role
from labkit.check import on_gpus, on_ranks, wire
from labkit.check.kernel import KernelSide
from labkit.check.measure import run_here
from labkit.check.record import DEFAULT_TRIAL, Trial, record
from labkit.check.sides import GpusRun, Raised, RanksRun, SimulatedCluster, checking_on, raised
from tests.labs.graded import Outcome, inside
from warmranks import run_ranks

SECONDS = 600  # for all that one student's process does


@dataclass(frozen=True)
class Name:
    """A check's view of an object that the student defined."""

    name: str


class Elsewhere:
    """The side of labkit.check that asks the other process, in lines of JSON."""

    seed = "elsewhere"

    def __init__(self, lines: TextIO, home: Path) -> None:
        self.lines, self.home = lines, home

    def ask(self, kind: str, name: Name, sent: Any = None) -> Any:
        request = {"kind": kind, "name": name.name, "sent": wire.dumps(sent).decode()}
        print(json.dumps(request), file=self.lines, flush=True)
        answer = json.loads(self.lines.readline())
        if answer["kind"] == "cannot":
            raise wire.CannotCross(answer["text"])
        if answer["kind"] == "raised":
            return Raised(tuple(answer["names"]), answer["text"])
        return wire.loads(answer["value"].encode())

    def value(self, name: Name) -> Any:
        return self.ask("value", name)

    def call(self, function: Name, arguments: Any, keywords: Any) -> Any:
        return self.ask("call", function, (tuple(arguments), dict(keywords)))

    def ranks(self, function: Name, ranks: int, arguments: Any, keywords: Any, seconds: float
              ) -> RanksRun:
        sent = ranks, tuple(arguments), dict(keywords), seconds
        return on_ranks.read(self.ask("ranks", function, sent), ranks)

    def gpus(self, function: Name, cluster: SimulatedCluster, arguments: Any, keywords: Any,
             seconds: float) -> GpusRun:
        sent = asdict(cluster), tuple(arguments), dict(keywords), seconds
        return on_gpus.read(self.ask("gpus", function, sent), cluster)

    def title(self, function: Name) -> str:
        return function.name

    def mask(self, names: Sequence[str]) -> None:
        """Do nothing, as in grading: there the sandbox is started without what a lab masks."""

    def script(self, path: str, trial: Trial = DEFAULT_TRIAL) -> dict[str, Any]:
        return wire.copy(record(self.home, path, trial))

    def figures(self, words: Sequence[str]) -> dict[str, Any]:
        return run_here(words)


@contextlib.contextmanager
def student(sources: list[str], home: Path) -> Iterator[Elsewhere]:
    """A process that has run `sources` and answers."""
    ours, theirs = socket.socketpair()

    def start() -> None:
        with theirs:
            run_ranks(serve, 1, backend=None, timeout=SECONDS, cwd=home,
                      env={"LAB_HOME": str(home)}, stdout=theirs.fileno())

    process = threading.Thread(target=start)
    process.start()
    try:
        with ours, ours.makefile("rw") as lines:
            print(json.dumps(sources), file=lines, flush=True)
            yield Elsewhere(lines, home)
    finally:
        process.join()


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


def answered(kind: str, found: Any, sent: Any) -> Any:
    """Return what the student's process answers to a request about one of its names."""
    if kind == "call":
        return KernelSide().call(found, *sent)
    if kind == "ranks":
        return on_ranks.run(found, *sent)
    if kind == "gpus":
        cluster, *rest = sent
        return on_gpus.record(found, SimulatedCluster(**cluster), *rest)
    return found


def serve() -> None:
    """Be the other process, whose standard output is a socket: run the sources, then answer one
    request a line."""
    names: dict[str, Any] = {}
    lines = socket.socket(fileno=os.dup(1)).makefile("rw")
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        for source in json.loads(lines.readline()):
            with contextlib.suppress(Exception):
                exec(source, names)
        for line in lines:
            request = json.loads(line)
            sent = wire.loads(request["sent"].encode())
            try:
                value = answered(request["kind"], names[request["name"]], sent)
                if isinstance(value, Raised):
                    answer = {"kind": "raised", "names": value.names, "text": value.text}
                else:
                    answer = {"kind": "value", "value": wire.dumps(value).decode()}
            except wire.CannotCross as error:
                answer = {"kind": "cannot", "text": str(error)}
            except Exception as error:
                told = raised(error)
                answer = {"kind": "raised", "names": told.names, "text": told.text}
            print(json.dumps(answer), file=lines, flush=True)
