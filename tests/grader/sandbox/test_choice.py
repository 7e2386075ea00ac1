"""Which back-end is taken, and what is said when none can be had."""

from __future__ import annotations

import pytest

from grader.sandbox import choice, mounts, slots
from grader.sandbox.bubblewrap import Bubblewrap
from grader.sandbox.choice import choose
from grader.sandbox.interface import MB, Limits, Unavailable
from grader.sandbox.podman import Podman
from labcore.errors import LabError


class Broken:
    name = "podman"

    def start(self, *arguments, **more):
        raise Unavailable("podman is not installed: apt install podman")


def test_bubblewrap_comes_first(monkeypatch):
    monkeypatch.delenv("LAB_SANDBOX", raising=False)
    assert isinstance(choose(), Bubblewrap)


def test_the_next_one_is_taken_where_the_first_is_missing(monkeypatch):
    monkeypatch.setattr(choice, "BACKENDS", {"podman": Broken, "bubblewrap": Bubblewrap})
    assert isinstance(choose(), Bubblewrap)


def test_one_that_is_asked_for_is_not_replaced(monkeypatch):
    monkeypatch.setattr(choice, "BACKENDS", {"podman": Broken, "bubblewrap": Bubblewrap})
    monkeypatch.setenv("LAB_SANDBOX", "podman")
    for name in (None, "podman"):
        with pytest.raises(Unavailable, match=r"without one\.\npodman: podman is not installed"):
            choose(name)
    assert choose("bubblewrap").name == "bubblewrap"


def test_an_unknown_one_is_named_with_the_nearest(monkeypatch):
    monkeypatch.setenv("LAB_SANDBOX", "bubble-wrap")
    with pytest.raises(LabError, match=r"no sandbox bubble-wrap in .*LAB_SANDBOX; nearest: bub"):
        choose()


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *arguments, **more: None)
    with pytest.raises(Unavailable) as refused:
        choose()
    assert "bubblewrap: bubblewrap is not installed: apt install bubblewrap" in str(refused.value)
    assert "podman: podman is not installed: apt install podman" in str(refused.value)


@pytest.mark.parametrize("kind", [Bubblewrap, Podman])
def test_a_program_that_lies_about_itself_is_not_taken(kind, tmp_path, monkeypatch):
    """An older bwrap, or something else of that name."""
    for name in ("bwrap", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\necho bubblewrap 0.4.1\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choice, "BACKENDS", {"one": kind})
    with pytest.raises(Unavailable):
        choose()


@pytest.mark.parametrize(("field", "value"), [("memory", 1 * MB), ("processes", 0),
                                              ("disk", -1), ("open_files", "many"),
                                              ("cpu_seconds", 0)])
def test_limits_make_sense(field, value):
    with pytest.raises(LabError, match=rf"limit {field}={value!r} of a sandbox: at least"):
        Limits(**{field: value})


def test_user_numbers_are_held_and_come_back(tmp_path):
    first, second = slots.take(tmp_path), slots.take(tmp_path)
    assert (first.uid, second.uid) == (slots.FIRST, slots.FIRST + 1)
    first.free()
    first.free()
    assert slots.take(tmp_path).uid == slots.FIRST


def test_more_sandboxes_than_user_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "COUNT", 1)
    held = slots.take(tmp_path)
    with pytest.raises(Unavailable, match="start fewer workers"):
        slots.take(tmp_path)
    held.free()


def test_no_place_for_the_locks(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="file/slots, for the locks"):
        slots.take(tmp_path / "file" / "slots")


def test_the_checkout_is_masked_where_it_lies_in_something_shown(tmp_path):
    checkout, prefix = tmp_path / "prefix" / "src" / "labs", tmp_path / "prefix"
    for name in ("code", "solutions", "grader"):
        (checkout / name).mkdir(parents=True)
    view = mounts.visible(1, [str(prefix)], checkout / "code", checkout, checkout / "grader")
    assert view.shows(prefix / "lib") and view.shows(checkout / "code" / "lab")
    for name in ("solutions", "grader", "course"):
        assert not view.shows(checkout / name)


def test_an_installed_grader_is_masked(tmp_path):
    site = tmp_path / "lib" / "site-packages"
    (site / "grader").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    view = mounts.visible(1, [str(tmp_path / "lib")], tmp_path / "code", tmp_path / "code",
                          site / "grader")
    assert view.shows(site / "numpy") and not view.shows(site / "grader" / "batch.py")


@pytest.mark.parametrize("prefix", ["/", "HOME"])
def test_an_environment_that_is_everything_is_refused(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LabError, match="in a folder of its own"):
        mounts.visible(1, [str(tmp_path) if prefix == "HOME" else prefix])
