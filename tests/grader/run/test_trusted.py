"""The trusted side of checks: what a check may do with a student's names, and what they may not
do with it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook

from grader.run.channel import SandboxDied
from grader.run.lab_plan import PlannedCell, bound_by_answers, planned
from grader.run.proxies import Proxy, StudentNameError
from grader.run.remote import Remote
from grader.run.timing import Budget
from grader.run.trusted import TrustedNamespace, Verdict
from labcore import colors
from labcore.errors import LabError
from labkit.check import wire
from tests.grader.small_lab import marks


def remote(guest: Any) -> Remote:
    return Remote(guest, "seed", dies)


def dies(*arguments: Any, **fields: Any) -> dict:
    raise SandboxDied("exit code 1")


class InProcess:
    """Stand in for a guest: the student's names are in `names`."""

    def __init__(self, names: dict[str, Any]) -> None:
        from labkit.guest.serving import Guest

        self.names = names
        self.guest = Guest(self, self)  # a shell with user_ns, and a capture with take()
        self.user_ns = names

    def take(self) -> list:
        return []

    def __call__(self, do: str, **fields: Any) -> dict:
        return json.loads(json.dumps(self.guest.does[do](**fields)))


STUDENT = """
import math
one, text, many = 1, "x", [1, 2]
def f(x): return 3 * x
def g(x): raise ValueError("no " + str(x))
def stops(): raise StopIteration
class Layer:
    def __init__(self, n=0): self.n = n
layer = Layer()
"""


def student(source: str = STUDENT) -> InProcess:
    names: dict[str, Any] = {}
    exec(source, names)
    return InProcess(names)


def check_cell(source: str, role: str = "check") -> PlannedCell:
    metadata = marks("c", grade=True, points=1) if role == "check" else {"tags": [role]}
    return planned(0, new_code_cell(source, metadata=metadata))


def checked(source: str, guest: Any = None, setup: str = "from labkit import check",
            seconds: float = 10) -> Verdict:
    trusted = TrustedNamespace(remote(guest or student()), frozenset(("f", "one", "sum")))
    assert trusted.setup(check_cell(setup, "check-setup"), Budget(10)).passed
    return trusted.check(check_cell(source), Budget(seconds))


@pytest.mark.parametrize("source", [
    "assert f(3) == 9", "assert one == 1", "assert many == [1, 2] and text + 'y' == 'xy'",
    "check.function(f, [(2,)], [6])", "check.value(many, [1, 2])",
    "check.raises(g, ValueError, (1,), mentions='no 1')", "assert check.call(f, 2) == 6",
    "try:\n    g(1)\nexcept ValueError as error:\n    assert str(error) == 'no 1'\n"
    "else:\n    assert False",
    "assert [f(n) for n in range(3)] == [0, 3, 6]", "assert all(f(n) == 3 * n for n in many)",
    "def near(a, b): return abs(a - b) < 1\nassert near(f(1), 3)",
    "assert check.draw(1, a=range(10**9)) != check.draw(1, b=range(10**9))"])
def test_checks_that_hold_pass_as_in_a_notebook(source):
    verdict = checked(source)
    assert verdict.passed, verdict.outputs


@pytest.mark.parametrize(("body", "passes"), [
    ("return [' '.join(f'F{k} B{k}' for k in range(m))] * p", False),
    ("return [' '.join([*(f'F{k}' for k in range(m)), *(f'B{k}' for k in range(m))])] * p", True)])
def test_a_schedule_is_judged_through_a_proxy(body, passes):
    verdict = checked("check.schedule(f, check.draw(5, p=range(2, 5), m=range(2, 6)), 'gpipe', "
                      "hints={'Alone.': 'one at a time'})", student(f"def f(p, m):\n    {body}"))
    assert verdict.passed == passes and not verdict.lost
    assert passes or "Alone." in str(verdict.outputs)


@pytest.mark.parametrize("source", [
    "assert f(3) == 8", "assert one == 2", "check.function(f, [(2,)], [7])",
    "check.value(many, [1])", "check.raises(f, ValueError, (1,))", "assert missing == 1",
    "check.that(False, 'hint')", "assert list(map(stops, [])) and False",
    "list(map(lambda _: stops(), [1]))", "raise GeneratorExit"])
def test_checks_that_do_not_hold_fail(source):
    verdict = checked(source)
    assert verdict.failed is not None and not verdict.lost
    assert verdict.outputs[-1].output_type == "error"


def test_what_it_says_names_the_student_and_the_way_out():
    with pytest.raises(StudentNameError, match=r"layer is the student's.*check\.value"):
        assert Proxy("layer", None) == 1
    assert "layer" in checked("assert layer == 3").outputs[-1].evalue


