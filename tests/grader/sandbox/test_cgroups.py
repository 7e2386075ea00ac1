"""Control groups: of both versions, where they may be made, and what is done where they may not.

Version 1 is also used for real by the other tests, on machines that have it; version 2 here only on
files that look like the kernel's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grader.sandbox import cgroups
from grader.sandbox.interface import MB, Limits

LIMITS = Limits(memory=80 * MB, processes=10)


@pytest.fixture
def unified(tmp_path, monkeypatch):
    """A tree of version 2 with this process in user.slice/app."""
    own = tmp_path / "user.slice" / "app"
    own.mkdir(parents=True)
    for folder, controllers in ((own, "memory pids"), (own.parent, "memory pids")):
        (folder / "cgroup.subtree_control").write_text(controllers)
        (folder / "cgroup.procs").touch()
        (folder / "memory.max").write_text("max\n")
    monkeypatch.setattr(cgroups, "_memberships", lambda pid="self": {"": "/user.slice/app"})
    return own


def test_version_2_gets_its_limits(unified, tmp_path):
    group = cgroups.make(LIMITS, tmp_path)
    assert group.folders == (group.memory,) and group.memory.parent == unified
    results = {path.name: path.read_text() for path in group.memory.iterdir()}
    assert results == {"memory.max": str(90 * MB), "memory.swap.max": "0", "memory.oom.group": "1",
                       "pids.max": str(10 + cgroups.HELPERS)}
    assert group.enter_files == [str(group.memory / "cgroup.procs")]


def test_version_2_is_read(unified, tmp_path):
    group = cgroups.make(LIMITS, tmp_path)
    assert group.used() == 0 and not group.ran_out_of_memory()
    (group.memory / "memory.current").write_text("1000\n")
    (group.memory / "memory.stat").write_text("anon 500\nactive_file 300\ninactive_file 100\n")
    (group.memory / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.used() == 600 and group.ran_out_of_memory()


def closed(unified: Path) -> None:
    """Like the kernel with processes in the group: a write is refused and has no effect."""
    control = unified / "cgroup.subtree_control"
    control.unlink()
    control.symlink_to("/dev/null")


def test_version_2_beside_ours_where_ours_is_full(unified, tmp_path):
    closed(unified)
    assert cgroups.make(LIMITS, tmp_path).memory.parent == unified.parent


def test_never_out_of_a_group_that_limits_us(unified, tmp_path):
    closed(unified)
    (unified / "memory.max").write_text("1000000\n")
    assert cgroups.make(LIMITS, tmp_path) is None
    assert not list(tmp_path.glob("**/lab-sandbox-*"))


def test_no_group_where_memory_is_not_counted(unified, tmp_path):
    closed(unified)
    (unified.parent / "cgroup.subtree_control").write_text("pids")
    assert cgroups.make(LIMITS, tmp_path) is None


def test_version_1_gets_its_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_memberships", lambda: {"memory": "/a", "pids": "/", "cpu": "/"})
    for name in ("memory/a", "pids", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    group = cgroups.make(LIMITS, tmp_path)
    made = {path.relative_to(tmp_path).parts[0]: path for path in group.folders}
    memory, pids, cpu = (made[name] for name in ("memory", "pids", "cpu"))
    assert memory.parent == tmp_path / "memory" / "a" and cpu.parent == tmp_path / "cpu"
    assert (memory / "memory.limit_in_bytes").read_text() == str(90 * MB)
    assert (pids / "pids.max").read_text() == str(10 + cgroups.HELPERS)


def test_none_where_there_is_none(tmp_path, monkeypatch):
    for memberships in ({}, {"memory": "/not/mounted/here"}, {"": "/"}, {"cpu": "/"}):
        monkeypatch.setattr(cgroups, "_memberships", lambda found=memberships: found)
        assert cgroups.make(LIMITS, tmp_path) is None


def test_groups_of_killed_graders_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_memberships", lambda: {"memory": "/"})
    mine = tmp_path / "memory" / f"lab-sandbox-{os.getpid()}-0"
    dead, young, other = (tmp_path / "memory" / name for name in
                          ("lab-sandbox-99999999-0", "lab-sandbox-99999999-1", "other"))
    for folder in (mine, dead, young, other):
        folder.mkdir(parents=True)
        if folder is not young:
            os.utime(folder, (0, 0))
    cgroups.sweep(tmp_path)
    assert mine.exists() and young.exists() and other.exists() and not dead.exists()


def test_two_graders_with_the_same_number_get_a_group_each(unified, tmp_path, monkeypatch):
    """Two processes in two PID namespaces."""
    monkeypatch.setattr(cgroups.os, "getpid", lambda: 1)
    assert cgroups.make(LIMITS, tmp_path).memory != cgroups.make(LIMITS, tmp_path).memory
