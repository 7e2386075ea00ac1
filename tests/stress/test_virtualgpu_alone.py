"""virtualgpu installs from its own folder, with torch as its only dependency, and runs programs.

The environment has torch and what torch needs as links to this one's packages; pip fetches only
what builds the wheel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "virtualgpu" / "scripts" / "train.py"
pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]


def needed(name: str) -> dict[str, Path]:
    """Return everything that a package and its dependencies install here, by top-level name."""
    found: dict[str, Path] = {}
    waiting, seen = [name], set()
    while waiting:
        name = waiting.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another Python or another system
            continue
        if name in seen:
            continue
        seen.add(name)
        tops = {file.parts[0] for file in package.files if file.parts[0] not in ("..", "bin")}
        found |= {top: Path(package.locate_file(top)) for top in tops - {"__pycache__"}}
        waiting += [re.match(r"[\w.-]+", line)[0] for line in package.requires or ()
                    if "extra ==" not in line]
    return found


@pytest.fixture
def environment(tmp_path) -> Path:
    """An environment with virtualgpu and torch."""
    made, source = tmp_path / "environment", tmp_path / "virtualgpu"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (site,) = made.glob("lib/python3.*/site-packages")
    for name, path in needed("torch").items():
        (site / name).symlink_to(path)
    shutil.copytree(ROOT / "code" / "virtualgpu", source)  # the build writes beside its sources
    subprocess.run([sys.executable, "-m", "pip", "--python", made / "bin" / "python", "install",
                    "--quiet", source], check=True)
    return made


def test_a_program_runs_with_torch_and_virtualgpu_alone(environment, tmp_path):
    for name, there in (("virtualgpu", True), ("numpy", False), ("minimegatron", False)):
        found = subprocess.run([environment / "bin" / "python", "-c", f"import {name}"],
                               cwd=tmp_path, env={}, capture_output=True)
        assert (found.returncode == 0) == there, name
    for options in (["--solo", "--nodes", "2"], ["--trace", tmp_path / "traces"]):
        done = subprocess.run(
            [environment / "bin" / "virtualrun", "--gpus", "h100:2", *options, PROGRAM],
            cwd=tmp_path, env={"HOME": str(tmp_path)}, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert re.findall(r"step (\d): loss \?", done.stdout) == ["0", "1", "2"]
        assert "found by optimizer steps (AdamW)" in done.stderr
    assert len(list((tmp_path / "traces").iterdir())) == 8
