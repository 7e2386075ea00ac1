"""The harness itself: it must see a check that accepts too much, and one that says too little."""

import pytest

from labcore import shipping
from labkit import check
from labkit.build import read
from labkit.build.stubs import unanswered
from tests.labkit.build.conftest import author, root  # noqa: F401
from tests.labs import graded


@pytest.fixture
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(made)
    return made


def test_a_sound_lab_has_nothing_unproven(author, home):  # noqa: F811
    lab = read(author())
    assert graded.run(lab, home).failed() == set()
    assert graded.run(lab, home, lambda cell: unanswered(cell.source)).failed() == set(lab.checks)
    assert graded.unproven(lab, home) == []


@pytest.mark.parametrize(("change", "said"), [
    (("    return micro_batch + ranks", "    return ranks * micro_batch"), "accepted"),
    (('hint="nobody adds"', 'hint="every rank reads"'), "'every rank reads' is not in"),
    (("expected=[16, 2]", "expected=lambda micro_batch, ranks: [][ranks]"),
     "the check breaks: IndexError"),
])
def test_a_check_that_is_not_sound_is_seen(author, home, change, said):  # noqa: F811
    from labkit.build.problems import Problems
    from labkit.build.reading import read_into

    path = author(change)
    lab = read_into(path, Problems(path))  # some of these the build itself refuses
    assert any(said in sentence for sentence in graded.unproven(lab, home))


def test_a_check_ends_at_the_part_that_gives_the_hint():
    with (graded.ending_at("off by one"), pytest.raises(check.Failed, match="off by one"),
          check.parts()):
        with check.part(1, "another error"):
            check.that(False, "twice as many")
        with check.part(1, "the hint"):
            check.that(False, "off by one")
        pytest.fail("the check went on")
    with pytest.raises(check.Failed, match="1 of 2 points"), check.parts():
        with check.part(1, "the hint"):
            check.that(False, "off by one")
        with check.part(1, "what follows"):
            pass
