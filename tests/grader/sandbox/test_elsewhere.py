"""The same promises for an ordinary user, and where a container closes some of the doors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from labcore.workspace import CHECKOUT, CODE
from tests.needs import needs

pytestmark = pytest.mark.slow

# Chooses, tests, and runs over a limit; prints what it saw.
PROGRAM = """
import json, os, sys
from pathlib import Path
from grader.sandbox import cgroups
from grader.sandbox.choice import choose
from grader.sandbox.interface import Limits
from grader.sandbox.selftest import self_test
backend = choose("bubblewrap")
self_test(backend, Path(sys.argv[1]))
with backend.start(["/usr/bin/id", "-u"], Limits()) as running:
    inside = os.read(running.stdout, 100).decode().strip()
cgroups.make = lambda limits: None  # the watchdog alone counts
hog = [sys.executable, "-I", "-c", "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
       "x = b'x' * 200 * 2**20; time.sleep(20)"]  # not dumpable, as the ranks of a check
with backend.start(hog, Limits(memory=100 * 2**20)) as running:
    os.read(running.stdout, 1)
    while running.poll() is None:
        pass
    why = running.end_reason()
print(json.dumps({"outside": os.getuid(), "inside": inside, "why": why,
                  "optional": backend.optional}))
"""


def enter(uid: int, *setup: str, keep: str = "") -> list[str]:
    """A command line for a private mount namespace in which this user can read our Python.

    The environment may lie in a folder that only root enters: there, a folder is mounted over
    that one which holds nothing else.
    """
    shown = [sys.base_prefix, sys.prefix, str(CHECKOUT)]
    lines = ["set -e", "mkdir -p $1/aside"]
    lines += [f"mkdir -p $1/aside/{i} && mount --bind {shlex.quote(path)} $1/aside/{i}"
              for i, path in enumerate(shown)]
    for i, path in enumerate(shown):
        top = "/".join(path.split("/")[:2])
        if not os.stat(top).st_mode & 0o1:
            lines += [f"grep -q ' {top} tmpfs' /proc/mounts || mount -t tmpfs -o mode=755 x {top}",
                      f"mkdir -p {shlex.quote(path)}",
                      f"mount --bind $1/aside/{i} {shlex.quote(path)}"]
    words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", keep]
    lines += [*setup, f"exec {' '.join(words)} env HOME=$1 PYTHONPATH={CODE}:{CHECKOUT} "
              f"{sys.executable} -c \"$2\" $1/course"]
    return ["unshare", "--mount", "/bin/sh", "-c", "\n".join(lines), "sh"]


@pytest.fixture
def seen(tmp_path):
    """Return PROGRAM's output under such a command line; its folders are open to everybody."""
    def seen(command: list[str]) -> dict:
        (tmp_path / "course").mkdir(mode=0o777)
        for folder in (tmp_path / "course", tmp_path):
            folder.chmod(0o777)
        for folder in tmp_path.parents:
            if folder.name.startswith(("pytest-", "popen-")):
                folder.chmod(0o755)
        done = subprocess.run([*command, str(tmp_path), PROGRAM], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return seen


@needs("root")
def test_holds_for_an_ordinary_user(seen):
    told = seen(enter(1000))
    assert told == {"outside": 1000, "inside": "61000", "why": "its memory passed 100 MB",
                    "optional": ["hostname", "proc"]}


@needs("root")
def test_holds_where_a_proc_of_its_own_is_refused(seen):
    """Imitate a container that masks parts of /proc: the kernel then allows no other /proc."""
    told = seen(enter(1000, "mount --bind /dev/null /proc/uptime"))
    assert told["optional"] == ["hostname"] and told["why"] == "its memory passed 100 MB"


@needs("root")
def test_holds_for_root_without_rights_over_the_machine(seen):
    """Like root in a container: it becomes another user before it starts."""
    told = seen(enter(0, keep="--bounding-set=-sys_admin,-sys_ptrace,-dac_override"))
    assert told["outside"] == 0 and told["inside"] != "0"
    assert told["why"] == "its memory passed 100 MB"


def test_runs_as_whoever_runs_the_tests(seen, tmp_path):
    told = seen([sys.executable, "-c", "import sys; exec(sys.argv.pop(2))"])
    assert told["inside"] != "0" and Path(tmp_path, "course").is_dir()
