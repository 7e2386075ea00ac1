"""Pass marks on modeled figures are at least twice as wide as the model's error, so none separates
two answers whose order might be different on a real GPU."""

import ast
import re

import pytest

from labkit.build import Role
from labkit.check import Failed, pass_mark
from labkit.check.measure import Refused
from layout_estimator.requests import EstimateError, estimate
from tests.labs import graded
from tests.labs.test_labs import SOLUTIONS, home, lab_of  # noqa: F401  home is a fixture

FIGURES = {"milliseconds", "tokens_per_second", "teraflops_per_gpu", "share_of_peak", "bubble",
           "communication", "memory", "peak_memory", "exposed", "mfu", "seconds", "peak",
           "exposed_compute"}
# Its checks compare two programs on the same GPU: tests/labs/test_eight_bits.py has their margins.
PAIRS = {"13_eight_bits"}
CHECK = re.compile(r'^# %%.*(?: check="|"grade_id": ")([\w-]+?)(?:-check)?"')


def marked():
    """Each check with a pass mark. The cells are found without reading the lab, which would take a
    second in every worker of the tests."""
    found = []
    for path in SOLUTIONS:
        for cell in re.split(r"^(?=# %%)", path.read_text(), flags=re.MULTILINE):
            if "check.pass_mark" in cell:
                # A driver on virtual GPUs takes seconds; an estimate does not.
                marks = [pytest.mark.stress] if "check.gpus" in cell else []
                name = CHECK.match(cell)[1]
                found.append(pytest.param(path, f"{name}-check", id=f"{path.stem}-{name}",
                                          marks=marks))
    return found


def names_of(node):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def is_modeled(node, costs, figures):
    """Whether an expression contains a figure of one of the costs, or a figure."""
    return bool(figures & names_of(node)) or any(
        isinstance(one, ast.Attribute) and one.attr in FIGURES and costs & names_of(one.value)
        for one in ast.walk(node))


def unmarked(source):
    """The comparisons of modeled figures in a check that are not in a check.pass_mark."""
    costs, figures, marked, found = set(), set(), set(), []
    nodes = sorted((node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")),
                   key=lambda node: (node.lineno, node.col_offset))
    for node in nodes:
        if isinstance(node, ast.Assign):
            bound = set().union(*map(names_of, node.targets))
            text = ast.unparse(node.value)
            if "check.figures" in text or "check.gpus" in text:
                costs |= bound
            elif is_modeled(node.value, costs, figures):
                figures |= bound
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "check.pass_mark":
            marked |= set(ast.walk(node))
        elif (isinstance(node, ast.Compare) and node not in marked
              and is_modeled(node, costs, figures)):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(("source", "found"), [
    ("cost = check.figures(job, 'virtual:v100')\ncheck.that(cost.milliseconds < 9, 'slow')",
     ["cost.milliseconds < 9"]),
    ("one, two = [check.gpus(f, g) for g in both]\nstep = two.milliseconds - one.milliseconds\n"
     "check.that(step / 2 <= 9, 'slow')", ["step / 2 <= 9"]),
    ("cost = check.figures(job, 'virtual:v100')\ncheck.that(cost.fits, 'large')\n"
     "check.pass_mark(cost.bubble, 'idle', error=cost.error, below=0.3)", []),
])
def test_a_comparison_of_modeled_figures_is_found(source, found):
    assert unmarked(source) == found


@pytest.mark.parametrize("path", [path for path in SOLUTIONS if path.stem not in PAIRS],
                         ids=lambda path: path.stem)
def test_every_modeled_figure_has_a_pass_mark_that_states_its_error(path):
    assert {cell.grade_id: found for cell in lab_of(path).of(Role.CHECK)
            if (found := unmarked(cell.source))} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "check"), marked())
def test_the_reference_is_twice_the_error_away(path, check, home, monkeypatch):  # noqa: F811
    def estimated(words):  # in this process, which imports torch once
        from layout_estimator.planner import as_json

        try:
            return as_json(estimate([word for word in words if word != "--estimate"]).plan)
        except EstimateError as error:
            raise Refused(str(error)) from None

    monkeypatch.setattr("labkit.check.measure.run_here", estimated)
    outcome = graded.run(lab_of(path), home, only={check})
    assert outcome.checks == {check: None}
    marks = outcome.marks[check]
    assert marks and [text for mark in marks if (text := mark.too_close())] == []


def test_a_mark_within_twice_the_error_is_too_close():
    assert not graded.Mark(100.0, 117.0, 0.08, True).too_close()
    assert "15.0% away" in graded.Mark(100.0, 115.0, 0.08, True).too_close()
    assert "15.0% away" in graded.Mark(115.0, 100.0, 0.08, False).too_close()
    assert "not known" in graded.Mark(115.0, 1.0, None, False).too_close()


def test_a_pass_mark_is_below_or_above():
    pass_mark(1.0, "slow", error=0.1, below=2.0)
    pass_mark(2.0, "slow", error=0.1, above=2.0)
    with pytest.raises(Failed, match="slow"):
        pass_mark(2.0, "slow", error=0.1, below=2.0)
    with pytest.raises(ValueError, match="below= or above="):
        pass_mark(1.0, "slow", error=0.1, below=2.0, above=0.5)
