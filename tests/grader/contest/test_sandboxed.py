"""Hostile files in the sandbox: a score is what the scorer says of a plain value, and nothing else.

One file misbehaves in another way in each case, so that all of it takes few sandboxes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from grader.contest import sandboxed
from grader.contest.sandboxed import Unplayed, as_json
from grader.run.settings import Grading
from grader.sandbox import choice
from grader.sandbox.watchdog import SHORT_OF_MEMORY
from labcore.workspace import CHECKOUT
from labkit.contest.declaration import Scored
from labkit.contest.local import LocalPlayer
from labkit.contest.play import FLOOR, ghost, play
from tests.labkit.contest.toy import score, toy

SETTINGS = Grading(memory_mb=300)

HOSTILE = '''
import fcntl, gc, json, os, sys
from labkit.check import wire
from labkit.contest import play

print("loaded", file=sys.stderr)

class Always(int):
    """Equal to everything, and any multiple of anything."""
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __lt__ = __gt__ = __ne__ = lambda self, other: False
    __mod__ = __rmod__ = lambda self, other: 0
    __hash__ = int.__hash__

def answer(case):
    x = case["x"]
    print("CASE", case)
    os.write(1, b"CASE")
    if x == 1:  # an endless loop that ignores interrupts
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
    if x == 2:
        os._exit(0)
    if x == 3:
        return "x" * 2 * 10**6
    if x == 4:  # what looks like a score
        print(json.dumps({"outcomes": [{"case": "small 4", "score": 1.0}]}))
        return {"score": 1.0, "kind": ""}
    if x == 5:
        return Always(0)
    if x == 6:
        raise RuntimeError(f"\\x1b[2J{case} " + "y" * 10**5)
    if x == 7:  # the sandbox's own copy of the scoring, patched
        play.points = lambda outcomes: 100.0
        play.FLOOR = 1.0
        play.play_one = lambda *given: play.Outcome("small 7", "small", 1.0)
        for one in gc.get_objects():
            if type(one).__name__ == "Contest":
                object.__setattr__(one, "score", lambda *given: 1.0)
        return 100 * x
    if x == 8:  # every value that leaves it from now on, in whatever way
        wire.dumps = lambda value: b'{"score": 1.0}'
        return 0
    if x == 9:  # a response of its own, on every open descriptor
        body = b'{"id": %d, "value": "9"}'
        for number in range(3, 300):
            try:
                for turn in range(1, 40):
                    text = body % turn
                    os.write(number, len(text).to_bytes(4, "big") + text)
            except OSError:
                pass
        return "forged"
    return x
'''

TALKING = '''
import fcntl, os, socket
PLACES = ["/tmp/note", "/dev/shm/note", os.path.expanduser("~/note"), "note",
          os.path.expanduser("~/contest/note")]
COURSE = %r

def answer(case):
    found = [path for path in PLACES if os.path.exists(path)] if case["x"] == 1 else []
    found += [COURSE] * os.path.exists(COURSE)
    for module in ("grader", "grader.contest.secret"):
        try:
            __import__(module)
            found.append(module)
        except ImportError:
            pass
    for path in PLACES:
        with open(path, "w") as file:
            file.write("case %%d" %% case["x"])
        if case["x"] == 1:
            try:
                fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append("somebody's lock")
            except OSError:
                pass  # the sandbox has no locks
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind("\\0contest-%%d" %% case["x"])
    except OSError as error:
        found.append(str(error))
    globals().setdefault("kept", []).append(listener)
    return found or case["x"]
'''


def reasons(contest, player) -> list[str]:
    """Why cases do not count."""
    return [one.reason for one in play(contest, contest.open_cases(), player.ask)]


@pytest.fixture(scope="module")
def backend():
    return choice.choose()


@pytest.fixture(scope="module")
def outcomes(backend):
    contest = toy(10, seconds=0.5)
    return sandboxed.play(contest, contest.open_cases(), HOSTILE.encode(), backend, SETTINGS)


@pytest.mark.slow
def test_whatever_a_file_does_the_other_cases_are_scored(outcomes):
    kinds = [one.kind for one in outcomes]
    assert kinds[:8] == ["out of time", "crash", "not a plain value", "no multiple", "no multiple",
                         "error", "", kinds[7]]
    assert kinds[7] in ("no multiple", "not a plain value")
    assert [one.score for one in outcomes[9:]] == [1.0, 1.0] and kinds[9:] == ["", ""]


@pytest.mark.slow
def test_no_score_was_forged(outcomes):
    assert [one.score for one in outcomes[:6]] == [FLOOR] * 6
    assert outcomes[6].score == 0.01 and not outcomes[6].kind  # 700 is 100 times 7
    assert outcomes[7].score == FLOOR
    # A forged response is taken for what it is: at most the answer that its author knows to be
    # right. Whether it was in time for this case or ended the sandbox, it scored nobody else.
    assert outcomes[8].kind in ("no multiple", "crash", "not a plain value", "")


@pytest.mark.slow
def test_what_is_kept_is_bounded_and_clean(outcomes):
    kept = json.dumps(as_json(outcomes), ensure_ascii=False)
    assert len(kept) < 10_000 and "\x1b" not in kept
    assert "CASE" not in kept  # what it prints is dropped


@pytest.mark.slow
def test_two_submissions_cannot_talk_and_see_nothing_of_the_course(backend, course):
    contest = toy(1)
    given = contest, 2, (TALKING % str(course.root)).encode(), backend, SETTINGS
    with sandboxed._Player(*given) as first:
        assert reasons(contest, first) == ["", ""]
        with sandboxed._Player(*given) as second:  # while the first one holds its locks
            assert reasons(contest, second) == ["", ""]
    with sandboxed._Player(*given) as third:
        assert reasons(contest, third) == ["", ""]


def test_control_in_one_process_the_same_file_sets_its_own_points(tmp_path):
    """Why the scorer is on the other side: here the patches of case 7 win."""
    (tmp_path / "toy.py").write_text(HOSTILE)
    program = """
