"""Run parts one after another, each in its own process, so that none can stop the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu.parts import Part
from benchmarks.gpu.result import SO_FAR, Result

ROOT = Path(__file__).resolve().parents[2]
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
LAST_LINES = 12  # lines of a part's log that are shown if it failed


@dataclass
class Outcome:
    """The outcome of running one part.

    Attributes:
        title: the part's title.
        finished: when it ended, in UTC.
        seconds: elapsed time.
        result: the part's result, with a crash or a timeout added to its failures.
    """

    title: str
    finished: str
    seconds: float
    result: Result = field(default_factory=Result)


def run_parts(parts: Iterable[Part], folder: Path, quick: bool = False) -> dict[str, Outcome]:
    """Run parts in this order, and print the outcome of each.

    Args:
        parts: the parts to run.
        folder: where each part's output is written, as PART.log.
        quick: let the parts run fewer cases.
    """
    outcomes = {}
    for part in parts:
        print(f"{part.name}: {part.title} (at most {part.limit:g} s; log: "
              f"{folder / part.name}.log)", flush=True)
        outcome = outcomes[part.name] = run_part(part, folder / f"{part.name}.log", quick)
        failures = outcome.result.failures
        print(f"{part.name}: {f'FAILED ({len(failures)})' if failures else 'passed'} in "
              f"{outcome.seconds:.0f} s", *(f"  - {failure}" for failure in failures),
              sep="\n", flush=True)
    return outcomes


def run_part(part: Part, log: Path, quick: bool) -> Outcome:
    """Run one part to its end or its time limit, and return its outcome.

    Args:
        part: the part to run.
        log: receives its output.
        quick: let it run fewer cases.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        saved = Path(name) / "result.json"
        with open(log, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.part", part.module, str(saved),
                 *(["--quick"] if quick else [])], cwd=ROOT, stdout=file,
                env={**environment(), SO_FAR: str(saved)},
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                code = process.wait(part.limit)
                wrong = f"exit code {code}" if code else None
            except subprocess.TimeoutExpired:
                wrong = f"stopped at its time limit of {part.limit:g} s"
            finally:
                end_session(process)
        result = Result()
        try:  # after a crash or a timeout, this is what save_so_far saved
            result = Result.from_json(saved.read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            wrong = wrong or f"its result is missing or unreadable ({error})"
    if wrong is not None:
        result.failures.append(f"{part.name}: {wrong}; the last lines of its log:\n"
                               + "\n".join(log.read_text(errors="replace").splitlines()
                                           [-LAST_LINES:]))
    return Outcome(part.title, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                   time.monotonic() - started, result)


def environment() -> dict[str, str]:
    """Return the environment of a part, in which this checkout's packages come first."""
    path = [str(ROOT / "code"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONUNBUFFERED": "1"}


def end_session(process: subprocess.Popen) -> None:
    """Terminate a part and all processes that it started."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
