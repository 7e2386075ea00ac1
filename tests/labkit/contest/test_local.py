"""`lab contest NAME FILE`: a student's file on the student's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import cli
from labkit.contest import catalog
from labkit.contest.local import LocalPlayer
from labkit.contest.play import FLOOR, CaseResult, play
from labkit.contest.table import explained
from tests.labkit.contest.toy import toy

HOSTILE = '''
import os, pathlib, sys
print("loaded")

def answer(case):
    x = case["x"]
    print("case", x)
    if x == 1:
        while True:
            pass
    if x == 2:
        os._exit(3)
    if x == 3:
        sys.exit("enough")
    if x == 4:
        return {x}
    if x == 5:
        return "x" * 2 * 10**6
    if x == 6:
        os.write(1, b"not the pipe")
        raise KeyError("\\x1b[2J" + "y" * 10**5)
    if x == 7:
        return [path.name for path in pathlib.Path().iterdir()]
    return x
'''


def written(folder: Path, text: str, name: str = "toy.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.slow
def test_whatever_a_file_does_in_one_case_the_others_are_scored(tmp_path, capfd):
    contest = toy(8, seconds=2)
    with LocalPlayer(contest, written(tmp_path, HOSTILE)) as player:
        outcome = play(contest, contest.open_cases(), player.ask)
        process = player.process
    assert process.poll() is not None
    assert [one.kind for one in outcome] == [
        "out of time", "crash", "error", "not a plain value", "not a plain value", "error",
        "no multiple", "", ""]
    assert outcome[0].reason == "no answer after 2 s" and "exit code 3" in outcome[1].reason
    assert outcome[6].reason == "[] is no multiple of 7"  # it sees none of the student's files
    assert all(one.score == FLOOR for one in outcome[:7]) and outcome[7].score == 1.0
    said = capfd.readouterr()
    assert "case 8" in said.err and "case" not in said.out
    line = next(number for number, one in enumerate(HOSTILE.splitlines(), 1) if "raise" in one)
    assert f'File "toy.py", line {line}, in answer' in said.err


@pytest.mark.parametrize(("text", "reason"), [
    ("def answer(case:", "SyntaxError"), ("def other(case): pass", "defines no function answer"),
    ("import neighbor", "No module named 'neighbor'"), ("import os; os._exit(0)", "exit code 0"),
    ("raise SystemExit", "SystemExit"), ("answer = 3", "defines no function answer")])
def test_a_file_that_cannot_be_run_is_disqualified_everywhere(tmp_path, text, reason):
    written(tmp_path, "", "neighbor.py")
    contest = toy()
    with LocalPlayer(contest, written(tmp_path, text)) as player:
        outcome = play(contest, contest.open_cases(), player.ask)
    assert len({(one.kind, one.reason) for one in outcome}) == 1
    assert outcome[0].kind in ("error", "crash") and reason in outcome[0].reason


def test_the_command_shows_cases_ghosts_and_reasons(tmp_path, capsys):
    path = written(tmp_path, '''
from dataclasses import dataclass
from pipeline_schedules import BUILT_IN, to_text

@dataclass
class Plan:
    name: str

def schedule(case):
    plan = Plan("gpipe" if case["stages"] == 7 else "1f1b")
    return to_text(BUILT_IN[plan.name](case["stages"], case["micro_batches"]))
''', "mine.py")
    assert cli.main(["contest", "pipelines", str(path)]) == 0
    said = capsys.readouterr().out
    for words in ("mine.py", "1F1B", "ZB-H1", "over the memory cap: stage ", "MiB over its cap of",
                  "hint: Run a backward pass earlier", "ms, ideal ", "ahead of GPipe"):
        assert words in said, words


def test_cases_that_fail_for_the_same_reason_share_a_line():
    def out(number: int, reason: str = "boom") -> CaseResult:
        return CaseResult(f"even {number}", "even", FLOOR, kind="error", reason=reason,
                          hint="Look.")

    assert explained([out(1), out(2), CaseResult("even 3", "even", 0.5, note="5 ms"),
                      out(4, "bang"), CaseResult("even 5", "even", 0.5, note="5 ms")]) == [
        "even 1, even 2: error: boom", "    hint: Look.", "even 3: 5 ms",
        "even 4: error: bang", "    hint: Look.", "even 5: 5 ms"]
    assert explained(out(number) for number in range(1, 13)) == [
        "even 1 and 11 more cases: error: boom", "    hint: Look."]


def test_without_a_file_it_shows_the_rules_and_without_a_name_the_list(capsys):
    assert cli.main(["contest"]) == 0
    assert "pipelines: Pipeline schedules under a memory cap" in capsys.readouterr().out
    assert cli.main(["contest", "pipelines"]) == 0
    said = capsys.readouterr().out
    assert catalog.find("pipelines").rules in said and "interleaved" in said


@pytest.mark.parametrize(("content", "reason"), [
    (b"# " + b"x" * 200_000, "200,002 bytes are too many"), (b"# \xff", "not UTF-8 (byte 2)"),
    (b"# \0", "null byte")])
def test_files_that_the_grader_would_refuse_are_refused_here(tmp_path, capsys, content, reason):
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    assert cli.main(["contest", "pipelines", str(path)]) == 1
    assert reason in capsys.readouterr().err
    assert cli.main(["contest", "pipelines", str(tmp_path / "absent.py")]) == 1
    assert "absent.py: No such file or directory; nearby: bad.py" in capsys.readouterr().err


def test_students_images_have_no_steps_for_instructors(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **kinds: [])
    monkeypatch.setattr(cli, "build_part", cli.build_part.__wrapped__)
    with pytest.raises(SystemExit):
        cli.main(["contest", "grade", "pipelines"])
    assert "choose from 'pipelines'" in capsys.readouterr().err
