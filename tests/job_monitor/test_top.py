"""The output of `lab top`, and its errors for bad input."""

import io
import json
import os
import subprocess
import time

import pytest

from job_monitor import cli as watch_cli
from job_monitor import slurm, snapshot, table
from lab import cli
from labcore.errors import LabError
from slurmbox import jobfolders
from slurmbox.clients import NOT_RUNNING
from slurmbox.layout import Layout
from tests.job_monitor.samples import (
    VIRTUAL,
    job,
    lines,
    out_of_memory,
    rank_file,
    take,
    virtual_file,
)


def test_the_table_has_a_row_for_each_rank(tmp_path):
    text = table.as_text([take(tmp_path, job(limit="00:10:00"), lines())])
    head, names, *rows = text.splitlines()
    assert head == ("job 7 sample: RUNNING, on slurmnode[1-2], for 00:01:00 of 00:10:00, "
                    "iteration 3 of 20")
    assert names.split() == list(table.HEAD)
    assert [row.split()[:9] for row in rows] == [
        [str(n), f"slurmnode{1 + n // 2}", "-", "running", "3/20", "103.0", "8.7000", "-", "0.50"]
        for n in range(4)]


def test_modeled_figures_are_said_to_be(tmp_path):
    files = [virtual_file(number) for number in range(4)]
    text = table.as_text([take(tmp_path, job(), lines(label=VIRTUAL, loss=False), files)])
    assert "10.0/16.0 GiB" in text and "4.85" in text
    assert text.splitlines()[-1] == (
        f"  times, TFLOP/s, and memory are modeled: {VIRTUAL}; virtual time 0.3 s")


def test_errors_and_mismatches_stand_below(tmp_path):
    files = [virtual_file(number) for number in range(4)]
    taken = take(tmp_path, job("FAILED", command="a.sh --train-iters 8"), out_of_memory(2), files)
    *_, error, mismatch = table.as_text([taken]).splitlines()
    assert error.startswith("  ERROR out of memory on rank(s) 2: CUDA out of memory. Tried")
    assert mismatch == "  MISMATCH --train-iters: requested 8, but the log says 20"
    why = next(row for row in table.as_text([taken]).splitlines() if row.startswith("     2"))
    assert why.endswith("...") and len(why) < 200


def test_a_cluster_without_rank_files_says_that_the_log_is_all(tmp_path):
    text = table.as_text([take(tmp_path, job(), lines(), [])])
    assert text.splitlines()[1] == (
        "  from the log alone, because no rank wrote a status file: 103.0 ms per iteration, "
        "loss 8.7000, "
        "TFLOP/s -")


def test_of_many_ranks_the_sick_come_first(tmp_path):
    files = [rank_file(n, world_size=200) for n in range(200)]
    files[150]["state"] = "failed"
    taken = take(tmp_path, job(), lines(world=200), files)
    rows = table.as_text([taken]).splitlines()[2:]
    assert rows[0].split()[:4] == ["150", "slurmnode76", "-", "failed"]
    assert "  ... and 136 more rank(s): 136 running" in rows


def test_nothing_that_a_job_says_steers_the_terminal(tmp_path):
    from rich.console import Console

    hostile = "\x1b]8;;file:///x\x07[red]\x1b[2J\x9b2J\r\u202ex\u2066"
    files = [rank_file(n, node=hostile, state=hostile, device=hostile, modeled=True,
                       reason=hostile) for n in range(4)]
    log = lines(hostile, f"[rank 1] error: {hostile}", until=1)
    taken = take(tmp_path, job("FAILED", name=hostile, command=f"a.sh --train-iters '{hostile}'",
                               nodes=hostile, reason=hostile), log, files)
    stream = io.StringIO()
    Console(file=stream, width=160, color_system=None).print(table.as_table([taken], "foot"))
    for text in (table.as_text([taken]), stream.getvalue()):
        assert "[red]" in text and text.replace("\n", "").isprintable()


def test_on_a_terminal_brackets_are_no_markup(tmp_path):
    from rich.console import Console

    log = lines("[rank 1] error: [/red] [bold]odd[/]")
    stream = io.StringIO()
    Console(file=stream, width=160).print(
        table.as_table([take(tmp_path, job("FAILED", name="[x]"), log)], "foot"))
    assert "[/red] [bold]odd[/]" in stream.getvalue() and "7 [x]: FAILED" in stream.getvalue()


def test_the_record_is_json_to_the_letter(tmp_path):
    files = [rank_file(n, loss=float("nan")) for n in range(4)]
    told = snapshot.as_dict(take(tmp_path, job(), lines(), files))

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
    (["top", "job3"], "top job3: a job ID is a number, such as 3; 28_0 is a task of "
     "an array, and 26+1 a component; squeue and sacct list them"),
    (["report", "3_"], "report 3_: a job ID is a number, such as 3;"),
    (["top", "--interval", "0"],
     "top --interval 0: not between 0.2 and 3600 seconds; nearest: 0.2"),
    (["top", "--interval", "nan"], "top --interval nan: not between"),
    (["top", "--log", "x"], "top --log x needs a job; nearest: lab top JOBID --log x")])
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
                os.utime(path, (time.time() - 2 * jobfolders.MIN_AGE,) * 2)


def left(home):
    return sorted(int(one.name) for one in Layout(home).ranks.iterdir() if one.name.isdigit())


def test_old_jobs_files_go_and_fresh_ones_stay(tmp_path):
    kept(tmp_path, 1, 2, 3, 20, 100, 101)
    (Layout(tmp_path).ranks / "notes").mkdir()
    assert jobfolders.prune(Layout(tmp_path), limit=100) == 0
    assert jobfolders.prune(Layout(tmp_path), limit=2) == 3  # job 20 may live
    assert left(tmp_path) == [20, 100, 101]
    assert (Layout(tmp_path).ranks / "notes").is_dir()
    assert jobfolders.prune(Layout(tmp_path / "none")) == 0


