"""tests/sharing.py: which tests stay on one worker of `make test`."""

import pytest

from tests import sharing
from tests.test_project import ROOT


@pytest.mark.parametrize("path", [*sharing.LONG, *sharing.TRACED])
def test_what_it_names_is_there(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("fixtures, units", [
    ({"cluster", "make_cluster"}, (sharing.LABS, sharing.CLUSTER, sharing.PAGES)),
    ({"traced", "dataset"}, (sharing.TRACED,))])
def test_all_that_use_a_costly_fixture_are_in_its_units(request, fixtures, units):
    """This checks the tests of this run."""
    users = [item.nodeid for item in request.session.items if fixtures <= {*item.fixturenames}]
    assert {sharing.unit(name) for name in users} <= {sharing.unit(one[0]) for one in units}, users


def test_all_of_a_unit_go_to_one_worker():
    for together in sharing.UNITS:
        assert len({sharing.unit(f"{start}::test_x") for start in together}) == 1


def test_other_files_are_units_of_their_own():
    names = [f"tests/data/test_{file}.py::test_{test}" for file in "ab" for test in "xy"]
    assert [sharing.unit(name) for name in names] == ["tests/data/test_a.py"] * 2 + [
        "tests/data/test_b.py"] * 2


def test_clusters_come_first():
    assert sharing.turn("tests/labs/test_run.py::test_y") < sharing.turn(
        "tests/slurmbox/test_x.py::test_y") < sharing.turn(
        "tests/browser/test_x.py::test_y") < sharing.turn("tests/data/test_x.py::test_y")
