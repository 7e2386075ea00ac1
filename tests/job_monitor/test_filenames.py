"""Logs are found by the patterns that Slurm prints."""

import os

import pytest

from job_monitor import filenames, slurm
from labcore.errors import LabError

# Of Slurm 22.05: the pattern as scontrol prints it, and the file that the job wrote.
JOB = {"JobId": "1", "JobName": "a.sh", "UserId": "root(0)", "NodeList": "slurmnode[1-2]"}
TASK = {**JOB, "JobId": "4", "ArrayJobId": "2", "ArrayTaskId": "0", "NodeList": "slurmnode1"}
PRINTED = "o/%N_%J_%t_%n_%s_{}_a.sh_root_%3j_%%.txt"


@pytest.mark.parametrize(("pattern", "pairs", "written"), [
    (PRINTED.format("1_4294967294"), JOB,
     "o/slurmnode1_1_0_0_batch_1_4294967294_a.sh_root_001_%.txt"),
    (PRINTED.format("2_0"), TASK, "o/slurmnode1_4_0_0_batch_2_0_a.sh_root_004_%.txt"),
    ("%A_%a-%b.%x.%u", TASK, "2_0-0.a.sh.root"),
    ("%A_%a_%4A", JOB, "1_4294967294_0001"),
    ("%5x_%3N", JOB, "a.sh_slurmnode1"),
    (r"\%j.txt", JOB, "%j.txt"),
    ("%q_%j", JOB, "%q_1"),
])
def test_every_symbol_is_expanded(pattern, pairs, written):
    assert filenames.expand(pattern, pairs) == written


@pytest.mark.parametrize(("nodes", "first"), [
    ("gpu[02-04,7].site.org", "gpu02"), ("n1,n2", "n1"), ("n1.local", "n1"), ("", ""),
    ("r[1,3]c", "r1c")])
def test_the_first_node_has_its_short_name(nodes, first):
    assert filenames.first_node(nodes) == first


def test_a_log_is_found_though_the_job_started_on_another_node(tmp_path):
    pairs = JOB | {"WorkDir": str(tmp_path)}
    assert filenames.find("%N_%j.txt", pairs) == tmp_path / "slurmnode1_1.txt"  # before the start
    for age, name in enumerate(("slurmnode3_1.txt", "slurmnode2_1.txt", "slurmnode2_2.txt")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age,) * 2)
    assert filenames.find("%N_%j.txt", pairs) == tmp_path / "slurmnode3_1.txt"
    assert filenames.find("/logs/[x]/%j.txt", pairs) == filenames.Path("/logs/[x]/1.txt")
    assert filenames.find("/dev/null", pairs) is None


@pytest.mark.parametrize(("text", "number"), [
    ("28", 28), ("26+0", 26), ("26+1", 26), ("28.0", 28), ("28.batch", 28), ("28_3", 31),
    ("28_3.extern", 31)])
def test_every_form_of_a_job_id_is_understood(monkeypatch, text, number):
    def show(*words):
        assert words[-1] == "28_3"
        return slurm.subprocess.CompletedProcess(words, 0, "JobId=31 ArrayJobId=28 ArrayTaskId=3\n")

    monkeypatch.setattr(slurm, "run_command", show)
    assert slurm.number_of(text, "top") == number


@pytest.mark.parametrize("text", ["", "x", "job 7", "28_", "+1", "28_1_2", "٣"])
def test_what_is_no_job_id_is_refused(text):
    with pytest.raises(LabError, match=r"a job ID is a number, such as [1-7]"):
        slurm.number_of(text, "top")


def test_a_task_that_the_array_lacks_is_named(monkeypatch):
    monkeypatch.setattr(slurm, "run_command", lambda *words: slurm.subprocess.CompletedProcess(
        words, 1, "", "slurm_load_jobs error: Invalid job id specified"))
    with pytest.raises(LabError, match="top 28_9: Slurm has no such task of an array"):
        slurm.number_of("28_9", "top")