def test_only_what_can_be_called_is():
    with pytest.raises(TypeError, match="not callable"):
        Proxy("layer", None)()
    assert "cannot be checked" in checked("check.call(Layer)").outputs[-1].evalue
    assert "is the student's" in checked("check.call(f, g)").outputs[-1].evalue


def test_a_check_that_draws_by_itself_draws_the_same_again():
    source = "import random\nimport numpy as np\nprint(random.random(), np.random.rand())"
    assert checked(source).outputs == checked(source).outputs != []


def test_builtins_and_trusted_names_are_not_the_students_unless_the_lab_says_so():
    guest = student("def sum(x): return 9\ndef len(x): return 9\nclass check: pass\nT = 5")
    assert checked("assert sum([1]) == 9 and len([1]) == 1", guest).passed
    assert checked("check.that(T == 3, '')", guest, "from labkit import check\nT = 3").passed


def test_checks_leave_only_their_own_names_to_later_ones():
    guest = student("x = 1\ny = 5")
    trusted = TrustedNamespace(remote(guest), frozenset("x"))
    assert trusted.check(check_cell("y = 7\nassert x == 1"), Budget(10)).passed
    guest.names["x"] = 2  # by a later cell of the student's
    assert trusted.check(check_cell("assert (x, y) == (2, 7)"), Budget(10)).passed
    assert set(trusted.names) == {"__name__", "__builtins__"}


def test_an_untagged_cells_definitions_are_there_for_tests_and_not_the_students():
    source = ("import math\ndef close(a): return math.isclose(f(1), a)\nvalue = 1 / 0\n"
              "LIMITS = [math.pi, 4]\nsaid = print('x')")
    guest = student(f"{STUDENT}\nLIMITS = close = 'mine'\nsaid = 1")
    trusted = TrustedNamespace(remote(guest), frozenset("f"))
    trusted.define(planned(0, new_code_cell(source)), Budget(10))
    assert trusted.check(check_cell("assert close(3) and math.pi == LIMITS[0] and said == 1"),
                         Budget(10)).passed
    assert not trusted.check(check_cell("assert close(4)"), Budget(10)).passed


@pytest.mark.parametrize(("beginning", "answer", "holds"), [
    ("total = 0", "total = 45", "total == 45"),
    ("total = {}", "total['a'] = 45", "total == {'a': 45}"),
    ("total = [1]", "total.append(2)", "total == [1, 2]"),
    ("total = 1", "def more():\n    global total\n    total += 1\nmore()", "total == 2"),
    ("def total(): pass", "def total(): return 45", "total() == 45"),
    ("total = 0\ndef twice(): return 2 * total", "total = 45", "twice() == 90"),
])
def test_what_answers_change_is_the_students_though_an_untagged_cell_begins_it(
        beginning, answer, holds):
    answers = bound_by_answers(new_notebook(cells=[
        new_code_cell(answer, metadata=marks("a", solution=True))]))
    trusted = TrustedNamespace(remote(student(f"{beginning}\n{answer}")), answers)
    trusted.define(planned(0, new_code_cell(beginning)), Budget(10))
    for _ in range(2):
        assert trusted.check(check_cell(f"assert {holds}"), Budget(10)).passed


def test_what_answers_only_read_stays_the_courses():
    answers = bound_by_answers(new_notebook(cells=[new_code_cell(
        "import math\nfirst = LIMITS[0]\nLIMITS.index(4)\ndef f():\n    LIMITS = []\n"
        "    LIMITS.append(1)", metadata=marks("a", solution=True))]))
    assert answers == {"math", "first", "f"}
    trusted = TrustedNamespace(remote(student("math = LIMITS = 'mine'")), answers)
    trusted.define(planned(0, new_code_cell("import math\nLIMITS = [3, 4]")), Budget(10))
    assert trusted.check(check_cell("assert LIMITS == [math.floor(3.5), 4]"), Budget(10)).passed


def test_a_students_memory_error_is_a_wrong_answer_and_the_checks_own_is_none():
    mine = checked("f(1)", student("def f(x): raise MemoryError('mine')"))
    assert str(mine.failed) == "mine" and not mine.lost
    assert checked("raise MemoryError").lost == "the check itself ran out of memory"


@pytest.mark.parametrize("source", [
    "f(1)", "try:\n    f(1)\nexcept Exception:\n    pass", "try:\n    f(1)\nexcept:\n    pass",
    "import contextlib\nwith contextlib.suppress(BaseException):\n    f(1)\nassert True"])
def test_a_check_whose_sandbox_died_is_lost_whatever_it_caught(source):
    guest = student()
    verdict = checked(source, lambda do, **fields: (guest if do == "kind" else dies)(do, **fields))
    assert verdict.lost == "exit code 1" and not verdict.passed


