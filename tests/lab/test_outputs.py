"""`lab outputs`: what it stores of a cell, and what it refuses."""

import base64
import contextlib
import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from lab import cli
from lab.outputs import cleaning, running
from lab.outputs.cleaning import cleaned
from labcore import own_labs, shipping
from labkit.build.cli import build
from slurmbox.clients import full_environment
from slurmbox.install import locate
from tests.conftest import cluster_processes
from tests.labkit.build.conftest import SAMPLE
from tests.needs import because

HOME = Path("/tmp/lab-outputs-x1y2")
SMALL = SAMPLE[:SAMPLE.index("# %% [markdown]\n# ## Exercise 2")]
STORED = "notebooks/outputs/90_sample.json"


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    return {"output_type": "display_data", "metadata": {},
            "data": {kind.replace("_", "/"): value for kind, value in data.items()}}


def picture(width=20):
    buffer = io.BytesIO()
    image = Image.effect_noise((width, 12), 90).convert("RGB")
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def opened(output):
    return Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))


def test_pieces_of_a_stream_are_one_output():
    made = cleaned([stream("job 1: "), stream("RUNNING\n"), stream("!", "stderr")], HOME)
    assert made == [stream("job 1: RUNNING\n"), stream("!", "stderr")]


@pytest.mark.parametrize(("text", "kept"), [
    (f"{HOME}/code/x.sh:3", "/home/student/workspace/code/x.sh:3"),
    (f"{HOME}x/code", f"{HOME}x/code"),
    ("<Axes at 0x7fd2a81b40>", "<Axes at 0x7f>"),
    ("exitcode: 1 (pid: 4711)", "exitcode: 1 (pid: 1234)"),
    (f"login@{os.uname().nodename}: 43.2 ms", "login@login: 43.2 ms"),
    ("ranks 0x1f at 43.2 ms, rapid 7", "ranks 0x1f at 43.2 ms, rapid 7"),
    ("10%\r50%\r100%\ndone\n", "100%\ndone\n"),
    ("\x1b[1m\x1b[38;2;10;138;63m✓\x1b[0m right\n", "\x1b[1m\x1b[38;2;10;138;63m✓\x1b[0m right\n")])
def test_what_says_only_where_it_ran_is_replaced_and_what_was_measured_stays(text, kept):
    (output,) = cleaned([stream(text)], HOME)
    assert output["text"] == kept


def test_a_users_name_is_replaced_where_it_is_a_word(monkeypatch):
    monkeypatch.setattr(cleaning.getpass, "getuser", lambda: "ada")
    (output,) = cleaned([stream("1 batch ada RUNNING adam /tmp/tmpq1w2e3/x\n")], HOME)
    assert output["text"] == "1 batch student RUNNING adam /tmp/job/x\n"


def test_a_figure_is_stored_as_a_small_picture_with_its_alternative_text():
    image = f'<img alt="4 stages &amp; 2" src="data:image/png;base64,{picture(3000)}">'
    page = f'<div style="overflow-x: auto">{image}</div>'
    (output,) = cleaned([shown(text_html=page, text_plain="4 stages & 2")], HOME)
    assert opened(output).width == cleaning.WIDTH
    assert len(opened(output).getcolors()) <= cleaning.COLORS
    assert output["metadata"] == {"image/png": {"alt": "4 stages & 2"}}


def test_a_figure_with_controls_is_stored_whole_and_says_that_it_has_some():
    page = f'<figure><img src="data:image/png;base64,{picture()}"><button>play</button></figure>'
    figure, line = cleaned([shown(text_html=page, text_plain="x")], HOME)
    assert opened(figure).size == (20, 12) and line == stream(cleaning.INTERACTIVE)


def test_of_a_page_that_steps_through_drawings_the_middle_one_is_stored():
    drawings = [f"<svg>{name}</svg>" for name in ("first", "middle", "last")]
    page = '<input type="radio">' + "".join(
        f'<img alt="step &amp; {number}" src="data:image/svg+xml;base64,{encoded}">'
        for number, encoded in enumerate(base64.b64encode(drawing.encode()).decode()
                                         for drawing in drawings))
    figure, line = cleaned([shown(text_html=page, text_plain="x")], HOME)
    assert figure["data"] == {"image/svg+xml": drawings[1], "text/plain": "step & 1"}
    assert figure["metadata"] == {"image/svg+xml": {"alt": "step & 1"}}
    assert line == stream(cleaning.INTERACTIVE)


@pytest.mark.parametrize("data", [
    {"text_html": "<iframe src='http://127.0.0.1:6006'></iframe>", "text_plain": "<IFrame>"},
    {"text_html": "<p onclick='x()'>x</p>"}, {"application_javascript": "x()"}])
