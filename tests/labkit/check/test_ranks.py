"""Drivers on real ranks: values, deadlocks, exceptions, and records that a student forged."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from grader.run.channel import SandboxDied
from grader.run.proxies import Function
from grader.run.remote import Remote, SandboxLost
from labkit import check
from labkit.check import on_ranks, wire
from labkit.check.cases import MOST_RANKS
from labkit.check.checks import Failed
from labkit.check.hints import INNER
from labkit.check.masking import KernelMasks
from labkit.check.sides import RAISED, SimulatedCluster, checking_on, current_side
from labkit.guest.serving import Guest
from warmranks import warnings_once

STUDENT = """
import time
import torch
import torch.distributed as dist

def all_reduce(x):
    {body}

def driver(length, scale=1.0):
    x = scale * (dist.get_rank() + 1.0) * torch.arange(length)
    all_reduce(x)
    return x
"""
RING = """rank, world = dist.get_rank(), dist.get_world_size()
    passed = x.clone()
    for _ in range(world - 1):
        sent, came = dist.isend(passed, (rank + 1) % world), torch.empty_like(x)
        dist.recv(came, (rank - 1) % world)
        sent.wait()
        x += came
        passed = came"""
DEADLOCK = """rank, world = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.empty_like(x), (rank - 1) % world)
    dist.send(x, (rank + 1) % world)"""
CASES = [{"length": 5}, {"length": 3, "scale": 2.0}]


def expected(ranks: int, length: int, scale: float = 1.0) -> list[list[float]]:
    return [[scale * ranks * (ranks + 1) / 2 * at for at in range(length)]] * ranks


def own(ranks: int, length: int, scale: float = 1.0) -> list[list[float]]:
    return [[scale * (rank + 1) * at for at in range(length)] for rank in range(ranks)]


HINTS = {"Each rank still has its own tensor.": own, "Every rank waits to receive.": "deadlock"}


def student(body: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(STUDENT.format(body=body), "<cell 1>", "exec"), names)
    return names


class InProcess:
    """A guest's side of the frames, in this process."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.user_ns, self.guest = names, Guest(self, self)

    def take(self) -> list:
        return []

    def __call__(self, do: str, exchange: Any = None, **fields: Any) -> dict:
        if do == "ranks":  # as labkit.guest.router does
            task = self.guest.task(fields["name"])
            if "problem" in task:
                return {"outcome": {"state": RAISED, "text": task["problem"]}}
            return task if "task" not in task else {"outcome": on_ranks.start(
                base64.b64decode(task["task"]), fields["ranks"], fields["limit"], exchange)}
        return json.loads(json.dumps(self.guest.does[do](**fields)))


def remote(ask: Any) -> Remote:
    def dies(*_: Any) -> dict:
        raise SandboxDied("exit code 1")

    return Remote(ask, "seed", dies)


