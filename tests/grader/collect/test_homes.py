"""A hub's homes: students write all that is in them."""

from __future__ import annotations

import datetime
import json
import os

import pytest

from grader.collect import homes, which
from grader.course import receipts
from labcore import shipping
from labcore.atomic import write_atomic
from labcore.errors import LabError
from tests.grader.collect.conftest import NAME, put

BELOW = "work/notebooks"


@pytest.fixture
def root(tmp_path):
    """Grace has not logged in yet, jm1 only just."""
    folder = tmp_path / "homes"
    put(folder, {f"ada/{BELOW}/read.me": b"", "jm1/.bashrc": b""})
    (folder / "grace").mkdir()
    return folder


@pytest.fixture
def take_homes(take, root):
    def take_homes(**options):
        return take(root, below=BELOW, **options)

    return take_homes


@pytest.mark.slow
def test_a_notebook_in_its_place_is_taken(take_homes, submitted, root, answer):
    path = f"ada/{BELOW}/{NAME}.ipynb"
    put(root, {path: answer()})
    lines = take_homes()
    assert set(lines) == {path}
    assert (lines[path].student, lines[path].lab, lines[path].verdict) == ("ada", NAME, "new")
    assert submitted("ada") == answer() and submitted("grace") is None
    assert take_homes()[path].verdict == "same"


def test_saved_again_is_another_attempt(take_homes, submitted, root, answer):
    path = f"ada/{BELOW}/{NAME}.ipynb"
    for text in ("# 1", "# 2"):
        write_atomic(root / path, answer(text))  # as JupyterLab does
        assert take_homes()[path].verdict == "new"
        assert submitted("ada") == answer(text)


def test_the_time_is_the_file_systems_and_no_students(take_homes, course, root, answer):
    path = f"ada/{BELOW}/{NAME}.ipynb"
    put(root, {path: answer()})
    os.utime(root / path, (1.5e9, 1.5e9))
    before = datetime.datetime.now(datetime.UTC)
    line = take_homes()[path]
    assert abs(datetime.datetime.fromisoformat(line.when) - before) < datetime.timedelta(minutes=1)
    assert receipts.read(course)["ada", NAME][0].said_by == homes.SAID_BY


def test_the_instructors_word_on_the_time_holds(take_homes, root, answer):
    path = f"ada/{BELOW}/{NAME}.ipynb"
    put(root, {path: answer()})
    closed = datetime.datetime(2026, 1, 31, 23, 59, tzinfo=datetime.UTC)
    assert take_homes(received=closed)[path].when == closed.isoformat()


@pytest.mark.parametrize("elsewhere", [
    f"ada/{NAME}.ipynb", f"ada/{BELOW}/{NAME}-Copy1.ipynb", f"ada/{BELOW}/worked/{NAME}.ipynb",
    f"ada/grace/{BELOW}/{NAME}.ipynb", f"ada/work/grace/{BELOW}/{NAME}.ipynb"])
def test_what_lies_elsewhere_is_nobodys(take_homes, submitted, root, answer, elsewhere):
    put(root, {elsewhere: answer()})
    assert take_homes() == {}
    assert submitted("ada") is None and submitted("grace") is None


@pytest.mark.parametrize("link", ["ada", "ada/work", f"ada/{BELOW}", f"ada/{BELOW}/{NAME}.ipynb"])
def test_a_link_leads_to_no_other_home(take_homes, submitted, root, answer, link):
    put(root, {f"grace/{BELOW}/{NAME}.ipynb": answer()})
    place = root / link
    if place.is_dir():
        place.rename(root.parent / "away")
    place.symlink_to(root / link.replace("ada", "grace", 1))
    assert take_homes()[f"ada/{BELOW}/{NAME}.ipynb"].verdict == "refused"
    assert submitted("ada") is None and submitted("grace") == answer()


