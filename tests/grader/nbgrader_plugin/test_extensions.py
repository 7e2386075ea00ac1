"""nbgrader's parts of JupyterLab: there for the instructor, off for students."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from grader.course import Course
from grader.gradebook import records
from grader.nbgrader_plugin import formgrader
from lab.jupyter import INSTRUCTORS, offline_settings
from lab.start import only_once
from labcore.errors import LabError
from tests.conftest import command_line
from tests.grader.conftest import run
from tests.grader.programs.saving import save
from tests.warm import server

PROGRAM = str(Path(sys.executable).with_name("jupyter"))


def listing(*words: str, settings: Path) -> str:
    environment = {**os.environ, "JUPYTER_CONFIG_PATH": str(settings),
                   "PATH": str(Path(PROGRAM).parent)}  # without Node.js, which it would start twice
    done = subprocess.run([PROGRAM, *words], env=environment, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return re.sub(r"\x1b\[\d*m", "", done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("instructor", [True, False])
def test_jupyterlab_takes_nbgraders_extension(tmp_path, instructor):
    """nbgrader 0.9.5 is marked X (incompatible) with this JupyterLab, and pip does not mind."""
    text = listing("labextension", "list", settings=offline_settings(tmp_path, instructor))
    assert re.search(r"@jupyter/nbgrader v[\d.]+ enabled OK", text), text
    for name in INSTRUCTORS:
        assert (f"@jupyter/nbgrader:{name}" in text.partition("Disabled extensions")[2]
                ) is not instructor, text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(
    signal.SIGTERM, marks=pytest.mark.stress)])
def test_lab_formgrader_says_its_address_and_leaves_no_process(tmp_path, number):
    program = Path(sys.executable).with_name("lab")
    running = subprocess.Popen(
        [program, "formgrader"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "LAB_COURSE": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    try:
        text = ""
        while "token=" not in text:
            line = running.stdout.readline()
            assert line, text
            text += line
        root, token = re.search(r"(http://\S+)/lab\?token=(\w+)", text).groups()
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert direct.open(f"{root}/formgrader?token={token}").status == 200
        again = run(Course(tmp_path), "formgrader", seconds=60)
        assert again.returncode == 1 and root in again.stderr
        running.send_signal(number)
        rest = running.communicate(timeout=60)[0]
        assert running.returncode == 130 and "Traceback" not in rest
    finally:
        running.kill()
    with pytest.raises(urllib.error.URLError):
        direct.open(root)
    assert not [line for line in map(command_line, psutil.pids()) if str(tmp_path) in line]


@pytest.fixture
def instructors_variables(monkeypatch, tmp_path) -> dict[str, str]:
    """The environment that `lab formgrader` passes to its JupyterLab and thus to every kernel."""
    given: dict[str, str] = {}
    monkeypatch.setattr(formgrader, "Jupyter",
                        lambda root, variables, *rest, **more: given.update(variables))
    formgrader._jupyter(Course(tmp_path), None, "127.0.0.1", None)
    return given


@pytest.mark.slow
@pytest.mark.parametrize("by_instructor", [True, False])
def test_modules_beside_a_submitted_notebook_do_not_run_in_the_instructors_kernel(
        tmp_path, instructors_variables, by_instructor):
    """Without the variables they do, which shows that the attack works."""
    (tmp_path / "ipykernel_launcher.py").write_text("open('ran', 'w')\n")
    variables = dict(os.environ)
    variables.pop("PYTHONSAFEPATH", None)
    variables |= instructors_variables if by_instructor else {}
    started = subprocess.run(
        [sys.executable, "-m", "ipykernel_launcher", "--version"], cwd=tmp_path, env=variables,
        capture_output=True, timeout=60)
    assert (tmp_path / "ran").exists() is not by_instructor, started.stderr
    shell = ("from IPython.terminal.ipapp import TerminalIPythonApp as App; "
             "App.instance().init_path(); import sys; print('' in sys.path)")
    inside = subprocess.run([sys.executable, "-c", shell], cwd=os.sep, env=variables,
                            capture_output=True, text=True, timeout=60)
    assert inside.stdout.strip() == str(not by_instructor), inside.stderr


def test_several_instructors_of_a_hub_share_a_course_and_one_without_a_hub_does_not(tmp_path):
    with only_once(tmp_path, shared=True), only_once(tmp_path, shared=True), \
            pytest.raises(LabError, match="already running"), only_once(tmp_path):
        pass
    with only_once(tmp_path), pytest.raises(LabError, match="already running"), \
            only_once(tmp_path, shared=True):
        pass


@pytest.mark.slow
def test_two_instructors_who_save_at_the_same_time_lose_nothing(course):
    server().run_ranks(save, 2, str(course.root), backend=None, timeout=240)
    with records.gradebook(course) as book:
        there = {student.id for student in book.students}
    assert {f"{rank}-{turn}" for rank in range(2) for turn in range(8)} <= there
