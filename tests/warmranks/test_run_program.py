"""Programs in forks of the server: as subprocess.run would run them."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys

import pytest

from warmranks import RankError, run_program

from . import steps


@pytest.mark.parametrize(("code", "expected", "err"), [
    (None, 0, "to stderr\n"), (3, 3, "to stderr\n"), ("bad", 1, "to stderr\nbad\n")])
def test_a_program_s_exit_code_and_output(code, expected, err):
    done = run_program(steps.echo, ["echo", "--flag", "x"], code, input="given",
                       env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (
        expected, "['--flag', 'x'] None given\n", err)


def test_a_program_may_return_its_exit_code():
    assert run_program(steps.returns, ["returns"], 4).returncode == 4


def test_a_script_runs_like_a_new_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(sys.argv, __name__, os.getcwd(), dict(os.environ))\n"
                      "import atexit\natexit.register(print, 'end')\n1 / 0\n")
    env = {"ONLY": "this", "PATH": os.defpath, "LC_CTYPE": "C.UTF-8"}
    cold = subprocess.run([sys.executable, str(script), "a"], capture_output=True, text=True,
                          cwd=tmp_path, env=env, timeout=60)
    warm = run_program(functools.partial(runpy.run_path, str(script), run_name="__main__"),
                       [str(script), "a"], cwd=tmp_path, env=env)
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_ranks_are_ended_with_the_first_that_fails():
    done = run_program(steps.patient, ["patient"], ranks=3)
    assert done.returncode == 3


def test_a_program_that_takes_too_long_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(steps.patient, ["patient"], env=os.environ | {"RANK": "0"}, timeout=1)


def test_a_program_that_cannot_be_imported_is_named(tmp_path):
    with pytest.raises(RankError, match=r"no rank was started(.|\n)*FileNotFoundError"):
        run_program(steps.echo, ["echo"], cwd=tmp_path / "nowhere")
