"""Runs on several GPU kinds, which are several jobs for Slurm and one for `lab top`."""

import subprocess

import pytest

from job_monitor import components, ranks, requested, slurm, snapshot, table
from labcore.errors import LabError
from slurmbox import jobfolders
from slurmbox.layout import Layout
from tests.job_monitor.samples import job, lines, take

HET = """\
JobId=12 HetJobId=12 HetJobOffset=0 JobName=mixed HetJobIdSet=12-13 UserId=me(5) \
JobState={state} NodeList=slurmnode1 NumNodes=1 NumTasks=1 TRES=cpu=2,gres/gpu=2 \
Command=/w/code/mixed.sh WorkDir=/w StdOut=/w/mixed_12.txt
JobId=13 HetJobId=12 HetJobOffset=1 JobName=mixed HetJobIdSet=12-13 UserId=me(5) \
JobState={state} NodeList=slurmnode2 NumNodes=1 NumTasks=1 TRES=cpu=2,gres/gpu=2 \
Command=/w/code/mixed.sh WorkDir=/w StdOut=/w/mixed_13.txt
"""
JOINED = """\
JobId=15 JobName=mixed UserId=me(5) JobState=RUNNING NodeList=slurmnode2 NumNodes=1 NumTasks=1 \
TRES=cpu=2,gres/gpu=2 Command=/w/code/mixed.join1.sh 14 WorkDir=/w StdOut=/w/mixed_15.txt
JobId=14 JobName=mixed UserId=me(5) JobState=RUNNING NodeList=slurmnode1 NumNodes=1 NumTasks=1 \
TRES=cpu=2,gres/gpu=2 Command=/w/code/mixed.master.sh WorkDir=/w StdOut=/w/mixed_14.txt
"""
SCRIPT = 'srun torchrun --nnodes 2 --nproc_per_node "$SLURM_GPUS_ON_NODE" train.py'


@pytest.fixture
def slurm_says(tmp_path, monkeypatch):
    """Answer scontrol with a text, as the controller would: a component's ID has one line."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setattr(slurm.os, "getuid", lambda: 5)

    def say(text):
        def client(*words):
            one = words[-1] if words[-1].isdigit() else ""
            shown = [line for line in text.splitlines(keepends=True)
                     if {f"JobId={one}", f"HetJobId={one}"} & set(line.split()) or not one]
            return subprocess.CompletedProcess(words, 0, "".join(shown), "")

        monkeypatch.setattr(slurm, "run_command", client)
        return tmp_path

    return say


def join(home, *texts):
    folder = home / components.NODE_FILES / "14"
    folder.mkdir(parents=True)
    for part, text in enumerate(texts, 1):
        (folder / f"joined.{part}").write_text(text)


def test_a_heterogeneous_job_is_one_job(slurm_says):
    slurm_says(HET.format(state="RUNNING"))
    (result,) = slurm.recent_jobs()
    assert (result.number, result.nodes, result.node_count, result.gpus, result.tasks) == (
        12, "slurmnode1,slurmnode2", 2, 4, 2)
    assert [path.name for path in result.logs] == ["mixed_12.txt"]
    assert slurm.find(12) == slurm.find(13) == result
    assert requested.mismatches(result, SCRIPT, requested.configuration(lines(world=4))) == []
    config = requested.configuration(lines(world=2))
    assert [str(one) for one in requested.mismatches(result, "", config)] == [
        "ranks: requested 4 GPUs, but the log says 2 rank(s)"]


def test_nodes_with_different_numbers_of_gpus_are_not_averaged(slurm_says):
    slurm_says(HET.format(state="RUNNING").replace("gres/gpu=2", "gres/gpu=4", 1))
    result = slurm.find(12)
    assert (result.gpus, requested.requested_ranks(result, SCRIPT)) == (6, None)
    assert requested.mismatches(result, SCRIPT, requested.configuration(lines(world=6))) == []
    assert len(requested.mismatches(result, SCRIPT, requested.configuration(lines(world=4)))) == 1


def test_the_record_of_a_heterogeneous_job_has_all_components(slurm_says, monkeypatch):
    home = slurm_says("")
    folder = Layout(home).ranks / "12"
    folder.mkdir(parents=True)
    (folder / jobfolders.JOB_FILE).write_text(HET.format(state="RUNNING"))
    row = {"JobName": "mixed", "State": "COMPLETED", "ExitCode": "0:0", "Start": "", "End": "",
           "Elapsed": "00:00:09", "Timelimit": "01:00:00", "NNodes": "1", "NodeList": "slurmnode1"}
    monkeypatch.setattr(slurm, "accounting", lambda number: [row])
    result = slurm.find(12)
    assert (result.state, result.command, result.nodes, result.node_count, result.gpus) == (
        "COMPLETED", "/w/code/mixed.sh", "slurmnode1,slurmnode2", 2, 4)


def test_a_master_and_the_jobs_that_joined_it_are_one_job(slurm_says, tmp_path):
    join(slurm_says(JOINED), "15\n")
    (result,) = slurm.recent_jobs()
    assert result == slurm.find(14)
    assert (result.number, result.joined, result.nodes, result.gpus) == (
        14, (15,), "slurmnode1,slurmnode2", 4)
    assert [path.name for path in result.logs] == ["mixed_14.txt", "mixed_15.txt"]
    assert requested.mismatches(result, SCRIPT, requested.configuration(lines(world=4))) == []
    shown = take(tmp_path, result, lines())
    assert table.title(shown).startswith("job 14 mixed: RUNNING, joined by 15, on slurmnode1,slurm")
    assert snapshot.as_dict(shown)["logs"] == ["/w/mixed_14.txt", "/w/mixed_15.txt"]
    assert slurm.find(15).number == 15


@pytest.mark.parametrize("text", ["", "fifteen", "99", "14"])
def test_a_file_that_no_joining_job_wrote_joins_nothing(slurm_says, monkeypatch, text):
    join(slurm_says(JOINED), text)
    monkeypatch.setattr(slurm, "accounting", lambda number: [])
    assert [one.number for one in slurm.recent_jobs()] == [14, 15]
    assert slurm.find(14).joined == ()


def test_a_job_that_joins_another_master_does_not_count(slurm_says):
    join(slurm_says(JOINED.replace("join1.sh 14", "join1.sh 8")), "15")
    assert slurm.find(14).joined == ()


def test_an_unknown_job_is_still_an_error(slurm_says, monkeypatch):
    slurm_says(JOINED)
    monkeypatch.setattr(slurm, "accounting", lambda number: [])
    with pytest.raises(LabError, match="job 99: Slurm has no such job; the latest is 15"):
        slurm.find(99)


@pytest.mark.parametrize(("status", "found"), [
    ("/w/.cluster/ranks/7", "alive"), ("/w/.cluster/ranks/17", "gone"), ("", "gone")])
def test_a_rank_of_a_job_that_joined_is_the_master_s(tmp_path, status, found):
    folder = tmp_path / "103"
    folder.mkdir()
    (folder / "stat").write_text("103 (python) S 1 2 3")
    (folder / "environ").write_bytes(f"SLURM_JOB_ID=8\0RANK=3\0RANK_STATUS={status}".encode())
    assert ranks.process(tmp_path, 7, ranks.RankStatus(3, pid=103)) == found


def test_one_component_stays_as_it_is():
    assert components.combine([job()]) == job()


def test_without_a_cluster_slurm_is_not_asked_to_look_for_another(tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    for name in ("sinfo", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {asked}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "workspace"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(LabError, match="the cluster is not running"):
        slurm.run_command("sinfo")
    assert not asked.exists()
