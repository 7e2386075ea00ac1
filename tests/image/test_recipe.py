"""What can be said of the image without building it."""

import re
import shutil
import subprocess

import pytest

from lab.cluster.install import PACKAGES
from lab.errors import LabError
from tests.image import engine, layers


def test_the_image_installs_what_the_cluster_needs():
    installed = engine.DOCKERFILE.read_text().split()
    assert not [name for name in PACKAGES if name not in installed]


def test_the_recipe_repeats_no_pin():
    assert not re.search(r"[=~><]=\s*\d", engine.DOCKERFILE.read_text())


def test_the_base_is_named_once():
    name = engine.named_base()
    assert engine.DOCKERFILE.read_text().count(name) == 1
    assert re.fullmatch(r"docker\.io/library/debian:\w+-slim", name)


@pytest.mark.parametrize("name", [
    "opt/course/solutions/03_multi_node.py", "opt/course/tests/conftest.py", "home/grader/x.py",
    "opt/course/docs/instructor.md", "etc/munge/munge.key", "etc/pip.conf", "mnt/ca.crt",
    "root/.cache/pip/x", "opt/course/code/oom", "opt/course/.git/HEAD",
    "home/jovyan/gradebook.db"])
def test_a_layer_with_something_foreign_is_found_out(name):
    assert layers.problems([(name, b"")])


def test_hidden_tests_in_a_notebook_are_found_out():
    name = "opt/course/notebooks/03_multi_node.ipynb"
    assert layers.problems([(name, b'"### BEGIN HIDDEN TESTS"')])
    assert not layers.problems([(name, b"{}"), ("opt/course/code/lab/cli.py", b"")])


def test_variables_win_over_pips_files():
    listing = ("global.cert='/a'\nglobal.index-url='https://x/simple'\n:env:.cert='/b'\n"
               "freeze.timeout='1'\n:env:.disable-pip-version-check='1'\n")
    assert engine.pip_settings(listing) == {"cert": "/b", "index-url": "https://x/simple"}


@pytest.mark.parametrize("line", ["nonsense", "global.cert=/a", "cert='/a'"])
def test_a_line_that_pip_does_not_print(line):
    with pytest.raises(LabError, match=re.escape(repr(line))):
        engine.pip_settings(line)


def test_a_machine_without_pip_settings_passes_none(tmp_path):
    assert engine.pip_flags({}, tmp_path / "pip") == []


def test_what_is_on_this_machines_disk_is_mounted(tmp_path):
    index, wheels, cert = tmp_path / "i" / "simple", tmp_path / "wheels", tmp_path / "ca.crt"
    index.mkdir(parents=True)
    wheels.mkdir()
    cert.write_text("certificate")
    flags = engine.pip_flags({"find-links": str(wheels), "cert": str(cert),
                              "extra-index-url": f"https://x/simple file://{index}"},
                             tmp_path / "pip")
    assert f"{wheels}:/mnt/pip0:ro" in flags and f"{index.parent}:/mnt/pip2:ro" in flags
    assert (tmp_path / "pip" / "pip.conf").read_text() == (
        "[global]\nfind-links = file:///mnt/pip0/\ncert = /mnt/pip1\n"
        "extra-index-url = https://x/simple file:///mnt/pip2/simple\n")


def test_without_podman_and_without_root_the_missing_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(engine.os, "getuid", lambda: 1000)
    with pytest.raises(LabError, match=r"podman, .* not installed.*sudo apt-get install"):
        engine.ensure_programs()


def test_an_unknown_base_is_refused(monkeypatch):
    monkeypatch.setenv("IMAGE_BASE", "alpine")
    with pytest.raises(LabError, match="IMAGE_BASE=alpine is not known"):
        engine.base_image(None, print)


def test_what_may_be_copied_is_listed_and_the_rest_is_not():
    lines = (engine.CHECKOUT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} <= layers.ALLOWED
    assert subprocess.run(["git", "check-ignore", "-q", ".dockerignore"],
                          cwd=engine.CHECKOUT).returncode == 1
