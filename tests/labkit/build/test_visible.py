"""Students read the visible part of a check: it must not be the answer. And mutants as edits."""

import pytest

from labcore.errors import LabError
from labkit.build import read
from labkit.build.reading import edited
from labkit.build.visible import without_hidden


@pytest.mark.parametrize(("old", "new"), [
    ("expected=[16, 2]", "expected=lambda micro_batch, ranks: micro_batch * ranks"),
    ("expected=[16, 2]", "expected=[case * 2 for case in (8, 1)]"),
    ("expected=[16, 2]", "expected=list((16, 2))"),
    ("expected=[16, 2]", "expected=[{4 * n for n in (4,)}, 2]"),
    ("check.function(\n", "wrong = {'Halved.': lambda micro_batch, ranks: ranks}\n"
     "check.function(sums, [()], [1], hints=wrong)\ncheck.function(\n"),
    ("check.function(\n", "check.schedule(sums, [(2, 2)], bubble=lambda p, m: 0.5)\n"
     "check.function(\n"),
    ("check.function(\n", "check.schedule(sums, [(2, 2)], live=[stages for stages in (2, 2)])\n"
     "check.function(\n"),
    ("check.function(\n", "wrong = {'Halved.': lambda p, m: []}\n"
     "check.schedule(sums, [(2, 2)], hints=wrong)\ncheck.function(\n"),
    ("batch of its own.\": [4, 2]", "batch of its own.\": lambda micro_batch, ranks: micro_batch"),
])
def test_a_formula_in_the_visible_part_is_refused(author, old, new):
    with pytest.raises(LabError, match="students can read the answer in this formula"):
        read(author((old, new)))


def test_values_may_be_spelled_with_signs_and_in_lists(author):
    assert read(author(("expected=[16, 2]", "expected=[-(-16), 1 + 1]")))


def test_hidden_lines_can_be_taken_out_or_left_blank():
    source = "a\n### BEGIN HIDDEN TESTS\nb\n### END HIDDEN TESTS\nc"
    assert without_hidden(source) == "a\nc"
    assert without_hidden(source, blank=True) == "a\n\n\n\nc"


SCRIPT = "%%writefile a.sh\nx=1\ny=2\nz=3"


@pytest.mark.parametrize(("edit", "made"), [
    ("-y=2\n+y=5", "%%writefile a.sh\nx=1\ny=5\nz=3"),
    ("-y=2", "%%writefile a.sh\nx=1\nz=3"),
    ("-x=1\n-y=2\n+w=0", "%%writefile a.sh\nw=0\nz=3"),
    ("-x=1\n+x=7\n-z=3\n+z=9\n+q=1", "%%writefile a.sh\nx=7\ny=2\nz=9\nq=1"),
])
def test_an_edit_makes_the_whole_mutant(edit, made):
    assert edited(SCRIPT, edit) == made


@pytest.mark.parametrize("edit", ["-none=1\n+x", "-x=\n+x", "-x=1\n-z=3"])
def test_an_edit_of_what_is_not_there_is_refused(edit):
    with pytest.raises(ValueError, match="occurs 0 times in the answer"):
        edited(SCRIPT, edit)
