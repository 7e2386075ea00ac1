"""The page about a job: whole, valid, escaped, and honest about what is modeled."""

import os
from html.parser import HTMLParser

import pytest

from job_monitor import page, report, snapshot, timeline
from labcore.errors import LabError
from pipeline_schedules import traces
from slurmbox.layout import Layout
from tests.job_monitor.samples import (
    LINE,
    VIRTUAL,
    hung,
    job,
    killed,
    lines,
    out_of_memory,
    rank_file,
    take,
    virtual_file,
)

VOID = {"meta", "input"}
RECORDED = [{"rank": rank, "pp": rank // 2, "dp": rank % 2, "tp": 0, "sections": [
    ("forward-backward", 0.0, 0.09, None), ("forward-recv", 0.0, 0.02, None),
    ("forward-compute", 0.02 * (rank // 2), 0.05, ("F", 0, 0)),
    ("backward-compute", 0.05, 0.09, ("B", 0, 0)),
    ("optimizer", 0.09, 0.1, None), ("optimizer-clip-main-grad", 0.09, 0.095, None)]}
    for rank in range(4)]
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J&amp;'\""


class Checker(HTMLParser):
    """Every element is closed in its turn; collects the elements, their attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)


def render(shown, script="#!/bin/bash\n", accounting=(), lanes=(), missing=""):
    text = page.render_page(shown, script, list(accounting), lanes, missing, "2026-01-01 00:00")
    assert text.startswith("<!DOCTYPE html>\n<html lang=\"en\">")
    return Checker(text)


def recorded():
    return timeline.lanes(traces.perfetto(RECORDED)["traceEvents"])


@pytest.fixture
def healthy(tmp_path):
    files = [rank_file(number, state="done") for number in range(4)]
    return take(tmp_path, job("COMPLETED", command="a.sh --lr 1"), lines(until=20), files)


def test_a_finished_job_s_page_has_all_sections(healthy):
    row = {"JobID": "7", "State": "COMPLETED", "MaxRSS": ""}
    shown = render(healthy, accounting=[row], lanes=recorded())
    for title in ("What was requested", "Configuration", "Iteration times", "Loss", "Memory",
                  "Timeline", "Ranks", "Slurm's accounting", "The end of the log"):
        assert title in shown.text
    assert "Milliseconds per iteration: median 111.0, from 102.0 to 120.0" in shown.text
    assert "Training loss, from 8.9000 at iteration 1 to 7.0000 at iteration 20." in shown.text
    assert shown.seen.count("svg") == 3 and "Modeled" not in shown.text
    assert "What went wrong" not in shown.text and "Errors in the log" not in shown.text


def test_nothing_is_fetched_and_nothing_runs(healthy):
    shown = render(healthy, lanes=recorded())
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(shown.seen)
    assert not [name for name, _ in shown.attributes if name.startswith("on")]
    assert not [value for name, value in shown.attributes if name in ("src", "href")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in (
        shown.attributes)
    assert "url(" not in shown.text and "@import" not in shown.text


@pytest.mark.parametrize("log", [out_of_memory(2), killed(), hung()], ids=["oom", "killed", "hung"])
def test_a_failed_job_s_page_says_why_and_where(tmp_path, log):
    taken = take(tmp_path, job("FAILED"), log)
    shown = render(taken)
    assert f"What went wrong: {taken.problem}" in shown.text
    assert "mark" in shown.seen and "root cause" in shown.text and "consequence" in shown.text


def test_whatever_a_log_says_is_text(tmp_path):
    log = lines(HOSTILE, f"[rank 1] error: {HOSTILE}")
    log.insert(2, f"  {'x' * 9} .................... {HOSTILE}")
    files = [rank_file(n, node=HOSTILE, state=HOSTILE, device=HOSTILE, modeled=True)
             for n in range(4)]
    what = job("FAILED", name=HOSTILE, command=f"a.sh '{HOSTILE}", folder=HOSTILE, nodes=HOSTILE)
    shown = render(take(tmp_path, what, log, files), script=HOSTILE,
                   accounting=[{"JobID": HOSTILE}] * 2)
    assert not {"script", "img"} & set(shown.seen)
    assert not [name for name, _ in shown.attributes if name.startswith("on")]
    assert shown.text.count("<script>alert(1)</script>") > 8
    assert "\x1b" not in shown.text


def test_every_modeled_figure_says_so(tmp_path):
    files = [virtual_file(number, state="done") for number in range(4)]
    shown = render(take(tmp_path, job("COMPLETED"), lines(label=VIRTUAL, loss=False), files),
                   lanes=recorded())
    said = f"Modeled: {VIRTUAL}."
    assert shown.text.count(said) == 5  # summary, times, memory, timeline, ranks
    assert f"None: a {VIRTUAL} computes no values." in shown.text


def test_a_mismatch_and_a_loss_that_is_no_number_are_told(tmp_path):
    broken = LINE.format(n=4, ms=1.0, loss="lm loss: nan | ", label="")
    taken = take(tmp_path, job(command="a.sh --train-iters 8"), lines(broken))
    shown = render(taken)
    assert "Not as requested: --train-iters: requested 8, but the log says 20" in shown.text
    assert "1 value(s) are not finite" in shown.text


def test_without_rank_files_the_log_is_enough(tmp_path):
    memory = ("[Rank {}] (after 1 iterations) memory (MB) | allocated: 512.0 | max allocated: "
              "1024.0 | reserved: 512.0 | max reserved: 1024.0")
    taken = take(tmp_path, job("COMPLETED"), lines(memory.format(0), memory.format(1)), [])
    assert (taken.source, taken.latest.iteration, taken.rows) == ("log", 3, [])
    shown = render(taken)
    assert "the highest peak is 1.0 GiB" in shown.text and "the log alone" in shown.text


def test_a_job_that_said_nothing_yet_has_a_page(tmp_path):
    shown = render(snapshot.Snapshot(job("PENDING", nodes="")), script="")
    assert "PENDING" in shown.text and "svg" not in shown.seen


@pytest.fixture
def workspace_without_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_the_report_lies_in_the_workspace_or_where_one_says(workspace_without_slurm):
    log = workspace_without_slurm / "log.txt"
    log.write_text("\n".join(lines()))
    what = job("COMPLETED", name="../odd name", out=log, err=log)
    path = report.write(what, None)
    assert path == workspace_without_slurm / "megatron/reports/odd_name_7.html"
    assert "Iteration times" in path.read_text()
    assert report.write(what, str(workspace_without_slurm / "x.html")).is_file()


def test_an_output_that_cannot_be_is_named(workspace_without_slurm):
    with pytest.raises(LabError, match=r"--output .*: it is a folder; nearest: .*sample_7\.html"):
        report.write(job(), str(workspace_without_slurm))
    with pytest.raises(LabError, match=r"--output .*there is no folder .*/none"):
        report.write(job(), str(workspace_without_slurm / "none/x.html"))


@pytest.mark.parametrize(("written", "found"), [
    ("2026-01-01T00:00:30", True), ("2025-12-31T00:00:00", False), ("2026-01-01T01:00:00", False)])
def test_only_this_job_s_timeline_is_shown(tmp_path, written, found):
    from datetime import datetime

    path = tmp_path / "lines" / timeline.FILE
    path.parent.mkdir()
    traces.write(path, traces.perfetto(RECORDED))
    os.utime(path, (datetime.fromisoformat(written).timestamp(),) * 2)
    what = job("COMPLETED", folder=str(tmp_path), start="2026-01-01T00:00:00",
               end="2026-01-01T00:01:00")
    lanes, missing = report.timeline(snapshot.Snapshot(what, config={"timeline": "lines"}))
    assert (len(lanes), missing) == (4, "") if found else (
        lanes == [] and "--timeline lines: this job has recorded no timeline" in missing)


def test_without_a_timeline_the_page_names_the_flags(healthy):
    lanes, missing = report.timeline(healthy)
    assert lanes == [] and "lab submit --profile" in missing and "--timeline FOLDER" in missing
    shown = render(healthy, missing=missing)
    assert missing in shown.text and "input" not in shown.seen


def test_a_job_that_slurm_forgot_is_found_by_its_kept_description(workspace_without_slurm):
    from job_monitor import slurm

    layout = Layout(workspace_without_slurm)
    folder = layout.ranks / "12"
    folder.mkdir(parents=True)
    (folder / "job.txt").write_text(
        "JobId=12 JobName=tiny UserId=me(0) JobState=RUNNING Reason=None RunTime=00:00:01 "
        "TimeLimit=00:10:00 StartTime=2026-01-01T00:00:00 NodeList=slurmnode[1-2] NumNodes=2 "
        "NumTasks=2 TRES=cpu=8,node=2 Command=/w/a b.sh --lr 1 WorkDir=/w StdErr=/w/e StdIn=/x "
        "StdOut=/w/o TresPerNode=gres:gpu:v100:2\n")
    (folder / "script.sh").write_text("#!/bin/bash\n")
    layout.job_records.parent.mkdir(parents=True)
    layout.job_records.write_text(
        "JobId=12 UserId=me(0) GroupId=me(0) Name=tiny JobState=FAILED Partition=p TimeLimit=10 "
        "StartTime=2026-01-01T00:00:00 EndTime=2026-01-01T00:01:00 NodeList=slurmnode[1-2] "
        "NodeCnt=2 ProcCnt=8 WorkDir=/w Tres=cpu=8 ExitCode=1:0 \n")
    found = slurm.find(12)
    assert (found.state, found.elapsed, found.gpus, found.exit_code) == (
        "FAILED", "00:01:00", 4, "1:0")
    assert found.command == "/w/a b.sh --lr 1" and list(map(str, found.logs)) == ["/w/e", "/w/o"]
    assert slurm.script(12) == "#!/bin/bash\n"
    with pytest.raises(LabError, match="not running"):
        slurm.find(13)


def test_iterations_of_no_time_have_no_speed(tmp_path):
    at_once = [LINE.format(n=n, ms=0.0, loss="", label="") for n in range(1, 4)]
    shown = render(take(tmp_path, job("COMPLETED"), lines(*at_once, until=0)))
    assert "median 0.0" in shown.text and "tokens per second" not in shown.text


def test_the_first_line_of_each_start_is_no_usual_step(tmp_path):
    slow = [LINE.format(n=n, ms=9000.0 if n == 11 else 100.0, loss="", label="")
            for n in range(11, 15)]
    log = lines() + lines(*slow, until=0)  # from a checkpoint: iterations go on
    shown = render(take(tmp_path, job("COMPLETED"), log))
    assert "from 100.0 to 103.0 (without the first line of each start)" in shown.text


def test_a_card_s_memory_in_use_has_no_peak_of_the_tensors(tmp_path):
    files = [virtual_file(n, state="done", max_allocated=3 * 2**30) for n in range(4)]
    shown = render(take(tmp_path, job("COMPLETED"), lines(label=VIRTUAL), files))
    assert ("at most 10.0 GiB. Peak of its tensors: at most 3.0 GiB." in shown.text
            and "the highest peak" not in shown.text)
    assert "in use (GiB)" in shown.text and "tensors' peak (GiB)" in shown.text


@pytest.mark.parametrize(("device", "kind"), [
    ("the CPU", "the process's memory"), ("NVIDIA H100", "tensors on the GPU")])
def test_whose_memory_it_is_the_rank_s_device_says(tmp_path, device, kind):
    files = [rank_file(n, device=device) for n in range(4)]
    assert f"Memory per rank ({kind}); the highest peak is 1.0 GiB." in render(
        take(tmp_path, job("COMPLETED"), lines(), files)).text


def test_lines_are_numbered_in_one_whole_file_only(tmp_path):
    whole = take(tmp_path, job("FAILED"), killed())
    apart = take(tmp_path, job("FAILED", out=tmp_path / "o"), killed())
    assert "messageline" in render(whole).text and "messageline" not in render(apart).text
    assert snapshot.as_dict(whole)["errors"][0]["line"] == whole.errors[0].line
    assert snapshot.as_dict(apart)["errors"][0]["line"] is None


def test_long_lines_of_a_log_are_cut(tmp_path):
    shown = take(tmp_path, job("FAILED"), lines("[rank 1] error: no", "x" * 10**5))
    text = render(shown).text
    assert len(text) < 20_000 and f"... ({10**5 - page.MAX_LENGTH} more characters)" in text
