"""One submission from its bytes to an Attempt, in the sandbox that grading uses."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time

import nbformat
import pytest
from nbformat import v4

from grader.batch.grading import worker_command
from grader.course import Submission
from grader.run import attempt, results
from grader.run.attempt import Attempt
from grader.run.settings import Grading
from labcore.errors import LabError
from tests.grader import small_lab
from tests.grader.run.bench import BOTH, QUICK, SECOND, SETTINGS, Bench
from tests.grader.small_lab import NAME, RIGHT, WRONG, answered, cell, find, marks

pytestmark = pytest.mark.slow
HANGS = "import time; time.sleep(999)"  # limits are of elapsed time; one loop below does burn it


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    return Bench(tmp_path_factory.mktemp("course"), small_lab.source())


def outputs(made: Attempt, name: str) -> str:
    return json.dumps(find(nbformat.from_dict(made.notebook), name).outputs)


@pytest.mark.parametrize(("batch", "scores"), [
    (RIGHT, BOTH), (WRONG, SECOND), ("def f(:", SECOND), (None, {**SECOND, "script-check": 0.0}),
    (f"import sys\nprint('noise', file=sys.stderr)\n{RIGHT}\n0.5", BOTH),
    (f"{RIGHT}\nraise SystemExit", BOTH),
], ids=["right", "constant", "syntax", "untouched", "noise", "exit"])
def test_points_are_for_what_the_answers_do(bench, batch, scores):
    made = bench.grade(answered(bench.released, batch) if batch else bench.released)
    assert (made.state, made.reason, made.scores, made.unscored) == ("graded", "", scores, ())
    assert made.isolated and made.backend == bench.backend.name and made.lab == NAME
    nbformat.validate(nbformat.from_dict(made.notebook))


def test_the_notebook_has_the_hidden_tests_and_what_the_cells_did(bench):
    made = bench.grade(answered(bench.released, f"print('mine')\n{WRONG}"))
    result = nbformat.from_dict(made.notebook)
    assert "HIDDEN" in find(result, "batch-check").source
    assert "mine" in outputs(made, "batch") and "returned 16" in outputs(made, "batch-check")
    explore = next(one for one in result.cells if one.metadata.get("tags") == ["explore"])
    assert explore.outputs == []


def test_the_students_code_hashes_alike_at_every_run(bench):
    source = f"print(hash('a'), {{'a', 'b', 'c', 'd'}})\n{RIGHT}"
    first, second = (bench.grade(answered(bench.released, source)) for _ in range(2))
    assert first.notebook == second.notebook


def test_neither_tests_nor_anything_of_the_course_is_in_the_sandbox(bench):
    look = f"""import os, glob
print(os.path.exists({str(bench.course.root)!r}), os.environ.get("LAB_CHECK_SEED"))
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        print(open(path).read())
    except OSError:
        pass
