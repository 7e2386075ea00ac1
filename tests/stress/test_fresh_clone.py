"""`make lab` from a fresh clone: killed twice on the way, then whole, then quick.

Builds a virtual environment of its own: minutes, and network or a filled pip cache.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1500)]


class MakeLab:
    def __init__(self, clone):
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("LAB_HOME", "SLURM_CONF", "VIRTUAL_ENV")}
        self.began, self.out = time.monotonic(), ""
        self.process = subprocess.Popen(
            ["make", "lab"], cwd=clone, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    def until(self, pattern):
        """Seconds until a line of the output matches."""
        for line in self.process.stdout:
            self.out += line
            if re.search(pattern, line):
                return time.monotonic() - self.began
        pytest.fail(self.out)

    def send(self, number):
        """To the whole foreground group, as a terminal does."""
        os.killpg(self.process.pid, number)
        self.process.communicate(timeout=60)


def processes_in(clone):
    return [process.info["cmdline"] for process in psutil.process_iter(["cmdline", "cwd"])
            if str(process.info["cwd"] or "").startswith(str(clone))
            or any(str(clone) in word for word in process.info["cmdline"] or [])]


def test_make_lab_from_a_fresh_clone(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    ready = r"http://127\.0\.0\.1:\d+/lab\?token="
    first = MakeLab(clone)
    first.until("Installing the packages")
    time.sleep(5)
    first.send(signal.SIGKILL)
    whole = MakeLab(clone)
    whole.until("training a vocabulary of 50,257")
    whole.send(signal.SIGKILL)
    subprocess.run(["rm", "-rf", clone / ".venv"], check=True)
    again = MakeLab(clone)
    seconds = again.until(ready)
    print(f"make lab with cached packages: {seconds:.0f} s")
    again.send(signal.SIGINT)
    assert again.process.returncode != 0
    quick = MakeLab(clone)
    seconds = quick.until(ready)
    print(f"second run: {seconds:.1f} s")
    quick.send(signal.SIGINT)
    deadline = time.monotonic() + 15
    while processes_in(clone) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not processes_in(clone)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True,
                             text=True)
    assert changed.stdout == "", "set-up must not dirty the checkout"