def failure(driver: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(Failed) as caught:
        check.ranks(driver, *arguments, **keywords)
    return str(caught.value)


def test_a_right_answer_passes_on_every_number_of_ranks(capsys):
    runs = check.ranks(student(RING)["driver"], CASES, expected, ranks=[1, 2, 3], hints=HINTS)
    assert "driver: right on 1, 2, and 3 ranks in 2 cases" in capsys.readouterr().out
    assert [len(run.values) for run in runs] == [1, 1, 2, 2, 3, 3]
    last = runs[-1]
    assert last.values[0].tolist() == [0.0, 12.0, 24.0]
    assert {call.peer for call in last.calls(1, "send")} == {2}
    assert last.bytes(1, "send") == 2 * 3 * 4 and not last.calls(1, "all_reduce")
    assert DisplayFormatter().format(runs) == ({}, {})  # the check's cell shows its line only


def test_without_expected_values_the_check_judges_what_the_ranks_return(capsys):
    (run,) = check.ranks(student(RING)["driver"], [{"length": 2}], None, ranks=2)
    assert [values.tolist() for values in run.values] == [[0.0, 3.0]] * 2
    assert "driver: ran on 2 ranks in 1 case" in capsys.readouterr().out


@pytest.mark.parametrize(("body", "words"), [
    ("pass", ["on rank 0 of 3. Each rank still has its own tensor."]),
    (DEADLOCK, ["driver(length=5) on 3 ranks is a deadlock", "rank 0 waits in recv from rank 2",
                "Every rank waits to receive."]),
    ("raise NotImplementedError", ["raised NotImplementedError", "waits for your answer"]),
    ("x[dist.get_rank() + 3]", ["rank 2 of 3 raised IndexError", "in all_reduce"]),
    ("x *= dist.get_rank()", ["on rank 0 of 3: at [1]"])])
def test_a_wrong_answer_is_told_what_is_wrong(body, words):
    said = failure(student(body)["driver"], CASES, expected, ranks=3, hints=HINTS)
    for word in words:
        assert word in said


MISTAKES = [
    ("return", "x = all_reduce(x)\n    return x", "does the function end without `return`?"),
    ("return", "return all_reduce(x).tolist()", "Something is None here."),
    ("x.sumup()", "", "Tensor has no `sumup`, which the line below uses."),
    ("x += torch.ones(len(x) + 1)", "", "shapes that do not fit together"),
    ("x.view(-1) @ torch.ones(len(x), dtype=torch.float64)", "", "different dtypes here"),
    ("all_reduce(x, 1)", "", "the line that begins with def"),
    ("from torch import sumup", "", "torch does not define `sumup`")]


@pytest.mark.parametrize(("body", "end", "says"), MISTAKES, ids=[says for *_, says in MISTAKES])
def test_common_mistakes_are_explained(body, end, says):
    names = student(body)
    exec(compile(STUDENT.format(body=body).replace("all_reduce(x)\n    return x", end or
                 "all_reduce(x)\n    return x"), "<cell 1>", "exec"), names)
    said = failure(names["driver"], CASES[:1], expected, ranks=1)
    assert says in said
    assert not INNER.search(said)
    if "Error" in said:
        assert said.index("rank 0 of 1 raised ") < said.index(says) < said.index("<cell 1>")


def test_a_rank_that_receives_too_much_is_told_so():
    body = """if dist.get_rank() == 0:
        dist.send(torch.zeros(9), 1)
    else:
        dist.recv(x, 0)"""
    assert "sender and receiver need tensors of the same shape" in failure(
        student(body)["driver"], CASES[:1], expected, ranks=2)


def test_a_students_name_is_no_argument_of_a_driver():
    side = remote(lambda do, **fields: {})
    driver, other = Function("driver", side), Function("other", side)
    for ask in (lambda *given: side.call(driver, *given),
                lambda *given: side.ranks(driver, 2, *given, 10),
                lambda *given: side.gpus(driver, SimulatedCluster("h100:2"), *given, 10)):
        for given in (((other,), {}), ((), {"x": other})):
            with pytest.raises(wire.CannotCross, match="other is the student's: it cannot be an"):
                ask(*given)


def test_what_cannot_cross_is_named():
    names = student("pass")
    exec("def driver(length): return {1, 2}", names)
    assert "a value of type set cannot be checked" in failure(
        names["driver"], [{"length": 1}], expected, ranks=2)


@pytest.mark.parametrize("options", [{"cases": []}, {"ranks": 0}, {"ranks": 17}, {"ranks": []}])
def test_a_check_without_a_case_is_an_error_of_its_author(options):
    with pytest.raises(ValueError, match=r"check\.ranks"):
        check.ranks(student(RING)["driver"], **{"cases": CASES, "expected": expected, **options})


def test_masked_names_are_refused_on_ranks_too(monkeypatch):
    names = student("dist.all_reduce(x)")
    monkeypatch.setattr(current_side(), "masks", KernelMasks(["torch.distributed.all_reduce"]))
    assert "torch.distributed.all_reduce is not available to your answers" in failure(
        names["driver"], CASES, expected, ranks=2)


def test_the_same_check_holds_through_a_guest():
    other = remote(InProcess(student(RING)))
    with checking_on(other):
        (run,) = check.ranks(Function("driver", other), CASES[:1], expected, ranks=2)
    assert run.bytes(0, "send") == 20
    other = remote(InProcess(student(DEADLOCK)))
    with checking_on(other):
        assert "Every rank waits to receive." in failure(
            Function("driver", other), CASES, expected, ranks=2, hints=HINTS)


EACH = """
import torch.distributed as dist

def driver(values, more):
    return {body}
"""
LEFT = [check.by_rank([[1.5, 2.0], [7.25], [9.0]]), {"scale": check.by_rank([1, 2, 3])}]


def each(body: str) -> Any:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(EACH.format(body=body), "<cell 1>", "exec"), names)
    return names["driver"]


def handed_out(ranks, values, more):
    return [[values[rank], more["scale"][rank]] for rank in range(ranks)]


def test_each_rank_receives_its_own_element_and_the_check_knows_all():
    driver = each("[values, more['scale']]")
    runs = check.ranks(driver, [LEFT], handed_out, ranks=[2, 3])
    assert [run.values for run in runs] == [[[[1.5, 2.0], 1], [[7.25], 2]],
                                           [[[1.5, 2.0], 1], [[7.25], 2], [[9.0], 3]]]
    other = remote(InProcess({"driver": driver}))
    with checking_on(other):
        check.ranks(Function("driver", other), [LEFT], handed_out, ranks=2)


def test_a_message_shows_the_elements_of_its_rank_or_of_all():
    own_only = failure(each("[values, 2]"), [LEFT], handed_out, ranks=2)
    assert own_only.startswith("driver([1.5, 2.0], {'scale': 1}) returned [[1.5, 2.0], 2] on rank "
                               "0 of 2")
    both = failure(each("values[dist.get_rank()]"), [LEFT], handed_out, ranks=2)
    assert both.startswith("driver(check.by_rank([[1.5, 2.0], [7.25]]), {'scale': "
                           "check.by_rank([1, 2])}) on 2 ranks")