def test_a_named_pipe_does_not_stop_the_others(take_homes, submitted, root, answer):
    put(root, {f"grace/{BELOW}/{NAME}.ipynb": answer()})
    os.mkfifo(root / "ada" / BELOW / f"{NAME}.ipynb")
    assert "special file" in take_homes()[f"ada/{BELOW}/{NAME}.ipynb"].why
    assert submitted("grace") == answer()


def test_whoever_is_not_on_the_roster_is_listed(take_homes, submitted, root, answer):
    put(root, {f"eve/{BELOW}/{NAME}.ipynb": answer()})
    assert "not on the roster" in take_homes()[f"eve/{BELOW}/{NAME}.ipynb"].why
    assert submitted("eve") is None


def test_a_notebook_as_it_was_given_out_is_no_hand_in(take_homes, submitted, root, answer,
                                                      monkeypatch, tmp_path):
    """Every home has all labs from the first login on; outputs and metadata change by opening."""
    put(tmp_path / "checkout", {f"notebooks/{NAME}.ipynb": answer("# to do")})
    monkeypatch.setattr(which, "CHECKOUT", tmp_path / "checkout")
    opened = json.loads(answer("# to do"))
    opened["metadata"]["opened"] = True
    put(root, {f"ada/{BELOW}/{NAME}.ipynb": json.dumps(opened).encode(),
               f"grace/{BELOW}/{NAME}.ipynb": answer()})
    assert "unchanged from the release" in take_homes()[f"ada/{BELOW}/{NAME}.ipynb"].why
    assert submitted("ada") is None and submitted("grace") == answer()


@pytest.mark.parametrize("hostile", [b"{", b"[" * 100_000, b'{"cells": 3}', b'{"cells": [[]]}'])
def test_what_is_no_notebook_counts_as_begun(course, monkeypatch, tmp_path, answer, hostile):
    put(tmp_path, {f"notebooks/{NAME}.ipynb": answer() + b" " * 100_000})
    monkeypatch.setattr(which, "CHECKOUT", tmp_path)
    assert not which.is_untouched(course, NAME, hostile)


@pytest.mark.parametrize("worked_is_there", [True, False])
def test_a_lab_is_known_with_and_without_its_way_out(course, monkeypatch, tmp_path,
                                                     worked_is_there):
    """Without a worked notebook, homes get the lab without links to it."""
    text = "Do it." + shipping.WORKED_LINK.format("worked/x.ipynb")
    given = {"cells": [{"cell_type": "markdown", "source": [text]}]}
    path = tmp_path / "notebooks" / f"{NAME}.ipynb"
    put(tmp_path, {f"notebooks/{NAME}.ipynb": json.dumps(given).encode()})
    if worked_is_there:
        put(tmp_path, {f"notebooks/worked/{NAME}.ipynb": b""})
    monkeypatch.setattr(which, "CHECKOUT", tmp_path)
    assert (b"Stuck" in shipping.content_of(path)) == worked_is_there
    assert which.is_untouched(course, NAME, shipping.content_of(path))


@pytest.mark.parametrize("below, named", [("/work", "absolute"), ("../x", "leads out"),
                                          ("", "empty"), ("work/", "empty")])
def test_a_folder_that_is_none_of_a_home_is_refused(take, root, below, named):
    with pytest.raises(LabError, match=f"--below.*{named}"):
        take(root, below=below)


def test_a_source_that_is_no_folder_is_refused(take, root):
    with pytest.raises(LabError, match="is not a folder: --below"):
        take(root / "none", below=BELOW)


@pytest.mark.parametrize("flag", [["--keep-times"], ["--pattern", "{student}_{any}.ipynb"]])
def test_flags_that_do_not_go_together(command, root, flag):
    done = command("collect", str(root), "--below", BELOW, *flag)
    assert done.returncode == 1 and f"--below takes no {flag[0]}" in done.stderr


def test_the_command(command, submitted, root, answer):
    put(root, {f"ada/{BELOW}/{NAME}.ipynb": answer()})
    done = command("collect", str(root), "--below", BELOW, "--lab", NAME)
    assert done.returncode == 0 and "1 new" in done.stdout, done.stderr
    assert submitted("ada") == answer()
