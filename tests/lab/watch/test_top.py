"""What `lab top` prints, and what it says to bad input."""

import io
import json
import os
import subprocess
import time

import pytest

from lab import cli
from lab.cluster import keeping
from lab.cluster.clients import NOT_RUNNING
from lab.cluster.layout import Layout
from lab.watch import picture, slurm, table
from tests.lab.watch.samples import (
    VIRTUAL,
    job,
    lines,
    out_of_memory,
    rank_file,
    take,
    virtual_file,
)


def test_the_table_has_a_row_for_each_rank(tmp_path):
    text = table.plain([take(tmp_path, job(limit="00:10:00"), lines())])
    head, names, *rows = text.splitlines()
    assert head == ("job 7 sample: RUNNING, on slurmnode[1-2], for 00:01:00 of 00:10:00, "
                    "iteration 3 of 20")
    assert names.split() == list(table.HEAD)
    assert [row.split()[:9] for row in rows] == [
        [str(n), f"slurmnode{1 + n // 2}", "-", "running", "3/20", "103.0", "8.7000", "-", "0.50"]
        for n in range(4)]


def test_modelled_figures_are_said_to_be(tmp_path):
    files = [virtual_file(number) for number in range(4)]
    text = table.plain([take(tmp_path, job(), lines(label=VIRTUAL, loss=False), files)])
    assert "10.0/16.0 GiB" in text and "4.85" in text
    assert text.splitlines()[-1] == (
        f"  times, TFLOP/s and memory are modelled: {VIRTUAL}; virtual time 0.3 s")


def test_errors_and_mismatches_stand_below(tmp_path):
    files = [virtual_file(number) for number in range(4)]
    taken = take(tmp_path, job("FAILED", command="a.sh --train-iters 8"), out_of_memory(2), files)
    *_, error, mismatch = table.plain([taken]).splitlines()
    assert error.startswith("  ERROR out of memory on rank(s) 2: CUDA out of memory. Tried")
    assert mismatch == "  MISMATCH --train-iters: asked for 8, the log says 20"
    why = next(row for row in table.plain([taken]).splitlines() if row.startswith("     2"))
    assert why.endswith("...") and len(why) < 200


def test_a_cluster_without_rank_files_says_that_the_log_is_all(tmp_path):
    text = table.plain([take(tmp_path, job(), lines(), [])])
    assert text.splitlines()[1] == (
        "  by the log alone (no rank wrote what it does): 103.0 ms per iteration, loss 8.7000, "
        "TFLOP/s -")


def test_of_many_ranks_the_sick_come_first(tmp_path):
    files = [rank_file(n, world_size=200) for n in range(200)]
    files[150]["state"] = "failed"
    taken = take(tmp_path, job(), lines(world=200), files)
    rows = table.plain([taken]).splitlines()[2:]
    assert rows[0].split()[:4] == ["150", "slurmnode76", "-", "failed"]
    assert "  ... and 136 more ranks that are well" in rows


def test_on_a_terminal_brackets_are_no_markup(tmp_path):
    from rich.console import Console

    log = lines("[rank 1] error: [/red] [bold]odd[/]")
    stream = io.StringIO()
    Console(file=stream, width=160).print(
        table.rich([take(tmp_path, job("FAILED", name="[x]"), log)], "foot"))
    assert "[/red] [bold]odd[/]" in stream.getvalue() and "7 [x]: FAILED" in stream.getvalue()


def test_the_record_is_json_to_the_letter(tmp_path):
    files = [rank_file(n, loss=float("nan")) for n in range(4)]
    told = picture.record(take(tmp_path, job(), lines(), files))

    def refuse(name):
        raise AssertionError(name)

    again = json.loads(json.dumps(told), parse_constant=refuse)
    assert again["loss"] == "nan" and again["ranks"][0]["word"] == "running"
    assert (again["job"], again["iteration"], again["virtual"], again["source"]) == (
        7, 3, None, "ranks")