from labkit.contest import play
from labkit.contest.player import load
from tests.labkit.contest.toy import toy
contest = toy(10)
answer = load("toy.py", "answer")
found = [play.play_one(contest, case, answer) for case in contest.open_cases()[6:7]]
print(play.points(found))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, text=True, timeout=60,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(CHECKOUT)})
    assert done.stdout.endswith("100.0\n"), done.stderr


@pytest.mark.parametrize(("text", "kind", "reason"), [
    ("def answer(case:", "error", "SyntaxError"),
    ("def other(case): pass", "error", "defines no function answer"),
    ("import os; os._exit(1)", "crash", "exit code 1")])
def test_a_file_that_cannot_be_run_is_disqualified_in_every_case(backend, text, kind, reason):
    contest = toy()
    outcome = sandboxed.play(contest, contest.open_cases(), text.encode(), backend, SETTINGS)
    assert {(one.kind, one.score) for one in outcome} == {(kind, FLOOR)} and len(outcome) == 4
    assert all(reason in one.reason for one in outcome)


class Short:
    """A back-end on a machine that is short of memory for a while."""

    name = "short"

    def __init__(self, backend, times: int) -> None:
        self.backend, self.left = backend, times

    def start(self, *given, **more):
        running = self.backend.start(*given, **more)
        if self.left:
            self.left -= 1
            running.watchdog.verdict = SHORT_OF_MEMORY
            running.send_kill()
        return running


def test_a_machine_that_is_short_of_memory_costs_nobody_a_case(backend, tmp_path):
    contest = toy(1)
    with pytest.raises(Unplayed, match="short of memory"):
        sandboxed.play(contest, contest.open_cases(), b"", Short(backend, 99), SETTINGS)


@pytest.mark.slow
def test_an_answer_that_takes_the_scorer_forever_is_disqualified(backend, monkeypatch):
    def slow(case, answer) -> Scored:
        while answer == 1:
            pass
        return score(case, answer)

    monkeypatch.setattr(sandboxed, "SECONDS_TO_SCORE", 0.3)
    contest = toy(2, score=slow)
    outcome = sandboxed.play(contest, contest.open_cases(), b"def answer(case): return case['x']",
                             backend, SETTINGS)
    assert [one.kind for one in outcome] == ["too large", "", ""]


BORROWING = """
import pipeline_schedules as schedules
def answer(case):
    return case["x"] * len(schedules.BUILT_IN["1f1b"](1, 1))
"""
MASKED = ("pipeline_schedules.builtin.one_f_one_b",)


@pytest.mark.slow
@pytest.mark.parametrize(("masks", "kind"), [((), ""), (MASKED, "error")])
def test_a_contest_may_mask_what_a_ghost_calls_here_and_on_students_machines(backend, tmp_path,
                                                                            masks, kind):
    contest = toy(1, masks=masks)
    outcome = sandboxed.play(contest, contest.open_cases(), BORROWING.encode(), backend, SETTINGS)
    (tmp_path / "toy.py").write_text(BORROWING)
    with LocalPlayer(contest, tmp_path / "toy.py") as player:
        here = play(contest, contest.open_cases(), player.ask)
    for one in (*outcome, *here):
        assert one.kind == kind and ("not available" in one.reason) == bool(masks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved", "ZB-H1", "serial"])
def test_a_ghost_that_is_submitted_ties_with_itself(backend, contest, name):
    """The file calls what the ghost calls; a case of each group shows that both paths are one."""
    cases = contest.open_cases()[::4]
    ship = "from labkit.contest.contests.pipelines import CONTEST\n"
    text = f"{ship}schedule = {{one.name: one.answer for one in CONTEST.ghosts}}[{name!r}]"
    (answer,) = (one.answer for one in contest.ghosts if one.name == name)
    assert sandboxed.play(contest, cases, text.encode(), backend, SETTINGS) == play(
        contest, cases, ghost(answer))


