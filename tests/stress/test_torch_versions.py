"""virtualrun works with every torch that private_names.py names: the tests of launch/ pass.

The environment's own torch is what all other tests use. The others' wheels are CUDA builds of half
a gigabyte each, without CUDA's libraries (cuda_stubs.py); they go where the environment's torch is
found later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import because

from . import cuda_stubs

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("2.11.0", "2.12.1")
RUNTIME = "nvidia-cuda-runtime==13.0.96"
# The version is checked in the process that runs the tests.
MAIN = """
import sys, torch
found, wanted = torch.__version__, sys.argv.pop(1)
assert found.split("+")[0] == wanted, f"torch {found} was imported instead of {wanted}"
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]


def index_answers() -> bool:
    """Return whether pip reaches a package index. A failed install cannot tell: pip reports that
    there is no matching distribution when it has no network, too."""
    return subprocess.run([sys.executable, "-m", "pip", "index", "versions", "pip"],
                          capture_output=True).returncode == 0


def fetch(version: str, folder: Path) -> None:
    """Install a torch into a folder, and what it takes to import it without a GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
         "--target", folder / "packages", f"torch=={version}"], text=True, capture_output=True)
    if done.returncode and not index_answers():
        pytest.skip(because("package index"))
    assert done.returncode == 0, done.stderr
    if not cuda_stubs.write(folder / "packages" / "torch", folder / "libraries"):
        return
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                    folder / "runtime", RUNTIME], check=True)
    for library in (folder / "runtime").rglob("libcudart.so*"):
        shutil.copy(library, folder / "libraries")


@pytest.mark.parametrize("version", OTHERS)
def test_another_torch(version, tmp_path):
    for tool in ("gcc", "readelf"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is needed to import a CUDA build of torch without CUDA")
    try:
        fetch(version, tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", MAIN, version, "-q", "-p", "no:cacheprovider",
             "tests/virtualgpu/launch"], cwd=ROOT, text=True, capture_output=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path / "packages"),
                              "LD_LIBRARY_PATH": str(tmp_path / "libraries")})
        print(done.stdout[-3000:], done.stderr[-1000:], sep="\n")
        assert done.returncode == 0, done.stdout[-3000:]
    finally:
        shutil.rmtree(tmp_path)  # gigabytes