def test_too_few_elements_and_calls_without_ranks_are_errors_of_the_author():
    with pytest.raises(ValueError, match=r"check\.by_rank: 3 elements for 4 ranks"):
        check.ranks(each("values"), [LEFT], handed_out, ranks=4)
    with pytest.raises(TypeError, match=r"check\.function: check\.by_rank"):
        check.function(each("values"), [LEFT], [1])
    with pytest.raises(TypeError, match=r"check\.gpus: check\.by_rank"):
        check.gpus(each("values"), LEFT, "h100:2")


def test_what_is_drawn_for_each_rank_differs_and_fits_every_number_of_ranks():
    (case,) = check.draw(1, values=check.for_each_rank(check.between(-9, 9)), more=[1.0])
    assert case == check.draw(1, values=check.for_each_rank(check.between(-9, 9)), more=[1.0])[0]
    assert len(set(case["values"].elements)) == MOST_RANKS
    check.ranks(each("values"), [case], lambda ranks, values, more: values, ranks=[1, 3])


def returned(*values: Any) -> list[str]:
    return [base64.b64encode(b"v" + wire.dumps(value)).decode() for value in values]


GOOD = {"state": "returned", "values": returned(0.0, 1.0)}


@pytest.mark.parametrize("change", [
    {"state": "passed"}, {"state": "raised", "text": 1}, {"values": returned(0.0)},
    {"state": np.zeros(2).tolist()}, {"values": None}, {"values": [1, 2]}, {"values": ["", ""]},
    {"values": ["x", "x"]}, {"values": ["eA==", "eA=="]}])
def test_a_forged_outcome_is_no_verdict(change):
    broker = on_ranks.CaseBroker(2, (), {})
    assert on_ranks.read(GOOD, broker).values == [0.0, 1.0]
    with pytest.raises(on_ranks.Forged):
        on_ranks.read(GOOD | change, broker)
    other = remote(lambda do, **fields: {"outcome": GOOD | change})
    with pytest.raises(SandboxLost):
        other.ranks(Function("driver", other), 2, (), {}, 10)


def test_ranks_that_were_too_slow_are_no_verdict_when_graded():
    late = {"state": "late", "text": "rank 0 of 2 did not finish within 40 s"}
    other = remote(lambda do, **fields: {"outcome": late})
    with pytest.raises(SandboxLost):
        other.ranks(Function("driver", other), 2, (), {}, 40)
    assert other.unmeasured == "out of time on 2 ranks (40 s)"


def test_a_warning_of_every_rank_in_every_case_is_shown_once(capsys):
    names: dict[str, Any] = {}
    exec("""
import sys
import torch.distributed as dist

def driver(n):
    sys.stderr.write("/x.py:3: UserWarning: tensors\\nof two lines\\n  line = 3\\n")
    print("rank", dist.get_rank(), file=sys.stderr)
    return n
""", names)
    warnings_once._shown.clear()
    check.ranks(names["driver"], cases=[(1,), (2,)], ranks=2, expected=[[1, 1], [2, 2]])
    said = capsys.readouterr().err
    assert said.count("of two lines") == 1
    assert sorted(said.split()).count("rank") == 4  # what the student prints stays


def test_the_stacks_of_a_deadlock_have_the_student_s_lines_only():
    """Not those of the masks, which run the driver in a notebook."""
    names: dict[str, Any] = {}
    source = ("import torch\nimport torch.distributed as dist\n\ndef driver():\n"
              "    dist.recv(torch.zeros(1), 1 - dist.get_rank())")
    exec(compile(source, "/tmp/cell.py", "exec"), names)
    current_side().mask(["minimegatron.formulas"])
    try:
        with pytest.raises(Failed, match="is a deadlock") as failed:
            check.ranks(names["driver"], cases=[()], ranks=2, expected=[[1, 1]],
                        hints={"A hint.": "deadlock"})
    finally:
        current_side().masks = None
    said = str(failed.value)
    assert 'File "/tmp/cell.py", line 5' in said and said.endswith("\nA hint.")
    assert "labkit" not in said and "torch/distributed" not in said


def test_hints_that_no_value_can_trigger_are_refused():
    driver, stuck = student(RING)["driver"], {"Every rank waits.": "deadlock"}
    with pytest.raises(ValueError, match=r"check\.ranks: with expected=None, .* hint 'Wrong"):
        check.ranks(driver, [{"length": 2}], None, ranks=2, hints={**stuck, "Wrong.": [[2, 2]]})
    assert len(check.ranks(driver, [{"length": 2}], None, ranks=2, hints=stuck)) == 1