def test_a_page_that_draws_itself_is_left_out_with_a_line(data):
    assert cleaned([shown(**data)], HOME) == [stream(cleaning.LIVE)]


def test_a_table_stays_a_table():
    (output,) = cleaned([shown(text_html=f"<table>{HOME}/x</table>", text_plain="t")], HOME)
    assert output["data"]["text/html"] == "<table>/home/student/workspace/x</table>"


def test_a_long_text_loses_its_middle():
    text = "".join(f"line {number}\n" for number in range(500))
    (output,) = cleaned([stream(text)], HOME)
    lines = output["text"].splitlines()
    assert len(lines) == cleaning.LINES and lines[0] == "line 0" and lines[-1] == "line 499"
    assert "[... 441 lines are left out here ...]" in lines
    (output,) = cleaned([stream("x" * 50_000)], HOME)
    assert len(output["text"]) < 10_000


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Write a small lab; return its folder. It runs in a workspace without a cluster."""
    monkeypatch.setenv(own_labs.VARIABLE, str(tmp_path))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "sample.svg").write_text("<svg/>")
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "90_sample.py").write_text(SMALL)
    build(tmp_path)

    @contextlib.contextmanager
    def without_cluster(name, data, notify):
        home = tmp_path / "home"
        shipping.make_workspace(home, notify)
        yield home

    monkeypatch.setattr(running, "temporary_workspace", without_cluster)
    monkeypatch.setattr("corpus_tools.cli.ensure", lambda home, notify: None)
    monkeypatch.setattr("slurmbox.install.require_slurm", lambda: None)
    return tmp_path


def test_it_runs_what_is_stale_stores_it_and_builds_the_worked_notebook(lab, capsys):
    assert cli.main(["outputs", "--check"]) == 1
    assert "run `lab outputs 90`" in capsys.readouterr().out
    assert cli.main(["outputs"]) == 0
    out = capsys.readouterr().out
    assert f"{STORED}: " in out and "notebooks/worked/90_sample.ipynb" in out
    cells = json.loads((lab / "notebooks/worked/90_sample.ipynb").read_text())["cells"]
    printed = {cell["id"]: "".join(cell["outputs"][0]["text"]) for cell in cells
               if cell.get("outputs")}
    assert "the queue is empty\n" in printed.values()
    assert "right in 2 cases" in printed["global-batch-check"]
    assert cli.main(["outputs", "--check"]) == 0
    assert cli.main(["outputs"]) == 0 and "up to date" in capsys.readouterr().out


def test_a_run_that_raised_an_error_stores_nothing(lab, capsys):
    path = lab / "solutions" / "90_sample.py"
    path.write_text(SMALL.replace("# !echo the queue is empty", "1 / 0"))
    (lab / STORED).parent.mkdir()
    (lab / STORED).write_text('{"date": "x", "machine": "y", "cells": []}\n')
    assert cli.main(["outputs", "90"]) == 1
    said = capsys.readouterr().err
    assert "90_sample, cell explore-" in said and "ZeroDivisionError" in said
    assert (lab / STORED).read_text() == '{"date": "x", "machine": "y", "cells": []}\n'


@pytest.mark.parametrize(("arguments", "said"), [
    (["outputs", "98"], "98: no labs of that name in"),
    (["outputs", "90"], "Slurm is not installed on this machine")])
def test_bad_input_is_an_error(arguments, said, lab, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setenv(own_labs.VARIABLE, str(lab))
    monkeypatch.setenv("LAB_SLURM_UNPACKED", "1")
    monkeypatch.setenv("LAB_SLURM_PREFIX", str(lab / "none"))
    assert cli.main(arguments) == 1
    assert said in capsys.readouterr().err
    assert not (lab / "notebooks" / "outputs").exists()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_lab_runs_on_a_cluster_of_its_own_with_the_files_of_earlier_labs(tmp_path):
    if locate() is None:
        pytest.skip(because("slurm"))
    (tmp_path / "tokens.bin").write_text("1 2 3")
    with running.temporary_workspace("12_new", tmp_path, lambda line: None) as home:
        assert (home / "data" / "tokens.bin").is_file() and (home / "notebooks").is_dir()
        assert {path.name for path in (home / "mytrainer").glob("*.py")} >= {"ddp.py", "train.py"}
        assert not (home / "mytrainer" / "fp8.py").exists()  # lab 13
        queue = subprocess.run(["squeue", "--noheader"], env=full_environment(home),
                               capture_output=True, text=True)
        assert (queue.returncode, queue.stdout) == (0, "")
    assert not home.exists() and not cluster_processes(home)
