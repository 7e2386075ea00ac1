"""GitHub's workflows, as far as they can be checked here: names, pins, permissions."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text())
             for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
PINNED = re.compile(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
MAY_WRITE = {("release", "image"): {"packages"}, ("release", "name"): {"packages"},
             ("release", "pages"): {"pages", "id-token"}}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"]]


def steps(name, job):
    return WORKFLOWS[name]["jobs"][job]["steps"]


def scripts():
    for name, job in JOBS:
        yield from (step["run"] for step in steps(name, job) if "run" in step)


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def stages():
    return set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(),
                          re.M))


def test_there_are_three():
    assert set(WORKFLOWS) == {"test", "image", "release"}


def test_each_make_target_is_there():
    called = [word for script in scripts() for word in re.findall(r"\bmake ([\w-]+)", script)]
    assert {"test", "test-image", "docs"} == set(called)
    assert set(called) <= targets()


def test_each_image_is_a_stage_of_the_dockerfile():
    jobs = WORKFLOWS["release"]["jobs"]
    wanted = {target for job in jobs.values()
              for target in job.get("strategy", {}).get("matrix", {}).get("target", [])}
    assert {"student", "instructor"} == wanted
    assert wanted <= stages()


def test_actions_are_pinned_to_a_commit_and_say_which_release_it_is():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = [line.strip().removeprefix("- ") for line in path.read_text().splitlines()
                if "uses:" in line]
        assert all(PINNED.fullmatch(line) for line in used), path


@pytest.mark.parametrize("name, job", JOBS)
def test_a_job_may_no_more_than_it_needs_and_ends(name, job):
    workflow = WORKFLOWS[name]
    described = workflow["jobs"][job]
    granted = described.get("permissions", workflow["permissions"])
    assert {key for key, value in granted.items() if value == "write"} == MAY_WRITE.get(
        (name, job), set())
    assert set(workflow["permissions"].values()) <= {"read"}
    assert described["timeout-minutes"] <= 90


@pytest.mark.parametrize("name, job", JOBS)
def test_a_checkout_leaves_no_token_behind(name, job):
    for step in steps(name, job):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_scripts_are_bash_and_nothing_is_pasted_into_them():
    """A branch's name is a stranger's text: expressions come in through variables only."""
    for script in scripts():
        assert "${{" not in script
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_python_is_the_one_of_conda():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0]
    asked = {step["with"]["python-version"] for name, job in JOBS for step in steps(name, job)
             if "setup-python" in step.get("uses", "")}
    assert asked == {conda.partition("=")[2]}
