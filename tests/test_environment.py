"""conda's and Binder's ways into the course: they name no dependency of their own.

There is no conda here: what it hands to pip is handed to pip, and repo2docker's files are compared
with what they repeat.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slurmbox.install import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
BINDER = ROOT / "binder"


@pytest.fixture(scope="module")
def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def pip_section(environment):
    (section,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    return section


def test_environment_yml_names_python_and_pip_alone(environment):
    named = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    assert [re.split(r"[=<>]", name)[0] for name in named] == ["python", "pip"]
    assert pip_section(environment) == ["-r requirements.lock", "-e ."]
    assert environment["channels"] == ["conda-forge"]


@pytest.mark.slow
def test_pip_takes_its_section_as_conda_hands_it_over(environment, tmp_path):
    """conda writes the section to a file beside environment.yml, and runs pip in that folder.
    Everything is installed here, so nothing is fetched. (3 s)"""
    for name in ("requirements.lock", "pyproject.toml", "README.md", "LICENSE", "LICENSE-text",
                 "code", "grader"):
        (tmp_path / name).symlink_to(ROOT / name)
    handed = tmp_path / "condaenv.requirements.txt"
    handed.write_text("\n".join(pip_section(environment)) + "\n")
    offline = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index",
         "--no-build-isolation", "--no-deps", "-r", handed.name], cwd=tmp_path, text=True,
        capture_output=True, env=offline | {"PIP_CONFIG_FILE": os.devnull})
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^Would install (.*)$", done.stdout, re.M) == [
        f"large-scale-training-labs-{project_version()}"]


def project_version():
    return re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]


def test_binder_gets_the_python_of_environment_yml(environment):
    """repo2docker reads no environment.yml at the root where there is a folder binder/."""
    (python,) = [entry for entry in environment["dependencies"] if "python=" in entry]
    assert (BINDER / "runtime.txt").read_text().strip() == python.replace("=", "-")
    assert "--file environment.yml" in (BINDER / "postBuild").read_text()
    assert not (BINDER / "environment.yml").exists()


def test_binder_installs_what_the_cluster_needs():
    assert tuple((BINDER / "apt.txt").read_text().split()) == PACKAGES


@pytest.mark.parametrize("script", ["postBuild", "start"])
def test_binders_scripts_can_be_run(script):
    path = BINDER / script
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path]).returncode == 0


def test_binder_starts_what_the_hub_asks_for_also_without_a_cluster(tmp_path):
    """A stand-in for `lab`: the cluster does not come up, and the server is started all the same,
    with what `lab cluster env` says."""
    stand_in = tmp_path / "lab"
    stand_in.write_text('#!/bin/sh\ncase "$2" in up) exit 1;; env) echo export MARK=here;; esac\n')
    stand_in.chmod(0o755)
    done = subprocess.run([BINDER / "start", "sh", "-c", 'echo "$MARK $*"', "0", "a b"], text=True,
                          capture_output=True, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.returncode, done.stdout) == (0, "here a b\n")
    assert "no cluster" in done.stderr