import gc
print("HIDDEN TESTS" in str([x for x in gc.get_objects() if isinstance(x, str)]))
{RIGHT}"""
    made = bench.grade(answered(bench.released, look))
    text = outputs(made, "batch")
    assert made.scores == BOTH and "False None" in text and "HIDDEN" not in text
    assert str(bench.course.root) not in text


@pytest.mark.parametrize(("batch", "why"), [
    ("import os\nos._exit(1)", "its code ended the sandbox at cell batch: exit code 1"),
    ("import os, signal\nos.kill(os.getpid(), 9)", "ended the sandbox at cell batch"),
    ("while True: pass", "out of time at cell batch (2 s)"),
    ("import os\nfor number in range(3, 999):\n    try: os.write(number, b'forged')\n"
     "    except OSError: pass", "ended the sandbox at cell batch: "),
    ("x = b'1' * 500_000_000", "its memory passed"),
], ids=["exit", "signal", "loop", "forged", "memory"])
def test_a_cell_that_ends_the_sandbox_costs_its_own_checks_only(bench, batch, why):
    start = time.monotonic()
    made = bench.grade(answered(bench.released, batch + "\n" + RIGHT),
                       settings=QUICK if "while" in batch else SETTINGS)
    assert made.state == "ungraded" and why in made.reason
    assert made.scores == {"script-check": 2.0} and made.unscored == ("batch-check",)
    assert "NotScored" in outputs(made, "batch-check")
    assert time.monotonic() - start < 20


def test_a_check_whose_call_ends_the_sandbox_is_unscored_and_the_others_count(bench):
    for way, why in ((HANGS, "out of time at cell batch-check (2 s)"),
                     ("import os; os._exit(3)", "at cell batch-check: exit code 3")):
        made = bench.grade(answered(bench.released, RIGHT.replace("return", f"{way}\n    return")),
                           settings=QUICK)
        assert (made.state, made.scores) == ("ungraded", {"script-check": 2.0})
        assert why in made.reason


def test_what_a_skipped_answer_did_not_matter_for_is_graded_with_a_note(bench):
    made = bench.grade(answered(bench.released, script="import os\nos._exit(0)"))
    assert made.scores == {"batch-check": 3.0} and made.unscored == ("script-check",)
    lab = small_lab.source()
    find(lab, "script-check").source = "check.that(True, '')"
    bench.course.notebook("source", NAME).unlink()
    small_lab.put(lab, bench.course.notebook("source", NAME))
    try:
        made = bench.grade(answered(bench.released, script="import os\nos._exit(0)"))
    finally:
        small_lab.put(small_lab.source(), bench.course.notebook("source", NAME))
    assert (made.state, made.scores) == ("graded", BOTH)
    assert "ended the sandbox at cell script" in made.notes[-1]


def test_when_the_whole_notebooks_time_is_spent_the_rest_is_unscored(bench):
    made = bench.grade(answered(bench.released, HANGS),
                       settings=Grading(seconds_per_cell=20, seconds_per_notebook=1.5))
    assert (made.state, made.scores) == ("ungraded", {})
    assert set(made.unscored) == set(BOTH) and "all cells together have used up" in made.reason
    assert made.seconds < 10


@pytest.mark.parametrize("tag, source", [
    ("setup", "import no_such_module"), ("check-setup", "import no_such_module"),
    ("setup", "import os\nos._exit(1)"), ("check-setup", HANGS)])
def test_a_failure_of_the_courses_own_cells_scores_nobody(tmp_path, tag, source):
    lab = small_lab.source()
    place = next(one for one in lab.cells if one.metadata.get("tags") == [tag])
    place.source = source
    bench = Bench(tmp_path, lab)
    made = bench.grade(answered(bench.released), settings=QUICK)
    assert (made.state, made.scores, set(made.unscored)) == ("ungraded", {}, set(BOTH))
    assert made.reason.startswith(f"the course's own cell `{source.splitlines()[0]}`")


def test_the_bytes_that_are_graded_are_those_of_the_digest(bench, monkeypatch):
    """A file that is replaced while it is graded changes nothing."""
    path = bench.course.notebook("submitted", NAME, "swap")
    small_lab.put(answered(bench.released, WRONG), path)
    before = bench.course.digest(NAME, "swap")
    parse = attempt.parse

    def swapped(content, name):
        small_lab.put(answered(bench.released), path)
        return parse(content, name)

    monkeypatch.setattr(attempt, "parse", swapped)
    made = attempt.grade(Submission(bench.course, NAME, "swap"), bench.plan, bench.backend,
                         SETTINGS)
    assert made.digest == before != bench.course.digest(NAME, "swap") and made.scores == SECOND


def test_seeds_are_for_the_trusted_side_and_of_the_graded_bytes(bench):
    asked = ("SEEN = []\ndef global_batch(micro_batch, ranks):\n    SEEN.append(micro_batch)\n"
             "    return micro_batch * ranks if len(SEEN) < 3 else SEEN")
    first, again, other = (bench.grade(answered(bench.released, asked + more), student)
                           for student, more in (("ada", ""), ("ada", ""), ("ada", "\n")))
    texts = [outputs(made, "batch-check") for made in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(("content", "why"), [
    (b"{", "is not a notebook"), (b"[" * 200_000, "is not a notebook"), (b"[]", "no list of cells"),
    (b'{"cells": []}', "another lab's"), (b"\xff\xfe", "is not a notebook"),
    (b"[" + b"[]," * 1_500_000 + b"0]", "more than 2,000,000 items"),
    (b" " * 20_000_001, "20 MB"), (b'{"cells": ["\\ud800", 1e999]}', "another lab's")],
    ids=["cut", "deep", "list", "empty", "bytes", "many", "large", "odd"])
def test_what_is_no_notebook_is_ungraded(bench, content, why):
    made = bench.grade(content)
    assert made.state == "ungraded" and why in made.reason
    assert made.notebook is None and not made.scores


def test_links_and_special_files_are_not_read(bench, tmp_path):
    def reason(student: str) -> str:
        return attempt.grade(Submission(bench.course, NAME, student), bench.plan, bench.backend,
                             SETTINGS).reason

    secret = bench.course.notebook("source", NAME)
    path = bench.course.notebook("submitted", NAME, "link")
    path.parent.mkdir(parents=True)
    path.symlink_to(secret)
    folder = bench.course.notebook("submitted", NAME, "folder").parent
    folder.parent.mkdir(parents=True)
    folder.symlink_to(secret.parent)
    whole = bench.course.root / "submitted" / "whole"
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / f"{NAME}.ipynb").write_bytes(secret.read_bytes())
    whole.symlink_to(tmp_path)
    fifo = bench.course.notebook("submitted", NAME, "fifo")
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    beside = bench.course.notebook("submitted", NAME, "beside")
    small_lab.put(answered(bench.released), beside)
    beside.with_name("other\n\x1b[2J").symlink_to(secret)
    many = bench.course.notebook("submitted", NAME, "many")
    small_lab.put(answered(bench.released), many)
    for number in range(600):
        many.with_name(f"{number}").touch()
    for student in ("link", "folder", "whole", "fifo", "beside"):
        assert "is a link or a special file" in reason(student)
        assert "\x1b" not in reason(student)
    assert "more than 500 files" in reason("many")
    assert reason("nobody") == "it cannot be read: No such file or directory"


def test_copies_that_would_take_for_ever_to_untangle_are_refused(bench):
    notebook = answered(bench.released)
    result = find(notebook, "batch")
    for number in range(60):
        notebook.cells.append(copy.deepcopy(result))
        notebook.cells[-1].update(id=f"c{number}", source=f"x{number} = 1")
    assert "occurs 61 times" in bench.grade(notebook).reason
    notebook = answered(bench.released, "x = 1\n" * 200_000)
    assert "1,200,000 characters" in bench.grade(notebook).reason


def test_an_instructors_own_assignment_works_as_it_is(tmp_path):
    """nbgrader's kind of notebook, without tags."""
    lab = v4.new_notebook(cells=[
        v4.new_code_cell("import math\ndef close(a, b): return math.isclose(a, b)\nLIMIT = 3"),
        cell("def area(r):\n    ### BEGIN SOLUTION\n    return math.pi * r ** 2\n"
             "    ### END SOLUTION", **marks("area", solution=True, locked=False)),
        v4.new_code_cell("%matplotlib inline\nprint(area(LIMIT))"),
        cell("assert close(area(1), math.pi)\nassert LIMIT == 3\n### BEGIN HIDDEN TESTS\n"
             "assert close(area(2), 4 * math.pi)\n### END HIDDEN TESTS",
             **marks("area-check", grade=True, points=2)),
        cell("YOUR ANSWER", **marks("essay", grade=True, solution=True, locked=False, points=5))],
        metadata={"kernelspec": {"name": "python3", "display_name": "P", "language": "python"}})
    bench = Bench(tmp_path, lab)
    assert bench.grade(lab).scores == {"area-check": 2.0}
    wrong = copy.deepcopy(bench.released)
    find(wrong, "area").source = "def area(r):\n    return math.pi"
    made = bench.grade(wrong)
    assert (made.state, made.scores, made.unscored) == ("graded", {"area-check": 0.0}, ())
    assert bench.grade(bench.released).scores == {"area-check": 0.0}


