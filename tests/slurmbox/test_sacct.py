from datetime import datetime

import pytest

from slurmbox import jobrecords, sacct

NOW = datetime(2026, 1, 2, 12, 0, 0)
DONE = ("JobId=7 UserId=student(1000) GroupId=student(1000) Name=my long job name "
        "JobState=FAILED Partition=slurmpar TimeLimit=60 StartTime=2026-01-02T11:00:00 "
        "EndTime=2026-01-02T11:01:05 NodeList=slurmnode[1-2] NodeCnt=2 ProcCnt=64 "
        "WorkDir=/home/student/my work ReservationName= Tres=cpu=64,mem=512G,node=2,billing=64 "
        "Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-01-02T10:59:58 "
        "EligibleTime=2026-01-02T10:59:58 DerivedExitCode=0:0 ExitCode=3:0 \n")
RUNNING = ("JobId=8 JobName=train UserId=student(1000) Account=(null) QOS=(null) "
           "JobState=RUNNING ExitCode=0:0 TimeLimit=01:00:00 SubmitTime=2026-01-02T11:58:00 "
           "StartTime=2026-01-02T11:59:00 EndTime=2026-01-02T12:59:00 Partition=slurmpar "
           "NodeList=slurmnode1 NumNodes=1 NumCPUs=2 TRES=cpu=2,mem=16G\n")
FINISHED_THERE_TOO = RUNNING.replace("JobId=8", "JobId=7").replace("RUNNING", "FAILED")


@pytest.fixture
def jobs(tmp_path):
    (tmp_path / "records").write_text(DONE)
    return jobrecords.merge(jobrecords.finished(tmp_path / "records"),
                            jobrecords.active(RUNNING + FINISHED_THERE_TOO))


def test_the_table_looks_like_sacct(jobs):
    lines = sacct.table(jobs, sacct.columns(sacct.DEFAULT), NOW).splitlines()
    assert lines[0] == ("JobID           JobName  Partition    Account  AllocCPUS      State "
                        "ExitCode    Elapsed ")
    assert lines[1].startswith("------------ ---------- ")
    assert lines[2] == ("7            my long j+   slurmpar                    64     FAILED "
                        "     3:0   00:01:05 ")
    assert lines[3].split() == ["8", "train", "slurmpar", "2", "RUNNING", "0:0",
                                "00:01:00"]


def test_parsable_output_is_not_cut(jobs):
    text = sacct.table(jobs, sacct.columns("jobid,jobname,elapsed,end,timelimit"), NOW, False, "|")
    assert text == ("7|my long job name|00:01:05|2026-01-02T11:01:05|01:00:00\n"
                    "8|train|00:01:00|Unknown|01:00:00\n")


def test_the_width_of_a_field_can_be_chosen(jobs):
    text = sacct.table(jobs[:1], sacct.columns("JobName%20,State%-12"), NOW, header=False)
    assert text == "    my long job name FAILED       \n"


def test_a_requeued_job_is_listed_once_by_its_latest_state(tmp_path):
    (tmp_path / "records").write_text(DONE.replace("FAILED", "NODE_FAIL"))
    pending = RUNNING.replace("JobId=8", "JobId=7").replace("RUNNING", "PENDING")
    ended = jobrecords.finished(tmp_path / "records")
    assert [job["State"] for job in jobrecords.merge(ended, jobrecords.active(pending))] == [
        "PENDING"]
    assert len(jobrecords.merge(ended, jobrecords.active(pending), duplicates=True)) == 2


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "00:00:00"), (3661, "01:01:01"), (90061, "1-01:01:01")])
def test_durations(seconds, text):
    assert jobrecords.format_seconds(seconds) == text


@pytest.mark.parametrize("words", [["--format=MaxRSS"], ["--federation"], ["-j", "x"],
                                   ["-S", "yesterday"], ["-o", "State%wide"]])
def test_what_the_light_records_lack_is_named(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sacct", *words])
    monkeypatch.setenv("SLURM_CONF", "/nowhere/etc/slurm.conf")
    with pytest.raises(SystemExit) as error:
        sacct.main()
    assert error.value.code == 1
    said = capsys.readouterr().err
    assert words[-1].removeprefix("--format=").removeprefix("State%") in said
    assert "lab cluster up --accounting" in said
