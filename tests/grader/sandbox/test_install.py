"""`lab install-sandbox`: the one set-up step of isolated grading."""

from __future__ import annotations

import subprocess

import pytest

from grader.sandbox import cli
from grader.sandbox.interface import Unavailable
from labcore.workspace import CHECKOUT
from slurmbox import install


@pytest.fixture
def bare(monkeypatch):
    """A machine without a back-end; the commands that would be run."""
    commands = []
    monkeypatch.setattr(cli, "Path", lambda *parts: CHECKOUT / "missing")
    monkeypatch.setattr(cli.shutil, "which", lambda name, **more: None)
    monkeypatch.setattr(install.os, "getuid", lambda: 0)
    monkeypatch.setattr(install.subprocess, "run", lambda words, **more: (
        commands.append(" ".join(words)), subprocess.CompletedProcess(words, 0, "", ""))[1])
    return commands


def test_installs_bubblewrap_where_root_may(bare, monkeypatch):
    monkeypatch.setattr(install.shutil, "which",
                        lambda name, **more: "/x" if name == "apt-get" else None)
    cli.ensure(lambda line: None)
    assert bare[-1].endswith("apt-get install -y --no-install-recommends bubblewrap")


def test_says_what_to_install_where_it_may_not(bare):
    with pytest.raises(Unavailable, match="apt-get install -y --no-install-recommends bubblewrap"):
        cli.ensure(lambda line: None)
    assert not bare


@pytest.mark.parametrize("program", ["bwrap", "podman"])
def test_one_that_is_there_will_do(bare, monkeypatch, program):
    monkeypatch.setattr(cli.shutil, "which", lambda name: "/x" if name == program else None)
    cli.ensure(lambda line: None)
    assert not bare


def test_every_way_to_grade_does_the_set_up():
    targets = dict(line.split(":", 1) for line in (CHECKOUT / "Makefile").read_text().split("\n\n")
                   if ":" in line)
    for target in ("grade", "formgrader", "test-steps", "stress"):
        assert "lab install-sandbox" in targets[target]
