"""Checks with partial credit: what `lab build` refuses, and what it finds in them."""

import ast

import pytest

from labcore.errors import LabError
from labkit.build import read
from labkit.build.parts import split
from tests.labkit.build.conftest import line_of

CHECK = """found = check.call(sums, [2, 3, 4])
check.that(found != [2, 3, 4], "It forgets what came before.")
check.that(found == [2, 5, 9], "It counts calls, not numbers.")
"""
PARTS = """found = check.call(sums, [2, 3, 4])
with check.parts():
    with check.part(1, "remembers"):
        check.that(found != [2, 3, 4], "It forgets what came before.")
    with check.part(0.5, "adds"):
        right = [2, 5, 9]
        check.that(found == right, "It counts calls, not numbers.")
"""
ADDS = '    with check.part(0.5, "adds"):'


def test_parts_are_found_with_what_comes_before_them(author):
    lab = read(author((CHECK, PARTS)))
    first, second = split(lab.checks["counter-check"].tree)
    assert [(part.points, part.title) for part in (first, second)] == [(1, "remembers"),
                                                                      (0.5, "adds")]
    assert ast.unparse(second.tree).split("\n")[:2] == ["found = check.call(sums, [2, 3, 4])",
                                                         "right = [2, 5, 9]"]
    assert split(lab.checks["script-check"].tree) == []


@pytest.mark.parametrize(("old", "new", "said", "piece"), [
    ("check.part(1,", "check.part(2,", "its parts sum to 2.5 points, but the check is worth 1.5",
     None),
    ("check.part(1,", "check.part(one,", "must be a literal number above 0", "part(one"),
    ("check.part(1,", "check.part(-1,", "must be a literal number above 0", "part(-1"),
    ("check.part(1,", "check.part(True,", "must be a literal number above 0", "part(True"),
    ('"remembers")', '"")', "must be a literal string of one line", 'part(1, "")'),
    ('"remembers")', '"adds")', "two parts are called 'adds'", ADDS),
    ('(1, "remembers")', '(1, title="remembers")', "write both arguments out", "title="),
    (ADDS, "    if found:", "check.parts() may contain only parts", "    if found"),
    (ADDS, '    with check.part(0.5, "adds") as adds:', "may contain only parts", " as adds"),
    ("with check.parts():", "if True:", "must be the last statement", "remembers"),
    ("with check.parts():", "with check.parts(2):", "`with check.parts():` must be the last",
     "with check.parts(2)"),
    ("        right = ", "        check.part\n        right = ", "may only be used as",
     "        check.part\n"),
    ("        check.that(found == right, \"It counts calls, not numbers.\")\n", "        right\n",
     "part 'adds' checks nothing", "right = "),
    ("        right = [", "        found = right = [", "binds found, which is bound before",
     "found = right"),
    ("        check.that(found != [2", "        right = 3\n        check.that(found != [2", None,
     None),
    ("        check.that(found != [2", "        check.that(right != [2", "uses right of another "
     "part", "check.that(right"),
    (ADDS, f"    ### BEGIN HIDDEN TESTS\n{ADDS}", "hidden tests may not hide a whole part", None),
])
def test_parts_that_are_refused(author, old, new, said, piece):
    assert old in PARTS
    text = PARTS.replace(old, new)
    path = author((CHECK, text + "    ### END HIDDEN TESTS\n" * ("HIDDEN" in new)))
    if said is None:
        read(path)
        return
    with pytest.raises(LabError) as error:
        read(path)
    lines = [line for line in str(error.value).split("\n") if said in line]
    assert lines, str(error.value)
    if piece:
        assert lines[0].startswith(f"{path}:{line_of(path, piece)}:")