def test_files_beside_the_released_notebook_are_there(tmp_path):
    lab = small_lab.source(setup="import os\nassert open('data/values.csv').read() == '1,2'")
    bench = Bench(tmp_path, lab)
    data = bench.course.notebook("release", NAME).parent / "data" / "values.csv"
    data.parent.mkdir()
    data.write_text("1,2")
    assert bench.grade(answered(bench.released)).scores == BOTH


def test_a_check_that_is_no_plain_python_is_refused_before_anybody_is_graded(tmp_path):
    lab = small_lab.source()
    find(lab, "batch-check").source = "!ls"
    with pytest.raises(LabError, match="batch-check runs on the trusted side"):
        _ = Bench(tmp_path, lab).plan


def test_a_worker_whose_check_was_interrupted_goes_on_as_a_new_program(tmp_path):
    """The alarm may have struck in an import, which would be broken for the next student."""
    lab = small_lab.source()
    find(lab, "batch-check").source = (
        "import time\ntime.sleep(check.call(global_batch, 4, 4) / 1000)")
    bench = Bench(tmp_path / "course", lab)
    with bench.course.config_file.open("a") as file:
        file.write("c.Grading.seconds_per_cell = 2\n")
    for student, answer in (("ada", RIGHT.replace("micro_batch *", "10**9 *")), ("bob", RIGHT)):
        small_lab.put(answered(bench.released, answer),
                      bench.course.notebook("submitted", NAME, student))
    tasks = [{"do": "grade", "lab": NAME, "student": student, "task": number}
             for number, student in enumerate(("ada", "bob", "bob"))]
    done = subprocess.run(worker_command(bench.course, bench.backend.name), text=True,
                          input="".join(json.dumps(task) + "\n" for task in tasks),
                          capture_output=True, timeout=100)
    ready, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert "ready" in ready and [answer["task"] for answer in answers] == [0, 1, 2], done.stderr
    result = {student: results.read(Submission(bench.course, NAME, student)).attempt
              for student in ("ada", "bob")}
    assert "out of time at cell batch-check (2 s)" in result["ada"].reason
    assert result["bob"].scores == BOTH
    assert done.returncode == 0 and "renewed" in done.stderr
