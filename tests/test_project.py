"""Rules of the repository that a machine can check."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from lab import cli

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAINER = [path for package in ("minimegatron", "layout_estimator")
           for path in sorted((ROOT / "code" / package).rglob("*.py")) if path.name != "device.py"]


def pins():
    collected = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            collected.setdefault(requirement.name.lower(), []).append(requirement)
    return collected


def wanted():
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(text) for group in lists for text in group]


def test_the_lock_pins_what_pyproject_asks_for():
    locked = pins()
    for requirement in wanted():
        assert requirement.name in locked, f"{requirement.name}: run `make lock`"
        for pin in locked[requirement.name]:
            (exact,) = pin.specifier
            assert exact.operator == "=="
            assert requirement.specifier.contains(exact.version), f"{pin}: run `make lock`"


def test_no_program_builds_a_grammar_at_its_start():
    """jsonschema, which reading any notebook imports, does where this package is there."""
    assert "rfc3987-syntax" not in pins()


def test_what_is_installed_is_what_is_pinned():
    for name, choices in pins().items():
        for pin in choices:
            if pin.marker is None or pin.marker.evaluate():
                (exact,) = pin.specifier
                assert Version(version(name)).public == Version(exact.version).public, name


def test_packages_import_each_other_as_pyproject_allows():
    done = subprocess.run([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_the_lab_command_imports_is_light():
    code = "import sys, lab.cli; lab.cli.build_parser(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("part", [part for part, names in cli.PARTS.items() if names])
def test_the_lab_command_knows_which_part_has_a_command(part):
    """It imports no other part."""
    parser = cli.build_parser(cli.PARTS[part][0])
    (commands,) = [action.choices for action in parser._actions if action.choices]
    assert tuple(commands) == cli.PARTS[part]


def test_a_command_that_another_part_extends_is_complete():
    steps = cli.build_parser("contest").parse_args(["contest", "table", "pipelines"])
    plan = cli.build_parser("plan").parse_args(
        ["plan", "--cluster", "a100:8x1", "--global-batch", "8"])
    assert steps.run and plan.submit_file


def test_shell_scripts_parse():
    scripts = [*ROOT.glob("code/jobs/*.sh"), *ROOT.glob("code/examples/*.sh"), ROOT / ".ci" / "run"]
    for script in scripts:
        assert subprocess.run(["bash", "-n", script]).returncode == 0
        directives = [line for line in script.read_text().splitlines() if "SBATCH" in line]
        assert all(line.startswith("#SBATCH --") for line in directives)