@pytest.mark.parametrize("source", [
    "while True: pass", "try:\n    while True: pass\nexcept BaseException:\n    pass",
    "for _ in range(f(10**12)): pass", "while True: print('x' * 1000)",
    "import time\ntime.sleep(60)"])
def test_a_check_that_does_not_end_is_ended(source):
    start = time.monotonic()
    verdict = checked(source, seconds=0.2)
    assert verdict.lost and verdict.late and time.monotonic() - start < 5
    assert sum(len(output.get("text", "")) for output in verdict.outputs) < 300_000


@pytest.mark.parametrize("end", ["raise SystemExit", "raise KeyboardInterrupt"])
def test_one_who_ends_the_grader_ends_no_check(end):
    """SIGTERM in the middle of a check is no verdict."""
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        checked(end)


def test_recursion_and_large_numbers_only_fail_the_check():
    verdict = checked("def deeper(): return deeper()\ndeeper()")
    assert type(verdict.failed) is RecursionError
    huge = student("def f(x): return 10**5000")
    assert checked("check.function(f, [(1,)], [1])", huge).failed is not None


def test_a_students_text_steers_no_terminal_and_is_bounded():
    bad = student('def f(x): raise ValueError("\\r\\x1b[2J\\x1b[32m\\u202e\\ud800" + "x" * 10**6)')
    verdict = checked("print(check.call)\ncheck.call(f, 1)", bad)
    text = json.dumps(verdict.outputs)
    assert len(text) < 10_000 and json.loads(text)
    for letter in ("\\u001b[2J", "\\u001b[32m", "\\u202e", "\\r", "\\ud8"):
        assert letter not in text
    printed = student('def f(x): return "\\x1b]0;title\\x07\\ud800"')
    assert "\\u001b]" not in json.dumps(checked("print(f(1))", printed).outputs)


def test_a_failed_check_shows_its_text_alone_and_others_their_line():
    (failed,) = checked("check.that(False, 'Think of the ranks.')").outputs
    assert failed.ename == "Failed" and failed.traceback == [
        f"{colors.bad('✗')} Think of the ranks."]
    (asserted,) = checked("x = f(1)\nassert x == 4").outputs
    assert asserted.ename == "AssertionError" and "assert x == 4" in "\n".join(asserted.traceback)
    assert "trusted.py" not in "\n".join(asserted.traceback)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["plain", "callable", "[1]", '{"dict": []}', '"\\ud800"', "ValueError"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["value", "raised", "cannot", "kind", "title", "record", "error", "names",
                         "text", "launches", "components", "notes", "exit", "output"]), inner,
        max_size=6), max_leaves=12)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_whatever_a_guest_answers_there_is_a_verdict(data):
    def guest(do: str, **fields: Any) -> dict:
        if do == "kind" and data.draw(st.booleans()):
            return {"kind": "callable"}
        return data.draw(st.dictionaries(st.sampled_from(
            ["value", "raised", "cannot", "kind", "title", "record", "error"]), JSON))

    for source in ("check.function(f, [(1,)], [2])", "assert f(1) == 2", "assert one == 1",
                   "check.raises(f, ValueError, (1,))", "check.script('code/x.sh', given=None)"):
        verdict = checked(source, guest)
        assert verdict.passed or verdict.failed is not None or verdict.lost
        json.dumps(verdict.outputs).encode()


def test_a_value_that_was_said_to_be_plain_and_is_not():
    def guest(do: str, **fields: Any) -> dict:
        return {"kind": "plain"} if do == "kind" else {"value": wire.dumps(1).decode() + "x"}

    assert isinstance(checked("assert one == 1", guest).failed, StudentNameError)


@pytest.mark.parametrize(("call", "says"), [
    ("check.script('code/x.sh')", "it has no reference job to compare with"),
    ("check.script('code/x.sh', only=['--lrr'], given=None)", "--lrr is not a flag of the trainer "
     "(nearest: --lr)"),
    ("check.script('code/x.sh', given={'runs': 3})", "given= is not what `lab build` writes"),
    ("check.script('code/x.sh', given=dict(runs=[]))", "malformed node"),
    ("check.script('code/x.sh', **{})", "it has no reference job to compare with")])
def test_a_script_check_that_would_fail_everybody_is_refused_before_anybody_is_graded(call, says):
    with pytest.raises(LabError) as caught:
        planned(0, new_code_cell(f"if 1:\n    job = {call}", metadata=marks(
            "script-check", grade=True, points=2)))
    assert says in str(caught.value) and "the cell script-check: check.script" in str(caught.value)
