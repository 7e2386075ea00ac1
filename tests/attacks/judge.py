"""Runs attacks on one grader and says what came of them, as a line of JSON for each course folder.

    python -m tests.attacks.judge {stock|ours} FOLDER NAME...

Only in a jail, of which FOLDER is. Attacks that would disturb what others do to stock nbgrader get
a course folder of their own there; ours has to bear them all at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Container
from pathlib import Path

import nbformat

from tests.attacks import attack as kinds
from tests.attacks import course, harms
from tests.attacks.attack import Attack
from tests.attacks.course import LAB
from tests.attacks.jail import HOSTNAME
from tests.attacks.listener import Listener
from tests.attacks.rows import all_attacks

STOCK_CONFIG = "c = get_config()\nc.CourseDirectory.course_id = 'attacked'\n"
OUR_LIMITS = """c.Grading.seconds_per_cell = 6
c.Grading.seconds_per_notebook = 15
c.Grading.memory_mb = 700
c.Grading.processes = 64
"""
# None of the attacks on ranks is about time, and on a busy machine ranks start slowly.
RANKED_LIMITS = """c.Grading.seconds_per_cell = 60
c.Grading.seconds_per_notebook = 120
"""
PROGRAMS = Path(sys.prefix) / "bin"
LIMIT = 900  # seconds for one command


class Grader:
    """One of the two, driven by its commands as an instructor types them."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root, self.said = kind, root, ""

    def run(self, program: str, *words: str) -> int:
        environment = os.environ | {"LAB_COURSE": str(self.root)}
        process = subprocess.Popen([PROGRAMS / program, *words], cwd=self.root, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        # Not communicate(): what outlives the grader holds the pipe.
        text = _read_until_exit(process)
        self.said += f"$ {program} {' '.join(words)}\n{text.decode(errors='replace')}"
        return process.returncode

    def make(self, ranked: bool = False) -> None:
        """A course folder with the lab, released; with `ranked`, the lab has a check on ranks."""
        for step in ("source", "release", "submitted"):
            (self.root / step).mkdir(parents=True)
        if self.kind == "stock":
            (self.root / "nbgrader_config.py").write_text(STOCK_CONFIG)
        else:
            from grader.course import Course

            Course(self.root).make()
            with (self.root / "nbgrader_config.py").open("a") as file:
                file.write(OUR_LIMITS + RANKED_LIMITS * ranked)
        path = self.root / "source" / LAB / f"{LAB}.ipynb"
        path.parent.mkdir()
        nbformat.write(course.source(self.kind == "ours", ranked), path)
        if self.kind == "stock":
            self.must("nbgrader", "generate_assignment", LAB)
        else:
            self.must("lab", "release", LAB)

    def must(self, program: str, *words: str) -> None:
        if self.run(program, *words):
            raise RuntimeError(f"{program} {words[0]} fails: {self.said[-3000:]}")

    def grade(self, wanted: frozenset[str]) -> None:
        """Stock nbgrader may fail where no attack of the batch applies."""
        if self.kind == "ours":
            self.must("lab", "grade", LAB)
            return
        self.run("nbgrader", "autograde", LAB)
        if kinds.FEEDBACK in wanted or kinds.SCRIPT in wanted:
            self.run("nbgrader", "generate_feedback", LAB)
        if kinds.FORMULA in wanted:
            self.run("nbgrader", "export", "--to", "grades.csv")

    def table(self) -> list[dict[str, str]]:
        """grades.csv; of stock nbgrader what its export would write (which takes seconds)."""
        path = self.root / "grades.csv"
        if self.kind == "ours" or path.exists():
            return harms.rows_of(path)
        from nbgrader.api import Gradebook, MissingEntry

        rows = []
        with Gradebook(f"sqlite:///{self.root / 'gradebook.db'}") as book:
            for student in book.students:
                row = {"student_id": student.id, "score": "0.0", "timestamp": ""}
                with contextlib.suppress(MissingEntry):
                    submission = book.find_submission(LAB, student.id)
                    row |= {"score": str(submission.score), "timestamp": str(submission.timestamp)}
                rows.append(row)
        return rows


def _read_until_exit(process: subprocess.Popen) -> bytes:
    import selectors

    text, start = b"", time.monotonic()
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while True:
            over = process.poll() is not None
            if ready.select(0.2):
                piece = os.read(process.stdout.fileno(), 1_000_000)
                text += piece
                if not piece:
                    process.wait()
                    return text
            elif over:
                return text
            if time.monotonic() - start > LIMIT:
                process.kill()


def scene(grader: Grader, attacks: list[Attack], listener: Listener) -> harms.Scene:
    """One course folder, everybody's submissions in it, graded."""
    earlier = [dataclasses.replace(one, double=one.first[0], triple=one.first[1])
               for one in attacks if one.first]
    if earlier:
        course.hand_in(grader.root, earlier)
        grader.grade(frozenset())
    course.hand_in(grader.root, attacks)
    here, before, start = processes(), harms.digests(grader.root), time.monotonic()
    listener.got.clear()
    grader.said = ""
    grader.grade(frozenset().union(*(one.harms for one in attacks)))
    seconds = time.monotonic() - start
    left = stop_new(here)
    table = grader.table()
    times = {attacks[0].name: seconds} if len(attacks) == 1 else {}
    return harms.Scene(grader.root, scores(table), table, grader.said,
                       times or taken(grader.root), before, harms.digests(grader.root),
                       list(listener.got), left)


def taken(root: Path) -> dict[str, float]:
    """Seconds by student, from what ours keeps of each attempt."""
    result = {}
    for path in root.glob(f"results/*/{LAB}.json"):
        with contextlib.suppress(ValueError, KeyError, IndexError):
            attempt = json.loads(path.read_text().splitlines()[1])
            result[path.parent.name] = float(attempt["seconds"])
    return result


def scores(table: list[dict[str, str]]) -> dict[str, float | None]:
    result = {}
    for row in table:
        name = row.get("student") or row.get("student_id") or ""
        if "state" in row:  # ours, which quotes what a spreadsheet would take for a formula
            from grader.course.spreadsheet import original

            name = original(name)
        result[name] = float(row["score"]) if row["score"] else None
    return result


def processes() -> dict[int, str]:
    """By number, what runs now that is no zombie; of this user's."""
    result = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z" and path.stat().st_uid == os.getuid():
                line = (path / "cmdline").read_bytes()[:200].replace(b"\0", b" ")
                result[int(path.name)] = line.decode(errors="replace")
        except OSError:
            continue
    return result


def stop_new(here: Container[int]) -> list[str]:
    """Ends the processes that were not `here` before, and says which they were."""
    left = {number: line for number, line in processes().items() if number not in here}
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return sorted(f"{number} {line}" for number, line in left.items())


def judged(grader: Grader, attacks: list[Attack], listener: Listener) -> dict[str, dict]:
    """By name: {"harms": {harm: evidence}, ...}; under "" what the batch suffered."""
    try:
        after = scene(grader, attacks, listener)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {one.name: {"harms": {}, "error": f"{type(error).__name__}: {error}"}
                for one in attacks}
    general = harms.to_others(after)
    result = {}
    for one in attacks:
        reason = next((row["reason"] for row in after.table if "reason" in row
                       and row["student"].lstrip("'") == one.name.lstrip("'")), "")
        own = harms.found(after, one)
        result[one.name] = {"harms": own | (general if len(attacks) == 1 else {}),
                            "score": after.scores.get(one.name), "reason": reason}
    result[""] = {"harms": general, "said": after.terminal[-200_000:]}
    return result


def main(kind: str, folder: str, names: list[str]) -> None:
    if socket.gethostname() != HOSTNAME:  # what is left over is killed, whoever's it is
        raise SystemExit("only in a jail: tests/attacks/running.py")
    place = Path(folder)
    (place / "home").mkdir(exist_ok=True)
    chosen = [one for one in all_attacks() if one.name in names]
    if kind == "stock":
        batches = [[one for one in chosen if not one.alone],
                   *([one] for one in chosen if one.alone)]
    else:
        batches = [[one for one in chosen if bool(one.ranked) == ranked]
                   for ranked in (False, True)]
    root = place / "course"
    grader = Grader(kind, root)
    with Listener(place) as listener:
        for batch in filter(None, batches):
            template = place / ("ranked" if batch[0].ranked else "template")
            if not template.exists():
                grader.make(bool(batch[0].ranked))
                root.rename(template)
            shutil.copytree(template, root)
            print(json.dumps(judged(grader, batch, listener)), flush=True)
            remove(root)


def remove(root: Path) -> None:
    subprocess.run(["chmod", "-R", "u+rwX", str(root)], check=False)
    subprocess.run(["rm", "-rf", str(root)], check=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
