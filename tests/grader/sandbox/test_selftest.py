"""The self-test finds every hole that a sandbox can have, and says what to do."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from grader.sandbox import advice, bubblewrap, mounts, selftest
from grader.sandbox.bubblewrap import Bubblewrap
from grader.sandbox.interface import MB, Unavailable
from grader.sandbox.selftest import self_test
from labcore.errors import LabError

pytestmark = pytest.mark.slow  # together


class Leaky(Bubblewrap):
    """bubblewrap, but its command line was changed for the worse."""

    def __init__(self, change) -> None:
        self.change = change

    def words(self, command, limits, uid, packed, environment, data, masks=None):
        return self.change(super().words(command, limits, uid, packed, environment, data, masks),
                           data)


class Generous(Bubblewrap):
    """bubblewrap, but with other limits than it was asked for."""

    def __init__(self, **limits) -> None:
        self.limits = limits

    def start(self, command, limits, **more):
        return super().start(command, dataclasses.replace(limits, **self.limits), **more)


def without(*options: str, words: int = 1):
    """Leave out options of bwrap, each of so many words."""
    def change(line, data):
        for option in options:
            at = line.index(option)
            line = line[:at] + line[at + words:]
        return line

    return change


def with_(*options: str):
    """Mount more, or do more: at the end of bwrap's options."""
    def change(line, data):
        at = len(line) - line[::-1].index("--remount-ro") - 1
        return [*line[:at], *options, *line[at:]]

    return change


def as_root(*without_: str, seccomp: bool = True):
    """Everything stays root inside, with its capabilities."""
    def change(line, data):
        if bubblewrap.privileged():
            at = next(i for i, word in enumerate(line) if word.endswith("/setpriv"))
            end = next(i for i in range(at + 1, len(line)) if not line[i].startswith("--"))
            line = [*line[:at], *line[end:]]
        else:
            line = ["0" if line[i - 1] in ("--uid", "--gid") else word
                    for i, word in enumerate(line)]
            at = line.index("--cap-drop")
            line = line[:at] + line[at + 2:]
        line = without(*without_)(line, data)
        return with_("--cap-add", "ALL")(
            line if seccomp else without("--seccomp", words=2)(line, data), data)

    return change


def an_open_file(line, data):
    data(b"left open")
    return line


def unsealed(line, data):
    """Devices are not made read-only first; the table of what to seal is still read by bwrap."""
    return line[line.index("/bin/sh") + 4:]


def showing(folder: Path):
    """Show a folder that ought not to be there; its parents are made so that anybody may pass."""
    above = [word for path in mounts.folders_above([str(folder)])
             for word in ("--perms", "0755", "--dir", path)]
    return with_(*above, "--ro-bind", str(folder), str(folder))


HOLES = {
    "network": (without("--unshare-net"), ["a port of the host", "a socket of another program"]),
    "system calls": (without("--seccomp", words=2),
                     ["AF_VSOCK", "a user namespace of its own",
                      "a keyring that the next submission can read",
                      "locks on files that other sandboxes see",
                      "notifications of what other sandboxes open"]),
    "devices": (unsealed, ["the host's /dev/null, whose time stamp other sandboxes see"]),
    "counters": (with_("--proc", "/proc"), ["counters of the whole machine (/proc/"]),
    "folder": (with_("--perms", "1777", "--tmpfs", "/run"), ["writing into /run"]),
    "variable": (with_("--setenv", "COURSE_SECRET", "x"), ["the grader's variable COURSE_SECRET"]),
    "descriptor": (an_open_file, ["an open file of the grader"]),
    "processes": (without("--unshare-pid"),
                  ["the list of the host's processes", "a process that outlives the sandbox"]),
    "root": (as_root(), ["the right to become another user", "capabilities of root"]),
    "root with all calls": (as_root(seccomp=False),
                            ["mounting", "the memory of the sandbox's first process"]),
    "root among processes": (as_root("--unshare-pid"), ["signals to the host's processes"]),
}


@pytest.mark.parametrize("hole", HOLES)
def test_finds_a_hole(hole):
    change, leaks = HOLES[hole]
    with pytest.raises(Unavailable, match="nothing is graded") as refused:
        self_test(Leaky(change), None)
    for words in (*leaks, "apt install podman"):
        assert words in str(refused.value)


@pytest.mark.parametrize(("leak", "limits"), [
    ("more than 16 processes", {"processes": 64}),
    ("bytes of disk in /home/student", {"disk": 8 * MB}),
    ("a file of more than 4194304 bytes", {"file_size": 8 * MB}),
    ("more memory than the limit", {"memory": 400 * MB})])
def test_finds_a_limit_that_does_not_hold(leak, limits):
    with pytest.raises(Unavailable, match=leak):
        self_test(Generous(**limits), None)


def test_finds_every_file_of_the_course_that_can_be_read(tmp_path):
    course = tmp_path / "course"
    for name in ("gradebook.db", "source/lab/lab.ipynb", "submitted/ada/lab/lab.ipynb"):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        (course / name).write_text("secret")
        folder = (course / name).parent
        with pytest.raises(Unavailable, match=rf"reached the course\S* \S+ \({folder}"):
            self_test(Leaky(showing(folder)), course)
    self_test(Bubblewrap(), course)
    assert not [path for path in course.iterdir() if "canary" in path.name]


@pytest.mark.parametrize("name", ["solutions", "grader/source", "tests"])
def test_finds_the_checkouts_other_folders(name):
    folder = selftest.CHECKOUT / name
    with pytest.raises(Unavailable, match=str(folder)):
        self_test(Leaky(showing(folder)), None)


def test_an_attempt_that_fails_by_itself_counts_as_a_leak(monkeypatch):
    """Else an attempt that no longer works would report that all is well."""
    monkeypatch.setattr(selftest, "ATTEMPTS", ("reading", "no_such_attempt"))
    with pytest.raises(Unavailable, match="the attempt failed: KeyError"):
        self_test(Bubblewrap(), None)


def test_a_sandbox_that_gives_no_answer(monkeypatch):
    monkeypatch.setattr(mounts, "SYSTEM", ())
    with pytest.raises(Unavailable, match=r"gives no answer \(exit code 1\): bwrap: execvp"):
        self_test(Bubblewrap(), None)


def test_a_course_inside_the_python_environment_is_refused(tmp_path, monkeypatch):
    course = tmp_path / "environment" / "course"
    (course / "submitted").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    with pytest.raises(LabError, match="move the course elsewhere, and set LAB_COURSE"):
        self_test(Bubblewrap(), course)


def test_submissions_that_lie_in_the_system_are_refused(tmp_path):
    (tmp_path / "submitted").symlink_to("/usr/share")
    with pytest.raises(LabError, match="/usr/share lies inside"):
        self_test(Bubblewrap(), tmp_path)


@pytest.mark.parametrize(("setting", "value", "told"), [
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
    ("kernel.unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user.max_user_namespaces", "0", "user.max_user_namespaces=10000")])
def test_names_the_setting_that_closes_namespaces(monkeypatch, setting, value, told):
    monkeypatch.setattr(advice, "_setting", lambda name: value if name == setting else "")
    assert told in advice.for_start("bubblewrap", "bwrap: setting up uid map: Permission denied")


def test_names_the_profile_inside_docker(monkeypatch):
    monkeypatch.setattr(advice, "in_container", lambda: True)
    assert f"--security-opt seccomp={advice.PROFILE}" in advice.for_start(
        "bubblewrap", "bwrap: Creating new namespace failed: Operation not permitted")
    assert (selftest.CHECKOUT / advice.PROFILE).exists()
