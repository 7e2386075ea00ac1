"""tools/cost.py counts all descendants of a command, and passes on its exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cost

PROGRAM = Path(cost.__file__)
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def counted(*command: str) -> tuple[int, float, str]:
    """Return the exit code, the CPU-seconds, and the last line printed."""
    done = subprocess.run([sys.executable, PROGRAM, *command], capture_output=True, text=True)
    line = done.stdout.splitlines()[-1]
    return done.returncode, float(re.match(r"cost: ([\d,]+) CPU", line)[1].replace(",", "")), line


def test_a_daemon_counts_even_if_its_parent_ended_before_it(tmp_path):
    program, done = tmp_path / "burn.py", tmp_path / "done"
    program.write_text(f"{BURN}\nopen({str(done)!r}, 'w')")
    # The shell starts two programs in a session of their own, and ends once both are done.
    script = (f"setsid {sys.executable} {program} & setsid {sys.executable} {program} & disown; "
              f"while [ ! -e {done} ]; do sleep 0.1; done; sleep 1")
    code, seconds, line = counted("bash", "-c", script)
    assert code == 0 and seconds >= 0.6, line
    assert "(budget: " in line


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_code_is_the_command_s(script, code):
    assert counted("bash", "-c", script)[0] == code


def test_every_new_lab_raises_the_budget(tmp_path):
    for name in ("00_welcome.py", "13_eight_bits.py", "notes.md"):
        (tmp_path / name).touch()
    assert cost.budget(tmp_path) == 1800
    (tmp_path / "08_sharding.py").touch()
    assert cost.budget(tmp_path) == 1880