@pytest.mark.parametrize(("text", "gpus"), [
    ("TRES=cpu=8,gres/gpu=3 NumNodes=2", 3), ("TRES=cpu=8,gres/gpu:v100=4", 4),
    ("NumNodes=2 TresPerNode=gres:gpu:2", 4), ("NumNodes=2 TresPerNode=gres:gpu:v100:1", 2),
    ("NumNodes=3 TresPerNode=gres:gpu", 3), ("NumNodes=2-4 TresPerNode=gpu:a10:2", 4),
    ("NumNodes=2", None)])
def test_the_gpus_of_a_job(text, gpus):
    assert slurm.parse(f"JobId=3 JobState=RUNNING {text}").gpus == gpus


@pytest.fixture
def no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("words", "error"), [
    (["top"], NOT_RUNNING), (["top", "3"], NOT_RUNNING), (["report", "3"], NOT_RUNNING),
    (["top", "job3"], "top job3: a job's number is a whole number, such as 3; squeue and sacct "
     "list them"),
    (["report", "3.batch"], "report 3.batch: a job's number is a whole number, such as 3;"),
    (["top", "--interval", "0"], "top --interval 0: between 0.2 and 3600 seconds; nearest: 0.2"),
    (["top", "--interval", "nan"], "top --interval nan: between"),
    (["top", "--log", "x"], "top --log x: of which job? lab top JOBID --log FILE")])
def test_bad_input_is_explained(no_cluster, capsys, words, error):
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"lab: error: {error}") and said.out == ""


def kept(home, *numbers):
    for number in numbers:
        folder = Layout(home).ranks / str(number)
        folder.mkdir(parents=True)
        (folder / "0.json").write_text("{}")
        if number < 4:
            for path in (folder / "0.json", folder):
                os.utime(path, (time.time() - 2 * keeping.LIVE,) * 2)


def left(home):
    return sorted(int(one.name) for one in Layout(home).ranks.iterdir() if one.name.isdigit())


def test_old_jobs_files_go_and_fresh_ones_stay(tmp_path):
    kept(tmp_path, 1, 2, 3, 20, 100, 101)
    (Layout(tmp_path).ranks / "notes").mkdir()
    assert keeping.prune(Layout(tmp_path), kept=100) == 0
    assert keeping.prune(Layout(tmp_path), kept=2) == 3  # job 20 may live
    assert left(tmp_path) == [20, 100, 101]
    assert (Layout(tmp_path).ranks / "notes").is_dir()
    assert keeping.prune(Layout(tmp_path / "none")) == 0


@pytest.mark.parametrize(("environment", "fresh"), [
    ({"SLURM_JOB_ID": "9"}, True),  # the batch script, also of a job that runs again
    ({"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, False),
    ({"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, True),  # srun alone
    ({"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, False), ({}, False)])
def test_a_job_s_folder_begins_with_its_first_task(tmp_path, environment, fresh):
    """Of two jobs, 9 has a folder of an earlier start."""
    layout = Layout(tmp_path / "a b")
    kept(layout.home, 9)
    (layout.ranks / "9" / keeping.JOB).write_text("JobId=9 old\n")
    fake = tmp_path / "scontrol"
    fake.write_text('#!/bin/sh\n[ "$1" = show ] && echo "JobId=$4" || echo "#!" > "$4"\n')
    fake.chmod(0o755)
    done = subprocess.run(["sh", "-eu", "-c", "\n".join(keeping.prolog_lines(layout))],
                          env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_STEP_ID": "",
                               "SLURM_JOB_ID": "", **environment}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder = layout.ranks / environment.get("SLURM_JOB_ID", "9")
    if fresh:
        assert sorted(one.name for one in folder.iterdir()) == [keeping.JOB, keeping.SCRIPT]
        assert (folder / keeping.JOB).read_text() == f"JobId={folder.name}\n"
    else:
        assert left(layout.home) == [9] and (layout.ranks / "9" / "0.json").exists()
