"""Every lab's checks say the same of a student in another process, seen through stand-ins only."""

import pytest

from labcore import shipping
from labkit.build import Cell, Lab
from tests.labs import elsewhere, graded
from tests.labs.test_labs import lab_of, sample_labs

pytestmark = pytest.mark.slow

# Mutants of an answer that are tried.
EACH = [1, pytest.param(2, marks=pytest.mark.stress)]


def rests_on(lab: Lab, check: Cell) -> set[str]:
    """The grade_ids of all answers that a check's result depends on."""
    found, more = set(), lab.answers_of(check)
    while more:
        found |= more
        uses = set().union(*(lab.answers[name].uses for name in more))
        more = {name for name, answer in lab.answers.items() if answer.defines & uses} - found
    return found


def together(lab: Lab, each: int) -> list[dict[str, Cell]]:
    """The first `each` mutants of every tested answer in as few rounds as it takes for every one to
    meet its checks alone: all else that those rest on is right."""
    needs = {check.grade_id: rests_on(lab, check) for check in lab.checks.values()}
    checked = {name: set().union(*(needs[check.grade_id] for check in checks))
               for name, checks in lab.tested_by.items() if checks}
    rounds: list[dict[str, Cell]] = []
    for name in checked:
        for mutant in lab.mutants[name][:each]:
            fits = (one for one in rounds if name not in one and not checked[name] & set(one)
                    and not any(name in checked[other] for other in one))
            free = next(fits, None)
            if free is None:
                rounds.append(free := {})
            free[name] = mutant
    return rounds


@pytest.mark.parametrize("each", EACH)
@sample_labs  # tests/grader/test_labs.py grades labs with every kind of check in the sandbox
def test_checks_work_across_processes(path, each, tmp_path):
    home = tmp_path / "workspace"
    shipping.make_workspace(home)
    lab = lab_of(path)
    assert elsewhere.run(lab, home, {}).failed() == set()
    rounds = together(lab, each)
    for mutants in rounds:
        checks = {check.grade_id for name in mutants for check in lab.tested_by[name]}
        found = elsewhere.run(
            lab, home, {name: mutant.source for name, mutant in mutants.items()}, checks)
        for name, mutant in mutants.items():
            errors = [found.checks[check.grade_id] for check in lab.tested_by[name]]
            texts = [graded.text(error) for error in errors if error]
            assert any(mutant.hint in text for text in texts), f"{mutant.title}: {texts}"
    assert sum(map(len, rounds)) == sum(
        len(lab.mutants[name][:each]) for name, checks in lab.tested_by.items() if checks)
