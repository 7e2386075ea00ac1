"""Checks of the image that need no build."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib

import pytest

import image
from labcore.errors import LabError
from slurmbox.install import PACKAGES
from tests.image import layers, recipe
from tests.ports import free_port


def test_the_image_installs_what_the_cluster_needs():
    installed = image.DOCKERFILE.read_text().split()
    assert not [name for name in PACKAGES if name not in installed]


def test_the_recipe_repeats_no_pin():
    assert not re.search(r"[=~><]=\s*\d", image.DOCKERFILE.read_text())


def test_the_base_is_named_once():
    name = image.named_base()
    assert image.DOCKERFILE.read_text().count(name) == 1
    assert re.fullmatch(r"docker\.io/library/debian:\w+-slim", name)


@pytest.mark.parametrize("name", [
    "opt/course/solutions/03_multi_node.py", "opt/course/tests/conftest.py", "home/grader/x.py",
    "opt/course/grader/source/03_multi_node/03_multi_node.ipynb", "opt/course/grader/config.py",
    "opt/course/docs/instructor.md", "etc/munge/munge.key", "etc/pip.conf", "mnt/ca.crt",
    "root/.cache/pip/x", "opt/course/code/oom", "opt/course/.git/HEAD",
    "home/jovyan/gradebook.db", "opt/course/notebooks/worked/03_multi_node.ipynb",
    "opt/course/.venv/lib/python3.11/site-packages/nbgrader/api.py",
    "home/jovyan/.local/share/jupyter/runtime/jupyter_cookie_secret"])
def test_a_layer_with_something_foreign_is_found_out(name):
    assert layers.problems([(name, b"")])


def test_hidden_tests_in_a_notebook_are_found_out():
    name = "opt/course/notebooks/03_multi_node.ipynb"
    assert layers.problems([(name, b'"### BEGIN HIDDEN TESTS"')])
    assert layers.problems([(name, b'"### BEGIN SOLUTION"')])
    assert not layers.problems([(name, b"{}"), ("opt/course/code/lab/cli.py", b""),
                                ("opt/course/grader", b""), ("opt/course/grader/cli.py", b""),
                                ("opt/course/grader/run/notebook_run.py", b"")])


def test_variables_win_over_pips_files():
    listing = ("global.cert='/a'\nglobal.index-url='https://x/simple'\n:env:.cert='/b'\n"
               "freeze.timeout='1'\n:env:.disable-pip-version-check='1'\n")
    assert image.pip_settings(listing) == {"cert": "/b", "index-url": "https://x/simple"}


@pytest.mark.parametrize("line", ["nonsense", "global.cert=/a", "cert='/a'"])
def test_a_line_that_pip_does_not_print(line):
    with pytest.raises(LabError, match=re.escape(repr(line))):
        image.pip_settings(line)


def test_a_machine_without_pip_settings_passes_none(tmp_path):
    assert image.pip_flags({}, tmp_path / "pip") == []


def test_what_is_on_this_machines_disk_is_mounted(tmp_path):
    index, wheels, cert = tmp_path / "i" / "simple", tmp_path / "wheels", tmp_path / "ca.crt"
    index.mkdir(parents=True)
    wheels.mkdir()
    cert.write_text("certificate")
    flags = image.pip_flags({"find-links": str(wheels), "cert": str(cert),
                              "extra-index-url": f"https://x/simple file://{index}"},
                             tmp_path / "pip")
    assert f"{wheels}:/mnt/pip0:ro" in flags and f"{index.parent}:/mnt/pip2:ro" in flags
    assert (tmp_path / "pip" / "pip.conf").read_text() == (
        "[global]\nfind-links = file:///mnt/pip0/\ncert = /mnt/pip1\n"
        "extra-index-url = https://x/simple file:///mnt/pip2/simple\n")


def test_without_podman_and_without_root_the_missing_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(image.os, "getuid", lambda: 1000)
    with pytest.raises(LabError, match=r"podman, .* not installed.*sudo apt-get install"):
        image.ensure_podman()


@pytest.mark.parametrize(("torch", "index"), [
    ("cpu", "https://download.pytorch.org/whl/cpu"), ("cu126", "https://download.pytorch.org/whl/cu126"),
    ("default", None)])
def test_the_build_argument_chooses_the_index_that_torch_comes_from(tmp_path, torch, index):
    step = next(text for name, text in recipe.steps("student") if name == "RUN" and "torch" in text)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for program in (tmp_path / ".venv" / "bin" / "pip", tmp_path / "python3"):
        program.write_text('#!/bin/sh\necho "$@"\n')
        program.chmod(0o755)
    shell = step.split("/root/.cache/pip", 1)[1]
    done = subprocess.run(["sh", "-ec", shell], cwd=tmp_path, capture_output=True, text=True,
                          env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TORCH": torch})
    made, installed = done.stdout.splitlines()
    assert made == "-m venv .venv" and installed.split()[-2:] == ["setuptools", "torch"]
    assert [word for word in installed.split() if "index" in word] == (
        [f"--extra-index-url={index}"] if index else [])


GRADERS = {"grader/__init__.py", "grader/cleaning.py", "grader/cli.py", "grader/commands.py",
           "grader/course", "grader/run", "grader/sandbox", "grader/validate"}  # `lab validate`


def test_what_students_get_is_copied_by_name():
    copied = {word for name, text in recipe.steps("student") if name == "COPY"
              for word in text.split()[:-1]}
    assert copied == {
        "LICENSE", "LICENSE-text", "README.md", "code", "docker/healthcheck.py", "docker/start.sh",
        "docker/wanted.py", *GRADERS, "images/*.*", "notebooks/*.ipynb",
        "notebooks/checks/*.json", "pyproject.toml", "requirements.lock"}


def test_a_build_without_a_target_is_the_students():
    assert recipe.stages() == ["environment", "course", "instructor", "student"]
    assert {name for name, _ in recipe.steps("student")} >= {"RUN", "COPY", "CMD"}
    assert ("COPY", "grader grader") in recipe.steps("instructor")


def test_the_packages_are_those_of_the_project_and_of_the_named_extras():
    project = tomllib.loads((image.CHECKOUT / "pyproject.toml").read_text())["project"]
    result = subprocess.run([sys.executable, "docker/wanted.py", "hub"], cwd=image.CHECKOUT,
                            capture_output=True, text=True, check=True).stdout.splitlines()
    assert result == project["dependencies"] + project["optional-dependencies"]["hub"]
    asked = re.findall(r"wanted\.py (\w+) >", image.DOCKERFILE.read_text())
    assert asked == ["hub", "grader"]


def test_an_extra_that_is_not_there_is_refused():
    done = subprocess.run([sys.executable, "docker/wanted.py", "grading"], cwd=image.CHECKOUT,
                          capture_output=True, text=True)
    assert done.returncode == 1 and "grading is no extra" in done.stderr and "grader" in done.stderr


@pytest.mark.parametrize(("variables", "address"), [
    ({}, "http://127.0.0.1:8888/api"),
    ({"JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:9000/user/ada/",
      "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}, "http://127.0.0.1:9000/user/ada/api")])
def test_the_health_check_asks_where_the_server_is(variables, address):
    source = runpy.run_path(str(image.CHECKOUT / "docker" / "healthcheck.py"))
    assert source["address"](variables) == address


def test_a_health_check_of_nobody_fails():
    done = subprocess.run([sys.executable, image.CHECKOUT / "docker" / "healthcheck.py"],
                          env={"JUPYTERHUB_SERVICE_URL": f"http://x:{free_port()}"},
                          capture_output=True, text=True)
    assert done.returncode == 1 and "refused" in done.stderr


@pytest.mark.parametrize(("variable", "value", "said"), [
    ("IMAGE_ENGINE", "buildah", "IMAGE_ENGINE=buildah is not known"),
    ("IMAGE_ENGINE", "docker", "`docker info` fails")])
def test_an_engine_that_is_not_there_is_refused(monkeypatch, tmp_path, variable, value, said):
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LabError, match=said):
        image.choose_engine(tmp_path)


def test_docker_builds_without_what_only_podman_knows(tmp_path):
    said = []
    words = image.build_command(image.Engine(tmp_path, "docker"), "debian:x", "student",
                                {"cert": "/a"}, said.append)
    assert "--format" not in words and "-v" not in words and "TORCH=cpu" in words
    assert words[words.index("--target") + 1] == "student" and "pip settings" in said[0]


def test_an_unknown_target_is_refused(capsys):
    assert image.main(["teacher"]) == 1
    said = capsys.readouterr().err
    assert "teacher is no target of the Dockerfile; student or instructor" in said


def test_an_unknown_base_is_refused(monkeypatch):
    monkeypatch.setenv("IMAGE_BASE", "alpine")
    with pytest.raises(LabError, match="IMAGE_BASE=alpine is not known"):
        image.base_image(None, print)


def test_what_may_be_copied_is_listed_and_the_rest_is_not():
    lines = (image.CHECKOUT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    of_docker = {f"docker/{name}" for name in ("healthcheck.py", "seccomp-sandbox.json", "start.sh",
                                               "wanted.py")}
    assert allowed <= layers.ALLOWED | of_docker | {"grader", "solutions"}
    assert {"notebooks/worked", "notebooks/outputs"} <= set(rules)
    assert subprocess.run(["git", "check-ignore", "-q", ".dockerignore"],
                          cwd=image.CHECKOUT).returncode == 1
