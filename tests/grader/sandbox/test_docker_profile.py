"""The profile that we ship for Docker, in a container of podman's that is as closed as Docker's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grader.sandbox import advice
from grader.sandbox.podman import Podman
from labcore.workspace import CHECKOUT, CODE
from tests.needs import needs

pytestmark = [pytest.mark.slow, needs("podman", "root")]

PROGRAM = """
from grader.sandbox.choice import choose
from grader.sandbox.selftest import self_test
from labcore.errors import LabError
try:
    backend = choose("bubblewrap")
    self_test(backend, None)
    print("holds with", *backend.optional)
except LabError as error:
    print(error)
"""


@pytest.fixture
def inside(tmp_path):
    """Return PROGRAM's output in a container with this profile and these options."""
    root = tmp_path / "root"
    for name in ("proc", "dev", "sys", "run", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    shown = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix, str(CHECKOUT)])

    def inside(profile: dict, *options: str) -> str:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(profile))
        words = [*Podman().podman, "run", "--rm", "--network=none", "--ulimit=nofile=1024:1024",
                 "--ulimit=nproc=1024:1024", f"--security-opt=seccomp={path}", *options,
                 *(f"--mount=type=bind,src={one},dst={one},ro=true" for one in shown),
                 "--env=HOME=/tmp", f"--env=PYTHONPATH={CODE}:{CHECKOUT}", "--rootfs", str(root),
                 sys.executable, "-c", PROGRAM]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return inside


def shipped() -> dict:
    return json.loads(Path(CHECKOUT, advice.PROFILE).read_text())


def test_dockers_own_profile_closes_the_sandbox_and_we_say_what_to_do(inside):
    default = shipped()
    default["syscalls"].pop()
    said = inside(default, "--user=1000:100")
    assert "unshare failed: Operation not permitted" in said
    assert f"docker run --security-opt seccomp={advice.PROFILE}" in said


@pytest.mark.parametrize(("options", "holds"), [
    (["--user=1000:100"], "holds with hostname"),
    (["--user=1000:100", "--security-opt=unmask=ALL"], "holds with hostname proc"),
    ([], "holds with hostname")], ids=["user", "user with /proc", "root"])
def test_with_ours_it_holds(inside, options, holds):
    assert inside(shipped(), *options) == holds
