"""Shells for the pages' commands: a copy of the checkout, and a workspace with a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slurmbox as lab_cluster
from tests.docs.pages import ROOT
from tests.docs.session import Places


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """A copy of the tracked files, since commands write into it; the environment is ours."""
    copy = tmp_path_factory.mktemp("docs") / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():  # not one that was removed and is not committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(sys.prefix)
    return copy


@pytest.fixture
def places(course, checkout, tmp_path) -> Places:
    for name in ("scratch", "new"):
        (tmp_path / name).mkdir()
    return Places(course.home, checkout, tmp_path / "scratch", tmp_path / "new")


@pytest.fixture
def environment(course, checkout) -> dict[str, str]:
    """A terminal's of JupyterLab, whose `lab` is the copy's."""
    variables = {**os.environ, **lab_cluster.environment(course.home)}
    return {**variables, "PYTHONPATH": f"{checkout / 'code'}:{checkout}", "COLUMNS": "160",
            "LAB_COURSE": str(checkout / "course")}