@pytest.mark.parametrize(("environment", "fresh"), [
    ({"SLURM_JOB_ID": "9"}, True),  # the batch script, also of a job that runs again
    ({"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, False),
    ({"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, True),  # srun alone
    ({"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, False), ({}, False)])
def test_a_job_s_folder_begins_with_its_first_task(tmp_path, environment, fresh):
    """Job 9 has the folder of an earlier start; job 8 has none."""
    layout = Layout(tmp_path / "a b")
    kept(layout.home, 9)
    (layout.ranks / "9" / jobfolders.JOB_FILE).write_text("JobId=9 old\n")
    fake = tmp_path / "scontrol"
    fake.write_text('#!/bin/sh\n[ "$1" = show ] && echo "JobId=$4" || echo "#!" > "$4"\n')
    fake.chmod(0o755)
    done = subprocess.run(["sh", "-eu", "-c", "\n".join(jobfolders.prolog_lines(layout))],
                          env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_STEP_ID": "",
                               "SLURM_JOB_ID": "", **environment}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder = layout.ranks / environment.get("SLURM_JOB_ID", "9")
    if fresh:
        assert sorted(one.name for one in folder.iterdir()) == [
            jobfolders.JOB_FILE, jobfolders.SCRIPT_FILE]
        assert (folder / jobfolders.JOB_FILE).read_text() == f"JobId={folder.name}\n"
    else:
        assert left(layout.home) == [9] and (layout.ranks / "9" / "0.json").exists()


def fails(*_):
    raise LabError("Slurm does not respond")


@pytest.mark.parametrize("text", ["JobId=7 JobName=x JobState=RUNNING", ""])
def test_while_the_cluster_is_up_the_records_are_no_answer(no_cluster, monkeypatch, text):
    folder = Layout(no_cluster).ranks / "7"
    folder.mkdir(parents=True)
    (folder / jobfolders.JOB_FILE).write_text(text)
    monkeypatch.setattr(slurm, "_scontrol_jobs", fails)
    monkeypatch.setattr(slurm.health, "supervisor", lambda layout: (1, 1))
    with pytest.raises(LabError, match="does not respond"):
        slurm.find(7)
    monkeypatch.setattr(slurm.health, "supervisor", lambda layout: None)
    if text:
        assert slurm.find(7).state == "UNKNOWN"
    else:  # nothing is known of it
        with pytest.raises(LabError, match="does not respond"):
            slurm.find(7)


def test_top_goes_on_when_slurm_is_silent_for_a_moment(tmp_path, monkeypatch):
    from rich.console import Console

    first, last = take(tmp_path, job(), lines()), take(tmp_path, job("COMPLETED"), lines())
    answers = iter([LabError("Slurm does not respond"), [last]])

    def look(*_):
        answer = next(answers)
        if isinstance(answer, LabError):
            raise answer
        return answer

    stream = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda: Console(
        file=stream, width=160, height=50, force_terminal=True))
    monkeypatch.setattr(watch_cli, "take_snapshots", look)
    watch_cli.redraw([first], 7, None, 0.0)
    said = stream.getvalue()
    assert "no update: Slurm does not respond" in said and "COMPLETED" in said


def test_rows_that_are_left_out_are_called_what_they_are(tmp_path):
    files = [rank_file(n, world_size=200, state="failed" if n < 100 else "training")
             for n in range(200)]
    text = table.as_text([take(tmp_path, job(), lines(world=200), files)])
    assert "  ... and 136 more rank(s): 36 failed, 100 running" in text


@pytest.mark.parametrize("height", [8, 24, 60])
def test_a_terminal_s_height_cuts_rows_and_not_the_errors(tmp_path, height):
    from rich.console import Console

    shown = take(tmp_path, job("FAILED"), out_of_memory(2),
                 [virtual_file(n, world_size=100) for n in range(100)])
    stream = io.StringIO()
    console = Console(file=stream, width=160, height=height)
    console.print(table.shorten_to_terminal([shown], "the foot", console))
    said = stream.getvalue().splitlines()
    assert len(said) < height and said[-1].strip() == "the foot"
    assert any(line.startswith("ERROR out of memory") for line in said)


def test_whose_a_job_is_its_uid_says(monkeypatch):
    monkeypatch.setenv("USER", "another")
    monkeypatch.setenv("LOGNAME", "another")
    listed = "".join(f"JobId={n} JobName=x UserId=me({uid}) JobState=RUNNING\n"
                     for n, uid in ((1, os.getuid()), (2, os.getuid() + 1)))
    monkeypatch.setattr(slurm, "run_command",
                        lambda *_: subprocess.CompletedProcess([], 0, listed, ""))
    assert [one.number for one in slurm.recent_jobs()] == [1]


def test_a_command_may_hold_what_looks_like_a_field():
    parsed = slurm.parse("JobId=7 Command=/w/a.sh LR=0.5 --seed 3 WorkDir=/w dir StdOut=/w/o")
    assert (parsed.command, parsed.folder) == ("/w/a.sh LR=0.5 --seed 3", "/w dir")


def test_a_missing_folder_of_the_log_is_the_cause(no_cluster):
    path = no_cluster / "logs" / "7.txt"
    failed = job("FAILED", reason="JobLaunchFailure", out=path, err=path, nodes="")
    assert snapshot.take(failed, None).problem == (
        f"log: there is no folder {path.parent}, so Slurm could not open the log and did not start "
        f"the script; create it with mkdir -p {path.parent}")
    path.parent.mkdir()
    assert snapshot.take(failed, None).problem == ""
